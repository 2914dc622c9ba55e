/* proto.h - writes protobuf's wire format: a message is fields, one behind the other.
 *
 *   field 3, varint      0x18 value            proto_varint(&w, 3, value)
 *   field 4, text        0x22 length bytes     proto_text(&w, 4, text)
 *   field 5, a message   0x2a length fields    proto_open(&w, 5); ... proto_close(&w);
 *
 * A trace needs three wire types of twenty messages, which is less code than what a library with
 * generated code would need around it, and leaves no copied .proto files to keep.  otlp_answer.h
 * reads the only message that comes back.
 *
 * The length of a message is known when it is closed: its bytes move by the one to five bytes of
 * the length then.  Memory and its bound are those of the buffer; its `failed` is the only error.
 * Text must be UTF-8: readers refuse other bytes.
 * Thread: that of its owner. */
#ifndef INFERD_PROTO_H
#define INFERD_PROTO_H

#include "inferd/base.h"
#include "inferd/buf.h"

enum { PROTO_DEPTH_MAX = 8, PROTO_FIELD_MAX = 2047 }; // open messages; numbers of fields

typedef struct proto_writer {
    buf *out; // borrowed
    uint32_t depth;
    size_t begins[PROTO_DEPTH_MAX]; // of the contents of open messages, in `out`
} proto_writer;

void proto_varint(proto_writer *w, uint32_t field, uint64_t value); // also int64, as its bits
void proto_fixed32(proto_writer *w, uint32_t field, uint32_t value);
void proto_fixed64(proto_writer *w, uint32_t field, uint64_t value);
void proto_real(proto_writer *w, uint32_t field, double value);
void proto_bytes(proto_writer *w, uint32_t field, const void *p, size_t n);
void proto_text(proto_writer *w, uint32_t field, const char *text);
void proto_open(proto_writer *w, uint32_t field);
void proto_close(proto_writer *w); // the one opened last

#endif
