/* top_text.h - lines of `inferd ctl top`: text of the daemon made safe, columns, attributes.
 *
 * A line is UTF-8 in which a byte below TOP_MARKS is no character: from there on the text has that
 * attribute.  Names and sentences of the daemon come into a line only through top_add_text, so they
 * hold neither marks nor escape sequences.  Columns are those of wcwidth, so top_use_utf8 has to
 * be called before.
 * Thread: main. */
#ifndef INFERD_TOP_TEXT_H
#define INFERD_TOP_TEXT_H

#include "inferd/base.h"
#include "inferd/buf.h"

/* The bytes of the marks; 0 ends a text and 10 a line. */
typedef enum top_mark {
    TOP_NORMAL = 1,
    TOP_STRONG,
    TOP_WEAK,
    TOP_SELECTED,
    TOP_GOOD,
    TOP_WARNING,
    TOP_BAD,
    TOP_WEIGHTS, // and on: the uses of pages
    TOP_KV,
    TOP_CACHED = 11,
    TOP_WARM,
    TOP_SWAPPED,
    TOP_FREE,
    TOP_MARKS
} top_mark;

static inline void top_add_mark(buf *out, top_mark mark) {
    buf_add_char(out, (char)mark);
}

/* Sets LC_CTYPE to that of the environment if it is UTF-8, else to C.UTF-8.  Numbers stay as they
 * are. */
void top_use_utf8(void);
/* Columns of a text after top_add_text. */
uint32_t top_width(const char *text);
/* At most `width` columns; a longer text ends with an ellipsis.  Control characters and those that
 * change the direction of writing become "?", characters without a width are left out but for two
 * after each character.  Returns the columns. */
uint32_t top_add_text(buf *out, const char *text, uint32_t width);
/* Exactly `width` columns: padded with spaces, on the left if `right`. */
void top_add_cell(buf *out, const char *text, uint32_t width, bool right);
/* A line that may hold marks, cut to `width` columns, and its end. */
void top_add_line(buf *out, const char *line, uint32_t width);
/* A text of the daemon in lines of at most `width` columns, broken at spaces, each with the mark
 * and its end; `lines_max` at most, the last one then ends with an ellipsis.  Returns the number of
 * lines. */
uint32_t top_add_wrapped(buf *out, const char *text, top_mark mark, uint32_t width,
                         uint32_t lines_max);
/* The same with two spaces and `end` behind the text: where not all has room, the text is cut, and
 * `end`, a word of less than `width` columns, stays. */
uint32_t top_add_wrapped_end(buf *out, const char *text, const char *end, top_mark mark,
                             uint32_t width, uint32_t lines_max);
/* Lines of a text, without a limit. */
uint32_t top_count_wrapped(const char *text, uint32_t width);

#endif
