/* otlp.h - spans as OTLP sends them: an ExportTraceServiceRequest of
 * opentelemetry/proto/collector/trace/v1, in protobuf.
 *
 *   request > ResourceSpans > Resource (the service), ScopeSpans > InstrumentationScope, Span...
 *
 * A span is encoded alone, as a member of ScopeSpans, so that a request is a head and any number of
 * encoded spans.  Numbers of fields are those of version 1 of the protocol, which is stable.
 * Thread: any. */
#ifndef INFERD_OTLP_H
#define INFERD_OTLP_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "trace_context.h"

typedef enum otlp_kind { OTLP_INTERNAL = 1, OTLP_SERVER = 2 } otlp_kind;
typedef enum otlp_status { OTLP_UNSET = 0, OTLP_OK = 1, OTLP_ERROR = 2 } otlp_status;
typedef enum otlp_type { OTLP_TEXT, OTLP_INT, OTLP_REAL, OTLP_BOOL, OTLP_TEXTS } otlp_type;

typedef struct otlp_attribute {
    const char *key;
    otlp_type type;
    const char *text; // OTLP_TEXT; OTLP_TEXTS: the only element of a list
    int64_t n;        // OTLP_INT, OTLP_BOOL
    double real;      // OTLP_REAL
} otlp_attribute;

typedef struct otlp_span {
    const trace_context *context; // trace, flags and state; parent_id is of the caller
    unsigned char id[SPAN_ID_BYTES];
    const unsigned char *parent_id; // [SPAN_ID_BYTES] NULL: none
    bool remote_parent;             // it is of another process
    const char *name;
    otlp_kind kind;
    uint64_t start_ns, end_ns;        // since 1970
    const otlp_attribute *attributes; // [n_attributes]
    uint32_t n_attributes;
    otlp_status status;
    const char *message; // of an error; NULL: none
} otlp_span;

/* Strings are borrowed and must be UTF-8. */
typedef struct otlp_resource {
    const char *service_name, *instance_id, *version;
} otlp_resource;

void otlp_add_span(buf *out, const otlp_span *span);
/* `spans`: of otlp_add_span, one behind the other. */
void otlp_add_request(buf *out, const otlp_resource *resource, const void *spans, size_t n);

#endif
