/* kv_disk_file.h - one block of keys and values as a file: its bytes, its name, reading and writing
 * it.
 *
 *     header | tokens | slots | zeroes up to a multiple of 64
 *
 * The header says what the block is and has a keyed checksum of all the rest.  A file is written
 * beside its name first, so what has the name is complete, as far as the machine stays up.
 *
 * Nothing here knows of an index, of a queue or of a lock: see kv_disk.h.
 * Thread: any; one at a time per file. */
#ifndef INFERD_KV_DISK_FILE_H
#define INFERD_KV_DISK_FILE_H

#include "scheduler/kv_disk.h"

enum { KV_FILE_NAME_BYTES = 37 }; // 32 digits, ".kv" or ".tmp", and the end

/* Only BAD says that the file is of no use and may be removed: NOT_NOW is the machine's trouble (no
 * file numbers, no memory, a disk that does not answer), and the file may be read later. */
typedef enum kv_file_answer {
    KV_FILE_WHOLE,
    KV_FILE_MISSING,
    KV_FILE_BAD, // its length, header or checksum is wrong, or it is no file
    KV_FILE_NOT_NOW
} kv_file_answer;

typedef ssize_t kv_file_read_fn(int fd, void *p, size_t n);
typedef ssize_t kv_file_write_fn(int fd, const void *p, size_t n);

/* -- its bytes -- */
size_t kv_disk_file_bytes(const kv_layout *l);
unsigned char *kv_disk_slots(const kv_layout *l, unsigned char *file);
/* All but the slots' bytes and the checksum. */
void kv_disk_fill(const kv_disk_block *b, unsigned char *file);
void kv_disk_put_sum(const uint64_t key[2], unsigned char *file, size_t n_bytes);
/* Both: of a file whose slots' bytes are there. */
void kv_disk_seal(const uint64_t key[2], const kv_disk_block *b, unsigned char *file);
/* Is this the file of this block, complete? */
bool kv_disk_is_whole(const uint64_t key[2], const kv_disk_block *b, const unsigned char *file,
                      size_t n_bytes);

/* -- its name -- */
void kv_file_print_name(const uint64_t name[2], const char *end, char out[KV_FILE_NAME_BYTES]);
/* Ours has as many digits as it should, and this end. */
bool kv_file_read_name(const char *text, const char *end, uint64_t out[2]);

/* -- in a folder -- */
/* WHOLE: *file is its bytes, to be freed by the caller.  NOT_NOW: errno says why. */
kv_file_answer kv_file_read(int dir_fd, const uint64_t key[2], const kv_disk_block *b,
                            kv_file_read_fn *read_some, unsigned char **file);
/* 0, or errno; then nothing of it is left. */
int kv_file_write(int dir_fd, const uint64_t name[2], const unsigned char *file, size_t n_bytes,
                  kv_file_write_fn *write_some);
void kv_file_remove(int dir_fd, const uint64_t name[2]);

#endif
