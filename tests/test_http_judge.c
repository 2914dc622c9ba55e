/* test_http_judge.c - bytes in, verdict out: of heads and of chunks, and the same however they are
 * cut. */
#include "http_judge.h"
#include "inferd/buf.h"
#include "test.h"

#define BYTES(text) text, sizeof(text) - 1
#define LINE        "GET / HTTP/1.1\r\n"
#define HEAD(lines) BYTES(LINE lines "\r\n")

enum { HEAD_BYTES_MAX = 4096 };

typedef struct row {
    const char *bytes;
    size_t n;
    int status;  // 0: DONE
    size_t used; // when the verdict is certain; 0: not looked at
} row;

/* `piece` bytes at a time, each from a heap block of its own size, so that a sanitizer sees a read
 * behind it. */
static judge_verdict look_at(const char *p, size_t n, size_t piece, head_judge *h, size_t *used,
                             guard_refusal *why) {
    judge_verdict v = JUDGE_MORE;
    head_init(h, HEAD_BYTES_MAX);
    for (*used = 0; v == JUDGE_MORE && *used < n;) {
        size_t k = size_min(piece, n - *used), k_used = 0;
        char *block = malloc(k);
        memcpy(block, p + *used, k);
        v = head_look(h, block, k, &k_used, why);
        if (v == JUDGE_MORE) EXPECT_EQ(k_used, k);
        *used += k_used;
        free(block);
    }
    return v;
}

static const row heads[] = {
    {HEAD("Host: x\r\n"), 0},
    {HEAD(""), 0},
    {BYTES("POST /a?b=c HTTP/1.0\r\nA:\r\nB: \t x \r\nC:\xff\r\n\r\n"), 0},
    {BYTES("\r\n\r\nGET / HTTP/1.1\r\n\r\n"), 0},
    {BYTES("M!#$%&'*+-.^_`|~9 * HTTP/1.1\r\n\r\n"), 0},
    {BYTES("GET / HTTP/1.1\r\n\r\nGET"), 0, 18},
    /* the request line */
    {BYTES("\r\n\r\n\r\n"), 400, 5},
    {BYTES("\n"), 400, 1},
    {BYTES("\r\r"), 400, 2},
    {BYTES(" GET / HTTP/1.1\r\n"), 400, 1},
    {BYTES("\x16\x03\x01"), 400, 1},
    {BYTES("SSH-2.0-OpenSSH_9.2\r\n"), 400, 20},
    {BYTES("G\0T / HTTP/1.1\r\n"), 400, 2},
    {BYTES("GET\t/ HTTP/1.1\r\n"), 400, 4},
    {BYTES("GET  / HTTP/1.1\r\n"), 400, 5},
    {BYTES("GET /\0 HTTP/1.1\r\n"), 400, 6},
    {BYTES("GET /\t HTTP/1.1\r\n"), 400, 6},
    {BYTES("GET /?\x7f HTTP/1.1\r\n"), 400, 7},
    {BYTES("GET /\r\n"), 400, 6},
    {BYTES("GET /\n"), 400, 6},
    {BYTES("GET / \r\n"), 400, 7},
    {BYTES("GET /  HTTP/1.1\r\n"), 400, 7},
    {BYTES("GET / HTTP/1.1 \r\n"), 400, 15},
    {BYTES("GET / HTTP/1.1x\r\n"), 400, 15},
    {BYTES("GET / HTTP/1.\r\n"), 400, 14},
    {BYTES("GET / HTTP/11.1\r\n"), 400, 13},
    {BYTES("GET / http/1.1\r\n"), 400, 7},
    {BYTES("GET / HTTP/1.1\n"), 400, 15},
    {BYTES("GET / HTTP/1.1\rX"), 400, 16},
    {BYTES("GET / HTTP/1.1\0\r\n"), 400, 15},
    {BYTES("GET / HTTP/2.0\r"), 505, 15},
    {BYTES("GET / HTTP/1.2\r"), 505, 15},
    {BYTES("GET / HTTP/0.9\r"), 505, 15},
    {BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505, 15},
    /* fields */
    {HEAD(": b\r\n"), 400, 17},
    {HEAD("a\r\n"), 400, 18},
    {HEAD("a\n"), 400, 18},
    {HEAD("a : b\r\n"), 400, 18},
    {HEAD("a\t: b\r\n"), 400, 18},
    {HEAD("a b: c\r\n"), 400, 18},
    {HEAD("a\0: b\r\n"), 400, 18},
    {HEAD("\xc3: b\r\n"), 400, 17},
    {HEAD(" a: b\r\n"), 400, 17},
    {HEAD("a: b\r\n c\r\n"), 400, 23},
    {HEAD("a: b\r\n\tc\r\n"), 400, 23},
    {HEAD("a: b\nc: d\r\n"), 400, 21},
    {HEAD("a: b\rc: d\r\n"), 400, 22},
    {HEAD("a: \0\r\n"), 400, 20},
    {HEAD("a: \x1b[2J\r\n"), 400, 20},
    {HEAD("a: \x7f\r\n"), 400, 20},
    {BYTES(LINE "a: b\r\n\n"), 400, 23},
    {BYTES(LINE "a: b\r\n\rx"), 400, 24},
};

/* Each is judged alike in one piece, byte by byte, and in two pieces cut anywhere. */
static void heads_are_judged_the_same_however_they_are_cut(void) {
    for (size_t i = 0; i < INFERD_COUNT(heads); i++) {
        const row *w = &heads[i];
        int before = test_failures;
        for (size_t piece = 1; piece <= w->n; piece++) {
            head_judge h;
            guard_refusal why = {0};
            size_t used;
            judge_verdict v = look_at(w->bytes, w->n, piece, &h, &used, &why);
            EXPECT_EQ(v, w->status == 0 ? JUDGE_DONE : JUDGE_BAD);
            EXPECT_EQ(why.status, w->status);
            if (w->used > 0) EXPECT_EQ(used, w->used);
            if (v == JUDGE_BAD) EXPECT(why.close && why.message != NULL && why.code != NULL);
        }
        if (test_failures != before) printf("  in row %zu: %s\n", i, w->bytes);
    }
}

static void fields_are_read_as_they_were_judged(void) {
    static const char text[] = "POST /a?b HTTP/1.0\r\nHost: x\r\nEmpty:\r\nBlank: \t \r\n"
                               "Cookie: a=b\r\nC: \t d:e \r\ncookie: c=d\r\n\r\n";
    static const char *const expected[] = {"Host", "x", "Empty", "", "Blank", "", "C", "d:e "};
    head_judge h;
    guard_refusal why;
    size_t used;
    EXPECT_EQ(look_at(BYTES(text), 7, &h, &used, &why), JUDGE_DONE);
    EXPECT_EQ(used, sizeof text - 1);
    EXPECT_STR(head_version(&h), "HTTP/1.0");
    char *copy = malloc(sizeof text - 1);
    size_t n = head_drop(memcpy(copy, text, sizeof text - 1), sizeof text - 1, "Cookie");
    EXPECT_EQ(n, sizeof text - 1 - 13 - 13);
    EXPECT_EQ(head_drop(copy, n, "Cookie"), n);
    bytes head = {copy, n}, fields = head_fields(head), name, value;
    EXPECT_EQ(head_method(head).n, 4);
    for (size_t i = 0; i < INFERD_COUNT(expected); i += 2) {
        EXPECT(head_next(&fields, &name, &value));
        EXPECT(name.n == strlen(expected[i]) && memcmp(name.p, expected[i], name.n) == 0);
        EXPECT(value.n == strlen(expected[i + 1]) &&
               memcmp(value.p, expected[i + 1], value.n) == 0);
    }
    EXPECT(!head_next(&fields, &name, &value));
    free(copy);
    /* Every field is one of them. */
    char all[] = "GET / HTTP/1.1\r\nCookie: a\r\nCookie: b\r\n\r\n";
    n = head_drop(all, sizeof all - 1, "Cookie");
    EXPECT(n == 18 && memcmp(all, "GET / HTTP/1.1\r\n\r\n", n) == 0);
}

static void a_path_is_known_before_the_head_is_complete(void) {
    static const char *const rows[][2] = {{"POST /a?b HTTP", "/a"},
                                          {"GET /a/b ", "/a/b"},
                                          {"GET /a\r\n", "/a"},
                                          {"GET /a", ""},
                                          {"GET ", ""},
                                          {"GET", ""},
                                          {"", ""},
                                          {"GET  /a HTTP", ""}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        bytes path = head_path((bytes){rows[i][0], strlen(rows[i][0])});
        EXPECT(path.n == strlen(rows[i][1]) && memcmp(path.p, rows[i][1], path.n) == 0);
    }
}

/* The status of a head made of `n` times `piece` between two texts; 0: DONE. */
static int status_of(const char *before, const char *piece, size_t n, const char *behind) {
    buf b;
    head_judge h;
    guard_refusal why = {0};
    size_t used;
    buf_init(&b, 0);
    buf_add_str(&b, before);
    for (size_t i = 0; i < n; i++) buf_add_str(&b, piece);
    buf_add_str(&b, behind);
    judge_verdict v = look_at(b.p, b.n, b.n, &h, &used, &why);
    EXPECT(v != JUDGE_MORE || b.n <= HEAD_BYTES_MAX);
    buf_deinit(&b);
    return v == JUDGE_MORE ? -1 : why.status;
}

/* Just at each bound, and one more: refused at once, not when the head is complete. */
static void bounds_are_exact(void) {
    EXPECT_EQ(status_of("", "M", 32, " / HTTP/1.1\r\n\r\n"), 0);
    EXPECT_EQ(status_of("", "M", 33, ""), 400);
    EXPECT_EQ(status_of("GET /?", "&", 63, " HTTP/1.1\r\n\r\n"), 0);
    EXPECT_EQ(status_of("GET /?", "&", 64, ""), 414);
    EXPECT_EQ(status_of("GET /", "&", 100, " HTTP/1.1\r\n\r\n"), 0); // no query
    EXPECT_EQ(status_of("GET /?", "?", 100, " HTTP/1.1\r\n\r\n"), 0);
    EXPECT_EQ(status_of(LINE, "a:\r\n", 100, "\r\n"), 0);
    EXPECT_EQ(status_of(LINE, "a:\r\n", 100, "a"), 431);
    /* 5 bytes before, 13 behind: GET / .. HTTP/1.1 CRLF CRLF */
    EXPECT_EQ(status_of("GET /", "a", HEAD_BYTES_MAX - 18, " HTTP/1.1\r\n\r\n"), 0);
    EXPECT_EQ(status_of("GET /", "a", HEAD_BYTES_MAX - 17, " HTTP/1.1\r\n\r\n"), 431);
    EXPECT_EQ(status_of("GET /", "a", HEAD_BYTES_MAX - 5, ""), -1);
    EXPECT_EQ(status_of("GET /", "a", HEAD_BYTES_MAX - 4, ""), 414);
    EXPECT_EQ(status_of(LINE "a: ", "b", HEAD_BYTES_MAX - 16 - 3, ""), -1);
    EXPECT_EQ(status_of(LINE "a: ", "b", HEAD_BYTES_MAX - 16 - 2, ""), 431);
    EXPECT_EQ(status_of(LINE, "n", HEAD_BYTES_MAX - 16 + 1, ""), 431);
}

/* The table of bytes against RFC 9110: tchar, and field-vchar with blanks. */
static void bytes_are_sorted_as_the_rfc_says(void) {
    for (int c = 0; c < 256; c++) {
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool token = alnum || (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
        bool value = c == '\t' || c == ' ' || (c > 0x20 && c < 0x7f) || c > 0x7f;
        EXPECT_EQ(guard_bytes[c], (token ? GUARD_IN_TOKEN : 0) | (value ? GUARD_IN_VALUE : 0));
    }
}

/* -- chunks -- */

typedef struct chunks_row {
    const char *bytes;
    size_t n;
    int status;
    const char *kept; // of what is right
} chunks_row;

static const chunks_row chunked[] = {
    {BYTES("0\r\n\r\n"), 0, "0\r\n\r\n"},
    {BYTES("0\r\n\r\nGET /"), 0, "0\r\n\r\n"},
    {BYTES("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"), 0, "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"},
    {BYTES("5;a=b\r\nhello\r\n00;\r\n\r\n"), 0, "5\r\nhello\r\n00\r\n\r\n"},
    {BYTES("5;\t\"x y\"\r\n\r\n\r\n\r\n\n\r\n0\r\n\r\n"), 400, ""}, // six bytes of five
    {BYTES("A\r\n\r\n0\r\n\r\n\r\n\n\r\n0\r\n\r\n"), 0, "A\r\n\r\n0\r\n\r\n\r\n\n\r\n0\r\n\r\n"},
    {BYTES("0\r\nA: b\r\nC:\r\n\r\n"), 0, "0\r\n\r\n"},
    {BYTES("0000000000000001\r\nx\r\n0\r\n\r\n"), 0, "0000000000000001\r\nx\r\n0\r\n\r\n"},
    {BYTES("00000000000000001\r\nx\r\n0\r\n\r\n"), 400, ""},
    {BYTES("\r\n"), 400, ""},
    {BYTES("-1\r\n"), 400, ""},
    {BYTES("+1\r\n"), 400, ""},
    {BYTES(" 1\r\n"), 400, ""},
    {BYTES("1 \r\n"), 400, ""},
    {BYTES("0x10\r\n"), 400, ""},
    {BYTES("g\r\n"), 400, ""},
    {BYTES(";a\r\n"), 400, ""},
    {BYTES("5\nhello\r\n"), 400, ""}, // bare LF
    {BYTES("5\rhello\r\n"), 400, ""},
    {BYTES("5;a\nhello\r\n"), 400, ""},
    {BYTES("5;\0\r\nhello\r\n"), 400, ""},
    {BYTES("5\r\nhello\n0\r\n\r\n"), 400, ""},
    {BYTES("5\r\nhello\rx"), 400, ""},
    {BYTES("5\r\nhello0\r\n\r\n"), 400, ""},
    {BYTES("0\r\n\n"), 400, ""},
    {BYTES("0\r\n\rx"), 400, ""},
    {BYTES("0\n\r\n"), 400, ""},
    {BYTES("0\r\n: b\r\n"), 400, ""},
    {BYTES("0\r\na\r\n"), 400, ""},
    {BYTES("0\r\na: b\n\r\n"), 400, ""},
    {BYTES("0\r\na: b\r\n c\r\n\r\n"), 400, ""},
    {BYTES("0\r\na: \0\r\n\r\n"), 400, ""},
    {BYTES("65\r\n"), 413, ""}, // of 100
    {BYTES("fffffffffffffff"), 413, ""},
    {BYTES("FFFFFFFFFFFFFFFF\r\n"), 413, ""},
    {BYTES("5\r\nhello\r\n60\r\n"), 413, ""}, // together
};

static judge_verdict look_at_chunks(const char *p, size_t n, size_t piece, buf *kept, size_t *used,
                                    guard_refusal *why) {
    judge_verdict v = JUDGE_MORE;
    chunk_judge c;
    chunks_init(&c, 100);
    for (*used = 0; v == JUDGE_MORE && *used < n;) {
        size_t k = size_min(piece, n - *used), k_used = 0, k_kept = 0;
        char *block = malloc(k);
        memcpy(block, p + *used, k);
        v = chunks_look(&c, block, k, &k_used, &k_kept, why);
        EXPECT(k_kept <= k_used && (v != JUDGE_MORE || k_used == k));
        buf_add(kept, block, k_kept);
        *used += k_used;
        free(block);
    }
    return v;
}

static void chunks_are_judged_the_same_however_they_are_cut(void) {
    for (size_t i = 0; i < INFERD_COUNT(chunked); i++) {
        const chunks_row *w = &chunked[i];
        int before = test_failures;
        size_t used_whole = 0;
        for (size_t piece = w->n; piece > 0; piece--) {
            guard_refusal why = {0};
            size_t used;
            buf kept;
            buf_init(&kept, 0);
            judge_verdict v = look_at_chunks(w->bytes, w->n, piece, &kept, &used, &why);
            if (piece == w->n) used_whole = used;
            EXPECT_EQ(v, w->status == 0 ? JUDGE_DONE : JUDGE_BAD);
            EXPECT_EQ(why.status, w->status);
            EXPECT_EQ(used, used_whole);
            if (v == JUDGE_DONE) EXPECT_STR(buf_cstr(&kept), w->kept);
            buf_deinit(&kept);
        }
        if (test_failures != before) printf("  in row %zu: %s\n", i, w->bytes);
    }
}

static void long_extensions_and_trailers_are_refused(void) {
    for (int over = 0; over < 2; over++) {
        guard_refusal why = {0};
        size_t used;
        buf text, kept;
        buf_init(&text, 0), buf_init(&kept, 0);
        for (int i = 0; i < 3; i++) { // the bound is of each
            buf_add_str(&text, "1;");
            for (int k = 0; k < 256 + (i == 2 ? over : 0); k++) buf_add_char(&text, 'x');
            buf_add_str(&text, "\r\ny\r\n");
        }
        buf_add_str(&text, "0\r\n\r\n");
        EXPECT_EQ(look_at_chunks(text.p, text.n, 100, &kept, &used, &why),
                  over ? JUDGE_BAD : JUDGE_DONE);
        EXPECT_EQ(why.status, over ? 400 : 0);
        buf_clear(&text), buf_clear(&kept);
        why.status = 0;
        buf_add_str(&text, "0\r\n");
        for (int i = 0; i < 2; i++) { // bytes of both, without their LF
            buf_add_str(&text, "a: ");
            for (int k = 0; k < 2048 - 4 + (i == 1 ? over : 0); k++) buf_add_char(&text, 'x');
            buf_add_str(&text, "\r\n");
        }
        buf_add_str(&text, "\r\n");
        EXPECT_EQ(look_at_chunks(text.p, text.n, 100, &kept, &used, &why),
                  over ? JUDGE_BAD : JUDGE_DONE);
        EXPECT_EQ(why.status, over ? 431 : 0);
        buf_deinit(&text), buf_deinit(&kept);
    }
}

static const test_case cases[] = {
    TEST(heads_are_judged_the_same_however_they_are_cut),
    TEST(fields_are_read_as_they_were_judged),
    TEST(a_path_is_known_before_the_head_is_complete),
    TEST(bounds_are_exact),
    TEST(bytes_are_sorted_as_the_rfc_says),
    TEST(chunks_are_judged_the_same_however_they_are_cut),
    TEST(long_extensions_and_trailers_are_refused),
};
TEST_MAIN(cases)
