#include "chat/memory.h"

#include <stdalign.h>

/* Objects of at least BIG bytes get a block of their own, which can be resized in place. */
enum { BLOCK_BYTES = 32 * 1024, BIG_BYTES = 8 * 1024 };

struct jblock {
    jblock *next, *prev;
    size_t n_bytes; // allocated, when the block belongs to one object
    alignas(max_align_t) char data[];
};

const chat_limits chat_limits_default = {
    .source_bytes_max = (size_t)256 << 10,
    .steps_max = 5000000,
    .depth_max = 64,
    .output_bytes_max = (size_t)8 << 20,
    .memory_bytes_max = (size_t)64 << 20,
};

void jctx_init(jctx *c, const chat_limits *limits, inferd_err *err) {
    memset(c, 0, sizeof *c);
    c->live_max = limits->memory_bytes_max;
    c->steps_max = limits->steps_max;
    c->err = err;
    c->status = INFERD_OK;
}

void jctx_deinit(jctx *c) {
    for (jblock *b = c->blocks, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    c->blocks = NULL;
    c->at = c->end = NULL;
    c->live = 0;
}

static _Noreturn void leave(jctx *c, inferd_status status) {
    c->status = status;
    longjmp(c->exit, 1);
}

/* The sentence goes into JSON answers and one-line logs: no control characters, and no half code
 * point where it was cut. */
static void tidy_text(inferd_err *err) {
    size_t n = strlen(err->text);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)err->text[i] < 0x20 || err->text[i] == 0x7f) err->text[i] = ' ';
    if (n + 1 < sizeof err->text) return;
    size_t start = n;
    while (start > 0 && ((unsigned char)err->text[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)err->text[start - 1];
    size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (start - 1) < wanted) err->text[start - 1] = 0;
}

static void say(jctx *c, inferd_status status, const char *format, va_list args) {
    char words[INFERD_ERR_TEXT_BYTES];
    if (c->err == NULL) return;
    vsnprintf(words, sizeof words, format, args);
    if (status == INFERD_ETOOLONG)
        inferd_fail(c->err, status, "template_limit: %s (line %u)", words, c->line);
    else
        inferd_fail(c->err, status, "line %u: %s", c->line, words);
    tidy_text(c->err);
}

void j_fail(jctx *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(c, INFERD_EINVAL, format, args);
    va_end(args);
    leave(c, INFERD_EINVAL);
}

void j_syntax(jctx *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(c, INFERD_EFORMAT, format, args);
    va_end(args);
    leave(c, INFERD_EFORMAT);
}

void j_limit(jctx *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(c, INFERD_ETOOLONG, format, args);
    va_end(args);
    leave(c, INFERD_ETOOLONG);
}

void j_raise(jctx *c, bytes words) {
    int n = (int)size_min(words.n, INFERD_ERR_TEXT_BYTES);
    inferd_fail(c->err, INFERD_EINVAL, "%.*s", n, words.p);
    if (c->err != NULL) tidy_text(c->err);
    leave(c, INFERD_EINVAL);
}

void j_no_memory(jctx *c) {
    inferd_fail(c->err, INFERD_ENOMEM, "no memory for a chat template");
    leave(c, INFERD_ENOMEM);
}

static void count_live(jctx *c, size_t n_bytes) {
    if (n_bytes > c->live_max || c->live > c->live_max - n_bytes)
        j_limit(c, "more than %zu bytes of memory", c->live_max);
    c->live += n_bytes;
}

static jblock *add_block(jctx *c, size_t n_bytes) {
    jblock *b = malloc(sizeof *b + n_bytes);
    if (b == NULL) j_no_memory(c);
    b->next = c->blocks;
    b->prev = NULL;
    b->n_bytes = n_bytes;
    if (c->blocks != NULL) c->blocks->prev = b;
    c->blocks = b;
    return b;
}

static size_t round_up(size_t n_bytes) {
    size_t align = alignof(max_align_t);
    return n_bytes > SIZE_MAX - align ? SIZE_MAX : (n_bytes + align - 1) / align * align;
}

void *j_take(jctx *c, size_t n_bytes) {
    n_bytes = round_up(n_bytes == 0 ? 1 : n_bytes);
    count_live(c, n_bytes);
    if (n_bytes >= BIG_BYTES) return add_block(c, n_bytes)->data;
    if ((size_t)(c->end - c->at) < n_bytes) {
        jblock *b = add_block(c, BLOCK_BYTES);
        c->at = b->data;
        c->end = b->data + BLOCK_BYTES;
    }
    void *p = c->at;
    c->at += n_bytes;
    return p;
}

void *j_take_array(jctx *c, size_t n, size_t element_bytes) {
    size_t n_bytes;
    if (!size_mul(n, element_bytes, &n_bytes)) n_bytes = SIZE_MAX;
    return j_take(c, n_bytes);
}

static void *resize_block(jctx *c, jblock *b, size_t n_bytes) {
    count_live(c, n_bytes - b->n_bytes);
    jblock *bigger = realloc(b, sizeof *b + n_bytes);
    if (bigger == NULL) j_no_memory(c);
    bigger->n_bytes = n_bytes;
    if (bigger->prev != NULL)
        bigger->prev->next = bigger;
    else
        c->blocks = bigger;
    if (bigger->next != NULL) bigger->next->prev = bigger;
    return bigger->data;
}

void *j_grow(jctx *c, void *p, size_t old_bytes, size_t new_bytes) {
    if (p == NULL) return j_take(c, new_bytes);
    old_bytes = round_up(old_bytes == 0 ? 1 : old_bytes);
    new_bytes = round_up(new_bytes);
    if (new_bytes <= old_bytes) return p;
    if (old_bytes >= BIG_BYTES)
        return resize_block(c, (jblock *)(void *)((char *)p - offsetof(jblock, data)), new_bytes);
    size_t more = new_bytes - old_bytes;
    if (new_bytes < BIG_BYTES && (char *)p + old_bytes == c->at &&
        (size_t)(c->end - c->at) >= more) {
        count_live(c, more);
        c->at += more;
        return p;
    }
    void *bigger = j_take(c, new_bytes);
    memcpy(bigger, p, old_bytes);
    return bigger;
}

void *j_grow_array(jctx *c, void *items, size_t n, size_t *capacity, size_t element_bytes) {
    if (n < *capacity) return items;
    size_t wanted = *capacity < 4 ? 4 : *capacity * 2; // cannot wrap: memory is bounded
    items = j_grow(c, items, *capacity * element_bytes, wanted * element_bytes);
    *capacity = wanted;
    return items;
}
