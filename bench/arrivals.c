/* arrivals.c - see arrivals.h.
 *
 * Steps, on/off and bursts are all a Poisson process with a piecewise constant rate.  It is drawn
 * exactly: an exponential amount of "work" with mean 1 is used up at the rate of the current piece,
 * and the remainder at the end of the piece is carried into the next piece. */
#include "arrivals.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static bool number_take(const char **p, double *out) {
    char *end;
    if ((**p < '0' || **p > '9') && **p != '.') return false; // no sign, no "inf", no space
    *out = strtod(*p, &end);
    if (end == *p || !isfinite(*out)) return false;
    *p = end;
    return true;
}

static bool seconds_take(const char **p, double *out_s) {
    static const struct {
        const char *unit;
        double s;
    } UNITS[] = {{"ms", 0.001}, {"us", 0.000001}, {"s", 1}, {"m", 60}, {"h", 3600}};
    if (!number_take(p, out_s)) return false;
    for (size_t i = 0; i < INFERD_COUNT(UNITS); i++) {
        size_t n = strlen(UNITS[i].unit);
        if (strncmp(*p, UNITS[i].unit, n) != 0) continue;
        *p += n;
        *out_s *= UNITS[i].s;
        break;
    }
    return *out_s <= 1e7; // 115 days: fits nanoseconds everywhere
}

bool seconds_parse(const char *text, double *out_s) {
    return seconds_take(&text, out_s) && *text == 0;
}

static bool char_take(const char **p, char c) {
    if (**p != c) return false;
    (*p)++;
    return true;
}

static bool steps_take(arrivals_spec *spec, const char **p) {
    double total = 0;
    do {
        if (spec->n_steps == ARRIVALS_STEPS_MAX) return false;
        arrivals_step *step = &spec->steps[spec->n_steps++];
        if (!number_take(p, &step->rate) || !char_take(p, '/') || !seconds_take(p, &step->s) ||
            step->s <= 0)
            return false;
        total += step->rate;
    } while (char_take(p, ','));
    return total > 0;
}

static bool onoff_take(arrivals_spec *spec, const char **p) {
    double rate, on_s, off_s;
    if (!number_take(p, &rate) || !char_take(p, '/') || !seconds_take(p, &on_s) ||
        !char_take(p, '/') || !seconds_take(p, &off_s))
        return false;
    spec->steps[0] = (arrivals_step){rate, on_s};
    spec->steps[1] = (arrivals_step){0, off_s};
    spec->n_steps = 2;
    return rate > 0 && on_s > 0;
}

static bool closed_take(arrivals_spec *spec, const char **p) {
    double n;
    if (!number_take(p, &n) || n < 1 || n > ARRIVALS_STREAMS_MAX || n != floor(n)) return false;
    spec->n_streams = (uint32_t)n;
    return true;
}

static bool rest_take(arrivals_spec *spec, const char **p) {
    switch (spec->kind) {
    case ARRIVALS_CLOSED:
        return closed_take(spec, p);
    case ARRIVALS_CONSTANT:
    case ARRIVALS_POISSON:
        return number_take(p, &spec->rate) && spec->rate > 0;
    case ARRIVALS_GAMMA:
        return number_take(p, &spec->rate) && spec->rate > 0 && char_take(p, '/') &&
               number_take(p, &spec->cv) && spec->cv >= 0.01 && spec->cv <= 100;
    case ARRIVALS_STEPS:
        return steps_take(spec, p);
    case ARRIVALS_ONOFF:
    case ARRIVALS_BURST:
        return onoff_take(spec, p);
    case ARRIVALS_TRACE:
        return true;
    }
    return false;
}

inferd_status arrivals_parse(arrivals_spec *spec, const char *text, inferd_err *err) {
    static const struct {
        const char *name, *form;
        arrivals_kind kind;
    } KINDS[] = {
        {"closed:", "closed:STREAMS", ARRIVALS_CLOSED},
        {"constant:", "constant:RATE", ARRIVALS_CONSTANT},
        {"every:", "every:TIME", ARRIVALS_CONSTANT},
        {"poisson:", "poisson:RATE", ARRIVALS_POISSON},
        {"gamma:", "gamma:RATE/CV", ARRIVALS_GAMMA},
        {"steps:", "steps:RATE/TIME,RATE/TIME,...", ARRIVALS_STEPS},
        {"onoff:", "onoff:RATE/ON/OFF", ARRIVALS_ONOFF},
        {"burst:", "burst:RATE/ON/OFF", ARRIVALS_BURST},
        {"trace", "trace", ARRIVALS_TRACE},
    };
    for (size_t i = 0; i < INFERD_COUNT(KINDS); i++) {
        size_t n = strlen(KINDS[i].name);
        if (strncmp(text, KINDS[i].name, n) != 0) continue;
        const char *p = text + n;
        *spec = (arrivals_spec){.kind = KINDS[i].kind};
        double every_s;
        bool good = true;
        if (strcmp(KINDS[i].name, "every:") == 0) {
            good = seconds_take(&p, &every_s) && every_s > 0;
            if (good) spec->rate = 1 / every_s;
        } else {
            good = rest_take(spec, &p);
        }
        if (good && *p == 0) return INFERD_OK;
        return inferd_fail(err, INFERD_EINVAL, "arrivals \"%s\" is not of the form %s", text,
                           KINDS[i].form);
    }
    return inferd_fail(err, INFERD_EINVAL,
                       "arrivals \"%s\" is none of closed:, constant:, every:, poisson:, gamma:, "
                       "steps:, onoff:, burst:, trace",
                       text);
}

void arrivals_init(arrivals *a, const arrivals_spec *spec, const trace *tr, double speed,
                   rng random) {
    INFERD_CHECK(spec->kind != ARRIVALS_CLOSED);
    *a = (arrivals){.spec = spec, .trace = tr, .speed = speed, .random = random};
    if (spec->n_steps > 0) {
        a->step_left = spec->steps[0].s;
        if (spec->kind == ARRIVALS_BURST) a->step_left *= rng_exp(&a->random);
    }
}

static bool step_next(arrivals *a) {
    a->step++;
    if (a->step == a->spec->n_steps) {
        if (a->spec->kind == ARRIVALS_STEPS) return false;
        a->step = 0;
    }
    a->step_left = a->spec->steps[a->step].s;
    if (a->spec->kind == ARRIVALS_BURST) a->step_left *= rng_exp(&a->random);
    return true;
}

static bool piecewise_next(arrivals *a) {
    double work = rng_exp(&a->random);
    for (;;) {
        double rate = a->spec->steps[a->step].rate;
        if (rate > 0 && work <= rate * a->step_left) {
            a->at_s += work / rate;
            a->step_left -= work / rate;
            return true;
        }
        work -= rate * a->step_left;
        a->at_s += a->step_left;
        if (!step_next(a)) return false;
    }
}

bool arrivals_next(arrivals *a, uint64_t *out_ns) {
    const arrivals_spec *spec = a->spec;
    switch (spec->kind) {
    case ARRIVALS_CLOSED:
        return false;
    case ARRIVALS_CONSTANT:
        a->at_s = (double)a->n / spec->rate;
        break; // no sum of rounded gaps
    case ARRIVALS_POISSON:
        a->at_s += rng_exp(&a->random) / spec->rate;
        break;
    case ARRIVALS_GAMMA: {
        double shape = 1 / (spec->cv * spec->cv); // mean shape * scale, variance shape * scale^2
        a->at_s += rng_gamma(&a->random, shape) / (shape * spec->rate);
        break;
    }
    case ARRIVALS_STEPS:
    case ARRIVALS_ONOFF:
    case ARRIVALS_BURST:
        if (!piecewise_next(a)) return false;
        break;
    case ARRIVALS_TRACE:
        if (a->n == a->trace->n) return false;
        a->at_s = (double)a->trace->rows[a->n].at_ns / 1e9 / a->speed;
        break;
    }
    a->n++;
    *out_ns = (uint64_t)(a->at_s * 1e9 + 0.5);
    return true;
}
