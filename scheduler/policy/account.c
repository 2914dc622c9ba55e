/* account.c - see account.h. */
#include "account.h"

#include <stdlib.h>

enum { ROWS = ENGINE_PRINCIPALS_MAX };

bool account_init(account *a) {
    *a = (account){0};
    list_node_init(&a->recent);
    a->rows = calloc(ROWS, sizeof *a->rows);
    a->changed = malloc(ROWS * sizeof *a->changed);
    return a->rows != NULL && a->changed != NULL;
}

void account_deinit(account *a) {
    free(a->rows);
    free(a->changed);
    *a = (account){0};
}

static void add(engine_principal *to, const engine_principal *from) {
    to->device_us += from->device_us;
    to->prompt_tokens += from->prompt_tokens;
    to->cached_tokens += from->cached_tokens;
    to->output_tokens += from->output_tokens;
    for (int r = 0; r < GEN_RUNGS; r++) to->n_rungs[r] += from->n_rungs[r];
    to->away_us += from->away_us;
}

static void note_change(account *a, account_row *row) {
    if (row->changed) return;
    row->changed = true;
    a->changed[a->n_changed++] = (uint32_t)(row - a->rows);
}

/* Rows that were released are in front, so they are reused first. */
static account_row *take_row(account *a) {
    if (a->n_rows < ROWS) return &a->rows[a->n_rows++];
    account_row *row = LIST_ENTRY(a->recent.next, account_row, link);
    list_remove(&row->link);
    add(&a->others, &row->is);
    return row;
}

static account_row *begin_row(account *a, account_ref *ref, uint32_t tenant, uint32_t model) {
    account_row *row = take_row(a);
    bool changed = row->changed;
    *row = (account_row){.changed = changed,
                         .is = {.tenant = tenant, .model = model, .serial = ++a->n_serials}};
    list_node_init(&row->link);
    *ref = (account_ref){.row = (uint32_t)(row - a->rows), .serial = row->is.serial};
    return row;
}

/* The row, if it is still that of the reference. */
static account_row *row_of(account *a, const account_ref *ref) {
    account_row *row = &a->rows[ref->row];
    return ref->serial != 0 && row->is.serial == ref->serial && !row->let_go ? row : NULL;
}

void account_charge(account *a, account_ref *ref, uint32_t tenant, uint32_t model,
                    const engine_principal *use) {
    account_row *row = row_of(a, ref);
    if (row == NULL)
        row = begin_row(a, ref, tenant, model);
    else
        list_remove(&row->link);
    list_push_back(&a->recent, &row->link);
    add(&row->is, use);
    add(&a->all, use);
    note_change(a, row);
}

static void let_go(account *a, account_row *row) {
    row->let_go = true;
    list_remove(&row->link);
    list_push_front(&a->recent, &row->link);
}

void account_let_go(account *a, account_ref *ref) {
    account_row *row = row_of(a, ref);
    if (row != NULL) let_go(a, row);
    *ref = (account_ref){0};
}

void account_close_model(account *a, uint32_t model) {
    LIST_EACH_SAFE(node, next, &a->recent) {
        account_row *row = LIST_ENTRY(node, account_row, link);
        if (!row->let_go && row->is.model == model) let_go(a, row);
    }
}

uint32_t account_next_changed(account *a) {
    if (a->n_changed == 0) return ACCOUNT_NONE;
    uint32_t i = a->changed[--a->n_changed];
    a->rows[i].changed = false;
    return i;
}

bool account_verify(const account *a) {
    engine_principal sum = a->others;
    for (uint32_t i = 0; i < a->n_rows; i++) add(&sum, &a->rows[i].is);
    return sum.device_us == a->all.device_us && sum.prompt_tokens == a->all.prompt_tokens &&
           sum.cached_tokens == a->all.cached_tokens && sum.output_tokens == a->all.output_tokens &&
           sum.away_us == a->all.away_us;
}
