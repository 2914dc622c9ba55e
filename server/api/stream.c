/* stream.c - see stream.h.
 *
 * Positions are bytes from the start of a choice's generated text; `sent` bytes have been sent, and
 * c->text holds the rest.  A body keeps all of it (sent stays 0) and is cut at the end. */
#include "stream.h"

#include "message.h"
#include "thoughts.h"

/* One reported token.  Its text begins at `start`: the start of the code point of its first byte,
 * which may be decoded with a later token.  After the token the text ended at `end`. */
typedef struct entry {
    tok_id id;
    bool known, prompt;
    bool hidden; // its text is reasoning that is left out
    float logprob;
    uint64_t start, end;
    uint32_t text_offset; // `start` in code points
    uint32_t n_top;
    size_t top_at; // in c->tops
} entry;

typedef struct choice {
    tok_stream words;
    buf text;            // decoded, not sent
    message_parts parts; // what the text is made of, if the format has parts
    thoughts thoughts;   // which tokens are reasoning, if the format has parts
    uint64_t sent;       // bytes sent before text
    uint16_t *stop;      // [stop_set_n] state of the matcher; owned
    uint32_t n_tokens;   // generated, including the ending one
    uint32_t n_points;   // code points of the text so far, echo included
    entry *entries;      // [n_entries] not sent; owned
    size_t n_entries, entries_capacity;
    size_t n_settled;  // entries of which it is known whether they are hidden
    tok_logprob *tops; // [n_tops] of the entries; owned
    size_t n_tops, tops_capacity;
    tok_id *ids; // [n_ids] to show, not sent; owned
    size_t n_ids, ids_capacity;
    tok_stream prompt_words; // echo: decodes the prompt's tokens to find their text
    uint32_t n_prompt_seen;
    uint32_t prompt_points;
    bool opened;        // its first chunk was written
    bool matched;       // a stop string was found: further tokens are ignored
    bool ended;         // its GEN_EV_DONE was handled
    const char *finish; // NULL until then
    answer_stop stop_reason;
    tok_id stop_id;
    uint32_t stop_string;
    uint32_t n_cached;
    uint64_t queued_us;
    uint32_t queued_steps;
    uint32_t n_preempts[GEN_PREEMPTS], n_recomputed; // of its preemptions
    uint64_t away_us, waste_us, swap_in_us, device_us;
} choice;

struct stream {
    stream_options o;
    answer_head head;
    choice *choices; // [n_choices]
    uint32_t n_choices, n_ended;
    api_error error;
};

/* ---- creation ---- */

void stream_options_deinit(stream_options *o) {
    for (uint32_t i = 0; i < o->n_prompts && o->prompts != NULL; i++) {
        tok_ids_deinit(&o->prompts[i].ids);
        free(o->prompts[i].text);
    }
    free(o->prompts);
    free(o->stop_ids);
    stop_set_destroy(o->stops);
    json_decref(o->tools);
    json_decref(o->custom);
    answer_form_destroy(o->form);
    o->form = NULL;
    o->tools = NULL;
    o->custom = NULL;
    o->prompts = NULL;
    o->stop_ids = NULL;
    o->stops = NULL;
    o->n_prompts = o->n_stop_ids = 0;
}

/* The text of a prompt given as ids; special tokens are written as text. */
static bool spell_prompt(const tokenizer *tok, stream_prompt *p) {
    if (p->text != NULL) return true;
    buf text = {0};
    tok_stream words;
    tok_stream_init(&words, tok, false);
    for (size_t i = 0; i < p->ids.n; i++) tok_stream_push(&words, p->ids.ids[i], &text);
    tok_stream_finish(&words, &text);
    buf_reserve(&text, 0); // an empty text must not be NULL
    if (text.failed) {
        buf_deinit(&text);
        return false;
    }
    p->text = text.p;
    p->n_text = text.n;
    return true;
}

static uint32_t count_points(const char *p, size_t n) {
    uint32_t n_points = 0;
    for (size_t i = 0; i < n; i++) n_points += ((unsigned char)p[i] & 0xC0) != 0x80;
    return n_points;
}

static bool init_choice(stream *s, choice *c, const stream_prompt *p) {
    bool apart = s->o.format != NULL;
    call_parser_options po = {
        .tools = s->o.tools, .in_reasoning = s->o.in_reasoning, .no_calls = s->o.no_calls};
    if (apart && !message_init(&c->parts, s->o.format, &po)) return false;
    c->parts.keeps = !s->o.streaming && s->o.form == NULL;
    c->parts.hides_reasoning = s->o.hides_reasoning;
    c->parts.custom = s->o.custom;
    c->parts.function_calls = s->o.function_calls;
    c->parts.n_choice = (uint64_t)(c - s->choices);
    memcpy(c->parts.secret, s->o.secret, sizeof c->parts.secret);
    tok_stream_init(&c->words, s->o.tok, s->o.skip_specials || apart);
    if (s->o.constraint != NULL) c->words.at_start = false;
    tok_stream_init(&c->prompt_words, s->o.tok, false);
    buf_init(&c->text, 0);
    if (s->o.echo) c->n_points = count_points(p->text, p->n_text);
    uint32_t n_stops = stop_set_n(s->o.stops);
    c->stop = calloc(n_stops == 0 ? 1 : n_stops, sizeof *c->stop);
    return c->stop != NULL;
}

stream *stream_create(stream_options *options) {
    stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        stream_options_deinit(options);
        return NULL;
    }
    s->o = *options;
    options->prompts = NULL;
    options->stop_ids = NULL;
    options->stops = NULL;
    options->tools = NULL;
    options->custom = NULL;
    options->form = NULL;
    options->n_prompts = 0;
    const stream_options *o = &s->o;
    s->head = (answer_head){.chat = o->chat,
                            .id = s->o.id,
                            .request_id = s->o.request_id,
                            .model = o->model,
                            .fingerprint = s->o.fingerprint,
                            .tier = o->tier,
                            .created = o->created,
                            .tok = o->tok,
                            .tokens_as_ids = o->tokens_as_ids,
                            .function_calls = o->function_calls,
                            .usage_asked = o->include_usage};
    s->choices = calloc((size_t)o->n_prompts * o->n, sizeof *s->choices);
    if (s->choices == NULL) goto fail;
    s->n_choices = o->n_prompts * o->n;
    for (uint32_t i = 0; i < o->n_prompts && o->echo; i++)
        if (!spell_prompt(o->tok, &s->o.prompts[i])) goto fail;
    for (uint32_t i = 0; i < s->n_choices; i++)
        if (!init_choice(s, &s->choices[i], &s->o.prompts[i / o->n])) goto fail;
    return s;

fail:
    stream_destroy(s);
    return NULL;
}

void stream_destroy(stream *s) {
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->n_choices; i++) {
        choice *c = &s->choices[i];
        buf_deinit(&c->text);
        message_deinit(&c->parts);
        thoughts_deinit(&c->thoughts);
        free(c->stop);
        free(c->entries);
        free(c->tops);
        free(c->ids);
    }
    free(s->choices);
    stream_options_deinit(&s->o);
    free(s);
}

const stream_options *stream_about(const stream *s) {
    return &s->o;
}
const api_error *stream_error(const stream *s) {
    return &s->error;
}
bool stream_is_done(const stream *s) {
    return s->n_ended == s->n_choices;
}
const char *stream_finish_reason(const stream *s) {
    return s->choices[0].finish == NULL ? "" : s->choices[0].finish;
}

void stream_fail(stream *s, api_fault fault, const char *message) {
    api_fail(&s->error, fault, NULL, "%s", message);
}

static void fail_memory(stream *s) {
    stream_fail(s, API_INTERNAL, "the server is short of memory");
}

/* ---- stored per token ---- */

/* Room for `n` more elements; arrays here grow by doubling and shrink only with their choice. */
static bool grow(void **p, size_t n_used, size_t n_more, size_t *capacity, size_t element_bytes) {
    size_t wanted = n_used + n_more, n_bytes;
    if (wanted <= *capacity) return true;
    wanted = size_max(wanted, *capacity * 2);
    wanted = size_max(wanted, 16);
    if (!size_mul(wanted, element_bytes, &n_bytes)) return false;
    void *q = realloc(*p, n_bytes);
    if (q == NULL) return false;
    *p = q;
    *capacity = wanted;
    return true;
}

static entry *add_entry(choice *c, const sample_result *r) {
    if (!grow((void **)&c->entries, c->n_entries, 1, &c->entries_capacity, sizeof *c->entries) ||
        !grow((void **)&c->tops, c->n_tops, r->n_top, &c->tops_capacity, sizeof *c->tops))
        return NULL;
    entry *e = &c->entries[c->n_entries++];
    *e = (entry){
        .id = r->id, .known = true, .logprob = r->logprob, .n_top = r->n_top, .top_at = c->n_tops};
    if (r->n_top > 0) memcpy(c->tops + c->n_tops, r->top, r->n_top * sizeof *r->top);
    c->n_tops += r->n_top;
    return e;
}

static bool add_id(choice *c, tok_id id) {
    if (!grow((void **)&c->ids, c->n_ids, 1, &c->ids_capacity, sizeof *c->ids)) return false;
    c->ids[c->n_ids++] = id;
    return true;
}

/* The text added since it had `from` bytes; never NULL. */
static bytes text_since(const choice *c, size_t from) {
    return (bytes){c->text.p == NULL ? "" : c->text.p + from, c->text.n - from};
}

static uint64_t text_end(const choice *c) {
    return c->sent + c->text.n;
}

/* ---- writing ---- */

/* Log-probabilities and ids of reasoning are left out: a token waits until it is known. */
static bool hides_thoughts(const stream *s) {
    return s->o.format != NULL && s->o.hides_reasoning;
}

/* The first `n` entries, without hidden ones, as answer_logprobs.  NULL: no memory. */
static answer_logprob *list_logprobs(const choice *c, size_t n, size_t *n_listed) {
    answer_logprob *list = malloc((n == 0 ? 1 : n) * sizeof *list);
    *n_listed = 0;
    if (list == NULL) return NULL;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &c->entries[i];
        if (e->hidden) continue;
        list[(*n_listed)++] = (answer_logprob){.id = e->id,
                                               .known = e->known,
                                               .logprob = e->logprob,
                                               .text_offset = e->text_offset,
                                               .n_top = e->n_top,
                                               .top = e->n_top == 0 ? NULL : c->tops + e->top_at};
    }
    return list;
}

static void drop_entries(choice *c, size_t n) {
    if (n == 0) return;
    size_t n_tops = n == c->n_entries ? c->n_tops : c->entries[n].top_at;
    memmove(c->entries, c->entries + n, (c->n_entries - n) * sizeof *c->entries);
    if (c->n_tops > n_tops)
        memmove(c->tops, c->tops + n_tops, (c->n_tops - n_tops) * sizeof *c->tops);
    c->n_entries -= n;
    c->n_tops -= n_tops;
    for (size_t i = 0; i < c->n_entries; i++) c->entries[i].top_at -= n_tops;
    c->n_settled -= size_min(c->n_settled, n);
}

static answer_choice describe(const stream *s, uint32_t choice_idx) {
    const choice *c = &s->choices[choice_idx];
    answer_choice a = {.index = choice_idx,
                       .show_ids = s->o.show_ids,
                       .finish = c->finish,
                       .stop_reason = c->stop_reason,
                       .stop_id = c->stop_id};
    if (c->stop_reason == STOP_REASON_STRING)
        a.stop_string = stop_set_at(s->o.stops, c->stop_string);
    return a;
}

static void write_chunk(stream *s, const answer_choice *a, buf *out) {
    answer_usage now = stream_usage(s);
    now.running = true;
    sse_chunk(out, &s->head, a, s->o.continuous_usage ? &now : NULL);
}

/* Writes the role, and the echo of the prompt. */
static void open_choice(stream *s, uint32_t choice_idx, buf *out) {
    choice *c = &s->choices[choice_idx];
    if (c->opened) return;
    c->opened = true;
    if (s->o.form != NULL) {
        answer_usage now = stream_usage(s);
        s->o.form->streaming = s->o.streaming;
        s->o.form->type->begin(s->o.form, &s->head, &now, s->o.streaming ? out : NULL);
        return;
    }
    const stream_prompt *p = &s->o.prompts[choice_idx / s->o.n];
    if (!s->o.chat && !s->o.echo && !s->o.show_ids) return;
    answer_choice a = {.index = choice_idx, .opens = true, .show_ids = s->o.show_ids};
    if (s->o.echo) a.text = (bytes){p->text, p->n_text};
    if (s->o.show_ids) {
        a.prompt_ids = p->ids.ids;
        a.n_prompt_ids = p->ids.n;
    }
    write_chunk(s, &a, out);
}

/* Is the token sent with the text before `until`?  A token that begins there waits: a stop string
 * may begin there as well, and then the token is not reported. */
static bool leaves(const entry *e, uint64_t until) {
    return e->start < until && e->end <= until;
}

/* Writes a chunk with the log-probabilities of the text before `until`, and the ids; `last`: all.
 */
static void write_entries(stream *s, choice *c, answer_choice *a, uint64_t until, bool last,
                          buf *out) {
    size_t n_entries = 0, n_listed = 0, n_ready = hides_thoughts(s) ? c->n_settled : c->n_entries;
    while (n_entries < n_ready && (last || leaves(&c->entries[n_entries], until))) n_entries++;
    answer_logprob *list = NULL;
    if (s->o.n_logprobs >= 0 && n_entries > 0) {
        list = list_logprobs(c, n_entries, &n_listed);
        if (list == NULL) {
            fail_memory(s);
            return;
        }
    }
    a->logprobs = n_listed > 0 ? list : NULL;
    a->n_logprobs = n_listed;
    a->ids = c->ids;
    a->n_ids = c->n_ids;
    write_chunk(s, a, out);
    free(list);
    drop_entries(c, n_entries);
    c->n_ids = 0;
}

/* Writes the next `n_text` bytes, log-probabilities and ids; `last`: all, and the finish reason. */
static void write_delta(stream *s, uint32_t choice_idx, size_t n_text, bool last, buf *out) {
    choice *c = &s->choices[choice_idx];
    answer_choice a = describe(s, choice_idx);
    if (!last) a.finish = NULL;
    a.text = (bytes){c->text.p, n_text};
    write_entries(s, c, &a, c->sent + n_text, last, out);
    if (n_text > 0) memmove(c->text.p, c->text.p + n_text, c->text.n - n_text);
    c->text.n -= n_text;
    c->sent += n_text;
}

/* ---- parts of a chat ---- */

/* What is known of a chunk before its text is taken apart. */
typedef struct deltas {
    stream *s;
    uint32_t choice_idx;
    buf *out;
} deltas;

/* Writes one part as a chunk; log-probabilities and ids of the text so far go with it. */
static void write_part(void *ctx, const message_part *p) {
    deltas *d = ctx;
    stream *s = d->s;
    if (s->o.form != NULL) {
        open_choice(s, d->choice_idx, d->out);
        s->o.form->type->part(s->o.form, p, s->o.streaming ? d->out : NULL);
        return;
    }
    choice *c = &s->choices[d->choice_idx];
    answer_choice a = describe(s, d->choice_idx);
    answer_call call = {.index = p->call_idx,
                        .id = p->id,
                        .name = p->name,
                        .arguments = p->text,
                        .custom = p->custom};
    if (call.arguments.p == NULL) call.arguments.p = "";
    a.finish = NULL;
    switch (p->kind) {
    case PART_REASONING:
        a.reasoning = p->text;
        break;
    case PART_CONTENT:
        a.text = p->text;
        break;
    case PART_CALL:
    case PART_ARGUMENTS:
        a.call = &call;
        break;
    case PART_CALL_END:
        return;
    }
    write_entries(s, c, &a, c->sent, false, d->out);
}

static bool writes_parts(const stream *s) {
    return s->o.streaming || s->o.form != NULL;
}

/* Counts the tokens of reasoning that are known by now, and hides them. */
static void count_thoughts(stream *s, uint32_t choice_idx) {
    choice *c = &s->choices[choice_idx];
    call_reasoning r = call_parser_reasoning(c->parts.parser);
    bool is_reasoning, hides = hides_thoughts(s);
    tok_id id;
    while (thoughts_next(&c->thoughts, &r, &id, &is_reasoning))
        if (hides && s->o.show_ids && !is_reasoning && !add_id(c, id)) fail_memory(s);
    for (; hides && c->n_settled < c->n_entries; c->n_settled++) {
        entry *e = &c->entries[c->n_settled];
        int64_t start = (int64_t)e->start, end = (int64_t)e->end;
        if (end > r.known) break;
        e->hidden = start < r.to && (start >= r.from || end > r.from); // a part of it is reasoning
    }
}

/* Takes the next n_text bytes apart. */
static void push_parts(stream *s, uint32_t choice_idx, size_t n_text, buf *out) {
    choice *c = &s->choices[choice_idx];
    deltas d = {s, choice_idx, out};
    bytes text = {c->text.p, n_text};
    c->sent += n_text;
    bool ok = n_text == 0 || message_push(&c->parts, text, writes_parts(s) ? write_part : NULL, &d);
    if (n_text > 0) memmove(c->text.p, c->text.p + n_text, c->text.n - n_text);
    c->text.n -= n_text;
    if (!ok) fail_memory(s);
    count_thoughts(s, choice_idx);
}

/* The rest of the text; a choice that stopped by itself and called something says so, unless the
 * call is cut: by a stop token. */
static void end_parts(stream *s, uint32_t choice_idx, buf *out) {
    choice *c = &s->choices[choice_idx];
    deltas d = {s, choice_idx, out};
    push_parts(s, choice_idx, c->text.n, out);
    if (!message_finish(&c->parts, writes_parts(s) ? write_part : NULL, &d)) fail_memory(s);
    count_thoughts(s, choice_idx);
    bool stopped = c->finish != NULL && strcmp(c->finish, "stop") == 0;
    if (stopped && c->parts.n_calls > 0 && !c->parts.is_cut)
        c->finish = s->o.function_calls ? "function_call" : "tool_calls";
}

/* A control token that is not shown, but may be a mark of the format. */
static void add_control(const stream *s, choice *c, tok_id id) {
    if (s->o.format == NULL || !tok_is_control(s->o.tok, id)) return;
    buf_add_char(&c->text, '\xff');
    bytes name = tok_name(s->o.tok, id);
    buf_add(&c->text, name.p, name.n);
    buf_add_char(&c->text, '\xff');
}

/* ---- events ---- */

/* A stop string is text of the answer: inside of a call it is none.  text[begin, end) is one; what
 * is certain before it goes to the parser first, which may move it. */
static bool is_in_call(stream *s, uint32_t choice_idx, size_t *begin, size_t *end, buf *out) {
    choice *c = &s->choices[choice_idx];
    if (s->o.format == NULL || s->o.no_calls) return false;
    size_t n_safe = size_min(*begin, *end - stop_held(s->o.stops, c->stop));
    push_parts(s, choice_idx, n_safe, out);
    *begin -= n_safe;
    *end -= n_safe;
    return call_parser_in_call(c->parts.parser, (bytes){c->text.p, *end});
}

/* Looks for stop strings in text[from ..); a match cuts the text there. */
static void match_stops(stream *s, uint32_t choice_idx, size_t from, buf *out) {
    choice *c = &s->choices[choice_idx];
    stop_match m;
    bytes fresh = text_since(c, from);
    size_t begin, end = from;
    if (c->matched) return;
    do {
        if (!stop_feed(s->o.stops, c->stop, fresh.p, fresh.n, &m)) return;
        end += m.end;
        begin = end - m.n;
        bool ignored = is_in_call(s, choice_idx, &begin, &end, out);
        if (!ignored) break;
        fresh = text_since(c, end);
    } while (true);
    size_t cut = s->o.include_stop ? end : begin;
    c->text.n = cut;
    uint64_t cut_at = c->sent + cut;
    while (c->n_entries > 0 && !c->entries[c->n_entries - 1].prompt &&
           c->entries[c->n_entries - 1].start >= cut_at)
        c->n_tops = c->entries[--c->n_entries].top_at;
    c->n_settled = size_min(c->n_settled, c->n_entries);
    c->matched = true;
    c->finish = "stop";
    c->stop_reason = STOP_REASON_STRING;
    c->stop_string = m.string_idx;
}

/* Does the engine end a sequence at this token?  The rule is repeated here because the token's text
 * must not appear, and the token comes before the event that reports the end. */
static bool ends_sequence(const stream *s, tok_id id) {
    for (uint32_t i = 0; i < s->o.n_stop_ids; i++)
        if (s->o.stop_ids[i] == id) return true;
    return !s->o.ignore_eos && tok_is_end(s->o.tok, id);
}

static void take_token(stream *s, uint32_t choice_idx, const sample_result *r, buf *out) {
    choice *c = &s->choices[choice_idx];
    if (c->matched) return;
    c->n_tokens++;
    bool shown = s->o.include_stop || !ends_sequence(s, r->id);
    size_t from = c->text.n;
    if (s->o.show_ids && !hides_thoughts(s) && !add_id(c, r->id)) {
        fail_memory(s);
        return;
    }
    size_t n_earlier = shown ? tok_stream_push(&c->words, r->id, &c->text) : 0;
    if (shown) add_control(s, c, r->id);
    thought_token thought = {.id = r->id,
                             .shown = shown,
                             .start = (int64_t)(c->sent + from + n_earlier),
                             .end = (int64_t)text_end(c)};
    if (s->o.format != NULL && !thoughts_add(&c->thoughts, &thought)) {
        fail_memory(s);
        return;
    }
    if (shown && s->o.n_logprobs >= 0) {
        entry *e = add_entry(c, r);
        if (e == NULL) {
            fail_memory(s);
            return;
        }
        e->start = c->sent + from + n_earlier;
        e->end = text_end(c);
        e->text_offset = c->n_points + (n_earlier > 0);
    }
    if (c->text.failed) {
        fail_memory(s);
        return;
    }
    bytes fresh = text_since(c, from);
    c->n_points += count_points(fresh.p, fresh.n);
    if (c->n_tokens > s->o.min_tokens) match_stops(s, choice_idx, from, out);
    bool apart = s->o.format != NULL;
    if ((!s->o.streaming && !apart) || c->matched) return; // end_choice writes a matched choice
    size_t n_safe = c->text.n - stop_held(s->o.stops, c->stop);
    if (n_safe > 0 && !apart) write_delta(s, choice_idx, n_safe, false, out);
    if (!apart) return;
    push_parts(s, choice_idx, n_safe, out);
}

/* One token of the echoed prompt.  Tokens that are not in the text (an added BOS) are empty. */
static void take_prompt(stream *s, uint32_t choice_idx, const sample_result *r) {
    choice *c = &s->choices[choice_idx];
    const stream_prompt *p = &s->o.prompts[choice_idx / s->o.n];
    uint32_t at = c->n_prompt_seen++;
    if (!s->o.echo || s->o.n_logprobs < 0 || at >= p->ids.n) return;
    entry *e = add_entry(c, r);
    if (e == NULL) {
        fail_memory(s);
        return;
    }
    e->prompt = true;
    e->known = at > 0;
    e->text_offset = c->prompt_points;
    if (at == 0 && p->bos_added) return;
    buf scratch = {0};
    e->text_offset += tok_stream_push(&c->prompt_words, r->id, &scratch) > 0; // one code point
    if (scratch.failed) fail_memory(s);
    c->prompt_points += count_points(scratch.p, scratch.n);
    buf_deinit(&scratch);
}

/* Writes the last bytes of an unfinished code point, then closes the choice. */
static void end_choice(stream *s, uint32_t choice_idx, buf *out) {
    choice *c = &s->choices[choice_idx];
    if (!c->matched) {
        size_t from = c->text.n;
        /* Half a code point is U+FFFD, but no part of a mark of calls, or of arguments. */
        bool in_call =
            s->o.format != NULL && call_parser_in_call(c->parts.parser, text_since(c, 0));
        if (!in_call) tok_stream_finish(&c->words, &c->text);
        if (c->text.failed) {
            fail_memory(s);
            return;
        }
        if (c->n_tokens > s->o.min_tokens) match_stops(s, choice_idx, from, out);
    }
    if (s->o.format != NULL) {
        if (writes_parts(s)) open_choice(s, choice_idx, out);
        end_parts(s, choice_idx, out);
    }
    if (!s->o.streaming || s->o.form != NULL) return;
    open_choice(s, choice_idx, out);
    if (c->text.n > 0) write_delta(s, choice_idx, c->text.n, false, out);
    write_delta(s, choice_idx, 0, true, out);
}

/* Handles a sequence that ended without a usable answer. */
static void take_failure(stream *s, const gen_event *ev) {
    inferd_err err = {.status = ev->done.status == INFERD_OK ? INFERD_EDEVICE : ev->done.status};
    snprintf(err.text, sizeof err.text, "%.*s", GEN_TEXT_BYTES, ev->done.text);
    switch (ev->done.finish) {
    case GEN_TIMEOUT:
        stream_fail(s, API_DEADLINE, err.text);
        return;
    case GEN_CANCELLED:
        stream_fail(s, API_DRAINING, "the server is shutting down");
        return;
    default:
        break;
    }
    if (err.status == INFERD_EUNSUPPORTED && s->o.constraint != NULL) // a limit of its grammar
        api_fail(&s->error, API_UNSUPPORTED_SCHEMA, s->o.constraint, "%s", err.text);
    else
        api_fail_status(&s->error, &err, s->o.chat ? "messages" : "prompt");
    if (err.status == INFERD_EMODEL) api_retry_after(&s->error, ev->done.retry_after_ms);
    form_locate(s->o.form, &s->error);
}

static void take_done(stream *s, uint32_t choice_idx, const gen_event *ev, buf *out) {
    choice *c = &s->choices[choice_idx];
    INFERD_CHECK(!c->ended);
    c->ended = true;
    s->n_ended++;
    c->n_cached = ev->done.n_cached;
    c->queued_us = ev->done.queued_us;
    c->queued_steps = ev->done.queued_steps;
    memcpy(c->n_preempts, ev->done.n_preempts, sizeof c->n_preempts);
    c->n_recomputed = ev->done.n_recomputed;
    c->away_us = ev->done.away_us;
    c->waste_us = ev->done.waste_us;
    c->swap_in_us = ev->done.swap_in_us;
    c->device_us = ev->done.device_us;
    if (s->error.fault != API_OK || c->matched) return; // its last chunk was written
    gen_finish f = ev->done.finish;
    if (f != GEN_STOP && f != GEN_LENGTH) {
        take_failure(s, ev);
        return;
    }
    c->finish = f == GEN_STOP ? "stop" : "length";
    if (f == GEN_STOP && ev->done.stop_id >= 0) {
        c->stop_reason = STOP_REASON_ID;
        c->stop_id = ev->done.stop_id;
    }
    end_choice(s, choice_idx, out);
}

bool stream_on_event(stream *s, uint32_t choice_idx, const gen_event *ev, buf *out) {
    INFERD_CHECK(choice_idx < s->n_choices);
    choice *c = &s->choices[choice_idx];
    if (ev->kind == GEN_EV_DONE) {
        take_done(s, choice_idx, ev, out);
        return false;
    }
    if (s->error.fault != API_OK || c->matched) return false;
    if (ev->kind == GEN_EV_PROMPT) {
        take_prompt(s, choice_idx, &ev->token.r);
        return false;
    }
    if (c->n_tokens == 0) c->n_cached = ev->token.n_cached;
    if (s->o.streaming) open_choice(s, choice_idx, out);
    take_token(s, choice_idx, &ev->token.r, out);
    if (c->matched) end_choice(s, choice_idx, out);
    return c->matched;
}

/* ---- the end ---- */

answer_usage stream_usage(const stream *s) {
    answer_usage u = {0};
    for (uint32_t i = 0; i < s->o.n_prompts; i++) {
        u.n_prompt += s->o.prompts[i].ids.n;
        u.n_cached += s->choices[i * s->o.n].n_cached; // other choices share the prompt with it
    }
    for (uint32_t i = 0; i < s->n_choices; i++) {
        const choice *c = &s->choices[i];
        u.n_output += c->n_tokens;
        u.n_reasoning += c->thoughts.n_reasoning;
        for (int r = 0; r < GEN_PREEMPTS; r++) {
            u.n_preempts[r] += c->n_preempts[r];
            u.n_preempted += c->n_preempts[r];
        }
        u.n_recomputed += c->n_recomputed;
        u.away_us += c->away_us;
        u.waste_us += c->waste_us;
        u.swap_in_us += c->swap_in_us;
        u.device_us += c->device_us;
        if (c->queued_us > u.queued_us) u.queued_us = c->queued_us;
        u.queued_steps = u32_max(u.queued_steps, c->queued_steps);
    }
    if (s->o.usage_details) u.prio = s->o.prio;
    return u;
}

static bool write_choice(stream *s, uint32_t choice_idx, buf *out) {
    choice *c = &s->choices[choice_idx];
    const stream_prompt *p = &s->o.prompts[choice_idx / s->o.n];
    answer_choice a = describe(s, choice_idx);
    buf whole = {0};
    if (s->o.echo) {
        buf_add(&whole, p->text, p->n_text);
        buf_add(&whole, c->text.p, c->text.n);
        a.text = (bytes){whole.p, whole.n};
    } else {
        a.text = (bytes){c->text.p, c->text.n};
    }
    if (s->o.format != NULL) {
        a.text = (bytes){c->parts.content.p, c->parts.content.n};
        a.reasoning = (bytes){c->parts.reasoning.p, c->parts.reasoning.n};
        a.calls = (bytes){c->parts.calls.p, c->parts.calls.n};
    }
    size_t n_listed = 0;
    answer_logprob *list = s->o.n_logprobs >= 0 ? list_logprobs(c, c->n_entries, &n_listed) : NULL;
    bool ok = !whole.failed && (s->o.n_logprobs < 0 || list != NULL);
    a.logprobs = list;
    a.n_logprobs = n_listed;
    a.ids = c->ids;
    a.n_ids = c->n_ids;
    if (s->o.show_ids && !s->o.chat) {
        a.prompt_ids = p->ids.ids;
        a.n_prompt_ids = p->ids.n;
    }
    if (ok) answer_choice_add(out, &s->head, &a);
    free(list);
    buf_deinit(&whole);
    return ok;
}

bool stream_finish(stream *s, buf *out) {
    INFERD_CHECK(stream_is_done(s) && s->error.fault == API_OK);
    answer_usage u = stream_usage(s);
    if (s->o.form != NULL) {
        answer_choice a = describe(s, 0);
        answer_end e = {.finish = a.finish, .stop_string = a.stop_string, .usage = u};
        s->o.form->type->end(s->o.form, &e, out);
        return !out->failed;
    }
    if (s->o.streaming) {
        if (s->o.include_usage) sse_usage(out, &s->head, &u);
        sse_done(out);
        return !out->failed;
    }
    answer_open(out, &s->head);
    for (uint32_t i = 0; i < s->n_choices; i++)
        if (!write_choice(s, i, out)) return false;
    const stream_prompt *p = &s->o.prompts[0];
    bool ids = s->o.chat && s->o.show_ids;
    answer_close(out, &s->head, &u, ids ? p->ids.ids : NULL, ids ? p->ids.n : 0);
    return !out->failed;
}

void stream_write_error(stream *s, const api_error *e, buf *out) {
    if (s->o.form == NULL) {
        sse_error(out, e);
        return;
    }
    open_choice(s, 0, out); // it may fail before its first token
    s->o.form->type->fail(s->o.form, e, out);
}
