/* top_panels.h - the parts of the screen of `inferd ctl top` (top_view.h), as lines.
 *
 * Each function appends at most as many lines as it is given, each of at most `width` columns.
 * Thread: main. */
#ifndef INFERD_TOP_PANELS_H
#define INFERD_TOP_PANELS_H

#include "top_view.h"

/* Its value is the number of lines of a device. */
typedef enum top_device_form {
    TOP_DEVICE_SHORT = 1,
    TOP_DEVICE_FULL = 3,
    TOP_DEVICE_LONG = 4
} top_device_form;

void top_add_head(const top_state *s, uint64_t now_us, uint32_t width, buf *out); // 2 lines
void top_add_devices(const top_state *s, top_device_form form, uint32_t n_lines, uint32_t width,
                     buf *out);
void top_add_models_head(const top_view *v, uint32_t n_models, buf *out);
void top_add_model(const top_view *v, const json_t *m, bool selected, int64_t now_ms, buf *out);
void top_add_tenants(const top_state *s, uint32_t n_lines, uint32_t width, buf *out);
void top_add_events(const top_state *s, uint32_t n_lines, uint32_t width, buf *out);
void top_add_panel(const char *text, uint32_t n_lines, uint32_t width, buf *out);

/* The memory that a model has: on devices and in host memory. */
uint64_t top_model_bytes(const json_t *m);

#endif
