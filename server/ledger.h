/* ledger.h - what each tenant used of all devices for each model, by name: time and tokens.
 *
 *     engine's list of principals  --ledger_read-->  rows by (tenant, name of the model)
 *
 * An engine knows slots and forgets models that left; here a row stays, and only grows.  Who reads
 * often enough (before a slot gets another model) misses nothing.  There are LEDGER_ROWS_MAX rows;
 * what comes when they are taken is counted in one more, of nobody.
 *
 * Time costs what an hour costs when it is read: another price changes nothing of before.
 *
 * The last LEDGER_WINDOW_S seconds are kept for what a share was used.
 *
 * Thread: front. */
#ifndef INFERD_LEDGER_H
#define INFERD_LEDGER_H

#include "inferd/base.h"
#include "scheduler/usage.h"

enum { LEDGER_ROWS_MAX = 8192, LEDGER_WINDOW_S = 10 };
#define LEDGER_NOBODY UINT32_MAX // tenant and name of the row for the rest

typedef struct ledger_row {
    uint32_t tenant, name_idx;
    uint64_t device_us, prompt_tokens, cached_tokens, output_tokens;
    uint64_t n_rungs[GEN_RUNGS], away_us;  // its preemptions
    unsigned __int128 cost;                // of device_us: us * millionths of a currency per hour
    uint64_t then_us[LEDGER_WINDOW_S + 1]; // device_us at the seconds before; a ring
} ledger_row;

typedef struct ledger ledger;

ledger *ledger_create(uint32_t n_devices); // NULL: no memory
void ledger_destroy(ledger *l);            // accepts NULL

/* Room for one device's list, [ENGINE_PRINCIPALS_MAX], so that who reads often asks for no memory.
 * Borrowed; what is in it is nobody's after the next call of ledger_read. */
engine_principal *ledger_list(ledger *l);
/* Of what is read from now on: millionths of a currency per hour of a device; 0: nothing. */
void ledger_set_price(ledger *l, uint64_t hour_micros);
bool ledger_is_priced(const ledger *l); // there was a price, ever
/* Add what changed since this device was read last.  names: [n_slots] number of the name of the
 * model in each slot; LEDGER_NOBODY where there is none.  False: no memory; it is added later. */
bool ledger_read(ledger *l, uint32_t device_idx, const engine_principal *list, uint32_t n,
                 const uint32_t *names, uint32_t n_slots);
/* Now and then: the window moves once a second. */
void ledger_tick(ledger *l, uint64_t now_us);
bool ledger_is_due(const ledger *l, uint64_t now_us); // ledger_tick would move it

uint32_t ledger_n(const ledger *l);
const ledger_row *ledger_at(const ledger *l, uint32_t i); // until the next ledger_read
/* Device time of a row in the window, and the window's length; 0 before two ticks. */
uint64_t ledger_recent_us(const ledger *l, uint32_t i);
uint64_t ledger_window_us(const ledger *l, uint64_t now_us);
/* Add the device time of all rows in the window to by_tenant[n_tenants] and by_name[n_names], in
 * one pass; what has a number beyond them is in neither. */
void ledger_sum_recent(const ledger *l, uint64_t *by_tenant, uint32_t n_tenants, uint64_t *by_name,
                       uint32_t n_names);

double ledger_cost(const ledger_row *r); // in the currency

#endif
