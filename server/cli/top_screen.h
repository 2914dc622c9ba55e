/* top_screen.h - the terminal of `inferd ctl top`: ncurses.
 *
 * One screen at a time.  It has the terminal from open to close; text is UTF-8, so
 * top_use_utf8 comes first.  Colours where the terminal has them and NO_COLOR is not
 * set.
 * Thread: main. */
#ifndef INFERD_TOP_SCREEN_H
#define INFERD_TOP_SCREEN_H

#include "inferd/base.h"
#include "inferd/buf.h"

enum { TOP_KEY_NONE = -1, TOP_KEY_RESIZED = -2, TOP_KEY_GONE = -3 };

/* TERM has a name other than "dumb": the terminal obeys escape sequences. */
bool top_screen_named(void);
/* False: standard input or output is no terminal, or one that cannot place its cursor. */
bool top_screen_open(void);
void top_screen_close(void); // also when it is not open: the terminal is as it was
void top_screen_size(uint32_t *width, uint32_t *height);
/* Lines of top_view_draw; only what changed is sent to the terminal. */
void top_screen_draw(const buf *lines);
/* A character, TOP_KEY_UP and others of top_ui.h, or one of the above; never waits. */
int top_screen_key(void);

#endif
