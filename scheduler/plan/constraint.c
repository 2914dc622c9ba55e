/* constraint.c - see constraint.h. */
#include "constraint.h"

#include <string.h>

#include "inferd/clock.h"

constraint *constraint_create(grammar_machine *machine, const tokenizer *tok, uint32_t n_vocab) {
    constraint *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    grammar_machine_hold(machine);
    c->machine = machine;
    c->tok = tok;
    c->n_vocab = n_vocab;
    atomic_init(&c->state, CONSTRAINT_DONE);
    list_node_init(&c->queued);
    list_node_init(&c->asked);
    return c;
}

static void clear_walk(constraint_walk *w) {
    for (uint32_t i = 0; i < w->n; i++) grammar_mask_release(w->masks[i]);
    w->n = 0;
}

void constraint_forget(constraint *c) {
    grammar_mask_release(c->mask);
    c->mask = NULL;
    clear_walk(&c->guess);
    clear_walk(&c->forced);
}

void constraint_destroy(constraint *c) {
    if (c == NULL) return;
    constraint_forget(c);
    grammar_drop(c->machine, c->pos);
    grammar_machine_release(c->machine);
    free(c);
}

bool mask_has_other(const grammar_mask *mask, const tok_id *ids, uint32_t n) {
    for (uint32_t w = 0; w < mask->n_words; w++) {
        uint64_t left = mask->bits[w];
        for (uint32_t i = 0; left != 0 && i < n; i++)
            if ((uint32_t)ids[i] / 64 == w) left &= ~(UINT64_C(1) << (uint32_t)ids[i] % 64);
        if (left != 0) return true;
    }
    return false;
}

/* ---- answering ---- */

/* A mask with a larger serial than all before it was not in a cache. */
static void count_mask(constraint *c, const grammar_mask *mask) {
    static atomic_ullong newest;
    unsigned long long seen = atomic_load_explicit(&newest, memory_order_relaxed);
    c->n_masks++;
    while (mask->n_serial > seen)
        if (atomic_compare_exchange_weak_explicit(&newest, &seen, mask->n_serial,
                                                  memory_order_relaxed, memory_order_relaxed)) {
            c->n_made++;
            return;
        }
}

static grammar_mask *get_mask(constraint *c, grammar_pos pos, inferd_err *err) {
    grammar_mask *mask = grammar_mask_get(c->machine, pos, err);
    if (mask == NULL) return NULL;
    count_mask(c, mask);
    if ((uint64_t)mask->n_words * 64 >= c->n_vocab) return mask;
    inferd_fail(err, INFERD_EINVAL, "the grammar's masks have %u bits, the model has %u tokens",
                mask->n_words * 64, c->n_vocab);
    grammar_mask_release(mask);
    return NULL;
}

static void fail(constraint *c, inferd_status otherwise, const inferd_err *why, const char *what) {
    c->err = *why;
    if (c->err.status == INFERD_OK) inferd_fail(&c->err, otherwise, "it gave no reason");
    if (c->err.status == INFERD_ETOOLONG) c->err.status = INFERD_EUNSUPPORTED; // not of the prompt
    inferd_context(&c->err, "%s", what);
}

/* Ends reasoning that has its budget. */
static bool keep_budget(const constraint *c, grammar_pos pos, uint32_t n_reasoned,
                        inferd_err *err) {
    return !c->bounds_reasoning || n_reasoned < c->reasoning_tokens_max ||
           grammar_close_reasoning(c->machine, pos, err);
}

bool constraint_accept(const constraint *c, grammar_pos pos, uint32_t *n_reasoned, tok_id id,
                       inferd_err *err) {
    bool reasons = c->bounds_reasoning && grammar_in_reasoning(c->machine, pos);
    if (!grammar_accept(c->machine, pos, id, err)) return false;
    *n_reasoned += reasons;
    return keep_budget(c, pos, *n_reasoned, err);
}

static bool accept_all(constraint *c) {
    inferd_err err = {0};
    for (uint32_t i = 0; i < c->n_accepted; i++) {
        if (constraint_accept(c, c->pos, &c->n_reasoned, c->accepted[i], &err)) continue;
        char what[80];
        snprintf(what, sizeof what, "the grammar does not accept token %d, which was drawn",
                 c->accepted[i]);
        /* It was in the mask, so this is no fault of the request. */
        if (err.status == INFERD_EINVAL) err.status = INFERD_EDEVICE;
        fail(c, INFERD_EDEVICE, &err, what);
        return false;
    }
    return true;
}

static bool is_allowed(const constraint *c, const grammar_mask *mask, tok_id id) {
    return id >= 0 && (uint32_t)id < c->n_vocab && grammar_mask_has(mask, id);
}

/* Accepts the n tokens of the walk in order, as far as they are allowed and masks can be had. */
static void walk_on(constraint *c, constraint_walk *w, uint32_t n) {
    const grammar_mask *mask = c->mask;
    inferd_err unsaid = {0};
    grammar_pos pos = n > 0 ? grammar_copy(c->machine, c->pos) : 0;
    uint32_t n_reasoned = c->n_reasoned;
    w->n = 0;
    while (pos != 0 && w->n < n && is_allowed(c, mask, w->tokens[w->n]) &&
           constraint_accept(c, pos, &n_reasoned, w->tokens[w->n], &unsaid) &&
           !grammar_must_end(c->machine, pos)) {
        grammar_mask *next = get_mask(c, pos, &unsaid);
        if (next == NULL) break;
        w->masks[w->n++] = next;
        mask = next;
    }
    grammar_drop(c->machine, pos);
}

/* ---- forced text ---- */

/* Bytes of whole code points. */
static size_t whole_points(const char *p, size_t n) {
    size_t begin = n;
    while (begin > 0 && n - begin < 4 && ((unsigned char)p[begin - 1] & 0xC0) == 0x80) begin--;
    if (begin == 0) return 0;
    unsigned char lead = (unsigned char)p[begin - 1];
    size_t needed = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return n - (begin - 1) >= needed ? n : begin - 1;
}

/* Bytes that a token takes in the text of a grammar. */
static size_t text_bytes(const constraint *c, tok_id id) {
    return tok_is_control(c->tok, id) ? tok_name(c->tok, id).n + 2 : tok_piece(c->tok, id).n;
}

/* May a token of the model begin here and be longer than the n bytes of forced text that are left?
 * A mask of so many tokens that this takes long counts as yes. */
static bool may_span(const constraint *c, const grammar_mask *mask, size_t n) {
    uint32_t n_seen = 0;
    for (uint32_t w = 0; w < mask->n_words; w++)
        for (uint64_t left = mask->bits[w]; left != 0; left &= left - 1) {
            tok_id id = (tok_id)(64 * w + (uint32_t)__builtin_ctzll(left));
            if (++n_seen > CONSTRAINT_SPANS_MAX || text_bytes(c, id) > n) return true;
        }
    return false;
}

/* Cuts the walk where a token could reach behind the text. */
static void cut_walk(const constraint *c, constraint_walk *w, size_t n_bytes) {
    const grammar_mask *mask = c->mask;
    for (uint32_t i = 0; i < w->n; i++) {
        if (may_span(c, mask, n_bytes)) {
            for (uint32_t j = i; j < w->n; j++) grammar_mask_release(w->masks[j]);
            w->n = i;
            return;
        }
        n_bytes -= size_min(n_bytes, text_bytes(c, w->tokens[i]));
        mask = w->masks[i];
    }
}

/* The next part of forced text, taken from *rest: a symbol, or text up to one.  False: there is
 * none, or only half a symbol. */
static bool next_part(bytes *rest, bytes *part, bool *is_symbol) {
    if (rest->n == 0) return false;
    *is_symbol = *rest->p == GRAMMAR_TOKEN_MARK;
    const char *mark = memchr(rest->p + *is_symbol, GRAMMAR_TOKEN_MARK, rest->n - *is_symbol);
    if (*is_symbol && mark == NULL) return false;
    size_t n = mark == NULL ? rest->n : (size_t)(mark - rest->p) + *is_symbol;
    *part = (bytes){rest->p, n};
    *rest = (bytes){rest->p + n, rest->n - n};
    return true;
}

/* The tokens of forced text; *n_bytes: of the parts that have some.  False: no memory. */
static bool encode_forced(const constraint *c, bytes text, tok_ids *ids, size_t *n_bytes) {
    inferd_err unsaid = {0};
    bytes part;
    bool is_symbol;
    while (ids->n < CONSTRAINT_DRAFTS_MAX && next_part(&text, &part, &is_symbol)) {
        size_t n = part.n;
        if (is_symbol) {
            tok_id id = tok_find(c->tok, (bytes){part.p + 1, n - 2});
            if (id < 0) return true;
            if (!tok_ids_push(ids, id)) return false;
        } else {
            n = text.n > 0 ? n : whole_points(part.p, n);
            inferd_status s = tok_encode(c->tok, (bytes){part.p, n}, NULL, 0, NULL, ids, &unsaid);
            if (s != INFERD_OK) return s == INFERD_EINVAL;
        }
        *n_bytes += n;
    }
    return true;
}

static void walk_forced(constraint *c) {
    buf text;
    tok_ids ids = {0};
    size_t n_bytes = 0;
    buf_init(&text, 0);
    grammar_forced(c->machine, c->pos, CONSTRAINT_TEXT_MAX, &text);
    if (!text.failed && encode_forced(c, (bytes){text.p, text.n}, &ids, &n_bytes) && ids.n > 0) {
        uint32_t n = (uint32_t)size_min(ids.n, CONSTRAINT_DRAFTS_MAX);
        memcpy(c->forced.tokens, ids.ids, n * sizeof *ids.ids);
        walk_on(c, &c->forced, n);
        cut_walk(c, &c->forced, n_bytes);
    }
    tok_ids_deinit(&ids);
    buf_deinit(&text);
}

static void begin(constraint *c) {
    inferd_err unsaid = {0};
    c->pos = grammar_start(c->machine);
    if (c->pos == 0 || keep_budget(c, c->pos, 0, &unsaid)) return;
    grammar_drop(c->machine, c->pos);
    c->pos = 0;
}

void constraint_work(constraint *c) {
    uint64_t began_us = clock_now_us();
    inferd_err err = {0};
    c->n_masks = c->n_made = 0;
    if (c->pos == 0) begin(c);
    if (c->pos == 0) {
        inferd_fail(&c->err, INFERD_ENOMEM, "no memory for the place in a grammar");
    } else if (accept_all(c)) {
        c->must_end = grammar_must_end(c->machine, c->pos);
        if (!c->must_end) c->mask = get_mask(c, c->pos, &err);
        if (!c->must_end && c->mask == NULL)
            fail(c, INFERD_ENOMEM, &err, "the grammar cannot say what may follow");
        if (c->mask != NULL) walk_on(c, &c->guess, c->n_guess);
        if (c->mask != NULL && c->wants_forced && c->tok != NULL) walk_forced(c);
    }
    c->took_us = clock_now_us() - began_us;
}
