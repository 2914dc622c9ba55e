/* response_file.h - the files of response_store.h: their names, their text, and whole reads and
 * writes.
 *
 *     inferd-response-1 TENANT CHECKSUM LENGTH
 *     {"tenant":NAME,"items":[...],"response":{"id":ID,...}}
 *
 * The first line has the tenant's hash, a checksum and the length of the rest; at the start of the
 * daemon it is all that is read.  The rest has no blanks between its parts, so they are found
 * without a parse.
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

typedef enum response_reading {
    RESPONSE_READ,
    RESPONSE_GONE,    // there is no such file
    RESPONSE_DAMAGED, // it was read, or looked at, and is none of ours
    RESPONSE_UNREAD,  // it may be read later; errno has the reason
    RESPONSE_NO_MEMORY
} response_reading;

/* The parts of a file. */
typedef struct response_parts {
    bytes items, response; // an array, an object
} response_parts;

/* The form that the daemon gives: "resp_" and 32 digits of base 16. */
bool response_is_id(const char *s, size_t n);
uint64_t response_hash(const char *tenant);

/* The text of a file; items, output: elements of arrays, with commas between them.  False: it is
 * longer than RESPONSE_BYTES_MAX, or there is no memory. */
bool response_compose(buf *out, const char *tenant, bytes items, bytes output, bytes response);
/* The tenant's hash; false: it is no first line, or one of a file of another length. */
bool response_head_read(const char *head, size_t n_file, uint64_t *tenant);
/* Does the first line match the rest?  It names the tenant by hash. */
bool response_is_whole(const buf *text, uint64_t *tenant);
/* Of a whole text.  RESPONSE_DAMAGED: it is not that response of that tenant. */
response_reading response_divide(const buf *text, const char *tenant, const char *id,
                                 response_parts *out);

void response_file_name(char out[RESPONSE_NAME_BYTES], const char *id);
/* Under its name when it is whole.  False: errno has the reason, and no file is left. */
bool response_file_write(int folder, const char *id, const buf *text);
/* Appends at most n_max bytes of it. */
response_reading response_file_read(int folder, const char *name, size_t n_max, buf *out,
                                    struct stat *st);
/* False: it is there yet; errno has the reason. */
bool response_file_delete(int folder, const char *id);

#endif
