/* test_api_params.c - bodies to checked fields: every row of the table, every kind of value. */
#include <math.h>

#include "test.h"

#include "api_params.h"
#include "inferd/buf.h"

static const json_limits limits = {
    .depth_max = 64, .structural_max = 1000000, .memory_max = 128u << 20};

static bool read_body(api_route route, const char *body, api_params *p, api_error *e) {
    *e = (api_error){0};
    return api_params_read(route, &limits, (bytes){body, strlen(body)}, p, e);
}

static const char *base_of(api_route route) {
    switch (route) {
    case API_CHAT:
        return "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]";
    case API_COMPLETION:
        return "\"model\":\"m\",\"prompt\":\"x\"";
    case API_TOKENIZE:
        return "\"model\":\"m\",\"prompt\":\"x\"";
    case API_DETOKENIZE:
        return "\"model\":\"m\",\"tokens\":[1]";
    default:
        return "";
    }
}

/* A body with the least that the route needs, and `more`. */
static bool read_with(api_route route, const char *more, api_params *p, api_error *e) {
    char body[4096];
    snprintf(body, sizeof body, "{%s%s%s}", base_of(route), more[0] == 0 ? "" : ",", more);
    return read_body(route, body, p, e);
}

static void expect_refused_as(int line, api_route route, const char *more, int status,
                              const char *code, const char *param) {
    api_params p;
    api_error e;
    bool ok = read_with(route, more, &p, &e);
    if (ok || e.status != status || strcmp(e.code == NULL ? "null" : e.code, code) != 0 ||
        strcmp(e.param, param) != 0) {
        printf("line %d: %s gave %d %s %s: %s\n", line, more, e.status,
               e.code == NULL ? "null" : e.code, e.param, e.message);
        test_failures++;
    }
    api_params_deinit(&p);
}
#define REFUSED_AS(route, more, code, param)                                                       \
    expect_refused_as(__LINE__, route, more, 400, code, param)
#define BAD(route, more, param) REFUSED_AS(route, more, "invalid_value", param)

static void expect_accepted(int line, api_route route, const char *more) {
    api_params p;
    api_error e;
    if (!read_with(route, more, &p, &e)) {
        printf("line %d: %s was refused: %s\n", line, more, e.message);
        test_failures++;
    }
    api_params_deinit(&p);
}
#define GOOD(route, more) expect_accepted(__LINE__, route, more)

/* ---- failures of lower rooms ---- */

/* Clients retry what a lost device cut, and nothing of the device's words reaches them. */
static void a_lost_device_is_503_and_to_be_retried(void) {
    api_error e = {0};
    buf body = {0};
    inferd_err err = {.status = INFERD_ELOST, .text = "an illegal memory access at 0x7f00"};
    EXPECT(!api_fail_status(&e, &err, "prompt"));
    EXPECT_EQ(e.fault, API_DEVICE_LOST);
    EXPECT_EQ(e.status, 503);
    EXPECT_EQ(e.retry_after_s, 10);
    api_error_add(&body, &e);
    EXPECT_STR(buf_cstr(&body),
               "{\"error\":{\"message\":\"the device failed; ask again\","
               "\"type\":\"unavailable_error\",\"param\":null,\"code\":\"device_lost\"}}");
    buf_deinit(&body);
    e = (api_error){0};
    err.status = INFERD_EDEVICE; // of this step only: no promise that asking again helps
    api_fail_status(&e, &err, "prompt");
    EXPECT_EQ(e.status, 500);
    EXPECT(strstr(e.message, "0x7f00") == NULL);
}

/* ---- the table and the page ---- */

static void add_routes(const api_field *f, buf *out) {
    static const char *const names[] = {"chat", "completions", "tokenize", "detokenize"};
    const char *before = "";
    for (int i = 0; i < 4; i++) {
        if ((f->routes & 1u << i) == 0) continue;
        buf_add_format(out, "%s%s", before, names[i]);
        before = ", ";
    }
}

static void add_form(const api_field *f, buf *out) {
    switch (f->kind) {
    case FIELD_BOOL:
        buf_add_str(out, "bool");
        break;
    case FIELD_INT:
        buf_add_format(out, "integer, %.12g to %.12g", f->min, f->max);
        break;
    case FIELD_REAL:
        buf_add_format(out, "number, %s %.12g to %.12g", f->above_min ? "above" : "from", f->min,
                       f->max);
        break;
    case FIELD_STRING:
        buf_add_format(out, "string, 1 to %.0f bytes", f->max);
        break;
    case FIELD_OBJECT:
        buf_add_str(out, "object");
        break;
    case FIELD_CUSTOM:
        buf_add_str(out, f->form);
        break;
    case FIELD_IGNORED:
        buf_add_str(out, "any: accepted, no effect");
        break;
    case FIELD_REFUSED:
        if (f->neutral == NULL)
            buf_add_str(out, "refused");
        else
            buf_add_format(out, "refused, except `%s`", f->neutral);
        break;
    }
}

/* The row of docs/api.md.  With INFERD_PRINT_FIELDS=1 the test prints the table for the page. */
static void describe(const api_field *f, buf *out) {
    buf_clear(out);
    buf_add_format(out, "| `%s` | ", f->name);
    add_routes(f, out);
    buf_add_str(out, " | ");
    add_form(f, out);
    buf_add_format(out, " | %s |\n", f->what);
}

static char *read_page(void) {
    FILE *file = fopen(INFERD_SOURCE_DIR "/docs/api.md", "rb");
    char *page = calloc(1, 1 << 20);
    if (file != NULL) {
        if (fread(page, 1, (1 << 20) - 1, file) == 0) page[0] = 0;
        fclose(file);
    }
    return page;
}

/* It named a code that nothing sends, and not the one that is sent instead. */
static void the_page_lists_every_error_and_no_other(void) {
    /* Those of the transport, of keys and of the admin API. */
    static const char *const others[] = {
        "invalid_api_key",      "admin_only",        "admin_not_configured",   "host_not_allowed",
        "origin_not_allowed",   "unknown_url",       "method_not_allowed",     "malformed_request",
        "request_timeout",      "request_too_large", "unsupported_media_type", "expectation_failed",
        "client_closed_request"};
    char *page = read_page(), code[64];
    char *errors = strstr(page, "| status | type | code | when |");
    bool seen[API_FAULTS] = {false};
    EXPECT(errors != NULL);
    if (errors == NULL) return;
    char *end = strstr(errors, "\n\n");
    if (end != NULL) *end = 0;
    seen[API_OK] = seen[API_BAD_JSON] = true; // no code
    for (char *row = strtok(errors, "\n"); row != NULL; row = strtok(NULL, "\n")) {
        char *cell = row; // the third, without its separator
        for (int i = 0; i < 3 && cell != NULL; i++)
            if ((cell = strchr(cell, '|')) != NULL) cell++;
        while (cell != NULL && sscanf(cell, "%*[^`|]`%63[^`]`", code) == 1) {
            bool known = false;
            for (int f = API_BAD_VALUE; f < API_FAULTS; f++) {
                char status[8];
                api_error e = {0};
                api_fail(&e, (api_fault)f, NULL, "x");
                snprintf(status, sizeof status, "%d", e.status);
                if (strcmp(e.code, code) != 0) continue;
                known = true;
                seen[f] |= strstr(row, status) != NULL && strstr(row, e.type) != NULL;
            }
            for (size_t i = 0; i < INFERD_COUNT(others); i++) known |= strcmp(others[i], code) == 0;
            if (!known) printf("nothing sends %s\n", code);
            EXPECT(known);
            cell = strchr(strchr(cell, '`') + 1, '`') + 1;
        }
    }
    for (int f = 0; f < API_FAULTS; f++) {
        if (!seen[f]) printf("docs/api.md lacks fault %d\n", f);
        EXPECT(seen[f]);
    }
    free(page);
}

static void the_page_lists_the_rows_of_the_table(void) {
    char *page = read_page();
    const char *print = getenv("INFERD_PRINT_FIELDS");
    size_t n, n_page_rows = 0;
    const api_field *f = api_fields(&n);
    buf row = {0};
    for (size_t i = 0; i < n; i++) {
        describe(&f[i], &row);
        if (print != NULL) fputs(buf_cstr(&row), stdout);
        if (strstr(page, buf_cstr(&row)) == NULL) {
            printf("docs/api.md lacks %s", buf_cstr(&row));
            test_failures++;
        }
    }
    const char *table = strstr(page, "| field | routes |");
    EXPECT(table != NULL);
    for (const char *p = table; p != NULL && (p = strstr(p, "\n| `")) != NULL; p++) n_page_rows++;
    EXPECT_EQ(n_page_rows, n);
    buf_deinit(&row);
    free(page);
}

static void no_field_stands_twice_for_a_route(void) {
    size_t n;
    const api_field *f = api_fields(&n);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            EXPECT((f[i].routes & f[k].routes) == 0 || strcmp(f[i].name, f[k].name) != 0);
}

/* ---- every field ---- */

static const char *const values[] = {"true",  "5",         "-5",    "1.5",       "\"text\"",
                                     "[1]",   "[\"a\",2]", "[]",    "{\"a\":1}", "{}",
                                     "1e300", "\"\"",      "[[1]]", "false",     "0"};

/* Whatever stands in a field, the answer is acceptance or a 400 that names the field. */
static void every_kind_of_value_in_every_field_is_answered(void) {
    size_t n;
    const api_field *f = api_fields(&n);
    int n_accepted = 0, n_refused = 0;
    for (size_t i = 0; i < n; i++)
        for (int r = 0; r < 4; r++) {
            if ((f[i].routes & 1u << r) == 0) continue;
            for (size_t k = 0; k < INFERD_COUNT(values); k++) {
                char body[512];
                const char *input = f[i].name;
                bool is_input = strcmp(input, "messages") == 0 || strcmp(input, "prompt") == 0 ||
                                strcmp(input, "tokens") == 0 || strcmp(input, "model") == 0;
                if (is_input)
                    snprintf(body, sizeof body, "{\"%s\":%s}", input, values[k]);
                else
                    snprintf(body, sizeof body, "{%s,\"%s\":%s}", base_of((api_route)(1 << r)),
                             input, values[k]);
                api_params p;
                api_error e;
                if (read_body((api_route)(1 << r), body, &p, &e)) {
                    n_accepted++;
                } else {
                    n_refused++;
                    if (e.status != 400 ||
                        (!is_input && strncmp(e.param, input, strlen(input)) != 0)) {
                        printf("%s: %d %s %s\n", body, e.status, e.param, e.message);
                        test_failures++;
                    }
                }
                api_params_deinit(&p);
            }
        }
    EXPECT(n_accepted > 100 && n_refused > 1000);
}

static void null_is_the_same_as_absent(void) {
    size_t n;
    const api_field *f = api_fields(&n);
    for (size_t i = 0; i < n; i++) {
        char more[128];
        static const char *const inputs[] = {"model", "messages", "prompt", "tokens"};
        bool is_input = false;
        for (int k = 0; k < 4; k++) is_input = is_input || strcmp(f[i].name, inputs[k]) == 0;
        if (is_input) continue;
        snprintf(more, sizeof more, "\"%s\":null", f[i].name);
        for (int r = 0; r < 4; r++)
            if (f[i].routes & 1u << r) GOOD((api_route)(1 << r), more);
    }
    api_params p;
    api_error e;
    EXPECT(!read_body(API_CHAT, "{\"model\":\"m\",\"messages\":null}", &p, &e));
    EXPECT_STR(e.code, "missing_required_parameter");
    api_params_deinit(&p);
}

static void refused_fields_are_named(void) {
    size_t n;
    const api_field *f = api_fields(&n);
    int n_seen = 0;
    for (size_t i = 0; i < n; i++) {
        if (f[i].kind != FIELD_REFUSED) continue;
        n_seen++;
        api_route route = f[i].routes & API_CHAT ? API_CHAT : API_COMPLETION;
        char more[128];
        snprintf(more, sizeof more, "\"%s\":{\"x\":[1]}", f[i].name);
        REFUSED_AS(route, more, "unsupported_parameter", f[i].name);
        if (f[i].neutral == NULL) continue;
        snprintf(more, sizeof more, "\"%s\":%s", f[i].name, f[i].neutral);
        GOOD(route, more);
    }
    EXPECT(n_seen > 40);
}

static void numbers_have_their_edges(void) {
    static const struct {
        const char *field, *good[4], *bad[4];
    } rows[] = {
        {"temperature", {"0", "2", "1e-9", "2.0"}, {"-0.1", "2.1", "1e308", "\"1\""}},
        {"top_p", {"1", "1e-12", "0.5", "1.0"}, {"0", "1.1", "-1", "true"}},
        {"min_p", {"0", "1", "0.5", "0.0"}, {"-0.01", "1.01", "[]", "\"0\""}},
        {"presence_penalty", {"-2", "2", "0", "1.5"}, {"-2.1", "2.1", "\"a\"", "false"}},
        {"repetition_penalty", {"0.01", "100", "1", "1.1"}, {"0", "-1", "1e30", "101"}},
        {"n", {"1", "128", "5.0", "2"}, {"0", "129", "1.5", "1e9"}},
        {"top_k", {"-1", "0", "1", "2147483647"}, {"-2", "2147483648", "0.5", "\"1\""}},
        {"seed", {"-1", "9223372036854775807", "3.0", "0"}, {"0.5", "\"1\"", "true", "1e30"}},
        {"priority",
         {"-2147483648", "2147483647", "0", "1.0"},
         {"-2147483649", "2147483648", "1.5", "\"1\""}},
        {"max_tokens", {"1", "2147483647", "16.0", "7"}, {"-1", "2147483648", "1e18", "\"5\""}},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        for (int k = 0; k < 4; k++) {
            char more[128];
            snprintf(more, sizeof more, "\"%s\":%s", rows[i].field, rows[i].good[k]);
            GOOD(API_CHAT, more);
            GOOD(API_COMPLETION, more);
            snprintf(more, sizeof more, "\"%s\":%s", rows[i].field, rows[i].bad[k]);
            BAD(API_CHAT, more, rows[i].field);
            BAD(API_COMPLETION, more, rows[i].field);
        }
}

static void fields_arrive(void) {
    api_params p;
    api_error e;
    EXPECT(
        read_with(API_CHAT,
                  "\"temperature\":0.5,\"top_k\":-1,\"seed\":-3,\"n\":4.0,\"stop\":[\"a\",\"b\"],"
                  "\"max_completion_tokens\":9,\"logprobs\":true,\"top_logprobs\":3,"
                  "\"service_tier\":\"flex\",\"stream\":true,"
                  "\"stream_options\":{\"include_usage\":true},\"cache_prompt\":false,"
                  "\"x\":1,\"y\":{}",
                  &p, &e));
    EXPECT_NEAR(p.sampling[SAMPLING_TEMPERATURE], 0.5, 0);
    EXPECT_NEAR(p.sampling[SAMPLING_TOP_K], -1, 0);
    EXPECT(p.has_seed && p.seed == -3);
    EXPECT_EQ(p.n, 4);
    EXPECT_EQ(p.max_tokens, 9);
    EXPECT_EQ(p.n_logprobs, 3);
    EXPECT_EQ(p.tier_class, GEN_BATCH);
    EXPECT(!p.has_keep_alive && !p.usage_details);
    EXPECT(p.stream && p.include_usage && !p.continuous_usage && !p.use_cache);
    EXPECT_EQ(p.unknown.n, 2);
    stop_set *stops = api_take_stops(&p);
    EXPECT_EQ(stop_set_n(stops), 2);
    stop_set_destroy(stops);
    api_params_deinit(&p);
}

static void defaults_are_the_documented_ones(void) {
    api_params p;
    api_error e;
    EXPECT(read_with(API_COMPLETION, "", &p, &e));
    EXPECT_EQ(p.max_tokens, 16);
    EXPECT_EQ(p.n_logprobs, -1);
    EXPECT(p.add_special && p.skip_specials && !p.stream && !p.has_seed);
    EXPECT(isnan(p.sampling[SAMPLING_TEMPERATURE])); // the model's
    api_params_deinit(&p);
    EXPECT(read_with(API_CHAT, "", &p, &e));
    EXPECT(p.max_tokens == API_UNSET);
    EXPECT(p.add_generation_prompt && !p.add_special);
    EXPECT(p.tier_class == -1 && p.named_class == -1);
    api_params_deinit(&p);
}

static void priority_is_a_class_or_a_number(void) {
    static const struct {
        const char *json;
        int prio, number;
    } rows[] = {
        {"\"priority\":\"system\"", GEN_SYSTEM, 0},
        {"\"priority\":\"high\"", GEN_HIGH, 0},
        {"\"priority\":\"normal\"", GEN_NORMAL, 0},
        {"\"priority\":\"batch\"", GEN_BATCH, 0},
        {"\"priority\":-7", -1, -7},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        EXPECT(read_with(API_CHAT, rows[i].json, &p, &e));
        EXPECT_EQ(p.named_class, rows[i].prio);
        EXPECT_EQ(p.priority, rows[i].number);
        api_params_deinit(&p);
    }
}

static void auto_asks_for_no_class(void) {
    static const struct {
        const char *json;
        int prio;
    } rows[] = {
        {"\"service_tier\":\"auto\"", -1},        {"\"service_tier\":\"default\"", GEN_NORMAL},
        {"\"service_tier\":\"flex\"", GEN_BATCH}, {"\"service_tier\":\"priority\"", GEN_HIGH},
        {"\"service_tier\":\"scale\"", GEN_HIGH}, {"\"service_tier\":\"fast\"", GEN_HIGH},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        EXPECT(read_with(API_COMPLETION, rows[i].json, &p, &e));
        EXPECT_EQ(p.tier_class, rows[i].prio);
        EXPECT_EQ(p.named_class, -1);
        api_params_deinit(&p);
    }
}

static void keep_alive_is_a_time(void) {
    static const struct {
        const char *json;
        uint64_t us;
    } rows[] = {
        {"0", 0},
        {"\"0\"", 0},
        {"30", 30000000},
        {"1.5", 1500000},
        {"\"5m\"", 300000000},
        {"\"250ms\"", 250000},
        {"\"never\"", POLICY_NEVER},
        {"-1", POLICY_NEVER},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        char more[64];
        api_params p;
        api_error e;
        snprintf(more, sizeof more, "\"keep_alive\":%s", rows[i].json);
        EXPECT(read_with(API_CHAT, more, &p, &e));
        EXPECT(p.has_keep_alive);
        EXPECT(p.keep_alive_us == rows[i].us);
        api_params_deinit(&p);
    }
    BAD(API_CHAT, "\"keep_alive\":\"soon\"", "keep_alive");
    BAD(API_CHAT, "\"keep_alive\":-2", "keep_alive");
    BAD(API_COMPLETION, "\"keep_alive\":true", "keep_alive");
    BAD(API_COMPLETION, "\"keep_alive\":[1]", "keep_alive");
    GOOD(API_COMPLETION, "\"keep_alive\":null");
}

/* ---- headers ---- */

typedef struct header_row {
    const char *name, *value;
} header_row;

static bytes find_header(void *ctx, const char *name) {
    for (const header_row *row = ctx; row->name != NULL; row++)
        if (strcmp(row->name, name) == 0) return (bytes){row->value, strlen(row->value)};
    return (bytes){NULL, 0};
}

static void headers_name_class_and_targets(void) {
    header_row rows[] = {{"x-inferd-class", "batch"},         {"x-slo-ttft-ms", "86400000"},
                         {"x-llm-d-slo-ttft-ms", "86400000"}, {"x-llm-d-slo-tpot-ms", "25"},
                         {"x-stainless-retry-count", "0"},    {NULL, NULL}};
    api_hints h;
    api_error e = {0};
    EXPECT(api_hints_read(find_header, rows, &h, &e));
    EXPECT_EQ(h.named_class, GEN_BATCH);
    EXPECT_EQ(h.ttft_target_ms, 86400000);
    EXPECT_EQ(h.tpot_target_ms, 25);
    EXPECT(!h.again);
    header_row none[] = {{"x-stainless-retry-count", "10"}, {NULL, NULL}};
    EXPECT(api_hints_read(find_header, none, &h, &e));
    EXPECT_EQ(h.named_class, -1);
    EXPECT_EQ(h.ttft_target_ms, 0);
    EXPECT_EQ(h.tpot_target_ms, 0);
    EXPECT(h.again);
    header_row theirs[] = {{"x-llm-d-slo-ttft-ms", "7"}, {NULL, NULL}};
    EXPECT(api_hints_read(find_header, theirs, &h, &e));
    EXPECT_EQ(h.ttft_target_ms, 7);
}

static void wrong_headers_are_named(void) {
    static const header_row rows[] = {
        {"x-inferd-class", ""},          {"x-inferd-class", "urgent"},
        {"x-inferd-class", "batc"},      {"x-slo-ttft-ms", "0"},
        {"x-slo-ttft-ms", ""},           {"x-slo-ttft-ms", "-1"},
        {"x-slo-ttft-ms", " 1"},         {"x-slo-ttft-ms", "1.0"},
        {"x-slo-ttft-ms", "86400001"},   {"x-slo-ttft-ms", "864000000"},
        {"x-slo-ttft-ms", "4294967297"}, {"x-llm-d-slo-ttft-ms", "a"},
        {"x-llm-d-slo-tpot-ms", "0"},    {"x-llm-d-slo-tpot-ms", "99999999999999999999"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        header_row one[] = {rows[i], {NULL, NULL}};
        api_hints h;
        api_error e = {0};
        EXPECT(!api_hints_read(find_header, one, &h, &e));
        EXPECT_EQ(e.status, 400);
        EXPECT_STR(e.param, rows[i].name);
    }
    header_row two[] = {{"x-slo-ttft-ms", "7"}, {"x-llm-d-slo-ttft-ms", "8"}, {NULL, NULL}};
    api_hints h;
    api_error e = {0};
    EXPECT(!api_hints_read(find_header, two, &h, &e));
    EXPECT(strstr(e.message, "7 and 8") != NULL);
}

static void classes_have_names(void) {
    for (int i = 0; i < GEN_CLASSES; i++) {
        const char *name = api_class_name((gen_class)i);
        EXPECT_EQ(api_class_of(name, strlen(name)), i);
    }
    EXPECT_EQ(api_class_of("highest", 7), -1);
    EXPECT_EQ(api_class_of("hig", 3), -1);
}

static void fields_that_depend_on_each_other_are_checked(void) {
    BAD(API_CHAT, "\"stream_options\":{}", "stream_options");
    GOOD(API_CHAT, "\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}");
    BAD(API_CHAT, "\"stream\":true,\"stream_options\":{\"include_usage\":1}",
        "stream_options.include_usage");
    BAD(API_CHAT, "\"top_logprobs\":1", "top_logprobs");
    BAD(API_CHAT, "\"logprobs\":true,\"top_logprobs\":21", "top_logprobs");
    BAD(API_CHAT, "\"logprobs\":1", "logprobs");
    BAD(API_COMPLETION, "\"logprobs\":true", "logprobs");
    BAD(API_CHAT, "\"max_tokens\":0", "max_tokens");
    BAD(API_COMPLETION, "\"max_tokens\":0", "max_tokens");
    GOOD(API_COMPLETION, "\"max_tokens\":0,\"echo\":true,\"logprobs\":0");
    GOOD(API_CHAT, "\"max_tokens\":5,\"max_completion_tokens\":5");
    BAD(API_CHAT, "\"max_tokens\":5,\"max_completion_tokens\":6", "max_completion_tokens");
    BAD(API_CHAT, "\"max_tokens\":5,\"min_tokens\":6", "min_tokens");
    GOOD(API_CHAT, "\"min_tokens\":6");
    BAD(API_CHAT, "\"continue_final_message\":true,\"add_generation_prompt\":true",
        "continue_final_message");
    GOOD(API_CHAT, "\"continue_final_message\":true");
    GOOD(API_COMPLETION, "\"n\":3,\"best_of\":3");
    api_params p;
    api_error e;
    EXPECT(!read_with(API_COMPLETION, "\"best_of\":0", &p, &e)); // it was said to be allowed
    EXPECT_STR(e.message, "\"best_of\" must be an integer from 1 to 128");
    api_params_deinit(&p);
    BAD(API_COMPLETION, "\"n\":3,\"best_of\":2", "best_of");
    REFUSED_AS(API_COMPLETION, "\"n\":3,\"best_of\":4", "unsupported_parameter", "best_of");
    REFUSED_AS(API_COMPLETION, "\"echo\":true,\"logprobs\":1,\"stream\":true",
               "unsupported_parameter", "echo");
    BAD(API_CHAT, "\"response_format\":{\"kind\":1}", "response_format");
    GOOD(API_CHAT, "\"response_format\":{\"type\":\"text\"}");
    REFUSED_AS(API_CHAT, "\"modalities\":[\"text\",\"audio\"]", "unsupported_parameter",
               "modalities");
    BAD(API_CHAT, "\"service_tier\":\"gold\"", "service_tier");
    BAD(API_CHAT, "\"cache_salt\":\"\"", "cache_salt");
}

/* "temprature": 0 sampled at 1.0, and nothing said so. */
static void a_misspelt_field_is_named_with_the_one_that_is_meant(void) {
    static const struct {
        api_route route;
        const char *field, *meant; // NULL: none
    } rows[] = {{API_CHAT, "temprature", "temperature"},
                {API_CHAT, "max_token", "max_tokens"},
                {API_COMPLETION, "max_completion_token", NULL}, // of chats only
                {API_COMPLETION, "repeat_penalty", "repetition_penalty"},
                {API_CHAT, "max_new_tokens", "max_tokens"},
                {API_CHAT, "Stream", "stream"},
                {API_TOKENIZE, "temperature", NULL}, // known, and not here
                {API_CHAT, "x", NULL},               // one letter is near to "n" by length only
                {API_CHAT, "some_field_of_another_server_with_a_long_name", NULL}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        char more[128];
        snprintf(more, sizeof more, "\"%s\":0", rows[i].field);
        EXPECT(read_with(rows[i].route, more, &p, &e));
        EXPECT_EQ(p.unknown.n, 1);
        EXPECT_STR(p.unknown.named[0].name, rows[i].field);
        const char *meant = p.unknown.named[0].meant;
        EXPECT_STR(meant == NULL ? "-" : meant, rows[i].meant == NULL ? "-" : rows[i].meant);
        api_params_deinit(&p);
    }
    api_params p;
    api_error e; // beside an error: it is what the error comes from
    EXPECT(!read_body(API_COMPLETION, "{\"model\":\"m\",\"promt\":\"a\"}", &p, &e));
    EXPECT_STR(e.code, "missing_required_parameter");
    EXPECT_STR(p.unknown.named[0].meant, "prompt");
    api_params_deinit(&p);
}

/* "include_usge": true, and the stream had no usage and no word about it. */
static void members_of_a_field_are_named_too(void) {
    static const struct {
        const char *field;
        const char *name, *meant; // NULL: none is told
    } rows[] = {
        {"\"stream_options\":{\"include_usge\":true}", "stream_options.include_usge",
         "stream_options.include_usage"},
        {"\"stream_options\":{\"chunk\":1}", "stream_options.chunk", NULL},
        {"\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":true,"
         "\"continuous_usage_stats\":false}",
         NULL, NULL},
        {"\"stream_options\":null", NULL, NULL},
        {"\"response_format\":{\"type\":\"text\",\"strct\":true}", "response_format.strct",
         "response_format.strict"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},"
         "\"x\":1}}",
         "response_format.json_schema.x", NULL},
        {"\"structured_outputs\":{\"regex\":\"a\",\"jsn\":1}", "structured_outputs.jsn",
         "structured_outputs.json"},
        {"\"response_format\":{\"type\":\"text\"}", NULL, NULL},
        // members of any name
        {"\"metadata\":{\"include_usge\":1}", NULL, NULL},
        {"\"chat_template_kwargs\":{\"enable_thinking\":false}", NULL, NULL},
        {"\"logit_bias\":{\"1\":1}", NULL, NULL},
        {"\"prediction\":{\"type\":\"content\",\"content\":\"x\"}", NULL, NULL},
        {"\"tools\":[{\"function\":{\"name\":\"f\"},\"kind\":1}]", NULL, NULL},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        api_params p;
        api_error e;
        char more[256];
        snprintf(more, sizeof more, "\"stream\":true,%s", rows[i].field);
        EXPECT(read_with(API_CHAT, more, &p, &e));
        EXPECT_EQ(p.unknown.n, rows[i].name != NULL);
        if (p.unknown.n == 1 && rows[i].name != NULL) {
            const char *meant = p.unknown.named[0].meant;
            EXPECT_STR(p.unknown.named[0].name, rows[i].name);
            EXPECT_STR(meant == NULL ? "-" : meant, rows[i].meant == NULL ? "-" : rows[i].meant);
        }
        api_params_deinit(&p);
    }
    api_params p;
    api_error e;
    char more[3100] = "\"stream\":true,\"stream_options\":{\""; // a key of any length
    size_t n = strlen(more);
    memset(more + n, 'q', 3000);
    strcpy(more + n + 3000, "\":1}");
    EXPECT(read_with(API_CHAT, more, &p, &e));
    EXPECT_EQ(p.unknown.n, 1);
    EXPECT(strncmp(p.unknown.named[0].name, "stream_options.qqq", 18) == 0);
    EXPECT_EQ(strlen(p.unknown.named[0].name), 64 + 3);
    api_params_deinit(&p);
    // of a field that is refused, beside the error
    EXPECT(!read_with(API_CHAT, "\"stream_options\":{\"include_usge\":true}", &p, &e));
    EXPECT_STR(p.unknown.named[0].name, "stream_options.include_usge");
    api_params_deinit(&p);
    EXPECT(!read_with(API_CHAT, "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}",
                      &p, &e)); // the error says it
    EXPECT_EQ(p.unknown.n, 0);
    api_params_deinit(&p);
    EXPECT(!read_with(API_CHAT, "\"stream\":true,\"stream_options\":[1]", &p, &e));
    EXPECT_EQ(p.unknown.n, 0);
    api_params_deinit(&p);
}

/* Clients send them with every request, also where they mean nothing: "user": 123, tools: []. */
static void what_asks_for_nothing_is_accepted(void) {
    size_t n;
    const api_field *f = api_fields(&n);
    int n_seen = 0;
    for (size_t i = 0; i < n; i++) {
        if (f[i].kind != FIELD_IGNORED) continue;
        n_seen++;
        for (int r = 0; r < 4; r++)
            for (size_t k = 0; k < INFERD_COUNT(values) && (f[i].routes & 1u << r) != 0; k++) {
                char more[128];
                snprintf(more, sizeof more, "\"%s\":%s", f[i].name, values[k]);
                GOOD((api_route)(1 << r), more);
            }
    }
    EXPECT(n_seen > 8);
    GOOD(API_CHAT, "\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":true");
    GOOD(API_CHAT, "\"functions\":[],\"function_call\":\"auto\"");
    GOOD(API_CHAT, "\"tool_choice\":\"none\",\"function_call\":\"none\"");
    GOOD(API_TOKENIZE, "\"tools\":[]");
    GOOD(API_CHAT, "\"options\":{},\"documents\":[],\"vllm_xargs\":{}");
    GOOD(API_CHAT, "\"top_logprobs\":0");
    GOOD(API_CHAT, "\"top_logprobs\":0,\"logprobs\":false");
}

/* Tools that must not be called are left out of the prompt. */
static void tools_and_their_choice(void) {
#define TOOL                                                                                       \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":\"g-1\","      \
    "\"parameters\":{}}}]"
#define CHOOSES(field, kind, shown, n_called)                                                      \
    do {                                                                                           \
        api_params p;                                                                              \
        api_error e;                                                                               \
        EXPECT(read_with(API_CHAT, field, &p, &e));                                                \
        EXPECT_EQ(p.choice, kind);                                                                 \
        EXPECT_EQ(p.tools != NULL, shown);                                                         \
        EXPECT_EQ(json_array_size(p.called), n_called);                                            \
        api_params_deinit(&p);                                                                     \
    } while (0)
    CHOOSES("\"tools\":[]", TOOLS_NONE, false, 0);
    CHOOSES("\"tools\":" TOOL, TOOLS_AUTO, true, 2);
    CHOOSES("\"tools\":" TOOL ",\"tool_choice\":\"none\"", TOOLS_NONE, false, 0);
    CHOOSES("\"tools\":" TOOL ",\"tool_choice\":\"required\"", TOOLS_REQUIRED, true, 2);
    CHOOSES("\"tools\":" TOOL ",\"tool_choice\":\"any\"", TOOLS_REQUIRED, true, 2);
    CHOOSES("\"tools\":" TOOL
            ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g-1\"}}",
            TOOLS_REQUIRED, true, 1);
    CHOOSES("\"tools\":" TOOL ",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}",
            TOOLS_REQUIRED, true, 1);
    CHOOSES("\"tools\":" TOOL
            ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
            "\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}}",
            TOOLS_AUTO, true, 1);
#undef CHOOSES
    GOOD(API_CHAT, "\"functions\":[{\"name\":\"f\"}],\"function_call\":\"none\"");
    GOOD(API_TOKENIZE, "\"tools\":" TOOL);
    REFUSED_AS(API_CHAT, "\"tools\":[{\"type\":\"web_search\"}]", "unsupported_parameter",
               "tools[0].type");
    BAD(API_CHAT, "\"tool_choice\":\"required\"", "tool_choice");
    BAD(API_CHAT, "\"tools\":" TOOL ",\"tool_choice\":\"maybe\"", "tool_choice");
    BAD(API_CHAT,
        "\"tools\":" TOOL ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}",
        "tool_choice.function.name");
    BAD(API_CHAT, "\"tools\":{}", "tools");
    BAD(API_CHAT, "\"tools\":[1]", "tools[0]");
    BAD(API_CHAT, "\"tools\":[{\"function\":{\"name\":\"two words\"}}]", "tools[0].function.name");
    BAD(API_CHAT, "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
        "tools[0].function.parameters");
    BAD(API_CHAT, "\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":1}}]",
        "tools[0].function.strict");
#undef TOOL
}

#define FORMAT(more)  "\"response_format\":{\"type\":" more "}"
#define OUTPUTS(more) "\"structured_outputs\":{" more "}"

/* The source arrives with the path that an error of the compiler names. */
static void each_constraint_has_its_source_and_place(void) {
    static const struct {
        const char *more;
        grammar_kind kind;
        const char *param;
        bool strict, compact, any_order, as_text;
    } rows[] = {
        {FORMAT("\"text\""), GRAMMAR_NONE, NULL},
        {"\"grammar\":\"\"", GRAMMAR_NONE, NULL},
        {FORMAT("\"json_object\""), GRAMMAR_OBJECT, "response_format"},
        {FORMAT("\"json_object\",\"schema\":{}"), GRAMMAR_SCHEMA, "response_format.schema"},
        {FORMAT("\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{}}"), GRAMMAR_SCHEMA,
         "response_format.json_schema.schema"},
        {FORMAT("\"json_schema\",\"json_schema\":{\"strict\":true,\"schema\":{\"a\":1}}"),
         GRAMMAR_SCHEMA, "response_format.json_schema.schema", .strict = true},
        {FORMAT("\"json_schema\",\"schema\":{},\"strict\":true,\"name\":\"n\""), GRAMMAR_SCHEMA,
         "response_format.schema", .strict = true},
        {FORMAT("\"structural_tag\",\"structures\":[{}],\"triggers\":[\"<\"]"), GRAMMAR_TAGS,
         "response_format"},
        {FORMAT("\"structural_tag\",\"format\":{}"), GRAMMAR_TAGS, "response_format"},
        {OUTPUTS("\"json\":{}"), GRAMMAR_SCHEMA, "structured_outputs.json"},
        {OUTPUTS("\"json\":\"{}\",\"disable_any_whitespace\":true"), GRAMMAR_SCHEMA,
         "structured_outputs.json", .compact = true, .as_text = true},
        {OUTPUTS("\"json\":{},\"any_order\":true"), GRAMMAR_SCHEMA, "structured_outputs.json",
         .any_order = true},
        {OUTPUTS("\"regex\":\"a+\",\"json\":null"), GRAMMAR_REGEX, "structured_outputs.regex",
         .as_text = true},
        {OUTPUTS("\"choice\":[\"a\",\"b\"]"), GRAMMAR_CHOICE, "structured_outputs.choice"},
        {OUTPUTS("\"grammar\":\"x\",\"json_object\":false"), GRAMMAR_GBNF,
         "structured_outputs.grammar", .as_text = true},
        {OUTPUTS("\"json_object\":true"), GRAMMAR_OBJECT, "structured_outputs.json_object"},
        {OUTPUTS("\"structural_tag\":\"{}\""), GRAMMAR_TAGS, "structured_outputs.structural_tag",
         .as_text = true},
        {"\"guided_json\":{}", GRAMMAR_SCHEMA, "guided_json"},
        {"\"guided_json\":\"{}\"", GRAMMAR_SCHEMA, "guided_json", .as_text = true},
        {"\"guided_regex\":\"a\"", GRAMMAR_REGEX, "guided_regex", .as_text = true},
        {"\"guided_choice\":[\"a\"]", GRAMMAR_CHOICE, "guided_choice"},
        {"\"guided_grammar\":\"a\"", GRAMMAR_GBNF, "guided_grammar", .as_text = true},
        {"\"json_schema\":{}", GRAMMAR_SCHEMA, "json_schema"},
        {"\"grammar\":\"a\"", GRAMMAR_GBNF, "grammar", .as_text = true},
        {"\"regex\":\"a\"", GRAMMAR_REGEX, "regex", .as_text = true},
        {"\"ebnf\":\"a\"", GRAMMAR_GBNF, "ebnf", .as_text = true},
        {"\"structural_tag\":{}", GRAMMAR_TAGS, "structural_tag"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        for (int r = 0; r < 2; r++) {
            api_params p;
            api_error e;
            EXPECT(read_with(r == 0 ? API_CHAT : API_COMPLETION, rows[i].more, &p, &e));
            const grammar_source *s = &p.constraint;
            if (s->kind != rows[i].kind) printf("%s\n", rows[i].more);
            EXPECT_EQ(s->kind, rows[i].kind);
            EXPECT_STR(p.constraint_param == NULL ? "-" : p.constraint_param,
                       rows[i].param == NULL ? "-" : rows[i].param);
            EXPECT_EQ(s->strict, rows[i].strict);
            EXPECT_EQ(s->compact, rows[i].compact);
            EXPECT_EQ(s->any_order, rows[i].any_order);
            EXPECT_EQ(s->text.n > 0, rows[i].as_text);
            EXPECT_EQ(p.unknown.n, 0);
            api_params_deinit(&p);
        }
}

static void a_constraint_of_another_form_is_named(void) {
    BAD(API_CHAT, FORMAT("1"), "response_format");
    BAD(API_CHAT, "\"response_format\":\"json\"", "response_format");
    REFUSED_AS(API_CHAT, FORMAT("\"xml\""), "unsupported_parameter", "response_format.type");
    REFUSED_AS(API_CHAT, FORMAT("\"json_schema\""), "missing_required_parameter",
               "response_format.json_schema");
    REFUSED_AS(API_CHAT, FORMAT("\"json_schema\",\"json_schema\":{\"name\":\"x\"}"),
               "missing_required_parameter", "response_format.json_schema.schema");
    BAD(API_CHAT, FORMAT("\"json_schema\",\"json_schema\":{\"schema\":[]}"),
        "response_format.json_schema.schema");
    BAD(API_CHAT, FORMAT("\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":1}"),
        "response_format.json_schema.strict");
    BAD(API_CHAT, FORMAT("\"json_schema\",\"json_schema\":{\"schema\":{}},\"schema\":{}"),
        "response_format.schema");
    BAD(API_CHAT, FORMAT("\"json_schema\",\"json_schema\":7"), "response_format.json_schema");
    /* It would be ignored in silence. */
    BAD(API_CHAT, FORMAT("\"text\",\"json_schema\":{\"schema\":{}}"),
        "response_format.json_schema");
    BAD(API_CHAT, FORMAT("\"json_object\",\"json_schema\":{\"schema\":{}}"),
        "response_format.json_schema");
    BAD(API_CHAT, FORMAT("\"structural_tag\""), "response_format.structures");
    BAD(API_CHAT, FORMAT("\"structural_tag\",\"structures\":[{}]"), "response_format.triggers");
    BAD(API_CHAT, OUTPUTS(""), "structured_outputs");
    BAD(API_CHAT, OUTPUTS("\"json\":null,\"json_object\":false"), "structured_outputs");
    BAD(API_CHAT, OUTPUTS("\"json\":[1]"), "structured_outputs.json");
    BAD(API_CHAT, OUTPUTS("\"choice\":[]"), "structured_outputs.choice");
    BAD(API_CHAT, OUTPUTS("\"choice\":[\"a\",1]"), "structured_outputs.choice");
    BAD(API_CHAT, OUTPUTS("\"regex\":\"\""), "structured_outputs.regex");
    BAD(API_CHAT, OUTPUTS("\"json_object\":1"), "structured_outputs.json_object");
    REFUSED_AS(API_CHAT, OUTPUTS("\"json\":{},\"whitespace_pattern\":\" \""),
               "unsupported_parameter", "structured_outputs.whitespace_pattern");
    REFUSED_AS(API_CHAT, OUTPUTS("\"json\":{},\"disable_additional_properties\":true"),
               "unsupported_parameter", "structured_outputs.disable_additional_properties");
    GOOD(API_CHAT, OUTPUTS("\"json\":{},\"disable_additional_properties\":false,"
                           "\"disable_fallback\":true"));
    BAD(API_CHAT, "\"guided_choice\":\"a\"", "guided_choice");
    BAD(API_CHAT, "\"guided_json\":\"\"", "guided_json");
}

/* An answer can follow one of them; a stop string could cut it. */
static void a_request_has_one_constraint_and_nothing_that_cuts_it(void) {
    api_params p;
    api_error e;
    BAD(API_CHAT, OUTPUTS("\"regex\":\"a\",\"json\":{}"), "structured_outputs.regex");
    BAD(API_CHAT, "\"guided_json\":{},\"guided_regex\":\"a\"", "guided_regex");
    EXPECT(!read_with(API_CHAT, FORMAT("\"json_object\"") ",\"grammar\":\"a\"", &p, &e));
    EXPECT_STR(e.message,
               "\"response_format\" and \"grammar\" both constrain the output; a request "
               "can have one of them");
    EXPECT_STR(e.param, "grammar");
    api_params_deinit(&p);
    GOOD(API_CHAT, FORMAT("\"text\"") ",\"guided_regex\":\"a\"");
    BAD(API_CHAT, FORMAT("\"json_object\"") ",\"stop\":\"}\"", "stop");
    BAD(API_CHAT, "\"guided_regex\":\"a\",\"stop\":[\"}\"]", "stop");
    BAD(API_CHAT, "\"regex\":\"a\",\"stop_token_ids\":[1]", "stop_token_ids");
    GOOD(API_CHAT, "\"regex\":\"a\",\"stop_token_ids\":[],\"stop\":[]");
    GOOD(API_CHAT, FORMAT("\"text\"") ",\"stop\":\"}\"");
    BAD(API_COMPLETION, "\"regex\":\"a\",\"max_tokens\":0,\"echo\":true", "max_tokens");
    GOOD(API_COMPLETION, "\"regex\":\"a\",\"min_tokens\":5,\"ignore_eos\":true,\"n\":3,"
                         "\"echo\":true,\"logprobs\":2");
    GOOD(API_CHAT, "\"grammar_lazy\":false,\"grammar_triggers\":[],"
                   "\"guided_decoding_backend\":\"xgrammar\"");
}
#undef FORMAT
#undef OUTPUTS

static void stops_and_biases_are_bounded(void) {
    BAD(API_CHAT, "\"stop\":\"\"", "stop");
    BAD(API_CHAT, "\"stop\":[\"a\",\"\"]", "stop[1]");
    BAD(API_CHAT, "\"stop\":[1]", "stop[0]");
    GOOD(API_CHAT, "\"stop\":[]");
    BAD(API_CHAT,
        "\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
        "\"a\",\"a\",\"a\",\"a\"]",
        "stop");
    static const char *const keys[] = {"abc", "-1", "1.5",        " 1",
                                       "01",  "",   "2147483648", "18446744073709551616"};
    for (size_t i = 0; i < INFERD_COUNT(keys); i++) {
        char more[128];
        snprintf(more, sizeof more, "\"logit_bias\":{\"%s\":1}", keys[i]);
        BAD(API_CHAT, more, "logit_bias");
    }
    BAD(API_CHAT, "\"logit_bias\":{\"1\":100.1}", "logit_bias");
    BAD(API_CHAT, "\"logit_bias\":{\"1\":\"1\"}", "logit_bias");
    GOOD(API_CHAT, "\"logit_bias\":{\"1\":-100,\"2\":100}");
    BAD(API_CHAT, "\"stop_token_ids\":[1,-1]", "stop_token_ids[1]");
}

static void ids_must_be_below_the_vocabulary(void) {
    static const struct {
        api_route route;
        const char *more, *param;
    } rows[] = {{API_CHAT, "\"stop_token_ids\":[5,10]", "stop_token_ids[1]"},
                {API_CHAT, "\"logit_bias\":{\"10\":1}", "logit_bias"}};
    api_params p;
    api_error e;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        EXPECT(read_with(rows[i].route, rows[i].more, &p, &e));
        EXPECT(!api_params_check(&p, 10, &e));
        EXPECT_STR(e.param, rows[i].param);
        api_params_deinit(&p);
        EXPECT(read_with(rows[i].route, rows[i].more, &p, &e));
        EXPECT(api_params_check(&p, 11, &e));
        api_params_deinit(&p);
    }
    EXPECT(read_body(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[[1],[2,10]]}", &p, &e));
    EXPECT(!api_params_check(&p, 10, &e));
    EXPECT_STR(e.param, "prompt[1][1]");
    api_params_deinit(&p);
}

/* ---- inputs ---- */

static void expect_body(int line, api_route route, const char *body, const char *code,
                        const char *param) {
    api_params p;
    api_error e;
    bool ok = read_body(route, body, &p, &e);
    if (code == NULL ? !ok
                     : ok || e.status != 400 || strcmp(e.param, param) != 0 ||
                           strcmp(e.code == NULL ? "null" : e.code, code) != 0) {
        printf("line %d: %s gave %s %s: %s\n", line, body, e.code == NULL ? "null" : e.code,
               e.param, e.message);
        test_failures++;
    }
    api_params_deinit(&p);
}
#define BODY(route, body, code, param) expect_body(__LINE__, route, body, code, param)

static void prompts_have_four_forms(void) {
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":\"a\"}", NULL, "");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"]}", NULL, "");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[1,2.0]}", NULL, "");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[[1],[2]]}", NULL, "");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":\"\"}", "invalid_value", "prompt");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[]}", "invalid_value", "prompt");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[\"a\",\"\"]}", "invalid_value", "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[\"a\",1]}", "invalid_value", "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[[1],\"a\"]}", "invalid_value", "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[[1],[]]}", "invalid_value", "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[1,-1]}", "invalid_value", "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[1,1.5]}", "invalid_value", "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[1,2147483648]}", "invalid_value",
         "prompt[1]");
    BODY(API_COMPLETION, "{\"model\":\"m\",\"prompt\":[[1],[2]],\"n\":65}", "invalid_value", "n");
    BODY(API_COMPLETION, "{\"prompt\":\"a\"}", NULL, ""); // if one model is served
    BODY(API_COMPLETION, "{\"model\":\"m\"}", "missing_required_parameter", "prompt");
    BODY(API_TOKENIZE, "{\"prompt\":\"a\"}", NULL, "");
    BODY(API_TOKENIZE, "{\"prompt\":[\"a\"]}", "invalid_value", "prompt");
    BODY(API_TOKENIZE, "{\"prompt\":\"a\",\"messages\":[]}", "invalid_value", "messages");
    BODY(API_TOKENIZE, "{}", "missing_required_parameter", "prompt");
}

static void messages_are_checked_by_role(void) {
#define M(text) "{\"model\":\"m\",\"messages\":" text "}"
    BODY(API_CHAT, M("[]"), "invalid_value", "messages");
    BODY(API_CHAT, M("\"a\""), "invalid_value", "messages");
    BODY(API_CHAT, M("[1]"), "invalid_value", "messages[0]");
    BODY(API_CHAT, M("[{\"content\":\"a\"}]"), "missing_required_parameter", "messages[0].role");
    BODY(API_CHAT, M("[{\"role\":\"boss\",\"content\":\"a\"}]"), "invalid_value",
         "messages[0].role");
    BODY(API_CHAT, M("[{\"role\":1,\"content\":\"a\"}]"), "invalid_value", "messages[0].role");
    BODY(API_CHAT, M("[{\"role\":\"user\"}]"), "missing_required_parameter", "messages[0].content");
    BODY(API_CHAT, M("[{\"role\":\"user\",\"content\":null}]"), "missing_required_parameter",
         "messages[0].content");
    BODY(API_CHAT, M("[{\"role\":\"user\",\"content\":7}]"), "invalid_value",
         "messages[0].content");
    BODY(API_CHAT, M("[{\"role\":\"user\",\"content\":[]}]"), "invalid_value",
         "messages[0].content");
    BODY(API_CHAT, M("[{\"role\":\"user\",\"content\":\"\"}]"), NULL, "");
    BODY(API_CHAT, M("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]"),
         NULL, "");
    BODY(API_CHAT,
         M("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
           "\"http://169.254.169.254/\"}}]}]"),
         "unsupported_parameter", "messages[0].content[0].type");
    BODY(API_CHAT, M("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"), "invalid_value",
         "messages[0].content[0].text");
    BODY(API_CHAT, M("[{\"role\":\"tool\",\"content\":\"a\"}]"), "missing_required_parameter",
         "messages[0].tool_call_id");
    BODY(API_CHAT,
         M("[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":"
           "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]"),
         NULL, "");
    BODY(API_CHAT,
         M("[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
           "\"f\",\"arguments\":{}}}]}]"),
         "invalid_value", "messages[0].tool_calls[0].function");
#undef M
    api_params p;
    api_error e;
    EXPECT(read_body(API_CHAT,
                     "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":\"a\"}]}",
                     &p, &e));
    EXPECT_STR(json_string_value(json_object_get(json_array_get(p.messages, 0), "role")), "system");
    api_params_deinit(&p);
}

static void what_is_not_json_has_no_code(void) {
    static const char *const bodies[] = {"",
                                         " ",
                                         "null",
                                         "1",
                                         "\"x\"",
                                         "[]",
                                         "true",
                                         "{",
                                         "{}x",
                                         "{\"model\":\"a\",\"model\":\"b\"}",
                                         "{\"a\":NaN}",
                                         "{\"a\":\"\\u0000\"}",
                                         "{\"a\":\"\xff\"}"};
    for (size_t i = 0; i < INFERD_COUNT(bodies); i++) BODY(API_CHAT, bodies[i], "null", "");
}

static void messages_never_repeat_much_of_a_value(void) {
    char body[3000], word[2000];
    memset(word, 'q', sizeof word);
    word[sizeof word - 1] = 0;
    snprintf(body, sizeof body,
             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"%s\"}]}]}",
             word);
    api_params p;
    api_error e;
    EXPECT(!read_body(API_CHAT, body, &p, &e));
    word[65] = 0;
    EXPECT(strstr(e.message, word) == NULL);
    word[60] = 0;
    EXPECT(strstr(e.message, word) != NULL);
    api_params_deinit(&p);
}

static const test_case cases[] = {
    TEST(a_lost_device_is_503_and_to_be_retried),
    TEST(the_page_lists_the_rows_of_the_table),
    TEST(no_field_stands_twice_for_a_route),
    TEST(every_kind_of_value_in_every_field_is_answered),
    TEST(null_is_the_same_as_absent),
    TEST(refused_fields_are_named),
    TEST(numbers_have_their_edges),
    TEST(fields_arrive),
    TEST(defaults_are_the_documented_ones),
    TEST(priority_is_a_class_or_a_number),
    TEST(auto_asks_for_no_class),
    TEST(keep_alive_is_a_time),
    TEST(headers_name_class_and_targets),
    TEST(wrong_headers_are_named),
    TEST(classes_have_names),
    TEST(fields_that_depend_on_each_other_are_checked),
    TEST(a_misspelt_field_is_named_with_the_one_that_is_meant),
    TEST(members_of_a_field_are_named_too),
    TEST(what_asks_for_nothing_is_accepted),
    TEST(tools_and_their_choice),
    TEST(each_constraint_has_its_source_and_place),
    TEST(a_constraint_of_another_form_is_named),
    TEST(a_request_has_one_constraint_and_nothing_that_cuts_it),
    TEST(stops_and_biases_are_bounded),
    TEST(ids_must_be_below_the_vocabulary),
    TEST(prompts_have_four_forms),
    TEST(messages_are_checked_by_role),
    TEST(the_page_lists_every_error_and_no_other),
    TEST(what_is_not_json_has_no_code),
    TEST(messages_never_repeat_much_of_a_value),
};

int main(int argc, char **argv) {
    json_in_init();
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
