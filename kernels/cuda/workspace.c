/* workspace.c - pieces of the workspace, see memory.h.
 *
 *     [ taken | free | taken | taken | free        | scratch ]   by address, side by side
 *
 * First fit: buffers of steps are taken when they grow, a few dozen pieces, so a walk over the list
 * costs little.  The list lives on the host; giving back only shortens it, so it cannot fail.
 * The scratch grows downwards from the end, which first fit uses last.
 *
 * Thread: engine. */
#include <string.h>

#include "cuda/memory_private.h"

enum { PIECE_ALIGN = 256, PIECES_AT_FIRST = 32 };

inferd_status workspace_open(workspace *ws, void *base, size_t n_bytes, inferd_err *err) {
    *ws = (workspace){.base = base, .n_bytes = n_bytes / PIECE_ALIGN * PIECE_ALIGN};
    ws->pieces = calloc(PIECES_AT_FIRST, sizeof *ws->pieces);
    if (ws->pieces == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the list of %d workspace pieces",
                           PIECES_AT_FIRST);
    ws->n_room = PIECES_AT_FIRST;
    ws->pieces[0] = (piece){0, ws->n_bytes, false};
    ws->n_pieces = 1;
    return INFERD_OK;
}

void workspace_close(workspace *ws) {
    free(ws->pieces);
    *ws = (workspace){0};
}

/* Make room for one more piece in the list. */
static bool make_room(workspace *ws) {
    if (ws->n_pieces < ws->n_room) return true;
    piece *more = realloc(ws->pieces, 2 * (size_t)ws->n_room * sizeof *more);
    if (more == NULL) return false;
    ws->pieces = more;
    ws->n_room *= 2;
    return true;
}

static void remove_piece(workspace *ws, uint32_t i) {
    memmove(&ws->pieces[i], &ws->pieces[i + 1], (ws->n_pieces - i - 1) * sizeof *ws->pieces);
    ws->n_pieces--;
}

static size_t largest_free(const workspace *ws) {
    size_t n = 0;
    for (uint32_t i = 0; i < ws->n_pieces; i++)
        if (!ws->pieces[i].taken) n = size_max(n, ws->pieces[i].n_bytes);
    return n;
}

void *memory_workspace_take(cuda_memory *m, size_t n, inferd_err *err) {
    workspace *ws = &m->work;
    size_t largest = largest_free(ws);
    if (n > largest || largest == 0) {
        inferd_fail(err, INFERD_ENOMEM,
                    "the workspace has no room for %zu bytes: of workspace_bytes = %zu, %zu are in "
                    "use and the largest free piece is %zu",
                    n, ws->n_bytes, ws->used_bytes, largest);
        return NULL;
    }
    if (!make_room(ws)) {
        inferd_fail(err, INFERD_ENOMEM, "no memory for the list of %u workspace pieces",
                    2 * ws->n_room);
        return NULL;
    }
    size_t rounded =
        round_up_size(size_max(n, 1), PIECE_ALIGN); // at most `largest`, a multiple too
    uint32_t i = 0;
    while (ws->pieces[i].taken || ws->pieces[i].n_bytes < rounded) i++;
    piece *p = &ws->pieces[i];
    if (p->n_bytes > rounded) {
        memmove(p + 1, p, (ws->n_pieces - i) * sizeof *p);
        ws->n_pieces++;
        p[1].begin += rounded;
        p[1].n_bytes -= rounded;
        p->n_bytes = rounded;
    }
    p->taken = true;
    ws->used_bytes += rounded;
    return ws->base + p->begin;
}

void memory_workspace_give(cuda_memory *m, void *address) {
    if (address == NULL) return;
    workspace *ws = &m->work;
    uint32_t i = 0;
    while (i < ws->n_pieces && ws->base + ws->pieces[i].begin != (unsigned char *)address) i++;
    INFERD_CHECK(i < ws->n_pieces && ws->pieces[i].taken);
    ws->pieces[i].taken = false;
    ws->used_bytes -= ws->pieces[i].n_bytes;
    if (i + 1 < ws->n_pieces && !ws->pieces[i + 1].taken) {
        ws->pieces[i].n_bytes += ws->pieces[i + 1].n_bytes;
        remove_piece(ws, i + 1);
    }
    if (i > 0 && !ws->pieces[i - 1].taken) {
        ws->pieces[i - 1].n_bytes += ws->pieces[i].n_bytes;
        remove_piece(ws, i);
    }
}

void memory_workspace_look(const cuda_memory *m, size_t *largest, size_t *before_scratch) {
    const workspace *ws = &m->work;
    uint32_t n = ws->n_pieces - ws->has_scratch; // those before the scratch
    *largest = largest_free(ws);
    *before_scratch = n > 0 && !ws->pieces[n - 1].taken ? ws->pieces[n - 1].n_bytes : 0;
}

size_t memory_scratch_held(const cuda_memory *m) {
    const workspace *ws = &m->work;
    return ws->has_scratch ? ws->pieces[ws->n_pieces - 1].n_bytes : 0;
}

unsigned char *memory_scratch_hold(cuda_memory *m, size_t n, inferd_err *err) {
    workspace *ws = &m->work;
    unsigned char *end = ws->base + ws->n_bytes;
    size_t rounded = round_up_size(n, PIECE_ALIGN);
    piece *last = &ws->pieces[ws->n_pieces - 1];
    size_t held = ws->has_scratch ? last->n_bytes : 0, more = rounded > held ? rounded - held : 0;
    if (more == 0) return end;
    piece *room = ws->has_scratch ? (ws->n_pieces > 1 ? last - 1 : NULL) : last;
    if (room == NULL || room->taken || room->n_bytes < more) {
        inferd_fail(err, INFERD_ENOMEM,
                    "the workspace has no room for activations of %zu bytes: of workspace_bytes = "
                    "%zu, %zu are in use and %zu are free before its end",
                    n, ws->n_bytes, ws->used_bytes,
                    held + (room != NULL && !room->taken ? room->n_bytes : 0));
        return NULL;
    }
    if (!ws->has_scratch) { // a piece of its own, of no bytes yet
        if (!make_room(ws)) {
            inferd_fail(err, INFERD_ENOMEM, "no memory for the list of %u workspace pieces",
                        2 * ws->n_room);
            return NULL;
        }
        ws->pieces[ws->n_pieces++] = (piece){ws->n_bytes, 0, true};
        ws->has_scratch = true;
        room = &ws->pieces[ws->n_pieces - 2];
    }
    piece *scratch = room + 1;
    room->n_bytes -= more;
    scratch->begin -= more;
    scratch->n_bytes += more;
    ws->used_bytes += more;
    if (room->n_bytes == 0) remove_piece(ws, ws->n_pieces - 2);
    return end;
}
