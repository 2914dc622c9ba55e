/* ir_object.c - objects of the graph: properties in order, and their names as a trie.
 *
 * The trie is over names in canonical encoding, sorted: the names below a node are a range of
 * by_name, so whether a name can still be completed is a question about few numbers. */
#include <string.h>

#include "ir_private.h"

typedef struct name {
    char *text; // canonical; owned
    size_t n;
    uint32_t property;
} name;

static int compare_names(const void *a, const void *b) {
    const name *x = a, *y = b;
    int order = memcmp(x->text, y->text, size_min(x->n, y->n));
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static void free_names(name *names, uint32_t n) {
    for (uint32_t i = 0; names != NULL && i < n; i++) free(names[i].text);
    free(names);
}

/* The encoded names of properties that can be there, sorted.  NULL: recorded. */
static name *sort_names(ir *g, const ir_property *properties, uint32_t n) {
    name *names = calloc(size_max(n, 1), sizeof *names);
    if (names == NULL) {
        ir_fail(g, INFERD_ENOMEM, "no memory for %u property names", n);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        buf b;
        buf_init(&b, 0);
        json_canonical(&b, properties[i].name);
        if (b.failed || !buf_reserve(&b, 0)) {
            buf_deinit(&b);
            free_names(names, n);
            ir_fail(g, INFERD_ENOMEM, "no memory for %u property names", n);
            return NULL;
        }
        names[i] = (name){b.p, b.n, i};
    }
    qsort(names, n, sizeof *names, compare_names);
    for (uint32_t i = 1; i < n; i++)
        if (compare_names(&names[i - 1], &names[i]) == 0) {
            ir_fail(g, INFERD_EINVAL, "a property is declared twice");
            free_names(names, n);
            return NULL;
        }
    return names;
}

/* The trie, level by level: a node's children are adjacent.  False: no memory. */
static bool build_trie(object *o, const name *names) {
    size_t capacity = 1;
    for (uint32_t i = 0; i < o->n_properties; i++) capacity += names[i].n;
    if (capacity >= UINT32_MAX) return false;
    o->key_nodes = calloc(capacity, sizeof *o->key_nodes);
    if (o->key_nodes == NULL) return false;
    o->key_nodes[0] = (key_node){.end = o->n_properties, .property = UINT32_MAX};
    o->n_key_nodes = 1;
    for (uint32_t at = 0; at < o->n_key_nodes; at++) {
        key_node *k = &o->key_nodes[at];
        uint32_t i = k->begin, d = k->depth;
        if (i < k->end && names[i].n == d) k->property = names[i++].property;
        k->children = o->n_key_nodes;
        while (i < k->end) {
            unsigned char byte = (unsigned char)names[i].text[d];
            uint32_t begin = i;
            while (i < k->end && (unsigned char)names[i].text[d] == byte) i++;
            o->key_nodes[o->n_key_nodes++] = (key_node){
                .begin = begin, .end = i, .property = UINT32_MAX, .depth = d + 1, .byte = byte};
        }
        k->n_children = o->n_key_nodes - k->children;
    }
    return true;
}

/* Each byte of a name, and the quote, have a class of their own. */
static void classify_bytes(object *o, const name *names) {
    bool used[256] = {['"'] = true};
    for (uint32_t i = 0; i < o->n_properties; i++)
        for (size_t k = 0; k < names[i].n; k++) used[(unsigned char)names[i].text[k]] = true;
    o->n_classes = 1;
    for (uint32_t b = 0; b < 256; b++)
        o->classes[b] = used[b] ? (uint8_t)(o->n_classes++ & 0xff) : 0;
}

static bool count_required(object *o) {
    uint32_t n = o->n_properties;
    o->next_required = malloc(((size_t)n + 1) * sizeof *o->next_required);
    o->n_required = malloc(((size_t)n + 1) * sizeof *o->n_required);
    if (o->next_required == NULL || o->n_required == NULL) return false;
    o->next_required[n] = n;
    o->n_required[n] = 0;
    for (uint32_t i = n; i-- > 0;) {
        o->next_required[i] = o->required[i] ? i : o->next_required[i + 1];
        o->n_required[i] = o->n_required[i + 1] + o->required[i];
    }
    return true;
}

/* Properties without a value cannot be there: they are left out. */
static uint32_t keep_possible(const ir_object_spec *spec, ir_property *out) {
    uint32_t n = 0;
    for (size_t i = 0; i < spec->n_properties; i++)
        if (spec->properties[i].value != IR_NEVER) out[n++] = spec->properties[i];
    return n;
}

static bool fill(object *o, const ir_property *properties, const name *names) {
    uint32_t n = o->n_properties;
    o->values = malloc(size_max(n, 1) * sizeof *o->values);
    o->required = malloc(size_max(n, 1) * sizeof *o->required);
    o->by_name = malloc(size_max(n, 1) * sizeof *o->by_name);
    o->name_bytes = malloc(size_max(n, 1) * sizeof *o->name_bytes);
    if (o->values == NULL || o->required == NULL || o->by_name == NULL || o->name_bytes == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        o->values[i] = properties[i].value;
        o->required[i] = properties[i].required;
        o->by_name[i] = names[i].property;
        if (o->required[i] && i < IR_ANY_ORDER_MAX) o->must |= UINT64_C(1) << i;
        o->name_bytes[names[i].property] = (uint32_t)names[i].n;
    }
    classify_bytes(o, names);
    return count_required(o) && build_trie(o, names);
}

/* The names of others: a terminal of its own.  False: recorded. */
static bool fill_others(ir *g, object *o, const ir_object_spec *spec) {
    if (spec->others == NULL || dfa_is_empty(spec->others)) return true;
    ir_node term = ir_term(g, spec->others);
    if (term == IR_NEVER) return false;
    o->others = g->nodes[term].a;
    o->n_other_values = (uint32_t)spec->n_other_values;
    o->other_values = malloc(size_max(spec->n_other_values, 1) * sizeof *o->other_values);
    if (o->other_values == NULL) {
        ir_fail(g, INFERD_ENOMEM, "no memory for an object");
        return false;
    }
    memcpy(o->other_values, spec->other_values, spec->n_other_values * sizeof *o->other_values);
    return true;
}

ir_node ir_object(ir *g, const ir_object_spec *spec) {
    ir_node made = IR_NEVER;
    if (spec->n_properties > g->limits.properties_max)
        ir_fail(g, INFERD_ETOOLONG, "an object has %zu properties, properties_max is %u",
                spec->n_properties, g->limits.properties_max);
    for (size_t i = 0; i < spec->n_properties; i++)
        if (spec->properties[i].required && spec->properties[i].value == IR_NEVER) goto done;
    if (g->failure.status != INFERD_OK || spec->min > spec->max) goto done;

    ir_property *possible = malloc(size_max(spec->n_properties, 1) * sizeof *possible);
    object *o = possible != NULL ? ir_new_object(g) : NULL;
    if (o == NULL) {
        free(possible);
        ir_fail(g, INFERD_ENOMEM, "no memory for an object of %zu properties", spec->n_properties);
        goto done;
    }
    uint32_t at = g->n_objects - 1;
    o->n_properties = keep_possible(spec, possible);
    o->min = spec->min;
    o->max = spec->max;
    o->any_order = spec->any_order && o->n_properties <= IR_ANY_ORDER_MAX;
    name *names = sort_names(g, possible, o->n_properties);
    if (names != NULL && !fill(o, possible, names))
        ir_fail(g, INFERD_ENOMEM, "no memory for an object of %u properties", o->n_properties);
    if (names != NULL && fill_others(g, o, spec)) made = ir_object_node(g, at);
    free_names(names, o->n_properties);
    free(possible);
done:
    if (spec->others != NULL) dfa_deinit(spec->others);
    return made;
}
