/* api_prepare.c - turns a body into requests for the engines.
 *
 *   api_params_read > api_pick_model > api_params_check > encode > check_room > compile > build
 *
 * What depends on the state of the daemon (is the model there, does the prompt fit the memory, the
 * queue, limits) is asked on the front, when the request is there: admission_ask.
 *
 * All of it runs on a worker and never touches the front's state: models, names and the secret
 * never change, the configuration is referenced, the fleet's functions here are for any thread. */
#include <sys/random.h>
#include <time.h>

#include "api.h"
#include "api_constraint.h"
#include "api_mend.h"
#include "form_body.h"
#include "inferd/json_whole.h"
#include "inferd/siphash.h"
#include "json_out.h"
#include "media.h"
#include "messages.h"
#include "models/chat.h"
#include "responses.h"

/* Log-probabilities that a request may keep in memory: each takes 8 bytes, and about 60 as JSON. */
enum { LOGPROB_ENTRIES_MAX = 4000000 };

typedef struct request_draft {
    api_job *job;
    api_params p;
    const config_model *about;
    const model_info *info;
    const tokenizer *tok;
    stream_prompt *prompts; // [n_prompts] owned until the stream takes them
    uint32_t n_prompts;
    reasoning reasoning;      // before the answer of a chat
    buf weakened;             // of its tools
    answer_form *form;        // of another protocol; owned until the stream takes it
    grammar_machine *grammar; // of a constraint; counted
    bool has_parts;           // the answer of a chat has reasoning or calls, perhaps
} request_draft;

static bool no_memory(api_job *job) {
    return api_fail(&job->error, API_INTERNAL, NULL, "the server is short of memory");
}

bool api_pick_model(api_job *job, api_params *p, const config_model **about) {
    const inferd_config *c = job->config->c;
    char names[API_NAMES_BYTES];
    if (p->model == NULL) p->model = app_only_model(job->config, job->tenant);
    if (p->model == NULL) {
        app_list_models(job->config, job->tenant, names, sizeof names);
        return api_fail(&job->error, API_MISSING, "model", "\"model\" is required (served: %s)",
                        names);
    }
    uint32_t config_idx = 0;
    int idx = app_find_model(job->config, job->tenant, p->model, strlen(p->model), &config_idx);
    if (idx < 0) {
        char quoted[API_QUOTE_BYTES];
        app_list_models(job->config, job->tenant, names, sizeof names);
        return api_fail(&job->error, API_NO_MODEL, "model",
                        "the model \"%s\" does not exist (served: %s)",
                        api_quote(quoted, p->model, strlen(p->model)), names);
    }
    job->model_idx = idx;
    *about = &c->models[config_idx];
    return true;
}

/* ---- text to ids ---- */

/* The template's variables: the request's, and fields that other servers pass as variables. */
static json_t *make_kwargs(const api_params *p) {
    json_t *kwargs = p->kwargs == NULL ? json_object() : json_copy_whole(p->kwargs);
    if (kwargs == NULL) return NULL;
    bool ok = true, none = p->reasoning_effort != NULL && strcmp(p->reasoning_effort, "none") == 0;
    static const char *const switches[] = {"enable_thinking", "thinking"};
    if (p->thinking != NULL && json_object_get(kwargs, "enable_thinking") == NULL)
        ok = json_object_set(kwargs, "enable_thinking", p->thinking) == 0;
    for (size_t i = 0; i < INFERD_COUNT(switches) && ok && none; i++)
        if (json_object_get(kwargs, switches[i]) == NULL)
            ok = json_object_set_new(kwargs, switches[i], json_false()) == 0;
    if (ok && p->reasoning_effort != NULL && json_object_get(kwargs, "reasoning_effort") == NULL)
        ok = json_object_set_new(kwargs, "reasoning_effort", json_string(p->reasoning_effort)) == 0;
    if (ok && p->verbosity != NULL && json_object_get(kwargs, "verbosity") == NULL)
        ok = json_object_set_new(kwargs, "verbosity", json_string(p->verbosity)) == 0;
    if (ok) return kwargs;
    json_decref(kwargs);
    return NULL;
}

/* A template that exceeds its limits does so at every retry: a client's error, without a retry. */
static bool fail_render(api_job *job, inferd_err *err) {
    if (err->status == INFERD_ETOOLONG || err->status == INFERD_EINVAL)
        return api_fail(&job->error, API_BAD_VALUE, "messages", "the chat template refused: %s",
                        err->text);
    return api_fail_status(&job->error, err, "messages");
}

/* Does the conversation have anything that the template leaves out (call_format_messages)? */
static bool is_rewritten(const model *m, const api_params *p) {
    const call_format *f = model_call_format(m);
    bool prompted = f != NULL && call_format_is_prompted(f);
    bool with_tools = prompted && p->tools != NULL;
    size_t i;
    json_t *message;
    if (f == NULL || (!prompted && !call_format_loses_calls(f))) return false;
    json_array_foreach(p->messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        with_tools = with_tools || (prompted && role != NULL && strcmp(role, "tool") == 0) ||
                     json_array_size(json_object_get(message, "tool_calls")) > 0;
    }
    return with_tools;
}

/* Takes `messages`. */
static json_t *mend_calls(const call_format *f, json_t *messages, mended *prompt) {
    if (f == NULL || messages == NULL || !call_format_loses_later_calls(f)) return messages;
    json_t *out = api_mend_calls(messages, &prompt->origin);
    json_decref(messages);
    return out;
}

/* As the template needs them: a new reference; NULL: no memory. */
static json_t *rewrite_messages(const model *m, const api_params *p, mended *prompt) {
    const call_format *f = model_call_format(m);
    json_t *reasoned = call_format_reasoned(f, p->messages);
    if (reasoned == NULL || !is_rewritten(m, p)) return mend_calls(f, reasoned, prompt);
    json_t *out = call_format_messages(f, reasoned, p->tools, &prompt->origin);
    json_decref(reasoned);
    return mend_calls(f, out, prompt);
}

/* A field that the template refused, in the client's words. */
static void tell_effort(api_params *p, const answer_form *form) {
    api_error path = {0};
    bool nested = json_object_get(p->kwargs, "reasoning_effort") != NULL;
    snprintf(path.param, sizeof path.param, "%s",
             nested ? "chat_template_kwargs.reasoning_effort" : "reasoning_effort");
    form_locate(form, &path);
    unknown_add(&p->unknown, path.param);
}

static bool render_chat(api_job *job, const api_params *p, mended *prompt, reasoning *before) {
    const model *m = app_model(job->app, (uint32_t)job->model_idx)->m;
    const chat_template *t = model_chat_template(m);
    if (t == NULL)
        return api_fail(&job->error, API_UNSUPPORTED, "messages",
                        "the model has no chat template; use /v1/completions");
    json_t *kwargs = make_kwargs(p);
    if (kwargs == NULL) return no_memory(job);
    chat_input in = {.messages = p->messages,
                     .tools = p->tools,
                     .kwargs = kwargs,
                     .add_generation_prompt = p->add_generation_prompt,
                     .continue_final_message = p->continue_final_message};
    json_t *rewritten = rewrite_messages(m, p, prompt);
    if (rewritten == NULL) {
        json_decref(kwargs);
        return no_memory(job);
    }
    in.messages = rewritten;
    if (call_format_is_prompted(model_call_format(m)) && is_rewritten(m, p)) in.tools = NULL;
    time_t unix_s = time(NULL);
    struct tm now = {0};
    localtime_r(&unix_s, &now);
    inferd_err err = {0};
    inferd_status s = api_mend_render(t, model_tokenizer(m), &in, &now, prompt, &err);
    json_decref(kwargs);
    json_decref(rewritten);
    if (s != INFERD_OK) return fail_render(job, &err);
    in.messages = p->messages;
    *before = call_format_before(model_call_format(m), &in, &prompt->text);
    return true;
}

static void set_scope(const api_job *job, const api_params *p, uint64_t scope[2]) {
    const inferd_config *c = job->config->c;
    const char *name = job->tenant < 0 ? "" : c->tenants[job->tenant].name;
    const char *salt = p->cache_salt == NULL ? "" : p->cache_salt;
    scope[0] = siphash(job->app->scope_secret, name, strlen(name));
    scope[1] = siphash(job->app->scope_secret, salt, strlen(salt));
}

/* The text and tokens of a conversation are kept, since its next turn may come.  Tokens that are
 * only counted are those that are kept. */
static bool is_kept(const api_job *job, const api_params *p) {
    bool keeps = job->config->c->limits.transcript_bytes_max > 0;
    return keeps && api_is_chat(job->route) && p->use_cache && !p->add_special;
}

/* Of an entry of mended.origin. */
static json_int_t origin_idx(const json_t *origin) {
    return json_integer_value(json_is_array(origin) ? json_array_get(origin, 0) : origin);
}

/* The message of the request that this byte, in message `idx` of the prompt, is from. */
static uint32_t find_origin(const mended *prompt, const api_params *p, uint32_t idx, size_t byte) {
    if (prompt->origin == NULL || idx == CHAT_NO_MESSAGE) return idx;
    json_int_t from = origin_idx(json_array_get(prompt->origin, idx));
    json_int_t end = (json_int_t)json_array_size(p->messages); // of those that it was joined from
    if (from < 0) return CHAT_NO_MESSAGE;
    for (size_t i = 0; i < json_array_size(prompt->origin); i++) {
        json_int_t other = origin_idx(json_array_get(prompt->origin, i));
        if (other > from && other < end) end = other;
    }
    return (uint32_t)spot_find_message(&prompt->text, idx, p->messages, (size_t)from, (size_t)end,
                                       byte);
}

/* Where in `message`, which message `idx` of the prompt is from. */
static spot find_spot(const mended *prompt, uint32_t idx, const json_t *message, size_t byte) {
    const json_t *call = json_array_get(json_array_get(prompt->origin, idx), 1); // its only one
    spot only = {SPOT_CALL, (size_t)json_integer_value(call)};
    if (only.at > 0) return only; // the texts stand before the first
    spot found = spot_find(&prompt->text, idx, message, byte);
    return call != NULL && found.part == SPOT_CALL ? only : found;
}

/* In the words of the chat's body. */
static void set_explanation(api_job *job, const api_params *p, const mended *prompt,
                            const transcript_match *match) {
    explanation *e = &job->explanation;
    e->known = true;
    e->cause = match->cause;
    e->byte = match->at;
    e->n_known = (uint32_t)match->n_ids;
    uint32_t idx = chat_text_message_at(&prompt->text, match->at);
    e->message_idx = find_origin(prompt, p, idx, match->at);
    if (e->message_idx == CHAT_NO_MESSAGE) return;
    const json_t *message = json_array_get(p->messages, e->message_idx);
    e->spot = find_spot(prompt, idx, message, match->at);
    snprintf(e->where, sizeof e->where, "messages[%u]", e->message_idx);
}

static inferd_status encode_kept(api_job *job, const api_params *p, const mended *prompt,
                                 const tok_span *spans, size_t n_spans, tok_ids *out,
                                 inferd_err *err) {
    transcript_match match;
    transcript_options o = {.m = app_model(job->app, (uint32_t)job->model_idx)->m,
                            .canonical = p->has_seed,
                            .only_counts = job->route == API_COUNT_TOKENS,
                            .context = job->context};
    const call_format *f = model_call_format(o.m);
    o.reasoning_open = f == NULL ? "" : call_format_reasoning_open(f);
    o.reasoning_close = f == NULL ? "" : call_format_reasoning_close(f);
    set_scope(job, p, o.scope);
    bytes text = {prompt->text.text, prompt->text.n};
    inferd_status s = transcripts_encode(job->app->models.transcripts, &o, text, spans, n_spans,
                                         out, &job->transcript, &match, err);
    if (s == INFERD_OK && !o.only_counts) set_explanation(job, p, prompt, &match);
    return s;
}

bool api_encode_chat(api_job *job, api_params *p, const answer_form *form,
                     const config_model *about, tok_ids *out, reasoning *before) {
    mended prompt = {0};
    const chat_text *text = &prompt.text;
    bool ok = render_chat(job, p, &prompt, before);
    if (ok) {
        tok_span all = {.n = text->n, .specials = true};
        const tok_span *spans = about->special_tokens_in_text ? &all : text->spans;
        size_t n_spans = about->special_tokens_in_text ? 1 : text->n_spans;
        if (prompt.without_effort) tell_effort(p, form);
        inferd_err err = {0};
        tok_encode_options o = {.add_special = p->add_special};
        const tokenizer *tok = model_tokenizer(app_model(job->app, (uint32_t)job->model_idx)->m);
        inferd_status s = is_kept(job, p) ? encode_kept(job, p, &prompt, spans, n_spans, out, &err)
                                          : tok_encode(tok, (bytes){text->text, text->n}, spans,
                                                       n_spans, &o, out, &err);
        if (s != INFERD_OK) ok = api_fail_status(&job->error, &err, "messages");
    }
    mended_deinit(&prompt);
    return ok;
}

bool api_encode_text(api_job *job, const api_params *p, bytes text, const char *param,
                     tok_ids *out) {
    inferd_err err = {0};
    tok_span all = {.n = text.n, .specials = true};
    tok_encode_options o = {.add_special = p->add_special};
    const tokenizer *tok = model_tokenizer(app_model(job->app, (uint32_t)job->model_idx)->m);
    if (tok_encode(tok, text, &all, 1, &o, out, &err) == INFERD_OK) return true;
    return api_fail_status(&job->error, &err, param);
}

/* ---- prompts ---- */

/* Did the tokenizer add a BOS that is not in the text? */
static bool has_added_bos(const request_draft *d, const stream_prompt *p) {
    tok_id bos = tok_bos(d->tok);
    if (!d->p.add_special || bos < 0 || p->ids.n == 0 || p->ids.ids[0] != bos) return false;
    bytes name = tok_name(d->tok, bos);
    bool written = p->n_text >= name.n && memcmp(p->text, name.p, name.n) == 0;
    return !written || (p->ids.n > 1 && p->ids.ids[1] == bos);
}

static bool encode_prompt(request_draft *d, json_t *value, size_t i) {
    stream_prompt *p = &d->prompts[i];
    char param[API_PARAM_BYTES];
    snprintf(param, sizeof param, d->n_prompts > 1 ? "prompt[%zu]" : "prompt", i);
    if (json_is_array(value)) {
        p->ids.ids = api_take_ids(value, &p->ids.n);
        p->ids.capacity = p->ids.n;
        return p->ids.ids == NULL ? no_memory(d->job) : true;
    }
    bytes text = {json_string_value(value), json_string_length(value)};
    if (!api_encode_text(d->job, &d->p, text, param, &p->ids)) return false;
    if (!d->p.echo) return true;
    p->text = malloc(text.n + 1);
    if (p->text == NULL) return no_memory(d->job);
    memcpy(p->text, text.p, text.n);
    p->n_text = text.n;
    p->bos_added = has_added_bos(d, p);
    return true;
}

/* In the words of the client's protocol. */
static void locate_explanation(request_draft *d) {
    explanation *e = &d->job->explanation;
    e->n_prompt = (uint32_t)d->prompts[0].ids.n;
    if (d->form == NULL || e->where[0] == 0) return;
    const char *place = form_place(d->form, e->message_idx, e->spot);
    if (place != NULL) snprintf(e->where, sizeof e->where, "%s", place);
}

static bool make_prompts(request_draft *d) {
    json_t *prompt = d->p.prompt, *first = json_array_get(prompt, 0);
    bool list = json_is_string(first) || json_is_array(first);
    uint32_t n = list ? (uint32_t)json_array_size(prompt) : 1;
    d->prompts = calloc(n, sizeof *d->prompts);
    if (d->prompts == NULL) return no_memory(d->job);
    d->n_prompts = n;
    if (api_is_chat(d->job->route)) {
        if (!api_encode_chat(d->job, &d->p, d->form, d->about, &d->prompts[0].ids, &d->reasoning))
            return false;
        locate_explanation(d);
        return true;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!encode_prompt(d, list ? json_array_get(prompt, i) : prompt, i)) return false;
    return true;
}

/* ---- room ---- */

/* In words that clients recognise: see refuse_size in admission.c. */
static bool fail_context(const request_draft *d, size_t n_prompt) {
    const char *name = d->job->input;
    int64_t wanted = d->p.max_tokens;
    bool open = wanted == API_UNSET;
    uint64_t n_output = open ? 1 : (uint64_t)wanted;
    return api_fail(&d->job->error, API_TOO_LONG, name,
                    "This model's maximum context length is %u tokens. However, you requested %llu "
                    "tokens (%zu in the %s, %s%llu in the completion). Please reduce the length of "
                    "the %s or completion.",
                    d->info->context, (unsigned long long)(n_prompt + n_output), n_prompt, name,
                    open ? "at least " : "", (unsigned long long)n_output, name);
}

static bool check_context(const request_draft *d, size_t n_prompt) {
    uint32_t context = d->info->context;
    int64_t wanted = d->p.max_tokens;
    if (n_prompt == 0)
        return api_fail(&d->job->error, API_BAD_VALUE, d->job->input, "the prompt has no tokens");
    bool fits = n_prompt + (wanted == API_UNSET ? 1 : (uint64_t)wanted) <= context;
    return fits ? true : fail_context(d, n_prompt);
}

/* Log-probabilities in memory at the same time. */
static bool check_logprobs(const request_draft *d, const stream_prompt *p, uint64_t *n_entries) {
    if (d->p.n_logprobs < 0) return true;
    uint64_t n_tokens = d->p.echo ? p->ids.n : 0;
    if (!d->p.stream)
        n_tokens +=
            d->p.max_tokens == API_UNSET ? d->info->context - p->ids.n : (uint64_t)d->p.max_tokens;
    *n_entries += n_tokens * (uint64_t)d->p.n * (uint64_t)(d->p.n_logprobs + 1);
    if (*n_entries <= LOGPROB_ENTRIES_MAX) return true;
    return api_fail(&d->job->error, API_BAD_VALUE, "logprobs",
                    "the answer could have more than %d log-probabilities; ask for fewer choices, "
                    "tokens or alternatives, or for a stream",
                    LOGPROB_ENTRIES_MAX);
}

/* The first chunk repeats the prompt for each choice; it must fit the buffer before any is read. */
static bool check_first_chunks(const request_draft *d, const stream_prompt *p, uint64_t *n_bytes) {
    if (!d->p.stream) return true;
    buf json = {0};
    if (d->p.echo && p->text != NULL)
        json_add_string(&json, p->text, p->n_text);
    else if (d->p.echo)
        for (size_t i = 0; i < p->ids.n; i++) {
            bytes piece = tok_piece(d->tok, p->ids.ids[i]);
            json_add_string(&json, piece.p, piece.n);
        }
    if (d->p.show_ids) json_add_ids(&json, p->ids.ids, p->ids.n);
    *n_bytes += json.n * (uint64_t)d->p.n;
    bool ok = !json.failed;
    buf_deinit(&json);
    if (!ok) return no_memory(d->job);
    uint32_t bytes_max = d->job->config->c->limits.http.stream_hard_bytes / 2;
    if (*n_bytes <= bytes_max) return true;
    return api_fail(&d->job->error, API_BAD_VALUE, d->p.echo ? "echo" : "return_token_ids",
                    "the prompts would take more than %u bytes of the stream; ask for an answer "
                    "that is not streamed",
                    bytes_max);
}

/* Messages must give max_tokens, which clients set without a look at the context: it is a bound. */
static void bound_max_tokens(request_draft *d) {
    uint64_t context = d->info->context, n_prompt = d->prompts[0].ids.n;
    if (d->job->route != API_MESSAGES || n_prompt >= context) return;
    if ((uint64_t)d->p.max_tokens > context - n_prompt)
        d->p.max_tokens = (int64_t)(context - n_prompt);
}

static bool check_room(request_draft *d) {
    uint64_t n_entries = 0, n_bytes = 0;
    bound_max_tokens(d);
    for (uint32_t i = 0; i < d->n_prompts; i++)
        if (!check_context(d, d->prompts[i].ids.n) ||
            !check_logprobs(d, &d->prompts[i], &n_entries) ||
            !check_first_chunks(d, &d->prompts[i], &n_bytes))
            return false;
    return true;
}

/* ---- class, rank, cache scope ---- */

/* The body's class overrides that of the headers (of a gateway); without: the model's default. */
static gen_class class_of(const request_draft *d) {
    const inferd_config *c = d->job->config->c;
    int tenant = d->job->tenant;
    gen_class most = tenant < 0 ? GEN_HIGH : c->tenants[tenant].max_class;
    const int said[] = {d->p.named_class, d->p.tier_class, d->job->hints.named_class};
    gen_class asked = d->about->policy.prio;
    for (size_t i = INFERD_COUNT(said); i-- > 0;)
        if (said[i] >= 0) asked = (gen_class)said[i];
    return asked > most ? asked : most; // a smaller class is more urgent
}

static int32_t rank_of(const request_draft *d) {
    const inferd_config *c = d->job->config->c;
    int tenant = d->job->tenant;
    bool may_lead = tenant < 0 || c->tenants[tenant].max_class <= GEN_HIGH;
    return d->p.priority < 0 && !may_lead ? 0 : (int32_t)d->p.priority;
}

static const char *tier_of(gen_class prio) {
    return prio <= GEN_HIGH ? "priority" : prio == GEN_NORMAL ? "default" : "flex";
}

/* ---- requests ---- */

/* Behind the checks of sizes, because it costs more than all of them. */
static bool compile_constraint(request_draft *d) {
    const app *a = d->job->app;
    const model *m = app_model(a, (uint32_t)d->job->model_idx)->m;
    const call_format *f = model_call_format(m);
    /* With the names of control tokens the text is wanted as the model wrote it. */
    bool raw = !d->p.skip_specials && d->p.choice == TOOLS_NONE;
    bool marked = f != NULL && (call_format_reasons(f) || call_format_marks_content(f));
    bool apart = f != NULL && ((marked && !raw) || d->p.choice != TOOLS_NONE);
    d->has_parts = api_is_chat(d->job->route) && (apart || d->form != NULL);
    api_answer_form form = {.format = f, .before = d->reasoning, .weakened = &d->weakened};
    if (f != NULL && api_is_chat(d->job->route)) form.around = call_format_around(f);
    return api_constraint_compile(&d->p, &d->job->config->c->limits.json, a->models.grammars, m,
                                  &form, &d->grammar, &d->job->error);
}

static bool set_sampling(const request_draft *d, sample_params *s, uint32_t choice_idx,
                         uint64_t seed) {
    const api_params *p = &d->p;
    size_t n_bias = 0;
    sampling_defaults chosen = config_sampling(d->about, &d->info->sampling);
    for (sampling_param i = 0; i < SAMPLING_PARAMS; i++)
        sampling_set(&chosen, i, p->sampling[i], SAMPLING_REQUEST);
    *s = (sample_params){.seed = seed, .choice_idx = choice_idx};
    sampling_fill(&chosen, s);
    if (json_object_size(p->bias) == 0) return true;
    s->bias = api_take_bias(p, &n_bias);
    s->n_bias = (uint32_t)n_bias;
    return s->bias != NULL;
}

/* The client's own timeout limits the whole answer only if that is sent in one piece: for a stream,
 * clients limit the time to its beginning or between two reads. */
static void set_deadlines(const request_draft *d, gen_request *r) {
    const config_limits *l = &d->job->config->c->limits;
    const http_request *rq = d->job->rq;
    r->arrival_us = rq->arrival_us;
    if (l->queue_timeout_ms > 0)
        r->queue_deadline_us = rq->arrival_us + (uint64_t)l->queue_timeout_ms * 1000;
    if (l->total_timeout_ms > 0)
        r->deadline_us = rq->arrival_us + (uint64_t)l->total_timeout_ms * 1000;
    uint64_t *hinted = d->p.stream ? &r->queue_deadline_us : &r->deadline_us;
    if (rq->deadline_us > 0 && (*hinted == 0 || rq->deadline_us < *hinted))
        *hinted = rq->deadline_us;
}

/* Fills request i of n_prompts * n.  Its noise is that of choice i over all prompts: prompts of one
 * list share the seed, and with the same noise equal prompts would get equal texts. */
static bool fill_request(const request_draft *d, gen_request *r, uint32_t i, uint64_t seed) {
    const api_params *p = &d->p;
    const tok_ids *ids = &d->prompts[i / p->n].ids;
    r->model_idx = (uint32_t)d->job->model_idx;
    r->tenant_idx = d->job->rq->tenant < 0 ? 0 : (uint32_t)d->job->rq->tenant;
    r->prio = class_of(d);
    r->rank = rank_of(d);
    r->max_tokens = p->max_tokens == API_UNSET ? GEN_NO_MAX : (uint32_t)p->max_tokens;
    r->min_tokens = (uint32_t)p->min_tokens;
    r->ignore_eos = p->ignore_eos;
    r->n_logprobs = (int32_t)p->n_logprobs;
    r->n_prompt_logprobs = p->echo ? (int32_t)p->n_logprobs : -1;
    r->no_cache = !p->use_cache;
    r->grammar = d->grammar;
    if (r->grammar != NULL) grammar_machine_hold(r->grammar);
    r->bounds_reasoning = p->reasoning_max != API_UNSET && r->grammar != NULL;
    r->reasoning_tokens_max = r->bounds_reasoning ? (uint32_t)p->reasoning_max : 0;
    set_scope(d->job, p, r->cache_scope);
    set_deadlines(d, r);
    r->ttft_target_ms = d->job->hints.ttft_target_ms;
    r->tpot_target_ms = d->job->hints.tpot_target_ms;
    r->n_prompt = (uint32_t)ids->n;
    r->prompt = malloc(ids->n * sizeof *r->prompt);
    if (r->prompt == NULL) return false;
    memcpy(r->prompt, ids->ids, ids->n * sizeof *r->prompt);
    if (json_array_size(p->stop_ids) > 0) {
        size_t n = 0;
        r->stop_ids = api_take_ids(p->stop_ids, &n);
        if (r->stop_ids == NULL) return false;
        r->n_stop_ids = (uint32_t)n;
    }
    return set_sampling(d, &r->sampling, i, seed);
}

static bool make_requests(request_draft *d) {
    api_job *job = d->job;
    uint64_t seed = (uint64_t)d->p.seed;
    if (!d->p.has_seed && getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return api_fail(&job->error, API_INTERNAL, NULL, "the server cannot get random numbers");
    uint32_t n = d->n_prompts * (uint32_t)d->p.n;
    job->requests = calloc(n, sizeof(gen_request *));
    if (job->requests == NULL) return no_memory(job);
    job->n_requests = n;
    job->n_per_prompt = (uint32_t)d->p.n;
    job->devices = calloc(d->n_prompts, sizeof *job->devices);
    if (job->devices == NULL) return no_memory(job);
    for (uint32_t i = 0; i < n; i++) {
        job->requests[i] = calloc(1, sizeof(gen_request));
        if (job->requests[i] == NULL || !fill_request(d, job->requests[i], i, seed))
            return no_memory(job);
    }
    return true;
}

/* ---- the answer ---- */

static bool make_stream(request_draft *d) {
    const api_params *p = &d->p;
    api_job *job = d->job;
    stream_options o = {
        .chat = api_is_chat(job->route),
        .streaming = p->stream,
        .include_usage = p->include_usage,
        .continuous_usage = p->include_usage && p->continuous_usage,
        .echo = p->echo,
        .show_ids = p->show_ids,
        .tokens_as_ids = p->tokens_as_ids,
        .usage_details = p->usage_details,
        .prio = api_class_name(class_of(d)),
        .include_stop = p->include_stop,
        .skip_specials = p->skip_specials,
        .ignore_eos = p->ignore_eos && d->grammar == NULL,
        .constraint = d->grammar == NULL            ? NULL
                      : p->constraint_param != NULL ? p->constraint_param
                                                    : "tools",
        .n = (uint32_t)p->n,
        .min_tokens = (uint32_t)p->min_tokens,
        .n_logprobs = (int32_t)p->n_logprobs,
        .tok = d->tok,
        .format = d->has_parts ? model_call_format(app_model(job->app, (uint32_t)job->model_idx)->m)
                               : NULL,
        .in_reasoning = d->reasoning.end != NULL && d->reasoning.begin == NULL,
        .no_calls = p->choice == TOOLS_NONE,
        .hides_reasoning = !p->shows_reasoning,
        .function_calls = p->function_calls,
        .model = app_model(job->app, (uint32_t)job->model_idx)->name,
        .tier = tier_of(class_of(d)),
        .created = (int64_t)time(NULL)};
    const char *id = strncmp(job->rq->id, "req-", 4) == 0 ? job->rq->id + 4 : job->rq->id;
    snprintf(o.fingerprint, sizeof o.fingerprint, "%s", job->config->fingerprint);
    const char *prefix = d->form != NULL ? d->form->type->id_prefix
                         : o.chat        ? "chatcmpl-"
                                         : "cmpl-";
    snprintf(o.id, sizeof o.id, "%s%s", prefix, id);
    snprintf(o.request_id, sizeof o.request_id, "%s", job->rq->id);
    o.form = d->form;
    d->form = NULL;
    bool ok = true;
    if (o.format != NULL && p->choice != TOOLS_NONE) {
        o.tools = json_incref(p->tools);
        o.custom = json_incref(p->custom); // NULL: none
    }
    if (o.format != NULL && getrandom(o.secret, sizeof o.secret, 0) != (ssize_t)sizeof o.secret)
        ok = false;
    if (ok && p->stop != NULL) {
        o.stops = api_take_stops(p);
        ok = o.stops != NULL;
    }
    if (ok && p->stop_ids != NULL) {
        size_t n = 0;
        o.stop_ids = api_take_ids(p->stop_ids, &n);
        o.n_stop_ids = (uint32_t)n;
        ok = o.stop_ids != NULL;
    }
    o.prompts = d->prompts;
    o.n_prompts = d->n_prompts;
    d->prompts = NULL;
    d->n_prompts = 0;
    if (ok)
        job->stream = stream_create(&o);
    else
        stream_options_deinit(&o);
    return job->stream != NULL ? true : no_memory(job);
}

/* Protocols with bodies that become that of a chat. */
static const answer_form_type *form_of(api_route route) {
    switch (route) {
    case API_MESSAGES:
        return &messages_form_type;
    case API_RESPONSES:
        return &responses_form_type;
    default:
        return NULL;
    }
}

/* A request with an image was refused before its model was looked for: the error names the model,
 * and what its file lacks. */
static void tell_media(api_job *job, const json_t *name) {
    api_params p = {.model = json_string_value(name)};
    const config_model *about;
    if (job->error.media == NULL || !api_pick_model(job, &p, &about)) return;
    media_tell_why(&job->error, about->name,
                   model_about(app_model(job->app, (uint32_t)job->model_idx)->m));
}

static bool read_body(request_draft *d, const json_limits *limits) {
    api_job *job = d->job;
    const answer_form_type *type = form_of(job->route);
    json_t *body = NULL, *chat = NULL;
    unknown_fields unknown = {0};
    form_host host = {.store = job->app->responses,
                      .tenant = api_tenant_name(job),
                      .limits = limits,
                      .text = job->rq->body};
    if (type == NULL) {
        bool read = api_params_read(job->route, limits, job->rq->body, &d->p, &job->error);
        if (!read) tell_media(job, json_object_get(d->p.root, "model"));
        return read;
    }
    bool ok = api_params_parse(limits, job->rq->body, &body, &job->error) &&
              type->read(body, &host, &chat, &d->form, &unknown, &job->error) &&
              api_params_take(API_CHAT, chat, &d->p, &job->error);
    d->p.unknown = unknown; // those of the body that the client sent
    if (!ok) tell_media(job, json_object_get(body, "model"));
    json_decref(body);
    return ok;
}

static bool prepare(request_draft *d) {
    api_job *job = d->job;
    const json_limits *limits = &job->config->c->limits.json;
    if (job->error.fault != API_OK) return false; // from its headers
    if (!read_body(d, limits) || !api_pick_model(job, &d->p, &d->about)) return false;
    const model *m = app_model(job->app, (uint32_t)job->model_idx)->m;
    d->info = model_about(m);
    job->input = job->route == API_RESPONSES ? "input"
                 : api_is_chat(job->route)   ? "messages"
                                             : "prompt";
    job->context = d->info->context;
    d->tok = model_tokenizer(m);
    uint32_t n_vocab = u32_min(d->info->n_vocab, (uint32_t)tok_n_vocab(d->tok));
    return api_params_check(&d->p, n_vocab, &job->error) && make_prompts(d) && check_room(d) &&
           compile_constraint(d) && make_requests(d) && make_stream(d);
}

void api_prepare(void *ctx) {
    request_draft d = {.job = ctx};
    prepare(&d);
    if (d.job->error.fault != API_OK) form_locate(d.form, &d.job->error);
    d.job->unknown = d.p.unknown;
    d.job->has_keep_alive = d.p.has_keep_alive;
    d.job->keep_alive_us = d.p.keep_alive_us;
    stream_options leftover = {.prompts = d.prompts, .n_prompts = d.n_prompts};
    stream_options_deinit(&leftover);
    if (d.weakened.n > 0) d.job->weakened = strdup(buf_cstr(&d.weakened)); // NULL: not told
    buf_deinit(&d.weakened);
    answer_form_destroy(d.form);
    grammar_machine_release(d.grammar);
    api_params_deinit(&d.p);
}
