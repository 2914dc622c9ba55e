/* kv_disk.h - KV blocks in files: the disk tier of the prefix cache, for when host memory is full.
 *
 * A folder holds one file per block, named by the block's prefix name (32 hexadecimal digits of a
 * keyed hash, which reveals no token).  The key is in the folder, so the same prompt has the same
 * names after a restart: this module's own thread builds the index again from the folder, and until
 * that is done no block is found.
 *
 *     folder/key           the key of all names and checksums, 0600; locked while in use
 *     folder/<name>.kv     header | tokens | slots, 0600
 *     folder/<name>.tmp    one being written; removed at the start
 *
 * Only the process that opened the folder writes there; other files stay as they are.  A file is
 * counted, removed and never used when its header is not that of the block asked for (another
 * version, model, layout, scope or text), when its length is wrong or when its checksum does not
 * match.  A file that cannot be read at the moment stays.  When a scan of the folder is incomplete,
 * that is reported, and the scan is repeated after off_ms.
 *
 * Callers never wait for the disk: writes are copied into a queue of at most KV_DISK_QUEUE_BYTES,
 * and dropped if they do not fit; reads are asked for and collected later.  Reads go before writes.
 * The oldest files are removed when their sum reaches max_bytes, or their number one for each 4 KiB
 * of max_bytes or KV_DISK_FILES_MAX.  After a failed write (a full disk) nothing is written for
 * off_ms.
 * Thread: any; one lock, held for a few memory operations only. */
#ifndef INFERD_KV_DISK_H
#define INFERD_KV_DISK_H

#include "inferd/base.h"
#include "inferd/batch.h"
#include "inferd/kv_layout.h"
#include "inferd/status.h"

enum {
    KV_DISK_VERSION = 3, // of the file format, and of how keys and values are computed
    KV_DISK_HEADER_BYTES = 128,
    KV_DISK_QUEUE_BYTES = 32 << 20, // waiting to be written
    KV_DISK_READS_MAX = 64,         // blocks asked for and not yet given back
    KV_DISK_FILES_MAX = 1 << 20,
    KV_DISK_OFF_MS = 60000 // after a failed write
};

#define KV_DISK_NO_TICKET UINT32_MAX

typedef struct kv_disk kv_disk;

typedef struct kv_disk_options {
    const char *path; // of the folder; created if missing
    uint64_t max_bytes;
    uint32_t off_ms; // time without attempts after a failure; 0: KV_DISK_OFF_MS
    /* For tests: replacements of read(2) and write(2); NULL: the originals. */
    ssize_t (*read)(int fd, void *p, size_t n);
    ssize_t (*write)(int fd, const void *p, size_t n);
} kv_disk_options;

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
    uint64_t n_evicted;         // files removed for newer ones
    uint64_t n_refused;         // blocks that found the queue full, or writing turned off
    uint64_t n_bad;             // files with wrong content
    uint64_t n_missing;         // files that were gone
    uint64_t n_unread;          // reads that failed for the moment: the file stays
    uint64_t n_failed;          // writes
    uint64_t n_problems; // failures of any kind; grows with each, so that a reader sees a new one
    bool off;            // nothing is written for a while
    char problem[160];   // the newest failure, one sentence; "": none
} kv_disk_stats;

/* Fails where the folder cannot be used: other users have access (its permissions must be 0700),
 * another process uses it, or it is not writable. */
inferd_status kv_disk_open(const kv_disk_options *options, kv_disk **out, inferd_err *err);
/* Writes the queue, then ends; all tickets were given back.  Accepts NULL. */
void kv_disk_close(kv_disk *d);
void kv_disk_get_stats(kv_disk *d, kv_disk_stats *out);

/* A secret derived from this folder, for other uses that need the same one after a restart. */
void kv_disk_secret(const kv_disk *d, const char *what, unsigned char out[16]);

typedef enum kv_disk_answer { KV_DISK_WAIT, KV_DISK_READY, KV_DISK_GONE } kv_disk_answer;

/* The functions of a block, as a table, so that users can be built and tested without files. */
typedef struct kv_disk_ops {
    /* The key for block names of a model; `model` identifies the model. */
    void (*key)(const kv_disk *d, const uint64_t model[2], uint64_t out[2]);
    /* Is there such a file, according to the index?  Does no I/O. */
    bool (*has)(kv_disk *d, const uint64_t name[2]);
    /* Begin to write a block: the caller puts the bytes of its slots (n_groups * slot_bytes, in
     * order) at *slots and calls put_end.  NULL: it is there, the queue is full, or writing is
     * off. */
    void *(*put_begin)(kv_disk *d, const kv_disk_block *b, unsigned char **slots);
    void (*put_end)(kv_disk *d, void *begun);
    /* At the end of a process, and the only function that waits: for room in the queue for a block
     * of this layout, until until_us of clock_now_us.  False: no room, or writing is off. */
    bool (*wait_room)(kv_disk *d, const kv_layout *l, uint64_t until_us);
    /* Ask for a block.  `wake` is called from another thread when it is READY or GONE.
     * The index of a ticket; KV_DISK_NO_TICKET: it is not there, or too many are asked for. */
    uint32_t (*ask)(kv_disk *d, const kv_disk_block *b, void (*wake)(void *ctx), void *wake_ctx);
    /* READY: the bytes of its slots, valid until give_back, and how long reading took. */
    kv_disk_answer (*look)(kv_disk *d, uint32_t idx, const unsigned char **slots,
                           uint64_t *read_us);
    /* In any state; `wake` is not called after this. */
    void (*give_back)(kv_disk *d, uint32_t idx);
} kv_disk_ops;
extern const kv_disk_ops kv_disk_files;

#endif
