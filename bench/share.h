/* share.h - `inferd-bench share`: measures the cost of sharing one device, and whether the
 * guarantees hold, on a running daemon.
 *
 *     row       required setup of the daemon
 *     switch    room for one of the models at a time; any server with several models
 *     warm      the same, and host memory for all of them
 *     cold      the same without host memory, files in the page cache
 *     gap       room for all of them, no host memory
 *     urgent    room for all of them
 *     shares    room for all of them, no tenants
 *     guarantee room for all of them, two tenants: `key` with a fixed share, and `flood_key`
 *     weights   room for the first, no models with shares, two tenants without limits: those of
 *               `key` and of `flood_key`, with their names
 *     beside    the same, and a third tenant that may ask for the class high: `urgent_key`
 *     inversion room for the first three without the keys and values of the first, no host memory
 *     roundrobin room for the first three and nothing else, no host memory; the fourth is of the
 *               class high
 *     burst     room for all of them
 *     kv        any that has computed something
 *
 * All but `switch` use the admin API.  The samples of each row are kept; the table shows medians
 * and the spread, and the JSON file has the rest.  scripts/bench-share starts daemons with these
 * setups and assembles the whole table.
 *
 * Thread: the run's. */
#ifndef BENCH_SHARE_H
#define BENCH_SHARE_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "share_client.h"
#include "share_table.h"

enum { SHARE_MODELS_MAX = 8 };

typedef struct share_options {
    const char *url, *admin_key;              // keys NULL: none
    const char *key, *flood_key, *urgent_key; // of three tenants
    const char *tenants;                      // "a,b": the tenants of key and flood_key
    const char *rows;                         // "warm,gap"
    const char *models;                       // "a,b,c,d"
    const char *json_path;                    // NULL: none
    uint32_t threads;                         // the device's compute threads
    uint32_t kv_bytes;                        // keys and values of one token of the first model
    uint32_t id_lo, id_hi;                    // token ids of prompts
    uint32_t window_s;                        // of shares; phases of guarantee are nearly as long
    uint64_t seed;
    bool is_quick;
} share_options;

share_options share_options_default(void);

/* Prints the table to standard output, or to standard error when the JSON goes there.  *out_all_met
 * is false when a goal was missed or a row could not be measured. */
inferd_status share_run(const share_options *o, bool *out_all_met, inferd_err *err);

/* ---- for the rows ---- */

typedef struct share {
    const share_options *o;
    share_server to; // with the key of `user`
    share_client user, admin;
    char *models[SHARE_MODELS_MAX]; // [n_models] owned
    uint32_t n_models;
    uint64_t n_asked; // gives each prompt a different seed
    share_table table;
} share;

/* A row: measures and adds to the table, or fails with the reason. */
typedef inferd_status share_measure(share *s, inferd_err *err);
share_measure share_measure_switch, share_measure_warm, share_measure_cold, share_measure_gap,
    share_measure_urgent, share_measure_shares, share_measure_guarantee, share_measure_weights,
    share_measure_beside, share_measure_inversion, share_measure_roundrobin, share_measure_burst,
    share_measure_kv;

/* The state of the daemon; the caller owns it. */
inferd_status share_state(share *s, json_t **out, inferd_err *err);
json_t *share_state_model(json_t *state, const char *model); // borrowed; NULL: not there
json_t *share_state_device(json_t *state);                   // the first
/* A number at "a.b.c" of an object. */
inferd_status share_number(json_t *object, const char *path, double *out, inferd_err *err);

/* The sum of a number of all entries of account.principals with a `member` ("model", "tenant") of
 * `name`: device_s, output_tokens, ... */
inferd_status share_charged(json_t *account, const char *member, const char *name,
                            const char *number, double *out, inferd_err *err);
/* Changes a model or tenant (`kind` "models", "tenants"); waits while another change is in
 * progress. */
inferd_status share_patch(share *s, const char *kind, const char *name, const char *body,
                          inferd_err *err);

/* `n` output tokens, or as many as fit in the model's context after a prompt of n_prompt. */
inferd_status share_output_fitting(share *s, const char *model, uint32_t n_prompt, uint32_t n,
                                   uint32_t *out, inferd_err *err);

/* Requests one token after a prompt of n_prompt: milliseconds from sending to that token. */
inferd_status share_first_token(share *s, const char *model, const char *tier, uint32_t n_prompt,
                                share_answer *answer, double *out_ms, inferd_err *err);
uint64_t share_seed(share *s);           // a different one each time
uint32_t share_window_s(const share *s); // window_s of the options, a shorter one with is_quick
void share_sleep_ms(double ms);

/* Bytes read and written by memcpy per second, median of rounds, with `threads` threads in parallel
 * on memory that does not fit any cache. */
inferd_status share_copy_rate(uint32_t threads, double *out_bytes_per_s, inferd_err *err);

#endif
