/* response_draft.c - see response_draft.h. */
#include "response_draft.h"

#include <stdatomic.h>

#include "form_body.h"
#include "response_store.h"

struct response_draft {
    response_store *store;
    char *tenant; // owned
    buf items;    // with commas between them
    bool given_up;
};

static atomic_size_t n_held; // bytes of the items of all drafts

response_draft *response_draft_create(const form_host *host, bool *no_memory) {
    if (host->store == NULL) return NULL;
    response_draft *d = calloc(1, sizeof *d);
    char *tenant = strdup(host->tenant);
    if (d == NULL || tenant == NULL) {
        *no_memory = true;
        free(d);
        free(tenant);
        return NULL;
    }
    *d = (response_draft){.store = host->store, .tenant = tenant};
    return d;
}

static void drop_items(response_draft *d) {
    atomic_fetch_sub(&n_held, d->items.n);
    buf_deinit(&d->items);
}

void response_draft_destroy(response_draft *d) {
    if (d == NULL) return;
    drop_items(d);
    free(d->tenant);
    free(d);
}

bool response_draft_add(response_draft *d, const json_t *item) {
    if (d == NULL || d->given_up) return true;
    size_t before = d->items.n;
    if (before > 0) buf_add_char(&d->items, ',');
    form_add_json(&d->items, item, false);
    if (d->items.failed) {
        d->items.n = before; // what is counted
        return false;
    }
    size_t n_more = d->items.n - before;
    size_t n_all = atomic_fetch_add(&n_held, n_more) + n_more;
    d->given_up = d->items.n > RESPONSE_BYTES_MAX || n_all > RESPONSE_DRAFTS_BYTES_MAX;
    if (d->given_up) drop_items(d);
    return true;
}

bool response_draft_is_kept(const response_draft *d) {
    return d != NULL && !d->given_up;
}

void response_draft_keep(const response_draft *d, const char *id, bytes output, bytes response) {
    if (d == NULL) return;
    bytes items = {d->items.p, d->items.n};
    if (d->given_up)
        response_store_lose(d->store, id, "its conversation is too long, or others are");
    else
        response_store_keep(d->store, d->tenant, id, items, output, response);
}
