/* ctl_show.h - answers of the admin API as tables for people.
 *
 * A table has text cells; columns are as wide as their widest cell, numbers are right-aligned.  It
 * is at most SHOW_WIDTH columns wide: names are cut, with an ellipsis, where it would be wider.
 * Thread: main. */
#ifndef INFERD_CTL_SHOW_H
#define INFERD_CTL_SHOW_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"

enum { SHOW_WIDTH = 100 };

/* "1.5 GiB", "312 MiB", "0"; "12 ms", "3.4 s", "5.1 min". */
void show_add_size(buf *out, uint64_t n_bytes);
void show_add_seconds(buf *out, double seconds);
void show_add_count(buf *out, uint64_t n); // "99999", "100k", "1.2M"

/* The use of devices, models and tenants; the other two have settings and totals as well. */
void show_state(buf *out, const json_t *state);
void show_models(buf *out, const json_t *state);
void show_tenants(buf *out, const json_t *state);
void show_plan(buf *out, const json_t *plan);
/* The device of a victim where the plan uses several, or "". */
const char *show_device_of(const json_t *plan, const json_t *victim);
void show_drill(buf *out, const json_t *v);
/* The text of {"error": ...}: the message, or every problem. */
void show_error(buf *out, const json_t *answer);
/* Control characters (C0 but for line ends, DEL, C1) become spaces: names in sentences come from
 * files, and must not reach the terminal as escape sequences. */
void show_blank_controls(buf *text);

#endif
