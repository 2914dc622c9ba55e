/* schema_memory.c - memory, tables and failures of the JSON Schema compiler. */
#include "inferd/clock.h"
#include "inferd/hash.h"
#include "schema.h"

enum { BLOCK_BYTES = 1 << 16, TICKS_PER_LOOK = 256, COMPILE_MIB_MAX = 256 };

struct schema_block {
    schema_block *next;
    size_t n_bytes;
    _Alignas(16) char bytes[];
};

static void *take(schema_ctx *c, schema_arena *a, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 2) schema_no_memory(c);
    n_bytes = (n_bytes + 15) & ~(size_t)15;
    if (n_bytes > (size_t)(a->end - a->at)) {
        size_t size = size_max(n_bytes, BLOCK_BYTES);
        if (size >
            ((size_t)COMPILE_MIB_MAX << 20) - size_min(c->n_bytes, (size_t)COMPILE_MIB_MAX << 20)) {
            c->quiet = NULL;
            schema_fail(c, INFERD_ETOOLONG, "the schema needs more than %d MiB to compile",
                        COMPILE_MIB_MAX);
        }
        schema_block *b = malloc(sizeof *b + size);
        if (b == NULL) schema_no_memory(c);
        c->n_bytes += size;
        b->n_bytes = size;
        b->next = a->blocks;
        a->blocks = b;
        a->at = b->bytes;
        a->end = b->bytes + size;
    }
    void *p = a->at;
    a->at += n_bytes;
    return p;
}

void *schema_take(schema_ctx *c, size_t n_bytes) {
    void *p = take(c, &c->kept, n_bytes);
    memset(p, 0, n_bytes);
    return p;
}

static void free_blocks(schema_ctx *c, schema_arena *a, const schema_block *until) {
    while (a->blocks != until) {
        schema_block *next = a->blocks->next;
        c->n_bytes -= a->blocks->n_bytes;
        free(a->blocks);
        a->blocks = next;
    }
}

schema_arena schema_scratch_begin(schema_ctx *c) {
    c->n_scratch++;
    return c->scratch;
}

void schema_scratch_end(schema_ctx *c, const schema_arena *mark) {
    free_blocks(c, &c->scratch, mark->blocks);
    c->scratch = *mark;
    c->n_scratch--;
}

void *schema_take_array(schema_ctx *c, size_t n, size_t element_bytes) {
    size_t n_bytes;
    if (!size_mul(n, element_bytes, &n_bytes)) schema_no_memory(c);
    return schema_take(c, n_bytes);
}

void *schema_grow(schema_ctx *c, void *items, size_t n, size_t *capacity, size_t element_bytes) {
    if (n < *capacity) return items;
    size_t wanted = *capacity < 8 ? 8 : 2 * *capacity, n_bytes;
    if (!size_mul(wanted, element_bytes, &n_bytes)) schema_no_memory(c);
    void *p = take(c, &c->kept, n_bytes);
    if (n != 0) memcpy(p, items, n * element_bytes);
    *capacity = wanted;
    return p;
}

void *schema_grow_list(schema_ctx *c, void *items, size_t n, size_t *capacity,
                       size_t element_bytes) {
    if (c->n_scratch == 0) return schema_grow(c, items, n, capacity, element_bytes);
    if (n < *capacity) return items;
    size_t wanted = *capacity < 8 ? 8 : 2 * *capacity, n_bytes;
    if (!size_mul(wanted, element_bytes, &n_bytes)) schema_no_memory(c);
    void *p = take(c, &c->scratch, n_bytes);
    if (n != 0) memcpy(p, items, n * element_bytes);
    *capacity = wanted;
    return p;
}

void schema_memory_deinit(schema_ctx *c) {
    for (size_t i = 0; i < c->n_owned; i++) {
        dfa_deinit(c->owned[i]);
        free(c->owned[i]);
    }
    free(c->owned);
    for (size_t i = 0; i < c->n_jsons; i++) json_decref(c->jsons[i]);
    free(c->jsons);
    free_blocks(c, &c->kept, NULL);
    free_blocks(c, &c->scratch, NULL);
}

/* ---- failures ---- */

_Noreturn static void leave(schema_ctx *c, inferd_status status) {
    if (c->quiet != NULL && status != INFERD_ENOMEM && status != INFERD_ETIMEOUT)
        longjmp(*c->quiet, 1);
    c->status = status;
    longjmp(c->exit, 1);
}

_Noreturn void schema_fail(schema_ctx *c, inferd_status status, const char *format, ...) {
    char text[INFERD_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    inferd_fail(c->err, status, "%s", text);
    leave(c, status);
}

_Noreturn static void fail_at(schema_ctx *c, inferd_status status, schema_word w, const json_t *at,
                              const char *what) {
    buf pointer;
    buf_init(&pointer, 0);
    if (c->quiet == NULL) {
        schema_pointer(c, at, &pointer);
        c->failed_at = at;
        c->failed_word = w;
    }
    char text[INFERD_ERR_TEXT_BYTES];
    if (w == WORD_NONE)
        snprintf(text, sizeof text, "%.240s: %s", buf_cstr(&pointer), what);
    else
        snprintf(text, sizeof text, "\"%s\" at %.240s %s", schema_word_name(w), buf_cstr(&pointer),
                 what);
    buf_deinit(&pointer);
    schema_fail(c, status, "%s", text);
}

_Noreturn void schema_refuse(schema_ctx *c, schema_word w, const json_t *at, const char *why) {
    char text[INFERD_ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "cannot be enforced%s%s", why == NULL ? "" : ": ",
             why == NULL ? "" : why);
    fail_at(c, INFERD_EUNSUPPORTED, w, at, text);
}

_Noreturn void schema_malformed(schema_ctx *c, schema_word w, const json_t *at, const char *why) {
    fail_at(c, INFERD_EINVAL, w, at, why);
}

_Noreturn void schema_no_memory(schema_ctx *c) {
    inferd_fail(c->err, INFERD_ENOMEM, "no memory for a grammar");
    c->quiet = NULL;
    leave(c, INFERD_ENOMEM);
}

void schema_check(schema_ctx *c, inferd_status s) {
    if (s != INFERD_OK) leave(c, s);
}

void schema_tick(schema_ctx *c) {
    if (++c->n_ticks % TICKS_PER_LOOK != 0 || clock_thread_us() < c->deadline_us) return;
    c->quiet = NULL;
    schema_fail(c, INFERD_ETOOLONG,
                "the schema takes longer to compile than compile_ms_max, %u ms of a CPU",
                c->limits->compile_ms_max);
}

/* Room for one more pointer; the array is made before the pointer, so a failure leaks nothing. */
static bool room_for_one(void ***items, size_t n, size_t *capacity) {
    if (n < *capacity) return true;
    size_t wanted = *capacity < 16 ? 16 : 2 * *capacity;
    void **p = realloc(*items, wanted * sizeof *p);
    if (p == NULL) return false;
    *items = p;
    *capacity = wanted;
    return true;
}

dfa *schema_own(schema_ctx *c, dfa *take) {
    dfa *d = malloc(sizeof *d);
    if (d == NULL || !room_for_one(&c->owned, c->n_owned, &c->owned_capacity)) {
        free(d);
        dfa_deinit(take);
        schema_no_memory(c);
    }
    *d = *take;
    *take = (dfa){0};
    c->owned[c->n_owned++] = d;
    return d;
}

json_t *schema_own_json(schema_ctx *c, json_t *take) {
    if (take == NULL) schema_no_memory(c);
    if (!room_for_one(&c->jsons, c->n_jsons, &c->jsons_capacity)) {
        json_decref(take);
        schema_no_memory(c);
    }
    c->jsons[c->n_jsons++] = take;
    return take;
}

/* ---- tables ---- */

typedef struct slot {
    uint64_t hash;
    const void *key; // NULL: free
    size_t n;
    void *value;
} slot;

struct schema_table {
    slot *slots;
    size_t n, capacity; // a power of two
};

schema_table *schema_table_create(schema_ctx *c) {
    schema_table *t = schema_take(c, sizeof *t);
    t->capacity = 16;
    t->slots = schema_take_array(c, t->capacity, sizeof *t->slots);
    return t;
}

static slot *find(const schema_table *t, uint64_t hash, const void *key, size_t n) {
    for (size_t i = hash;; i++) {
        slot *s = &t->slots[i & (t->capacity - 1)];
        if (s->key == NULL) return s;
        if (s->hash == hash && s->n == n && (n == 0 || memcmp(s->key, key, n) == 0)) return s;
    }
}

static void enlarge(schema_ctx *c, schema_table *t) {
    schema_table old = *t;
    t->capacity *= 2;
    t->slots = schema_take_array(c, t->capacity, sizeof *t->slots);
    for (size_t i = 0; i < old.capacity; i++) {
        slot *s = &old.slots[i];
        if (s->key != NULL) *find(t, s->hash, s->key, s->n) = *s;
    }
}

static uint64_t hash_key(const void *key, size_t n) {
    uint64_t h = HASH_BEGIN, word;
    const char *p = key;
    for (; n >= sizeof word; n -= sizeof word, p += sizeof word) { // most keys are pointers
        memcpy(&word, p, sizeof word);
        h = hash_fold(hash_step(h, word));
    }
    return hash_fold(hash_bytes(h, p, n));
}

void **schema_table_at(schema_ctx *c, schema_table *t, const void *key, size_t n, bool add) {
    uint64_t hash = hash_key(key, n);
    slot *s = find(t, hash, key, n);
    if (s->key != NULL) return &s->value;
    if (!add) return NULL;
    if (2 * (t->n + 1) > t->capacity) {
        enlarge(c, t);
        s = find(t, hash, key, n);
    }
    char *copy = schema_take(c, n + 1);
    if (n > 0) memcpy(copy, key, n);
    *s = (slot){.hash = hash, .key = copy, .n = n};
    t->n++;
    return &s->value;
}

const char *schema_intern(schema_ctx *c, const char *name) {
    void **at = schema_table_at(c, c->names, name, strlen(name), true);
    if (*at == NULL) {
        char *copy = schema_take(c, strlen(name) + 1);
        strcpy(copy, name);
        *at = copy;
    }
    return *at;
}
