/* fuzz_trace_context.c - traceparent and tracestate, on the two sides of the first newline.
 *
 * Checked: what is taken over is found again in the header by simpler means, and is within its
 * bounds; a state that was taken is taken again, and stays the same. */
#include "trace_context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* In a block of its own, so that reading past it is seen. */
static char *copy(const void *p, size_t n) {
    char *block = malloc(n + (n == 0));
    if (n > 0) memcpy(block, p, n);
    return block;
}

static void check_parent(bytes header, const trace_context *c) {
    char again[64];
    size_t n = 3;
    for (int i = 0; i < TRACE_ID_BYTES; i++)
        n += (size_t)sprintf(again + n, "%02x", c->trace_id[i]);
    again[n++] = '-';
    for (int i = 0; i < SPAN_ID_BYTES; i++)
        n += (size_t)sprintf(again + n, "%02x", c->parent_id[i]);
    INFERD_CHECK(header.n >= 55 && n == 52);
    INFERD_CHECK(memcmp(again + 3, header.p + 3, n - 3) == 0);
    INFERD_CHECK((c->flags & ~TRACE_SAMPLED) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const uint8_t *newline = n > 0 ? memchr(data, '\n', n) : NULL;
    size_t n_parent = newline != NULL ? (size_t)(newline - data) : n;
    size_t n_state = newline != NULL ? n - n_parent - 1 : 0;
    char *parent = copy(data, n_parent),
         *state = copy(newline != NULL ? newline + 1 : data, n_state);
    trace_context c;
    if (trace_context_read((bytes){parent, n_parent}, &c))
        check_parent((bytes){parent, n_parent}, &c);
    if (trace_context_read_state((bytes){state, n_state}, &c)) {
        trace_context again;
        size_t length = strlen(c.state);
        INFERD_CHECK(length > 0 && length <= TRACE_STATE_BYTES && length <= n_state);
        INFERD_CHECK(trace_context_read_state((bytes){c.state, length}, &again));
        INFERD_CHECK(strcmp(again.state, c.state) == 0);
    } else {
        INFERD_CHECK(c.state[0] == 0);
    }
    const bytes lines[] = {{state, n_state}, {parent, n_parent}};
    if (trace_context_read_states(lines, 2, &c))
        INFERD_CHECK(c.state[0] != 0 && strlen(c.state) <= n_state + 1 + n_parent);
    else
        INFERD_CHECK(c.state[0] == 0);
    free(parent);
    free(state);
    return 0;
}
