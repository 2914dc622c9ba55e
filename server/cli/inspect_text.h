/* inspect_text.h - what `inferd inspect` tells of a file, for people: one screen.
 *
 * Names in a file are foreign bytes: control characters are never printed.
 *
 * Thread: main. */
#ifndef INFERD_INSPECT_TEXT_H
#define INFERD_INSPECT_TEXT_H

#include <jansson.h>

#include "inferd/buf.h"

/* Appends lines; `told` is of model_inspect. */
void inspect_text(const json_t *told, buf *out);

#endif
