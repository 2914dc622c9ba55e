/* otlp_answer.h - reads what a collector answers with status 2xx: an ExportTraceServiceResponse of
 * opentelemetry/proto/collector/trace/v1, in protobuf.
 *
 *   1: partial_success { 1: rejected_spans (int64)  2: error_message (string) }
 *
 * The bytes are foreign.  The reader looks at each byte once, allocates nothing, and skips fields
 * that it does not know; groups, which protobuf has given up, and a field or a length that is cut
 * off make the whole answer one that says nothing.  As protobuf has it, a message that comes twice
 * is merged, and of a number or a text the last one counts.
 * Thread: any. */
#ifndef INFERD_OTLP_ANSWER_H
#define INFERD_OTLP_ANSWER_H

#include "inferd/base.h"

enum { OTLP_MESSAGE_BYTES = 128 }; // of a collector's message, with its NUL

typedef struct otlp_answer {
    uint64_t n_rejected;              // spans that the collector did not take; never negative
    char message[OTLP_MESSAGE_BYTES]; // why; cut, control characters are spaces; "": none
} otlp_answer;

/* False: it is no such message; *out then has no rejected spans.  An empty answer is one. */
bool otlp_answer_read(bytes answer, otlp_answer *out);

#endif
