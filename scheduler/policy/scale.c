/* scale.c - see scale.h. */
#include "scheduler/scale.h"

enum { PERCENT = 100 };
#define US_MAX UINT64_C(10000000000000) // 115 days; longer times are cut to this, so products fit

/* The predicted TTFT and the most it may be, in hundredths of us. */
static uint64_t ttft_is(const scale_input *in) {
    return u64_min(in->ttft_p95_us, US_MAX) * PERCENT;
}
static uint64_t ttft_may(const scale_input *in) {
    return u64_min(in->ttft_max_us, US_MAX) * SCALE_UP_PERCENT;
}

/* One more replica was needed in this period. */
static bool is_above(const scale_input *in) {
    if (in->n_replicas == 0) return false; // a request brings up the first one
    if (in->ttft_max_us > 0) return ttft_is(in) > ttft_may(in);
    return in->n_waiting > (uint64_t)in->n_replicas * SCALE_WAITING_MAX;
}

/* One replica fewer would have been enough in this period. */
static bool is_below(const scale_input *in) {
    if (in->n_replicas <= u32_max(in->replicas_min, 1) || in->n_starting > 0) return false;
    uint64_t room_ppm = (in->n_replicas - 1) * SCALE_ONE_PPM / PERCENT * SCALE_DOWN_PERCENT;
    return in->load_ppm <= room_ppm;
}

static uint64_t div_up(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

/* Number of replicas with which is_above would be false. */
static uint32_t count_needed(const scale_input *in) {
    uint64_t serving = in->n_replicas - u32_min(in->n_starting, in->n_replicas - 1);
    serving = u64_min(serving, SCALE_DESIRED_MAX);
    uint64_t wanted = in->ttft_max_us > 0 ? div_up(serving * ttft_is(in), ttft_may(in))
                                          : div_up(in->n_waiting, SCALE_WAITING_MAX);
    wanted = u64_min(wanted, serving * SCALE_GROWTH_MAX);
    if (wanted <= in->n_replicas) wanted = in->n_replicas + UINT64_C(1);
    return (uint32_t)u64_min(wanted, SCALE_DESIRED_MAX);
}

/* How long one replica fewer must have been enough before one is removed. */
static uint64_t calm_us(const scale_state *s) {
    return u64_min((uint64_t)SCALE_DOWN_US << s->n_regrets, SCALE_DOWN_MAX_US);
}

/* The step that the periods so far ask for, and why, without regard to the last action. */
static scale_decision decide(const scale_state *s, const scale_input *in) {
    uint32_t n = in->n_replicas;
    bool full = in->replicas_max > 0 && n >= in->replicas_max;
    if (in->replicas_max > 0 && n > in->replicas_max) return (scale_decision){-1, SCALE_MAX, 0};
    bool few = n < in->replicas_min;
    if (few || s->n_above >= SCALE_UP_PERIODS) {
        if (full) return (scale_decision){0, SCALE_LIMIT, 0};
        if (!in->feasible) return (scale_decision){0, SCALE_NO_ROOM, 0};
        return (scale_decision){1, few ? SCALE_MIN : SCALE_SLOW, 0};
    }
    if (s->below && in->now_us - s->below_since_us >= calm_us(s))
        return (scale_decision){-1, SCALE_IDLE, 0};
    return (scale_decision){0, SCALE_STEADY, 0};
}

static void see(scale_state *s, const scale_input *in) {
    bool above = is_above(in), below = !above && is_below(in);
    s->n_above = above ? u32_min(s->n_above + 1, SCALE_UP_PERIODS) : 0;
    if (!above && !s->calm) s->calm_since_us = in->now_us;
    if (below && !s->below) s->below_since_us = in->now_us;
    s->calm = !above, s->below = below;
}

static void update_desired(scale_state *s, const scale_input *in, const scale_decision *d) {
    bool suffice = s->calm && in->now_us - s->calm_since_us >= SCALE_DOWN_US;
    uint32_t here = in->n_replicas - (d->step < 0 ? 1 : 0);
    if (s->n_above >= SCALE_UP_PERIODS) s->desired = u32_max(s->desired, count_needed(in));
    if (suffice || d->why == SCALE_IDLE) s->desired = here;
    s->desired = u32_max(s->desired, u32_max(here, in->replicas_min));
    if (in->n_waiting > 0 || in->n_running > 0) s->desired = u32_max(s->desired, 1);
    s->desired = u32_min(s->desired, SCALE_DESIRED_MAX);
}

/* Was the last removal right?  Each removal is judged once. */
static void judge_removal(scale_state *s, const scale_input *in, const scale_decision *d) {
    if (s->removed && in->now_us - s->removed_us >= SCALE_REGRET_US) {
        s->removed = false;
        if (s->n_regrets > 0) s->n_regrets--;
    }
    if (s->removed && d->why == SCALE_SLOW) {
        s->removed = false;
        if (calm_us(s) < SCALE_DOWN_MAX_US) s->n_regrets++;
    }
    if (d->why == SCALE_IDLE) s->removed = true, s->removed_us = in->now_us;
}

scale_decision scale_decide(scale_state *s, const scale_input *in) {
    see(s, in);
    scale_decision d = decide(s, in);
    bool soon = s->acted && in->now_us - s->acted_us < SCALE_ACTION_US;
    if (d.step != 0 && (soon || in->n_starting > 0)) d = (scale_decision){0, SCALE_SOON, 0};
    update_desired(s, in, &d);
    judge_removal(s, in, &d);
    if (d.step != 0) {
        s->acted = true, s->acted_us = in->now_us;
        s->n_above = 0, s->below = false; // the evidence was about the old number of replicas
    }
    d.desired = s->desired;
    return d;
}
