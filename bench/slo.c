/* slo.c - see slo.h. */
#include "slo.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "load.h"
#include "report.h"
#include "setup.h"
#include "spec_value.h"

/* ---- the search ---- */

slo_reason slo_next(const slo_search *s, double *out_rate) {
    if (s->n_probes == SLO_PROBES_MAX) return SLO_NO_PROBES;
    if (s->lo >= s->rate_max) return SLO_AT_MAX;
    if (s->hi > 0 && s->hi <= s->rate_min) return SLO_BELOW_MIN;
    if (s->lo > 0 && s->hi > 0 && s->hi / s->lo <= 1 + s->precision) return SLO_PRECISE;
    if (s->n_probes == 0)
        *out_rate = s->rate;
    else if (s->hi == 0)
        *out_rate = s->lo * 2;
    else if (s->lo == 0)
        *out_rate = s->hi / 2;
    else
        *out_rate = sqrt(s->lo * s->hi);
    *out_rate = fmin(fmax(*out_rate, s->rate_min), s->rate_max);
    return SLO_GOES_ON;
}

void slo_take(slo_search *s, double rate, bool held) {
    s->n_probes++;
    if (held)
        s->lo = fmax(s->lo, rate);
    else
        s->hi = s->hi == 0 ? rate : fmin(s->hi, rate);
}

bool slo_fits(double left_s, double duration_s, double *drain_s) {
    *drain_s = fmin(*drain_s, fmax(left_s - duration_s, 0));
    return duration_s <= left_s;
}

/* ---- failures ---- */

/* Also of an error event in a stream, which has the code that the answer would have had. */
static bool is_overload(const char *code) {
    static const char *const CODES[] = {"http_408", "http_429", "http_503",
                                        "http_504", "timeout",  "backlog_full"};
    static const char *const IN_STREAM[] = {"overload", "deadline", "timeout", "rate_limit",
                                            "concurrency_limit"};
    for (size_t i = 0; i < INFERD_COUNT(CODES); i++)
        if (strcmp(code, CODES[i]) == 0) return true;
    for (size_t i = 0; i < INFERD_COUNT(IN_STREAM); i++)
        if (strncmp(code, "stream_", 7) == 0 && strstr(code, IN_STREAM[i]) != NULL) return true;
    return false;
}

bool slo_is_refused(const group *all, bool is_stopped) {
    if (all->n_failed == 0 || all->n_ok > 0 || all->ttft.n > 0) return false;
    if (is_stopped ? all->n_failed < FAILURES_SURE : all->n_cut > 0) return false;
    for (uint32_t i = 0; i < all->errors.n; i++)
        if (is_overload(all->errors.entries[i].name)) return false;
    return true;
}

/* "http_401: 3, connect: 1" */
static void errors_text(char *out, size_t n_bytes, const tally *errors) {
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < errors->n && at < n_bytes; i++)
        at += (size_t)snprintf(out + at, n_bytes - at, "%s%s: %llu", i > 0 ? ", " : "",
                               errors->entries[i].name, (unsigned long long)errors->entries[i].n);
}

/* ---- a probe ---- */

enum { ERRORS_BYTES = 512 };

typedef struct probe {
    double rate, duration_s, drain_s, ttft_p99_ms, tpot_p99_ms; // p99 < 0: no value
    uint64_t seed, n_requests, n_met, n_cut; // n_requests: with a target; n_cut of them: cut
    uint64_t n_failed, n_warmup_failed;      // with a target or without
    uint64_t n_again;                        // requests with an entry of a data set sent before
    tally errors;                            // of the n_failed
    bool held, is_stopped;                   // stopped: it could not hold any more
    bool is_short;                           // missed, maybe because --total-s cut the drain
    bool is_refused;                         // every request failed, and not of overload
} probe;

typedef struct slo_run {
    bench_spec spec;
    decks decks; // of all probes: a prompt of one is new in the next
    slo_search search;
    double attainment, probe_s, total_s;
    uint32_t n_probe_min; // requests
    double rate_given;    // of all open classes, as written
    const char *json_path;
    double timeout_s, drain_s; // as given; drain_s < 0: as long as the probe
    uint64_t began_ns;
    probe probes[SLO_PROBES_MAX]; // [n_probes]
    uint32_t n_probes;            // those of the search, and one that decided nothing
    slo_reason reason;
} slo_run;

static bool has_target(const bench_class *c) {
    return c->slo_ttft_ms > 0 || c->slo_tpot_ms > 0;
}

uint64_t slo_requests_of(const bench_spec *spec, double duration_s) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < spec->n_classes; i++) {
        const bench_class *c = &spec->classes[i];
        arrivals a;
        uint64_t at_ns, end_ns = (uint64_t)(fmax(duration_s - c->start_s, 0) * 1e9);
        if (!has_target(c)) continue;
        if (c->arrivals.kind == ARRIVALS_CLOSED || c->turns.hi > 1) return 0;
        arrivals_init(&a, &c->arrivals, NULL, 1, load_arrivals_rng(spec, i));
        while (arrivals_next(&a, &at_ns) && at_ns < end_ns) n++;
    }
    return n;
}

const char *slo_unit(const bench_spec *spec) {
    for (size_t i = 0; i < spec->n_classes; i++) {
        const bench_class *c = &spec->classes[i];
        if (c->arrivals.kind != ARRIVALS_CLOSED && c->turns.hi > 1) return "conversations/s";
    }
    return "requests/s";
}

static void prepare(slo_run *r, const probe *p, double scale) {
    bench_spec *spec = &r->spec;
    spec->seed = p->seed;
    spec->duration_s = p->duration_s;
    spec->drain_s = p->drain_s;
    spec->has_drain = true;
    spec->timeout_s = fmin(r->timeout_s, r->total_s);
    for (size_t i = 0; i < spec->n_classes; i++)
        if (spec->classes[i].arrivals.kind != ARRIVALS_CLOSED)
            spec->classes[i].arrivals.rate *= scale;
}

static double p99_ms(const hist *h) {
    return h->n > 0 ? (double)hist_at(h, .99) / 1e6 : -1;
}

static inferd_status probe_run(slo_run *r, probe *p, bool *is_interrupted, inferd_err *err) {
    stats *figures = calloc(1, sizeof *figures);
    if (figures == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for figures");
    prepare(r, p, p->rate / r->rate_given);
    uint64_t n = slo_requests_of(&r->spec, p->duration_s);
    inferd_status s = stats_init(figures, &r->spec, err);
    if (n > 0) figures->n_missed_max = (uint64_t)((1 - r->attainment) * (double)n + 1e-9) + 1;
    if (s == INFERD_OK) s = load_run(&r->spec, &r->decks, figures, NULL, err);
    if (s == INFERD_OK) {
        const group *all = figures->groups[0];
        *is_interrupted = figures->is_interrupted;
        p->is_stopped = figures->is_stopped;
        p->n_met = all->n_slo_met;
        p->n_cut = figures->n_cut_with_target;
        p->n_requests = all->n_slo + p->n_cut;
        p->n_failed = all->n_failed;
        p->n_warmup_failed = figures->n_warmup_failed;
        p->n_again = figures->n_again;
        p->errors = all->errors;
        p->is_refused = slo_is_refused(all, p->is_stopped);
        p->held = !p->is_stopped && p->n_requests > 0 &&
                  (double)p->n_met >= r->attainment * (double)p->n_requests - 1e-9;
        p->is_short = p->is_short && !p->held && !p->is_stopped &&
                      (double)(p->n_met + p->n_cut) >= r->attainment * (double)p->n_requests - 1e-9;
        p->ttft_p99_ms = p99_ms(&all->ttft);
        p->tpot_p99_ms = p99_ms(&all->tpot);
    }
    stats_deinit(figures);
    free(figures);
    for (size_t i = 0; i < r->spec.n_classes; i++)
        if (r->spec.classes[i].arrivals.kind != ARRIVALS_CLOSED)
            r->spec.classes[i].arrivals.rate *= r->rate_given / p->rate;
    return s;
}

static bool is_decided(const probe *p) {
    return !p->is_short && !p->is_refused;
}

static void failures_tell(FILE *to, const probe *p) {
    char text[ERRORS_BYTES];
    errors_text(text, sizeof text, &p->errors);
    if (p->n_failed > 0) fprintf(to, ", %llu failed (%s)", (unsigned long long)p->n_failed, text);
    if (p->n_warmup_failed > 0)
        fprintf(to, ", %llu of the warm-up failed", (unsigned long long)p->n_warmup_failed);
}

static void probe_tell(FILE *to, uint32_t number, const char *unit, const probe *p) {
    fprintf(to, "probe %-3u %10.3f %s: %llu of %llu met the targets (%.2f %%)%s", number, p->rate,
            unit, (unsigned long long)p->n_met, (unsigned long long)p->n_requests,
            p->n_requests > 0 ? 100.0 * (double)p->n_met / (double)p->n_requests : 0.0,
            p->is_stopped ? ", stopped early" : "");
    if (p->n_cut > 0 && !p->is_stopped)
        fprintf(to, ", %llu cut off (see %s)", (unsigned long long)p->n_cut,
                p->is_short ? "--total-s" : "--drain-s");
    failures_tell(to, p);
    if (p->ttft_p99_ms >= 0) fprintf(to, ", ttft p99 %.1f ms", p->ttft_p99_ms);
    if (p->tpot_p99_ms >= 0) fprintf(to, ", tpot p99 %.1f ms", p->tpot_p99_ms);
    fprintf(to, ": %s\n", !is_decided(p) ? "not known" : p->held ? "held" : "not held");
    fflush(to);
}

static inferd_status search(slo_run *r, uint64_t seed, FILE *to, inferd_err *err) {
    double rate;
    inferd_status s = INFERD_OK;
    while (s == INFERD_OK && (r->reason = slo_next(&r->search, &rate)) == SLO_GOES_ON) {
        probe *p = &r->probes[r->search.n_probes];
        bool is_interrupted = false;
        double left_s = r->total_s - (double)(bench_now_ns() - r->began_ns) / 1e9;
        *p = (probe){.rate = rate, .seed = seed + r->search.n_probes};
        p->duration_s = fmax(r->probe_s, r->n_probe_min / rate);
        double wanted_s = r->drain_s >= 0 ? r->drain_s : p->duration_s;
        p->drain_s = wanted_s;
        if (!slo_fits(left_s, p->duration_s, &p->drain_s)) {
            r->reason = SLO_NO_TIME;
            return INFERD_OK;
        }
        p->is_short = p->drain_s < wanted_s;
        s = probe_run(r, p, &is_interrupted, err);
        if (s != INFERD_OK || is_interrupted) {
            r->reason = SLO_INTERRUPTED;
            return s;
        }
        probe_tell(to, ++r->n_probes, slo_unit(&r->spec), p);
        if (!is_decided(p)) {
            r->reason = p->is_refused ? SLO_REFUSED : SLO_NO_TIME;
            return INFERD_OK;
        }
        slo_take(&r->search, rate, p->held);
    }
    return s;
}

/* ---- the result ---- */

static const char *reason_text(slo_reason reason) {
    switch (reason) {
    case SLO_PRECISE:
        return "precise enough";
    case SLO_AT_MAX:
        return "held at --rate-max";
    case SLO_BELOW_MIN:
        return "not held at --rate-min";
    case SLO_NO_TIME:
        return "--total-s is used up";
    case SLO_NO_PROBES:
        return "too many probes";
    case SLO_REFUSED:
        return "every request of a probe failed";
    case SLO_INTERRUPTED:
        return "interrupted";
    case SLO_GOES_ON:
        break;
    }
    return "";
}

static uint64_t again_total(const slo_run *r) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->n_probes; i++) n += r->probes[i].n_again;
    return n;
}

static void result_tell(FILE *to, const slo_run *r) {
    const slo_search *s = &r->search;
    if (s->lo == 0)
        fprintf(to, "no rate was found at which %g %% of the requests met their targets",
                100 * r->attainment);
    else
        fprintf(to, "%.3f %s: %g %% of the requests met their targets", s->lo, slo_unit(&r->spec),
                100 * r->attainment);
    if (s->hi > 0) fprintf(to, "; at %.3f they did not", s->hi);
    fprintf(to, " (%s)\n", reason_text(r->reason));
    if (again_total(r) > 0)
        fprintf(to,
                "! the data set has fewer prompts than the search sent: %llu requests had one that "
                "was sent before, and a prefix cache makes their figures better\n",
                (unsigned long long)again_total(r));
}

static json_t *p99_json(double ms) {
    return ms >= 0 ? json_real(ms) : json_null();
}

static json_t *result_json(const slo_run *r, uint64_t seed) {
    json_t *list = json_array();
    const slo_search *s = &r->search;
    for (uint32_t i = 0; i < r->n_probes; i++) {
        const probe *p = &r->probes[i];
        json_t *held = is_decided(p) ? json_boolean(p->held) : json_null();
        json_array_append_new(
            list,
            json_pack("{s:f,s:I,s:f,s:f,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:f,s:o,s:b,s:o,s:o}", "rate",
                      p->rate, "seed", (json_int_t)p->seed, "duration_s", p->duration_s, "drain_s",
                      p->drain_s, "requests", (json_int_t)p->n_requests, "met",
                      (json_int_t)p->n_met, "cut", (json_int_t)p->n_cut, "failed",
                      (json_int_t)p->n_failed, "errors", report_tally(&p->errors), "warmup_failed",
                      (json_int_t)p->n_warmup_failed, "prompts_again", (json_int_t)p->n_again,
                      "attainment",
                      p->n_requests > 0 ? (double)p->n_met / (double)p->n_requests : 0.0, "held",
                      held, "stopped_early", p->is_stopped, "ttft_p99_ms", p99_json(p->ttft_p99_ms),
                      "tpot_p99_ms", p99_json(p->tpot_p99_ms)));
    }
    return json_pack("{s:s,s:i,s:s,s:I,s:f,s:s,s:o,s:o,s:s,s:I,s:o,s:o}", "tool",
                     "inferd-bench slo", "format", 1, "url", r->spec.url, "seed", (json_int_t)seed,
                     "attainment", r->attainment, "unit", slo_unit(&r->spec), "rate",
                     s->lo > 0 ? json_real(s->lo) : json_null(), "rate_not_held",
                     s->hi > 0 ? json_real(s->hi) : json_null(), "reason", reason_text(r->reason),
                     "prompts_again", (json_int_t)again_total(r), "load", bench_spec_json(&r->spec),
                     "probes", list);
}

static inferd_status tell(const slo_run *r, uint64_t seed, FILE *to, inferd_err *err) {
    result_tell(to, r);
    if (r->json_path == NULL) return INFERD_OK;
    json_t *root = result_json(r, seed);
    if (root == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the report");
    inferd_status s = report_write(root, NULL, r->json_path, err);
    json_decref(root);
    return s;
}

static inferd_status refusal(const slo_run *r, inferd_err *err) {
    const probe *p = &r->probes[r->n_probes - 1];
    char text[ERRORS_BYTES];
    errors_text(text, sizeof text, &p->errors);
    const char *first = p->errors.entries[0].text;
    return inferd_fail(err, INFERD_EIO,
                       "every request of probe %u failed, and not of overload (408, 429, 503, "
                       "504, timeout): %s%s%s%s",
                       r->n_probes, text, first[0] != 0 ? " (first: " : "", first,
                       first[0] != 0 ? ")" : "");
}

/* ---- the command ---- */

static option_kind slo_kind(const char *key) {
    static const char *const VALUES[] = {"attainment", "rate",    "rate-min",       "rate-max",
                                         "precision",  "probe-s", "probe-requests", "total-s"};
    for (size_t i = 0; i < INFERD_COUNT(VALUES); i++)
        if (strcmp(key, VALUES[i]) == 0) return OPTION_VALUE;
    return setup_kind(key);
}

static inferd_status take_first(void *ctx, const char *key, const char *value, inferd_err *err) {
    slo_run *r = ctx;
    return setup_take_scenario(&r->spec, key, value, err);
}

static inferd_status take_slo(void *ctx, const char *key, const char *value, inferd_err *err) {
    static const char *const NOT[] = {"duration", "requests", "csv", "html"};
    slo_run *r = ctx;
    slo_search *search_options = &r->search;
    const struct {
        const char *key;
        double *to, min, max;
    } NUMBERS[] = {{"attainment", &r->attainment, 0.01, 1},
                   {"rate", &search_options->rate, 1e-3, 1e6},
                   {"rate-min", &search_options->rate_min, 1e-3, 1e6},
                   {"rate-max", &search_options->rate_max, 1e-3, 1e6},
                   {"precision", &search_options->precision, 1e-3, 1}};
    inferd_status s = INFERD_OK;
    for (size_t i = 0; i < INFERD_COUNT(NOT); i++)
        if (strcmp(key, NOT[i]) == 0)
            return inferd_fail(err, INFERD_EINVAL, "--%s cannot be used with slo", key);
    if (strcmp(key, "json") == 0) {
        r->json_path = value;
        return INFERD_OK;
    }
    for (size_t i = 0; i < INFERD_COUNT(NUMBERS); i++)
        if (strcmp(key, NUMBERS[i].key) == 0)
            s = value_number(NUMBERS[i].to, value, NUMBERS[i].min, NUMBERS[i].max, err);
    if (strcmp(key, "probe-s") == 0) s = value_seconds(&r->probe_s, value, err);
    if (strcmp(key, "total-s") == 0) s = value_seconds(&r->total_s, value, err);
    if (strcmp(key, "probe-requests") == 0) s = value_u32(&r->n_probe_min, value, 1, 1000000, err);
    if (s != INFERD_OK) inferd_context(err, "%s", key);
    if (s != INFERD_OK || setup_kind(key) == OPTION_UNKNOWN) return s;
    return setup_take(&r->spec, key, value, err);
}

static inferd_status check(slo_run *r, inferd_err *err) {
    const slo_search *s = &r->search;
    bool any_target = false;
    for (size_t i = 0; i < r->spec.n_classes; i++) {
        const bench_class *c = &r->spec.classes[i];
        arrivals_kind kind = c->arrivals.kind;
        any_target = any_target || has_target(c);
        if (c->n_requests > 0 && kind != ARRIVALS_CLOSED)
            return inferd_fail(
                err, INFERD_EINVAL,
                "class %s: requests %llu cannot be used with slo: its arrivals would "
                "end before the probe, at a rate that was not offered",
                c->name, (unsigned long long)c->n_requests);
        if (kind == ARRIVALS_CONSTANT || kind == ARRIVALS_POISSON || kind == ARRIVALS_GAMMA)
            r->rate_given += c->arrivals.rate;
        else if (kind != ARRIVALS_CLOSED)
            return inferd_fail(
                err, INFERD_EINVAL,
                "class %s: slo needs arrivals constant, poisson, gamma, or closed beside them",
                c->name);
    }
    if (r->rate_given <= 0)
        return inferd_fail(err, INFERD_EINVAL,
                           "slo needs a class with arrivals constant, poisson or gamma");
    if (!any_target)
        return inferd_fail(err, INFERD_EINVAL, "slo needs --slo-ttft-ms or --slo-tpot-ms");
    if (s->rate_min > s->rate || s->rate > s->rate_max)
        return inferd_fail(err, INFERD_EINVAL, "rate %g is not between rate-min %g and rate-max %g",
                           s->rate, s->rate_min, s->rate_max);
    return INFERD_OK;
}

static inferd_status setup(slo_run *r, int argc, char **argv, inferd_err *err) {
    bench_spec *spec = &r->spec;
    uint64_t n_fds = setup_raise_fds();
    inferd_status s = bench_spec_init(spec, err);
    if (s == INFERD_OK) s = bench_spec_set(spec, -1, "arrivals", "poisson:1", err);
    if (s == INFERD_OK) s = options_read(argc, argv, (option_reader){slo_kind, take_first, r}, err);
    if (s == INFERD_OK) s = options_read(argc, argv, (option_reader){slo_kind, take_slo, r}, err);
    spec->duration_s = r->probe_s;
    if (spec->n_warmup == 0) spec->n_warmup = 1; // waits until the server answers again
    if (s == INFERD_OK) s = bench_spec_finish(spec, err);
    if (s == INFERD_OK) s = check(r, err);
    if (s == INFERD_OK) s = setup_inflight(spec, n_fds, err);
    if (s == INFERD_OK) s = load_find_models(spec, err);
    if (s == INFERD_OK) decks_init(&r->decks, spec);
    r->timeout_s = spec->timeout_s;
    r->drain_s = spec->has_drain ? spec->drain_s : -1;
    return s;
}

int slo_command(int argc, char **argv) {
    inferd_err err = {0};
    slo_run r = {.attainment = .99, .probe_s = 30, .total_s = 600, .n_probe_min = 100};
    r.search = (slo_search){.rate = 1, .rate_min = .01, .rate_max = 1e5, .precision = .05};
    inferd_status s = setup(&r, argc, argv, &err);
    uint64_t seed = r.spec.seed;
    bool to_stdout = r.json_path != NULL && strcmp(r.json_path, "-") == 0;
    FILE *to = to_stdout ? stderr : stdout;
    if (s == INFERD_OK) {
        fprintf(to, "inferd-bench slo: %s, seed %llu, attainment %g %%\n", r.spec.url,
                (unsigned long long)seed, 100 * r.attainment);
        r.began_ns = bench_now_ns();
        s = search(&r, seed, to, &err);
    }
    if (s == INFERD_OK) s = tell(&r, seed, to, &err);
    if (s == INFERD_OK && r.reason == SLO_REFUSED) s = refusal(&r, &err);
    bench_spec_deinit(&r.spec);
    if (s != INFERD_OK) return usage_error(&err);
    return r.search.lo > 0 ? EXIT_ALL_OK : EXIT_SOME_FAILED;
}
