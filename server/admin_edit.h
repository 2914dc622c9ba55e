/* admin_edit.h - changes of a configuration's text, as JSON: what the admin API does to a file
 * before it is read like any other.
 *
 * A change is a merge patch (RFC 7396) of one model or tenant: members replace members, objects are
 * merged, null takes a member away, so that its default counts again.  Only what may change while
 * the daemon runs, and holds no keys, can be named.
 *
 * Keys never leave: ADMIN_MASK stands for each of them, which is too short to be one.  A text that
 * comes back with masks gets the keys of the same owner and place back from the file.
 *
 * Thread: any; nothing is kept. */
#ifndef INFERD_ADMIN_EDIT_H
#define INFERD_ADMIN_EDIT_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

#define ADMIN_MASK "****"

typedef enum admin_section { ADMIN_MODELS, ADMIN_TENANTS } admin_section;
const char *admin_section_name(admin_section section); // "models"

/* The element of `root`'s list of this name, or NULL; for models also by alias. */
json_t *admin_find(const json_t *root, admin_section section, const char *name);
/* Is this a patch that may be merged?  EINVAL names the member. */
inferd_status admin_check_patch(admin_section section, const json_t *patch, inferd_err *err);
/* Merge it.  ENOTFOUND: no such element. */
inferd_status admin_merge(json_t *root, admin_section section, const char *name,
                          const json_t *patch, inferd_err *err);
/* Put a whole element in place of the one with its name, or behind the others. */
inferd_status admin_put(json_t *root, admin_section section, json_t *element, inferd_err *err);

/* Masks in place of all keys. */
inferd_status admin_mask(json_t *root, inferd_err *err);
/* Keys in place of masks, from `from` (borrowed, may be NULL).  *n_masks says how many there were;
 * EINVAL names a mask that stands for nothing. */
inferd_status admin_unmask(json_t *root, const json_t *from, uint32_t *n_masks, inferd_err *err);

/* As text, indented, with a newline at the end. */
inferd_status admin_write(const json_t *root, buf *out, inferd_err *err);

#endif
