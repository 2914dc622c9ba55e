/* tenant_limits.h - the limits of a tenant: rates, requests at once, tokens per day and month.
 *
 * A request is admitted with all tokens it may use, or refused and nothing is taken.  However it
 * ends, it is settled at its end: unused tokens are returned, tokens used beyond are charged.
 *
 *   limits_admit > the request runs > limits_settle, or limits_return
 *
 * Requests and tokens per minute are token buckets: full at first, filled by limit / 60 per second
 * up to the limit.  A bucket below zero (more was used than reserved) admits nothing until it is
 * refilled above.  Days and months are those of the calendar in UTC.  The tokens of running
 * requests count against the present day and month, and used tokens are charged where the request
 * ends: a request that runs over midnight costs the day before nothing.
 *
 * A refusal returns the whole seconds after which a retry makes sense, and keeps nothing for it: an
 * estimate.  For rates it is the refill behind the line of the requests refused before; for
 * requests at once the line and the duration of past requests (queue_slots.h).  First tries leave
 * what the line needs within the next two seconds, at most an eighth of a limit; a request that
 * says that it is a retry may have all.  The line reaches at most LIMITS_RETRY_MAX_S ahead; a
 * request behind it is told LIMITS_RETRY_MAX_S, or later.  Refusals by day or month return the time
 * to its end; if only the tokens of running requests are in the way, they return the usual duration
 * of a request.  If several limits are short, the one with the longest wait is reported.
 *
 * A closed limit (0) admits nothing until an operator opens it: waiting does not help.  Running
 * requests are settled as usual.
 *
 * Always, for a tenant: running and reserved are the sums over requests that are admitted and not
 * settled; asking raises neither use nor the level of a bucket.
 *
 * The wall clock may be set back.  The current day or month is kept then, so no quota is granted
 * twice.  Only if it begins more than LIMITS_CLOCK_BACK_S ahead, the clock was wrong before: the
 * use so far is then moved to the present day or month.
 *
 * Times: now_us is monotonic, unix_s the seconds since 1970 of the wall clock.
 * Thread: front. */
#ifndef INFERD_TENANT_LIMITS_H
#define INFERD_TENANT_LIMITS_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "scheduler/queue_slots.h"

enum {
    LIMITS_TENANTS_MAX = 200000,
    LIMITS_NAME_BYTES_MAX = 255,
    LIMITS_RETRY_MAX_S = 60, // largest delay by a minute limit or by requests at once
    LIMITS_CLOCK_BACK_S = 8 * 86400,
    LIMITS_TEXT_BYTES = 320,
    LIMITS_VALUE_BYTES = 32
};
#define LIMITS_ASK_TOKENS_MAX ((uint64_t)1 << 40)   // of one request
#define LIMITS_USED_MAX       ((uint64_t)INT64_MAX) // counts of tokens saturate here

typedef enum limits_reason {
    LIMITS_ADMITTED,
    LIMITS_REQUESTS,   // per minute
    LIMITS_TOKENS,     // per minute
    LIMITS_CONCURRENT, // too many at once
    LIMITS_DAY,
    LIMITS_MONTH,
    LIMITS_TOO_LARGE, // larger than the whole limit: waiting does not help
    LIMITS_CLOSED,    // a limit is 0
    LIMITS_REASONS
} limits_reason;
const char *limits_reason_name(limits_reason reason); // "requests", ...: for metrics

/* 0 = no such limit.  A limit that admits nothing is a bit of `closed` instead: 1 <<
 * LIMITS_REQUESTS up to 1 << LIMITS_MONTH. */
typedef struct limits_spec {
    uint32_t requests_per_min, tokens_per_min;
    uint32_t concurrent; // requests at once
    uint64_t tokens_per_day, tokens_per_month;
    uint32_t closed;
} limits_spec;

/* The needs of a request. */
typedef struct limits_ask {
    uint32_t n_requests; // n choices, lists and several prompts count each
    uint64_t tokens;     // prompt and output estimate
    bool again;          // it says that it is a retry
} limits_ask;

typedef struct limits_answer {
    limits_reason reason;
    uint32_t retry_after_s;       // at least 1; 0 when admitted, too large or closed
    char text[LIMITS_TEXT_BYTES]; // a sentence with the numbers; "" when admitted
} limits_answer;

typedef struct limits limits;

limits *limits_create(void);    // NULL: no memory
void limits_destroy(limits *l); // accepts NULL
uint32_t limits_n_tenants(const limits *l);

/* Sets the limits of tenant `number`; the table grows to it.  A number keeps its name for good.  A
 * change keeps used and reserved tokens and running requests: a bucket lacks what it lacked before,
 * at most all of the new limit; the line of refused requests begins anew.  EINVAL, ENOMEM change
 * nothing. */
inferd_status limits_set_tenant(limits *l, uint32_t number, const char *name,
                                const limits_spec *spec, uint64_t now_us, inferd_err *err);

/* True: admitted; limits_settle or limits_return must follow once.  False: nothing was taken. */
bool limits_admit(limits *l, uint32_t tenant, uint64_t now_us, int64_t unix_s,
                  const limits_ask *ask, limits_answer *out);
/* An admitted request ended, with the same amounts; a cancelled one used the computed tokens. */
void limits_settle(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask, uint64_t tokens_used);
/* Instead of limits_settle: a later check refused the request, and it costs nothing. */
void limits_return(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask);

/* Values of x-ratelimit-{limit,remaining,reset}-{requests,tokens}; "" = no such header.  Remaining
 * is what a first try would get; reset is when the bucket would be full,
 * as "120ms", "1s", "6m0s"; a closed one is "0", "0" and no reset. */
typedef struct limits_headers {
    char limit_requests[LIMITS_VALUE_BYTES], remaining_requests[LIMITS_VALUE_BYTES],
        reset_requests[LIMITS_VALUE_BYTES];
    char limit_tokens[LIMITS_VALUE_BYTES], remaining_tokens[LIMITS_VALUE_BYTES],
        reset_tokens[LIMITS_VALUE_BYTES];
} limits_headers;
void limits_get_headers(limits *l, uint32_t number, uint64_t now_us, limits_headers *out);

/* For metrics and administration. */
typedef struct limits_usage {
    const char *name; // borrowed until the next limits_set_tenant; "" = never set
    limits_spec spec;
    uint64_t used_day, used_month; // tokens, settled
    uint64_t reserved;             // tokens of running requests; quotas count them too
    uint64_t running;              // requests
    uint64_t refused[LIMITS_REASONS];
} limits_usage;
void limits_get_usage(const limits *l, uint32_t number, int64_t unix_s, limits_usage *out);

/* The state that outlives the process. limits_keep counts reserved tokens as used, so that a killed
 * process loses no use; false: nothing to keep. */
typedef struct limits_kept {
    int64_t day_begins_s, month_begins_s; // unix
    uint64_t day_tokens, month_tokens;
} limits_kept;
bool limits_keep(const limits *l, uint32_t tenant, int64_t unix_s, limits_kept *out);
/* Before anything is admitted for the tenant. */
void limits_restore(limits *l, uint32_t number, const limits_kept *kept);
/* Grows with every change of the result of limits_keep. */
uint64_t limits_n_changes(const limits *l);

/* The calendar in UTC, from 1970 to the end of 9999; unix_s outside counts as the nearer end. */
typedef struct limits_date {
    int year, month, day; // 1970..9999, 1..12, 1..31
} limits_date;
limits_date limits_date_of(int64_t unix_s);
bool limits_date_valid(limits_date d);
int64_t limits_date_begins_s(limits_date d); // of a valid date: its midnight

/* For tests: buckets within bounds, sums not negative; false: there is a bug. */
bool limits_verify(const limits *l, uint32_t tenant);

#endif
