/* trace_context.c - see trace_context.h. */
#include "trace_context.h"

#include <string.h>
#include <sys/random.h>

/* "00-" 32 digits "-" 16 digits "-" 2 digits */
enum {
    AT_TRACE = 3,
    AT_PARENT = AT_TRACE + 2 * TRACE_ID_BYTES + 1,
    AT_FLAGS = AT_PARENT + 2 * SPAN_ID_BYTES + 1,
    PARENT_BYTES = AT_FLAGS + 2,
    VERSION_INVALID = 0xff,
    KEY_BYTES_MAX = 256, // of a member of tracestate
    VALUE_BYTES_MAX = 256
};

/* Lower case only, as the specification has it. */
static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *p, unsigned char *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int high = digit(p[2 * i]), low = digit(p[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static bool is_zero(const unsigned char *p, size_t n) {
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++) any |= p[i];
    return any == 0;
}

/* A later version may have more behind the flags, and its other flags mean something else. */
bool trace_context_read(bytes traceparent, trace_context *out) {
    const char *p = traceparent.p;
    unsigned char version, flags;
    *out = (trace_context){0};
    if (p == NULL || traceparent.n < PARENT_BYTES) return false;
    if (!read_hex(p, &version, 1) || version == VERSION_INVALID) return false;
    if (traceparent.n > PARENT_BYTES && (version == 0 || p[PARENT_BYTES] != '-')) return false;
    bool fine = p[AT_TRACE - 1] == '-' && p[AT_PARENT - 1] == '-' && p[AT_FLAGS - 1] == '-' &&
                read_hex(p + AT_TRACE, out->trace_id, TRACE_ID_BYTES) &&
                read_hex(p + AT_PARENT, out->parent_id, SPAN_ID_BYTES) &&
                read_hex(p + AT_FLAGS, &flags, 1) && !is_zero(out->trace_id, TRACE_ID_BYTES) &&
                !is_zero(out->parent_id, SPAN_ID_BYTES);
    if (fine)
        out->flags = flags & TRACE_SAMPLED;
    else
        *out = (trace_context){0};
    return fine;
}

/* ---- tracestate ---- */

static bool is_key_char(char c, bool first) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) return true;
    return !first && c != 0 && strchr("_-*/@", c) != NULL;
}

static bool is_value(const char *p, size_t n) {
    if (n == 0 || n > VALUE_BYTES_MAX || p[n - 1] == ' ') return false;
    for (size_t i = 0; i < n; i++)
        if (p[i] < ' ' || p[i] > '~' || p[i] == '=') return false; // ',' ended the member
    return true;
}

/* key=value; *n_key: bytes of its key. */
static bool is_member(const char *p, size_t n, size_t *n_key) {
    const char *equals = memchr(p, '=', n);
    if (equals == NULL || equals == p) return false;
    *n_key = (size_t)(equals - p);
    if (*n_key > KEY_BYTES_MAX) return false;
    for (size_t i = 0; i < *n_key; i++)
        if (!is_key_char(p[i], i == 0)) return false;
    return is_value(equals + 1, n - *n_key - 1);
}

static bytes trim(bytes b) {
    while (b.n > 0 && (b.p[0] == ' ' || b.p[0] == '\t')) b = (bytes){b.p + 1, b.n - 1};
    while (b.n > 0 && (b.p[b.n - 1] == ' ' || b.p[b.n - 1] == '\t')) b.n--;
    return b;
}

/* Members may be empty; a key comes once. */
static bool is_state(bytes state) {
    bytes keys[TRACE_STATE_MEMBERS];
    uint32_t n = 0;
    for (size_t at = 0; at <= state.n;) {
        const char *from = state.p + at, *comma = memchr(from, ',', state.n - at);
        size_t length = comma != NULL ? (size_t)(comma - from) : state.n - at, n_key;
        bytes member = trim((bytes){from, length});
        at += length + 1;
        if (member.n == 0) continue;
        if (n == TRACE_STATE_MEMBERS || !is_member(member.p, member.n, &n_key)) return false;
        for (uint32_t i = 0; i < n; i++)
            if (keys[i].n == n_key && memcmp(keys[i].p, member.p, n_key) == 0) return false;
        keys[n++] = (bytes){member.p, n_key};
    }
    return n > 0;
}

bool trace_context_read_state(bytes tracestate, trace_context *out) {
    out->state[0] = 0;
    if (tracestate.p == NULL) return false;
    bytes state = trim(tracestate);
    if (state.n > TRACE_STATE_BYTES || !is_state(state)) return false;
    memcpy(out->state, state.p, state.n);
    out->state[state.n] = 0;
    return true;
}

bool trace_context_read_states(const bytes *lines, uint32_t n, trace_context *out) {
    char joined[TRACE_STATE_BYTES];
    size_t used = 0;
    out->state[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        bytes line = trim(lines[i]);
        if (line.n == 0) continue; // a header may be empty
        if (line.n + (used > 0) > sizeof joined - used) return false;
        if (used > 0) joined[used++] = ',';
        memcpy(joined + used, line.p, line.n);
        used += line.n;
    }
    return trace_context_read_state((bytes){joined, used}, out);
}

/* ---- ids ---- */

bool trace_id_make(unsigned char *out, size_t n) {
    do {
        if (getrandom(out, n, 0) != (ssize_t)n) return false;
    } while (is_zero(out, n));
    return true;
}

/* The last eight bytes are those that every tracer draws at random. */
bool trace_id_is_sampled(const unsigned char trace_id[TRACE_ID_BYTES], double ratio) {
    uint64_t low = 0;
    for (size_t i = TRACE_ID_BYTES - 8; i < TRACE_ID_BYTES; i++) low = low << 8 | trace_id[i];
    return (double)(low >> 11) < ratio * (double)(UINT64_C(1) << 53);
}
