/* account.h - the usage table: time and tokens that each tenant used of this device, per model.
 *
 * A row is the usage of one flow: a tenant's work on the model in a slot, for as long as that model
 * is in it.  Rows only grow.  The scheduler keeps an account_ref for each tenant and model, so it
 * never searches for a row: the reference names the row, and gets another one when that row has
 * been reused.
 *
 * There are ENGINE_PRINCIPALS_MAX rows.  When all are taken, a released row is reused (its model
 * left its slot, or its reference was given up), else the least recently charged one, and its usage
 * is added to `others`.  So nothing that was charged is lost here:
 *
 *     sum of rows + others == all       (account_verify), of time and of each kind of tokens
 *
 * Readers see the rows, and only the time of `others`: a reader that reads a row before it is
 * reused misses nothing; one that does not still has every microsecond, but not that row's tokens.
 *
 * Each row has a serial number, a new one for each reuse, by which readers with sums of their own
 * notice that a row began anew.
 *
 * Thread: engine. */
#ifndef INFERD_ACCOUNT_H
#define INFERD_ACCOUNT_H

#include "inferd/list.h"
#include "scheduler/usage.h"

#define ACCOUNT_NONE UINT32_MAX

typedef struct account_row {
    list_node link; // in account.recent: released rows first, then the least recently charged
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
    engine_principal others; // of rows that were reused
    engine_principal all;    // all usage ever charged
} account;

bool account_init(account *a); // false: no memory; call account_deinit all the same
void account_deinit(account *a);

/* Add the time and tokens of `use` to the row of this reference, for this tenant and model. */
void account_charge(account *a, account_ref *ref, uint32_t tenant, uint32_t model,
                    const engine_principal *use);
/* Release the row: it is not charged any more.  The reference is zeroed. */
void account_let_go(account *a, account_ref *ref);
/* The model leaves its slot: the next model there gets rows of its own. */
void account_close_model(account *a, uint32_t model);
/* A row that changed since it was last returned here; ACCOUNT_NONE: none did. */
uint32_t account_next_changed(account *a);
/* The rows and `others` add up to `all`. */
bool account_verify(const account *a);

#endif
