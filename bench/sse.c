/* sse.c - see sse.h.  Lines are parsed in place; only a line cut by the end of bytes is copied. */
#include "sse.h"

void sse_init(sse_parser *p) {
    *p = (sse_parser){.at_start = true};
    buf_init(&p->line, SSE_EVENT_BYTES_MAX);
    buf_init(&p->data, SSE_EVENT_BYTES_MAX);
    buf_init(&p->name, SSE_EVENT_BYTES_MAX);
}

void sse_deinit(sse_parser *p) {
    buf_deinit(&p->line);
    buf_deinit(&p->data);
    buf_deinit(&p->name);
}

void sse_reset(sse_parser *p) {
    buf_clear(&p->line);
    buf_clear(&p->data);
    buf_clear(&p->name);
    p->has_data = p->skip_lf = false;
    p->at_start = true;
}

static void take_field(sse_parser *p, const char *line, size_t n) {
    const char *colon = memchr(line, ':', n);
    size_t n_field = colon == NULL ? n : (size_t)(colon - line);
    const char *value = colon == NULL ? line + n : colon + 1;
    size_t n_value = (size_t)(line + n - value);
    if (n_value > 0 && *value == ' ') value++, n_value--;
    if (n_field == 4 && memcmp(line, "data", 4) == 0) {
        if (p->has_data) buf_add_char(&p->data, '\n');
        buf_add(&p->data, value, n_value);
        p->has_data = true;
    } else if (n_field == 5 && memcmp(line, "event", 5) == 0) {
        buf_clear(&p->name);
        buf_add(&p->name, value, n_value);
    }
}

static inferd_status take_line(sse_parser *p, const char *line, size_t n, sse_on_event *on_event,
                               void *ctx) {
    if (p->at_start) {
        p->at_start = false;
        if (n >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) line += 3, n -= 3;
    }
    if (n > 0) {
        if (line[0] != ':') take_field(p, line, n);
        return p->data.failed || p->name.failed ? INFERD_ETOOLONG : INFERD_OK;
    }
    bool go_on = true;
    if (p->has_data) go_on = on_event(ctx, buf_cstr(&p->name), buf_cstr(&p->data), p->data.n);
    buf_clear(&p->data);
    buf_clear(&p->name);
    p->has_data = false;
    return go_on ? INFERD_OK : INFERD_ECANCELED;
}

/* The first CR or LF in [p, end), or NULL. */
static const char *line_end(const char *p, const char *end) {
    const char *lf = memchr(p, '\n', (size_t)(end - p));
    const char *cr = memchr(p, '\r', (size_t)((lf == NULL ? end : lf) - p));
    return cr != NULL ? cr : lf;
}

inferd_status sse_feed(sse_parser *p, const char *in, size_t n, sse_on_event *on_event, void *ctx) {
    const char *at = in, *end = in + n;
    while (at < end) {
        if (p->skip_lf) {
            p->skip_lf = false;
            if (*at == '\n' && ++at == end) break;
        }
        const char *stop = line_end(at, end);
        const char *line = at;
        size_t n_line = (size_t)((stop == NULL ? end : stop) - at);
        if (stop == NULL || p->line.n > 0) {
            buf_add(&p->line, line, n_line);
            if (p->line.failed) return INFERD_ETOOLONG;
            if (stop == NULL) return INFERD_OK;
            line = p->line.p;
            n_line = p->line.n;
        }
        p->skip_lf = *stop == '\r';
        at = stop + 1;
        inferd_status s = take_line(p, line, n_line, on_event, ctx);
        buf_clear(&p->line);
        if (s != INFERD_OK) return s;
    }
    return INFERD_OK;
}
