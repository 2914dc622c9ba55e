/* machine.c - tables of frames, groups of bytes and states, see machine.h; memory: machine_flush.c.
 */
#include "machine.h"

#include <string.h>

#include "inferd/hash.h"

bool machine_hold(grammar_machine *m, void **array, uint32_t *capacity, size_t n,
                  size_t bytes_each) {
    if (n <= *capacity) return true;
    size_t wanted = size_max(*capacity, 32), n_bytes;
    while (wanted < n) wanted *= 2;
    void *p = wanted < UINT32_MAX && size_mul(wanted, bytes_each, &n_bytes)
                  ? realloc(*array, n_bytes)
                  : NULL;
    if (p == NULL) {
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    *array = p;
    *capacity = (uint32_t)wanted;
    return true;
}

static bool grow_table(grammar_machine *m, uint32_t **table, uint32_t *size) {
    uint32_t wanted = *size == 0 ? 256 : *size * 2;
    uint32_t *p = malloc((size_t)wanted * sizeof *p);
    if (p == NULL) {
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    memset(p, 0xff, (size_t)wanted * sizeof *p);
    free(*table);
    *table = p;
    *size = wanted;
    return true;
}

/* ---- frames ---- */

static uint32_t hash_frame(const frame *f) {
    uint64_t h = hash_step(hash_step(HASH_BEGIN, f->node), f->pos);
    h = hash_step(hash_step(hash_step(hash_step(h, f->high), f->count), f->aux), f->parent);
    return (uint32_t)hash_fold(h);
}

static void index_frame(grammar_machine *m, uint32_t i) {
    uint32_t mask = m->frame_table_size - 1, at = hash_frame(&m->frames[i]) & mask;
    while (m->frame_table[at] != UINT32_MAX) at = (at + 1) & mask;
    m->frame_table[at] = i;
}

uint32_t machine_frame(grammar_machine *m, const frame *f) {
    uint32_t depth = m->frames[f->parent].depth + 1;
    if (depth > m->g->limits.stack_max) return FRAME_NONE;
    if (m->n_frames >= m->frame_table_size / 2) {
        if (!grow_table(m, &m->frame_table, &m->frame_table_size)) return FRAME_NONE;
        for (uint32_t i = 1; i < m->n_frames; i++) index_frame(m, i);
    }
    uint32_t mask = m->frame_table_size - 1, at = hash_frame(f) & mask;
    for (; m->frame_table[at] != UINT32_MAX; at = (at + 1) & mask) {
        const frame *o = &m->frames[m->frame_table[at]];
        if (o->node == f->node && o->pos == f->pos && o->high == f->high && o->count == f->count &&
            o->aux == f->aux && o->parent == f->parent)
            return m->frame_table[at];
    }
    if (!machine_hold(m, (void **)&m->frames, &m->frames_capacity, (size_t)m->n_frames + 1,
                      sizeof *m->frames))
        return FRAME_NONE;
    m->frames[m->n_frames] = *f;
    m->frames[m->n_frames].depth = depth;
    m->frame_table[at] = m->n_frames;
    return m->n_frames++;
}

/* ---- groups of bytes ---- */

/* Sources are numbered: terminals, then objects. */
static const uint8_t *classes_of(const grammar_machine *m, uint32_t source) {
    const grammar *g = m->g;
    return source < g->n_terms ? g->terms[source].classes : g->objects[source - g->n_terms].classes;
}

/* Splits each group by class: the class of its first byte keeps the number. */
static void split_groups(byte_map *map, const uint8_t *classes) {
    struct {
        uint8_t group, class;
        bool any;
    } first[256] = {0}, more[256];
    uint32_t n_groups = map->n_groups;
    for (uint32_t b = 0; b < 256; b++) {
        uint8_t group = map->of[b], class = classes[b];
        if (!first[group].any) {
            first[group].any = true;
            first[group].class = class;
        }
        if (first[group].class == class) continue;
        uint32_t to = map->n_groups;
        while (to < n_groups && (more[to].group != group || more[to].class != class)) to++;
        if (to == n_groups) {
            more[n_groups].group = group;
            more[n_groups++].class = class;
        }
        map->of[b] = (uint8_t)to;
    }
    map->n_groups = n_groups;
}

byte_map *machine_new_map(grammar_machine *m) {
    if (!machine_hold(m, (void **)&m->maps, &m->maps_capacity, (size_t)m->n_maps + 1,
                      sizeof *m->maps))
        return NULL;
    byte_map *map = calloc(1, sizeof *map);
    if (map == NULL)
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
    else
        m->maps[m->n_maps++] = map;
    return map;
}

/* The map that keeps apart what each of the sources does (ascending). */
static bool make_map(grammar_machine *m, const uint32_t *sources, uint32_t n) {
    if (!machine_hold(m, (void **)&m->map_sources, &m->map_sources_capacity,
                      (size_t)m->n_map_sources + n, sizeof *m->map_sources))
        return false;
    byte_map *map = machine_new_map(m);
    if (map == NULL) return false;
    *map = (byte_map){.n_groups = 1, .sources_at = m->n_map_sources, .n_sources = n};
    if (n > 0) memcpy(m->map_sources + m->n_map_sources, sources, n * sizeof *sources);
    for (uint32_t i = 0; i < n; i++) split_groups(map, classes_of(m, sources[i]));
    for (uint32_t b = 256; b-- > 0;) map->reps[map->of[b]] = (uint8_t)b;
    m->n_map_sources += n;
    return true;
}

/* The map of a state with these configs; UINT32_MAX: no memory. */
static uint32_t find_map(grammar_machine *m, const config *configs, uint32_t n) {
    enum { SOURCES_MAX = 64, MAPS_MAX = 1024 }; // more: every byte for itself
    uint32_t sources[SOURCES_MAX], n_sources = 0;
    bool all = false;
    for (uint32_t i = 0; i < n && !all; i++) {
        const config *c = &configs[i];
        uint32_t wanted[2], n_wanted = 0;
        if (c->d != OTHERS_OFF) wanted[n_wanted++] = m->g->term_of[c->d];
        if (c->t != 0) wanted[n_wanted++] = m->g->n_terms + m->g->nodes[m->frames[c->frame].node].a;
        for (uint32_t w = 0; w < n_wanted; w++) {
            uint32_t at = 0;
            while (at < n_sources && sources[at] < wanted[w]) at++;
            if (at < n_sources && sources[at] == wanted[w]) continue;
            all = n_sources == SOURCES_MAX;
            if (all) break;
            memmove(sources + at + 1, sources + at, (n_sources - at) * sizeof *sources);
            sources[at] = wanted[w];
            n_sources++;
        }
    }
    if (all) return 0; // map 0 keeps all bytes apart
    for (uint32_t i = 1; i < m->n_maps; i++)
        if (m->maps[i]->n_sources == n_sources && memcmp(m->map_sources + m->maps[i]->sources_at,
                                                         sources, n_sources * sizeof *sources) == 0)
            return i;
    if (m->n_maps >= MAPS_MAX) return 0; // maps outlive a flush, and the search is linear
    return make_map(m, sources, n_sources) ? m->n_maps - 1 : UINT32_MAX;
}

/* ---- states ---- */

static uint32_t hash_configs(const config *configs, uint32_t n, bool accepts) {
    uint64_t h = hash_step(HASH_BEGIN, accepts);
    for (uint32_t i = 0; i < n; i++)
        h = hash_step(hash_step(hash_step(h, configs[i].frame), configs[i].d), configs[i].t);
    return (uint32_t)hash_fold(h);
}

static bool index_states(grammar_machine *m) {
    if (m->n_states < m->state_table_size / 2) return true;
    if (!grow_table(m, &m->state_table, &m->state_table_size)) return false;
    for (uint32_t i = 1; i < m->n_states; i++) {
        uint32_t mask = m->state_table_size - 1, at = m->states[i].hash & mask;
        while (m->state_table[at] != UINT32_MAX) at = (at + 1) & mask;
        m->state_table[at] = i;
    }
    return true;
}

static bool add_state(grammar_machine *m, const config *configs, uint32_t n, bool accepts,
                      uint32_t hash) {
    uint32_t map = find_map(m, configs, n);
    if (map == UINT32_MAX) return false;
    uint32_t n_groups = m->maps[map]->n_groups;
    if (!machine_hold(m, (void **)&m->configs, &m->configs_capacity, (size_t)m->n_configs + n,
                      sizeof *m->configs) ||
        !machine_hold(m, (void **)&m->succ, &m->succ_capacity, (size_t)m->n_succ + n_groups,
                      sizeof *m->succ) ||
        !machine_hold(m, (void **)&m->states, &m->states_capacity, (size_t)m->n_states + 1,
                      sizeof *m->states))
        return false;
    if (n > 0) memcpy(m->configs + m->n_configs, configs, n * sizeof *configs);
    memset(m->succ + m->n_succ, 0xff, n_groups * sizeof *m->succ);
    m->states[m->n_states++] = (state){.configs = m->n_configs,
                                       .n_configs = n,
                                       .map = map,
                                       .succ = m->n_succ,
                                       .hash = hash,
                                       .accepts = accepts};
    m->n_configs += n;
    m->n_succ += n_groups;
    return true;
}

uint32_t machine_intern(grammar_machine *m, const config *configs, uint32_t n, bool accepts) {
    if (n == 0 && !accepts) return STATE_DEAD;
    if (!index_states(m)) return STATE_DEAD;
    uint32_t hash = hash_configs(configs, n, accepts), mask = m->state_table_size - 1;
    uint32_t at = hash & mask;
    for (; m->state_table[at] != UINT32_MAX; at = (at + 1) & mask) {
        const state *q = &m->states[m->state_table[at]];
        if (q->hash == hash && q->n_configs == n && q->accepts == accepts &&
            (n == 0 || memcmp(m->configs + q->configs, configs, n * sizeof *configs) == 0))
            return m->state_table[at];
    }
    if (!add_state(m, configs, n, accepts, hash)) return STATE_DEAD;
    m->state_table[at] = m->n_states - 1;
    return m->n_states - 1;
}

/* ---- sets of configs ---- */

static inline bool comes_after(const config *x, const config *y) {
    if (x->frame != y->frame) return x->frame > y->frame;
    return x->d != y->d ? x->d > y->d : x->t > y->t;
}

static inline bool same_config(const config *x, const config *y) {
    return x->frame == y->frame && x->d == y->d && x->t == y->t;
}

/* Shell's sort with Ciura's gaps: sets have few members, or some hundreds, often nearly in order;
 * qsort, with its calls, took a quarter of the time of the slowest masks. */
void machine_sort(config *c, uint32_t *n) {
    static const uint32_t gaps[] = {1750, 701, 301, 132, 57, 23, 10, 4, 1};
    for (uint32_t g = 0; g < INFERD_COUNT(gaps); g++)
        for (uint32_t i = gaps[g]; i < *n; i++) {
            config one = c[i];
            uint32_t k = i;
            for (; k >= gaps[g] && comes_after(&c[k - gaps[g]], &one); k -= gaps[g])
                c[k] = c[k - gaps[g]];
            c[k] = one;
        }
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (n_kept == 0 || !same_config(&c[n_kept - 1], &c[i])) c[n_kept++] = c[i];
    *n = n_kept;
}
