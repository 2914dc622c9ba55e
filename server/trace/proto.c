/* proto.c - see proto.h. */
#include "proto.h"

enum { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 5 };
enum { VARINT_BYTES_MAX = 10 };

/* Seven bits a byte, the lowest first; all but the last have the high bit. */
static size_t write_varint(unsigned char out[VARINT_BYTES_MAX], uint64_t value) {
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) out[n++] = (unsigned char)(value | 0x80);
    out[n++] = (unsigned char)value;
    return n;
}

static void add_varint(proto_writer *w, uint64_t value) {
    unsigned char coded[VARINT_BYTES_MAX];
    buf_add(w->out, coded, write_varint(coded, value));
}

static void add_key(proto_writer *w, uint32_t field, unsigned wire) {
    INFERD_CHECK(field > 0 && field <= PROTO_FIELD_MAX);
    add_varint(w, (uint64_t)field << 3 | wire);
}

static void add_little_endian(proto_writer *w, uint64_t value, uint32_t n_bytes) {
    for (uint32_t i = 0; i < n_bytes; i++) buf_add_char(w->out, (char)(value >> 8 * i));
}

void proto_varint(proto_writer *w, uint32_t field, uint64_t value) {
    add_key(w, field, WIRE_VARINT);
    add_varint(w, value);
}

void proto_fixed32(proto_writer *w, uint32_t field, uint32_t value) {
    add_key(w, field, WIRE_FIXED32);
    add_little_endian(w, value, sizeof value);
}

void proto_fixed64(proto_writer *w, uint32_t field, uint64_t value) {
    add_key(w, field, WIRE_FIXED64);
    add_little_endian(w, value, sizeof value);
}

void proto_real(proto_writer *w, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    proto_fixed64(w, field, bits);
}

void proto_bytes(proto_writer *w, uint32_t field, const void *p, size_t n) {
    add_key(w, field, WIRE_BYTES);
    add_varint(w, n);
    buf_add(w->out, p, n);
}

void proto_text(proto_writer *w, uint32_t field, const char *text) {
    proto_bytes(w, field, text, strlen(text));
}

void proto_open(proto_writer *w, uint32_t field) {
    INFERD_CHECK(w->depth < PROTO_DEPTH_MAX);
    add_key(w, field, WIRE_BYTES);
    w->begins[w->depth++] = w->out->n;
}

void proto_close(proto_writer *w) {
    unsigned char length[VARINT_BYTES_MAX];
    INFERD_CHECK(w->depth > 0);
    size_t begin = w->begins[--w->depth];
    if (w->out->failed) return;
    size_t n = w->out->n - begin, n_length = write_varint(length, n);
    if (!buf_reserve(w->out, n_length)) return;
    memmove(w->out->p + begin + n_length, w->out->p + begin, n);
    memcpy(w->out->p + begin, length, n_length);
    w->out->n += n_length;
}
