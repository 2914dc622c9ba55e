/* tenant_limits.h - what a tenant may ask for: rates, requests at once, tokens per day and month.
 *
 * A request is admitted with all it may take, or refused and nothing is taken.  At its end, however
 * it ended, it is settled: what was reserved and not used is given back, what was used beyond is
 * charged.
 *
 *     limits_admit > the request runs > limits_settle, or limits_return
 *
 * Requests and tokens per minute are buckets: full at first, filled by limit / 60 per second up to
 * the limit.  A bucket below zero (more was used than reserved) lets nothing pass until repaid.
 * Days and months are those of the calendar in UTC.  A reservation counts against the day and month
 * in which one looks, and use is charged where the request ends: one that runs over midnight costs
 * the day before nothing.
 *
 * A refusal is a promise.  It tells in how many whole seconds the refill will have covered what was
 * promised before plus this request, and notes the booking.  For requests at once it is an estimate
 * from how long requests took and how many promises held; about one in fourteen does not.
 *
 *     now ........ due ........... due + LIMITS_GRACE_US
 *     |  others must leave what   |  then it is forgotten, and what it held is anybody's
 *     |  it needs at `due`        |
 *
 * A client that returns when its booking is due takes it; the promises to others do not stop it.
 * All others, those who return early too, get only what no promise needs.  Bookings reach at most
 * LIMITS_RETRY_MAX_S ahead: when more than that is promised, a client is told LIMITS_RETRY_MAX_S
 * without a promise.  Day and month refusals tell the time to their end and book nothing; while
 * only what running requests reserved is in the way, they tell how long requests usually take.
 * Where several limits are short, the one that is waited for the longest is told.
 *
 * A limit that is closed lets nothing in until somebody opens it: time does not help.  What runs is
 * settled as ever.
 *
 * Always, for a tenant: running and reserved are the sums over what is admitted and not settled;
 * neither use nor what a bucket holds grows by asking.
 *
 * The clock of the day may be set back.  A day or month that has begun is not left then, so no
 * quota is given twice; only when it lies more than LIMITS_CLOCK_BACK_S ahead was the clock wrong
 * before, and the present one goes on with the use so far.
 *
 * Times: now_us is monotonic, unix_s the seconds since 1970 of the clock of the day.
 * Thread: front. */
#ifndef INFERD_TENANT_LIMITS_H
#define INFERD_TENANT_LIMITS_H

#include "inferd/base.h"
#include "inferd/status.h"

enum {
    LIMITS_TENANTS_MAX = 200000,
    LIMITS_NAME_BYTES_MAX = 255,
    LIMITS_BOOKINGS_MAX = 1024, // promises to one tenant's clients at a time
    LIMITS_RETRY_MAX_S = 60,    // of a minute limit and of requests at once
    LIMITS_GRACE_US = 1000000,
    LIMITS_CLOCK_BACK_S = 8 * 86400,
    LIMITS_TEXT_BYTES = 320,
    LIMITS_VALUE_BYTES = 32
};
#define LIMITS_ASK_TOKENS_MAX ((uint64_t)1 << 40)   // of one request
#define LIMITS_USED_MAX       ((uint64_t)INT64_MAX) // where counts of tokens stay

typedef enum limits_reason {
    LIMITS_ADMITTED,
    LIMITS_REQUESTS,   // per minute
    LIMITS_TOKENS,     // per minute
    LIMITS_CONCURRENT, // too many at once
    LIMITS_DAY,
    LIMITS_MONTH,
    LIMITS_TOO_LARGE, // larger than a whole window: waiting does not help
    LIMITS_CLOSED,    // a limit is 0
    LIMITS_REASONS
} limits_reason;
const char *limits_reason_name(limits_reason reason); // "requests", ...: for metrics

/* 0 = no such limit.  One that lets nothing in is a bit of `closed` instead: 1 << LIMITS_REQUESTS
 * up to 1 << LIMITS_MONTH. */
typedef struct limits_spec {
    uint32_t requests_per_min, tokens_per_min;
    uint32_t concurrent; // requests at once
    uint64_t tokens_per_day, tokens_per_month;
    uint32_t closed;
} limits_spec;

/* What a request takes. */
typedef struct limits_ask {
    /* What a request and its retries have in common and others do not, such as a hash of the
     * client and the body; so a retry finds its booking, and one that comes early gets no second.
     * 0 = unknown: found when due by its amounts, which newcomers of the same size can take. */
    uint64_t mark;
    uint32_t n_requests; // n, lists and several prompts count each
    uint64_t tokens;     // prompt and output estimate
} limits_ask;

typedef struct limits_answer {
    limits_reason reason;
    uint32_t retry_after_s;       // at least 1; 0 when admitted, too large or closed
    bool promised;                // a client that returns then is waited for
    char text[LIMITS_TEXT_BYTES]; // a sentence with the numbers; "" when admitted
} limits_answer;

typedef struct limits limits;

limits *limits_create(void);    // NULL: no memory
void limits_destroy(limits *l); // accepts NULL
uint32_t limits_n_tenants(const limits *l);

/* The limits of tenant `number`; the table grows to it.  A number keeps its name for good.  A
 * change keeps what was used, reserved and runs: a bucket lacks what it lacked before, at most all
 * of the new limit, and promises are forgotten.  INFERD_EINVAL, INFERD_ENOMEM change nothing. */
inferd_status limits_set_tenant(limits *l, uint32_t number, const char *name,
                                const limits_spec *spec, uint64_t now_us, inferd_err *err);

/* True: taken, and owed to limits_settle once.  False: nothing was. */
bool limits_admit(limits *l, uint32_t tenant, uint64_t now_us, int64_t unix_s,
                  const limits_ask *ask, limits_answer *out);
/* The end of an admitted request with the same amounts; a cancelled one used what was computed. */
void limits_settle(limits *l, uint32_t tenant, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask, uint64_t tokens_used);
/* Instead: it was refused after all, by somebody else, and costs nothing. */
void limits_return(limits *l, uint32_t tenant, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask);

/* Values of x-ratelimit-{limit,remaining,reset}-{requests,tokens}; "" = no such header.  Remaining
 * is what a new request would get, promises aside; reset is when the bucket would be full, as
 * "120ms", "1s", "6m0s"; a closed one is "0", "0" and no reset. */
typedef struct limits_headers {
    char limit_requests[LIMITS_VALUE_BYTES], remaining_requests[LIMITS_VALUE_BYTES],
        reset_requests[LIMITS_VALUE_BYTES];
    char limit_tokens[LIMITS_VALUE_BYTES], remaining_tokens[LIMITS_VALUE_BYTES],
        reset_tokens[LIMITS_VALUE_BYTES];
} limits_headers;
void limits_get_headers(limits *l, uint32_t tenant, uint64_t now_us, limits_headers *out);

/* For metrics and administration. */
typedef struct limits_usage {
    const char *name; // borrowed until the next limits_set_tenant; "" = never set
    limits_spec spec;
    uint64_t used_day, used_month; // tokens, settled
    uint64_t reserved;             // tokens of what runs; the quotas count it too
    uint64_t running;              // requests
    uint64_t refused[LIMITS_REASONS];
    uint32_t n_bookings;
} limits_usage;
void limits_get_usage(const limits *l, uint32_t tenant, int64_t unix_s, limits_usage *out);

/* What has to survive the process.  `limits_keep` counts reserved tokens as used, so that being
 * killed loses no use; false: nothing to keep. */
typedef struct limits_kept {
    int64_t day_begins_s, month_begins_s; // unix
    uint64_t day_tokens, month_tokens;
} limits_kept;
bool limits_keep(const limits *l, uint32_t tenant, int64_t unix_s, limits_kept *out);
/* Before anything was admitted for the tenant. */
void limits_restore(limits *l, uint32_t tenant, const limits_kept *kept);
/* Grows whenever something changed that limits_keep tells. */
uint64_t limits_n_changes(const limits *l);

/* The calendar in UTC, from 1970 to the end of 9999; unix_s outside counts as its nearest end. */
typedef struct limits_date {
    int year, month, day; // 1970..9999, 1..12, 1..31
} limits_date;
limits_date limits_date_of(int64_t unix_s);
bool limits_date_valid(limits_date d);
int64_t limits_date_begins_s(limits_date d); // of a valid date: its midnight

/* Both buckets are within their bounds, bookings in order, sums not negative; false only after a
 * bug.  For tests. */
bool limits_verify(const limits *l, uint32_t tenant);

#endif
