/* top_text.c - see top_text.h. */
#include "top_text.h"

#include <langinfo.h>
#include <locale.h>
#include <wchar.h>

enum { COMBINING_MAX = 2, REPLACED = '?' };
static const char ellipsis[] = "\xe2\x80\xa6";

/* ---- characters ---- */

/* One character; what is no UTF-8 is one byte. */
static uint32_t read_char(const char **p) {
    const unsigned char *s = (const unsigned char *)*p;
    uint32_t n = s[0] < 0x80 ? 1 : s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : s[0] >= 0xC2 ? 2 : 0;
    uint32_t c = n <= 1 ? s[0] : s[0] & (0x7Fu >> n);
    for (uint32_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) n = 0;
        if (n == 0) break;
        c = c << 6 | (s[i] & 0x3F);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0 || c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
        *p += 1;
        return REPLACED;
    }
    *p += n;
    return c;
}

/* Marks of direction turn the text beside them around. */
static bool is_directional(uint32_t c) {
    return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0x2028 || c == 0x2029;
}

/* Terminals differ in what they draw for these: joiners, selectors of variants, tags. */
static bool is_invisible(uint32_t c) {
    return (c >= 0x200B && c <= 0x200D) || (c >= 0x2060 && c <= 0x2064) || c == 0xFEFF ||
           (c >= 0xFE00 && c <= 0xFE0F) || c >= 0xE0000 || c == 0xAD;
}

typedef struct reader {
    const char *p;
    bool marks;           // bytes below TOP_MARKS are marks
    uint32_t n_combining; // since the last character with a width
} reader;

/* The next character to show, its bytes in [*from, r->p), or "?" with *from NULL.  Columns: 0 for a
 * combining character and a mark.  False: the end of the text. */
static bool next(reader *r, const char **from, uint32_t *columns) {
    while (*r->p != 0) {
        const char *start = r->p;
        uint32_t c = read_char(&r->p);
        *from = start;
        *columns = 0;
        if (r->marks && c < TOP_MARKS) return true;
        if (is_invisible(c)) continue;
        int width = is_directional(c) ? -1 : wcwidth((wchar_t)c);
        if (width == 0 && r->n_combining++ >= COMBINING_MAX) continue;
        if (width == 0) return true;
        bool bad = width < 0 || (c == REPLACED && *start != REPLACED);
        if (bad) *from = NULL;
        *columns = bad ? 1 : (uint32_t)width;
        r->n_combining = 0;
        return true;
    }
    return false;
}

static void add_char(buf *out, const reader *r, const char *from) {
    if (from == NULL)
        buf_add_char(out, REPLACED);
    else
        buf_add(out, from, (size_t)(r->p - from));
}

static uint32_t width_of(const char *text, bool marks) {
    reader r = {.p = text, .marks = marks, .n_combining = COMBINING_MAX};
    const char *from;
    uint32_t n = 0, columns;
    while (next(&r, &from, &columns)) n += columns;
    return n;
}

/* Returns the columns. */
static uint32_t add_cut(buf *out, const char *text, uint32_t width, bool marks) {
    reader r = {.p = text, .marks = marks, .n_combining = COMBINING_MAX};
    const char *from;
    uint32_t n = 0, columns;
    bool cut = width_of(text, marks) > width;
    if (cut && width == 0) return 0;
    while (next(&r, &from, &columns)) {
        if (n + columns > width - cut) break;
        add_char(out, &r, from);
        n += columns;
    }
    if (cut) buf_add_str(out, ellipsis);
    return n + cut;
}

/* ---- texts ---- */

void top_use_utf8(void) {
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

uint32_t top_width(const char *text) {
    return width_of(text, false);
}

uint32_t top_add_text(buf *out, const char *text, uint32_t width) {
    return add_cut(out, text, width, false);
}

void top_add_cell(buf *out, const char *text, uint32_t width, bool right) {
    buf cut = {0};
    uint32_t n = top_add_text(&cut, text, width);
    if (right) buf_add_format(out, "%*s", (int)(width - n), "");
    buf_add(out, cut.p, cut.n);
    if (!right) buf_add_format(out, "%*s", (int)(width - n), "");
    buf_deinit(&cut);
}

void top_add_line(buf *out, const char *line, uint32_t width) {
    add_cut(out, line, width, true);
    buf_add_char(out, '\n');
}

/* Bytes of the longest beginning of `text` that has `width` columns and ends at a space, or in a
 * word that is longer than a line. */
static size_t break_at(const char *text, uint32_t width) {
    reader r = {.p = text, .n_combining = COMBINING_MAX};
    const char *from, *space = NULL, *end = text;
    uint32_t n = 0, columns;
    while (next(&r, &from, &columns)) {
        if (from != NULL && *from == ' ' && from > text) space = from;
        if (n + columns > width) return (size_t)((space != NULL ? space : end) - text);
        n += columns;
        end = r.p;
    }
    return (size_t)(r.p - text);
}

uint32_t top_add_wrapped(buf *out, const char *text, top_mark mark, uint32_t width,
                         uint32_t lines_max) {
    uint32_t n = 0;
    if (width < 2) return 0;
    while (*text != 0 && n < lines_max) {
        size_t length = n + 1 == lines_max ? strlen(text) : break_at(text, width);
        char *piece = length == 0 ? NULL : strndup(text, length);
        if (piece == NULL) return n; // no memory
        top_add_mark(out, mark);
        top_add_text(out, piece, width);
        buf_add_char(out, '\n');
        free(piece);
        text += length;
        text += strspn(text, " ");
        n++;
    }
    return n;
}

uint32_t top_count_wrapped(const char *text, uint32_t width) {
    uint32_t n = 0;
    for (; *text != 0 && width >= 2; n++) {
        size_t length = break_at(text, width);
        if (length == 0) break;
        text += length;
        text += strspn(text, " ");
    }
    return n;
}

uint32_t top_add_wrapped_end(buf *out, const char *text, const char *end, top_mark mark,
                             uint32_t width, uint32_t lines_max) {
    buf all = {0};
    buf_add_format(&all, "%s  %s", text, end);
    /* Shorter by a column at a time: where a line ends depends on its words. */
    for (uint32_t columns = width * lines_max;
         top_count_wrapped(buf_cstr(&all), width) > lines_max && columns > 0; columns--) {
        buf_clear(&all);
        top_add_text(&all, text, columns);
        buf_add_format(&all, "  %s", end);
    }
    uint32_t n = top_add_wrapped(out, buf_cstr(&all), mark, width, lines_max);
    buf_deinit(&all);
    return n;
}
