/* tenant_limits.c - see tenant_limits.h.
 *
 * All arithmetic is on integers.  A request and a token are PART parts each: a bucket with the
 * limit n then gains exactly n parts per microsecond: no remainder is dropped.
 *
 * A refused request comes behind the line of those refused before it: at its end the buckets are
 * empty, because all that was filled until then is used.
 *
 *     now ........ end of the line .... + need / rate         the answer, and the new end
 */
#include "tenant_limits.h"

#include <string.h>

#define PART      ((uint64_t)60000000)
#define SECOND_US ((uint64_t)1000000)
#define MINUTE_US (60 * SECOND_US)
/* Debt beyond this, more than ten times what one request can cause, is dropped. */
#define LEVEL_MIN (-((int64_t)4 << 60))

enum {
    TENANTS_FIRST = 16,
    DAY_S = 86400,
    NAME_SHOWN_BYTES = 64,
    DUE_PARTS = 8, // first tries leave at most that part of a limit to the line
};

enum { BUCKET_REQUESTS, BUCKET_TOKENS, BUCKETS, WAIT_RUNNING = BUCKETS, WAITS };

/* Tokens used in the day or month that began at begins_s. */
typedef struct quota {
    int64_t begins_s;
    uint64_t used;
} quota;

typedef struct tenant {
    char *name; // owned; NULL: never set
    limits_spec spec;
    uint64_t touched_us;    // the levels are valid at this time
    int64_t level[BUCKETS]; // parts; at most the limit
    uint64_t running, reserved;
    queue_line line; // of refused requests; and how long requests run
    quota day, month;
    uint64_t refused[LIMITS_REASONS];
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

static int64_t i64_max(int64_t a, int64_t b) {
    return a > b ? a : b;
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

/* Advances the tenant to now_us; if the clock went back, time stands still. */
static void touch(tenant *t, uint64_t now_us) {
    if (now_us <= t->touched_us) return;
    for (int i = 0; i < BUCKETS; i++)
        t->level[i] = refill(t->level[i], rate_of(&t->spec, i), now_us - t->touched_us);
    t->touched_us = now_us;
}

/* What a first try leaves in a bucket, of which it needs that much: what the line needs next, and
 * what the places of the last second need, less its own need: one of them may be its own. */
static uint64_t due_parts(const tenant *t, int bucket, uint64_t need) {
    uint64_t rate = rate_of(&t->spec, bucket), full = (uint64_t)full_of((uint32_t)rate);
    if (t->line.end_us == 0) return 0; // no request was refused
    uint64_t due = queue_line_next_us(&t->line, t->touched_us) * rate;
    due += u64_less(queue_line_late_us(&t->line, t->touched_us) * rate, need);
    due = u64_min(due, full / DUE_PARTS);
    return u64_min(due, need < full ? full - need : 0);
}

/* Likewise, of the requests at once; none of one. */
static uint32_t due_slots(const tenant *t, uint32_t need) {
    if (t->line.end_us == 0) return 0;
    uint32_t most = t->spec.concurrent, due = queue_line_due(&t->line, need, most, t->touched_us);
    return u32_min(due, (most + DUE_PARTS - 2) / DUE_PARTS);
}

/* In how many microseconds the bucket has that much for a request behind the line: what is missing
 * until it is empty at the end of the line, then what the request needs. */
static uint64_t wait_of(const tenant *t, int bucket, uint64_t need) {
    int64_t level = t->level[bucket], rate = rate_of(&t->spec, bucket), before = -level;
    if (t->line.end_us > t->touched_us)
        before = i64_max(before, (int64_t)(t->line.end_us - t->touched_us) * rate);
    int64_t missing = before + (int64_t)need;
    return missing > 0 ? (uint64_t)((missing + rate - 1) / rate) : 1;
}

/* The waits for what the request lacks; false: it lacks nothing. */
static bool is_short(const tenant *t, const limits_ask *ask, uint64_t wait_us[WAITS]) {
    const uint64_t need[BUCKETS] = {parts_of(ask->n_requests), parts_of(ask->tokens)};
    bool any = false;
    for (int i = 0; i < WAITS; i++) wait_us[i] = 0;
    for (int i = 0; i < BUCKETS; i++) {
        if (rate_of(&t->spec, i) == 0 || need[i] == 0) continue;
        uint64_t all = need[i] + (ask->again ? 0 : due_parts(t, i, need[i]));
        if (t->level[i] >= 0 && (uint64_t)t->level[i] >= all) continue;
        wait_us[i] = wait_of(t, i, need[i]);
        any = true;
    }
    uint32_t most = t->spec.concurrent;
    uint64_t all = t->running + ask->n_requests;
    if (!ask->again && most > 0) all += due_slots(t, ask->n_requests);
    if (most == 0 || all <= most) return any;
    wait_us[WAIT_RUNNING] = queue_line_wait_us(&t->line, ask->n_requests, most, t->touched_us);
    return true;
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
 * end: the delay is an estimate. */
static bool refuse_reserved(tenant *t, const limits_ask *ask, bool month, limits_answer *out) {
    const quota *q = month ? &t->month : &t->day;
    uint64_t us = queue_line_held_us(&t->line, t->touched_us),
             wait_s = us / SECOND_US + (us % SECOND_US != 0);
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

/* Whole requests or tokens that are there for a first try. */
static unsigned long long left_now(const tenant *t, int bucket) {
    int64_t left = lower(t->level[bucket], due_parts(t, bucket, PART));
    return left > 0 ? (unsigned long long)left / PART : 0;
}

static void describe_wait(const tenant *t, const limits_ask *ask, int which, bool later,
                          limits_answer *out) {
    unsigned long long running = t->running;
    const char *more = later ? ", or later: clients that were refused before come first" : "";
    unsigned s = out->retry_after_s;
    if (which == BUCKET_REQUESTS)
        snprintf(out->text, sizeof out->text,
                 "of %u requests per minute %llu are left now, this request counts as %u; try "
                 "again in %u s%s",
                 t->spec.requests_per_min, left_now(t, which), ask->n_requests, s, more);
    else if (which == BUCKET_TOKENS)
        snprintf(out->text, sizeof out->text,
                 "of %u tokens per minute %llu are left now, this request needs %llu (prompt and "
                 "output); try again in %u s%s",
                 t->spec.tokens_per_min, left_now(t, which), (unsigned long long)ask->tokens, s,
                 more);
    else
        snprintf(out->text, sizeof out->text,
                 "%llu of at most %u requests at once are running, this request counts as %u; try "
                 "again in %u s%s",
                 running, t->spec.concurrent, ask->n_requests, s, more);
}

/* The longest of the waits is told. */
static bool refuse_to_wait(tenant *t, const limits_ask *ask, const uint64_t wait_us[WAITS],
                           limits_answer *out) {
    static const limits_reason reasons[WAITS] = {LIMITS_REQUESTS, LIMITS_TOKENS, LIMITS_CONCURRENT};
    int last = 0;
    for (int i = 1; i < WAITS; i++)
        if (wait_us[i] > wait_us[last]) last = i;
    uint64_t s = (wait_us[last] + SECOND_US - 1) / SECOND_US;
    bool later = s > LIMITS_RETRY_MAX_S;
    refuse(t, out, reasons[last], later ? LIMITS_RETRY_MAX_S : (uint32_t)s);
    describe_wait(t, ask, last, later, out);
    if (!later) queue_line_put_off(&t->line, t->touched_us + wait_us[last], t->touched_us);
    return false;
}

/* -- admitting -- */

static tenant *tenant_at(const limits *l, uint32_t number) {
    INFERD_CHECK(number < l->n);
    return &l->tenants[number];
}

static void note_running(tenant *t, uint32_t n_ended) {
    queue_line_note(&t->line, (uint32_t)u64_min(t->running, UINT32_MAX), n_ended, t->touched_us);
}

static void take(limits *l, tenant *t, const limits_ask *ask) {
    const uint64_t need[BUCKETS] = {parts_of(ask->n_requests), parts_of(ask->tokens)};
    for (int i = 0; i < BUCKETS; i++)
        if (rate_of(&t->spec, i) != 0) t->level[i] = lower(t->level[i], need[i]);
    t->running += ask->n_requests;
    t->reserved += ask->tokens;
    note_running(t, 0);
    l->n_changes++;
}

bool limits_admit(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                  const limits_ask *ask, limits_answer *out) {
    tenant *t = tenant_at(l, number);
    uint64_t wait_us[WAITS];
    *out = (limits_answer){0};
    touch(t, now_us);
    enter_periods(&t->day, &t->month, unix_s);
    if (!is_open(t, out) || !fits_windows(t, ask, out) || !fits_quotas(t, ask, unix_s, out))
        return false;
    if (is_short(t, ask, wait_us)) return refuse_to_wait(t, ask, wait_us, out);
    take(l, t, ask);
    return true;
}

/* The request no longer runs; its reserved tokens of a day and month are free. */
static void give_back(tenant *t, const limits_ask *ask, bool ended, uint64_t now_us,
                      int64_t unix_s) {
    INFERD_CHECK(t->running >= ask->n_requests && t->reserved >= ask->tokens);
    touch(t, now_us);
    enter_periods(&t->day, &t->month, unix_s);
    t->running -= ask->n_requests;
    t->reserved -= ask->tokens;
    note_running(t, ended ? ask->n_requests : 0);
}

void limits_settle(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask, uint64_t tokens_used) {
    tenant *t = tenant_at(l, number);
    give_back(t, ask, true, now_us, unix_s);
    t->day.used = add_up_to(t->day.used, tokens_used, LIMITS_USED_MAX);
    t->month.used = add_up_to(t->month.used, tokens_used, LIMITS_USED_MAX);
    int64_t *level = &t->level[BUCKET_TOKENS], full = full_of(t->spec.tokens_per_min);
    if (t->spec.tokens_per_min != 0 && tokens_used > ask->tokens)
        *level = lower(*level, parts_of(tokens_used - ask->tokens));
    else if (t->spec.tokens_per_min != 0)
        *level = i64_min(*level + (int64_t)parts_of(ask->tokens - tokens_used), full);
    l->n_changes++;
}

void limits_return(limits *l, uint32_t number, uint64_t now_us, int64_t unix_s,
                   const limits_ask *ask) {
    tenant *t = tenant_at(l, number);
    const uint64_t need[BUCKETS] = {parts_of(ask->n_requests), parts_of(ask->tokens)};
    give_back(t, ask, false, now_us, unix_s);
    for (int i = 0; i < BUCKETS; i++)
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
    for (uint32_t i = 0; i < l->n; i++) free(l->tenants[i].name);
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
    for (int i = 0; i < BUCKETS; i++)
        t->level[i] = move_level(t->level[i], rate_of(&t->spec, i), rate_of(spec, i),
                                 i == BUCKET_TOKENS ? t->reserved : 0);
    t->spec = *spec;
    t->line.end_us = 0; // it was of the old limits
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
    for (; l->n <= number; l->n++) l->tenants[l->n] = (tenant){.touched_us = now_us};
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

static void spell_bucket(const tenant *t, int bucket, bool closed, char limit[LIMITS_VALUE_BYTES],
                         char remaining[LIMITS_VALUE_BYTES], char reset[LIMITS_VALUE_BYTES]) {
    uint32_t per_min = rate_of(&t->spec, bucket);
    limit[0] = remaining[0] = reset[0] = 0;
    if (closed) memcpy(limit, "0", 2), memcpy(remaining, "0", 2);
    if (closed || per_min == 0) return;
    uint64_t missing = (uint64_t)(full_of(per_min) - t->level[bucket]);
    snprintf(limit, LIMITS_VALUE_BYTES, "%u", per_min);
    snprintf(remaining, LIMITS_VALUE_BYTES, "%llu", left_now(t, bucket));
    spell_time(reset, missing / per_min + (missing % per_min != 0));
}

void limits_get_headers(limits *l, uint32_t number, uint64_t now_us, limits_headers *out) {
    tenant *t = tenant_at(l, number);
    touch(t, now_us);
    spell_bucket(t, BUCKET_REQUESTS, t->spec.closed >> LIMITS_REQUESTS & 1, out->limit_requests,
                 out->remaining_requests, out->reset_requests);
    spell_bucket(t, BUCKET_TOKENS, t->spec.closed >> LIMITS_TOKENS & 1, out->limit_tokens,
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
                          .running = t->running};
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
    for (int i = 0; i < BUCKETS; i++) {
        uint32_t per_min = rate_of(&t->spec, i);
        if (per_min != 0 && (t->level[i] > full_of(per_min) || t->level[i] < LEVEL_MIN))
            return false;
    }
    return t->day.used <= LIMITS_USED_MAX && t->month.used <= LIMITS_USED_MAX &&
           t->day.begins_s >= 0 && t->month.begins_s >= 0;
}
