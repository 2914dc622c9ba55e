/* print.h - values as text: for {{ }}, for repr() inside of a list, and JSON.
 *
 * Text keeps its provenance.  Characters that the interpreter makes are trusted for a single value
 * (a number computed by the template may be part of "<|image_1|>"), but the brackets, commas and
 * quotes around data are not: they never complete a special token.  They count as text of the
 * message that the data is from.
 *
 * Thread: that of the render. */
#ifndef INFERD_CHAT_PRINT_H
#define INFERD_CHAT_PRINT_H

#include "chat/value.h"

enum { JFLOAT_BYTES = 32 };
/* As repr(): the shortest digits that read back the same, "1e+20", "0.1", "nan". */
size_t jfloat_print(double f, char out[JFLOAT_BYTES]);

void jv_print(jctx *c, jbuf *b, jval v);  // str(v)
const jstr *jv_to_str(jctx *c, jval v);   // str(v): never markup
const jstr *jv_soft_str(jctx *c, jval v); // str(v), but markup stays markup
void jv_print_repr(jctx *c, jbuf *b, jval v);

typedef struct jjson_style {
    bool ascii, sort_keys;
    const jstr *indent; // of one level; NULL: all in one line
    const jstr *item_separator, *key_separator;
} jjson_style;
void jv_print_json(jctx *c, jbuf *b, jval v, const jjson_style *style);

#endif
