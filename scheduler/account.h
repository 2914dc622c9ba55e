/* account.h - what each tenant used of this device for each model: time, and tokens.
 *
 * A row is a *principal*: a tenant's work for the model in a slot, for as long as that model is in
 * it.  Rows only grow.  There are ENGINE_PRINCIPALS_MAX of them; when all are taken, one of a model
 * that left goes, else the one that was charged least recently, and what it had is added to
 * `others`.  So nothing is ever lost:
 *
 *     sum of rows + others == all that was charged      (account_verify)
 *
 * Each row has a serial number, another one for each principal that it ever had; readers who keep
 * sums of their own see by it that a row began anew.
 *
 * Thread: engine. */
#ifndef INFERD_ACCOUNT_H
#define INFERD_ACCOUNT_H

#include "inferd/list.h"
#include "scheduler/usage.h"

#define ACCOUNT_NONE UINT32_MAX

typedef struct account_row {
    list_node link; // in account.recent: least recently charged first
    engine_principal is;
    uint32_t next; // in its bucket
    bool hashed;   // false: its model left
    bool changed;  // in account.changed
} account_row;

typedef struct account {
    account_row *rows; // [ENGINE_PRINCIPALS_MAX] owned; n_rows were used so far
    uint32_t *buckets; // [ENGINE_PRINCIPALS_MAX] first of each; owned
    uint32_t *changed; // [n_changed] rows that changed since account_next_changed; owned
    uint32_t n_rows, n_changed, n_serials;
    list_node recent;
    engine_principal others; // of rows that had to go
    uint64_t device_us;      // all that was ever charged
} account;

bool account_init(account *a); // false: no memory; account_deinit all the same
void account_deinit(account *a);

/* Valid until the next account_row_of. */
engine_principal *account_row_of(account *a, uint32_t tenant, uint32_t model);
void account_charge(account *a, uint32_t tenant, uint32_t model, uint64_t us);
/* The model leaves its slot: who comes next has rows of its own. */
void account_close_model(account *a, uint32_t model);
/* One that changed since it was last told; ACCOUNT_NONE: none did. */
uint32_t account_next_changed(account *a);
/* Its rows and `others` add up. */
bool account_verify(const account *a);

#endif
