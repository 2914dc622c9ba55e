/* test_bench.c - the parts of the load generator that can be checked without a server. */
#include "../tests/test.h"

#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arrivals.h"
#include "chunk.h"
#include "dues.h"
#include "hist.h"
#include "plan.h"
#include "share.h"
#include "share_load.h"
#include "spec.h"
#include "spec_value.h"
#include "sse.h"
#include "stats.h"
#include "trace.h"

/* ---- hist ---- */

static void percentiles_are_within_half_a_percent(void) {
    static hist h;
    memset(&h, 0, sizeof h);
    // 1000 values over nine decades, in order: the k-th is exactly known.
    static uint64_t values[1000];
    for (int i = 0; i < 1000; i++) values[i] = (uint64_t)pow(10, 1 + 9.0 * i / 999);
    for (int i = 999; i >= 0; i--) hist_add(&h, values[i]);
    EXPECT_EQ(h.n, 1000);
    EXPECT_EQ(h.min, values[0]);
    EXPECT_EQ(h.max, values[999]);
    for (int rank = 1; rank <= 1000; rank++) {
        double told = (double)hist_at(&h, rank / 1000.0), truth = (double)values[rank - 1];
        EXPECT(fabs(told - truth) <= 0.0040 * truth + 0.5);
    }
    EXPECT_EQ(hist_at(&h, 1), values[999]);
}

static void small_and_huge_values_have_buckets(void) {
    static hist h;
    memset(&h, 0, sizeof h);
    EXPECT_EQ(hist_at(&h, 0.5), 0);
    hist_add(&h, 0);
    hist_add(&h, 127);
    hist_add(&h, UINT64_MAX);
    EXPECT_EQ(hist_at(&h, 0.3), 0);
    EXPECT_EQ(hist_at(&h, 0.6), 127);
    EXPECT(hist_at(&h, 1) == UINT64_MAX);
    EXPECT_EQ(hist_at_rank(&h, 0), 0); // ranks outside are the nearest one
    EXPECT_EQ(hist_at_rank(&h, 2), 127);
    EXPECT(hist_at_rank(&h, 4) == UINT64_MAX);
}

/* ---- sse ---- */

typedef struct seen {
    char text[512];
    int n_events;
} seen;

static bool see(void *ctx, const char *name, const char *data, size_t n) {
    seen *s = ctx;
    size_t used = strlen(s->text);
    snprintf(s->text + used, sizeof s->text - used, "[%s|%.*s]", name, (int)n, data);
    s->n_events++;
    return strcmp(data, "stop") != 0;
}

static const char SSE_INPUT[] = "\xef\xbb\xbf: hello\n"
                                "data: one\n\n"
                                "event: error\r\ndata:two\r\ndata: \r\ndata:  three\r\n\r\n"
                                "id: 7\nretry\n\n"
                                "data\r\r"
                                ": ping\n\n"
                                "data: {\"a\":1}\n\n"
                                "data: never finished";
static const char SSE_SEEN[] = "[|one][error|two\n\n three][|][|{\"a\":1}]";

static void events_do_not_depend_on_the_cuts(void) {
    size_t n = sizeof SSE_INPUT - 1;
    sse_parser p;
    sse_init(&p);
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            seen s = {0};
            sse_reset(&p);
            EXPECT_EQ(sse_feed(&p, SSE_INPUT, a, see, &s), INFERD_OK);
            EXPECT_EQ(sse_feed(&p, SSE_INPUT + a, b - a, see, &s), INFERD_OK);
            EXPECT_EQ(sse_feed(&p, SSE_INPUT + b, n - b, see, &s), INFERD_OK);
            if (strcmp(s.text, SSE_SEEN) != 0) {
                EXPECT_STR(s.text, SSE_SEEN);
                sse_deinit(&p);
                return;
            }
        }
    }
    sse_deinit(&p);
}

static void an_event_that_never_ends_is_refused(void) {
    static char block[1 << 16];
    memset(block, 'x', sizeof block);
    sse_parser p;
    seen s = {0};
    sse_init(&p);
    inferd_status status = sse_feed(&p, "data: ", 6, see, &s);
    for (int i = 0; i < 32 && status == INFERD_OK; i++)
        status = sse_feed(&p, block, sizeof block, see, &s);
    EXPECT_EQ(status, INFERD_ETOOLONG);
    sse_reset(&p);
    status = INFERD_OK; // many short lines are no way around it
    for (int i = 0; i < (2 << 20) / 8 && status == INFERD_OK; i++)
        status = sse_feed(&p, "data: xxxxxxx\n", 14, see, &s);
    EXPECT_EQ(status, INFERD_ETOOLONG);
    EXPECT_EQ(s.n_events, 0);
    sse_reset(&p);
    EXPECT_EQ(sse_feed(&p, "data: stop\n\ndata: on\n\n", 22, see, &s), INFERD_ECANCELED);
    EXPECT_EQ(s.n_events, 1);
    sse_deinit(&p);
}

/* ---- trace ---- */

static bool time_is(const char *text, uint64_t wanted_ns) {
    uint64_t ns;
    return trace_time_parse(text, text + strlen(text), &ns) && ns == wanted_ns;
}

static void times_are_dates_or_seconds(void) {
    EXPECT(time_is("0", 0));
    EXPECT(time_is("12.25", 12250000000u));
    EXPECT(time_is("1970-01-01 00:00:00", 0));
    EXPECT(time_is("1970-01-02T00:00:01.5Z", 86401500000000u));
    EXPECT(time_is("2000-03-01 00:00:00", 951868800u * 1000000000ull));        // a leap year
    EXPECT(time_is("2023-11-16 18:17:03.9799600", 1700158623979960000u));      // Azure's form
    EXPECT(time_is("2024-05-10 00:00:00.009930+00:00", 1715299200009930000u)); // and its next one
    EXPECT(time_is("1970-01-02T01:30:00+01:30", 86400000000000u));
    EXPECT(time_is("1970-01-01 20:00:00-04:00", 86400000000000u));
    EXPECT(time_is("1700158623.9", 1700158623900000000u));
    uint64_t ns;
    const char *const BAD[] = {"",
                               "x",
                               "-1",
                               "1.",
                               "2023-13-01 00:00:00",
                               "2023-11-16",
                               "1 ",
                               "2023-11-16 18:17:03 x",
                               "2023-11-16 18:17:03+1",
                               "2023-11-16 18:17:03+24:00",
                               "2023-11-16 18:17:03+00:60",
                               "2023-11-16 18:17:03+00:00Z",
                               "1970-01-01 00:00:00+00:01",
                               "99999999999"};
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++)
        EXPECT(!trace_time_parse(BAD[i], BAD[i] + strlen(BAD[i]), &ns));
}

/* The trace in `text`, or the failure. */
static inferd_status read_text(trace *t, const char *text, inferd_err *err) {
    char path[64];
    int fd = memfd_create("trace", 0);
    EXPECT(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    EXPECT_EQ(write(fd, text, strlen(text)), strlen(text));
    inferd_status s = trace_read(t, path, err);
    close(fd);
    return s;
}

static void trace_begins_at_zero(void) {
    trace t;
    inferd_err err = {0};
    EXPECT_EQ(read_text(&t,
                        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                        "2023-11-16 18:15:46.6805900,374,44\r\n"
                        "2023-11-16 18:15:50.9951690,396,109,more\r\n\r\n",
                        &err),
              INFERD_OK);
    EXPECT_EQ(t.n, 2);
    EXPECT_EQ(t.rows[0].at_ns, 0);
    EXPECT_EQ(t.rows[1].at_ns, 4314579000);
    EXPECT_EQ(t.rows[1].n_prompt, 396);
    EXPECT_EQ(t.rows[1].n_output, 109);
    trace_deinit(&t);
}

static void bad_traces_name_the_line(void) {
    trace t;
    inferd_err err = {0};
    EXPECT_EQ(read_text(&t, "1,2,3\n0.5,2,3\n", &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "line 2: time goes backwards") != NULL);
    EXPECT_EQ(read_text(&t, "0,2,3\n1,x,3\n", &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "line 2: bad number of prompt tokens") != NULL);
    EXPECT_EQ(read_text(&t, "0,2\n", &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "output tokens") != NULL);
    EXPECT_EQ(read_text(&t, "time,a,b\n", &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "no rows") != NULL);
}

static void published_traces_are_read(void) {
    static const struct {
        const char *name;
        size_t n;
        double s;
        uint32_t n_prompt_max;
    } TRACES[] = {{"azure-2023-code.csv", 8819, 3435.948056, 7437},
                  {"azure-2023-conv.csv", 19366, 3501.721937, 14050}};
    const char *shared = getenv("INFERD_SHARED");
    char path[512];
    for (size_t i = 0; i < INFERD_COUNT(TRACES); i++) {
        trace t;
        inferd_err err = {0};
        snprintf(path, sizeof path, "%s/traces/%s",
                 shared != NULL ? shared : INFERD_SOURCE_DIR "/../shared", TRACES[i].name);
        if (access(path, R_OK) != 0) SKIP("no traces");
        EXPECT_EQ(trace_read(&t, path, &err), INFERD_OK);
        EXPECT_EQ(t.n, TRACES[i].n);
        uint32_t n_prompt_max = 0;
        for (size_t k = 0; k < t.n; k++) n_prompt_max = u32_max(n_prompt_max, t.rows[k].n_prompt);
        EXPECT_EQ(n_prompt_max, TRACES[i].n_prompt_max);
        if (t.n > 0) EXPECT_NEAR((double)t.rows[t.n - 1].at_ns / 1e9, TRACES[i].s, 1e-6);
        trace_deinit(&t);
    }
}

/* ---- arrivals ---- */

typedef struct gaps {
    double n, mean_s, cv;
} gaps;

/* Mean and coefficient of variation of `n` gaps. */
static gaps gaps_of(const char *text, int n) {
    arrivals_spec spec;
    arrivals a;
    inferd_err err;
    EXPECT_EQ(arrivals_parse(&spec, text, &err), INFERD_OK);
    arrivals_init(&a, &spec, NULL, 1, rng_make(1, 2, 3));
    double sum = 0, squares = 0;
    uint64_t last_ns = 0, at_ns;
    for (int i = 0; i < n; i++) {
        EXPECT(arrivals_next(&a, &at_ns) && at_ns >= last_ns);
        double gap = (double)(at_ns - last_ns) / 1e9;
        last_ns = at_ns;
        sum += gap;
        squares += gap * gap;
    }
    double mean = sum / n;
    return (gaps){n, mean, sqrt(squares / n - mean * mean) / mean};
}

static void gaps_have_the_mean_and_spread_asked_for(void) {
    gaps g = gaps_of("poisson:50", 100000);
    EXPECT_NEAR(g.mean_s, 0.02, 0.0004);
    EXPECT_NEAR(g.cv, 1, 0.02);
    g = gaps_of("gamma:50/4", 200000);
    EXPECT_NEAR(g.mean_s, 0.02, 0.001);
    EXPECT_NEAR(g.cv, 4, 0.2);
    g = gaps_of("gamma:50/0.5", 100000);
    EXPECT_NEAR(g.mean_s, 0.02, 0.0004);
    EXPECT_NEAR(g.cv, 0.5, 0.02);
    g = gaps_of("burst:100/1s/3s", 100000); // a quarter of the time at 100/s
    EXPECT_NEAR(g.mean_s, 0.04, 0.003);
    EXPECT(g.cv > 3);
}

static void constant_does_not_drift(void) {
    arrivals_spec spec;
    arrivals a;
    uint64_t at_ns = 1;
    EXPECT_EQ(arrivals_parse(&spec, "constant:3", NULL), INFERD_OK);
    arrivals_init(&a, &spec, NULL, 1, rng_make(0, 0, 0));
    EXPECT(arrivals_next(&a, &at_ns));
    EXPECT_EQ(at_ns, 0);
    for (int i = 1; i <= 300000; i++) arrivals_next(&a, &at_ns);
    EXPECT_EQ(at_ns, 100000ull * 1000000000ull);
    EXPECT_EQ(arrivals_parse(&spec, "every:250ms", NULL), INFERD_OK);
    EXPECT_NEAR(spec.rate, 4, 1e-12);
}

static void steps_change_the_rate_and_end(void) {
    arrivals_spec spec;
    arrivals a;
    uint64_t at_ns;
    int n[3] = {0};
    EXPECT_EQ(arrivals_parse(&spec, "steps:100/10s,0/10s,400/10s", NULL), INFERD_OK);
    arrivals_init(&a, &spec, NULL, 1, rng_make(9, 0, 0));
    while (arrivals_next(&a, &at_ns)) {
        EXPECT(at_ns < 30000000000u);
        if (at_ns < 30000000000u) n[at_ns / 10000000000u]++;
    }
    EXPECT(abs(n[0] - 1000) < 130); // four deviations
    EXPECT_EQ(n[1], 0);
    EXPECT(abs(n[2] - 4000) < 260);
}

static void nothing_arrives_while_off(void) {
    arrivals_spec spec;
    arrivals a;
    uint64_t at_ns;
    EXPECT_EQ(arrivals_parse(&spec, "onoff:50/2s/3s", NULL), INFERD_OK);
    arrivals_init(&a, &spec, NULL, 1, rng_make(4, 0, 0));
    for (int i = 0; i < 10000; i++) {
        EXPECT(arrivals_next(&a, &at_ns));
        EXPECT(at_ns % 5000000000u <= 2000000000u);
    }
    EXPECT_NEAR((double)at_ns / 1e9, 10000 / 20.0, 40); // 20 a second over all
}

static void trace_times_are_scaled(void) {
    trace_row rows[] = {{0, 1, 1}, {4000000000u, 1, 1}};
    trace t = {rows, 2};
    arrivals_spec spec;
    arrivals a;
    uint64_t at_ns;
    EXPECT_EQ(arrivals_parse(&spec, "trace", NULL), INFERD_OK);
    arrivals_init(&a, &spec, &t, 8, rng_make(0, 0, 0));
    EXPECT(arrivals_next(&a, &at_ns) && at_ns == 0);
    EXPECT(arrivals_next(&a, &at_ns) && at_ns == 500000000u);
    EXPECT(!arrivals_next(&a, &at_ns));
}

static void bad_arrivals_are_refused(void) {
    const char *const BAD[] = {
        "",          "closed",      "closed:0",    "closed:1.5",  "closed:-1",
        "poisson:0", "poisson:inf", "poisson:1 ",  "poisson:nan", "every:0",
        "steps:",    "steps:1",     "steps:1/0s",  "steps:0/1s",  "onoff:1/1s",
        "gamma:1",   "gamma:1/0",   "burst:0/1/1", "tracex",      "every:1x"};
    arrivals_spec spec;
    inferd_err err;
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++)
        EXPECT_EQ(arrivals_parse(&spec, BAD[i], &err), INFERD_EINVAL);
}

static void dues_come_out_in_order(void) {
    dues d;
    rng r = rng_make(5, 0, 0);
    EXPECT(dues_init(&d, 1000));
    for (int i = 0; i < 1000; i++) dues_push(&d, (due){rng_below(&r, 300), 0, NULL});
    uint64_t last_ns = 0;
    while (d.n > 0) {
        due top = dues_pop(&d);
        EXPECT(top.at_ns >= last_ns);
        last_ns = top.at_ns;
    }
    dues_deinit(&d);
}

/* ---- settings ---- */

static void choices_read_weights_after_the_last_equals(void) {
    choices c = {0};
    inferd_err err;
    EXPECT_EQ(value_choices(&c, "a=3,b,llama3:8b=0.5,key==", &err), INFERD_OK);
    EXPECT_EQ(c.n, 4);
    EXPECT_STR(c.items[0].text, "a");
    EXPECT_NEAR(c.items[0].weight, 3, 0);
    EXPECT_NEAR(c.items[1].weight, 1, 0);
    EXPECT_STR(c.items[2].text, "llama3:8b");
    EXPECT_STR(c.items[3].text, "key==");
    EXPECT_EQ(value_choices(&c, "a=0", &err), INFERD_EINVAL);
    EXPECT_EQ(value_choices(&c, "a,,b", &err), INFERD_EINVAL);
    choices_deinit(&c);
}

static void choices_are_drawn_by_weight(void) {
    choices c = {0};
    int n[3] = {0};
    rng r = rng_make(1, 1, 1);
    EXPECT_EQ(value_choices(&c, "a=3,b=1,never=0", NULL), INFERD_OK);
    for (int i = 0; i < 40000; i++) n[choices_draw(&c, &r)]++;
    EXPECT(abs(n[0] - 30000) < 400);
    EXPECT_EQ(n[2], 0);
    choices_deinit(&c);
}

static void class_settings_win_over_defaults(void) {
    bench_spec spec;
    inferd_err err = {0};
    EXPECT_EQ(bench_spec_init(&spec, &err), INFERD_OK);
    EXPECT_EQ(bench_spec_set(&spec, -1, "url", "http://h:1/v1/", &err), INFERD_OK);
    EXPECT_EQ(
        bench_spec_class_text(&spec, "name=probe arrivals=every:3s prompt=512 ignore-eos", &err),
        INFERD_OK);
    EXPECT_EQ(bench_spec_class_text(&spec, "name=chat output=7-9", &err), INFERD_OK);
    EXPECT_EQ(bench_spec_set(&spec, -1, "prompt", "99", &err), INFERD_OK); // later, still a default
    EXPECT_EQ(bench_spec_set(&spec, -1, "duration", "2m", &err), INFERD_OK);
    EXPECT_EQ(bench_spec_finish(&spec, &err), INFERD_OK);
    EXPECT_STR(spec.url, "http://h:1");
    EXPECT_EQ(spec.duration_s, 120);
    EXPECT_EQ(spec.n_classes, 2);
    EXPECT_EQ(spec.classes[0].prompt.lo, 512);
    EXPECT(spec.classes[0].ignore_eos && !spec.classes[1].ignore_eos);
    EXPECT_EQ(spec.classes[1].prompt.hi, 99);
    EXPECT_EQ(spec.classes[1].output.lo, 7);
    EXPECT_EQ(spec.classes[1].output.hi, 9);
    bench_spec_deinit(&spec);
}

/* The reports have the URL. */
static void a_url_with_a_password_is_refused(void) {
    static const char *const BAD[] = {"http://user:pw@h", "https://user@h:1/v1"};
    static const char *const GOOD[] = {"http://h:1/a@b", "http://h?x=a@b", "http://[::1]:9"};
    bench_spec spec;
    inferd_err err = {0};
    EXPECT_EQ(bench_spec_init(&spec, &err), INFERD_OK);
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++) {
        EXPECT_EQ(bench_spec_set(&spec, -1, "url", BAD[i], &err), INFERD_EINVAL);
        EXPECT(strstr(err.text, "password in the URL") != NULL && strstr(err.text, "pw@") == NULL);
    }
    for (size_t i = 0; i < INFERD_COUNT(GOOD); i++)
        EXPECT_EQ(bench_spec_set(&spec, -1, "url", GOOD[i], &err), INFERD_OK);
    bench_spec_deinit(&spec);
}

static void what_cannot_work_is_refused_with_its_name(void) {
    static const char *const BAD[][2] = {
        {"prompt=0", "prompt"},
        {"output=9-3", "output"},
        {"nonsense=1", "nonsense"},
        {"name=x\xff", "name: the value is no UTF-8"},
        {"model=\xc3", "model: the value is no UTF-8"},
        {"url=http://x", "of the run"},
        {"prompt", "needs a value"},
        {"arrivals=trace", "trace"},
        {"requests=0", "never end"},
        {"priority=a", "priority"},
        {"extra=[1]", "extra"},
        {"endpoint=x", "endpoint"},
        {"temperature=3", "temperature"},
        {"key=@/nowhere", "key"},
        {"endpoint=chat prompt-token-ids=1-2", "only with endpoint completions"}};
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++) {
        bench_spec spec;
        inferd_err err = {0};
        EXPECT_EQ(bench_spec_init(&spec, &err), INFERD_OK);
        inferd_status s = bench_spec_set(&spec, -1, "url", "http://h:1", &err);
        if (s == INFERD_OK) s = bench_spec_class_text(&spec, BAD[i][0], &err);
        if (s == INFERD_OK && strstr(BAD[i][1], "never") == NULL)
            s = bench_spec_set(&spec, -1, "requests", "1", &err);
        if (s == INFERD_OK) s = bench_spec_finish(&spec, &err);
        EXPECT(s != INFERD_OK);
        if (strstr(err.text, BAD[i][1]) == NULL) EXPECT_STR(err.text, BAD[i][1]);
        bench_spec_deinit(&spec);
    }
}

/* ---- plan ---- */

static bench_class class_for_plans(void) {
    bench_class c = {.prompt = {.lo = 40, .hi = 60},
                     .output = {.lo = 5, .hi = 9},
                     .tokens_per_word = 1,
                     .ask_usage = true,
                     .has_temperature = true};
    EXPECT_EQ(value_choices(&c.models, "a \"b\"\\,c", NULL), INFERD_OK);
    EXPECT_EQ(value_choices(&c.priorities, "-2,7", NULL), INFERD_OK);
    EXPECT_EQ(value_members(&c.extra, "{\"top_k\": 3, \"x\": {\"y\": []}}", NULL), INFERD_OK);
    return c;
}

static void class_free(bench_class *c) {
    choices_deinit(&c->models);
    choices_deinit(&c->priorities);
    choices_deinit(&c->tiers);
    free(c->extra);
}

static uint32_t count_words(const char *text) {
    uint32_t n = 1;
    for (; *text != 0; text++) n += *text == ' ';
    return n;
}

static void bodies_are_json_and_repeat_with_the_seed(void) {
    bench_class c = class_for_plans();
    buf body, again;
    buf_init(&body, 0);
    buf_init(&again, 0);
    for (uint64_t idx = 0; idx < 200; idx++) {
        c.is_chat = idx % 2 == 1;
        request_plan plan = plan_draw(&c, 42, 0, idx, 0), same = plan_draw(&c, 42, 0, idx, 0);
        EXPECT(plan.n_prompt >= 40 && plan.n_prompt <= 60);
        EXPECT(plan.n_output >= 5 && plan.n_output <= 9);
        EXPECT(plan_body(&plan, &c, NULL, &body) && plan_body(&same, &c, NULL, &again));
        EXPECT_STR(buf_cstr(&body), buf_cstr(&again));
        json_t *root = json_loads(buf_cstr(&body), JSON_REJECT_DUPLICATES, NULL);
        EXPECT(root != NULL);
        EXPECT_STR(json_string_value(json_object_get(root, "model")),
                   c.models.items[plan.model].text);
        EXPECT_EQ(json_integer_value(json_object_get(root, "max_tokens")), plan.n_output);
        EXPECT_EQ(json_integer_value(json_object_get(root, "priority")),
                  plan.priority == 0 ? -2 : 7);
        EXPECT_EQ(json_integer_value(json_object_get(root, "top_k")), 3);
        json_t *message = json_array_get(json_object_get(root, "messages"), 0);
        json_t *prompt =
            c.is_chat ? json_object_get(message, "content") : json_object_get(root, "prompt");
        EXPECT(json_is_string(prompt));
        if (json_is_string(prompt))
            EXPECT_EQ(count_words(json_string_value(prompt)), plan.n_prompt);
        json_decref(root);
    }
    buf_deinit(&body);
    buf_deinit(&again);
    class_free(&c);
}

static void prompts_share_only_the_prefix(void) {
    bench_class c = class_for_plans();
    c.prompt = (length_spec){.lo = 64, .hi = 64};
    c.prompt_is_ids = true;
    c.id_lo = 1000;
    c.id_hi = 30000;
    c.shared_prefix = 16;
    buf body[2];
    json_t *prompts[2], *roots[2];
    for (int i = 0; i < 2; i++) {
        request_plan plan = plan_draw(&c, 7, 3, (uint64_t)i, 0);
        buf_init(&body[i], 0);
        EXPECT(plan_body(&plan, &c, NULL, &body[i]));
        roots[i] = json_loads(buf_cstr(&body[i]), 0, NULL);
        prompts[i] = json_object_get(roots[i], "prompt");
        EXPECT_EQ(json_array_size(prompts[i]), 64);
    }
    int n_same = 0;
    for (size_t k = 0; k < 64; k++) {
        json_int_t a = json_integer_value(json_array_get(prompts[0], k));
        json_int_t b = json_integer_value(json_array_get(prompts[1], k));
        EXPECT(a >= 1000 && a <= 30000);
        if (k < 16)
            EXPECT_EQ(a, b);
        else
            n_same += a == b;
    }
    EXPECT(n_same <= 1); // 48 pairs, one in 29,001 is the same by chance
    for (int i = 0; i < 2; i++) {
        json_decref(roots[i]);
        buf_deinit(&body[i]);
    }
    class_free(&c);
}

static void trace_lengths_are_taken_row_by_row(void) {
    trace_row rows[] = {{0, 100, 10}, {1, 200, 0}, {2, 5000, 30}};
    bench_class c = {.tr = {rows, 3},
                     .prompt = {.from_trace = true},
                     .output = {.from_trace = true},
                     .prompt_max = 1024};
    EXPECT_EQ(plan_draw(&c, 1, 0, 0, 0).n_prompt, 100);
    EXPECT_EQ(plan_draw(&c, 1, 0, 1, 0).n_output, 1); // no output is none: at least one token
    EXPECT_EQ(plan_draw(&c, 1, 0, 2, 0).n_prompt, 1024);
    EXPECT_EQ(plan_draw(&c, 1, 0, 3, 0).n_prompt, 100); // again from the first
}

/* ---- samples of share ---- */

static void samples_are_told_by_rank(void) {
    samples s = {0};
    EXPECT_NEAR(samples_at(&s, .5), 0, 0);
    for (int i = 100; i >= 1; i--) samples_add(&s, i);
    EXPECT_NEAR(samples_at(&s, 0), 1, 0);
    EXPECT_NEAR(samples_at(&s, .5), 50, 0);
    EXPECT_NEAR(samples_at(&s, .99), 99, 0);
    EXPECT_NEAR(samples_at(&s, .991), 100, 0);
    EXPECT_NEAR(samples_at(&s, 1), 100, 0);
    samples_add(&s, 0.5); // after they were sorted
    EXPECT_NEAR(samples_at(&s, 0), 0.5, 0);
    EXPECT_EQ(s.n, 101);
    samples_free(&s);
}

static void a_row_that_failed_or_missed_is_not_met(void) {
    share_table t = {0};
    share_table_add(&t, "a", "told", "")->verdict = SHARE_TOLD;
    share_table_add(&t, "b", "good", "<= 1")->verdict = SHARE_MET;
    EXPECT(share_table_all_met(&t));
    share_table_add(&t, "c", "bad", "<= 1")->verdict = SHARE_MISSED;
    EXPECT(!share_table_all_met(&t));
    t.rows[2].verdict = SHARE_FAILED;
    EXPECT(!share_table_all_met(&t));
    json_t *root = share_table_json(&t);
    json_t *row = json_array_get(json_object_get(root, "rows"), 2);
    EXPECT_STR(json_string_value(json_object_get(row, "verdict")), "not measured");
    json_decref(root);
    share_table_deinit(&t);
}

static void charges_are_summed_by_name(void) {
    json_t *account =
        json_pack("{s:[{s:s,s:s,s:f},{s:s,s:s,s:f},{s:s,s:s,s:f}]}", "principals", "tenant", "gold",
                  "model", "a", "device_s", 1.5, "tenant", "gold", "model", "b", "device_s", 2.0,
                  "tenant", "flood", "model", "a", "device_s", 4.0);
    inferd_err err = {0};
    double s = 0;
    EXPECT_EQ(share_charged(account, "tenant", "gold", "device_s", &s, &err), INFERD_OK);
    EXPECT_NEAR(s, 3.5, 0);
    EXPECT_EQ(share_charged(account, "model", "a", "device_s", &s, &err), INFERD_OK);
    EXPECT_NEAR(s, 5.5, 0);
    EXPECT_EQ(share_charged(account, "tenant", "none", "device_s", &s, &err), INFERD_OK);
    EXPECT_NEAR(s, 0, 0);
    EXPECT_EQ(share_charged(account, "tenant", "gold", "tokens", &s, &err), INFERD_EFORMAT);
    EXPECT_EQ(share_charged(NULL, "tenant", "gold", "device_s", &s, &err), INFERD_EFORMAT);
    json_decref(account);
}

static void gaps_are_between_tokens_of_one_answer(void) {
    share_token first[] = {{1000000, 0}, {3000000, 0}, {90000000, 1}, {94000000, 1}};
    share_token second[] = {{5000000, 0}};
    share_stream streams[] = {{.tokens = first, .n_tokens = 4}, {.tokens = second, .n_tokens = 1}};
    share_load l = {.streams = streams, .n_streams = 2};
    samples found = {0};
    share_load_gaps(&l, &found);
    EXPECT_EQ(found.n, 2);
    EXPECT_NEAR(samples_at(&found, 0), 2, 1e-9);
    EXPECT_NEAR(samples_at(&found, 1), 4, 1e-9);
    samples_free(&found);
}

/* ---- chunk ---- */

static chunk parse(const char *text) {
    chunk c;
    EXPECT_EQ(chunk_parse(&c, text, strlen(text), NULL), INFERD_OK);
    return c;
}

static void chunks_of_servers_are_understood(void) {
    EXPECT(parse("{\"choices\":[{\"text\":\" a\"}]}").has_text);
    EXPECT(!parse("{\"choices\":[{\"text\":\"\"}]}").has_text);
    EXPECT(parse("{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}").has_text);
    EXPECT(parse("{\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}]}").has_text);
    EXPECT(parse("{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}").has_text);
    EXPECT(
        !parse("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}").has_text);
    EXPECT_STR(parse("{\"choices\":[{\"finish_reason\":\"stop\"}]}").finish, "stop");
    EXPECT_STR(parse("{\"choices\":[{\"finish_reason\":null}],\"usage\":null}").finish, "");
    chunk c = parse("{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,"
                    "\"prompt_tokens_details\":{\"cached_tokens\":8}}}");
    EXPECT(c.has_usage && c.n_prompt == 9 && c.n_output == 4 && c.n_cached == 8);
    EXPECT_EQ(parse("{\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}").n_cached, -1);
    EXPECT(!parse("{\"usage\":{\"prompt_tokens\":9}}").has_usage);
    EXPECT(c.queued_ms == -1 && c.queued_steps == -1);
    c = parse("{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,"
              "\"inferd\":{\"queued_ms\":17,\"queued_steps\":2,\"preempted\":0}}}");
    EXPECT(c.queued_ms == 17 && c.queued_steps == 2);
    // An answer to random tokens may hold any byte, and was refused as no JSON.
    EXPECT(parse("{\"choices\":[{\"text\":\"a\\u0000\"}]}").has_text);
    EXPECT(chunk_parse(&c, "[1]", 3, NULL) == INFERD_EFORMAT);
    EXPECT(chunk_parse(&c, "{\"a\":", 5, NULL) == INFERD_EFORMAT);
}

static void errors_have_many_shapes(void) {
    static const char *const SHAPES[][3] = {
        {"{\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":\"c\"}}", "c", "m"},
        {"{\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":null}}", "t", "m"},
        {"{\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":503}}", "503", "m"},
        {"{\"error\":\"m\"}", "unnamed", "m"},
        {"{\"object\":\"error\",\"message\":\"m\",\"code\":7}", "7", "m"},
        {"<html>no</html>", "", "<html>no</html>"}};
    for (size_t i = 0; i < INFERD_COUNT(SHAPES); i++) {
        chunk c;
        chunk_parse_error(&c, SHAPES[i][0], strlen(SHAPES[i][0]));
        EXPECT_STR(c.error_code, SHAPES[i][1]);
        EXPECT_STR(c.error_text, SHAPES[i][2]);
    }
}

/* ---- stats ---- */

static void figures_count_from_the_schedule(void) {
    bench_class c = {.name = "all", .slo_ttft_ms = 100, .slo_tpot_ms = 10};
    bench_spec spec = {.classes = &c, .n_classes = 1};
    stats s;
    group *groups[GROUPS_PER_REQUEST];
    EXPECT_EQ(stats_init(&s, &spec, NULL), INFERD_OK);
    // Sent 80 ms late, first token 40 ms after that, then 10 tokens in 5 chunks over 90 ms.
    result r = {.is_counted = true,
                .sched_ns = 1000000000,
                .sent_ns = 1080000000,
                .first_ns = 1120000000,
                .last_ns = 1210000000,
                .end_ns = 1211000000,
                .n_chunks = 5,
                .n_chunks_steady = 2,
                .has_usage = true,
                .n_prompt = 7,
                .n_output = 10,
                .gap_max_ns = 50000000,
                .finish = "stop"};
    stats_groups(&s, &r.plan, groups);
    EXPECT(groups[0] == s.groups[0] && groups[1] == NULL);
    stats_finish(&s, groups, &r);
    group *all = s.groups[0];
    EXPECT_EQ(all->ttft.max, 120000000);
    EXPECT_EQ(all->tpot.max, 10000000);
    EXPECT_EQ(all->e2e.max, 211000000);
    EXPECT_EQ(all->late.max, 80000000);
    EXPECT_EQ(all->longest.max, 50000000);
    EXPECT_NEAR(all->n_output_steady, 4, 1e-9);
    EXPECT_EQ(all->n_slo, 1);
    EXPECT_EQ(all->n_slo_met, 0); // 40 ms at the server, but 120 ms for the user
    r.sched_ns = 1030000000;
    stats_groups(&s, &r.plan, groups);
    stats_finish(&s, groups, &r);
    EXPECT_EQ(all->n_slo_met, 1);
    r.outcome = OUTCOME_FAILED; // a failed request misses the target
    snprintf(r.error_code, sizeof r.error_code, "http_503");
    stats_groups(&s, &r.plan, groups);
    stats_finish(&s, groups, &r);
    EXPECT_EQ(all->n_slo, 3);
    EXPECT_EQ(all->n_slo_met, 1);
    EXPECT_EQ(all->errors.entries[0].n, 1);
    EXPECT_EQ(all->n_offered, all->n_ok + all->n_failed + all->n_cut);
    stats_deinit(&s);
}

static const test_case CASES[] = {
    TEST(percentiles_are_within_half_a_percent),
    TEST(small_and_huge_values_have_buckets),
    TEST(events_do_not_depend_on_the_cuts),
    TEST(an_event_that_never_ends_is_refused),
    TEST(times_are_dates_or_seconds),
    TEST(trace_begins_at_zero),
    TEST(bad_traces_name_the_line),
    TEST(published_traces_are_read),
    TEST(gaps_have_the_mean_and_spread_asked_for),
    TEST(constant_does_not_drift),
    TEST(steps_change_the_rate_and_end),
    TEST(nothing_arrives_while_off),
    TEST(trace_times_are_scaled),
    TEST(bad_arrivals_are_refused),
    TEST(dues_come_out_in_order),
    TEST(choices_read_weights_after_the_last_equals),
    TEST(choices_are_drawn_by_weight),
    TEST(class_settings_win_over_defaults),
    TEST(a_url_with_a_password_is_refused),
    TEST(what_cannot_work_is_refused_with_its_name),
    TEST(bodies_are_json_and_repeat_with_the_seed),
    TEST(prompts_share_only_the_prefix),
    TEST(trace_lengths_are_taken_row_by_row),
    TEST(samples_are_told_by_rank),
    TEST(a_row_that_failed_or_missed_is_not_met),
    TEST(charges_are_summed_by_name),
    TEST(gaps_are_between_tokens_of_one_answer),
    TEST(chunks_of_servers_are_understood),
    TEST(errors_have_many_shapes),
    TEST(figures_count_from_the_schedule),
};
TEST_MAIN(CASES)
