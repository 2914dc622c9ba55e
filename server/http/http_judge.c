/* http_judge.c - see http_judge.h. */
#include "http_judge.h"

#include <string.h>
#include <strings.h>

typedef enum head_state {
    HEAD_BEGIN, // nothing but empty lines so far
    HEAD_BEGIN_LF,
    HEAD_METHOD,
    HEAD_TARGET,
    HEAD_QUERY,
    HEAD_VERSION,
    HEAD_LF,   // the end of the request line or of a field
    HEAD_LINE, // the first byte of a line
    HEAD_NAME,
    HEAD_VALUE,
    HEAD_END_LF
} head_state;

static const char no_crlf[] = "A line does not end with CR LF.";

static judge_verdict bad(guard_refusal *why, int status, const char *message) {
    guard_refuse_framing(why, status, message);
    return JUDGE_BAD;
}

void head_init(head_judge *h, uint32_t bytes_max) {
    *h = (head_judge){.bytes_max = bytes_max};
}

const char *head_version(const head_judge *h) {
    return h->minor == '0' ? "HTTP/1.0" : "HTTP/1.1";
}

static bool is_control(unsigned char c) {
    return c < 0x20 || c == 0x7f;
}

static judge_verdict look_begin(head_judge *h, unsigned char c, guard_refusal *why) {
    if (c == '\r' && h->n_empty_bytes < 2 * JUDGE_EMPTY_LINES_MAX) {
        h->state = HEAD_BEGIN_LF;
        return JUDGE_MORE;
    }
    if (!guard_is_token_byte(c)) return bad(why, 400, "A request begins with its method.");
    h->state = HEAD_METHOD;
    h->at = 1;
    return JUDGE_MORE;
}

static judge_verdict look_method(head_judge *h, unsigned char c, guard_refusal *why) {
    if (c == ' ') {
        h->state = HEAD_TARGET;
        return JUDGE_MORE;
    }
    if (!guard_is_token_byte(c)) return bad(why, 400, "The method is not a token.");
    if (++h->at > JUDGE_METHOD_BYTES_MAX)
        return bad(why, 400, "The method has more than 32 bytes.");
    return JUDGE_MORE;
}

/* Any bytes except blanks and control characters: routes interpret them. */
static judge_verdict look_target(head_judge *h, unsigned char c, guard_refusal *why) {
    if (c == ' ') {
        if (h->n_target == 0) return bad(why, 400, "The request line has two spaces in a row.");
        h->state = HEAD_VERSION;
        h->at = 0;
        return JUDGE_MORE;
    }
    if (c == '\r' || c == '\n') return bad(why, 400, "The request line has no HTTP version.");
    if (is_control(c)) return bad(why, 400, "The request target holds a control character.");
    h->n_target++;
    if (h->state == HEAD_QUERY ? c == '&' : c == '?') {
        h->state = HEAD_QUERY;
        if (++h->n_arguments > GUARD_ARGUMENTS_MAX)
            return bad(why, 414, "The query has more than 64 arguments.");
    }
    return JUDGE_MORE;
}

static judge_verdict look_version(head_judge *h, unsigned char c, guard_refusal *why) {
    static const char form[] = "HTTP/0.0"; // 0: any digit
    if (h->at == sizeof form - 1 && c == '\r') {
        if (h->major != '1' || h->minor > '1')
            return bad(why, 505, "Only HTTP/1.1 and HTTP/1.0 are supported.");
        h->state = HEAD_LF;
        return JUDGE_MORE;
    }
    bool digit = c >= '0' && c <= '9';
    if (h->at == sizeof form - 1 || (form[h->at] == '0' ? !digit : c != form[h->at]))
        return bad(why, 400, "The request line does not end with an HTTP version and CR LF.");
    if (h->at == 5) h->major = (char)c;
    if (h->at == 7) h->minor = (char)c;
    h->at++;
    return JUDGE_MORE;
}

/* The first byte of a line behind the request line, and of one behind the last chunk. */
static judge_verdict look_line(unsigned char c, guard_refusal *why) {
    if (c == ' ' || c == '\t') return bad(why, 400, "A header is folded over two lines.");
    if (c == ':') return bad(why, 400, "A header has no name.");
    if (c == '\n') return bad(why, 400, no_crlf);
    if (!guard_is_token_byte(c)) return bad(why, 400, "A header name is not a token.");
    return JUDGE_MORE;
}

static judge_verdict look_name(unsigned char c, guard_refusal *why) {
    if (c == '\r' || c == '\n') return bad(why, 400, "A header line has no colon.");
    if (!guard_is_token_byte(c)) return bad(why, 400, "A header name is not a token.");
    return JUDGE_MORE;
}

static judge_verdict look_value(unsigned char c, guard_refusal *why) {
    if (c == '\n') return bad(why, 400, no_crlf);
    if (is_control(c) && c != '\t')
        return bad(why, 400, "A header value holds a control character.");
    return JUDGE_MORE;
}

static judge_verdict look_byte(head_judge *h, unsigned char c, guard_refusal *why) {
    switch ((head_state)h->state) {
    case HEAD_BEGIN:
        return look_begin(h, c, why);
    case HEAD_METHOD:
        return look_method(h, c, why);
    case HEAD_TARGET:
    case HEAD_QUERY:
        return look_target(h, c, why);
    case HEAD_VERSION:
        return look_version(h, c, why);
    case HEAD_LINE:
        if (c == '\r') {
            h->state = HEAD_END_LF;
            return JUDGE_MORE;
        }
        if (look_line(c, why) == JUDGE_BAD) return JUDGE_BAD;
        if (++h->n_headers > GUARD_HEADERS_MAX)
            return bad(why, 431, "There are more than 100 headers.");
        h->state = HEAD_NAME;
        return JUDGE_MORE;
    case HEAD_NAME:
        if (c != ':') return look_name(c, why);
        h->state = HEAD_VALUE;
        return JUDGE_MORE;
    case HEAD_VALUE:
        if (c != '\r') return look_value(c, why);
        h->state = HEAD_LF;
        return JUDGE_MORE;
    case HEAD_BEGIN_LF:
    case HEAD_LF:
    case HEAD_END_LF:
        break;
    }
    if (c != '\n') return bad(why, 400, no_crlf);
    if (h->state == HEAD_END_LF) return JUDGE_DONE;
    h->state = h->state == HEAD_LF ? HEAD_LINE : HEAD_BEGIN;
    return JUDGE_MORE;
}

/* Most bytes belong to a name or a value and change nothing: returns how many of those are at p. */
static size_t skip(const head_judge *h, const char *p, size_t n) {
    uint8_t in = h->state == HEAD_VALUE ? GUARD_IN_VALUE : GUARD_IN_TOKEN;
    size_t i = 0;
    if (h->state != HEAD_VALUE && h->state != HEAD_NAME) return 0;
    n = size_min(n, h->bytes_max - h->n);
    while (i < n && (guard_bytes[(unsigned char)p[i]] & in) != 0) i++;
    return i;
}

judge_verdict head_look(head_judge *h, const char *p, size_t n, size_t *used, guard_refusal *why) {
    judge_verdict v = JUDGE_MORE;
    size_t i = 0;
    while (v == JUDGE_MORE) {
        size_t n_skipped = skip(h, p + i, n - i);
        h->n += (uint32_t)n_skipped;
        i += n_skipped;
        if (i == n) break;
        v = look_byte(h, (unsigned char)p[i++], why);
        if (h->state <= HEAD_BEGIN_LF)
            h->n_empty_bytes++;
        else if (++h->n > h->bytes_max && v != JUDGE_BAD)
            v = h->state < HEAD_VERSION ? bad(why, 414, "The request target is too long.")
                                        : bad(why, 431, "The headers are too long.");
    }
    *used = i;
    return v;
}

bytes head_path(bytes head) {
    size_t from = 0, to;
    while (from < head.n && head.p[from] != ' ') from++;
    for (to = ++from; to < head.n && strchr(" ?\r\n", head.p[to]) == NULL;) to++;
    return to < head.n ? (bytes){head.p + from, to - from} : (bytes){"", 0};
}

bytes head_method(bytes head) {
    const char *end = memchr(head.p, ' ', head.n);
    return (bytes){head.p, end == NULL ? 0 : (size_t)(end - head.p)};
}

static bytes behind_line(bytes b) {
    const char *end = memchr(b.p, '\n', b.n);
    size_t n = end == NULL ? b.n : (size_t)(end - b.p) + 1;
    return (bytes){b.p + n, b.n - n};
}

bytes head_fields(bytes head) {
    return behind_line(head);
}

bool head_next(bytes *fields, bytes *name, bytes *value) {
    const char *colon = memchr(fields->p, ':', fields->n);
    if (fields->n <= 2 || colon == NULL) return false;
    bytes next = behind_line(*fields);
    const char *end = next.p - 2; // CR LF
    *name = (bytes){fields->p, (size_t)(colon - fields->p)};
    for (colon++; colon < end && (*colon == ' ' || *colon == '\t');) colon++;
    *value = (bytes){colon, (size_t)(end - colon)};
    *fields = next;
    return true;
}

size_t head_drop(char *head, size_t n, const char *name) {
    bytes fields = head_fields((bytes){head, n}), found, value;
    for (size_t at = n - fields.n; at = n - fields.n, head_next(&fields, &found, &value);) {
        if (found.n != strlen(name) || strncasecmp(found.p, name, found.n) != 0) continue;
        memmove(head + at, fields.p, fields.n);
        n = at + fields.n;
        fields.p = head + at;
    }
    return n;
}

/* -- chunks -- */

typedef enum chunk_state {
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_LINE, // the first byte of a trailer
    CHUNK_NAME,
    CHUNK_VALUE,
    CHUNK_LF, // of a trailer
    CHUNK_END_LF,
} chunk_state;

void chunks_init(chunk_judge *c, uint64_t bytes_max) {
    *c = (chunk_judge){.bytes_max = bytes_max};
}

static int hex(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The first byte behind the digits: CR, or a semicolon and an extension. */
static judge_verdict look_size(chunk_judge *c, unsigned char b, guard_refusal *why) {
    int digit = hex(b);
    if (digit >= 0) {
        if (++c->n_digits > JUDGE_CHUNK_DIGITS_MAX)
            return bad(why, 400, "The size of a chunk has more than 16 digits.");
        if (c->left > (UINT64_MAX >> 4) || (c->left << 4 | (unsigned)digit) > c->bytes_max - c->n)
            return bad(why, 413, "The body is larger than this server reads.");
        c->left = c->left << 4 | (unsigned)digit;
        return JUDGE_MORE;
    }
    if (c->n_digits == 0 || (b != '\r' && b != ';'))
        return bad(why, 400, "The size of a chunk is not a hexadecimal number.");
    c->n_line = 0;
    c->state = b == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
    return JUDGE_MORE;
}

static judge_verdict look_extension(chunk_judge *c, unsigned char b, guard_refusal *why) {
    if (b == '\r') {
        c->state = CHUNK_SIZE_LF;
        return JUDGE_MORE;
    }
    if (b == '\n') return bad(why, 400, no_crlf);
    if (is_control(b) && b != '\t')
        return bad(why, 400, "The extension of a chunk holds a control character.");
    if (++c->n_line > JUDGE_EXTENSION_BYTES_MAX)
        return bad(why, 400, "The extension of a chunk has more than 256 bytes.");
    return JUDGE_MORE;
}

static judge_verdict look_line_end(chunk_judge *c, unsigned char b, guard_refusal *why) {
    if (b != '\n') return bad(why, 400, no_crlf);
    switch ((chunk_state)c->state) {
    case CHUNK_SIZE_LF:
        c->n += c->left;
        c->state = c->left > 0 ? CHUNK_DATA : CHUNK_LINE;
        return JUDGE_MORE;
    case CHUNK_DATA_LF:
        c->state = CHUNK_SIZE;
        c->n_digits = 0;
        return JUDGE_MORE;
    case CHUNK_LF:
        c->state = CHUNK_LINE;
        return JUDGE_MORE;
    default:
        return JUDGE_DONE;
    }
}

static judge_verdict look_trailer(chunk_judge *c, unsigned char b, guard_refusal *why) {
    if (++c->n_trailers > JUDGE_TRAILER_BYTES_MAX)
        return bad(why, 431, "The trailers have more than 4096 bytes.");
    switch ((chunk_state)c->state) {
    case CHUNK_LINE:
        c->state = CHUNK_NAME;
        return look_line(b, why);
    case CHUNK_NAME:
        if (b != ':') return look_name(b, why);
        c->state = CHUNK_VALUE;
        return JUDGE_MORE;
    default:
        if (b != '\r') return look_value(b, why);
        c->state = CHUNK_LF;
        return JUDGE_MORE;
    }
}

/* One byte of framing; *keep: the library gets this byte. */
static judge_verdict look_framing(chunk_judge *c, unsigned char b, bool *keep, guard_refusal *why) {
    *keep = true;
    switch ((chunk_state)c->state) {
    case CHUNK_SIZE:
        *keep = b != ';';
        return look_size(c, b, why);
    case CHUNK_EXTENSION:
        *keep = b == '\r';
        return look_extension(c, b, why);
    case CHUNK_DATA_CR:
        if (b != '\r') return bad(why, 400, "A chunk is longer than its size.");
        c->state = CHUNK_DATA_LF;
        return JUDGE_MORE;
    case CHUNK_LINE:
        if (b == '\r') {
            c->state = CHUNK_END_LF;
            return JUDGE_MORE;
        }
        *keep = false;
        return look_trailer(c, b, why);
    case CHUNK_NAME:
    case CHUNK_VALUE:
        *keep = false;
        return look_trailer(c, b, why);
    case CHUNK_LF:
        *keep = false;
        return look_line_end(c, b, why);
    case CHUNK_SIZE_LF:
    case CHUNK_DATA_LF:
    case CHUNK_END_LF:
    case CHUNK_DATA:
        break;
    }
    return look_line_end(c, b, why);
}

judge_verdict chunks_look(chunk_judge *c, char *p, size_t n, size_t *used, size_t *kept,
                          guard_refusal *why) {
    judge_verdict v = JUDGE_MORE;
    size_t i = 0, to = 0;
    while (i < n && v == JUDGE_MORE) {
        if (c->state == CHUNK_DATA) {
            size_t k = c->left < n - i ? (size_t)c->left : n - i;
            memmove(p + to, p + i, k);
            c->left -= k;
            i += k, to += k;
            if (c->left == 0) c->state = CHUNK_DATA_CR;
            continue;
        }
        bool keep;
        char b = p[i++];
        v = look_framing(c, (unsigned char)b, &keep, why);
        if (keep && v != JUDGE_BAD) p[to++] = b;
    }
    *used = i;
    *kept = to;
    return v;
}
