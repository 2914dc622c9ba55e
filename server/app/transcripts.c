/* transcripts.c - see transcripts.h.
 *
 *   text    |<|im_start|>|user\nHi|<|im_end|>| ...
 * |assistant\nHello|<|im_end|>|\n|<|im_start|>|user\n... parts   |------------------- known, copied
 * ------------------------------|---- tokenized ----|
 *           |------------------- computed -----------------------------------|
 *
 * The known parts are found under the lock, and the last of them is pinned.  Then they are read and
 * the others are tokenized, without it; under the lock again the others are added. */
#include "transcripts.h"

#include <pthread.h>
#include <string.h>

#include "inferd/buf.h"
#include "transcript_leave.h"
#include "transcript_tree.h"

struct transcripts {
    pthread_mutex_t lock; // of all below
    transcript_tree tree;
    transcripts_stats stats;
};

struct transcript {
    transcripts *ts;
    transcript_part *end; // pinned
};

/* A part that was drawn, before its tokens are compared with those of its text, and after. */
typedef enum drawn_state { NOT_DRAWN, DRAWN, DRAWN_UNSURE, DRAWN_SAME, DRAWN_OTHER } drawn_state;

typedef struct encoding {
    transcripts *ts;
    const transcript_options *o;
    const tokenizer *tok;
    bytes text;
    tok_parts parts;
    size_t *ends;            // [parts.n] where the ids of each part end; owned
    transcript_part **known; // [n_known] the first parts; the last is pinned; owned
    uint8_t *drawn;          // [n_known] drawn_state; owned
    size_t n_known, n_computed;
    transcript_part *root; // pinned while nothing is known behind it; NULL: none
    transcript_part *near; // the computed part where the prompt has another; pinned, or NULL
    tok_ids *ids;
    size_t n_before; // ids that were there
    tok_ids made;    // of one part, to compare
    transcript_match *match;
    inferd_err *err;
} encoding;

/* ---- life ---- */

transcripts *transcripts_create(uint64_t bytes_max) {
    transcripts *ts = calloc(1, sizeof *ts);
    if (ts == NULL) return NULL;
    pthread_mutex_init(&ts->lock, NULL);
    if (transcript_tree_init(&ts->tree, bytes_max)) return ts;
    transcripts_destroy(ts);
    return NULL;
}

void transcripts_destroy(transcripts *ts) {
    if (ts == NULL) return;
    transcript_tree_deinit(&ts->tree);
    pthread_mutex_destroy(&ts->lock);
    free(ts);
}

void transcripts_set_bytes_max(transcripts *ts, uint64_t bytes_max) {
    pthread_mutex_lock(&ts->lock);
    ts->tree.bytes_max = bytes_max;
    transcript_tree_make_room(&ts->tree, 0);
    pthread_mutex_unlock(&ts->lock);
}

void transcripts_forget(transcripts *ts, const model *m) {
    pthread_mutex_lock(&ts->lock);
    transcript_tree_forget(&ts->tree, m);
    pthread_mutex_unlock(&ts->lock);
}

void transcripts_get_stats(transcripts *ts, transcripts_stats *out) {
    pthread_mutex_lock(&ts->lock);
    *out = ts->stats;
    out->n_parts = ts->tree.n_parts;
    out->n_bytes = ts->tree.n_bytes;
    pthread_mutex_unlock(&ts->lock);
}

inferd_status transcripts_verify(transcripts *ts, inferd_err *err) {
    pthread_mutex_lock(&ts->lock);
    inferd_status s = transcript_tree_verify(&ts->tree, err);
    pthread_mutex_unlock(&ts->lock);
    return s;
}

static size_t common_ids(const tok_id *a, size_t n_a, const tok_id *b, size_t n_b) {
    size_t n = 0, n_max = size_min(n_a, n_b);
    while (n < n_max && a[n] == b[n]) n++;
    return n;
}

static bool has_ids(const transcript_part *p, const tok_id *ids, size_t n) {
    return p->n_ids == n && common_ids(p->ids, n, ids, n) == n;
}

static bytes text_of(const transcript_part *p) {
    return (bytes){p->text, p->n_bytes};
}

/* ---- finding, under the lock ---- */

static bytes scope_of(const transcript_options *o) {
    return (bytes){(const char *)o->scope, sizeof o->scope};
}

static void find_known(encoding *e) {
    transcript_part *at = transcript_tree_find(&e->ts->tree, NULL, e->o->m, scope_of(e->o), -1);
    size_t from = 0, computed_to = 0;
    if (at == NULL) return;
    e->root = at;
    transcript_part *computed = at;
    for (size_t i = 0; i < e->parts.n; i++) {
        tok_part part = e->parts.parts[i];
        bytes text = {e->text.p + from, part.n};
        transcript_part *p = transcript_tree_find(&e->ts->tree, at, e->o->m, text, part.special);
        if (p == NULL) break;
        from += part.n;
        e->known[e->n_known] = at = p;
        e->drawn[e->n_known++] = !p->drawn ? NOT_DRAWN : p->compared ? DRAWN : DRAWN_UNSURE;
        if (!p->computed) continue;
        e->n_computed = e->n_known;
        computed_to = from;
        computed = p;
    }
    if (computed->top != NULL || e->n_computed > 0)
        e->near = transcript_leave(computed, e->o, e->text, computed_to, e->match);
    at->n_pins++;
    if (e->near != NULL) e->near->n_pins++;
}

static transcript_part *end_of_known(const encoding *e) {
    return e->n_known > 0 ? e->known[e->n_known - 1] : e->root;
}

/* ---- tokenizing, without the lock ---- */

static bool encode_part(encoding *e, bytes text, tok_ids *out) {
    return tok_encode(e->tok, text, NULL, 0, NULL, out, e->err) == INFERD_OK;
}

static bool push_ids(encoding *e, const tok_id *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!tok_ids_push(e->ids, ids[i])) {
            inferd_fail(e->err, INFERD_ENOMEM, "no memory for the ids of a text");
            return false;
        }
    return true;
}

/* The prompt leaves the known one at a token of this answer, whose text is the same. */
static void leave_at_answer(encoding *e, size_t i, size_t from) {
    const transcript_part *p = e->known[i];
    transcript_match *m = e->match;
    size_t n = common_ids(p->ids, p->n_ids, e->made.ids, e->made.n);
    m->n_ids = e->ids->n - e->n_before + n;
    m->at = from;
    for (size_t k = 0; k < n; k++) m->at += tok_piece(e->tok, p->ids[k]).n;
    m->at = size_min(m->at, from + p->n_bytes);
    m->cause = PREFIX_RETOKENISED;
}

/* The ids of a known part of an answer: those that were drawn, or those of its text. */
static bool take_answer(encoding *e, size_t i, size_t from, bool *left) {
    const transcript_part *p = e->known[i];
    if (p->special >= 0 || (!e->o->canonical && e->drawn[i] == DRAWN))
        return push_ids(e, p->ids, p->n_ids);
    e->made.n = 0;
    if (!encode_part(e, text_of(p), &e->made)) return false;
    bool same =
        e->made.n == p->n_ids && common_ids(p->ids, p->n_ids, e->made.ids, e->made.n) == p->n_ids;
    if (e->drawn[i] == DRAWN_UNSURE) e->drawn[i] = same ? DRAWN_SAME : DRAWN_OTHER;
    if (same || !e->o->canonical) return push_ids(e, p->ids, p->n_ids);
    if (!*left && i < e->n_computed) leave_at_answer(e, i, from);
    *left = true;
    return push_ids(e, e->made.ids, e->made.n);
}

/* *left: tokens of an answer are not those that were drawn. */
static bool encode_parts(encoding *e, bool *left) {
    size_t from = 0;
    e->n_before = e->ids->n;
    for (size_t i = 0; i < e->parts.n; i++) {
        tok_part part = e->parts.parts[i];
        bool ok;
        if (part.special >= 0)
            ok = push_ids(e, &part.special, 1);
        else if (i >= e->n_known)
            ok = encode_part(e, (bytes){e->text.p + from, part.n}, e->ids);
        else if (e->drawn[i] != NOT_DRAWN)
            ok = take_answer(e, i, from, left);
        else
            ok = push_ids(e, e->known[i]->ids, e->known[i]->n_ids);
        if (!ok) return false;
        from += part.n;
        e->ends[i] = e->ids->n;
    }
    return true;
}

/* Tokens that the prompt and the longest computed one begin with. */
static size_t count_common(const encoding *e) {
    size_t i = e->n_computed, n = i > 0 ? e->ends[i - 1] : e->n_before, total = n - e->n_before;
    if (i == e->parts.n || e->near == NULL) return total;
    return total + common_ids(e->near->ids, e->near->n_ids, e->ids->ids + n, e->ends[i] - n);
}

/* ---- keeping, under the lock ---- */

static void count_answers(encoding *e) {
    transcripts_stats *s = &e->ts->stats;
    for (size_t i = 0; i < e->n_known; i++) {
        transcript_part *p = e->known[i];
        if (e->drawn[i] < DRAWN_SAME || p->compared) continue;
        p->compared = true;
        p->differs = e->drawn[i] == DRAWN_OTHER;
        s->n_resent++;
        s->n_retokenised += p->differs;
    }
    size_t n_known = e->n_known > 0 ? e->ends[e->n_known - 1] - e->n_before : 0;
    s->n_copied += n_known;
    s->n_tokenized += e->ids->n - e->n_before - n_known;
}

/* The last part of the prompt, which is kept now; NULL: no room. */
static transcript_part *add_parts(encoding *e) {
    transcript_tree *t = &e->ts->tree;
    transcript_part *at = end_of_known(e);
    const model *m = e->o->m;
    size_t from = 0;
    if (at == NULL) at = transcript_tree_find(t, NULL, m, scope_of(e->o), -1);
    if (at == NULL) at = transcript_tree_add(t, NULL, m, scope_of(e->o), -1, NULL, 0);
    for (size_t i = 0; i < e->parts.n && at != NULL; i++) {
        tok_part part = e->parts.parts[i];
        bytes text = {e->text.p + from, part.n};
        from += part.n;
        if (i < e->n_known) continue;
        size_t ids_from = i > 0 ? e->ends[i - 1] : e->n_before;
        size_t n_ids = e->ends[i] - ids_from;
        const tok_id *ids = e->ids->ids + ids_from;
        transcript_part *p = transcript_tree_find(t, at, m, text, part.special);
        if (p == NULL)
            p = transcript_tree_add(t, at, m, text, part.special, ids, n_ids);
        else if (!has_ids(p, ids, n_ids))
            p = NULL; // an answer that was added meanwhile
        if (p == NULL) transcript_tree_trim(t, at);
        at = p;
    }
    if (at != NULL) transcript_tree_touch(t, at);
    return at;
}

static transcript *keep(encoding *e, bool left) {
    bool fits = e->ids->n - e->n_before <= e->o->context;
    transcript *made = left || !fits ? NULL : calloc(1, sizeof *made);
    pthread_mutex_lock(&e->ts->lock);
    count_answers(e);
    transcript_part *end = made != NULL ? add_parts(e) : NULL;
    if (end != NULL) end->n_pins++;
    pthread_mutex_unlock(&e->ts->lock);
    if (end == NULL) {
        free(made);
        return NULL;
    }
    *made = (transcript){.ts = e->ts, .end = end};
    return made;
}

static void unpin(encoding *e) {
    pthread_mutex_lock(&e->ts->lock);
    if (end_of_known(e) != NULL) end_of_known(e)->n_pins--;
    if (e->near != NULL) e->near->n_pins--;
    pthread_mutex_unlock(&e->ts->lock);
}

static bool make_arrays(encoding *e) {
    size_t n = size_max(e->parts.n, 1);
    e->ends = calloc(n, sizeof *e->ends);
    e->known = calloc(n, sizeof(transcript_part *));
    e->drawn = calloc(n, sizeof *e->drawn);
    if (e->ends != NULL && e->known != NULL && e->drawn != NULL) return true;
    inferd_fail(e->err, INFERD_ENOMEM, "no memory for the parts of a text");
    return false;
}

inferd_status transcripts_encode(transcripts *ts, const transcript_options *o, bytes text,
                                 const tok_span *spans, size_t n_spans, tok_ids *ids,
                                 transcript **out, transcript_match *match, inferd_err *err) {
    encoding e = {.ts = ts, .o = o, .text = text, .ids = ids, .match = match, .err = err};
    e.n_before = ids->n;
    *out = NULL;
    *match = (transcript_match){.cause = PREFIX_FIRST};
    e.tok = model_tokenizer(o->m);
    inferd_status s = tok_split(e.tok, text, spans, n_spans, &e.parts, err);
    bool ok = s == INFERD_OK && make_arrays(&e), left = false;
    if (ok) {
        pthread_mutex_lock(&ts->lock);
        find_known(&e);
        pthread_mutex_unlock(&ts->lock);
        ok = encode_parts(&e, &left);
        if (ok && !left) match->n_ids = count_common(&e);
        if (ok && !o->only_counts) *out = keep(&e, left);
        unpin(&e);
    }
    if (!ok) ids->n = e.n_before;
    tok_parts_deinit(&e.parts);
    tok_ids_deinit(&e.made);
    free(e.ends);
    free(e.known);
    free(e.drawn);
    return ok ? INFERD_OK : s != INFERD_OK ? s : err->status;
}

/* ---- answers ---- */

void transcript_computed(transcript *t) {
    pthread_mutex_lock(&t->ts->lock);
    for (transcript_part *p = t->end; p != NULL && !p->computed; p = p->parent)
        transcript_tree_compute(p);
    pthread_mutex_unlock(&t->ts->lock);
}

/* A part of an answer behind `at`; NULL: it is there with other tokens, or there is no room. */
static transcript_part *add_drawn(transcript_tree *tree, transcript_part *at, bytes text,
                                  tok_id special, const tok_id *ids, size_t n_ids) {
    transcript_part *p = transcript_tree_find(tree, at, at->m, text, special);
    bool other = p != NULL && !has_ids(p, ids, n_ids);
    if (other && list_empty(&p->children) && p->n_pins == 0) {
        transcript_tree_drop(tree, p); // nothing builds on it
        p = NULL;
        other = false;
    }
    if (other) return NULL;
    if (p == NULL) {
        p = transcript_tree_add(tree, at, at->m, text, special, ids, n_ids);
        if (p == NULL) return NULL;
        p->drawn = true;
        p->compared = special >= 0;
    }
    transcript_tree_compute(p);
    return p;
}

/* The stretch so far, if it has any tokens. */
static transcript_part *end_stretch(transcript_tree *tree, transcript_part *at, buf *text,
                                    tok_ids *ids) {
    if (text->failed) return NULL;
    if (at != NULL && ids->n > 0)
        at = add_drawn(tree, at, (bytes){text->p, text->n}, -1, ids->ids, ids->n);
    buf_clear(text);
    ids->n = 0;
    return at;
}

void transcript_answer(transcript *t, const tok_id *ids, size_t n) {
    const tokenizer *tok = model_tokenizer(t->end->m);
    transcript_tree *tree = &t->ts->tree;
    transcript_part *at = t->end;
    buf text = {0};
    tok_ids stretch = {0};
    bool ok = true;
    pthread_mutex_lock(&t->ts->lock);
    if (at->special < 0 && at->parent != NULL) { // the prompt's last stretch goes on
        buf_add(&text, at->text, at->n_bytes);
        for (size_t i = 0; i < at->n_ids && ok; i++) ok = tok_ids_push(&stretch, at->ids[i]);
        at = at->parent;
    }
    for (size_t i = 0; i < n && ok && at != NULL; i++) {
        bytes piece = tok_piece(tok, ids[i]);
        if (tok_is_special(tok, ids[i])) {
            at = end_stretch(tree, at, &text, &stretch);
            if (at != NULL) at = add_drawn(tree, at, tok_name(tok, ids[i]), ids[i], &ids[i], 1);
        } else {
            buf_add(&text, piece.p, piece.n);
            ok = tok_ids_push(&stretch, ids[i]) && !text.failed;
        }
    }
    at = ok ? end_stretch(tree, at, &text, &stretch) : NULL;
    if (at != NULL) transcript_tree_touch(tree, at);
    pthread_mutex_unlock(&t->ts->lock);
    buf_deinit(&text);
    tok_ids_deinit(&stretch);
}

void transcript_release(transcript *t) {
    if (t == NULL) return;
    pthread_mutex_lock(&t->ts->lock);
    t->end->n_pins--;
    transcript_tree_trim(&t->ts->tree, t->end);
    pthread_mutex_unlock(&t->ts->lock);
    free(t);
}
