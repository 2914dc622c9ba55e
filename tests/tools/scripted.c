/* scripted.c - a daemon in which a script says what models write; all else is as it is.
 *
 *     INFERD_SCRIPT=script.jsonl inferd_scripted serve ...        script.h has the lines
 *
 * The program is the daemon's own main and rooms; the linker (--wrap) puts one function of this
 * file between the engine and sched_refresh, which the engine calls before the draws of a step.
 * There each draw gets a mask with one token, that of the script, and the sampler draws it.  So
 * log-probabilities are those of the model, and nothing else knows of the script.
 *
 * Token k of a sequence's output is token k of its script, whatever step computes it.  After the
 * last one comes an end token.  The request fails, with an error that says why, when
 *
 *     no line of the script matches the prompt
 *     a token is outside the mask of its position, or min_tokens bans it
 *     the text of a grammar has ended, and the script has not
 *
 * The device must draw on the host, one step at a time: the CPU does.
 *
 * Thread: engines, one at a time by a lock. */
#include <pthread.h>
#include <string.h>

#include "inferd/clock.h"
#include "sched_state.h"
#include "tools/script.h"

enum { SHOWN_ALLOWED = 8, SHOWN_PROMPT_BYTES = 2000 };

void __wrap_sched_refresh(sched *s, step *st);
void __real_sched_refresh(sched *s, step *st);

/* The output of a sequence, as its line of the script has it. */
typedef struct seq_output {
    uint64_t request_id; // 0: none
    uint32_t line_no;
    tok_ids tokens;
} seq_output;

/* Of one scheduler: the outputs of its sequences, and masks for the draws of one step. */
typedef struct sched_outputs {
    struct sched_outputs *next;
    const sched *s;
    uint32_t n;
    seq_output *of; // [n] as sched.seqs
    uint64_t *masks;
    size_t n_words; // of masks
} sched_outputs;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sched_outputs *all;
static script *the_script;

/* ---- memory: the program ends where there is none ---- */

static void *must(void *p) {
    INFERD_CHECK(p != NULL);
    return p;
}

static sched_outputs *outputs_of(const sched *s) {
    sched_outputs *o = all;
    while (o != NULL && (o->s != s || o->n != s->n_seqs)) o = o->next;
    if (o != NULL) return o;
    o = must(calloc(1, sizeof *o));
    *o = (sched_outputs){.next = all, .s = s, .n = s->n_seqs};
    o->of = must(calloc(size_max(s->n_seqs, 1), sizeof *o->of));
    all = o;
    return o;
}

/* Empty masks for all draws of a step. */
static void clear_masks(sched_outputs *o, size_t n_words) {
    if (n_words > o->n_words) {
        o->masks = must(realloc(o->masks, n_words * sizeof *o->masks));
        o->n_words = n_words;
    }
    if (n_words > 0) memset(o->masks, 0, n_words * sizeof *o->masks);
}

/* ---- the line of a sequence ---- */

static void decode_prompt(const seq *q, const tokenizer *tok, buf *out) {
    tok_stream words;
    tok_stream_init(&words, tok, false);
    for (uint32_t i = 0; i < q->req->n_prompt; i++) tok_stream_push(&words, seq_tokens(q)[i], out);
    tok_stream_finish(&words, out);
    INFERD_CHECK(!out->failed);
}

static void show_prompt(const buf *prompt) {
    size_t n = size_min(prompt->n, SHOWN_PROMPT_BYTES);
    buf shown = {0};
    script_quote((bytes){prompt->p + (prompt->n - n), n}, &shown);
    fprintf(stderr, "scripted: the prompt ends with %s\n", buf_cstr(&shown));
    buf_deinit(&shown);
}

static inferd_status find_line(const buf *prompt, script_line *out, inferd_err *err) {
    const char *path = getenv("INFERD_SCRIPT");
    inferd_status status = INFERD_OK;
    if (path == NULL) return inferd_fail(err, INFERD_EINVAL, "INFERD_SCRIPT names no script");
    if (the_script == NULL) status = script_open(path, &the_script, err);
    if (status == INFERD_OK)
        status = script_find(the_script, (bytes){prompt->p, prompt->n}, out, err);
    if (status == INFERD_ENOTFOUND) show_prompt(prompt);
    return status;
}

static inferd_status choose_output(seq_output *o, const seq *q, const sched_model_spec *spec,
                                   inferd_err *err) {
    buf prompt = {0};
    script_line line;
    tok_ids_deinit(&o->tokens);
    *o = (seq_output){0};
    decode_prompt(q, spec->tok, &prompt);
    inferd_status status = find_line(&prompt, &line, err);
    buf_deinit(&prompt);
    if (status != INFERD_OK) return status;
    o->request_id = q->req->id;
    o->line_no = line.no;
    return script_encode(line.say, spec->tok, spec->n_vocab, &o->tokens, err);
}

/* ---- one token ---- */

static bool is_banned(const sample_row *row, tok_id id) {
    for (uint32_t i = 0; i < row->n_banned; i++)
        if (row->banned[i] == id) return true;
    return false;
}

static bool is_allowed(const sample_row *row, tok_id id) {
    if (row->mask == NULL) return true;
    return (row->mask[(uint32_t)id / 64] >> ((uint32_t)id % 64) & 1) != 0;
}

/* An end token that may be drawn, that of the file first; else any, which then fails. */
static tok_id choose_end(const sched_model_spec *spec, const sample_row *row) {
    tok_id first = tok_eos(spec->tok);
    if (first >= 0 && is_allowed(row, first) && !is_banned(row, first)) return first;
    for (uint32_t i = 0; i < spec->n_end_ids; i++)
        if (is_allowed(row, spec->end_ids[i]) && !is_banned(row, spec->end_ids[i]))
            return spec->end_ids[i];
    return first >= 0 || spec->n_end_ids == 0 ? first : spec->end_ids[0];
}

/* Its bytes; a control token has only a name. */
static void quote_token(const tokenizer *tok, tok_id id, buf *out) {
    bytes piece = tok_piece(tok, id);
    script_quote(tok_is_control(tok, id) || piece.n == 0 ? tok_name(tok, id) : piece, out);
}

/* " "a" "b" and 3 more". */
static void list_allowed(const sched_model_spec *spec, const sample_row *row, buf *out) {
    uint32_t n = 0;
    for (tok_id id = 0; id < (tok_id)spec->n_vocab; id++) {
        if (!is_allowed(row, id) || n++ >= SHOWN_ALLOWED) continue;
        buf_add_char(out, ' ');
        quote_token(spec->tok, id, out);
    }
    if (n > SHOWN_ALLOWED) buf_add_format(out, " and %u more", n - SHOWN_ALLOWED);
    if (n == 0) buf_add_str(out, " nothing");
}

static inferd_status fail_token(const seq_output *o, const sched_model_spec *spec, uint32_t k,
                                tok_id id, const char *why, inferd_err *err) {
    buf name = {0};
    quote_token(spec->tok, id, &name);
    inferd_fail(err, INFERD_EINVAL, "script line %u, token %u%s %s: %s", o->line_no, k,
                k < o->tokens.n ? "" : ", the end", buf_cstr(&name), why);
    buf_deinit(&name);
    return INFERD_EINVAL;
}

static inferd_status check_token(const seq_output *o, const sched_model_spec *spec,
                                 const sample_row *row, uint32_t k, tok_id id, inferd_err *err) {
    if (id < 0) return inferd_fail(err, INFERD_EINVAL, "the model has no end token");
    if (is_banned(row, id)) return fail_token(o, spec, k, id, "banned before min_tokens", err);
    if (is_allowed(row, id)) return INFERD_OK;
    buf why = {0};
    buf_add_str(&why, "outside the mask, allowed:");
    list_allowed(spec, row, &why);
    fail_token(o, spec, k, id, buf_cstr(&why), err);
    buf_deinit(&why);
    return INFERD_EINVAL;
}

/* With this token the text of the grammar has ended: the scheduler ends the sequence.  Draft tokens
 * up to n_tokens are among the sequence's. */
static bool ends_grammar(const seq *q, uint32_t n_tokens, tok_id id) {
    const constraint *c = q->constraint;
    inferd_err unsaid = {0};
    if (c == NULL || !c->here) return false;
    grammar_pos pos = grammar_copy(c->machine, c->pos);
    bool on = pos != 0;
    for (uint32_t i = c->n_seen; i < n_tokens && on; i++)
        on = grammar_accept(c->machine, pos, seq_tokens(q)[i], &unsaid);
    on = on && grammar_accept(c->machine, pos, id, &unsaid) && grammar_must_end(c->machine, pos);
    grammar_drop(c->machine, pos);
    return on;
}

/* More than an end token comes behind token k. */
static bool has_more(const seq_output *o, const tokenizer *tok, uint32_t k) {
    return k + 1 < o->tokens.n && !tok_is_end(tok, o->tokens.ids[k + 1]);
}

/* ---- one step ---- */

static inferd_status force_draws(sched_outputs *outputs, sched *s, step *st, const step_item *item,
                                 inferd_err *err) {
    const seq *q = item->q;
    const sched_model_spec *spec = &seq_model(s, q)->spec;
    seq_output *o = &outputs->of[q - s->seqs];
    size_t n_words = (spec->n_vocab + 63) / 64;
    for (uint32_t d = item->draw_begin; d < item->draw_begin + item->n_draws; d++) {
        sample_row *row = &st->draws[d].row;
        if (row->forced >= 0) continue;             // a token of the prompt is scored
        if (st->draws[d].dropped) return INFERD_OK; // its row is computed again
        inferd_status status =
            o->request_id == q->req->id ? INFERD_OK : choose_output(o, q, spec, err);
        if (status != INFERD_OK) return status;
        uint32_t k = row->n_tokens - row->n_prompt;
        tok_id id = k < o->tokens.n ? o->tokens.ids[k] : choose_end(spec, row);
        status = check_token(o, spec, row, k, id, err);
        if (status != INFERD_OK) return status;
        if (has_more(o, spec->tok, k) && ends_grammar(q, row->n_tokens, id))
            return fail_token(o, spec, k, id, "the grammar has ended, but not the script", err);
        uint64_t *mask = outputs->masks + d * n_words;
        mask[(uint32_t)id / 64] |= UINT64_C(1) << ((uint32_t)id % 64);
        row->mask = mask;
        row->n_banned = 0;
        /* Behind a wrong draft nothing counts. */
        if (d + 1 < item->draw_begin + item->n_draws && seq_tokens(q)[row->n_tokens] != id)
            return INFERD_OK;
    }
    return INFERD_OK;
}

static void end_failed(sched *s, step *st, const step_item *item, const inferd_err *err) {
    fprintf(stderr, "scripted: request %llu: %s\n", (unsigned long long)item->q->req->id,
            err->text);
    for (uint32_t d = 0; d < item->n_draws; d++) st->draws[item->draw_begin + d].dropped = true;
    sched_end_seq(s, item->q, GEN_ERROR, -1, INFERD_EINVAL, err->text, clock_now_us());
}

void __wrap_sched_refresh(sched *s, step *st) {
    __real_sched_refresh(s, st);
    INFERD_CHECK(s->limits.depth == 1); // else a step that needs the token has been launched
    pthread_mutex_lock(&lock);
    sched_outputs *outputs = outputs_of(s);
    clear_masks(outputs,
                (size_t)st->b.n_logits * ((s->models[st->model_idx].spec.n_vocab + 63) / 64));
    for (uint32_t i = 0; i < st->b.n_seqs; i++) {
        const step_item *item = &st->items[i];
        inferd_err err = {0};
        if (item->run != item->q->run || item->q->state != SEQ_RUNNING) continue;
        if (force_draws(outputs, s, st, item, &err) != INFERD_OK) end_failed(s, st, item, &err);
    }
    pthread_mutex_unlock(&lock);
}
