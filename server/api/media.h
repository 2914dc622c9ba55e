/* media.h - parts of requests that are no text: images, sounds, videos, documents.
 *
 * None is served.  The error names the part, the model, and whether the model's file has an encoder
 * for it.
 *
 * Thread: worker. */
#ifndef INFERD_MEDIA_H
#define INFERD_MEDIA_H

#include "api_error.h"
#include "models/model.h"

/* What a part of this type is, in any of the protocols: "image"; static.  NULL: none is known. */
const char *media_of_part(const char *type);
/* Appends to the message of an error with `media` why this model does not take it. */
void media_tell_why(api_error *err, const char *name, const model_info *info);

#endif
