/* top_stream.c - see top_stream.h. */
#include "top_stream.h"

#include <string.h>
#include <strings.h>

void top_stream_init(top_stream *s, top_on_event *on_event, void *user) {
    *s = (top_stream){.on_event = on_event, .user = user};
    buf_init(&s->text, TOP_HEAD_BYTES_MAX);
    buf_init(&s->line, TOP_EVENT_BYTES_MAX);
    buf_init(&s->data, TOP_EVENT_BYTES_MAX);
    buf_init(&s->body, TOP_REFUSAL_BYTES_MAX);
}

void top_stream_deinit(top_stream *s) {
    buf_deinit(&s->text);
    buf_deinit(&s->line);
    buf_deinit(&s->data);
    buf_deinit(&s->body);
}

/* ---- events ---- */

static void end_event(top_stream *s) {
    if (s->data.n > 0) s->on_event(s->user, s->name, (bytes){s->data.p, s->data.n - 1});
    buf_clear(&s->data);
    s->name[0] = 0;
}

/* Fields other than these, and comments, mean nothing here. */
static void take_line(top_stream *s, const char *line, size_t n) {
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n == 0) {
        end_event(s);
    } else if (n >= 5 && memcmp(line, "data:", 5) == 0) {
        size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
        buf_add(&s->data, line + skip, n - skip);
        buf_add_char(&s->data, '\n');
    } else if (n >= 6 && memcmp(line, "event:", 6) == 0) {
        size_t skip = n > 6 && line[6] == ' ' ? 7 : 6;
        snprintf(s->name, sizeof s->name, "%.*s", (int)size_min(n - skip, sizeof s->name),
                 line + skip);
    }
}

static inferd_status take_events(top_stream *s, const char *p, size_t n, inferd_err *err) {
    while (n > 0) {
        const char *end = memchr(p, '\n', n);
        size_t length = end == NULL ? n : (size_t)(end - p);
        buf_add(&s->line, p, length);
        p += length + (end != NULL);
        n -= length + (end != NULL);
        if (end != NULL && !s->line.failed) {
            take_line(s, s->line.p == NULL ? "" : s->line.p, s->line.n);
            buf_clear(&s->line);
        }
        if (s->line.failed || s->data.failed)
            return inferd_fail(err, INFERD_ETOOLONG,
                               "an event of the stream is too long, at most %d bytes",
                               TOP_EVENT_BYTES_MAX);
    }
    return INFERD_OK;
}

static inferd_status take_body(top_stream *s, const char *p, size_t n, inferd_err *err) {
    if (s->events) return take_events(s, p, n, err);
    buf_add(&s->body, p, n);
    if (!s->body.failed) return INFERD_OK;
    return inferd_fail(err, INFERD_ETOOLONG, "the answer is too long, at most %d bytes",
                       TOP_REFUSAL_BYTES_MAX);
}

/* ---- HTTP ---- */

static bool value_is(const char *head, const char *name, const char *value) {
    size_t n = strlen(name);
    for (const char *line = strchr(head, '\n'); line != NULL; line = strchr(line, '\n')) {
        line++;
        if (strncasecmp(line, name, n) != 0 || line[n] != ':') continue;
        const char *v = line + n + 1 + strspn(line + n + 1, " \t");
        return strncasecmp(v, value, strlen(value)) == 0;
    }
    return false;
}

static inferd_status end_head(top_stream *s, inferd_err *err) {
    static const char version[] = "HTTP/1.1 ";
    const char *head = buf_cstr(&s->text), *status = head + sizeof version - 1;
    if (strncmp(head, version, sizeof version - 1) != 0 || strspn(status, "0123456789") != 3)
        return inferd_fail(err, INFERD_EFORMAT, "the answer is not HTTP/1.1");
    s->status = atoi(status);
    s->chunked = value_is(head, "Transfer-Encoding", "chunked");
    s->events = s->status == 200 && value_is(head, "Content-Type", "text/event-stream");
    buf_clear(&s->text);
    s->part = s->chunked ? TOP_IN_SIZE : TOP_IN_REST;
    return INFERD_OK;
}

static inferd_status end_size(top_stream *s, inferd_err *err) {
    char *end;
    const char *text = buf_cstr(&s->text);
    size_t n_digits = strspn(text, "0123456789abcdefABCDEF");
    if (n_digits == 0 || n_digits > 8 || strchr("\r\n;", text[n_digits]) == NULL)
        return inferd_fail(err, INFERD_EFORMAT, "the answer has a chunk without a size");
    s->left = strtoul(text, &end, 16);
    buf_clear(&s->text);
    s->part = s->left > 0 ? TOP_IN_CHUNK : TOP_AT_END;
    return INFERD_OK;
}

/* Takes one byte of the head or of the lines between chunks. */
static inferd_status take_byte(top_stream *s, char c, inferd_err *err) {
    if (s->part == TOP_IN_CHUNK_END) {
        if (c == '\n') s->part = TOP_IN_SIZE;
        if (c == '\n' || c == '\r') return INFERD_OK;
        return inferd_fail(err, INFERD_EFORMAT,
                           "the answer has a chunk of another length than it says");
    }
    buf_add_char(&s->text, c);
    size_t n = s->text.n;
    if (s->text.failed || (s->part == TOP_IN_SIZE && n > TOP_CHUNK_LINE_MAX))
        return inferd_fail(err, INFERD_ETOOLONG, "the head of the answer is too long");
    if (c != '\n') return INFERD_OK;
    if (s->part == TOP_IN_SIZE) return end_size(s, err);
    bool empty = n >= 4 && memcmp(s->text.p + n - 4, "\r\n\r\n", 4) == 0;
    return empty ? end_head(s, err) : INFERD_OK;
}

inferd_status top_stream_push(top_stream *s, bytes piece, inferd_err *err) {
    inferd_status st = INFERD_OK;
    while (st == INFERD_OK && piece.n > 0 && s->part != TOP_AT_END) {
        size_t n = 1;
        if (s->part == TOP_IN_CHUNK || s->part == TOP_IN_REST) {
            if (s->part == TOP_IN_REST || s->left > piece.n)
                n = piece.n;
            else
                n = (size_t)s->left;
            st = take_body(s, piece.p, n, err);
            if (s->part == TOP_IN_CHUNK && (s->left -= n) == 0) s->part = TOP_IN_CHUNK_END;
        } else {
            st = take_byte(s, *piece.p, err);
        }
        piece.p += n;
        piece.n -= n;
    }
    return st;
}
