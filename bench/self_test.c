/* self_test.c - see self_test.h.
 *
 * Four parts, each with a new null server:
 *
 *     requests   one token each, as fast as possible: requests per second
 *     tokens     many streams without a pace, a write for each token: tokens per second.  Every
 *                token costs both sides a system call, and the null server may be the slower side
 *     bundles    the same with 16 tokens in a write, so that reading them is the limit
 *     pace       many streams at a known pace: checks the reported figures
 *
 * Server and generator share the machine, as they do when a server on the same machine is measured.
 */
#include "self_test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"
#include "null_server.h"
#include "report.h"

enum { REQUEST_STREAMS = 64, TOKEN_OUTPUT = 512, BUNDLE = 16, PACE_OUTPUT = 64 };
static const double PACE_TTFT_MS = 100, PACE_TOKENS_PER_S = 20;

/* `*out_pid` must be given to server_stop. */
static inferd_status server_start(const null_options *o, int *out_port, pid_t *out_pid,
                                  inferd_err *err) {
    int ends[2];
    if (pipe(ends) != 0) return inferd_fail(err, INFERD_EIO, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        inferd_err child_err = {0};
        close(ends[0]);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        inferd_status s = getppid() == parent ? null_server_run(o, ends[1], &child_err) : INFERD_OK;
        if (s != INFERD_OK) fprintf(stderr, "null-server: %s\n", child_err.text);
        _exit(s == INFERD_OK ? 0 : 1);
    }
    close(ends[1]);
    ssize_t n = pid > 0 ? read(ends[0], out_port, sizeof *out_port) : -1;
    close(ends[0]);
    *out_pid = pid;
    if (n == sizeof *out_port) return INFERD_OK;
    if (pid > 0) waitpid(pid, NULL, 0);
    return inferd_fail(err, INFERD_EIO, "the null server did not start");
}

static void server_stop(pid_t pid) {
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

typedef struct pair {
    const char *key, *value;
} pair;

static inferd_status spec_build(bench_spec *spec, int port, const pair *pairs, size_t n,
                                inferd_err *err) {
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    inferd_status s = bench_spec_init(spec, err);
    if (s == INFERD_OK) s = bench_spec_set(spec, -1, "url", url, err);
    if (s == INFERD_OK) s = bench_spec_set(spec, -1, "model", "null", err);
    if (s == INFERD_OK) s = bench_spec_set(spec, -1, "progress", "off", err);
    for (size_t i = 0; s == INFERD_OK && i < n; i++)
        s = bench_spec_set(spec, -1, pairs[i].key, pairs[i].value, err);
    if (s == INFERD_OK) s = bench_spec_finish(spec, err);
    if (s == INFERD_OK) // all streams at once, and a few more: one may start before another ends
        spec->inflight_max = size_max(spec->classes[0].arrivals.n_streams, 2000);
    return s;
}

/* The output stream of the parts, and their results. */
typedef struct output {
    FILE *to;
    json_t *json; // an object; one member per part
    bool all_ok;
} output;

typedef void part_printer(FILE *to, const stats *s);

/* Runs one part: starts a server, runs a load, and calls `print` with the result. */
static inferd_status part_run(const char *name, const null_options *o, const pair *pairs, size_t n,
                              part_printer *print, output *out, inferd_err *err) {
    int port = 0;
    pid_t pid = -1;
    inferd_status s = server_start(o, &port, &pid, err);
    if (s != INFERD_OK) return s;
    bench_spec spec = {0};
    stats figures = {0};
    decks d;
    s = spec_build(&spec, port, pairs, n, err);
    if (s == INFERD_OK) s = stats_init(&figures, &spec, err);
    if (s == INFERD_OK) {
        decks_init(&d, &spec);
        s = load_run(&spec, &d, &figures, NULL, err);
    }
    if (s == INFERD_OK) {
        const group *all = figures.groups[0];
        print(out->to, &figures);
        if (all->n_failed > 0 || all->n_ok == 0 || figures.is_interrupted) out->all_ok = false;
        if (all->errors.n > 0)
            fprintf(out->to, "  ! %llu failed: %s (%s)\n", (unsigned long long)all->n_failed,
                    all->errors.entries[0].name, all->errors.entries[0].text);
        if (json_object_set_new(out->json, name, report_json(&figures)) != 0)
            s = inferd_fail(err, INFERD_ENOMEM, "no memory for JSON");
    }
    stats_deinit(&figures);
    bench_spec_deinit(&spec);
    server_stop(pid);
    return s;
}

static double busy(const stats *s) {
    return s->cpu_wall_s > 0 ? 100 * s->cpu_s / s->cpu_wall_s : 0;
}

static void print_requests(FILE *to, const stats *s) {
    const group *all = s->groups[0];
    fprintf(to,
            "requests  %.0f requests/s (%d streams, 1 token each), e2e p50 %.2f p99 %.2f ms, "
            "generator busy %.0f %%\n",
            (double)all->n_ok / stats_wall_s(s), REQUEST_STREAMS,
            (double)hist_at(&all->e2e, .5) / 1e6, (double)hist_at(&all->e2e, .99) / 1e6, busy(s));
}

static void print_tokens_of(FILE *to, const char *name, const char *how, const stats *s) {
    double per_s = s->groups[0]->n_output_steady / stats_steady_s(s);
    fprintf(to,
            "%-9s %.0f tokens/s (%u streams, no pace, %s), generator busy %.0f %%: %.2f us of "
            "CPU per token\n",
            name, per_s, s->spec->classes[0].arrivals.n_streams, how, busy(s),
            s->cpu_s / s->cpu_wall_s / per_s * 1e6);
}

static void print_tokens(FILE *to, const stats *s) {
    print_tokens_of(to, "tokens", "one in a write", s);
}

static void print_bundles(FILE *to, const stats *s) {
    print_tokens_of(to, "bundles", "16 in a write", s);
}

static void print_pace(FILE *to, const stats *s) {
    const group *all = s->groups[0];
    fprintf(to,
            "pace      %.0f tokens/s asked and %.0f measured, generator busy %.0f %%\n"
            "          ttft %.1f ms given: measured p50 %.2f p99 %.2f max %.2f\n"
            "          itl  %.1f ms given: measured p50 %.2f p99 %.2f max %.2f\n"
            "          requests sent late: p50 %.3f p99 %.3f max %.3f ms\n",
            s->spec->classes[0].arrivals.rate * PACE_OUTPUT,
            all->n_output_steady / stats_steady_s(s), busy(s), PACE_TTFT_MS,
            (double)hist_at(&all->ttft, .5) / 1e6, (double)hist_at(&all->ttft, .99) / 1e6,
            (double)all->ttft.max / 1e6, 1000 / PACE_TOKENS_PER_S,
            (double)hist_at(&all->itl, .5) / 1e6, (double)hist_at(&all->itl, .99) / 1e6,
            (double)all->itl.max / 1e6, (double)hist_at(&all->late, .5) / 1e6,
            (double)hist_at(&all->late, .99) / 1e6, (double)all->late.max / 1e6);
}

static inferd_status requests_part(const self_test_options *o, output *out, inferd_err *err) {
    null_options null = null_options_default();
    char duration[32], streams[32];
    snprintf(duration, sizeof duration, "%.3fs", o->seconds);
    snprintf(streams, sizeof streams, "closed:%d", REQUEST_STREAMS);
    const pair pairs[] = {{"arrivals", streams},
                          {"duration", duration},
                          {"prompt", "16"},
                          {"output", "1"},
                          {"warmup", "64"}};
    return part_run("requests", &null, pairs, INFERD_COUNT(pairs), print_requests, out, err);
}

static inferd_status tokens_part(const self_test_options *o, bool is_bundled, output *out,
                                 inferd_err *err) {
    null_options null = null_options_default();
    char duration[32], streams[32], n_output[32];
    if (is_bundled) null.tokens_per_write = BUNDLE;
    snprintf(duration, sizeof duration, "%.3fs", o->seconds);
    snprintf(streams, sizeof streams, "closed:%u", o->n_streams);
    snprintf(n_output, sizeof n_output, "%d", TOKEN_OUTPUT);
    const pair pairs[] = {
        {"arrivals", streams}, {"duration", duration}, {"prompt", "16"}, {"output", n_output}};
    return part_run(is_bundled ? "bundles" : "tokens", &null, pairs, INFERD_COUNT(pairs),
                    is_bundled ? print_bundles : print_tokens, out, err);
}

/* Little's law: streams in flight = rate x time of one request. */
static inferd_status pace_part(const self_test_options *o, output *out, inferd_err *err) {
    null_options null = null_options_default();
    null.ttft_ms = PACE_TTFT_MS;
    null.tokens_per_s = PACE_TOKENS_PER_S;
    double request_s = PACE_TTFT_MS / 1000 + (PACE_OUTPUT - 1) / PACE_TOKENS_PER_S;
    char rate[64], n_output[32], duration[32], skip[32];
    snprintf(rate, sizeof rate, "constant:%.3f", o->n_streams / request_s);
    snprintf(n_output, sizeof n_output, "%d", PACE_OUTPUT);
    snprintf(skip, sizeof skip, "%.3fs", request_s * 1.1);
    snprintf(duration, sizeof duration, "%.3fs", request_s * 1.1 + o->seconds);
    const pair pairs[] = {{"arrivals", rate},
                          {"duration", duration},
                          {"skip-s", skip},
                          {"prompt", "16"},
                          {"output", n_output}};
    return part_run("pace", &null, pairs, INFERD_COUNT(pairs), print_pace, out, err);
}

inferd_status self_test_run(const self_test_options *o, bool *out_all_ok, inferd_err *err) {
    bool json_to_stdout = o->json_path != NULL && strcmp(o->json_path, "-") == 0;
    output out = {.to = json_to_stdout ? stderr : stdout, .json = json_object(), .all_ok = true};
    if (out.json == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for JSON");
    inferd_status s = requests_part(o, &out, err);
    if (s == INFERD_OK) s = tokens_part(o, false, &out, err);
    if (s == INFERD_OK) s = tokens_part(o, true, &out, err);
    if (s == INFERD_OK) s = pace_part(o, &out, err);
    if (s == INFERD_OK && o->json_path != NULL) s = report_write(out.json, NULL, o->json_path, err);
    json_decref(out.json);
    *out_all_ok = out.all_ok;
    return s;
}
