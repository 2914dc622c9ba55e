/* explain.c - see explain.h. */
#include "explain.h"

#include "inferd/base.h"

/* Fewer tokens may be missing without an eviction: the last one drawn is never computed, the rest
 * of a block is not cached, and the last token of a prompt is always computed. */
enum { UNCACHED_TOKENS_MAX = 64 };

void explain_cached(explanation *e, uint32_t n_cached) {
    e->n_cached = n_cached;
    if (u32_less(e->n_known, n_cached) > UNCACHED_TOKENS_MAX) e->cause = PREFIX_EVICTED;
    if (n_cached <= e->n_known) return;
    e->cause = PREFIX_NOT_KEPT; // where that prompt ends is not known
    e->n_known = n_cached;
}

void explain_add_header(const explanation *e, buf *lines) {
    if (!e->known) {
        buf_add_str(lines, "x-inferd-explain: off\n");
        return;
    }
    buf_add_format(lines, "x-inferd-explain: byte=%zu, in=\"%s\", cause=%s, known=%u, cached=%u, ",
                   e->byte, e->where, prefix_cause_name(e->cause), e->n_known, e->n_cached);
    buf_add_format(lines, "prompt=%u\n", e->n_prompt);
}

void explain_log(const explanation *e, log_line *line) {
    log_u64(line, "prefix_byte", e->byte);
    log_str(line, "prefix_in", e->where);
    log_str(line, "prefix_end", prefix_cause_name(e->cause));
    log_u64(line, "prefix_tokens", e->n_known);
}
