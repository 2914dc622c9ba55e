/* grammars.h - compiled grammars of structured output, kept from one request to the next.
 *
 * Clients send the same schema with every request.  Its machine holds the compiled grammar, and
 * the masks of the states that were met, so the second request finds both.  A vocabulary is built
 * at the first use of a model, and kept as long as the model is served.
 *
 *     grammars_get     worker: the machine that is kept, or a compiled one, which is kept from now
 *                      on
 *     eviction         the least recently used that no request uses, over GRAMMARS_ENTRIES_MAX or
 *                      GRAMMARS_BYTES_MAX
 *     grammars_forget  front: the model leaves; no worker and no request uses it any more
 *
 * A request holds its machine from its compilation to its end, also while it waits.  When all
 * machines together take more than used_bytes_max, a source that is not kept is refused
 * with INFERD_EBUSY until requests end.  Machines grow while they are used, so each request looks
 * at the sizes of all.
 *
 * Lock: of the lists; nothing is compiled under it.  A second one makes vocabularies one at a time.
 * Thread: any. */
#ifndef INFERD_GRAMMARS_H
#define INFERD_GRAMMARS_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "models/calls.h"
#include "models/grammar.h"
#include "models/model.h"
#include "models/reasoning.h"

enum { GRAMMARS_ENTRIES_MAX = 256 };
#define GRAMMARS_BYTES_MAX      (UINT64_C(128) << 20)
#define GRAMMARS_USED_BYTES_MAX (UINT64_C(1) << 30)

typedef enum grammar_kind {
    GRAMMAR_NONE,
    GRAMMAR_OBJECT, // any JSON object
    GRAMMAR_SCHEMA,
    GRAMMAR_REGEX,
    GRAMMAR_CHOICE,
    GRAMMAR_GBNF,
    GRAMMAR_TAGS // structural tags
} grammar_kind;

/* What an output must follow. */
typedef struct grammar_source {
    grammar_kind kind;
    json_t *json; // of a schema, of tags; GRAMMAR_CHOICE: array of strings; borrowed
    bytes text;   // GRAMMAR_REGEX, GRAMMAR_GBNF; borrowed
    bool strict, compact, spaced, any_order,
        tokens; // grammar_schema_kind; `tokens` is never a client's
    /* What cannot be enforced is left out; each place is appended as "NAME#/properties/a/not ",
     * where NAME is the "$comment" of the schema.  Blanks, commas, % and what is not ASCII are
     * %XX in it.  NULL: it is refused. */
    buf *weakened;
    reasoning reasoning; // before it
    call_around around;  // marks that it may have
} grammar_source;

typedef struct grammars grammars;

grammars *grammars_create(uint64_t used_bytes_max); // NULL: no memory
void grammars_destroy(grammars *g);                 // accepts NULL
/* The caller owns a count.  Errors: those of grammar_of_* (models/grammar.h), and INFERD_EBUSY. */
inferd_status grammars_get(grammars *g, const model *m, const grammar_source *source,
                           grammar_machine **out, inferd_err *err);
/* Appends a place in this form: a name, which may have a pointer, and what follows that. */
void grammars_add_weakened(buf *weakened, const char *name, const char *pointer);
void grammars_forget(grammars *g, const model *m);
/* Evicts at most one, which some requests used when there was no room: call it every 100 ms or so.
 * Never waits. */
void grammars_trim(grammars *g);

typedef struct grammars_stats {
    uint64_t n_found, n_compiled; // since the start
    uint32_t n_entries, n_vocabs; // now
    uint64_t n_bytes;             // of the entries, as last looked at
} grammars_stats;
void grammars_get_stats(grammars *g, grammars_stats *out);

#endif
