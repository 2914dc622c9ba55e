/* form_turns.h - the conversation of another protocol's body as messages of a chat.
 *
 * Items and blocks go in one by one.  Neighbours of one role are one turn, because templates expect
 * turns that alternate, and a turn becomes
 *
 *     system      one message with the text, or none without text
 *     assistant   one message: text, tool_calls, reasoning_content
 *     user        a tool message for each result, in the order of the calls, since templates pair
 *                 them by position; then one user message with the text
 *
 * Only the first turn can be the system's: many templates accept a system message nowhere else.
 * Later ones are text of the user's turn that they stand in.  They do not move to the front: the
 * start of the prompt would change in the middle of a conversation, and the cached prefix with it.
 *
 * A message has a list of pieces, which say where it is from: {"part", "at", "place"}, where a
 * piece begins as a spot (spot.h), up to the next one of the part.
 *
 * Memory that runs out is noted in no_memory, once for all.
 * Thread: worker. */
#ifndef INFERD_FORM_TURNS_H
#define INFERD_FORM_TURNS_H

#include <jansson.h>

#include "inferd/buf.h"
#include "spot.h"

typedef enum turn_role { TURN_NONE, TURN_SYSTEM, TURN_USER, TURN_ASSISTANT, TURN_ROLES } turn_role;

typedef struct form_turns {
    json_t *messages;                // made so far; borrowed
    json_t *places;                  // per message its pieces; borrowed; may be NULL
    const char *at;                  // path of what is read; borrowed
    const char *between[TURN_ROLES]; // texts of one turn of this role; static
    const char *between_thoughts;    // pieces of reasoning; static
    /* The turn in progress. */
    turn_role role;
    bool has_text, system_over;
    json_t *place;         // where it began; owned
    json_t *pieces;        // of its text, reasoning and calls; owned
    json_t *result_places; // by the id of the call; owned
    buf text, reasoning;
    json_t *calls, *results; // owned; NULL: none; the results by the id of their call
    /* Of the conversation. */
    json_t *known;      // ids of all calls; owned
    json_t *last_calls; // of the assistant's last turn; borrowed
    bool no_memory;
} form_turns;

void turns_deinit(form_turns *t);
/* The turn in progress is of this role, or a new one begins.  TURN_SYSTEM behind the first turn:
 * the user's. */
void turns_open(form_turns *t, turn_role role);
/* More text of this role: the caller appends it. */
buf *turns_text(form_turns *t, turn_role role);
buf *turns_reasoning(form_turns *t); // of the assistant
/* Takes the arguments: JSON in a string. */
void turns_add_call(form_turns *t, const char *id, json_t *name, json_t *arguments);
/* A call that the conversation leaves out: its result is left out, too. */
void turns_leave_out_call(form_turns *t, const char *id);

typedef enum turn_result {
    RESULT_ADDED,
    RESULT_LEFT_OUT,
    RESULT_AGAIN,
    RESULT_UNKNOWN
} turn_result;
/* RESULT_AGAIN: the turn has one of this call; RESULT_UNKNOWN: there is no such call before it. */
turn_result turns_add_result(form_turns *t, const char *id, bytes text);

/* The path in the body that a piece of a message is from, of those in `places`; NULL: no such
 * message. */
const char *turns_place(const json_t *places, size_t message_idx, spot at);

void turns_end(form_turns *t); // the turn in progress becomes messages

#endif
