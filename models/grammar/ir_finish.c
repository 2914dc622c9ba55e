/* ir_finish.c - from the graph of ir.h to a finished grammar: which states of the automata let any
 * plain text follow, and reasoning before the text; the graph itself: ir_measure.c. */
#include <string.h>

#include "ir_private.h"
#include "tags_text.h"
#include "vocab.h"

#ifndef INFERD_SLOWER
#define INFERD_SLOWER 1 // how many times as long all takes in this build
#endif

const grammar_limits grammar_limits_default = {
    .source_bytes_max = 1 << 20,
    .schema_depth_max = 64,
    .nodes_max = 200000,
    .refs_max = 10000,
    .properties_max = 5000,
    .enum_max = 20000,
    .enum_bytes_max = 1 << 20,
    .pattern_bytes_max = 4096,
    .pattern_nesting_max = 50,
    .dfa_states_max = 16384,
    .repeat_max = 1000000,
    .stack_max = 512,
    .configs_max = 1024,
    .steps_max = 500000,
    .white_bytes_max = 20,
    .machine_bytes_max = 8 << 20,
    .mask_bytes_max = 32 << 20,
    .compile_ms_max = 80 * INFERD_SLOWER,
};

enum { PLAIN_PASSES_MAX = 16 };

/* ---- the automata ---- */

uint32_t grammar_n_states(const grammar *g) {
    return g->first_state[g->n_terms];
}

/* Bytes to the nearest accepting state: a breadth-first search against the ways, as rounds. */
static bool shorten(uint32_t *distance, uint32_t s, uint32_t to) {
    if (to == DFA_DEAD || distance[to] >= GRAMMAR_NO_TEXT - 1) return false;
    if (distance[to] + 1 >= distance[s]) return false;
    distance[s] = distance[to] + 1;
    return true;
}

static void find_distances(const dfa *d, uint32_t *distance) {
    for (uint32_t s = 0; s < d->n_states; s++) distance[s] = d->tags[s] != 0 ? 0 : GRAMMAR_NO_TEXT;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            if (d->next == NULL)
                for (uint32_t e = d->edges_at[s]; e < d->edges_at[s + 1]; e++)
                    changed |= shorten(distance, s, d->edge_to[e]);
            else
                for (uint32_t c = 0; c < d->n_classes; c++)
                    changed |= shorten(distance, s, d->next[(size_t)s * d->n_classes + c]);
        }
    }
}

static uint32_t step_byte(const dfa *d, uint32_t s, unsigned b) {
    return s == DFA_DEAD ? s : dfa_step(d, s, (unsigned char)b);
}

/* From s, do all code points of this form lead to plain states?  Depth-first over its bytes; bytes
 * side by side mostly lead to the same state, which is then asked once. */
static bool leads_to_plain(const dfa *d, const uint8_t *plain, uint32_t s, const plain_form *form) {
    uint32_t at[4] = {s}, last[4] = {DFA_DEAD}, byte[4] = {form->low[0]};
    for (int i = 0; i >= 0;) {
        if (byte[i] > form->high[i]) {
            i--;
            continue;
        }
        uint32_t to = step_byte(d, at[i], byte[i]++);
        if (to == DFA_DEAD) return false;
        if (to == last[i]) continue;
        last[i] = to;
        if (i + 1 == form->n) {
            if (plain[to] == 0) return false;
            continue;
        }
        i++;
        at[i] = to;
        last[i] = DFA_DEAD;
        byte[i] = form->low[i];
    }
    return true;
}

static bool is_plain(const dfa *d, const uint8_t *plain, uint32_t s) {
    for (size_t f = 0; f < PLAIN_FORMS; f++)
        if (!leads_to_plain(d, plain, s, &plain_forms[f])) return false;
    return true;
}

/* The largest set of states that plain text does not leave: states fall out until none does. States
 * are numbered from the start on, so most fall in the first pass backwards; where many passes are
 * needed none is called plain, which is only slower. */
static void find_plain(const dfa *d, uint8_t *plain) {
    if (d->next == NULL) return; // a list of texts
    for (uint32_t s = 0; s < d->n_states; s++)
        plain[s] = step_byte(d, s, ' ') != DFA_DEAD && step_byte(d, s, 0xf0) != DFA_DEAD;
    for (int pass = 0; pass < PLAIN_PASSES_MAX; pass++) {
        bool changed = false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            if (plain[s] == 0 || is_plain(d, plain, s)) continue;
            plain[s] = 0;
            changed = true;
        }
        if (!changed) return;
    }
    memset(plain, 0, d->n_states);
}

/* States that read some first byte of plain text. */
static void find_takers(const dfa *d, uint8_t *plain) {
    bool takes[256] = {false}; // of each class
    for (unsigned b = 0x20; b < 0xf5; b++)
        if (b != '"' && b != '\\' && (b < 0x7f || b >= 0xc2)) takes[d->classes[b]] = true;
    for (uint32_t s = 0; s < d->n_states; s++)
        for (uint32_t i = 0, n = dfa_n_ways(d, s); i < n; i++) {
            if (dfa_way(d, s, i) == DFA_DEAD || !takes[dfa_way_class(d, s, i)]) continue;
            plain[s] |= GRAMMAR_TAKES_PLAIN;
            break;
        }
}

static void find_goers(const dfa *d, uint8_t *plain) {
    for (uint32_t s = 0; s < d->n_states; s++) {
        bool goes = false;
        if (d->next == NULL)
            goes = d->edges_at[s] < d->edges_at[s + 1];
        else
            for (uint32_t c = 0; c < d->n_classes && !goes; c++)
                goes = d->next[(size_t)s * d->n_classes + c] != DFA_DEAD;
        if (goes) plain[s] |= GRAMMAR_GOES_ON;
    }
}

static inferd_status number_states(grammar *g, inferd_err *err) {
    g->first_state = calloc((size_t)g->n_terms + 1, sizeof *g->first_state);
    uint64_t n = 0;
    for (uint32_t t = 0; t < g->n_terms; t++) n += g->terms[t].n_states;
    if (g->first_state == NULL || n >= UINT32_MAX / 8) goto no_memory;
    g->term_of = malloc(size_max(n, 1) * sizeof *g->term_of);
    g->distance = malloc(size_max(n, 1) * sizeof *g->distance);
    g->follow = calloc(size_max(n, 1), 1);
    if (g->term_of == NULL || g->distance == NULL || g->follow == NULL) goto no_memory;
    for (uint32_t t = 0; t < g->n_terms; t++) {
        const dfa *d = &g->terms[t];
        uint32_t first = g->first_state[t];
        g->first_state[t + 1] = first + d->n_states;
        for (uint32_t s = 0; s < d->n_states; s++) g->term_of[first + s] = t;
        find_distances(d, g->distance + first);
        find_plain(d, g->follow + first);
        find_takers(d, g->follow + first);
        find_goers(d, g->follow + first);
    }
    return INFERD_OK;

no_memory:
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the automata of a grammar");
}

/* ---- reasoning before the text ---- */

/* Leaves the ways that lead nearer to an accepting state: the rest of a character, of the mark. */
static bool keep_shortest_ways(dfa *d) {
    uint32_t *distance = malloc(size_max(d->n_states, 1) * sizeof *distance);
    if (distance == NULL) return false;
    find_distances(d, distance);
    for (uint32_t s = 0; s < d->n_states; s++)
        for (uint32_t c = 0; c < d->n_classes; c++) {
            uint32_t *to = &d->next[(size_t)s * d->n_classes + c];
            if (*to != DFA_DEAD && distance[*to] + 1 != distance[s]) *to = DFA_DEAD;
        }
    free(distance);
    return true;
}

/* Text up to the first occurrence of `end`; and its closing, which nothing refers to: the machine
 * goes over to it. */
ir_node ir_reasoning(ir *g, bytes end) {
    if (g->reasons) return g->reasoning_node;
    dfa d = {0}, closing = {0};
    inferd_err err = {0};
    inferd_status status = tags_until(&end, 1, 0, &d, &err);
    if (status == INFERD_OK) status = dfa_copy(&d, &closing, &err);
    if (status == INFERD_OK && !keep_shortest_ways(&closing))
        status = inferd_fail(&err, INFERD_ENOMEM, "no memory for a grammar after reasoning");
    if (status != INFERD_OK) ir_fail(g, status, "%s", err.text);
    ir_node node = ir_term(g, &d), other = ir_term(g, &closing);
    g->reasons = node != IR_NEVER && other != IR_NEVER;
    g->reasoning = g->nodes[node].a;
    g->closing = g->nodes[other].a;
    g->reasoning_node = node;
    return node;
}

static ir_node white_around(ir *g) {
    dfa_limits limits = ir_dfa_limits(g);
    dfa white = {0};
    inferd_err err = {0};
    char pattern[32];
    int n = snprintf(pattern, sizeof pattern, "[ \\t\\n\\r]{0,%d}", GRAMMAR_REASONING_WHITE_MAX);
    if (regex_compile((bytes){pattern, (size_t)n}, REGEX_TEXT, &limits, &white, &err) != INFERD_OK)
        ir_fail(g, err.status, "%s", err.text);
    return ir_term(g, &white);
}

static ir_node mark_of(ir *g, const char *mark) {
    return ir_literal(g, (bytes){mark, strlen(mark)});
}

static ir_node after_reasoning(ir *g, ir_node root, const grammar_options *o) {
    if (o == NULL || o->reasoning_end == NULL) return root;
    ir_node white = white_around(g), more = IR_EMPTY;
    ir_node block = ir_reasoning(g, (bytes){o->reasoning_end, strlen(o->reasoning_end)});
    if (o->reasoning_again != NULL) {
        more = ir_seq(g, (ir_node[]){mark_of(g, o->reasoning_again), block, white}, 3);
        more = ir_repeat(g, more, more, 0, IR_NO_MAX);
    }
    ir_node rest = ir_seq(g, (ir_node[]){block, white, more, root}, 4);
    if (o->reasoning_begin == NULL) return rest;
    ir_node begun = ir_seq(g, (ir_node[]){white, mark_of(g, o->reasoning_begin), rest}, 3);
    if (g->json) root = ir_seq(g, (ir_node[]){white, root}, 2);
    return ir_alt(g, (ir_node[]){begun, root}, 2);
}

void ir_is_json(ir *g) {
    g->json = true;
}

/* ---- marks around the text ---- */

static ir_node maybe_mark(ir *g, const char *mark) {
    if (mark == NULL || mark[0] == 0) return IR_EMPTY;
    ir_node text = ir_literal(g, (bytes){mark, strlen(mark)});
    return ir_alt(g, (ir_node[]){text, IR_EMPTY}, 2);
}

static ir_node between_marks(ir *g, ir_node root, const grammar_options *o) {
    if (o == NULL) return root;
    return ir_seq(g,
                  (ir_node[]){maybe_mark(g, o->around[0]), root, maybe_mark(g, o->around[1]),
                              maybe_mark(g, o->around[2])},
                  4);
}

/* ---- all of it ---- */

void grammar_hold(grammar *g) {
    atomic_fetch_add_explicit(&g->n_refs, 1, memory_order_relaxed);
}

void grammar_release(grammar *g) {
    if (g == NULL || atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_acq_rel) != 1) return;
    for (uint32_t i = 0; i < g->n_terms; i++) dfa_deinit(&g->terms[i]);
    ir_objects_free(g->objects, g->n_objects);
    free(g->terms);
    free(g->nodes);
    free(g->children);
    free(g->rules);
    free(g->shortest);
    free(g->nests);
    free(g->name_nests);
    free(g->first_state);
    free(g->term_of);
    free(g->distance);
    free(g->follow);
    free(g);
}

/* Moves the arrays over; the ir is empty then. */
static grammar *take(ir *g, ir_node root) {
    grammar *out = calloc(1, sizeof *out);
    if (out == NULL) return NULL;
    *out = (grammar){.limits = g->limits,
                     .nodes = g->nodes,
                     .n_nodes = g->n_nodes,
                     .children = g->children,
                     .n_children = g->n_children,
                     .rules = g->rules,
                     .n_rules = g->n_rules,
                     .objects = g->objects,
                     .n_objects = g->n_objects,
                     .terms = g->terms,
                     .n_terms = g->n_terms,
                     .root = root,
                     .reasoning = g->reasons ? g->reasoning : UINT32_MAX,
                     .closing = g->reasons ? g->closing : UINT32_MAX};
    atomic_init(&out->n_refs, 1);
    g->nodes = NULL;
    g->children = g->rules = NULL;
    g->objects = NULL;
    g->terms = NULL;
    g->n_nodes = g->n_children = g->n_rules = g->n_objects = g->n_terms = 0;
    return out;
}

static inferd_status analyse(grammar *g, inferd_err *err) {
    inferd_status status = number_states(g, err);
    if (status != INFERD_OK) return status;
    return grammar_measure(g, err);
}

static size_t object_bytes(const object *o) {
    return sizeof *o + o->n_key_nodes * sizeof *o->key_nodes +
           o->n_other_values * sizeof *o->other_values +
           (size_t)o->n_properties * (6 * sizeof(uint32_t) + sizeof(bool));
}

static size_t bytes_of(const grammar *g) {
    size_t n = sizeof *g +
               g->n_nodes * (sizeof *g->nodes + sizeof *g->shortest + sizeof *g->nests) +
               ((size_t)g->n_children + g->n_rules) * sizeof(ir_node) +
               (size_t)grammar_n_states(g) * (3 * sizeof(uint32_t) + 1);
    for (uint32_t i = 0; i < g->n_objects; i++) n += object_bytes(&g->objects[i]);
    for (uint32_t i = 0; i < g->n_terms; i++) n += sizeof(dfa) + dfa_bytes(&g->terms[i]);
    return n;
}

inferd_status ir_finish(ir *g, ir_node root, const grammar_options *options, grammar **out,
                        inferd_err *err) {
    *out = NULL;
    root = after_reasoning(g, between_marks(g, root, options), options);
    inferd_status status = ir_status(g, err);
    if (status == INFERD_OK) {
        *out = take(g, root);
        status = *out == NULL ? inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar")
                              : analyse(*out, err);
    }
    ir_destroy(g);
    if (status == INFERD_OK) (*out)->n_bytes = bytes_of(*out);
    if (status == INFERD_OK) return status;
    grammar_release(*out);
    *out = NULL;
    return status;
}
