/* grammars.c - see grammars.h.
 *
 * An entry is found by its key: every byte that the compiler looks at.  Keys are compared as a
 * whole, because a hash of chosen inputs may collide; the hash only makes most comparisons short.
 */
#include "grammars.h"

#include <pthread.h>
#include <string.h>

#include "inferd/buf.h"
#include "inferd/hash.h"
#include "inferd/list.h"

typedef struct entry {
    list_node link; // in grammars.entries, the most recently used first
    const model *m; // borrowed
    uint64_t hash;
    bytes key;             // owned
    grammar_machine *made; // counted
    char *weakened;        // of the source; owned; NULL: nothing
    uint64_t n_bytes;      // of key, machine and `weakened`, when they were last looked at
} entry;

typedef struct vocab_of {
    list_node link; // in grammars.vocabs
    const model *m; // borrowed
    grammar_vocab *vocab;
} vocab_of;

struct grammars {
    pthread_mutex_t lock; // of all below
    list_node entries, vocabs;
    grammars_stats stats;
    uint64_t used_bytes_max;
    pthread_mutex_t making; // held while a vocabulary is made; taken before `lock`
};

/* ---- life ---- */

grammars *grammars_create(uint64_t used_bytes_max) {
    grammars *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    g->used_bytes_max = used_bytes_max;
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->making, NULL);
    list_node_init(&g->entries);
    list_node_init(&g->vocabs);
    return g;
}

static void drop_entry(grammars *g, entry *e) {
    list_remove(&e->link);
    g->stats.n_entries--;
    g->stats.n_bytes -= e->n_bytes;
    grammar_machine_release(e->made);
    free((char *)e->key.p);
    free(e->weakened);
    free(e);
}

static void drop_vocab(grammars *g, vocab_of *v) {
    list_remove(&v->link);
    g->stats.n_vocabs--;
    grammar_vocab_release(v->vocab);
    free(v);
}

void grammars_forget(grammars *g, const model *m) {
    pthread_mutex_lock(&g->lock);
    LIST_EACH_SAFE(node, next, &g->entries) {
        entry *e = LIST_ENTRY(node, entry, link);
        if (e->m == m || m == NULL) drop_entry(g, e);
    }
    LIST_EACH_SAFE(node, next, &g->vocabs) {
        vocab_of *v = LIST_ENTRY(node, vocab_of, link);
        if (v->m == m || m == NULL) drop_vocab(g, v);
    }
    pthread_mutex_unlock(&g->lock);
}

void grammars_destroy(grammars *g) {
    if (g == NULL) return;
    grammars_forget(g, NULL);
    pthread_mutex_destroy(&g->making);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void grammars_get_stats(grammars *g, grammars_stats *out) {
    pthread_mutex_lock(&g->lock);
    *out = g->stats;
    pthread_mutex_unlock(&g->lock);
}

/* ---- keys ---- */

static void add_mark(buf *key, const char *mark, bool is_token) {
    buf_add_char(key, mark == NULL ? 'n' : is_token ? 't' : 'm');
    if (mark != NULL) buf_add(key, mark, strlen(mark) + 1);
}

/* Objects keep their order, which is that of the output. */
static void add_json(buf *key, const json_t *json) {
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY, n = json_dumpb(json, NULL, 0, flags);
    if (n == 0) key->failed = true; // no memory
    if (!buf_reserve(key, n)) return;
    if (json_dumpb(json, key->p + key->n, n, flags) != n) key->failed = true;
    key->n += n;
}

static bool make_key(const grammar_source *s, buf *key) {
    buf_add_format(key, "%d%d%d%d%d%d%d", (int)s->kind, s->strict, s->compact, s->spaced,
                   s->any_order, s->tokens, s->weakened != NULL);
    add_mark(key, s->reasoning.begin, s->reasoning.begin_is_token);
    add_mark(key, s->reasoning.end, s->reasoning.end_is_token);
    for (int i = 0; i < 3; i++) add_mark(key, s->around.marks[i], false);
    add_mark(key, s->reasoning.again, s->reasoning.begin_is_token);
    if (s->json != NULL)
        add_json(key, s->json);
    else
        buf_add(key, s->text.p, s->text.n);
    return !key->failed;
}

/* ---- compiling ---- */

static inferd_status compile_choices(const grammar_source *s, const grammar_options *o,
                                     grammar **out, inferd_err *err) {
    size_t n = json_array_size(s->json), n_bytes;
    if (!size_mul(size_max(n, 1), sizeof(bytes), &n_bytes))
        return inferd_fail(err, INFERD_ETOOLONG, "%zu choices are too many", n);
    bytes *texts = malloc(n_bytes);
    if (texts == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu choices", n);
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_array_get(s->json, i);
        texts[i] = (bytes){json_string_value(one), json_string_length(one)};
    }
    inferd_status st = grammar_of_choices(texts, n, o, out, err);
    free(texts);
    return st;
}

/* Any object without white space is a schema, because only those can be compact. */
static inferd_status compile_object(const grammar_source *s, const grammar_options *o,
                                    grammar **out, inferd_err *err) {
    if (!s->compact) return grammar_of_json(o, true, out, err);
    grammar_schema_kind kind = {.compact = true};
    json_t *schema = json_pack("{s:s}", "type", "object");
    if (schema == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a schema");
    inferd_status st = grammar_of_schema(schema, &kind, o, out, err);
    json_decref(schema);
    return st;
}

static inferd_status compile_kind(const grammar_source *s, const grammar_options *o,
                                  json_t *weakened, grammar **out, inferd_err *err) {
    grammar_schema_kind kind = {.strict = s->strict,
                                .compact = s->compact,
                                .spaced = s->spaced,
                                .any_order = s->any_order,
                                .tokens = s->tokens,
                                .weakened = weakened};
    switch (s->kind) {
    case GRAMMAR_NONE:
        break;
    case GRAMMAR_OBJECT:
        return compile_object(s, o, out, err);
    case GRAMMAR_SCHEMA:
        return grammar_of_schema(s->json, &kind, o, out, err);
    case GRAMMAR_REGEX:
        return grammar_of_regex(s->text, o, out, err);
    case GRAMMAR_CHOICE:
        return compile_choices(s, o, out, err);
    case GRAMMAR_GBNF:
        return grammar_of_gbnf(s->text, o, out, err);
    case GRAMMAR_TAGS:
        return grammar_of_tags(s->json, &kind, o, out, err);
    }
    INFERD_CHECK(!"a source has a kind");
    return INFERD_EINVAL;
}

/* The text of a mark in a grammar; NULL: none, or no memory (b->failed). */
static const char *mark_text(buf *b, const char *mark, bool is_token) {
    if (mark == NULL) return NULL;
    if (is_token)
        grammar_add_token(b, (bytes){mark, strlen(mark)});
    else
        buf_add_str(b, mark);
    return b->failed || !buf_reserve(b, 0) ? NULL : buf_cstr(b);
}

/* The part of a pointer behind "/json_schema", and the "$comment" of the schema there. */
static const char *name_schema(const json_t *document, const char *pointer, const char **rest) {
    const json_t *v = document;
    const char *at = pointer[0] == '#' ? pointer + 1 : pointer;
    *rest = at;
    while (v != NULL && *at == '/') {
        size_t n = strcspn(at + 1, "/");
        bool schema = n == strlen("json_schema") && memcmp(at + 1, "json_schema", n) == 0;
        v = json_is_array(v) ? json_array_get(v, strtoul(at + 1, NULL, 10))
                             : json_object_getn(v, at + 1, n);
        at += n + 1;
        if (!schema) continue;
        *rest = at;
        return json_string_value(json_object_get(v, "$comment"));
    }
    return NULL;
}

/* Names of properties may hold any character: blanks separate places, and a place is for a header,
 * so others than those of ASCII's text are written as %XX. */
static void add_escaped(buf *out, const char *text) {
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = c > ' ' && c < 0x7f && c != '%' && c != ',';
        buf_add_format(out, plain ? "%c" : "%%%02X", c);
    }
}

void grammars_add_weakened(buf *weakened, const char *name, const char *pointer) {
    add_escaped(weakened, name);
    if (strchr(name, '#') == NULL) buf_add_char(weakened, '#');
    add_escaped(weakened, pointer);
    buf_add_char(weakened, ' ');
}

static void name_weakened(const grammar_source *s, const json_t *pointers) {
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)pointers, i, v) {
        const char *rest = "", *name = name_schema(s->json, json_string_value(v), &rest);
        grammars_add_weakened(s->weakened, name == NULL ? "" : name, rest);
    }
}

static inferd_status compile(const grammar_source *s, grammar **out, inferd_err *err) {
    json_t *weakened = s->weakened != NULL ? json_array() : NULL;
    const reasoning *r = &s->reasoning;
    buf begin = {0}, end = {0}, again = {0};
    grammar_options o = {.reasoning_begin = mark_text(&begin, r->begin, r->begin_is_token),
                         .reasoning_end = mark_text(&end, r->end, r->end_is_token),
                         .reasoning_again = mark_text(&again, r->again, r->begin_is_token)};
    memcpy(o.around, s->around.marks, sizeof o.around);
    inferd_status st = begin.failed || end.failed || again.failed
                           ? inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar")
                           : compile_kind(s, &o, weakened, out, err);
    if (st == INFERD_OK && weakened != NULL) name_weakened(s, weakened);
    json_decref(weakened);
    buf_deinit(&begin);
    buf_deinit(&end);
    buf_deinit(&again);
    return st;
}

/* ---- vocabularies ---- */

/* The caller owns a count; NULL: none is kept. */
static grammar_vocab *find_vocab(grammars *g, const model *m) {
    grammar_vocab *found = NULL;
    pthread_mutex_lock(&g->lock);
    LIST_EACH(node, &g->vocabs) {
        vocab_of *v = LIST_ENTRY(node, vocab_of, link);
        if (v->m == m) found = v->vocab;
    }
    if (found != NULL) grammar_vocab_hold(found);
    pthread_mutex_unlock(&g->lock);
    return found;
}

static inferd_status make_vocab(grammars *g, const model *m, grammar_vocab **out, inferd_err *err) {
    vocab_of *v = calloc(1, sizeof *v);
    if (v == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a vocabulary");
    inferd_status st =
        grammar_vocab_create(model_tokenizer(m), model_about(m)->n_vocab, &v->vocab, err);
    if (st != INFERD_OK) {
        free(v);
        return st;
    }
    v->m = m;
    grammar_vocab_hold(v->vocab);
    *out = v->vocab;
    pthread_mutex_lock(&g->lock);
    list_push_back(&g->vocabs, &v->link);
    g->stats.n_vocabs++;
    pthread_mutex_unlock(&g->lock);
    return INFERD_OK;
}

/* A second worker waits for the first one's: that is sooner there than its own would be. */
static inferd_status get_vocab(grammars *g, const model *m, grammar_vocab **out, inferd_err *err) {
    inferd_status st = INFERD_OK;
    *out = find_vocab(g, m);
    if (*out != NULL) return INFERD_OK;
    pthread_mutex_lock(&g->making);
    *out = find_vocab(g, m);
    if (*out == NULL) st = make_vocab(g, m, out, err);
    pthread_mutex_unlock(&g->making);
    return st;
}

/* ---- entries ---- */

/* Under the lock: the entry, now the most recently used; NULL: none. */
static entry *find_entry(grammars *g, const model *m, uint64_t hash, bytes key) {
    LIST_EACH(node, &g->entries) {
        entry *e = LIST_ENTRY(node, entry, link);
        if (e->m != m || e->hash != hash || e->key.n != key.n ||
            memcmp(e->key.p, key.p, key.n) != 0)
            continue;
        list_remove(&e->link);
        list_push_front(&g->entries, &e->link);
        return e;
    }
    return NULL;
}

/* Under the lock: looks at the sizes.  Of a machine that makes a mask just now it keeps the last
 * one: no request waits for the mask of another. */
static void look_at_sizes(grammars *g) {
    g->stats.n_bytes = 0;
    LIST_EACH(node, &g->entries) {
        entry *e = LIST_ENTRY(node, entry, link);
        size_t n;
        size_t n_names = e->weakened == NULL ? 0 : strlen(e->weakened) + 1;
        if (grammar_machine_bytes(e->made, &n)) e->n_bytes = e->key.n + n_names + n;
        g->stats.n_bytes += e->n_bytes;
    }
}

static bool exceeds_bounds(const grammars *g) {
    return g->stats.n_entries > GRAMMARS_ENTRIES_MAX ||
           g->stats.n_bytes > u64_min(GRAMMARS_BYTES_MAX, g->used_bytes_max);
}

/* Under the lock: evicts until all fit, or the others are used by requests: their memory would not
 * be free, and the next request with the same source would need as much again. */
static void keep_bounds(grammars *g) {
    look_at_sizes(g);
    for (list_node *node = g->entries.prev, *before; node != &g->entries; node = before) {
        before = node->prev;
        entry *e = LIST_ENTRY(node, entry, link);
        if (!exceeds_bounds(g)) return;
        if (!grammar_machine_is_shared(e->made)) drop_entry(g, e);
    }
}

void grammars_trim(grammars *g) {
    if (pthread_mutex_trylock(&g->lock) != 0) return;
    for (list_node *node = g->entries.prev; node != &g->entries && exceeds_bounds(g);
         node = node->prev) {
        entry *e = LIST_ENTRY(node, entry, link);
        if (grammar_machine_is_shared(e->made)) continue;
        drop_entry(g, e);
        break;
    }
    pthread_mutex_unlock(&g->lock);
}

/* Requests that wait hold their machines, too, and a queue is long. */
static inferd_status check_room(grammars *g, inferd_err *err) {
    inferd_status st = INFERD_OK;
    pthread_mutex_lock(&g->lock);
    if (g->stats.n_bytes > g->used_bytes_max) keep_bounds(g);
    if (g->stats.n_bytes > g->used_bytes_max)
        st = inferd_fail(err, INFERD_EBUSY,
                         "the grammars of other requests take %llu MiB of %llu, which leaves no "
                         "room for a new one",
                         (unsigned long long)(g->stats.n_bytes >> 20),
                         (unsigned long long)(g->used_bytes_max >> 20));
    pthread_mutex_unlock(&g->lock);
    return st;
}

static grammar_machine *find(grammars *g, const model *m, uint64_t hash, bytes key, buf *weakened) {
    grammar_machine *found = NULL;
    pthread_mutex_lock(&g->lock);
    entry *e = find_entry(g, m, hash, key);
    if (e != NULL) {
        found = e->made;
        if (weakened != NULL && e->weakened != NULL) buf_add_str(weakened, e->weakened);
        grammar_machine_hold(found);
        g->stats.n_found++;
        keep_bounds(g);
    }
    pthread_mutex_unlock(&g->lock);
    return found;
}

/* Keeps a machine and its key, which are taken; out has a count of its own.  If another worker was
 * first with the same, that one is used: its masks will be shared. */
static void keep(grammars *g, entry *fresh, grammar_machine **out) {
    pthread_mutex_lock(&g->lock);
    entry *e = find_entry(g, fresh->m, fresh->hash, fresh->key);
    g->stats.n_compiled++;
    g->stats.n_entries++;
    if (e != NULL) {
        list_push_front(&g->entries, &fresh->link);
        drop_entry(g, fresh);
    } else {
        e = fresh;
        list_push_front(&g->entries, &e->link);
    }
    *out = e->made;
    grammar_machine_hold(*out);
    keep_bounds(g);
    pthread_mutex_unlock(&g->lock);
}

static inferd_status make_machine(grammars *g, const model *m, const grammar_source *source,
                                  grammar_machine **out, inferd_err *err) {
    grammar *made = NULL;
    grammar_vocab *vocab = NULL;
    inferd_status st = compile(source, &made, err);
    if (st == INFERD_OK) st = get_vocab(g, m, &vocab, err);
    if (st == INFERD_OK) st = grammar_machine_create(made, vocab, out, err);
    grammar_release(made);
    grammar_vocab_release(vocab);
    return st;
}

inferd_status grammars_get(grammars *g, const model *m, const grammar_source *source,
                           grammar_machine **out, inferd_err *err) {
    buf key = {0};
    entry *fresh = NULL;
    grammar_machine *made = NULL;
    *out = NULL;
    if (!make_key(source, &key)) goto no_memory;
    uint64_t hash = hash_bytes(HASH_BEGIN, key.p, key.n);
    *out = find(g, m, hash, (bytes){key.p, key.n}, source->weakened);
    if (*out != NULL) {
        buf_deinit(&key);
        return INFERD_OK;
    }
    inferd_status st = check_room(g, err);
    if (st == INFERD_OK) st = make_machine(g, m, source, &made, err);
    if (st != INFERD_OK) {
        buf_deinit(&key);
        return st;
    }
    fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) goto no_memory;
    *fresh = (entry){.m = m, .hash = hash, .key = {key.p, key.n}, .made = made};
    if (source->weakened != NULL && source->weakened->n > 0) {
        fresh->weakened = strdup(buf_cstr(source->weakened));
        if (fresh->weakened == NULL) goto no_memory;
    }
    keep(g, fresh, out);
    return INFERD_OK;

no_memory:
    free(fresh);
    buf_deinit(&key);
    grammar_machine_release(made);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar");
}
