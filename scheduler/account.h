/* account.h - what each tenant used of this device for each model: time, and tokens.
 *
 * A row is a tenant's work for the model in a slot, for as long as that model is in it.  Rows only
 * grow.  Whoever charges keeps an account_ref, one for each tenant and model, and never looks for
 * its row: the reference says which it is, and gets another one when that row is no longer its own.
 *
 * There are ENGINE_PRINCIPALS_MAX rows; when all are taken, one that was let go goes (its model
 * left its slot, or nobody has a reference to it any more), else the one that was charged least
 * recently, and what it had is added to `others`.  So of all that was charged nothing is lost here:
 *
 *     sum of rows + others == all       (account_verify), of time and of each kind of tokens
 *
 * Others see the rows, and of `others` the time only: who reads before a row goes misses nothing,
 * and who does not has still every microsecond, but the tokens of that row for nobody.
 *
 * Each row has a serial number, another one for each use that was made of it; readers who keep sums
 * of their own see by it that a row began anew.
 *
 * Thread: engine. */
#ifndef INFERD_ACCOUNT_H
#define INFERD_ACCOUNT_H

#include "inferd/list.h"
#include "scheduler/usage.h"

#define ACCOUNT_NONE UINT32_MAX

typedef struct account_row {
    list_node link; // in account.recent: let go first, then least recently charged
    engine_principal is;
    bool let_go;
    bool changed; // in account.changed
} account_row;

/* Zeroed: no row yet. */
typedef struct account_ref {
    uint32_t row, serial;
} account_ref;

typedef struct account {
    account_row *rows; // [ENGINE_PRINCIPALS_MAX] owned; n_rows were used so far
    uint32_t *changed; // [n_changed] rows that changed since account_next_changed; owned
    uint32_t n_rows, n_changed, n_serials;
    list_node recent;
    engine_principal others; // of rows that had to go
    engine_principal all;    // that was ever charged
} account;

bool account_init(account *a); // false: no memory; account_deinit all the same
void account_deinit(account *a);

/* Time and tokens of `use` are added to the row of this reference, which is this tenant's for this
 * model. */
void account_charge(account *a, account_ref *ref, uint32_t tenant, uint32_t model,
                    const engine_principal *use);
/* Nobody charges it any more; the reference is zeroed. */
void account_let_go(account *a, account_ref *ref);
/* The model leaves its slot: who comes next has rows of its own. */
void account_close_model(account *a, uint32_t model);
/* One that changed since it was last told; ACCOUNT_NONE: none did. */
uint32_t account_next_changed(account *a);
/* Its rows and `others` add up. */
bool account_verify(const account *a);

#endif
