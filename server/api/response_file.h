/* response_file.h - the files of response_store.h: their names, their first line, and whole reads
 * and writes.
 *
 * The first line has the tenant's hash, a checksum and the length of the rest; at the start of the
 * daemon it is all that is read.
 * Thread: any; one at a time writes. */
#ifndef INFERD_RESPONSE_FILE_H
#define INFERD_RESPONSE_FILE_H

#include <sys/stat.h>

#include "inferd/base.h"
#include "inferd/buf.h"

#define RESPONSE_NEW_NAME  ".new" // a file in progress
#define RESPONSE_NAME_TAIL ".json"
#define RESPONSE_HEAD      "inferd-response-1"
enum {
    RESPONSE_ID_BYTES = sizeof "resp_" + 32, // with the NUL
    RESPONSE_NAME_BYTES = RESPONSE_ID_BYTES + sizeof RESPONSE_NAME_TAIL,
    /* Three numbers of 16 digits, each behind a blank, and the newline. */
    RESPONSE_HEAD_BYTES = sizeof RESPONSE_HEAD - 1 + 3 * 17 + 1,
    RESPONSE_BYTES_MAX = 16 * 1024 * 1024 // of one file; a larger one is not kept
};

/* The form that the daemon gives: "resp_" and 32 digits of base 16. */
bool response_is_id(const char *s, size_t n);
uint64_t response_hash(const char *tenant);

void response_head_spell(char out[RESPONSE_HEAD_BYTES + 1], uint64_t tenant, bytes body);
/* The tenant; false: it is no first line, or one of a file of another length. */
bool response_head_read(const char *head, size_t n_file, uint64_t *tenant);

void response_file_name(char out[RESPONSE_NAME_BYTES], const char *id);
/* Under its name when it is whole.  False: errno has the reason, and no file is left. */
bool response_file_write(int folder, const char *id, const buf *text);
/* Appends at most n_max bytes.  False: it cannot be read, or is none of ours; out->failed: no
 * memory. */
bool response_file_read(int folder, const char *name, size_t n_max, buf *out, struct stat *st);
void response_file_delete(int folder, const char *id);

#endif
