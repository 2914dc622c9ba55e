/* otlp.c - see otlp.h. */
#include "otlp.h"

#include "proto.h"

/* Numbers of fields. */
enum { KEY_VALUE_KEY = 1, KEY_VALUE_VALUE = 2 };
enum { ANY_TEXT = 1, ANY_BOOL = 2, ANY_INT = 3, ANY_REAL = 4, ANY_ARRAY = 5, ARRAY_VALUES = 1 };
enum {
    SPAN_TRACE_ID = 1,
    SPAN_ID = 2,
    SPAN_TRACE_STATE = 3,
    SPAN_PARENT_ID = 4,
    SPAN_NAME = 5,
    SPAN_KIND = 6,
    SPAN_START = 7,
    SPAN_END = 8,
    SPAN_ATTRIBUTES = 9,
    SPAN_STATUS = 15,
    SPAN_FLAGS = 16
};
enum { STATUS_MESSAGE = 2, STATUS_CODE = 3 };
enum { REQUEST_RESOURCE_SPANS = 1, RESOURCE_SPANS_RESOURCE = 1, RESOURCE_SPANS_SCOPES = 2 };
enum { RESOURCE_ATTRIBUTES = 1, SCOPE_SPANS_SCOPE = 1, SCOPE_SPANS_SPANS = 2 };
enum { SCOPE_NAME = 1, SCOPE_VERSION = 2 };

/* Of Span.flags, above those of traceparent: it is known whether the parent is remote; it is. */
enum { FLAG_HAS_IS_REMOTE = 0x100, FLAG_IS_REMOTE = 0x200 };

static void add_attribute(proto_writer *w, uint32_t field, const otlp_attribute *a) {
    proto_open(w, field);
    proto_text(w, KEY_VALUE_KEY, a->key);
    proto_open(w, KEY_VALUE_VALUE);
    switch (a->type) {
    case OTLP_TEXT:
        proto_text(w, ANY_TEXT, a->text);
        break;
    case OTLP_INT:
        proto_varint(w, ANY_INT, (uint64_t)a->n);
        break;
    case OTLP_REAL:
        proto_real(w, ANY_REAL, a->real);
        break;
    case OTLP_BOOL:
        proto_varint(w, ANY_BOOL, a->n != 0);
        break;
    case OTLP_TEXTS:
        proto_open(w, ANY_ARRAY);
        proto_open(w, ARRAY_VALUES);
        proto_text(w, ANY_TEXT, a->text);
        proto_close(w);
        proto_close(w);
        break;
    }
    proto_close(w);
    proto_close(w);
}

static void add_text(proto_writer *w, uint32_t field, const char *key, const char *text) {
    add_attribute(w, field, &(otlp_attribute){.key = key, .type = OTLP_TEXT, .text = text});
}

static void add_status(proto_writer *w, const otlp_span *s) {
    if (s->status == OTLP_UNSET) return;
    proto_open(w, SPAN_STATUS);
    if (s->message != NULL) proto_text(w, STATUS_MESSAGE, s->message);
    proto_varint(w, STATUS_CODE, s->status);
    proto_close(w);
}

void otlp_add_span(buf *out, const otlp_span *s) {
    proto_writer w = {.out = out};
    uint32_t flags = s->context->flags | FLAG_HAS_IS_REMOTE;
    proto_open(&w, SCOPE_SPANS_SPANS);
    proto_bytes(&w, SPAN_TRACE_ID, s->context->trace_id, TRACE_ID_BYTES);
    proto_bytes(&w, SPAN_ID, s->id, SPAN_ID_BYTES);
    if (s->context->state[0] != 0) proto_text(&w, SPAN_TRACE_STATE, s->context->state);
    if (s->parent_id != NULL) proto_bytes(&w, SPAN_PARENT_ID, s->parent_id, SPAN_ID_BYTES);
    proto_text(&w, SPAN_NAME, s->name);
    proto_varint(&w, SPAN_KIND, s->kind);
    proto_fixed64(&w, SPAN_START, s->start_ns);
    proto_fixed64(&w, SPAN_END, s->end_ns);
    for (uint32_t i = 0; i < s->n_attributes; i++)
        add_attribute(&w, SPAN_ATTRIBUTES, &s->attributes[i]);
    add_status(&w, s);
    proto_fixed32(&w, SPAN_FLAGS, s->remote_parent ? flags | FLAG_IS_REMOTE : flags);
    proto_close(&w);
}

void otlp_add_request(buf *out, const otlp_resource *r, const void *spans, size_t n) {
    proto_writer w = {.out = out};
    proto_open(&w, REQUEST_RESOURCE_SPANS);
    proto_open(&w, RESOURCE_SPANS_RESOURCE);
    add_text(&w, RESOURCE_ATTRIBUTES, "service.name", r->service_name);
    add_text(&w, RESOURCE_ATTRIBUTES, "service.instance.id", r->instance_id);
    add_text(&w, RESOURCE_ATTRIBUTES, "service.version", r->version);
    proto_close(&w);
    proto_open(&w, RESOURCE_SPANS_SCOPES);
    proto_open(&w, SCOPE_SPANS_SCOPE);
    proto_text(&w, SCOPE_NAME, "inferd");
    proto_text(&w, SCOPE_VERSION, r->version);
    proto_close(&w);
    buf_add(out, spans, n); // members of ScopeSpans already
    proto_close(&w);
    proto_close(&w);
}
