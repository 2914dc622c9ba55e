/* chunk.h - the contents of one streamed event of an OpenAI-style answer.
 *
 * Completions put text in choices[].text; chat puts it in choices[].delta: `content`,
 * `reasoning_content` or `reasoning`, `refusal`, or in tool_calls.  All of these are output tokens.
 *
 * Thread: any. */
#ifndef BENCH_CHUNK_H
#define BENCH_CHUNK_H

#include "inferd/buf.h"
#include "inferd/status.h"

typedef struct chunk {
    bool has_text;   // at least one output token became visible
    char finish[24]; // finish_reason; "" while there is none
    bool has_usage;
    int64_t n_prompt, n_output, n_cached; // usage; n_cached is -1 when it is not reported
    int64_t queued_ms, queued_steps;      // arrival to its first step; -1 when not reported
    bool is_error;
    char error_code[40], error_text[160];
} chunk;

/* `data` is one JSON text.  INFERD_EFORMAT when it is not valid JSON or not an object. */
inferd_status chunk_parse(chunk *out, const char *data, size_t n, inferd_err *err);

/* The same; the text of `content` and of completions is added to `text`, so that it can be sent
 * again. */
inferd_status chunk_parse_text(chunk *out, const char *data, size_t n, buf *text, inferd_err *err);

/* Reads the error object from the body of a refused request, if it has one, in any of the usual
 * shapes. */
void chunk_parse_error(chunk *out, const char *body, size_t n);

#endif
