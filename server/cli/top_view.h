/* top_view.h - the screen of `inferd ctl top` as lines of text (top_text.h), without a terminal.
 *
 *     head            2 lines: the daemon, rates and latencies
 *     devices         3 or 4 lines each; 1 where they are many or the screen is low
 *     models          sorted, one of them selected, scrolled so that it is visible
 *     panel           tenants, events, or both; or the text of a foot: a plan, the keys
 *     note            a trouble of the connection, a question, an answer: as many lines as they
 * need keys            1 line
 *
 * Each line has at most TOP_WIDTH_MAX columns, and there are exactly as many as the screen has.
 * Thread: main. */
#ifndef INFERD_TOP_VIEW_H
#define INFERD_TOP_VIEW_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "top_state.h"

enum {
    TOP_WIDTH_MAX = 100,
    TOP_WIDTH_MIN = 40, // less shows only that it is too small
    TOP_HEIGHT_MIN = 10,
    TOP_NOTE_LINES_MAX = 4, // longer ones are cut, but for their question
    TOP_TROUBLE_LINES_MAX = 2
};

typedef enum top_sort {
    TOP_BY_NAME,
    TOP_BY_STATE, // hot first
    TOP_BY_CLASS, // the highest first
    TOP_BY_MEMORY,
    TOP_BY_USED,
    TOP_BY_TOKENS,
    TOP_BY_LAST_USE, // the newest first
    TOP_SORTS
} top_sort;

typedef struct top_view {
    uint32_t width, height; // of the terminal
    top_sort sort;
    bool reverse;
    bool tenants;         // the panel shows tenants first; else events
    bool any;             // a model is selected
    uint64_t selected;    // its id
    uint32_t selected_at; // its place in the table when it was drawn last
    uint32_t first;       // the first model that is shown
    uint32_t n_shown;     // models that the last screen had room for
    uint32_t panel_first; // the first line of the foot's panel that is shown
    uint32_t panel_shown; // lines of it that the last screen had room for; 0: it had no panel
    bool panel_cut;       // there are more
} top_view;

/* What is drawn below the tables; texts may come from the daemon, and all are borrowed. */
typedef struct top_foot {
    const char *trouble; // of the connection; NULL: none
    const char *note;    // NULL or "": none
    const char *ask;     // the end of the note, which is never cut ("y/n"); NULL: none
    bool bad;            // the note is a failure
    const char *keys;    // the keys that do something now
    const char *panel;   // lines instead of tenants and events; NULL: none
    bool scrolls;        // keys scroll the panel
} top_foot;

/* The indexes of the models in the order of the table, [s->models.n]; equal ones by name. */
void top_view_order(const top_view *v, const top_state *s, uint32_t *order);
/* Moves the selection by `n` places; INT32_MIN, INT32_MAX: to the first, the last one. */
void top_view_move(top_view *v, const top_state *s, int32_t n);
/* The selected model, or NULL; one that is gone gives its place to the next one. */
const json_t *top_view_selected(top_view *v, const top_state *s);
/* Appends v->height lines. */
void top_view_draw(top_view *v, const top_state *s, const top_foot *foot, uint64_t now_us,
                   buf *out);
/* Scrolls the panel of the last screen; false: it has room for all of it. */
bool top_view_scroll_panel(top_view *v, int32_t n);
/* Has a note with this end room on a screen as the last one was, without a cut? */
bool top_view_note_fits(const top_view *v, const char *note, const char *ask);
const char *top_sort_name(top_sort sort);

#endif
