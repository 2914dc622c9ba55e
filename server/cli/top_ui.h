/* top_ui.h - what the keys of `inferd ctl top` do, without a terminal and a connection.
 *
 *     BROWSE   l, D, pin hot       -> PLANS   the daemon is asked for a plan
 *              u, d, pin warm, unpin -> ASKS
 *              P                   -> PLANS, and then the plan is shown
 *              p                   -> PINS    h, w or u says which
 *     PLANS    the plan came       -> ASKS    its victims are named; where not all have room, their
 *                                             number, and P opens the plan beside the question
 *     ASKS     y                   -> SENDS   the command is sent; any other key: BROWSE
 *     SENDS    the answer came     -> BROWSE  it is shown
 *
 * One request at a time: the keys that need another one are refused meanwhile, Esc gives it up.
 * Thread: main. */
#ifndef INFERD_TOP_UI_H
#define INFERD_TOP_UI_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "top_state.h"
#include "top_view.h"

/* Keys that are no character. */
enum {
    TOP_KEY_UP = 0x110000,
    TOP_KEY_DOWN,
    TOP_KEY_PAGE_UP,
    TOP_KEY_PAGE_DOWN,
    TOP_KEY_HOME,
    TOP_KEY_END,
    TOP_KEY_ESCAPE = 27
};

typedef enum top_mode { TOP_BROWSES, TOP_PLANS, TOP_PINS, TOP_ASKS, TOP_SENDS } top_mode;

typedef enum top_command {
    TOP_LOAD,
    TOP_UNLOAD,
    TOP_DRAIN,
    TOP_UNDRAIN,
    TOP_PIN_HOT,
    TOP_PIN_WARM,
    TOP_UNPIN,
    TOP_PLAN, // shows it
    TOP_COMMANDS
} top_command;

typedef struct top_ui {
    top_view view;
    top_mode mode;
    top_command command; // of the mode
    char *name;          // the model of the command; owned
    json_t *plan;        // that of the question, or NULL; owned
    buf note, panel;     // the panel: a plan, the help or a model; empty: none
    bool bad;            // the note is a failure
    bool help;           // the panel is the help
    bool detail;         // the panel is all of the selected model, as it is now
    bool quit;
    bool gives_up; // the request is to be dropped; its sender sets it to false
} top_ui;

/* A POST to send; `path` is empty where there is none. */
typedef struct top_request {
    buf path, body;
} top_request;

void top_ui_init(top_ui *ui);
void top_ui_deinit(top_ui *ui);
void top_request_deinit(top_request *rq);
/* `rq` is empty before; the request that the key asks for comes into it. */
void top_ui_key(top_ui *ui, const top_state *s, int key, top_request *rq);
/* The answer to the request: its status and body (NULL: no JSON); status 0: there is none, and
 * `why` says so. */
void top_ui_answer(top_ui *ui, int status, const json_t *body, const char *why);
/* What is drawn below the tables.  Borrowed, until the next call of another function. */
top_foot top_ui_foot(top_ui *ui, const top_state *s, const char *trouble);

#endif
