/* config_edit.h - edits of a configuration's text, as JSON, by the admin API before it is read.
 *
 * A change is a merge patch (RFC 7396) of one model or tenant: members replace members, objects are
 * merged, null removes a member, so that its default applies again.  Only members that may change
 * while the daemon runs, and that hold no keys, can be named.
 *
 * Keys are never shown: EDIT_MASK, which is too short to be a key, replaces each of them.  A text
 * that is sent back with masks gets the keys of the same owner and position from the file.
 * Thread: any; nothing is kept. */
#ifndef INFERD_CONFIG_EDIT_H
#define INFERD_CONFIG_EDIT_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

#define EDIT_MASK "****"

typedef enum edit_section { EDIT_MODELS, EDIT_TENANTS } edit_section;

/* The element of `root`'s list of this name, or NULL; for models also by alias. */
json_t *edit_find(const json_t *root, edit_section section, const char *name);
/* Is this a patch that may be merged?  EINVAL names the member. */
inferd_status edit_check_patch(edit_section section, const json_t *patch, inferd_err *err);
/* Writes shorthands of the element, or patch, as the objects that they stand for. */
inferd_status edit_expand(edit_section section, json_t *element, inferd_err *err);
/* Merges the patch.  A shorthand is merged as the object that it stands for.  ENOTFOUND: no such
 * element. */
inferd_status edit_merge(json_t *root, edit_section section, const char *name, const json_t *patch,
                         inferd_err *err);
/* Replaces the element of the same name by a whole element, or appends it. */
inferd_status edit_put(json_t *root, edit_section section, json_t *element, inferd_err *err);

/* Replaces all keys by masks. */
inferd_status edit_mask(json_t *root, inferd_err *err);
/* Replaces masks by keys of `from` (borrowed, may be NULL).  EINVAL names a mask without a key. */
inferd_status edit_unmask(json_t *root, const json_t *from, uint32_t *n_masks, inferd_err *err);

/* As indented text, with a newline at the end. */
inferd_status edit_write(const json_t *root, buf *out, inferd_err *err);

#endif
