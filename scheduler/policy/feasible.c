/* feasible.c - see feasible.h. */
#include "scheduler/feasible.h"

#include <inttypes.h>
#include <stdarg.h>

enum { PERCENT = 100 };
enum { DIGITS_LEAST = 2, DIGITS_MOST = 6 }; // behind the point, of fractions in sentences
enum { US_PER_MS = 1000 };
#define BYTES_PER_MIB    UINT64_C(1048576)
#define MIB_DECIMALS     8 // of 4 KiB, exactly
#define MIB_DECIMALS_ONE UINT64_C(100000000)

typedef unsigned __int128 wide;

static uint64_t div_up(wide a, uint64_t b) {
    wide q = (a + b - 1) / b;
    return q > UINT64_MAX ? UINT64_MAX : (uint64_t)q;
}

uint64_t feasible_ppm(uint64_t ppb) {
    return div_up(ppb, FEASIBLE_ONE_PPB / FEASIBLE_ONE_PPM);
}

/* ---- words ---- */

/* Text that is added to, and cut at the end. */
typedef struct sentence {
    char *text;
    size_t n, n_max; // bytes, with the NUL
} sentence;

static sentence begin(char *text, size_t text_bytes) {
    if (text_bytes > 0) text[0] = 0;
    return (sentence){text, 0, text_bytes};
}

__attribute__((format(printf, 2, 3))) static void add(sentence *s, const char *format, ...) {
    if (s->n >= s->n_max) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->text + s->n, s->n_max - s->n, format, args);
    va_end(args);
    if (n > 0) s->n += (size_t)n;
}

/* `whole`.`part`, with part in 10^-digits; zeros at the end only up to `digits_min` digits. */
static void write_decimal(char *text, size_t text_bytes, uint64_t whole, uint64_t part, int digits,
                          int digits_min, const char *unit) {
    while (digits > digits_min && part % 10 == 0) part /= 10, digits--;
    if (digits == 0)
        snprintf(text, text_bytes, "%" PRIu64 " %s", whole, unit);
    else
        snprintf(text, text_bytes, "%" PRIu64 ".%0*" PRIu64 " %s", whole, digits, part, unit);
}

feasible_number feasible_ms(uint64_t us) {
    feasible_number out;
    write_decimal(out.text, sizeof out.text, us / US_PER_MS, us % US_PER_MS, 3, 1, "ms");
    return out;
}

feasible_number feasible_mib(uint64_t n_bytes) {
    feasible_number out;
    uint64_t part = n_bytes % BYTES_PER_MIB * MIB_DECIMALS_ONE / BYTES_PER_MIB;
    write_decimal(out.text, sizeof out.text, n_bytes / BYTES_PER_MIB, part, MIB_DECIMALS, 0, "MiB");
    return out;
}

static feasible_number mib_of(uint64_t pages, uint64_t page_bytes) {
    uint64_t n_bytes;
    if (__builtin_mul_overflow(pages, page_bytes, &n_bytes)) n_bytes = UINT64_MAX;
    return feasible_mib(n_bytes);
}

static uint64_t power_of_ten(int n) {
    uint64_t p = 1;
    while (n-- > 0) p *= 10;
    return p;
}

/* A fraction in ppm as a count of 10^-digits, to the nearest. */
static uint64_t rounded(uint64_t ppm, int digits) {
    uint64_t unit = power_of_ten(DIGITS_MOST - digits);
    return (ppm + unit / 2) / unit;
}

/* As few digits as distinguish `ppm` from `limit_ppm`: 1.003 must not read 1.00 > 1. */
static int digits_for(uint64_t ppm, uint64_t limit_ppm) {
    int digits = DIGITS_LEAST;
    while (digits < DIGITS_MOST &&
           (rounded(ppm, digits) > rounded(limit_ppm, digits)) != (ppm > limit_ppm))
        digits++;
    return digits;
}

static void add_fraction(sentence *s, uint64_t count, int digits) {
    uint64_t one = power_of_ten(digits);
    add(s, "%" PRIu64 ".%0*" PRIu64, count / one, digits, count % one);
}

/* ---- tasks ---- */

uint64_t feasible_fraction_ppb(uint64_t cost_us, uint32_t period_us) {
    if (period_us == 0) return 0;
    uint64_t ppb = div_up((wide)cost_us * FEASIBLE_ONE_PPB, period_us);
    return ppb < FEASIBLE_FRACTION_MAX_PPB ? ppb : FEASIBLE_FRACTION_MAX_PPB;
}

void feasible_load_add(feasible_load *l, uint32_t cost_us, uint32_t period_us) {
    if (period_us == 0) {
        l->other_cost_max_us = u32_max(l->other_cost_max_us, cost_us);
        return;
    }
    l->sum_ppb += feasible_fraction_ppb(cost_us, period_us);
    l->period_min_us = l->n_tasks == 0 ? period_us : u32_min(l->period_min_us, period_us);
    l->task_cost_max_us = u32_max(l->task_cost_max_us, cost_us);
    l->n_tasks++;
}

static uint32_t block_us(const feasible_load *l) {
    if (l->n_tasks == 0) return 0; // no task has a target
    return l->n_tasks == 1 ? l->other_cost_max_us
                           : u32_max(l->task_cost_max_us, l->other_cost_max_us);
}

uint64_t feasible_total_ppb(const feasible_load *l) {
    return l->sum_ppb + feasible_fraction_ppb(block_us(l), l->period_min_us);
}

static uint64_t inverse_ppm(uint64_t ppm) {
    return ppm <= FEASIBLE_ONE_PPM ? FEASIBLE_ONE_PPM : FEASIBLE_ONE_PPM * FEASIBLE_ONE_PPM / ppm;
}

uint64_t feasible_attainment_ppm(const feasible_load *l) {
    return inverse_ppm(feasible_ppm(feasible_total_ppb(l)));
}

/* The longest step of all tasks but `but`. */
static uint32_t find_longest(const feasible_task *tasks, uint32_t n, uint32_t but,
                             uint32_t *cost_us) {
    uint32_t costliest = FEASIBLE_NO_TASK;
    *cost_us = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i != but && tasks[i].cost_us > *cost_us) costliest = i, *cost_us = tasks[i].cost_us;
    return costliest;
}

static uint32_t find_tightest(const feasible_task *tasks, uint32_t n) {
    uint32_t tightest = FEASIBLE_NO_TASK, wait_us;
    uint64_t most_ppb = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (tasks[i].period_us == 0) continue;
        find_longest(tasks, n, i, &wait_us);
        uint64_t ppb =
            feasible_fraction_ppb((uint64_t)tasks[i].cost_us + wait_us, tasks[i].period_us);
        if (tightest == FEASIBLE_NO_TASK || ppb > most_ppb) tightest = i, most_ppb = ppb;
    }
    return tightest;
}

bool feasible_tasks_check(const feasible_task *tasks, uint32_t n, feasible_tasks *out) {
    feasible_load l = {0};
    uint32_t alone = FEASIBLE_NO_TASK; // the only one with a period
    for (uint32_t i = 0; i < n; i++) {
        feasible_load_add(&l, tasks[i].cost_us, tasks[i].period_us);
        if (tasks[i].period_us != 0) alone = l.n_tasks == 1 ? i : FEASIBLE_NO_TASK;
    }
    uint64_t total_ppb = feasible_total_ppb(&l);
    *out = (feasible_tasks){
        .kept = total_ppb <= FEASIBLE_ONE_PPB,
        .sum_ppm = feasible_ppm(l.sum_ppb),
        .total_ppm = feasible_ppm(total_ppb),
        .attainment_ppm = feasible_attainment_ppm(&l),
        .blocker = FEASIBLE_NO_TASK,
        .tightest = find_tightest(tasks, n),
    };
    if (l.n_tasks > 0) out->blocker = find_longest(tasks, n, alone, &out->block_us);
    return out->kept;
}

void feasible_tasks_say(const feasible_tasks *f, const feasible_task *tasks,
                        const char *const *names, char *text, size_t text_bytes) {
    sentence s = begin(text, text_bytes);
    if (f->tightest == FEASIBLE_NO_TASK) {
        add(&s, "no model has a target per token");
        return;
    }
    if (!f->kept) {
        const feasible_task *t = &tasks[f->tightest];
        add(&s, "model %s: C %s in T %s", names[t->name_idx], feasible_ms(t->cost_us).text,
            feasible_ms(t->period_us).text);
        if (f->blocker == f->tightest)
            add(&s, ", the longest step");
        else if (f->blocker != FEASIBLE_NO_TASK)
            add(&s, ", and a step of %s takes %s", names[tasks[f->blocker].name_idx],
                feasible_ms(f->block_us).text);
        add(&s, ": ");
    }
    /* The second term is written as the total minus the first, so that the text adds up. */
    int digits = digits_for(f->total_ppm, FEASIBLE_ONE_PPM);
    uint64_t total = rounded(f->total_ppm, digits), sum = rounded(f->sum_ppm, digits);
    if (sum > total) sum = total;
    add_fraction(&s, sum, digits);
    add(&s, " + ");
    add_fraction(&s, total - sum, digits);
    add(&s, " = ");
    add_fraction(&s, total, digits);
    add(&s, f->kept ? " <= 1" : " > 1");
}

/* ---- share ---- */

bool feasible_share_check(uint32_t cost_us, uint32_t period_us, uint32_t percent,
                          feasible_share *out) {
    *out = (feasible_share){
        .kept = true, .cost_us = cost_us, .period_us = period_us, .percent = percent};
    if (percent > 0) out->step_us = div_up((wide)cost_us * PERCENT, percent);
    if (period_us == 0) return true;
    out->percent_needed = div_up((wide)cost_us * PERCENT, period_us);
    out->kept = percent <= PERCENT && percent >= out->percent_needed && percent > 0;
    return out->kept;
}

void feasible_share_say(const feasible_share *f, char *text, size_t text_bytes) {
    sentence s = begin(text, text_bytes);
    if (f->period_us == 0) {
        add(&s, "no target per token");
        return;
    }
    feasible_number cost = feasible_ms(f->cost_us), period = feasible_ms(f->period_us);
    if (f->percent > PERCENT) {
        add(&s, "a share of %u %% of one device > 100 %%", f->percent);
    } else if (f->percent == 0) {
        add(&s, "a step of %s without a share has no guaranteed time; the target is %s per token",
            cost.text, period.text);
    } else {
        add(&s, "a step of %s at a share of %u %% takes %s %s %s per token", cost.text, f->percent,
            feasible_ms(f->step_us).text, f->kept ? "<=" : ">", period.text);
    }
    if (f->kept) return;
    if (f->percent_needed > PERCENT)
        add(&s, "; the whole device is too slow for it");
    else
        add(&s, "; %" PRIu64 " %% is enough", f->percent_needed > 0 ? f->percent_needed : 1);
}

/* ---- pages ---- */

bool feasible_pages_check(const feasible_owner *o, feasible_pages *out) {
    uint64_t more = (uint64_t)o->free_pages + o->revocable_pages;
    more = more > o->guaranteed_pages ? more - o->guaranteed_pages : 0;
    uint64_t may = o->held_pages + more;
    if (may < o->min_pages) may = o->min_pages; // kept, whatever must be evicted for it
    if (may > o->max_pages) may = o->max_pages;
    *out = (feasible_pages){.need_pages = (uint64_t)o->weight_pages + o->finish_pages,
                            .may_pages = may,
                            .page_bytes = o->page_bytes};
    out->kept = out->need_pages <= may;
    return out->kept;
}

void feasible_pages_say(const feasible_pages *f, const feasible_owner *o, char *text,
                        size_t text_bytes) {
    sentence s = begin(text, text_bytes);
    uint64_t page = f->page_bytes;
    add(&s, "weights %s + %s to finish its work = %s %s %s allowed",
        mib_of(o->weight_pages, page).text, mib_of(o->finish_pages, page).text,
        mib_of(f->need_pages, page).text, f->kept ? "<=" : ">", mib_of(f->may_pages, page).text);
    add(&s, " (min %s, ", mib_of(o->min_pages, page).text);
    if (o->max_pages == FEASIBLE_UNLIMITED)
        add(&s, "no max");
    else
        add(&s, "max %s", mib_of(o->max_pages, page).text);
    add(&s, ", held %s, free %s, lent %s, guaranteed to others %s)",
        mib_of(o->held_pages, page).text, mib_of(o->free_pages, page).text,
        mib_of(o->revocable_pages, page).text, mib_of(o->guaranteed_pages, page).text);
}

bool feasible_mins_check(const uint32_t *min_pages, uint32_t n, uint32_t capacity_pages,
                         uint64_t page_bytes, feasible_mins *out) {
    *out = (feasible_mins){.page_bytes = page_bytes, .room_pages = capacity_pages};
    for (uint32_t i = 0; i < n; i++) out->sum_pages += min_pages[i];
    out->kept = out->sum_pages <= out->room_pages;
    return out->kept;
}

void feasible_mins_say(const feasible_mins *f, const uint32_t *min_pages, uint32_t n,
                       const char *const *names, char *text, size_t text_bytes) {
    sentence s = begin(text, text_bytes);
    uint64_t page = f->page_bytes, unnamed_pages = f->sum_pages;
    uint32_t n_owners = 0, n_named = 0; // of those that have a guarantee
    for (uint32_t i = 0; i < n; i++) n_owners += min_pages[i] > 0;
    add(&s, "min of ");
    for (uint32_t i = 0; i < n && n_named < FEASIBLE_NAMES_MAX; i++) {
        if (min_pages[i] == 0) continue;
        add(&s, "%s%s %s", n_named > 0 ? " + " : "", names[i], mib_of(min_pages[i], page).text);
        unnamed_pages -= min_pages[i];
        n_named++;
    }
    if (n_owners > n_named)
        add(&s, " + %u others %s", n_owners - n_named, mib_of(unnamed_pages, page).text);
    if (n_owners == 0) add(&s, "none");
    add(&s, " = %s %s capacity %s", mib_of(f->sum_pages, page).text, f->kept ? "<=" : ">",
        mib_of(f->room_pages, page).text);
}

/* ---- time slices ---- */

bool feasible_slices_plan(const feasible_slice *slices, uint32_t n, uint64_t alpha_max_ppm,
                          uint32_t quota_max_us, uint32_t *quota_us, feasible_slices *out) {
    uint64_t sum_ppb = 0, switch_us = 0, longest_us = UINT64_MAX, least_us = 1;
    INFERD_CHECK(n > 0 && quota_max_us > 0);
    for (uint32_t i = 0; i < n; i++) {
        const feasible_slice *t = &slices[i];
        INFERD_CHECK(t->cost_us > 0 && t->period_us > 0);
        sum_ppb += feasible_fraction_ppb(t->cost_us, t->period_us);
        switch_us += t->switch_us;
        uint64_t bound_us = (uint64_t)quota_max_us * t->period_us / t->cost_us;
        if (bound_us < longest_us) longest_us = bound_us;
        if (t->period_us > least_us) least_us = t->period_us;
    }
    if (longest_us == 0) longest_us = 1;
    /* Quotas are rounded up to whole us: one for each model is added to the switches. */
    uint64_t lasts_us = longest_us, alpha_ppb;
    if (__builtin_mul_overflow(alpha_max_ppm, FEASIBLE_ONE_PPB / FEASIBLE_ONE_PPM, &alpha_ppb))
        alpha_ppb = UINT64_MAX;
    if (alpha_ppb > sum_ppb)
        lasts_us = div_up((wide)(switch_us + n) * FEASIBLE_ONE_PPB, alpha_ppb - sum_ppb);
    if (lasts_us < least_us) lasts_us = least_us;
    if (lasts_us > longest_us) lasts_us = longest_us;

    uint64_t round_us = switch_us;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t q = div_up((wide)lasts_us * slices[i].cost_us, slices[i].period_us);
        quota_us[i] = q < quota_max_us ? (uint32_t)q : quota_max_us;
        round_us += quota_us[i];
    }
    *out = (feasible_slices){
        .sum_ppm = feasible_ppm(sum_ppb),
        .alpha_ppm = div_up((wide)round_us * FEASIBLE_ONE_PPM, lasts_us),
        .switch_us = switch_us,
        .round_us = round_us,
        .lasts_us = lasts_us,
    };
    out->attainment_ppm = inverse_ppm(out->alpha_ppm);
    out->kept = out->alpha_ppm <= alpha_max_ppm;
    return out->kept;
}
