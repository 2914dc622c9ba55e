/* api_params.c - see api_params.h. */
#include "api_params.h"

#include <math.h>
#include <string.h>

#include "api_constraint.h"
#include "api_tools.h"
#include "nearest.h"

/* ---- one value ---- */

bool api_json_int(const json_t *v, int64_t *out) {
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    if (d != floor(d) || fabs(d) > 9007199254740992.0) return false;
    *out = (int64_t)d;
    return true;
}

static bool fail_range(const api_reader *r, const api_field *f, const char *kind) {
    return api_fail(r->err, API_BAD_VALUE, f->name, "\"%s\" must be %s from %.12g to %.12g%s",
                    f->name, kind, f->min, f->max, f->above_min ? ", the first excluded" : "");
}

static bool read_int(const api_reader *r, const api_field *f, json_t *v, int64_t *out) {
    int64_t i;
    if (!api_json_int(v, &i) || (double)i < f->min || (double)i > f->max)
        return fail_range(r, f, "an integer");
    *out = i;
    return true;
}

static bool read_real(const api_reader *r, const api_field *f, json_t *v, double *out) {
    double d = json_number_value(v);
    if (!json_is_number(v) || !(d >= f->min && d <= f->max) || (f->above_min && d == f->min))
        return fail_range(r, f, "a number");
    *out = d;
    return true;
}

static bool read_string(const api_reader *r, const api_field *f, json_t *v, const char **out) {
    size_t n = json_string_length(v);
    if (!json_is_string(v) || n == 0 || (double)n > f->max)
        return api_fail(r->err, API_BAD_VALUE, f->name,
                        "\"%s\" must be a string of 1 to %.0f bytes", f->name, f->max);
    *out = json_string_value(v);
    return true;
}

/* Does the value equal this piece of JSON?  Only for the types that the table uses. */
static bool is_neutral(const json_t *v, const char *neutral) {
    if (neutral == NULL) return false;
    switch (json_typeof(v)) {
    case JSON_TRUE:
        return strcmp(neutral, "true") == 0;
    case JSON_FALSE:
        return strcmp(neutral, "false") == 0;
    case JSON_ARRAY:
        return strcmp(neutral, "[]") == 0 && json_array_size(v) == 0;
    case JSON_OBJECT:
        return strcmp(neutral, "{}") == 0 && json_object_size(v) == 0;
    case JSON_INTEGER:
    case JSON_REAL: {
        char *end;
        double d = strtod(neutral, &end);
        return end != neutral && *end == 0 && json_number_value(v) == d;
    }
    case JSON_STRING: {
        size_t n = json_string_length(v);
        return neutral[0] == '"' && strlen(neutral) == n + 2 &&
               memcmp(neutral + 1, json_string_value(v), n) == 0;
    }
    default:
        return false;
    }
}

static bool read_field(const api_reader *r, const api_field *f, json_t *v) {
    void *member = (char *)r->p + f->offset;
    switch (f->kind) {
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return api_fail(r->err, API_BAD_VALUE, f->name, "\"%s\" must be true or false",
                            f->name);
        *(bool *)member = json_is_true(v);
        return true;
    case FIELD_INT:
        return read_int(r, f, v, member);
    case FIELD_REAL:
        return read_real(r, f, v, member);
    case FIELD_STRING:
        return read_string(r, f, v, member);
    case FIELD_OBJECT:
        if (!json_is_object(v))
            return api_fail(r->err, API_BAD_VALUE, f->name, "\"%s\" must be an object", f->name);
        *(json_t **)member = v;
        return true;
    case FIELD_CUSTOM:
        return f->read(r, v);
    case FIELD_IGNORED:
        return true;
    case FIELD_REFUSED:
        if (is_neutral(v, f->neutral)) return true;
        return api_fail(r->err, API_UNSUPPORTED, f->name, "\"%s\" is not supported (%s)", f->name,
                        f->what);
    }
    return false;
}

/* ---- the whole request ---- */

static void set_defaults(api_params *p, api_route route) {
    *p = (api_params){.route = route,
                      .n = 1,
                      .best_of = API_UNSET,
                      .tier_class = -1,
                      .named_class = -1,
                      .max_tokens = API_UNSET,
                      .max_completion_tokens = API_UNSET,
                      .top_logprobs = API_UNSET,
                      .n_logprobs = -1,
                      .skip_specials = true,
                      .use_cache = true,
                      .parallel_calls = true,
                      .shows_reasoning = true,
                      .reasoning_max = API_UNSET,
                      .add_generation_prompt = true};
    for (int i = 0; i < SAMPLING_PARAMS; i++) p->sampling[i] = NAN;
}

static json_t *given(const api_params *p, const char *name) {
    json_t *v = json_object_get(p->root, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static bool require(const api_params *p, const char *name, api_error *err) {
    if (given(p, name) != NULL) return true;
    return api_fail(err, API_MISSING, name, "\"%s\" is required", name);
}

static bool require_input(const api_params *p, api_error *err) {
    size_t n;
    const api_field *rows = api_fields(&n);
    for (size_t i = 0; i < n; i++)
        if ((rows[i].required & p->route) != 0 && !require(p, rows[i].name, err)) return false;
    if (p->route != API_TOKENIZE) return true;
    if (given(p, "messages") != NULL && given(p, "prompt") != NULL)
        return api_fail(err, API_BAD_VALUE, "messages",
                        "\"prompt\" and \"messages\" exclude each other");
    return given(p, "messages") != NULL || require(p, "prompt", err);
}

/* Names of other servers and libraries for fields of the table. */
static const struct {
    const char *theirs, *ours;
} other_names[] = {{"max_new_tokens", "max_tokens"},
                   {"max_output_tokens", "max_tokens"},
                   {"num_predict", "max_tokens"},
                   {"min_new_tokens", "min_tokens"},
                   {"num_return_sequences", "n"},
                   {"stop_sequences", "stop"},
                   {"repeat_penalty", "repetition_penalty"},
                   {"rep_pen", "repetition_penalty"},
                   {"random_seed", "seed"},
                   {"do_sample", "temperature"}};

static const char *meant_by(const api_params *p, const char *key) {
    size_t n;
    const api_field *rows = api_fields(&n);
    nearest near = {0};
    for (size_t i = 0; i < n; i++) {
        if ((rows[i].routes & p->route) == 0) continue;
        nearest_try(&near, key, rows[i].name);
        for (size_t k = 0; k < INFERD_COUNT(other_names); k++)
            if (strcmp(other_names[k].theirs, key) == 0 &&
                strcmp(other_names[k].ours, rows[i].name) == 0)
                return rows[i].name;
    }
    return nearest_word(&near);
}

/* Finds unknown members of an object field; the row lists the known ones. */
static void find_unknown_members(api_params *p, const api_field *row, json_t *object) {
    const char *key;
    json_t *value;
    size_t n_before = strlen(row->name) + 1; // "stream_options."
    json_object_foreach(object, key, value) {
        nearest near = {0};
        bool known = false;
        for (const char *const *m = row->members; *m != NULL && !known; m++) {
            known = strcmp(*m + n_before, key) == 0;
            nearest_try(&near, key, *m + n_before);
        }
        if (known) continue;
        char path[2 * API_QUOTE_BYTES]; // a long key is cut, and its quote is shorter
        snprintf(path, sizeof path, "%s.%s", row->name, key);
        unknown_field *f = unknown_add(&p->unknown, path);
        const char *meant = nearest_word(&near);
        if (f != NULL && meant != NULL) f->meant = meant - n_before; // the whole path again
    }
}

static void find_unknown(api_params *p) {
    size_t n;
    const api_field *rows = api_fields(&n);
    const char *key;
    json_t *value;
    json_object_foreach(p->root, key, value) {
        size_t i = 0;
        while (i < n && (rows[i].name[0] != key[0] || strcmp(rows[i].name, key) != 0 ||
                         (rows[i].routes & p->route) == 0))
            i++;
        if (i < n) {
            if (rows[i].members != NULL) find_unknown_members(p, &rows[i], value);
            continue;
        }
        unknown_field *f = unknown_add(&p->unknown, key);
        if (f != NULL) f->meant = meant_by(p, key);
    }
}

/* Both names set the same limit. */
static bool merge_max_tokens(api_params *p, api_error *err) {
    if (p->max_completion_tokens == API_UNSET) return true;
    if (p->max_tokens != API_UNSET && p->max_tokens != p->max_completion_tokens)
        return api_fail(err, API_BAD_VALUE, "max_completion_tokens",
                        "\"max_tokens\" and \"max_completion_tokens\" are the same limit and "
                        "must agree");
    p->max_tokens = p->max_completion_tokens;
    return true;
}

static bool merge_logprobs(api_params *p, api_error *err) {
    if (p->route != API_CHAT) return true;
    if (p->top_logprobs > 0 && !p->logprobs_on) // 0 and API_UNSET have no effect
        return api_fail(err, API_BAD_VALUE, "top_logprobs",
                        "\"top_logprobs\" needs \"logprobs\": true");
    if (p->logprobs_on) p->n_logprobs = p->top_logprobs == API_UNSET ? 0 : p->top_logprobs;
    return true;
}

static bool check_turns(api_params *p, api_error *err) {
    if (!p->continue_final_message) return true;
    if (given(p, "add_generation_prompt") != NULL && p->add_generation_prompt)
        return api_fail(err, API_BAD_VALUE, "continue_final_message",
                        "\"continue_final_message\" and \"add_generation_prompt\" exclude each "
                        "other");
    p->add_generation_prompt = false;
    return true;
}

static bool check_lengths(api_params *p, api_error *err) {
    if (p->route == API_COMPLETION && p->max_tokens == API_UNSET) p->max_tokens = 16;
    if (p->max_tokens == 0 && !p->echo)
        return api_fail(err, API_BAD_VALUE, "max_tokens",
                        "\"max_tokens\" may be 0 only with \"echo\": true");
    if (p->max_tokens == API_UNSET || p->min_tokens <= p->max_tokens) return true;
    err->other = "max_tokens";
    return api_fail(err, API_BAD_VALUE, "min_tokens",
                    "\"min_tokens\" must be at most \"max_tokens\", %lld",
                    (long long)p->max_tokens);
}

static uint64_t n_prompts_of(const api_params *p) {
    json_t *first = json_array_get(p->prompt, 0);
    return json_is_string(first) || json_is_array(first) ? json_array_size(p->prompt) : 1;
}

static bool check_choices(const api_params *p, api_error *err) {
    uint64_t n_prompts = n_prompts_of(p);
    if (n_prompts * (uint64_t)p->n > API_CHOICES_MAX)
        return api_fail(err, API_BAD_VALUE, "n",
                        "%llu prompts times n = %lld choices are more than the limit %d",
                        (unsigned long long)n_prompts, (long long)p->n, API_CHOICES_MAX);
    if (p->best_of == API_UNSET || p->best_of == p->n) return true;
    if (p->best_of < p->n)
        return api_fail(err, API_BAD_VALUE, "best_of",
                        "\"best_of\" must not be less than \"n\", %lld", (long long)p->n);
    return api_fail(err, API_UNSUPPORTED, "best_of", "\"best_of\" above \"n\" is not supported");
}

static bool check_stream(const api_params *p, api_error *err) {
    if (!p->stream && given(p, "stream_options") != NULL)
        return api_fail(err, API_BAD_VALUE, "stream_options",
                        "\"stream_options\" needs \"stream\": true");
    if (p->stream && p->echo && p->n_logprobs >= 0)
        return api_fail(err, API_UNSUPPORTED, "echo",
                        "\"echo\" with \"logprobs\" is not supported in a stream");
    return true;
}

static bool check_together(api_params *p, api_error *err) {
    if (!check_turns(p, err) || !api_tools_check(p, err)) return false;
    if (p->route == API_TOKENIZE || p->route == API_DETOKENIZE) return true;
    return merge_max_tokens(p, err) && merge_logprobs(p, err) && check_lengths(p, err) &&
           check_choices(p, err) && check_stream(p, err) && api_constraint_check(p, err);
}

bool api_params_parse(const json_limits *limits, bytes body, json_t **root, api_error *err) {
    inferd_err why = {0};
    inferd_status s = json_in_parse(body, limits, root, &why);
    if (s == INFERD_ENOMEM)
        return api_fail(err, API_OVERLOADED, NULL, "the server is short of memory");
    if (s != INFERD_OK)
        return api_fail(err, API_BAD_JSON, NULL, "the body is not acceptable JSON: %s", why.text);
    if (json_is_object(*root)) return true;
    json_decref(*root);
    *root = NULL;
    return api_fail(err, API_BAD_JSON, NULL, "the body must be a JSON object");
}

bool api_params_read(api_route route, const json_limits *limits, bytes body, api_params *p,
                     api_error *err) {
    json_t *root = NULL;
    set_defaults(p, route);
    return api_params_parse(limits, body, &root, err) && api_params_take(route, root, p, err);
}

bool api_params_take(api_route route, json_t *root, api_params *p, api_error *err) {
    set_defaults(p, route);
    p->root = root;
    find_unknown(p); // reported beside an error, too: "promt" explains why "prompt" is missing
    if (!require_input(p, err)) return false;
    p->add_special =
        route == API_COMPLETION || (route == API_TOKENIZE && given(p, "messages") == NULL);
    api_reader r = {p, err};
    size_t n;
    const api_field *rows = api_fields(&n);
    for (size_t i = 0; i < n; i++) {
        if ((rows[i].routes & route) == 0) continue;
        json_t *v = given(p, rows[i].name);
        if (v != NULL && !read_field(&r, &rows[i], v)) return false;
    }
    return check_together(p, err);
}

void api_params_deinit(api_params *p) {
    json_decref(p->called);
    json_decref(p->tool_idx);
    json_decref(p->custom);
    json_decref(p->root);
    p->called = NULL;
    p->tool_idx = NULL;
    p->custom = NULL;
    p->root = NULL;
}

/* ---- classes and headers ---- */

static const char *const class_names[GEN_CLASSES] = {
    [GEN_SYSTEM] = "system", [GEN_HIGH] = "high", [GEN_NORMAL] = "normal", [GEN_BATCH] = "batch"};

const char *api_class_name(gen_class prio) {
    INFERD_CHECK(prio >= 0 && prio < GEN_CLASSES);
    return class_names[prio];
}

int api_class_of(const char *name, size_t n) {
    for (int i = 0; i < GEN_CLASSES; i++)
        if (strlen(class_names[i]) == n && memcmp(class_names[i], name, n) == 0) return i;
    return -1;
}

static bool read_target(const char *name, bytes v, uint32_t *out, api_error *err) {
    uint32_t ms = 0;
    bool good = v.n > 0;
    for (size_t i = 0; i < v.n && good; i++) {
        good = v.p[i] >= '0' && v.p[i] <= '9' && ms <= API_TARGET_MS_MAX / 10;
        if (good) ms = ms * 10 + (uint32_t)(v.p[i] - '0');
    }
    *out = ms;
    if (good && ms > 0 && ms <= API_TARGET_MS_MAX) return true;
    return api_fail(err, API_BAD_VALUE, name,
                    "the header %s must be a number of milliseconds, an integer from 1 to %d", name,
                    API_TARGET_MS_MAX);
}

/* One target, which has a name of ours and one of llm-d's gateways, or only the latter. */
static bool read_target_of(bytes (*header)(void *, const char *), void *ctx, const char *ours,
                           const char *theirs, uint32_t *out, api_error *err) {
    uint32_t both = 0;
    bytes v = ours == NULL ? (bytes){NULL, 0} : header(ctx, ours), w = header(ctx, theirs);
    if (v.p != NULL && !read_target(ours, v, out, err)) return false;
    if (w.p == NULL) return true;
    if (!read_target(theirs, w, &both, err)) return false;
    if (v.p != NULL && both != *out)
        return api_fail(err, API_BAD_VALUE, ours,
                        "the headers %s and %s are the same target and must agree: %u and %u", ours,
                        theirs, *out, both);
    *out = both;
    return true;
}

bool api_hints_read(bytes (*header)(void *ctx, const char *name), void *ctx, api_hints *out,
                    api_error *err) {
    *out = (api_hints){.named_class = -1};
    bytes prio = header(ctx, "x-inferd-class"), tries = header(ctx, "x-stainless-retry-count");
    bytes explain = header(ctx, "x-inferd-explain");
    char quoted[API_QUOTE_BYTES];
    out->again = tries.p != NULL && tries.n > 0 && tries.p[0] >= '1' && tries.p[0] <= '9';
    if (prio.p != NULL) {
        out->named_class = api_class_of(prio.p, prio.n);
        if (out->named_class < 0)
            return api_fail(err, API_BAD_VALUE, "x-inferd-class",
                            "the header x-inferd-class must be system, high, normal or batch, not "
                            "\"%s\"",
                            api_quote(quoted, prio.p, prio.n));
    }
    if (explain.p != NULL && (explain.n != 1 || (*explain.p != '0' && *explain.p != '1')))
        return api_fail(err, API_BAD_VALUE, "x-inferd-explain",
                        "the header x-inferd-explain must be 0 or 1, not \"%s\"",
                        api_quote(quoted, explain.p, explain.n));
    out->explain = explain.p != NULL && *explain.p == '1';
    return read_target_of(header, ctx, "x-slo-ttft-ms", "x-llm-d-slo-ttft-ms", &out->ttft_target_ms,
                          err) &&
           read_target_of(header, ctx, NULL, "x-llm-d-slo-tpot-ms", &out->tpot_target_ms, err);
}

/* ---- with a model ---- */

static bool check_below(json_t *ids, const char *name, uint32_t n_vocab, api_error *err) {
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int64_t id = 0;
        if (api_json_int(json_array_get(ids, i), &id) && id < (int64_t)n_vocab) continue;
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        return api_fail(err, API_BAD_VALUE, param, "token ids of this model are 0 to %u",
                        n_vocab - 1);
    }
    return true;
}

static bool check_prompt_ids(const api_params *p, uint32_t n_vocab, api_error *err) {
    if (!json_is_array(p->prompt) || json_is_string(json_array_get(p->prompt, 0))) return true;
    if (!json_is_array(json_array_get(p->prompt, 0)))
        return check_below(p->prompt, "prompt", n_vocab, err);
    for (size_t i = 0; i < json_array_size(p->prompt); i++) {
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (!check_below(json_array_get(p->prompt, i), param, n_vocab, err)) return false;
    }
    return true;
}

bool api_params_check(const api_params *p, uint32_t n_vocab, api_error *err) {
    if (!check_prompt_ids(p, n_vocab, err) || !check_below(p->tokens, "tokens", n_vocab, err) ||
        !check_below(p->stop_ids, "stop_token_ids", n_vocab, err))
        return false;
    const char *key;
    json_t *value;
    json_object_foreach(p->bias, key, value) {
        if (strtoll(key, NULL, 10) >= (long long)n_vocab)
            return api_fail(err, API_BAD_VALUE, "logit_bias", "token ids of this model are 0 to %u",
                            n_vocab - 1);
    }
    return true;
}

stop_set *api_take_stops(const api_params *p) {
    size_t n = json_is_string(p->stop) ? 1 : json_array_size(p->stop);
    bytes *strings = calloc(n == 0 ? 1 : n, sizeof *strings);
    if (strings == NULL) return NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *s = json_is_string(p->stop) ? p->stop : json_array_get(p->stop, i);
        strings[i] = (bytes){json_string_value(s), json_string_length(s)};
    }
    stop_set *set = stop_set_create(strings, (uint32_t)n);
    free(strings);
    return set;
}

tok_id *api_take_ids(json_t *array, size_t *n) {
    *n = json_array_size(array);
    tok_id *ids = malloc((*n == 0 ? 1 : *n) * sizeof *ids);
    for (size_t i = 0; ids != NULL && i < *n; i++) {
        int64_t id = 0;
        bool ok = api_json_int(json_array_get(array, i), &id);
        INFERD_CHECK(ok && id >= 0 && id <= INT32_MAX);
        ids[i] = (tok_id)id;
    }
    return ids;
}

logit_bias *api_take_bias(const api_params *p, size_t *n) {
    *n = json_object_size(p->bias);
    logit_bias *bias = malloc((*n == 0 ? 1 : *n) * sizeof *bias);
    if (bias == NULL) return NULL;
    size_t i = 0;
    const char *key;
    json_t *value;
    json_object_foreach(p->bias, key, value) {
        bias[i].id = (tok_id)strtol(key, NULL, 10);
        bias[i++].bias = (float)json_number_value(value);
    }
    return bias;
}
