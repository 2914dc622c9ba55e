/* fuzz_judge.c - heads, chunks and the guard, as pure functions over bytes.
 *
 *     byte 0: bit 0: chunks, not a head; the rest: into how many bytes the input is cut
 *
 * Checked: the verdict does not depend on the cut; a head that is right is found right again by
 * simpler means, and so is what is left of it for the library; so are chunks. */
#include "http_judge.h"
#include "inferd/buf.h"

#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { HEAD_BYTES_MAX = 512, BODY_BYTES_MAX = 1000 };

typedef struct outcome {
    judge_verdict verdict;
    size_t used;
    int status;
    head_judge head;
} outcome;

/* Each piece in a block of its own, so that reading past it is seen. */
static outcome judge_head(const char *p, size_t n, size_t piece) {
    outcome o = {.verdict = JUDGE_MORE};
    guard_refusal why = {0};
    head_init(&o.head, HEAD_BYTES_MAX);
    while (o.verdict == JUDGE_MORE && o.used < n) {
        size_t k = size_min(piece, n - o.used), used;
        char *block = malloc(k);
        memcpy(block, p + o.used, k);
        o.verdict = head_look(&o.head, block, k, &used, &why);
        INFERD_CHECK(used <= k && (o.verdict != JUDGE_MORE || used == k));
        o.used += used;
        free(block);
    }
    INFERD_CHECK((o.verdict == JUDGE_BAD) == (why.status != 0));
    o.status = why.status;
    return o;
}

static void check_lines(const char *p, size_t n) {
    INFERD_CHECK(n >= 4 && memcmp(p + n - 4, "\r\n\r\n", 4) == 0);
    for (size_t i = 0; i < n; i++) {
        INFERD_CHECK(p[i] != 0);
        if (p[i] == '\n') INFERD_CHECK(i > 0 && p[i - 1] == '\r');
        if (p[i] == '\r') INFERD_CHECK(i + 1 < n && p[i + 1] == '\n');
        if (p[i] == '\n' && i + 1 < n) INFERD_CHECK(p[i + 1] != ' ' && p[i + 1] != '\t');
    }
    INFERD_CHECK(memmem(p, n - 4, "\r\n\r\n", 4) == NULL);
}

static void check_head(const outcome *o, const char *p) {
    char *head = malloc(o->head.n);
    size_t n = o->head.n, n_fields = 0;
    memcpy(head, p + o->used - n, n);
    check_lines(head, n);
    bytes fields = head_fields((bytes){head, n}), name, value;
    guard g;
    guard_refusal why;
    guard_init(&g, "", "", head_version(&o->head));
    for (; head_next(&fields, &name, &value); n_fields++) {
        INFERD_CHECK(name.n > 0 && name.p[name.n] == ':');
        INFERD_CHECK(memcmp(value.p + value.n, "\r\n", 2) == 0);
        guard_header(&g, name, value);
    }
    INFERD_CHECK(n_fields == o->head.n_headers && fields.n == 2);
    (void)guard_framing(&g, &why);
    n = head_drop(head, n, "cookie");
    check_lines(head, n);
    outcome again = judge_head(head, n, n);
    INFERD_CHECK(again.verdict == JUDGE_DONE && again.used == n);
    fields = head_fields((bytes){head, n});
    while (head_next(&fields, &name, &value))
        INFERD_CHECK(name.n != 6 || strncasecmp(name.p, "cookie", 6) != 0);
    free(head);
}

static outcome judge_chunks(const char *p, size_t n, size_t piece, buf *kept) {
    outcome o = {.verdict = JUDGE_MORE};
    guard_refusal why = {0};
    chunk_judge c;
    chunks_init(&c, BODY_BYTES_MAX);
    while (o.verdict == JUDGE_MORE && o.used < n) {
        size_t k = size_min(piece, n - o.used), used, k_kept;
        char *block = malloc(k);
        memcpy(block, p + o.used, k);
        o.verdict = chunks_look(&c, block, k, &used, &k_kept, &why);
        INFERD_CHECK(k_kept <= used && used <= k && (o.verdict != JUDGE_MORE || used == k));
        INFERD_CHECK(memcmp(block + used, p + o.used + used, k - used) == 0); // the next message
        buf_add(kept, block, k_kept);
        o.used += used;
        free(block);
    }
    o.status = why.status;
    return o;
}

/* size CRLF data CRLF ..., without anything else. */
static void check_chunks(const char *p, size_t n) {
    size_t at = 0, total = 0, size;
    do {
        char *end;
        const char *line = memchr(p + at, '\r', n - at);
        INFERD_CHECK(line != NULL && line > p + at && line[1] == '\n');
        size = strtoul(p + at, &end, 16);
        INFERD_CHECK(end == line);
        at = (size_t)(line - p) + 2 + size;
        INFERD_CHECK(at + 2 <= n && memcmp(p + at, "\r\n", 2) == 0);
        at += 2;
        total += size;
    } while (size > 0);
    INFERD_CHECK(at == n && total <= BODY_BYTES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    const char *p = (const char *)data + 1;
    size_t piece = 1u + data[0] / 2;
    n--;
    if ((data[0] & 1) == 0) {
        outcome whole = judge_head(p, n, n), cut = judge_head(p, n, piece);
        INFERD_CHECK(whole.verdict == cut.verdict && whole.used == cut.used);
        INFERD_CHECK(whole.status == cut.status);
        if (whole.verdict == JUDGE_DONE) check_head(&whole, p);
        return 0;
    }
    buf a, b;
    buf_init(&a, 0), buf_init(&b, 0);
    outcome whole = judge_chunks(p, n, n, &a), cut = judge_chunks(p, n, piece, &b);
    INFERD_CHECK(whole.verdict == cut.verdict && whole.used == cut.used);
    INFERD_CHECK(whole.status == cut.status && a.n == b.n);
    INFERD_CHECK(a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
    if (whole.verdict == JUDGE_DONE) check_chunks(buf_cstr(&a), a.n);
    buf_deinit(&a), buf_deinit(&b);
    return 0;
}
