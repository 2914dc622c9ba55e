/* ledger.h - the usage table: time and tokens that each tenant used on all devices, by model name.
 *
 *   engine's list of flows (engine_principal) --ledger_read--> rows by (tenant, name of the model)
 *
 * An engine identifies models by slot and drops the figures of models that left; here a row stays,
 * and only grows.  No use is missed if the lists are read often enough (before a slot gets another
 * model).  There are LEDGER_ROWS_MAX rows; when they are taken, further use is counted in one more
 * row without tenant and model.
 *
 * Time is charged at the price per hour when it is read: a new price does not change past costs.
 *
 * The last LEDGER_WINDOW_S seconds are kept to compute the recent use of a share.
 *
 * Thread: front. */
#ifndef INFERD_LEDGER_H
#define INFERD_LEDGER_H

#include "inferd/base.h"
#include "scheduler/usage.h"

enum { LEDGER_ROWS_MAX = 8192, LEDGER_WINDOW_S = 10 };
#define LEDGER_NOBODY UINT32_MAX // no tenant, no name: the row for the rest

typedef struct ledger_row {
    uint32_t tenant, name_idx;
    uint64_t device_us, prompt_tokens, cached_tokens, output_tokens;
    uint64_t n_rungs[GEN_RUNGS], away_us; // preemptions by kind; time swapped out or otherwise away
    unsigned __int128 cost;               // of device_us: us * millionths of a currency per hour
    uint64_t then_us[LEDGER_WINDOW_S + 1]; // device_us at the last seconds; a ring
} ledger_row;

typedef struct ledger ledger;

ledger *ledger_create(uint32_t n_devices); // NULL: no memory
void ledger_destroy(ledger *l);            // accepts NULL

/* A buffer for one device's list, [ENGINE_PRINCIPALS_MAX], so that frequent reads allocate nothing.
 * Borrowed; its content is undefined after the next call of ledger_read. */
engine_principal *ledger_list(ledger *l);
/* The price of time that is read from now on: millionths of a currency per device hour; 0: none. */
void ledger_set_price(ledger *l, uint64_t hour_micros);
bool ledger_is_priced(const ledger *l); // there was a price at any time
/* Adds the use since the last read of this device. names: [n_slots] name_idx of the model in each
 * slot; LEDGER_NOBODY: no model.  False: no memory; it is added by a later call. */
bool ledger_read(ledger *l, uint32_t device_idx, const engine_principal *list, uint32_t n,
                 const uint32_t *names, uint32_t n_slots);
/* Call it regularly: the window moves once a second. */
void ledger_tick(ledger *l, uint64_t now_us);
bool ledger_is_due(const ledger *l, uint64_t now_us); // ledger_tick would move the window

uint32_t ledger_n(const ledger *l);
const ledger_row *ledger_at(const ledger *l, uint32_t i); // until the next ledger_read
/* Device time of a row in the window, and the window's length; 0 before two ticks. */
uint64_t ledger_recent_us(const ledger *l, uint32_t i);
uint64_t ledger_window_us(const ledger *l, uint64_t now_us);
/* Adds the device time of all rows in the window to by_tenant[n_tenants] and by_name[n_names], in
 * one pass; rows with a number beyond these are not added. */
void ledger_sum_recent(const ledger *l, uint64_t *by_tenant, uint32_t n_tenants, uint64_t *by_name,
                       uint32_t n_names);

double ledger_cost(const ledger_row *r); // in the currency

#endif
