/* check_disk.c - see check_yard.h: KV blocks on a disk.
 *
 * A read takes a while, some writes are refused, and some files are gone when they are read.  A
 * block that was asked for stays unchanged until it is given back.  Some reads are slower than
 * computing, which the scheduler has to handle, too. */
#include "check_yard.h"

enum {
    READ_US_MIN = 20,
    READ_US_MAX = 400,
    SLOW_PERCENT = 10,
    SLOW_TIMES = 40,
    REFUSED_PERCENT = 15,
    LOST_PERCENT = 5
};

static void key(const kv_disk *d, const uint64_t of[2], uint64_t out[2]) {
    (void)d;
    out[0] = of[0] ^ 77;
    out[1] = of[1];
}

static yard_file *find_file(kv_disk *d, const uint64_t name[2]) {
    for (uint32_t i = 0; i < d->n_files; i++)
        if (memcmp(d->files[i].name, name, sizeof d->files[i].name) == 0) return &d->files[i];
    return NULL;
}

static bool has(kv_disk *d, const uint64_t name[2]) {
    return find_file(d, name) != NULL;
}

static void *put_begin(kv_disk *d, const kv_disk_block *b, unsigned char **slots) {
    yard_fail_if(d->y, d->n_begun > 0, CHECK_DISK, "two blocks are written at once");
    if (has(d, b->name) || is_trouble(d->y, REFUSED_PERCENT)) return NULL;
    size_t n_bytes = b->layout->n_groups * b->layout->slot_bytes;
    if (yard_fail_if(d->y, n_bytes > PAGE_BYTES, CHECK_DISK, "a block of %zu bytes", n_bytes))
        return NULL;
    d->begun = (yard_file){.depth = b->depth, .lost = is_trouble(d->y, LOST_PERCENT)};
    memcpy(d->begun.name, b->name, sizeof d->begun.name);
    memcpy(d->begun.model, b->model, sizeof d->begun.model);
    memcpy(d->begun.scope, b->scope, sizeof d->begun.scope);
    d->n_begun = 1;
    *slots = d->begun.slots;
    return &d->begun;
}

/* When the disk is full, the oldest file goes. */
static void put_end(kv_disk *d, void *put) {
    yard_fail_if(d->y, put != &d->begun || d->n_begun != 1, CHECK_DISK,
                 "a block is ended that was not begun");
    d->n_begun = 0;
    if (d->n_files == DISK_FILES)
        memmove(d->files, d->files + 1, --d->n_files * sizeof d->files[0]);
    d->files[d->n_files++] = d->begun;
}

static bool wait_room(kv_disk *d, const kv_layout *l, uint64_t until_us) {
    (void)l, (void)until_us;
    return !is_trouble(d->y, REFUSED_PERCENT);
}

static uint32_t ask(kv_disk *d, const kv_disk_block *b, void (*wake)(void *), void *ctx) {
    (void)wake, (void)ctx; // no wake calls: yard_disk_next_us ends the sleep
    const yard_file *f = find_file(d, b->name);
    if (f == NULL) return KV_DISK_NO_TICKET;
    yard_fail_if(d->y,
                 f->depth != b->depth || memcmp(f->scope, b->scope, sizeof f->scope) != 0 ||
                     memcmp(f->model, b->model, sizeof f->model) != 0,
                 CHECK_DISK, "a block at %u is requested by the name of a block at %u", b->depth,
                 f->depth);
    uint64_t us = READ_US_MIN + rng_below(&d->y->trouble, READ_US_MAX - READ_US_MIN);
    if (is_trouble(d->y, SLOW_PERCENT)) us *= SLOW_TIMES;
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) {
        yard_ticket *t = &d->tickets[i];
        if (t->used) continue;
        *t = (yard_ticket){
            .used = true, .asked_us = now(d->y), .ready_us = now(d->y) + us, .file = *f};
        return i;
    }
    return KV_DISK_NO_TICKET;
}

static kv_disk_answer look(kv_disk *d, uint32_t i, const unsigned char **slots, uint64_t *read_us) {
    const yard_ticket *t = &d->tickets[i];
    if (yard_fail_if(d->y, i >= KV_DISK_READS_MAX || !t->used, CHECK_DISK,
                     "ticket %u was given back", i))
        return KV_DISK_GONE;
    if (now(d->y) < t->ready_us) return KV_DISK_WAIT;
    *slots = t->file.slots;
    *read_us = t->ready_us - t->asked_us;
    return t->file.lost ? KV_DISK_GONE : KV_DISK_READY;
}

/* A bad file is not found again, and the bytes of a returned ticket are no longer valid. */
static void give_back(kv_disk *d, uint32_t i) {
    enum { NOISE = 0x5a };
    yard_ticket *t = &d->tickets[i];
    if (yard_fail_if(d->y, i >= KV_DISK_READS_MAX || !t->used, CHECK_DISK,
                     "ticket %u is given back twice", i))
        return;
    yard_file *f = find_file(d, t->file.name);
    if (t->file.lost && f != NULL) *f = d->files[--d->n_files];
    memset(t->file.slots, NOISE, sizeof t->file.slots);
    t->used = false;
}

const kv_disk_ops yard_disk_ops = {.key = key,
                                   .has = has,
                                   .put_begin = put_begin,
                                   .put_end = put_end,
                                   .wait_room = wait_room,
                                   .ask = ask,
                                   .look = look,
                                   .give_back = give_back};

uint64_t yard_disk_next_us(const yard *y) {
    uint64_t at_us = UINT64_MAX;
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) {
        const yard_ticket *t = &y->disk.tickets[i];
        if (t->used && t->ready_us > now(y) && t->ready_us < at_us) at_us = t->ready_us;
    }
    return at_us;
}

void yard_disk_look(yard *y) {
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++)
        yard_fail_if(y, y->disk.tickets[i].used, CHECK_LEAK,
                     "a block that was read is never given back");
}
