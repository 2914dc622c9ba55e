/* status.h - statuses and error texts.
 *
 * A function that can fail returns inferd_status and takes `inferd_err *err` last.  The function
 * that detects the failure writes a sentence for people, with the numbers; callers put a few words
 * in front with inferd_context() and never replace it.  There are few statuses; each stands for one
 * kind of reaction.
 *
 * Thread: any; an inferd_err belongs to its caller. */
#ifndef INFERD_STATUS_H
#define INFERD_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef enum inferd_status {
    INFERD_OK = 0,
    INFERD_EINVAL,       // fix the request
    INFERD_ETOOLONG,     // fix the request: it does not fit the context or a size limit
    INFERD_ENOTFOUND,    // fix the name
    INFERD_EUNSUPPORTED, // known, but not supported by this build or for this model
    INFERD_EBUSY,        // try later
    INFERD_EQUOTA,       // a limit of the tenant; later, or with a larger limit
    INFERD_ETIMEOUT,     // a deadline passed
    INFERD_ECANCELED,    // the result is no longer needed
    INFERD_EIO,          // fix the machine: a file or a socket
    INFERD_EFORMAT,      // fix the file: its bytes are wrong
    INFERD_ENOMEM,       // host or device memory is exhausted
    INFERD_EDEVICE,      // the device failed this work; later work may succeed
    INFERD_EMODEL,       // the model cannot be brought up now; later it may
    INFERD_ELOST         // the device is gone for this process: end it, a supervisor restarts it
} inferd_status;

enum { INFERD_ERR_TEXT_BYTES = 480 };

typedef struct inferd_err {
    inferd_status status;             // INFERD_OK until something fails
    char text[INFERD_ERR_TEXT_BYTES]; // one sentence, no newline, NUL-terminated, cut at the end
} inferd_err;

/* Texts quote names from files and requests; control characters could act on a terminal or a log.
 * Those of C1 (U+0080 to U+009f) are two bytes in UTF-8 and become two spaces. */
static inline void inferd_blank_controls(char *text) {
    for (; *text != 0; text++) {
        bool c1 = (unsigned char)text[0] == 0xc2 && ((unsigned char)text[1] & 0xe0) == 0x80;
        if (c1) *text++ = ' ';
        if (c1 || (unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
    }
}

/* Records a failure and returns its status: `return inferd_fail(err, ...)`.  `err` may be NULL. */
__attribute__((format(printf, 3, 4))) static inline inferd_status
inferd_fail(inferd_err *err, inferd_status status, const char *format, ...) {
    if (err == NULL) return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    inferd_blank_controls(err->text);
    return status;
}

/* Puts words in front of a recorded text: "opening model x" gives "opening model x: ...". */
__attribute__((format(printf, 2, 3))) static inline void inferd_context(inferd_err *err,
                                                                        const char *format, ...) {
    if (err == NULL) return;
    char text[INFERD_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) return;
    inferd_blank_controls(text);
    size_t used = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (snprintf(text + used, sizeof text - used, ": %s", err->text) < 0) return; // it may be cut
    memcpy(err->text, text, sizeof text);
}

#endif
