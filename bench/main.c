/* main.c - the command line of inferd-bench. */
#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "compare.h"
#include "load.h"
#include "null_server.h"
#include "options.h"
#include "report.h"
#include "self_test.h"
#include "setup.h"
#include "share.h"
#include "slo.h"
#include "spec_value.h"

static const char USAGE[] =
    "inferd-bench - load for any server that speaks the OpenAI API, and a report\n"
    "\n"
    "  inferd-bench --url http://HOST:PORT [options]      run a load and print a report\n"
    "  inferd-bench null-server --listen HOST:PORT [...]  a server that streams canned chunks\n"
    "  inferd-bench self-test [...]                       the limits of the generator itself\n"
    "  inferd-bench compare A.json B.json [...]           two results, with 95 % intervals\n"
    "  inferd-bench slo --url URL --slo-ttft-ms X [...]    the greatest rate that meets the "
    "targets\n"
    "  inferd-bench share --url URL --models A,B,C [...]  costs and guarantees of sharing\n"
    "\n"
    "  --scenario FILE             settings and classes from a JSON file; the command line wins\n"
    "  --class \"KEY=VALUE ...\"     a class of requests of its own; may be repeated\n"
    "  --help                      this text\n"
    "\n";

static const char USAGE_MORE[] =
    "\n"
    "Arrivals:\n"
    "  closed:N             N streams; each sends its next request when its last one has ended\n"
    "  constant:R           R requests a second, evenly\n"
    "  every:TIME           one request each TIME, the first at once\n"
    "  poisson:R            R a second on average\n"
    "  gamma:R/CV           the same, with CV as the coefficient of variation of the gaps\n"
    "  steps:R/TIME,...     Poisson with rate R for TIME, then the next; then the class ends\n"
    "  onoff:R/ON/OFF       Poisson with rate R for ON, nothing for OFF, and so on\n"
    "  burst:R/ON/OFF       the same with exponential ON and OFF of these means\n"
    "  trace                the times of --trace\n"
    "\n"
    "TIME is seconds, or has a unit: 500ms, 20s, 2m, 1h.  CHOICES are words with weights:\n"
    "a=3,b=1.  Switches of a class are written alone or as ignore-eos=on.\n"
    "\n"
    "All times count from the scheduled start of a request, not from when it was sent.\n"
    "Percentiles are off by at most 0.39 %; counts, means and greatest values are exact.\n"
    "\n"
    "null-server:\n"
    "  --listen HOST:PORT   numeric address; port 0 chooses one (default 127.0.0.1:0); printed\n"
    "  --ttft-ms X          wait before the first token\n"
    "  --tokens-per-s X     pace of each stream (default: no pace)\n"
    "  --tokens-per-write N without a pace: events in one write (default 1, at most 64)\n"
    "  --stall-at N         before token N (from 0) wait --stall-ms more\n"
    "  --stall-ms N\n"
    "  --fail-every N       refuse each Nth request with --fail-status (default 503)\n"
    "  --fail-status N\n"
    "  --cut-every N        close the connection in the middle of each Nth stream\n"
    "  --eos-at N           end each output after N tokens\n"
    "  --no-usage           never send usage\n"
    "\n"
    "self-test:\n"
    "  --seconds X          of each of its four parts (default 5)\n"
    "  --streams N          at once (default 1000)\n"
    "  --json FILE          the reports of the four parts\n"
    "\n"
    "compare A1.json,A2.json B1.json,B2.json (results of --json; several are runs of one side):\n"
    "  --margin X           a figure is worse if its interval is more than X % off (default 0)\n"
    "  --force              compare results of different loads or models\n"
    "  --seed N             of the draws (default 1)\n"
    "  --json FILE          the table\n"
    "\n"
    "slo (all options of a run, but --duration, --requests, --csv and --html; arrivals constant,\n"
    "poisson or gamma, default poisson):\n"
    "  --attainment X       part of the requests that must meet the targets (default 0.99)\n"
    "  --rate R             requests a second of the first probe, of all classes (default 1)\n"
    "  --rate-min R, --rate-max R  bounds of the search (default 0.01 and 100000)\n"
    "  --precision X        stop when the bounds are less than X apart, as a part (default 0.05)\n"
    "  --probe-s TIME       a probe starts requests for this long (default 30s) ...\n"
    "  --probe-requests N   ... and for as long as N requests take (default 100)\n"
    "  --total-s TIME       begin no probe that would end later (default 10m)\n"
    "\n"
    "share (scripts/bench-share starts the daemons that its rows need):\n"
    "  --url URL            an inferd that allows its models to be loaded, unloaded and changed\n"
    "  --models A,B,C       of it, at least three\n"
    "  --rows A,B           of switch,warm,cold,gap,urgent,shares,guarantee,weights,beside,\n"
    "                       inversion,roundrobin,burst,kv (default warm)\n"
    "  --admin-key KEY      for the admin API; all rows but switch need it\n"
    "  --key KEY            of a tenant, --flood-key KEY of the other one of guarantee, weights\n"
    "                       and beside, --urgent-key KEY of the third one of beside\n"
    "  --tenants A,B        names of the tenants of --key and --flood-key, for weights and beside\n"
    "  --threads N          that the device computes with (default: all CPUs)\n"
    "  --kv-bytes N         keys and values of one token of the first model, for burst\n"
    "  --prompt-token-ids LO-HI  of prompts (default 1000-40000)\n"
    "  --window-s N         of shares, weights, and the phases of guarantee (default 10)\n"
    "  --seed N  --quick  --json FILE\n"
    "\n"
    "Exit status of compare: 0 nothing is worse in B, 1 something is, 2 it could not compare.\n"
    "Exit status of slo: 0 a rate was found, 1 none was, 2 it could not work, or every request of "
    "a\n"
    "probe failed, and not of overload (statuses 408, 429, 503, 504, timeouts).\n"
    "Exit status: 0 all requests were fine, 1 some failed or none ended, 2 wrong usage or the\n"
    "generator itself could not work.  SIGINT and SIGTERM cut what is in flight and print the\n"
    "report.\n";

/* ---- a run ---- */

static inferd_status spec_read(bench_spec *spec, int argc, char **argv, inferd_err *err) {
    inferd_status s =
        options_read(argc, argv, (option_reader){setup_kind, setup_take_scenario, spec}, err);
    if (s == INFERD_OK)
        s = options_read(argc, argv, (option_reader){setup_kind, setup_take, spec}, err);
    return s == INFERD_OK ? bench_spec_finish(spec, err) : s;
}

static inferd_status measure(bench_spec *spec, stats *figures, inferd_err *err) {
    FILE *csv = NULL;
    if (spec->csv_path != NULL) {
        csv = fopen(spec->csv_path, "we");
        if (csv == NULL)
            return inferd_fail(err, INFERD_EIO, "%s: %s", spec->csv_path, strerror(errno));
    }
    decks d;
    decks_init(&d, spec);
    inferd_status s = load_run(spec, &d, figures, csv, err);
    bool good = csv == NULL || (ferror(csv) == 0 && fflush(csv) == 0);
    if (csv != NULL) good = fclose(csv) == 0 && good;
    if (s == INFERD_OK && !good)
        s = inferd_fail(err, INFERD_EIO, "writing %s failed", spec->csv_path);
    return s;
}

static inferd_status tell(const bench_spec *spec, stats *figures, inferd_err *err) {
    bool json_to_stdout = spec->json_path != NULL && strcmp(spec->json_path, "-") == 0;
    if (!spec->quiet) report_print(json_to_stdout ? stderr : stdout, figures);
    trail_sort(&figures->kept);
    if (spec->html_path != NULL) {
        inferd_status s = report_html(figures, spec->html_path, err);
        if (s != INFERD_OK) return s;
    }
    if (spec->json_path == NULL) return INFERD_OK;
    json_t *root = report_json(figures);
    if (root == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the report");
    json_t *details = report_details(figures);
    inferd_status s = INFERD_ENOMEM;
    if (details == NULL)
        s = inferd_fail(err, s, "no memory for the report");
    else
        s = report_write(root, details, spec->json_path, err);
    json_decref(details);
    json_decref(root);
    return s;
}

static int run(int argc, char **argv) {
    inferd_err err = {0};
    bench_spec spec = {0};
    stats figures = {0};
    uint64_t n_fds = setup_raise_fds();
    inferd_status s = bench_spec_init(&spec, &err);
    if (s == INFERD_OK) s = spec_read(&spec, argc, argv, &err);
    if (s == INFERD_OK) s = setup_inflight(&spec, n_fds, &err);
    if (s == INFERD_OK) s = load_find_models(&spec, &err);
    if (s == INFERD_OK) s = stats_init(&figures, &spec, &err);
    if (s == INFERD_OK) s = measure(&spec, &figures, &err);
    if (s == INFERD_OK) s = tell(&spec, &figures, &err);
    int rc = EXIT_ALL_OK;
    if (s != INFERD_OK)
        rc = usage_error(&err);
    else if (figures.groups[0]->n_failed > 0 || figures.groups[0]->n_ok == 0)
        rc = EXIT_SOME_FAILED;
    stats_deinit(&figures);
    bench_spec_deinit(&spec);
    return rc;
}

/* ---- the null server ---- */

static option_kind null_kind(const char *key) {
    static const char *const VALUES[] = {
        "listen",     "ttft-ms",   "tokens-per-s", "stall-at", "stall-ms",
        "fail-every", "cut-every", "fail-status",  "eos-at",   "tokens-per-write"};
    for (size_t i = 0; i < INFERD_COUNT(VALUES); i++)
        if (strcmp(key, VALUES[i]) == 0) return OPTION_VALUE;
    return strcmp(key, "no-usage") == 0 ? OPTION_SWITCH : OPTION_UNKNOWN;
}

static inferd_status take_listen(null_options *o, const char *value, inferd_err *err) {
    const char *colon = strrchr(value, ':');
    size_t n = colon == NULL ? 0 : (size_t)(colon - value);
    uint32_t port = 0;
    if (n > 1 && value[0] == '[' && value[n - 1] == ']') value++, n -= 2; // [::1]:8080
    if (colon == NULL || n == 0 || n >= sizeof o->host)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is not of the form HOST:PORT", value);
    inferd_status s = value_u32(&port, colon + 1, 0, 65535, err);
    memcpy(o->host, value, n);
    o->host[n] = 0;
    o->port = (int)port;
    return s;
}

static inferd_status take_null(void *ctx, const char *key, const char *value, inferd_err *err) {
    null_options *o = ctx;
    uint32_t status = 0;
    inferd_status s = INFERD_EINVAL;
    if (strcmp(key, "listen") == 0) s = take_listen(o, value, err);
    if (strcmp(key, "ttft-ms") == 0) s = value_number(&o->ttft_ms, value, 0, 1e9, err);
    if (strcmp(key, "tokens-per-s") == 0) s = value_number(&o->tokens_per_s, value, 0, 1e6, err);
    if (strcmp(key, "stall-at") == 0) s = value_u32(&o->stall_at, value, 0, LENGTH_MAX, err);
    if (strcmp(key, "stall-ms") == 0) s = value_u32(&o->stall_ms, value, 0, 1000000, err);
    if (strcmp(key, "fail-every") == 0) s = value_u32(&o->fail_every, value, 0, UINT32_MAX, err);
    if (strcmp(key, "cut-every") == 0) s = value_u32(&o->cut_every, value, 0, UINT32_MAX, err);
    if (strcmp(key, "eos-at") == 0) s = value_u32(&o->eos_at, value, 0, LENGTH_MAX, err);
    if (strcmp(key, "tokens-per-write") == 0)
        s = value_u32(&o->tokens_per_write, value, 1, TOKENS_PER_WRITE_MAX, err);
    if (strcmp(key, "no-usage") == 0) s = value_bool(&o->no_usage, value, err);
    if (strcmp(key, "fail-status") == 0) {
        s = value_u32(&status, value, 400, 599, err);
        if (s == INFERD_OK) o->fail_status = (int)status;
    }
    if (s != INFERD_OK) inferd_context(err, "%s", key);
    return s;
}

static int null_server(int argc, char **argv) {
    inferd_err err = {0};
    null_options o = null_options_default();
    setup_raise_fds();
    inferd_status s = options_read(argc, argv, (option_reader){null_kind, take_null, &o}, &err);
    if (s == INFERD_OK) s = null_server_run(&o, -1, &err);
    return s == INFERD_OK ? EXIT_ALL_OK : usage_error(&err);
}

/* ---- the self-test ---- */

static option_kind self_test_kind(const char *key) {
    bool known =
        strcmp(key, "seconds") == 0 || strcmp(key, "streams") == 0 || strcmp(key, "json") == 0;
    return known ? OPTION_VALUE : OPTION_UNKNOWN;
}

static inferd_status take_self_test(void *ctx, const char *key, const char *value,
                                    inferd_err *err) {
    self_test_options *o = ctx;
    if (strcmp(key, "seconds") == 0) return value_number(&o->seconds, value, 0.1, 3600, err);
    if (strcmp(key, "streams") == 0)
        return value_u32(&o->n_streams, value, 1, ARRIVALS_STREAMS_MAX, err);
    o->json_path = value;
    return INFERD_OK;
}

static int self_test(int argc, char **argv) {
    inferd_err err = {0};
    self_test_options o = {.seconds = 5, .n_streams = 1000};
    bool all_ok = false;
    uint64_t n_fds = setup_raise_fds();
    inferd_status s =
        options_read(argc, argv, (option_reader){self_test_kind, take_self_test, &o}, &err);
    if (s == INFERD_OK && (uint64_t)o.n_streams + SETUP_FDS_RESERVED > n_fds)
        s = inferd_fail(&err, INFERD_EINVAL, "%u streams are more than `ulimit -n` allows (%llu)",
                        o.n_streams, (unsigned long long)n_fds);
    if (s == INFERD_OK) s = self_test_run(&o, &all_ok, &err);
    if (s != INFERD_OK) return usage_error(&err);
    return all_ok ? EXIT_ALL_OK : EXIT_SOME_FAILED;
}

/* ---- sharing ---- */

static option_kind share_kind(const char *key) {
    static const char *const VALUES[] = {
        "url",      "models",  "rows",     "admin-key", "key",  "flood-key", "prompt-token-ids",
        "window-s", "threads", "kv-bytes", "seed",      "json", "tenants",   "urgent-key"};
    for (size_t i = 0; i < INFERD_COUNT(VALUES); i++)
        if (strcmp(key, VALUES[i]) == 0) return OPTION_VALUE;
    return strcmp(key, "quick") == 0 ? OPTION_SWITCH : OPTION_UNKNOWN;
}

static inferd_status take_share(void *ctx, const char *key, const char *value, inferd_err *err) {
    share_options *o = ctx;
    const struct {
        const char *key, **to;
    } TEXTS[] = {{"url", &o->url},
                 {"models", &o->models},
                 {"rows", &o->rows},
                 {"json", &o->json_path},
                 {"admin-key", &o->admin_key},
                 {"key", &o->key},
                 {"flood-key", &o->flood_key},
                 {"urgent-key", &o->urgent_key},
                 {"tenants", &o->tenants}};
    for (size_t i = 0; i < INFERD_COUNT(TEXTS); i++)
        if (strcmp(key, TEXTS[i].key) == 0) {
            *TEXTS[i].to = value;
            return INFERD_OK;
        }
    inferd_status s = INFERD_OK;
    if (strcmp(key, "threads") == 0) s = value_u32(&o->threads, value, 1, 1024, err);
    if (strcmp(key, "kv-bytes") == 0) s = value_u32(&o->kv_bytes, value, 1, UINT32_MAX, err);
    if (strcmp(key, "window-s") == 0) s = value_u32(&o->window_s, value, 2, 3600, err);
    if (strcmp(key, "prompt-token-ids") == 0) {
        length_spec ids = {0};
        s = value_range(&ids, value, 0, INT32_MAX, err);
        if (s == INFERD_OK) o->id_lo = ids.lo, o->id_hi = ids.hi;
    }
    if (strcmp(key, "seed") == 0) s = value_u64(&o->seed, value, err);
    if (strcmp(key, "quick") == 0) s = value_bool(&o->is_quick, value, err);
    if (s != INFERD_OK) inferd_context(err, "%s", key);
    return s;
}

static int share_command(int argc, char **argv) {
    inferd_err err = {0};
    share_options o = share_options_default();
    bool all_met = false;
    inferd_status s = options_read(argc, argv, (option_reader){share_kind, take_share, &o}, &err);
    if (s == INFERD_OK) s = share_run(&o, &all_met, &err);
    if (s != INFERD_OK) return usage_error(&err);
    return all_met ? EXIT_ALL_OK : EXIT_SOME_FAILED;
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

int main(int argc, char **argv) {
    if (wants_help(argc, argv)) {
        fputs(USAGE, stdout);
        bench_settings_print(stdout);
        fputs(USAGE_MORE, stdout);
        return EXIT_ALL_OK;
    }
    signal(SIGPIPE, SIG_IGN);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    int rc;
    if (argc > 1 && strcmp(argv[1], "null-server") == 0)
        rc = null_server(argc - 2, argv + 2);
    else if (argc > 1 && strcmp(argv[1], "self-test") == 0)
        rc = self_test(argc - 2, argv + 2);
    else if (argc > 1 && strcmp(argv[1], "compare") == 0)
        rc = compare_command(argc - 2, argv + 2);
    else if (argc > 1 && strcmp(argv[1], "slo") == 0)
        rc = slo_command(argc - 2, argv + 2);
    else if (argc > 1 && strcmp(argv[1], "share") == 0)
        rc = share_command(argc - 2, argv + 2);
    else
        rc = run(argc - 1, argv + 1);
    curl_global_cleanup();
    return rc;
}
