/* otlp_answer.c - see otlp_answer.h. */
#include "otlp_answer.h"

#include <string.h>

#include "inferd/status.h"

enum { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 5 };
enum { PARTIAL_SUCCESS = 1, REJECTED_SPANS = 1, ERROR_MESSAGE = 2 };

typedef struct field {
    uint64_t number;
    unsigned wire;
    uint64_t value; // of WIRE_VARINT
    bytes content;  // of WIRE_BYTES
} field;

/* Seven bits a byte, the lowest first; bits above 64 must be zero. */
static bool take_varint(bytes *b, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && b->n > 0; shift += 7) {
        unsigned char c = (unsigned char)b->p[0];
        *b = (bytes){b->p + 1, b->n - 1};
        if (shift == 63 && c > 1) return false;
        *value |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) return true;
    }
    return false;
}

static bool take_bytes(bytes *b, uint64_t n, bytes *out) {
    if (n > b->n) return false;
    *out = (bytes){b->p, (size_t)n};
    *b = (bytes){b->p + n, b->n - (size_t)n};
    return true;
}

static bool take_field(bytes *b, field *out) {
    uint64_t key, n;
    bytes skipped;
    *out = (field){0};
    if (!take_varint(b, &key) || key > UINT32_MAX || key >> 3 == 0) return false;
    out->number = key >> 3;
    out->wire = key & 7;
    switch (out->wire) {
    case WIRE_VARINT:
        return take_varint(b, &out->value);
    case WIRE_FIXED64:
        return take_bytes(b, 8, &skipped);
    case WIRE_BYTES:
        return take_varint(b, &n) && take_bytes(b, n, &out->content);
    case WIRE_FIXED32:
        return take_bytes(b, 4, &skipped);
    default:
        return false;
    }
}

/* A character that does not fit is left out as a whole. */
static void copy_message(bytes from, char out[OTLP_MESSAGE_BYTES]) {
    size_t n = size_min(from.n, OTLP_MESSAGE_BYTES - 1);
    while (n > 0 && n < from.n && ((unsigned char)from.p[n] & 0xc0) == 0x80) n--;
    for (size_t i = 0; i < n; i++) out[i] = from.p[i] != 0 ? from.p[i] : ' ';
    out[n] = 0;
    inferd_blank_controls(out);
}

static bool read_partial(bytes b, otlp_answer *out) {
    field f;
    while (b.n > 0) {
        if (!take_field(&b, &f)) return false;
        if (f.number == REJECTED_SPANS && f.wire == WIRE_VARINT)
            out->n_rejected = f.value <= INT64_MAX ? f.value : 0;
        if (f.number == ERROR_MESSAGE && f.wire == WIRE_BYTES)
            copy_message(f.content, out->message);
    }
    return true;
}

bool otlp_answer_read(bytes answer, otlp_answer *out) {
    field f;
    *out = (otlp_answer){0};
    while (answer.n > 0) {
        bool fine = take_field(&answer, &f);
        if (fine && f.number == PARTIAL_SUCCESS && f.wire == WIRE_BYTES)
            fine = read_partial(f.content, out);
        if (!fine) {
            *out = (otlp_answer){0};
            return false;
        }
    }
    return true;
}
