/* account.c - see account.h. */
#include "account.h"

#include <stdlib.h>

enum { ROWS = ENGINE_PRINCIPALS_MAX };

bool account_init(account *a) {
    *a = (account){0};
    list_node_init(&a->recent);
    a->rows = calloc(ROWS, sizeof *a->rows);
    a->buckets = malloc(ROWS * sizeof *a->buckets);
    a->changed = malloc(ROWS * sizeof *a->changed);
    if (a->rows == NULL || a->buckets == NULL || a->changed == NULL) return false;
    for (uint32_t i = 0; i < ROWS; i++) a->buckets[i] = ACCOUNT_NONE;
    return true;
}

void account_deinit(account *a) {
    free(a->rows);
    free(a->buckets);
    free(a->changed);
    *a = (account){0};
}

/* ---- finding ---- */

static uint32_t bucket_of(uint32_t tenant, uint32_t model) {
    return (tenant * 2654435761u ^ model * 40503u) % ROWS;
}

static uint32_t number_of(const account *a, const account_row *row) {
    return (uint32_t)(row - a->rows);
}

static void hash(account *a, account_row *row) {
    uint32_t *bucket = &a->buckets[bucket_of(row->is.tenant, row->is.model)];
    row->next = *bucket;
    *bucket = number_of(a, row);
    row->hashed = true;
}

static void unhash(account *a, account_row *row) {
    uint32_t *at = &a->buckets[bucket_of(row->is.tenant, row->is.model)];
    while (&a->rows[*at] != row) at = &a->rows[*at].next;
    *at = row->next;
    row->hashed = false;
}

static account_row *find(account *a, uint32_t tenant, uint32_t model) {
    for (uint32_t i = a->buckets[bucket_of(tenant, model)]; i != ACCOUNT_NONE; i = a->rows[i].next)
        if (a->rows[i].is.tenant == tenant && a->rows[i].is.model == model) return &a->rows[i];
    return NULL;
}

static void note_change(account *a, account_row *row) {
    if (row->changed) return;
    row->changed = true;
    a->changed[a->n_changed++] = number_of(a, row);
}

/* ---- taking ---- */

static void add(engine_principal *to, const engine_principal *from) {
    to->device_us += from->device_us;
    to->prompt_tokens += from->prompt_tokens;
    to->cached_tokens += from->cached_tokens;
    to->output_tokens += from->output_tokens;
}

/* Rows of models that left are in front: account_close_model puts them there. */
static account_row *take_row(account *a) {
    if (a->n_rows < ROWS) return &a->rows[a->n_rows++];
    account_row *row = LIST_ENTRY(a->recent.next, account_row, link);
    list_remove(&row->link);
    if (row->hashed) unhash(a, row);
    add(&a->others, &row->is);
    return row;
}

engine_principal *account_row_of(account *a, uint32_t tenant, uint32_t model) {
    account_row *row = find(a, tenant, model);
    if (row == NULL) {
        row = take_row(a);
        bool changed = row->changed;
        *row = (account_row){.changed = changed,
                             .is = {.tenant = tenant, .model = model, .serial = ++a->n_serials}};
        list_node_init(&row->link);
        hash(a, row);
    } else {
        list_remove(&row->link);
    }
    list_push_back(&a->recent, &row->link);
    note_change(a, row);
    return &row->is;
}

void account_charge(account *a, uint32_t tenant, uint32_t model, uint64_t us) {
    account_row_of(a, tenant, model)->device_us += us;
    a->device_us += us;
}

void account_close_model(account *a, uint32_t model) {
    LIST_EACH_SAFE(node, next, &a->recent) {
        account_row *row = LIST_ENTRY(node, account_row, link);
        if (!row->hashed || row->is.model != model) continue;
        unhash(a, row);
        list_remove(&row->link);
        list_push_front(&a->recent, &row->link);
    }
}

uint32_t account_next_changed(account *a) {
    if (a->n_changed == 0) return ACCOUNT_NONE;
    uint32_t i = a->changed[--a->n_changed];
    a->rows[i].changed = false;
    return i;
}

bool account_verify(const account *a) {
    uint64_t us = a->others.device_us;
    for (uint32_t i = 0; i < a->n_rows; i++) us += a->rows[i].is.device_us;
    return us == a->device_us;
}
