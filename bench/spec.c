/* spec.c - the table of all settings; see spec.h.  Values: spec_value.c; files: spec_file.c. */
#include "spec.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "spec_value.h"
#include "utf8.h"

typedef struct setter {
    const char *key, *arg; // arg NULL: a switch
    inferd_status (*run)(bench_spec *spec, const char *value, inferd_err *err);
    inferd_status (*prio)(bench_class *c, const char *value, inferd_err *err);
    const char *help;
} setter;

/* ---- settings of the run ---- */

static inferd_status set_url(bench_spec *spec, const char *value, inferd_err *err) {
    if (strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" does not begin with http:// or https://",
                           value);
    const char *host = strstr(value, "//") + 2; // the value is not repeated: it has a secret
    if (memchr(host, '@', strcspn(host, "/?#")) != NULL)
        return inferd_fail(err, INFERD_EINVAL,
                           "a user name or password in the URL would be in the reports; send it as "
                           "--header \"Authorization: Basic ...\"");
    inferd_status s = value_text(&spec->url, value, err);
    if (s != INFERD_OK) return s;
    size_t n = strlen(spec->url);
    while (n > 0 && spec->url[n - 1] == '/') n--;
    if (n > 3 && memcmp(spec->url + n - 3, "/v1", 3) == 0) n -= 3;
    spec->url[n] = 0;
    return INFERD_OK;
}
static inferd_status set_duration(bench_spec *spec, const char *value, inferd_err *err) {
    return value_seconds(&spec->duration_s, value, err);
}
static inferd_status set_timeout(bench_spec *spec, const char *value, inferd_err *err) {
    return value_seconds(&spec->timeout_s, value, err);
}
static inferd_status set_drain(bench_spec *spec, const char *value, inferd_err *err) {
    spec->has_drain = true;
    return value_seconds(&spec->drain_s, value, err);
}
static inferd_status set_warmup(bench_spec *spec, const char *value, inferd_err *err) {
    return value_u32(&spec->n_warmup, value, 0, 1000000, err);
}
static inferd_status set_skip_requests(bench_spec *spec, const char *value, inferd_err *err) {
    return value_u32(&spec->n_skip, value, 0, 1000000, err);
}

static inferd_status set_skip(bench_spec *spec, const char *value, inferd_err *err) {
    return value_seconds(&spec->skip_s, value, err);
}
static inferd_status set_inflight(bench_spec *spec, const char *value, inferd_err *err) {
    return value_u32(&spec->inflight_max, value, 1, ARRIVALS_STREAMS_MAX, err);
}
static inferd_status set_seed(bench_spec *spec, const char *value, inferd_err *err) {
    inferd_status s = value_u64(&spec->seed, value, err);
    if (s == INFERD_OK && spec->seed > INT64_MAX)
        s = inferd_fail(err, INFERD_EINVAL, "%s is too great", value);
    return s;
}
static inferd_status set_header(bench_spec *spec, const char *value, inferd_err *err) {
    if (strchr(value, ':') == NULL)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is not of the form NAME: VALUE", value);
    return value_choice_add(&spec->headers, value, strlen(value), 1, err);
}
static inferd_status set_no_reuse(bench_spec *spec, const char *value, inferd_err *err) {
    return value_bool(&spec->forbid_reuse, value, err);
}
static inferd_status set_json(bench_spec *spec, const char *value, inferd_err *err) {
    return value_text(&spec->json_path, value, err);
}
static inferd_status set_csv(bench_spec *spec, const char *value, inferd_err *err) {
    return value_text(&spec->csv_path, value, err);
}
static inferd_status set_html(bench_spec *spec, const char *value, inferd_err *err) {
    return value_text(&spec->html_path, value, err);
}
static inferd_status set_gap(bench_spec *spec, const char *value, inferd_err *err) {
    return value_number(&spec->gap_ms, value, 0, 1e9, err);
}
static inferd_status set_progress(bench_spec *spec, const char *value, inferd_err *err) {
    bool is_on;
    inferd_status s = value_bool(&is_on, value, err);
    spec->progress = is_on ? PROGRESS_ON : PROGRESS_OFF;
    return s;
}
static inferd_status set_quiet(bench_spec *spec, const char *value, inferd_err *err) {
    return value_bool(&spec->quiet, value, err);
}

/* ---- settings of a class ---- */

static inferd_status set_name(bench_class *c, const char *value, inferd_err *err) {
    return value_text(&c->name, value, err);
}
static inferd_status set_arrivals(bench_class *c, const char *value, inferd_err *err) {
    return arrivals_parse(&c->arrivals, value, err);
}
static inferd_status set_start(bench_class *c, const char *value, inferd_err *err) {
    return value_seconds(&c->start_s, value, err);
}
static inferd_status set_requests(bench_class *c, const char *value, inferd_err *err) {
    return value_u64(&c->n_requests, value, err);
}
static inferd_status set_trace(bench_class *c, const char *value, inferd_err *err) {
    trace_deinit(&c->tr);
    return trace_read(&c->tr, value, err);
}
static inferd_status set_speed(bench_class *c, const char *value, inferd_err *err) {
    return value_number(&c->trace_speed, value, 1e-6, 1e6, err);
}
static inferd_status set_model(bench_class *c, const char *value, inferd_err *err) {
    return value_choices(&c->models, value, err);
}
static inferd_status set_key(bench_class *c, const char *value, inferd_err *err) {
    return value_keys(&c->keys, value, err);
}
static inferd_status set_priority(bench_class *c, const char *value, inferd_err *err) {
    inferd_status s = value_choices(&c->priorities, value, err);
    for (size_t i = 0; s == INFERD_OK && i < c->priorities.n; i++) {
        char *end;
        const char *text = c->priorities.items[i].text;
        errno = 0;
        strtoll(text, &end, 10);
        if (errno != 0 || *end != 0 || (*text != '-' && (*text < '0' || *text > '9')))
            s = inferd_fail(err, INFERD_EINVAL, "priority \"%s\" is not an integer", text);
    }
    return s;
}
static inferd_status set_tier(bench_class *c, const char *value, inferd_err *err) {
    return value_choices(&c->tiers, value, err);
}
static inferd_status set_endpoint(bench_class *c, const char *value, inferd_err *err) {
    c->is_chat = strcmp(value, "chat") == 0;
    if (c->is_chat || strcmp(value, "completions") == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "\"%s\" is neither completions nor chat", value);
}
static inferd_status set_prompt(bench_class *c, const char *value, inferd_err *err) {
    return value_length(&c->prompt, value, err);
}
static inferd_status set_output(bench_class *c, const char *value, inferd_err *err) {
    if (strcmp(value, "dataset") == 0) {
        c->output.from_dataset = true; // a turn without an answer has the length so far
        return INFERD_OK;
    }
    return value_length(&c->output, value, err);
}
static inferd_status set_dataset(bench_class *c, const char *value, inferd_err *err) {
    dataset_deinit(&c->data);
    return dataset_read(&c->data, value, err);
}
static inferd_status set_turns(bench_class *c, const char *value, inferd_err *err) {
    return value_range(&c->turns, value, 1, TURNS_MAX, err);
}
static inferd_status set_think(bench_class *c, const char *value, inferd_err *err) {
    return value_times(&c->think_lo_s, &c->think_hi_s, value, err);
}
static inferd_status set_system(bench_class *c, const char *value, inferd_err *err) {
    return value_u32(&c->system_tokens, value, 0, LENGTH_MAX, err);
}
static inferd_status set_prompt_max(bench_class *c, const char *value, inferd_err *err) {
    return value_u32(&c->prompt_max, value, 1, LENGTH_MAX, err);
}
static inferd_status set_output_max(bench_class *c, const char *value, inferd_err *err) {
    return value_u32(&c->output_max, value, 1, LENGTH_MAX, err);
}
static inferd_status set_ids(bench_class *c, const char *value, inferd_err *err) {
    length_spec range;
    inferd_status s = value_range(&range, value, 0, INT32_MAX, err);
    if (s != INFERD_OK) return s;
    c->prompt_is_ids = true;
    c->id_lo = range.lo;
    c->id_hi = range.hi;
    return INFERD_OK;
}
static inferd_status set_tokens_per_word(bench_class *c, const char *value, inferd_err *err) {
    return value_number(&c->tokens_per_word, value, 0.1, 100, err);
}
static inferd_status set_shared_prefix(bench_class *c, const char *value, inferd_err *err) {
    return value_u32(&c->shared_prefix, value, 0, LENGTH_MAX, err);
}
static inferd_status set_ignore_eos(bench_class *c, const char *value, inferd_err *err) {
    return value_bool(&c->ignore_eos, value, err);
}
static inferd_status set_no_usage(bench_class *c, const char *value, inferd_err *err) {
    bool no;
    inferd_status s = value_bool(&no, value, err);
    c->ask_usage = !no;
    return s;
}
static inferd_status set_temperature(bench_class *c, const char *value, inferd_err *err) {
    c->has_temperature = strcmp(value, "none") != 0;
    return c->has_temperature ? value_number(&c->temperature, value, 0, 2, err) : INFERD_OK;
}
static inferd_status set_extra(bench_class *c, const char *value, inferd_err *err) {
    return value_members(&c->extra, value, err);
}
static inferd_status set_slo_ttft(bench_class *c, const char *value, inferd_err *err) {
    return value_number(&c->slo_ttft_ms, value, 0, 1e9, err);
}
static inferd_status set_slo_tpot(bench_class *c, const char *value, inferd_err *err) {
    return value_number(&c->slo_tpot_ms, value, 0, 1e9, err);
}

static const setter SETTERS[] = {
    {"url", "URL", set_url, NULL, "server, http://HOST:PORT; a /v1 at the end is dropped"},
    {"duration", "TIME", set_duration, NULL,
     "start requests for this long, then finish those in flight"},
    {"timeout-s", "TIME", set_timeout, NULL, "give up a request after this long (default 600)"},
    {"drain-s", "TIME", set_drain, NULL,
     "after the last start wait at most this long and cut off the rest;\n"
     "cut-off requests are no failures (default: wait for all)"},
    {"warmup", "N", set_warmup, NULL, "send N requests first and do not count them"},
    {"skip-s", "TIME", set_skip, NULL, "do not count requests scheduled in the first TIME"},
    {"skip", "N", set_skip_requests, NULL,
     "do not count the first N requests: those of a closed loop all come at once"},
    {"inflight-max", "N", set_inflight, NULL,
     "requests at the server at once (default 4096); more wait here, and the\n"
     "wait is part of their times"},
    {"seed", "N", set_seed, NULL, "of all random choices (default: a new one each run, printed)"},
    {"header", "LINE", set_header, NULL, "a further HTTP header; may be repeated"},
    {"no-keepalive", NULL, set_no_reuse, NULL, "a new connection for each request"},
    {"json", "FILE", set_json, NULL, "write the report as JSON (- is standard output)"},
    {"csv", "FILE", set_csv, NULL, "write one line per request"},
    {"html", "FILE", set_html, NULL, "write one page with plots and the figures, for a browser"},
    {"gap-ms", "X", set_gap, NULL,
     "draw gaps of X ms and more in red (default: 4 times the median itl)"},
    {"progress", NULL, set_progress, NULL,
     "a line a second on standard error, also where that is no terminal\n"
     "(default: rewritten on a terminal, else a line each 30 s; =off: none)"},
    {"quiet", NULL, set_quiet, NULL, "no table, and no progress unless --progress"},

    {"name", "WORD", NULL, set_name, "of the class, in the reports"},
    {"arrivals", "SPEC", NULL, set_arrivals, "when requests start (default closed:1), see below"},
    {"start", "TIME", NULL, set_start, "the class begins this long after the run"},
    {"requests", "N", NULL, set_requests, "start at most N requests of each class"},
    {"trace", "FILE", NULL, set_trace,
     "CSV of time, prompt tokens, output tokens; for `arrivals trace`,\n"
     "`prompt trace` and `output trace`; lengths are taken row by row, and again\n"
     "from the first row after the last"},
    {"trace-speed", "X", NULL, set_speed, "divide the times of the trace by X (default 1)"},
    {"model", "CHOICES", NULL, set_model,
     "names by weight, \"a=3,b=1\" (default: the first in GET /v1/models)"},
    {"key", "CHOICES", NULL, set_key,
     "API keys by weight; @FILE takes the lines of a file, each of weight 1.\n"
     "Reports call them key1, key2, ..."},
    {"priority", "CHOICES", NULL, set_priority, "integers by weight for the field `priority`"},
    {"service-tier", "CHOICES", NULL, set_tier, "words by weight for the field `service_tier`"},
    {"endpoint", "WORD", NULL, set_endpoint, "completions (default) or chat"},
    {"prompt", "LENGTH", NULL, set_prompt, "prompt tokens: N, LO-HI or trace (default 128)"},
    {"output", "LENGTH", NULL, set_output,
     "max_tokens: N, LO-HI, trace, or dataset: about as many as its answer has\n"
     "(default 128)"},
    {"dataset", "FILE", NULL, set_dataset,
     "prompts from a file: ShareGPT JSON (FILE.json, sharegpt:FILE) or one a line\n"
     "(text:FILE); the seed chooses the order; classes, warm-up and probes take no entry\n"
     "twice before all were taken"},
    {"turns", "N", NULL, set_turns,
     "a request is a conversation of N or LO-HI turns, each with the turns before it and\n"
     "the model's answers (chat only; default 1); --requests counts conversations"},
    {"think-time", "TIME", NULL, set_think,
     "between an answer and the next turn: TIME or TIME-TIME (default 0)"},
    {"system", "N", NULL, set_system,
     "a system message of N tokens that all requests share (chat only)"},
    {"prompt-max", "N", NULL, set_prompt_max, "cut prompt lengths to N"},
    {"output-max", "N", NULL, set_output_max, "cut output lengths to N"},
    {"prompt-token-ids", "LO-HI", NULL, set_ids,
     "send random token ids from LO to HI instead of words: exact lengths\n"
     "(completions only)"},
    {"tokens-per-word", "X", NULL, set_tokens_per_word,
     "to choose the number of words (default 1); the report shows what the\n"
     "server counted"},
    {"shared-prefix", "N", NULL, set_shared_prefix,
     "the first N tokens of all prompts of a class are the same (default 0)"},
    {"ignore-eos", NULL, NULL, set_ignore_eos,
     "send ignore_eos, so that outputs have exactly max_tokens; shorter ones\n"
     "are counted and shown"},
    {"no-usage", NULL, NULL, set_no_usage,
     "do not send stream_options.include_usage; output tokens are then chunks"},
    {"temperature", "X", NULL, set_temperature, "default 0; \"none\" leaves the field out"},
    {"extra", "JSON", NULL, set_extra, "an object whose members are added to each request"},
    {"slo-ttft-ms", "X", NULL, set_slo_ttft, "target for goodput: time to first token"},
    {"slo-tpot-ms", "X", NULL, set_slo_tpot, "target for goodput: time per output token"},
};

static const setter *find(const char *key) {
    for (size_t i = 0; i < INFERD_COUNT(SETTERS); i++)
        if (strcmp(SETTERS[i].key, key) == 0) return &SETTERS[i];
    return NULL;
}

bool bench_setting_known(const char *key, bool *out_is_switch) {
    const setter *s = find(key);
    if (s != NULL) *out_is_switch = s->arg == NULL;
    return s != NULL;
}

static void print_setter(FILE *to, const setter *s) {
    char left[64];
    snprintf(left, sizeof left, "--%s %s", s->key, s->arg == NULL ? "" : s->arg);
    fprintf(to, "  %-26s ", left);
    for (const char *p = s->help; *p != 0; p++) {
        fputc(*p, to);
        if (*p == '\n') fprintf(to, "  %-26s ", "");
    }
    fputc('\n', to);
}

void bench_settings_print(FILE *to) {
    fprintf(to, "Options of the run:\n");
    for (size_t i = 0; i < INFERD_COUNT(SETTERS); i++)
        if (SETTERS[i].run != NULL) print_setter(to, &SETTERS[i]);
    fprintf(to, "\nOptions of a class (outside --class: the default of all classes):\n");
    for (size_t i = 0; i < INFERD_COUNT(SETTERS); i++)
        if (SETTERS[i].prio != NULL) print_setter(to, &SETTERS[i]);
}

inferd_status bench_spec_init(bench_spec *spec, inferd_err *err) {
    *spec = (bench_spec){.timeout_s = 600};
    if (getrandom(&spec->seed, sizeof spec->seed, 0) != sizeof spec->seed)
        return inferd_fail(err, INFERD_EIO, "no random seed: %s", strerror(errno));
    spec->seed %= 1000000000; // short enough to be typed again
    return INFERD_OK;
}

static void class_deinit(bench_class *c) {
    free(c->name);
    free(c->extra);
    trace_deinit(&c->tr);
    dataset_deinit(&c->data);
    choices_deinit(&c->models);
    choices_deinit(&c->keys);
    choices_deinit(&c->priorities);
    choices_deinit(&c->tiers);
}

static void settings_deinit(setting_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].key);
        free(list->items[i].value);
    }
    free(list->items);
    *list = (setting_list){0};
}

void bench_spec_deinit(bench_spec *spec) {
    free(spec->url);
    free(spec->json_path);
    free(spec->csv_path);
    free(spec->html_path);
    choices_deinit(&spec->headers);
    // Before finish, classes are counted but not built.
    for (size_t i = 0; spec->classes != NULL && i < spec->n_classes; i++)
        class_deinit(&spec->classes[i]);
    free(spec->classes);
    settings_deinit(&spec->defaults);
    for (size_t i = 0; i < CLASSES_MAX; i++) settings_deinit(&spec->class_settings[i]);
    *spec = (bench_spec){0};
}

static inferd_status settings_add(setting_list *list, const char *key, const char *value,
                                  inferd_err *err) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : list->capacity * 2;
        setting *items = realloc(list->items, capacity * sizeof *items);
        if (items == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for settings");
        list->items = items;
        list->capacity = capacity;
    }
    setting *s = &list->items[list->n];
    s->key = strdup(key);
    s->value = strdup(value);
    if (s->key == NULL || s->value == NULL) {
        free(s->key);
        free(s->value);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for settings");
    }
    list->n++;
    return INFERD_OK;
}

inferd_status bench_spec_set(bench_spec *spec, int class_idx, const char *key, const char *value,
                             inferd_err *err) {
    const setter *found = find(key);
    if (found == NULL) return inferd_fail(err, INFERD_EINVAL, "there is no option \"%s\"", key);
    bool is_told = found->prio != NULL || strcmp(key, "url") == 0; // in JSON
    if (is_told && !utf8_valid(value))
        return inferd_fail(err, INFERD_EINVAL, "%s: the value is no UTF-8 text", key);
    if (found->prio != NULL) {
        setting_list *list = class_idx < 0 ? &spec->defaults : &spec->class_settings[class_idx];
        return settings_add(list, key, value, err);
    }
    if (class_idx >= 0)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is an option of the run, not of a class",
                           key);
    inferd_status s = found->run(spec, value, err);
    if (s != INFERD_OK) inferd_context(err, "%s", key);
    return s;
}

int bench_spec_class(bench_spec *spec) {
    return spec->n_classes == CLASSES_MAX ? -1 : (int)spec->n_classes++;
}

static inferd_status settings_apply(bench_class *c, const setting_list *list, inferd_err *err) {
    for (size_t i = 0; i < list->n; i++) {
        inferd_status s = find(list->items[i].key)->prio(c, list->items[i].value, err);
        if (s == INFERD_OK) continue;
        inferd_context(err, "%s", list->items[i].key);
        return s;
    }
    return INFERD_OK;
}

static inferd_status class_check(const bench_spec *spec, const bench_class *c, inferd_err *err) {
    bool wants_trace =
        c->arrivals.kind == ARRIVALS_TRACE || c->prompt.from_trace || c->output.from_trace;
    bool ends = c->n_requests > 0 || spec->duration_s > 0 || c->arrivals.kind == ARRIVALS_TRACE ||
                c->arrivals.kind == ARRIVALS_STEPS;
    if (wants_trace && c->tr.n == 0)
        return inferd_fail(err, INFERD_EINVAL, "trace: a file is needed");
    if (c->prompt_is_ids && c->is_chat)
        return inferd_fail(err, INFERD_EINVAL, "prompt-token-ids: only with endpoint completions");
    if ((c->turns.hi > 1 || c->system_tokens > 0) && !c->is_chat)
        return inferd_fail(err, INFERD_EINVAL, "turns and system: only with endpoint chat");
    if (c->output.from_dataset && (c->data.n == 0 || c->data.is_text))
        return inferd_fail(err, INFERD_EINVAL,
                           "output dataset: only with a data set that has answers");
    if (c->data.n > 0 && (c->prompt_is_ids || c->shared_prefix > 0 || c->prompt_max > 0))
        return inferd_fail(err, INFERD_EINVAL,
                           "prompt-token-ids, shared-prefix and prompt-max: not with a data set, "
                           "which has the prompts");
    if (!ends)
        return inferd_fail(err, INFERD_EINVAL, "it would never end: give --duration or --requests");
    return INFERD_OK;
}

/* Builds a class from the defaults and its own settings. */
static inferd_status class_build(bench_spec *spec, size_t i, inferd_err *err) {
    bench_class *c = &spec->classes[i];
    *c = (bench_class){
        .arrivals = {.kind = ARRIVALS_CLOSED, .n_streams = 1},
        .trace_speed = 1,
        .prompt = {.lo = 128, .hi = 128},
        .output = {.lo = 128, .hi = 128},
        .turns = {.lo = 1, .hi = 1},
        .tokens_per_word = 1,
        .ask_usage = true,
        .has_temperature = true,
    };
    inferd_status s = settings_apply(c, &spec->defaults, err);
    if (s == INFERD_OK) s = settings_apply(c, &spec->class_settings[i], err);
    if (s == INFERD_OK && c->name == NULL) {
        char name[32] = "all";
        if (spec->n_classes > 1) snprintf(name, sizeof name, "class%zu", i + 1);
        s = value_text(&c->name, name, err);
    }
    if (s == INFERD_OK) s = class_check(spec, c, err);
    if (s != INFERD_OK && spec->n_classes > 1) inferd_context(err, "class %zu", i + 1);
    return s;
}

inferd_status bench_spec_finish(bench_spec *spec, inferd_err *err) {
    if (spec->url == NULL) return inferd_fail(err, INFERD_EINVAL, "--url is needed");
    if (spec->n_classes == 0) bench_spec_class(spec);
    spec->classes = calloc(spec->n_classes, sizeof *spec->classes);
    if (spec->classes == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for classes");
    for (size_t i = 0; i < spec->n_classes; i++) {
        inferd_status s = class_build(spec, i, err);
        if (s != INFERD_OK) return s;
        for (size_t k = 0; k < i; k++)
            if (strcmp(spec->classes[k].name, spec->classes[i].name) == 0)
                return inferd_fail(err, INFERD_EINVAL, "two classes are called \"%s\"",
                                   spec->classes[i].name);
    }
    if (spec->duration_s > 0 && spec->skip_s >= spec->duration_s)
        return inferd_fail(err, INFERD_EINVAL, "skip-s is not less than duration");
    if (spec->skip_s > 0 && spec->n_skip > 0)
        return inferd_fail(err, INFERD_EINVAL, "skip and skip-s: one of them at most");
    return INFERD_OK;
}
