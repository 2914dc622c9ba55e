/* tenant_limits.c - see tenant_limits.h.
 *
 * All arithmetic is on integers.  A request, a token and a request slot are PART parts each: a
 * bucket with the limit n then gains exactly n parts per microsecond: no remainder is dropped.
 *
 * Three flows limit a request: the two buckets, and the slots of running requests (BUCKET_RUNNING),
 * of which `concurrent` become free per usual duration of a request.  Bookings are kept in the
 * order in which they are due. look_ahead() advances the flows from now over all of them; the
 * lowest level behind any booking is what an earlier request may take:
 *
 *   level |    /|    /|    /    a new request that takes r now lowers everything to the right
 *         |  /  |  /  |  /      by r, so r must not exceed the lowest point; a later request
 *         |/    |/    |/        depends only on the points to its right
 *         |_____b0____b1_____
 *
 * A full bucket gains nothing, so lowering it costs less than computed: the rule is safe.
 *
 * Ends of requests are not as regular as a refill.  Of the k ends expected by some time, `spread`
 * square roots of k are not counted on (below zero: that many more are, because some clients do not
 * return).  The irregularity is not known, so it is learned: a kept reservation lowers the spread,
 * a broken one raises it by far more.  When all slots are free in spite of the spread, the earlier
 * uncertainty no longer matters, and k is counted from zero; otherwise short requests, of which
 * many end in a second, would never be sure of a slot. */
#include "tenant_limits.h"

#include <string.h>

#define PART      ((uint64_t)60000000)
#define SECOND_US ((uint64_t)1000000)
#define MINUTE_US (60 * SECOND_US)
/* Debt beyond this, more than ten times what one request can cause, is dropped. */
#define LEVEL_MIN (-((int64_t)4 << 60))

enum {
    TENANTS_FIRST = 16,
    BOOKINGS_FIRST = 8,
    DAY_S = 86400,
    NAME_SHOWN_BYTES = 64,
    /* The usual duration is that of the last 64 to 128 requests. */
    ENDS_REMEMBERED = 128,
};
#define DURATION_FIRST_US (10 * SECOND_US)
/* In 1/SPREAD_ONE of the square root of the expected ends, see above.  A broken reservation raises
 * the spread by as much as RESERVED_PER_BREAK kept ones lower it: about one of so many breaks. */
enum {
    SPREAD_ONE = 128,
    SPREAD_MAX = 3 * SPREAD_ONE,
    SPREAD_MIN = -2 * SPREAD_ONE,
    RESERVED_PER_BREAK = 14,
};

enum { BUCKET_REQUESTS, BUCKET_TOKENS, BUCKET_RUNNING, BUCKETS };

typedef struct booking {
    uint64_t mark, due_us;
    uint64_t tokens;
    uint32_t n_requests;
} booking;

/* Tokens used in the day or month that began at begins_s. */
typedef struct quota {
    int64_t begins_s;
    uint64_t used;
} quota;

typedef struct tenant {
    char *name; // owned; NULL: never set
    limits_spec spec;
    uint64_t touched_us; // the levels and busy_us are valid at this time
    int64_t level[2];    // parts, of BUCKET_REQUESTS and BUCKET_TOKENS; at most the limit
    uint64_t running, reserved;
    uint64_t busy_us, n_ended; // summed running time of requests, and how many ended; both decay
    int32_t spread;            // 1/SPREAD_ONE
    quota day, month;
    uint64_t refused[LIMITS_REASONS];
    booking *bookings; // [n_bookings] by due_us; owned
    uint32_t n_bookings, bookings_capacity;
} tenant;

struct limits {
    tenant *tenants; // [n]
    uint32_t n, capacity;
    uint64_t n_changes;
};

const char *limits_reason_name(limits_reason reason) {
    static const char *const names[LIMITS_REASONS] = {
        "admitted", "requests", "tokens", "concurrent", "day", "month", "too_large", "closed"};
    INFERD_CHECK(reason >= 0 && reason < LIMITS_REASONS);
    return names[reason];
}

/* -- numbers -- */

static int64_t i64_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static uint64_t add_up_to(uint64_t a, uint64_t b, uint64_t max) {
    return a > max || b > max - a ? max : a + b;
}

static int64_t lower(int64_t level, uint64_t parts) {
    if (parts >= (uint64_t)(level - LEVEL_MIN)) return LEVEL_MIN;
    return level - (int64_t)parts;
}

/* Amounts over 32 bits occur only where tokens have no limit per minute. */
static uint64_t parts_of(uint64_t amount) {
    return u64_min(amount, UINT32_MAX) * PART;
}

static uint64_t square_root(uint64_t n) {
    uint64_t root = 0;
    for (uint64_t bit = (uint64_t)1 << 31; bit > 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= n) root += bit;
    return root;
}

/* -- calendar -- */

static const limits_date first_date = {1970, 1, 1}, last_date = {9999, 12, 31};

static bool is_leap(int year) {
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}
static int month_days(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[month - 1] + (month == 2 && is_leap(year));
}
/* Days from 1970 to the first of January. */
static int64_t year_begins(int year) {
    int before = year - 1;
    int64_t leaps = before / 4 - before / 100 + before / 400;
    enum { LEAPS_BEFORE_1970 = 1969 / 4 - 1969 / 100 + 1969 / 400 };
    return (int64_t)365 * (year - first_date.year) + leaps - LEAPS_BEFORE_1970;
}

bool limits_date_valid(limits_date d) {
    return d.year >= first_date.year && d.year <= last_date.year && d.month >= 1 && d.month <= 12 &&
           d.day >= 1 && d.day <= month_days(d.year, d.month);
}

int64_t limits_date_begins_s(limits_date d) {
    INFERD_CHECK(limits_date_valid(d));
    int64_t days = year_begins(d.year) + d.day - 1;
    for (int month = 1; month < d.month; month++) days += month_days(d.year, month);
    return days * DAY_S;
}

limits_date limits_date_of(int64_t unix_s) {
    if (unix_s < 0) return first_date;
    if (unix_s / DAY_S >= year_begins(last_date.year + 1)) return last_date;
    int64_t day = unix_s / DAY_S;
    limits_date d = {first_date.year + (int)(day / 366), 1, 1}; // or a few years earlier
    while (year_begins(d.year + 1) <= day) d.year++;
    day -= year_begins(d.year);
    for (; day >= month_days(d.year, d.month); d.month++) day -= month_days(d.year, d.month);
    d.day = (int)day + 1;
    return d;
}

static int64_t day_begins(int64_t unix_s) {
    return limits_date_begins_s(limits_date_of(unix_s));
}
static int64_t month_begins(int64_t unix_s) {
    limits_date d = limits_date_of(unix_s);
    d.day = 1;
    return limits_date_begins_s(d);
}
static int64_t day_ends(int64_t begins_s) {
    return begins_s + DAY_S;
}
static int64_t month_ends(int64_t begins_s) {
    limits_date d = limits_date_of(begins_s);
    return begins_s + (int64_t)month_days(d.year, d.month) * DAY_S;
}

/* -- quotas -- */

static void enter(quota *q, int64_t begins_s, int64_t unix_s) {
    if (begins_s > q->begins_s)
        *q = (quota){begins_s, 0};
    else if (q->begins_s > unix_s && q->begins_s - unix_s > LIMITS_CLOCK_BACK_S)
        q->begins_s = begins_s;
}

static void enter_periods(quota *day, quota *month, int64_t unix_s) {
    if (unix_s < 0) unix_s = 0;
    enter(day, day_begins(unix_s), unix_s);
    enter(month, month_begins(unix_s), unix_s);
}

static uint64_t quota_left(const quota *q, uint64_t limit, uint64_t reserved) {
    uint64_t taken = add_up_to(q->used, reserved, UINT64_MAX);
    return taken < limit ? limit - taken : 0;
}

/* -- buckets -- */

static uint32_t rate_of(const limits_spec *s, int bucket) {
    return bucket == BUCKET_REQUESTS ? s->requests_per_min : s->tokens_per_min;
}
static int64_t full_of(uint32_t per_min) {
    return (int64_t)(per_min * PART);
}

/* elapsed_us may be years: the product is formed only if it fits into what is missing. */
static int64_t refill(int64_t level, uint32_t per_min, uint64_t elapsed_us) {
    int64_t full = full_of(per_min);
    if (per_min == 0 || level >= full) return level;
    uint64_t missing = (uint64_t)(full - level);
    if (elapsed_us > missing / per_min) return full;
    return level + (int64_t)(elapsed_us * per_min);
}

static void forget_bookings(tenant *t, uint32_t n) {
    t->n_bookings -= n;
    memmove(t->bookings, t->bookings + n, t->n_bookings * sizeof *t->bookings);
    if (t->n_bookings > 0 || t->bookings_capacity <= BOOKINGS_FIRST) return;
    free(t->bookings); // after a burst
    t->bookings = NULL;
    t->bookings_capacity = 0;
}

/* Advances the tenant to now_us; if the clock went back, time stands still. */
static void touch(tenant *t, uint64_t now_us) {
    if (now_us > t->touched_us) {
        uint64_t elapsed_us = now_us - t->touched_us, busy_us;
        for (int i = 0; i < 2; i++)
            t->level[i] = refill(t->level[i], rate_of(&t->spec, i), elapsed_us);
        if (__builtin_mul_overflow(elapsed_us, t->running, &busy_us)) busy_us = UINT64_MAX;
        t->busy_us = add_up_to(t->busy_us, busy_us, UINT64_MAX);
        t->touched_us = now_us;
    }
    uint32_t n_late = 0;
    while (n_late < t->n_bookings && t->bookings[n_late].due_us + LIMITS_GRACE_US < t->touched_us)
        n_late++;
    if (n_late > 0) forget_bookings(t, n_late);
}

/* -- bookings -- */

/* A source of refill, from a level at a known time. */
typedef struct bucket {
    bool limited;
    int64_t level, full;          // level now, or at the last time it was surely full; minus claims
    uint64_t more;                // expected since then; level + count_on(more) <= full
    uint64_t grow_parts, grow_us; // grow_parts per grow_us
    int32_t spread;               // in 1/SPREAD_ONE square roots of the growth
} bucket;

static uint64_t usual_duration_us(const tenant *t) {
    return t->n_ended == 0 ? DURATION_FIRST_US : t->busy_us / t->n_ended;
}

static void buckets_of(const tenant *t, bucket f[BUCKETS]) {
    for (int i = 0; i < 2; i++) {
        uint32_t per_min = rate_of(&t->spec, i);
        f[i] = (bucket){per_min != 0, t->level[i], full_of(per_min), 0, per_min, 1, 0};
    }
    int64_t slots = (int64_t)parts_of(t->spec.concurrent);
    uint64_t duration_us = usual_duration_us(t);
    f[BUCKET_RUNNING] = (bucket){.limited = t->spec.concurrent != 0,
                                 .level = lower(slots, parts_of(t->running)),
                                 .full = slots,
                                 .grow_parts = (uint64_t)slots,
                                 .grow_us = duration_us == 0 ? 1 : duration_us,
                                 .spread = t->spread};
}

static uint64_t grown(const bucket *f, uint64_t elapsed_us) {
    uint64_t product;
    if (!__builtin_mul_overflow(f->grow_parts, elapsed_us, &product) && product <= INT64_MAX)
        return f->grow_us == 1 ? product : product / f->grow_us;
    unsigned __int128 parts = (unsigned __int128)f->grow_parts * elapsed_us / f->grow_us;
    return parts > INT64_MAX ? INT64_MAX : (uint64_t)parts;
}

/* The part of `more` that is sure. */
static uint64_t count_on(const bucket *f) {
    if (f->spread == 0) return f->more;
    enum { FINE = 256 }; // its root is 16
    uint64_t ends = u64_min(f->more / (PART / FINE), (uint64_t)1 << 48);
    int64_t apart = (int64_t)(square_root(ends) * (PART / 16 / SPREAD_ONE)) * f->spread;
    if (apart < 0) return add_up_to(f->more, (uint64_t)-apart, INT64_MAX);
    return f->more > (uint64_t)apart ? f->more - (uint64_t)apart : 0;
}

static void advance_one(bucket *f, uint64_t elapsed_us) {
    f->more = add_up_to(f->more, grown(f, elapsed_us), INT64_MAX);
    if (count_on(f) < (uint64_t)(f->full - f->level)) return;
    f->level = f->full;
    f->more = 0;
}

static void advance(bucket f[BUCKETS], uint64_t elapsed_us) {
    for (int i = 0; i < BUCKETS; i++) advance_one(&f[i], elapsed_us);
}

/* The level that can be relied on. */
static int64_t sure_level(const bucket *f) {
    return f->level + (int64_t)count_on(f);
}

static void needs_of(uint32_t n_requests, uint64_t tokens, uint64_t need[BUCKETS]) {
    need[BUCKET_REQUESTS] = need[BUCKET_RUNNING] = parts_of(n_requests);
    need[BUCKET_TOKENS] = parts_of(tokens);
}

static void claim(bucket f[BUCKETS], const booking *b) {
    uint64_t need[BUCKETS];
    needs_of(b->n_requests, b->tokens, need);
    for (int i = 0; i < BUCKETS; i++) f[i].level = lower(f[i].level, need[i]);
}

/* What the reservations leave, now and behind each booking.  Most freed slots come back when all
 * slots are free already and are cut off at `full`, so a slot taken now costs later requests
 * little; whether it may be taken is simulated.  Otherwise the reservation of the only slot, most
 * of a minute ahead, would keep it empty until then. */
typedef struct forecast {
    int64_t room[BUCKETS];      // what a request may take now
    uint32_t n_before[BUCKETS]; // bookings up to the last one that `need` would harm
    bool short_of[BUCKETS];     // the flow lacks what is needed now
} forecast;

static forecast look_ahead(const tenant *t, const uint64_t need[BUCKETS]) {
    bucket f[BUCKETS];
    forecast out = {0};
    uint64_t at_us = t->touched_us;
    buckets_of(t, f);
    for (int i = 0; i < BUCKETS; i++) out.room[i] = f[i].level;
    bucket taken = f[BUCKET_RUNNING];
    taken.level = lower(taken.level, need[BUCKET_RUNNING]);
    bool harms = taken.level < 0;
    for (uint32_t k = 0; k < t->n_bookings; k++) {
        const booking *b = &t->bookings[k];
        if (b->due_us > at_us) {
            advance(f, b->due_us - at_us);
            advance_one(&taken, b->due_us - at_us);
            at_us = b->due_us;
        }
        claim(f, b);
        taken.level = lower(taken.level, parts_of(b->n_requests));
        harms = harms || sure_level(&taken) < 0;
        for (int i = 0; i < BUCKETS; i++) {
            int64_t sure = sure_level(&f[i]);
            out.room[i] = i64_min(out.room[i], sure);
            if (f[i].limited && need[i] > 0 && sure < (int64_t)need[i]) out.n_before[i] = k + 1;
        }
    }
    for (int i = 0; i < BUCKETS; i++)
        out.short_of[i] = f[i].limited && need[i] > 0 &&
                          (i == BUCKET_RUNNING ? harms : out.room[i] < (int64_t)need[i]);
    return out;
}

/* The first whole second from now at which `need` is available and harms no later reservation; 0:
 * too far ahead.  `last` is the flow with the longest wait. */
static uint32_t plan(const tenant *t, const uint64_t need[BUCKETS], const forecast *ahead,
                     int *last) {
    bucket f[BUCKETS];
    uint64_t at_us = t->touched_us;
    uint32_t k = 0, waits_s[BUCKETS] = {0};
    buckets_of(t, f);
    for (*last = 0; *last + 1 < BUCKETS && !ahead->short_of[*last];) ++*last;
    INFERD_CHECK(ahead->short_of[*last]); // or it would have been admitted
    for (uint32_t s = 1; s <= LIMITS_RETRY_MAX_S; s++) {
        uint64_t then_us = t->touched_us + s * SECOND_US;
        for (; k < t->n_bookings && t->bookings[k].due_us <= then_us; k++) {
            if (t->bookings[k].due_us > at_us) {
                advance(f, t->bookings[k].due_us - at_us);
                at_us = t->bookings[k].due_us;
            }
            claim(f, &t->bookings[k]);
        }
        advance(f, then_us - at_us);
        at_us = then_us;
        bool enough = true;
        for (int i = 0; i < BUCKETS; i++) {
            bool there = sure_level(&f[i]) >= (int64_t)need[i] && k >= ahead->n_before[i];
            if (!f[i].limited || need[i] == 0 || there) continue;
            enough = false;
            waits_s[i] = s;
        }
        for (int i = 0; i < BUCKETS; i++)
            if (waits_s[i] > waits_s[*last]) *last = i;
        if (enough) return s;
    }
    return 0;
}

static bool book(tenant *t, const limits_ask *ask, uint64_t due_us) {
    if (t->n_bookings >= LIMITS_BOOKINGS_MAX) return false;
    if (t->n_bookings == t->bookings_capacity) {
        uint32_t capacity = t->bookings_capacity == 0 ? BOOKINGS_FIRST : 2 * t->bookings_capacity;
        booking *grown_to = realloc(t->bookings, capacity * sizeof *grown_to);
        if (grown_to == NULL) return false;
        t->bookings = grown_to;
        t->bookings_capacity = capacity;
    }
    uint32_t at = t->n_bookings++;
    for (; at > 0 && t->bookings[at - 1].due_us > due_us; at--)
        t->bookings[at] = t->bookings[at - 1];
    t->bookings[at] = (booking){ask->mark, due_us, ask->tokens, ask->n_requests};
    return true;
}

/* Removes the booking of this client; true: it is due and covers the request. */
static bool take_booking(tenant *t, const limits_ask *ask) {
    for (uint32_t k = 0; k < t->n_bookings; k++) {
        booking b = t->bookings[k];
        bool due = b.due_us <= t->touched_us;
        bool same = b.tokens == ask->tokens && b.n_requests == ask->n_requests;
        if (b.mark != ask->mark || (ask->mark == 0 && !(due && same))) continue;
        t->n_bookings--;
        memmove(t->bookings + k, t->bookings + k + 1, (t->n_bookings - k) * sizeof b);
        return due && b.tokens >= ask->tokens && b.n_requests >= ask->n_requests;
    }
    return false;
}

/* -- refusing -- */

static bool refuse(tenant *t, limits_answer *out, limits_reason reason, uint32_t retry_after_s) {
    out->reason = reason;
    out->retry_after_s = retry_after_s;
    t->refused[reason]++;
    return false;
}

/* The text names the configuration key of the closed limit. */
static bool is_open(tenant *t, limits_answer *out) {
    static const char *const names[] = {[LIMITS_REQUESTS] = "requests_per_min",
                                        [LIMITS_TOKENS] = "tokens_per_min",
                                        [LIMITS_CONCURRENT] = "concurrent",
                                        [LIMITS_DAY] = "tokens_per_day",
                                        [LIMITS_MONTH] = "tokens_per_month"};
    size_t i = LIMITS_REQUESTS;
    while (i < INFERD_COUNT(names) && (t->spec.closed >> i & 1) == 0) i++;
    if (i == INFERD_COUNT(names)) return true;
    snprintf(out->text, sizeof out->text, "limits.%s of tenant %.*s is 0: nothing is admitted",
             names[i], NAME_SHOWN_BYTES, t->name);
    return refuse(t, out, LIMITS_CLOSED, 0);
}

static bool refuse_too_large(tenant *t, limits_answer *out, uint64_t wanted, const char *what,
                             uint64_t most, const char *window) {
    snprintf(out->text, sizeof out->text,
             "this request counts as %llu %s, the limit is %llu %s: it can never be admitted as it "
             "is",
             (unsigned long long)wanted, what, (unsigned long long)most, window);
    return refuse(t, out, LIMITS_TOO_LARGE, 0);
}

/* True if each limit could hold the request alone. */
static bool fits_windows(tenant *t, const limits_ask *ask, limits_answer *out) {
    const limits_spec *s = &t->spec;
    const struct {
        uint64_t wanted, most;
        const char *what, *window;
    } rows[] = {
        {ask->n_requests, s->requests_per_min, "requests", "requests per minute"},
        {ask->n_requests, s->concurrent, "requests", "requests at once"},
        {ask->tokens, s->tokens_per_min, "tokens (prompt and output)", "tokens per minute"},
        {ask->tokens, s->tokens_per_day, "tokens (prompt and output)", "tokens per day"},
        {ask->tokens, s->tokens_per_month, "tokens (prompt and output)", "tokens per month"},
        {ask->tokens, LIMITS_ASK_TOKENS_MAX, "tokens (prompt and output)", "tokens of one request"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        if (rows[i].most != 0 && rows[i].wanted > rows[i].most)
            return refuse_too_large(t, out, rows[i].wanted, rows[i].what, rows[i].most,
                                    rows[i].window);
    return true;
}

/* The unused rest of the day or month is too small, even if running requests return theirs. */
static bool refuse_used_up(tenant *t, const limits_ask *ask, int64_t unix_s, bool month,
                           limits_answer *out) {
    const quota *q = month ? &t->month : &t->day;
    const char *window = month ? "month" : "day";
    int64_t ends_s = month ? month_ends(q->begins_s) : day_ends(q->begins_s);
    int64_t wait_s = ends_s - (unix_s < 0 ? 0 : unix_s);
    if (wait_s < 1) wait_s = 1; // after the last year
    snprintf(out->text, sizeof out->text,
             "of %llu tokens per %s (UTC) %llu are used and %llu reserved by running requests; "
             "this request needs %llu; the next %s begins in %lld s",
             (unsigned long long)(month ? t->spec.tokens_per_month : t->spec.tokens_per_day),
             window, (unsigned long long)q->used, (unsigned long long)t->reserved,
             (unsigned long long)ask->tokens, window, (long long)wait_s);
    return refuse(t, out, month ? LIMITS_MONTH : LIMITS_DAY, (uint32_t)wait_s);
}

/* Only tokens of running requests are in the way.  An unknown part of them is returned at their
 * end: the delay is an estimate, without a reservation. */
static bool refuse_reserved(tenant *t, const limits_ask *ask, bool month, limits_answer *out) {
    const quota *q = month ? &t->month : &t->day;
    uint64_t us = usual_duration_us(t), wait_s = us / SECOND_US + (us % SECOND_US != 0);
    if (wait_s < 1) wait_s = 1;
    if (wait_s > LIMITS_RETRY_MAX_S) wait_s = LIMITS_RETRY_MAX_S;
    snprintf(
        out->text, sizeof out->text,
        "of %llu tokens per %s (UTC) %llu are used and %llu reserved by %llu running requests; "
        "this request needs %llu, and fits when they use less than that; try again in %llu s",
        (unsigned long long)(month ? t->spec.tokens_per_month : t->spec.tokens_per_day),
        month ? "month" : "day", (unsigned long long)q->used, (unsigned long long)t->reserved,
        (unsigned long long)t->running, (unsigned long long)ask->tokens,
        (unsigned long long)wait_s);
    return refuse(t, out, month ? LIMITS_MONTH : LIMITS_DAY, (uint32_t)wait_s);
}

static bool fits_quotas(tenant *t, const limits_ask *ask, int64_t unix_s, limits_answer *out) {
    const uint64_t most[] = {t->spec.tokens_per_day, t->spec.tokens_per_month};
    const quota *quotas[] = {&t->day, &t->month};
    for (int i = 1; i >= 0; i--) // the longer wait first
        if (most[i] != 0 && quota_left(quotas[i], most[i], 0) < ask->tokens)
            return refuse_used_up(t, ask, unix_s, i == 1, out);
    for (int i = 1; i >= 0; i--)
        if (most[i] != 0 && quota_left(quotas[i], most[i], t->reserved) < ask->tokens)
            return refuse_reserved(t, ask, i == 1, out);
    return true;
}

static uint64_t whole(int64_t parts) {
    return parts > 0 ? (uint64_t)parts / PART : 0;
}

static void describe_wait(const tenant *t, const limits_ask *ask, int which, const forecast *ahead,
                          limits_answer *out) {
    unsigned long long left = whole(ahead->room[which]), running = t->running;
    const char *more = out->booked ? "" : ", or later: until then all is reserved or overdrawn";
    unsigned s = out->retry_after_s;
    if (which == BUCKET_REQUESTS)
        snprintf(out->text, sizeof out->text,
                 "of %u requests per minute %llu are left now, this request counts as %u; try "
                 "again in %u s%s",
                 t->spec.requests_per_min, left, ask->n_requests, s, more);
    else if (which == BUCKET_TOKENS)
        snprintf(out->text, sizeof out->text,
                 "of %u tokens per minute %llu are left now, this request needs %llu (prompt and "
                 "output); try again in %u s%s",
                 t->spec.tokens_per_min, left, (unsigned long long)ask->tokens, s, more);
    else
        snprintf(out->text, sizeof out->text,
                 "%llu of at most %u requests at once are running and %u clients have "
                 "reservations, this request counts as %u; try again in %u s%s",
                 running, t->spec.concurrent, t->n_bookings - (out->booked ? 1 : 0),
                 ask->n_requests, s, more);
}

static bool refuse_and_book(tenant *t, const limits_ask *ask, const uint64_t need[BUCKETS],
                            const forecast *ahead, limits_answer *out) {
    static const limits_reason reasons[BUCKETS] = {LIMITS_REQUESTS, LIMITS_TOKENS,
                                                   LIMITS_CONCURRENT};
    int last;
    uint32_t s = plan(t, need, ahead, &last);
    out->booked = s > 0 && book(t, ask, t->touched_us + s * SECOND_US);
    refuse(t, out, reasons[last], s > 0 ? s : LIMITS_RETRY_MAX_S);
    describe_wait(t, ask, last, ahead, out);
    return false;
}

/* -- admitting -- */

static tenant *tenant_at(const limits *l, uint32_t number) {
    INFERD_CHECK(number < l->n);
    return &l->tenants[number];
}

static void take(limits *l, tenant *t, const limits_ask *ask, const uint64_t need[BUCKETS]) {
    for (int i = 0; i < 2; i++)
        if (rate_of(&t->spec, i) != 0) t->level[i] = lower(t->level[i], need[i]);
    t->running += ask->n_requests;
    t->reserved += ask->tokens;
    l->n_changes++;
}

/* Takes what a due booking reserved; checks that it is there, and adapts the spread. */
static bool claim_due(tenant *t, const uint64_t need[BUCKETS]) {
    bucket f[BUCKETS];
    bool enough = true;
    buckets_of(t, f);
    for (int i = 0; i < BUCKETS; i++) {
        bool there = !f[i].limited || f[i].level >= (int64_t)need[i];
        enough = enough && there;
        if (i != BUCKET_RUNNING || !f[i].limited) continue;
        t->spread += there ? -1 : RESERVED_PER_BREAK - 1;
        if (t->spread > SPREAD_MAX) t->spread = SPREAD_MAX;
        if (t->spread < SPREAD_MIN) t->spread = SPREAD_MIN;
    }
    return enough;
}

bool limits_admit(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                  const limits_ask *ask, limits_answer *out) {
    tenant *t = tenant_at(l, number);
    uint64_t need[BUCKETS];
    *out = (limits_answer){0};
    touch(t, now_us);
    enter_periods(&t->day, &t->month, unix_s);
    needs_of(ask->n_requests, ask->tokens, need);
    bool due = take_booking(t, ask);
    if (!is_open(t, out) || !fits_windows(t, ask, out) || !fits_quotas(t, ask, unix_s, out))
        return false;
    forecast ahead = look_ahead(t, need);
    bool enough = true;
    for (int i = 0; i < BUCKETS; i++) enough = enough && !ahead.short_of[i];
    if (due) enough = claim_due(t, need);
    if (!enough) return refuse_and_book(t, ask, need, &ahead, out);
    take(l, t, ask, need);
    return true;
}

/* The request no longer runs; its reserved tokens of a day and month are free. */
static void give_back(tenant *t, const limits_ask *ask, uint64_t now_us, int64_t unix_s) {
    INFERD_CHECK(t->running >= ask->n_requests && t->reserved >= ask->tokens);
    touch(t, now_us);
    enter_periods(&t->day, &t->month, unix_s);
    t->running -= ask->n_requests;
    t->reserved -= ask->tokens;
}

static void note_ended(tenant *t, uint32_t n) {
    t->n_ended += n;
    for (; t->n_ended >= ENDS_REMEMBERED; t->n_ended /= 2) t->busy_us /= 2;
}

void limits_settle(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask, uint64_t tokens_used) {
    tenant *t = tenant_at(l, number);
    give_back(t, ask, now_us, unix_s);
    t->day.used = add_up_to(t->day.used, tokens_used, LIMITS_USED_MAX);
    t->month.used = add_up_to(t->month.used, tokens_used, LIMITS_USED_MAX);
    int64_t *level = &t->level[BUCKET_TOKENS], full = full_of(t->spec.tokens_per_min);
    if (t->spec.tokens_per_min != 0 && tokens_used > ask->tokens)
        *level = lower(*level, parts_of(tokens_used - ask->tokens));
    else if (t->spec.tokens_per_min != 0)
        *level = i64_min(*level + (int64_t)parts_of(ask->tokens - tokens_used), full);
    note_ended(t, ask->n_requests);
    l->n_changes++;
}

void limits_return(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask) {
    tenant *t = tenant_at(l, number);
    uint64_t need[BUCKETS];
    give_back(t, ask, now_us, unix_s);
    needs_of(ask->n_requests, ask->tokens, need);
    for (int i = 0; i < 2; i++)
        if (rate_of(&t->spec, i) != 0)
            t->level[i] = i64_min(t->level[i] + (int64_t)need[i], full_of(rate_of(&t->spec, i)));
    l->n_changes++;
}

/* -- the table -- */

limits *limits_create(void) {
    return calloc(1, sizeof(limits));
}

void limits_destroy(limits *l) {
    if (l == NULL) return;
    for (uint32_t i = 0; i < l->n; i++) {
        free(l->tenants[i].name);
        free(l->tenants[i].bookings);
    }
    free(l->tenants);
    free(l);
}

uint32_t limits_n_tenants(const limits *l) {
    return l->n;
}

static bool grow_to(limits *l, uint32_t n) {
    if (n <= l->capacity) return true;
    uint32_t capacity = u32_max(l->capacity, TENANTS_FIRST);
    while (capacity < n) capacity *= 2; // n is at most LIMITS_TENANTS_MAX
    tenant *tenants = realloc(l->tenants, capacity * sizeof *tenants);
    if (tenants == NULL) return false;
    l->tenants = tenants;
    l->capacity = capacity;
    return true;
}

/* The amount missing from full stays, but a new limit puts no bucket into debt.  Under a limit that
 * did not exist before, the tokens of running requests are missing. */
static int64_t move_level(int64_t level, uint32_t old_per_min, uint32_t per_min,
                          uint64_t reserved) {
    if (per_min == 0) return 0;
    uint64_t missing =
        old_per_min == 0 ? parts_of(reserved) : (uint64_t)(full_of(old_per_min) - level);
    int64_t moved = lower(full_of(per_min), missing), least = i64_min(level, 0);
    return moved < least ? least : moved;
}

static bool same_spec(const limits_spec *a, const limits_spec *b) {
    return a->requests_per_min == b->requests_per_min && a->tokens_per_min == b->tokens_per_min &&
           a->concurrent == b->concurrent && a->tokens_per_day == b->tokens_per_day &&
           a->tokens_per_month == b->tokens_per_month && a->closed == b->closed;
}

static void change_spec(tenant *t, const limits_spec *spec, uint64_t now_us) {
    touch(t, now_us);
    if (same_spec(&t->spec, spec)) return;
    for (int i = 0; i < 2; i++)
        t->level[i] = move_level(t->level[i], rate_of(&t->spec, i), rate_of(spec, i),
                                 i == BUCKET_TOKENS ? t->reserved : 0);
    if (t->n_ended == 0 && spec->concurrent != 0) {
        /* As if one round of requests had ended: running ones give no duration until they end. */
        t->n_ended = u32_min(spec->concurrent, ENDS_REMEMBERED / 2);
        t->busy_us = t->n_ended * DURATION_FIRST_US;
    }
    t->spec = *spec;
    if (t->n_bookings > 0) forget_bookings(t, t->n_bookings);
}

inferd_status limits_set_tenant(limits *l, uint32_t number, const char *name,
                                const limits_spec *spec, uint64_t now_us, inferd_err *err) {
    if (number >= LIMITS_TENANTS_MAX)
        return inferd_fail(err, INFERD_EINVAL, "tenant number %u, at most %d tenants are possible",
                           number, LIMITS_TENANTS_MAX);
    if (number < l->n && l->tenants[number].name != NULL &&
        strcmp(l->tenants[number].name, name) != 0)
        return inferd_fail(err, INFERD_EINVAL, "tenant number %u is \"%.*s\", not \"%.*s\"", number,
                           NAME_SHOWN_BYTES, l->tenants[number].name, NAME_SHOWN_BYTES, name);
    if (strlen(name) > LIMITS_NAME_BYTES_MAX)
        return inferd_fail(err, INFERD_EINVAL,
                           "tenant number %u: its name has %zu bytes, at most %d are possible",
                           number, strlen(name), LIMITS_NAME_BYTES_MAX);
    bool fresh = number >= l->n || l->tenants[number].name == NULL;
    char *copy = fresh ? strdup(name) : NULL;
    if ((fresh && copy == NULL) || !grow_to(l, number + 1)) {
        free(copy);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the limits of tenant number %u",
                           number);
    }
    for (; l->n <= number; l->n++)
        l->tenants[l->n] = (tenant){.touched_us = now_us, .spread = SPREAD_ONE};
    tenant *t = &l->tenants[number];
    if (fresh) t->name = copy;
    change_spec(t, spec, now_us);
    return INFERD_OK;
}

/* -- reporting -- */

static void spell_time(char out[LIMITS_VALUE_BYTES], uint64_t us) {
    unsigned long long s = us / SECOND_US + (us % SECOND_US != 0);
    if (us > 0 && us <= SECOND_US - 1000)
        snprintf(out, LIMITS_VALUE_BYTES, "%llums", (unsigned long long)(us + 999) / 1000);
    else if (s < 60)
        snprintf(out, LIMITS_VALUE_BYTES, "%llus", s);
    else if (s < 3600)
        snprintf(out, LIMITS_VALUE_BYTES, "%llum%llus", s / 60, s % 60);
    else
        snprintf(out, LIMITS_VALUE_BYTES, "%lluh%llum%llus", s / 3600, s / 60 % 60, s % 60);
}

static void spell_bucket(uint32_t per_min, bool closed, int64_t level, int64_t room,
                         char limit[LIMITS_VALUE_BYTES], char remaining[LIMITS_VALUE_BYTES],
                         char reset[LIMITS_VALUE_BYTES]) {
    limit[0] = remaining[0] = reset[0] = 0;
    if (closed) memcpy(limit, "0", 2), memcpy(remaining, "0", 2);
    if (closed || per_min == 0) return;
    uint64_t missing = (uint64_t)(full_of(per_min) - level);
    snprintf(limit, LIMITS_VALUE_BYTES, "%u", per_min);
    snprintf(remaining, LIMITS_VALUE_BYTES, "%llu", (unsigned long long)whole(room));
    spell_time(reset, missing / per_min + (missing % per_min != 0));
}

void limits_get_headers(limits *l, uint32_t number, uint64_t now_us, limits_headers *out) {
    tenant *t = tenant_at(l, number);
    static const uint64_t nothing[BUCKETS] = {0};
    touch(t, now_us);
    forecast ahead = look_ahead(t, nothing);
    spell_bucket(t->spec.requests_per_min, t->spec.closed >> LIMITS_REQUESTS & 1,
                 t->level[BUCKET_REQUESTS], ahead.room[BUCKET_REQUESTS], out->limit_requests,
                 out->remaining_requests, out->reset_requests);
    spell_bucket(t->spec.tokens_per_min, t->spec.closed >> LIMITS_TOKENS & 1,
                 t->level[BUCKET_TOKENS], ahead.room[BUCKET_TOKENS], out->limit_tokens,
                 out->remaining_tokens, out->reset_tokens);
}

void limits_get_usage(const limits *l, uint32_t number, int64_t unix_s, limits_usage *out) {
    const tenant *t = tenant_at(l, number);
    quota day = t->day, month = t->month;
    enter_periods(&day, &month, unix_s);
    *out = (limits_usage){.name = t->name == NULL ? "" : t->name,
                          .spec = t->spec,
                          .used_day = day.used,
                          .used_month = month.used,
                          .reserved = t->reserved,
                          .running = t->running,
                          .n_bookings = t->n_bookings};
    memcpy(out->refused, t->refused, sizeof out->refused);
}

/* Without running requests the stored period is returned unchanged: a clock that is wrong for a
 * moment then drops nothing. */
bool limits_keep(const limits *l, uint32_t number, int64_t unix_s, limits_kept *out) {
    const tenant *t = tenant_at(l, number);
    quota day = t->day, month = t->month;
    if (t->reserved > 0) enter_periods(&day, &month, unix_s);
    *out = (limits_kept){day.begins_s, month.begins_s,
                         add_up_to(day.used, t->reserved, LIMITS_USED_MAX),
                         add_up_to(month.used, t->reserved, LIMITS_USED_MAX)};
    return out->day_tokens > 0 || out->month_tokens > 0;
}

void limits_restore(limits *l, uint32_t number, const limits_kept *kept) {
    tenant *t = tenant_at(l, number);
    INFERD_CHECK(t->running == 0 && t->day.used == 0 && t->month.used == 0);
    t->day = (quota){kept->day_begins_s, u64_min(kept->day_tokens, LIMITS_USED_MAX)};
    t->month = (quota){kept->month_begins_s, u64_min(kept->month_tokens, LIMITS_USED_MAX)};
    l->n_changes++;
}

uint64_t limits_n_changes(const limits *l) {
    return l->n_changes;
}

bool limits_verify(const limits *l, uint32_t number) {
    const tenant *t = tenant_at(l, number);
    if (t->n_bookings > t->bookings_capacity || t->n_bookings > LIMITS_BOOKINGS_MAX) return false;
    for (int i = 0; i < 2; i++) {
        uint32_t per_min = rate_of(&t->spec, i);
        if (per_min != 0 && (t->level[i] > full_of(per_min) || t->level[i] < LEVEL_MIN))
            return false;
    }
    for (uint32_t k = 1; k < t->n_bookings; k++)
        if (t->bookings[k - 1].due_us > t->bookings[k].due_us) return false;
    return t->day.used <= LIMITS_USED_MAX && t->month.used <= LIMITS_USED_MAX &&
           t->day.begins_s >= 0 && t->month.begins_s >= 0;
}
