/* ctl_json.h - members of answers of the admin API, by path; what is missing, or has another type,
 * is "" or 0.
 *
 * Thread: main. */
#ifndef INFERD_CTL_JSON_H
#define INFERD_CTL_JSON_H

#include <jansson.h>

#include "inferd/base.h"

/* "pages.free" of {"pages": {"free": 3}}, borrowed; NULL: there is none.  `v` may be NULL. */
const json_t *ctl_member(const json_t *v, const char *path);
const char *ctl_text(const json_t *v, const char *path);
double ctl_number(const json_t *v, const char *path);
uint64_t ctl_count(const json_t *v, const char *path); // 0 for a negative number
bool ctl_is(const json_t *v, const char *path);        // true, and not false, missing or a number

#endif
