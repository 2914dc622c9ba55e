/* top_detail.h - all of one model, as lines for a panel of `inferd ctl top`.
 *
 * Thread: main. */
#ifndef INFERD_TOP_DETAIL_H
#define INFERD_TOP_DETAIL_H

#include <jansson.h>

#include "inferd/buf.h"
#include "top_state.h"

/* Names are as the daemon sent them: the lines are made safe when they are drawn (top_text.h).
 * `m` NULL: there is no model. */
void top_add_detail(buf *out, const top_state *s, const json_t *m);

#endif
