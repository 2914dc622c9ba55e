/* page_map.c - which owner and use each page of an engine's pool has, as runs of neighbours.
 *
 * At most PAGE_MAP_RUNS_MAX runs: if there are more, pages are combined into cells of 2, 4, 8 ...
 * pages, and a cell with different uses or owners is "mixed". */
#include "engine_private.h"

enum { PAGE_MAP_RUNS_MAX = 256, MIXED = PAGE_STATES };

typedef struct holding {
    uint32_t owner; // NO_OWNER: none, or several
    uint32_t use;   // page_state, or MIXED
} holding;

#define NO_OWNER UINT32_MAX

static const char *const use_names[PAGE_STATES + 1] = {
    [PAGE_FREE] = "free",     [PAGE_WEIGHT] = "weight",
    [PAGE_KV] = "kv",         [PAGE_QUARANTINE] = "quarantine",
    [PAGE_WARM] = "warm",     [PAGE_SWAPPED] = "parked",
    [PAGE_ABSENT] = "absent", [MIXED] = "mixed",
};

static bool is_same(holding a, holding b) {
    return a.owner == b.owner && a.use == b.use;
}

static holding of_page(const pool *p, uint32_t page) {
    uint32_t use = p->pages[page].state;
    bool owned = use == PAGE_WEIGHT || use == PAGE_KV || use == PAGE_WARM || use == PAGE_SWAPPED;
    return (holding){owned ? p->pages[page].owner : NO_OWNER, use};
}

static holding of_cell(const pool *p, uint32_t begin, uint32_t end) {
    holding h = of_page(p, begin);
    for (uint32_t i = begin + 1; i < end; i++)
        if (!is_same(h, of_page(p, i))) return (holding){NO_OWNER, MIXED};
    return h;
}

static void add_run(buf *json, bool first, uint32_t begin, uint32_t end, holding h) {
    buf_add_format(json, "%s[%u,%u,\"%s\"", first ? "" : ",", begin, end - begin, use_names[h.use]);
    if (h.owner != NO_OWNER) buf_add_format(json, ",%u", h.owner);
    buf_add_char(json, ']');
}

/* Returns the number of runs in cells of this size, and writes them unless json is NULL. */
static uint32_t walk(const pool *p, uint32_t cell, buf *json) {
    uint32_t n_runs = 0, from = 0;
    holding h = {NO_OWNER, PAGE_FREE};
    for (uint32_t begin = 0; begin < p->n_pages; begin += cell) {
        holding next = of_cell(p, begin, u32_min(begin + cell, p->n_pages));
        if (begin > 0 && is_same(h, next)) continue;
        if (begin > 0 && json != NULL) add_run(json, from == 0, from, begin, h);
        n_runs++;
        from = begin;
        h = next;
    }
    if (p->n_pages > 0 && json != NULL) add_run(json, from == 0, from, p->n_pages, h);
    return n_runs;
}

void engine_write_map(engine *e, buf *json) {
    const pool *p = &e->core.pool;
    uint32_t cell = 1;
    while (walk(p, cell, NULL) > PAGE_MAP_RUNS_MAX) cell *= 2;
    buf_add_format(json, "{\"cell_pages\":%u,\"runs\":[", cell);
    walk(p, cell, json);
    buf_add_str(json, "]}");
}
