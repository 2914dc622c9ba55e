/* kv_disk_file.h - one KV block as a file: its bytes, its name, reading and writing it.
 *
 *     header | tokens | slots | zeroes up to a multiple of 64
 *
 * The header identifies the block and has a keyed checksum of all other bytes.  A file is written
 * under a temporary name first, so a file with the final name is complete, unless the machine
 * crashes.
 *
 * Has no index, queue or lock: for those see kv_disk.h.
 * Thread: any; one at a time per file. */
#ifndef INFERD_KV_DISK_FILE_H
#define INFERD_KV_DISK_FILE_H

#include "scheduler/kv_disk.h"

enum { KV_FILE_NAME_BYTES = 37 }; // 32 digits, ".kv" or ".tmp", and the end

/* Only BAD means that the file is useless and may be removed.  NOT_NOW is a problem of the machine
 * (file descriptors, memory, a disk that does not respond): the file may be readable later. */
typedef enum kv_file_answer {
    KV_FILE_WHOLE,
    KV_FILE_MISSING,
    KV_FILE_BAD, // its length, header or checksum is wrong, or it is not a regular file
    KV_FILE_NOT_NOW
} kv_file_answer;

typedef ssize_t kv_file_read_fn(int fd, void *p, size_t n);
typedef ssize_t kv_file_write_fn(int fd, const void *p, size_t n);

/* -- its bytes -- */
size_t kv_disk_file_bytes(const kv_layout *l);
unsigned char *kv_disk_slots(const kv_layout *l, unsigned char *file);
/* Fills in everything but the bytes of the slots and the checksum. */
void kv_disk_fill(const kv_disk_block *b, unsigned char *file);
void kv_disk_put_sum(const uint64_t key[2], unsigned char *file, size_t n_bytes);
bool kv_disk_is_whole(const uint64_t key[2], const kv_disk_block *b, const unsigned char *file,
                      size_t n_bytes);

/* -- its name -- */
void kv_file_print_name(const uint64_t name[2], const char *end, char out[KV_FILE_NAME_BYTES]);
/* False unless the name has exactly the right digits and this ending. */
bool kv_file_read_name(const char *text, const char *end, uint64_t out[2]);

/* -- in a folder -- */
/* WHOLE: *file has its bytes; the caller frees it.  NOT_NOW: errno has the reason. */
kv_file_answer kv_file_read(int dir_fd, const uint64_t key[2], const kv_disk_block *b,
                            kv_file_read_fn *read_some, unsigned char **file);
/* 0, or errno; then no part of the file is left. */
int kv_file_write(int dir_fd, const uint64_t name[2], const unsigned char *file, size_t n_bytes,
                  kv_file_write_fn *write_some);
void kv_file_remove(int dir_fd, const uint64_t name[2]);

#endif
