/* kv_disk.h - blocks of keys and values in files: where they go when host memory has no room.
 *
 * A folder holds one file per block, named by the block's prefix name (32 hexadecimal digits of a
 * keyed hash: nobody learns a token from it).  The key lies in the folder, so the same prompt has
 * the same names after a restart: the index is built again from what the folder holds, on this
 * module's own thread, and until that is done nothing is found.
 *
 *     folder/key           the key of all names and checksums, 0600; locked while somebody uses it
 *     folder/<name>.kv     header | tokens | slots, 0600
 *     folder/<name>.tmp    one being written; removed at the start
 *
 * Whoever opens the folder is the only one who writes there: other files stay as they are.  A file
 * whose header is not that of the block asked for (another version, model, layout, scope or text),
 * whose length is wrong or whose checksum does not agree is counted, removed, and never used.  One
 * that cannot be read at the moment stays.  When not all of the folder could be looked through,
 * that is told, and it is looked through again after off_ms.
 *
 * Nobody waits for the disk: what is written is copied into a queue of at most
 * KV_DISK_QUEUE_BYTES, and what does not fit is lost; what is read is asked for and looked at
 * later.  Reads go before writes.  The oldest files go when max_bytes are reached, or when there is
 * one for each 4 KiB of them, or KV_DISK_FILES_MAX.  After a write
 * that failed (a full disk) nothing is written for off_ms.
 *
 * Thread: any; one lock, held for a few memory operations only. */
#ifndef INFERD_KV_DISK_H
#define INFERD_KV_DISK_H

#include "inferd/base.h"
#include "inferd/batch.h"
#include "inferd/kv_layout.h"
#include "inferd/status.h"

enum {
    KV_DISK_VERSION = 3, // of the file, and of how keys and values are computed
    KV_DISK_HEADER_BYTES = 128,
    KV_DISK_QUEUE_BYTES = 32 << 20, // that wait to be written
    KV_DISK_READS_MAX = 64,         // blocks asked for and not given back
    KV_DISK_FILES_MAX = 1 << 20,
    KV_DISK_OFF_MS = 60000 // after a write that failed
};

#define KV_DISK_NO_TICKET UINT32_MAX

typedef struct kv_disk kv_disk;

typedef struct kv_disk_options {
    const char *path; // of the folder; made when it is not there
    uint64_t max_bytes;
    uint32_t off_ms; // until it is tried again after a failure; 0: KV_DISK_OFF_MS
    /* For tests: instead of read(2) and write(2); NULL: those. */
    ssize_t (*read)(int fd, void *p, size_t n);
    ssize_t (*write)(int fd, const void *p, size_t n);
} kv_disk_options;

/* What a block is. */
typedef struct kv_disk_block {
    uint64_t name[2], model[2], scope[2];
    uint32_t depth;       // index of the block in its chain
    const tok_id *tokens; // [block_tokens of layout] borrowed
    const kv_layout *layout;
} kv_disk_block;

typedef struct kv_disk_stats {
    uint32_t n_files, n_queued;
    uint64_t n_bytes;           // of the files
    uint64_t n_written, n_read; // blocks
    uint64_t n_evicted;         // files that went for newer ones
    uint64_t n_refused;         // blocks that found the queue full, or writing turned off
    uint64_t n_bad;             // files that were not what they should be
    uint64_t n_missing;         // files that were gone
    uint64_t n_unread;          // reads that the machine could not do then: the file stays
    uint64_t n_failed;          // writes
    uint64_t n_problems;        // failures of any kind: whoever tells them sees a new one by this
    bool off;                   // nothing is written for a while
    char problem[160];          // the newest failure, one sentence; "": none
} kv_disk_stats;

/* Fails where the folder cannot be used: not ours alone (its permissions must be 0700), in use by
 * another process, not writable. */
inferd_status kv_disk_open(const kv_disk_options *options, kv_disk **out, inferd_err *err);
/* Writes what waits, then ends; all tickets were given back.  Accepts NULL. */
void kv_disk_close(kv_disk *d);
void kv_disk_get_stats(kv_disk *d, kv_disk_stats *out);

/* A secret of this folder for something else that has to be the same after a restart. */
void kv_disk_secret(const kv_disk *d, const char *what, unsigned char out[16]);
/* The key of the names of a model's blocks; `model` says what distinguishes it. */
void kv_disk_key(const kv_disk *d, const uint64_t model[2], uint64_t out[2]);

/* Is there such a file, as far as memory knows? */
bool kv_disk_has(kv_disk *d, const uint64_t name[2]);

/* Begin to write a block: where its slots' bytes (n_groups * slot_bytes, in order) are to be put.
 * NULL: it is there, the queue is full, or writing is turned off.  Then kv_disk_put_end. */
void *kv_disk_put_begin(kv_disk *d, const kv_disk_block *b, unsigned char **slots);
void kv_disk_put_end(kv_disk *d, void *put);
/* For the end of a process, the only function that waits: until the queue has room for a block of
 * this layout, at most until this moment of clock_now_us.  False: there is none, or there will be
 * none. */
bool kv_disk_wait_room(kv_disk *d, const kv_layout *l, uint64_t until_us);

typedef enum kv_disk_answer { KV_DISK_WAIT, KV_DISK_READY, KV_DISK_GONE } kv_disk_answer;

/* Ask for a block.  `wake` is called from another thread when it is READY or GONE.  NO_TICKET: it
 * is not there, or too many are asked for. */
uint32_t kv_disk_ask(kv_disk *d, const kv_disk_block *b, void (*wake)(void *ctx), void *wake_ctx);
/* READY: its slots' bytes until the ticket is given back, and what reading took. */
kv_disk_answer kv_disk_look(kv_disk *d, uint32_t ticket, const unsigned char **slots,
                            uint64_t *read_us);
/* Whatever became of it; `wake` is not called after this. */
void kv_disk_give_back(kv_disk *d, uint32_t ticket);

/* The same as a table, so that what uses it can be built and tested without files. */
typedef struct kv_disk_ops {
    void (*key)(const kv_disk *d, const uint64_t model[2], uint64_t out[2]);
    bool (*has)(kv_disk *d, const uint64_t name[2]);
    void *(*put_begin)(kv_disk *d, const kv_disk_block *b, unsigned char **slots);
    void (*put_end)(kv_disk *d, void *put);
    bool (*wait_room)(kv_disk *d, const kv_layout *l, uint64_t until_us);
    uint32_t (*ask)(kv_disk *d, const kv_disk_block *b, void (*wake)(void *ctx), void *wake_ctx);
    kv_disk_answer (*look)(kv_disk *d, uint32_t ticket, const unsigned char **slots,
                           uint64_t *read_us);
    void (*give_back)(kv_disk *d, uint32_t ticket);
} kv_disk_ops;
extern const kv_disk_ops kv_disk_files;

#endif
