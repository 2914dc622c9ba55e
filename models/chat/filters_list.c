/* Filters over sequences, and the lookup of filters by name. */
#include "chat/interp.h"
#include "chat/json_text.h"

jval jgenerator_new(jctx *c, jlist *items, const char *name) {
    jgenerator *gen = j_take(c, sizeof *gen);
    *gen = (jgenerator){.items = items->items, .n = items->n, .name = name};
    return (jval){.kind = JV_GENERATOR, .u.gen = gen};
}

const jfilter *jfilter_find(const jstr *name) {
    for (size_t i = 0; i < jfilters_text_n; i++)
        if (jstr_is(name, jfilters_text[i].name)) return &jfilters_text[i];
    for (size_t i = 0; i < jfilters_list_n; i++)
        if (jstr_is(name, jfilters_list[i].name)) return &jfilters_list[i];
    return NULL;
}

/* The sort key of an element. */
static jval key_of(jrender *r, jval item, jval attribute, bool case_sensitive) {
    jval key = jattr_path(r, item, attribute, jv_missing());
    if (key.kind == JV_STR && !case_sensitive) key = jv_str(jtext_lower(&r->c, key.u.s));
    return key;
}

/* Several attributes, "a,b": a list of keys. */
static jval keys_of(jrender *r, jval item, jval attribute, bool case_sensitive) {
    if (attribute.kind != JV_STR || memchr(attribute.u.s->p, ',', attribute.u.s->n) == NULL)
        return key_of(r, item, attribute, case_sensitive);
    const jstr *s = attribute.u.s;
    jlist *keys = jlist_new(&r->c, 0);
    for (size_t from = 0; from <= s->n;) {
        const char *comma = memchr(s->p + from, ',', s->n - from);
        size_t to = comma == NULL ? s->n : (size_t)(comma - s->p);
        jval part = jv_str(jstr_slice(&r->c, s, from, to));
        jlist_add(&r->c, keys, key_of(r, item, part, case_sensitive));
        from = to + 1;
    }
    return jv_list(keys);
}

/* Merge sort: stable, also in reverse. */
static void merge_sort(jrender *r, jpair *v, jpair *scratch, size_t n, bool reverse) {
    if (n < 2) return;
    size_t half = n / 2, i = 0, j = half, k = 0;
    merge_sort(r, v, scratch, half, reverse);
    merge_sort(r, v + half, scratch, n - half, reverse);
    while (i < half && j < n) {
        int order = reverse ? jv_compare(&r->c, v[i].key, v[j].key, "<")
                            : jv_compare(&r->c, v[j].key, v[i].key, "<");
        scratch[k++] = order < 0 ? v[j++] : v[i++];
    }
    while (i < half) scratch[k++] = v[i++];
    while (j < n) scratch[k++] = v[j++];
    memcpy(v, scratch, n * sizeof *v);
}

/* The elements with their keys, in order. */
static jdict *sort_by(jrender *r, jlist *items, jval attribute, bool case_sensitive, bool reverse) {
    jdict *keyed = jdict_new(&r->c, items->n);
    for (size_t i = 0; i < items->n; i++)
        jdict_add(&r->c, keyed, keys_of(r, items->items[i], attribute, case_sensitive),
                  items->items[i]);
    jpair *scratch = j_take_array(&r->c, items->n, sizeof *scratch);
    merge_sort(r, keyed->pairs, scratch, keyed->n, reverse);
    return keyed;
}

static jval values_of(jrender *r, const jdict *d) {
    jlist *list = jlist_new(&r->c, d->n);
    for (size_t i = 0; i < d->n; i++) jlist_add(&r->c, list, d->pairs[i].value);
    return jv_list(list);
}

static jval run_sort(jrender *r, jval v, const jcall *call) {
    jval a[3];
    jcall_bind(r, call, "sort", "reverse? case_sensitive? attribute?", a);
    jlist *items = jv_to_list(&r->c, v);
    return values_of(r, sort_by(r, items, a[2], jarg_true(a[1]), jarg_true(a[0])));
}

static jval run_dictsort(jrender *r, jval v, const jcall *call) {
    jval a[3];
    jcall_bind(r, call, "dictsort", "case_sensitive? by? reverse?", a);
    const jstr *by = jarg_str_or(r, a[1], "dictsort", "key");
    bool by_value = jstr_is(by, "value");
    if (!by_value && !jstr_is(by, "key"))
        j_fail(&r->c, "dictsort: you can only sort by either \"key\" or \"value\"");
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    if (v.kind != JV_DICT) j_fail(&r->c, "dictsort: expected a dict, got '%s'", jv_type_name(v));
    jlist *items = jlist_new(&r->c, v.u.dict->n);
    for (size_t i = 0; i < v.u.dict->n; i++)
        jlist_add(&r->c, items, jv_pair(&r->c, v.u.dict->pairs[i].key, v.u.dict->pairs[i].value));
    return values_of(r, sort_by(r, items, jv_int(by_value), jarg_true(a[0]), jarg_true(a[2])));
}

static jval group(jrender *r, jval grouper, jlist *items) {
    return jv_pair(&r->c, grouper, jv_list(items));
}

static jval run_groupby(jrender *r, jval v, const jcall *call) {
    jval a[3];
    jcall_bind(r, call, "groupby", "attribute default? case_sensitive?", a);
    jlist *items = jv_to_list(&r->c, v), *groups = jlist_new(&r->c, 0), *members = NULL;
    bool exact = jarg_true(a[2]);
    jdict *keyed = jdict_new(&r->c, items->n);
    for (size_t i = 0; i < items->n; i++) {
        jval key = jattr_path(r, items->items[i], a[0], a[1]);
        if (key.kind == JV_STR && !exact) key = jv_str(jtext_lower(&r->c, key.u.s));
        jdict_add(&r->c, keyed, key, items->items[i]);
    }
    merge_sort(r, keyed->pairs, j_take_array(&r->c, keyed->n, sizeof(jpair)), keyed->n, false);
    for (size_t i = 0; i < keyed->n; i++) {
        if (i == 0 || !jv_equal(&r->c, keyed->pairs[i - 1].key, keyed->pairs[i].key)) {
            members = jlist_new(&r->c, 0);
            jval grouper = jattr_path(r, keyed->pairs[i].value, a[0], a[1]);
            jlist_add(&r->c, groups, group(r, grouper, members));
        }
        jlist_add(&r->c, members, keyed->pairs[i].value);
    }
    return jv_list(groups);
}

static jval run_unique(jrender *r, jval v, const jcall *call) {
    jval a[2], item;
    jiter it;
    jcall_bind(r, call, "unique", "case_sensitive? attribute?", a);
    jdict *seen = jdict_new(&r->c, 0);
    jlist *out = jlist_new(&r->c, 0);
    jiter_init(&r->c, &it, v);
    while (jiter_next(&r->c, &it, &item)) {
        jval key = key_of(r, item, a[1], jarg_true(a[0]));
        if (!jv_hashable(key)) j_fail(&r->c, "unhashable type: '%s'", jv_type_name(key));
        if (jdict_find(&r->c, seen, key) != NULL) continue;
        jdict_add(&r->c, seen, key, jv_none());
        jlist_add(&r->c, out, item);
    }
    return jgenerator_new(&r->c, out, "sync_do_unique");
}

static jval pick_extreme(jrender *r, jval v, const jcall *call, bool largest) {
    jval a[2], item, best = jv_missing(), best_key = jv_missing();
    jiter it;
    jcall_bind(r, call, largest ? "max" : "min", "case_sensitive? attribute?", a);
    jiter_init(&r->c, &it, v);
    while (jiter_next(&r->c, &it, &item)) {
        jval key = key_of(r, item, a[1], jarg_true(a[0]));
        bool better = best.kind == JV_MISSING;
        if (!better && largest)
            better = jv_compare(&r->c, key, best_key, ">") == 1;
        else if (!better)
            better = jv_compare(&r->c, key, best_key, "<") == -1;
        if (!better) continue;
        best = item;
        best_key = key;
    }
    if (best.kind != JV_MISSING) return best;
    return jv_undefined_because(&r->c, "no aggregated item, sequence was empty");
}

static jval run_min(jrender *r, jval v, const jcall *call) {
    return pick_extreme(r, v, call, false);
}
static jval run_max(jrender *r, jval v, const jcall *call) {
    return pick_extreme(r, v, call, true);
}

static jval run_sum(jrender *r, jval v, const jcall *call) {
    jval a[2], item;
    jiter it;
    jcall_bind(r, call, "sum", "attribute? start?", a);
    jval total = a[1].kind == JV_MISSING ? jv_int(0) : a[1];
    if (total.kind == JV_STR) j_fail(&r->c, "sum() can't sum strings");
    jiter_init(&r->c, &it, v);
    while (jiter_next(&r->c, &it, &item))
        total = jop_arith(r, JOP_ADD, total, jattr_path(r, item, a[0], jv_missing()));
    return total;
}

static jval run_join(jrender *r, jval v, const jcall *call) {
    jval a[2], item;
    jiter it;
    jbuf b;
    jcall_bind(r, call, "join", "d? attribute?", a);
    const jstr *between = a[0].kind == JV_MISSING ? &jstr_empty : jv_to_str(&r->c, a[0]);
    jbuf_init(&b, &r->c, 0);
    jiter_init(&r->c, &it, v);
    for (bool first = true; jiter_next(&r->c, &it, &item); first = false) {
        if (!first) jbuf_add_str(&b, between);
        jv_print(&r->c, &b, jattr_path(r, item, a[1], jv_missing()));
    }
    return jv_str(jbuf_str(&b, false));
}

static jval run_first(jrender *r, jval v, const jcall *call) {
    jval item;
    jiter it;
    jcall_bind(r, call, "first", "", NULL);
    jiter_init(&r->c, &it, v);
    if (jiter_next(&r->c, &it, &item)) return item;
    return jv_undefined_because(&r->c, "no first item, sequence was empty");
}

static jval run_last(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "last", "", NULL);
    if (v.kind == JV_GENERATOR || !jv_iterable(v))
        j_fail(&r->c, "'%s' object is not reversible", jv_type_name(v));
    if (v.kind == JV_STR && v.u.s->n > 0) return jattr_item(r, v, jv_int(-1));
    jlist *items = jv_to_list(&r->c, v);
    if (items->n > 0) return items->items[items->n - 1];
    return jv_undefined_because(&r->c, "no last item, sequence was empty");
}

static jval run_list(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "list", "", NULL);
    return jv_list(jv_to_list(&r->c, v));
}

static jval run_reverse(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "reverse", "", NULL);
    if (v.kind == JV_STR) {
        jslice back = {{jv_none(), jv_none(), jv_int(-1)}};
        return jattr_item(r, v, (jval){.kind = JV_SLICE, .u.slice = &back});
    }
    jlist *items = jv_to_list(&r->c, v);
    for (size_t i = 0; i < items->n / 2; i++) {
        jval swap = items->items[i];
        items->items[i] = items->items[items->n - 1 - i];
        items->items[items->n - 1 - i] = swap;
    }
    if (v.kind == JV_GENERATOR) return jv_list(items); // not reversible: Jinja makes a list
    return jgenerator_new(&r->c, items, "reversed");
}

static const jdict *dict_of(jrender *r, jval v, const char *what) {
    if (v.kind != JV_DICT)
        j_fail(&r->c, "%s: can only get item pairs from a mapping, not '%s'", what,
               jv_type_name(v));
    return v.u.dict;
}

static jval run_items(jrender *r, jval v, const jcall *call) {
    jlist *pairs = jlist_new(&r->c, 0);
    jcall_bind(r, call, "items", "", NULL);
    if (v.kind != JV_UNDEFINED) {
        const jdict *d = dict_of(r, v, "items");
        for (size_t i = 0; i < d->n; i++)
            jlist_add(&r->c, pairs, jv_pair(&r->c, d->pairs[i].key, d->pairs[i].value));
    }
    return jgenerator_new(&r->c, pairs, "do_items");
}

static jval run_keys(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "keys", "", NULL);
    dict_of(r, v, "keys");
    return jv_list(jv_to_list(&r->c, v));
}

static jval run_values(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "values", "", NULL);
    return values_of(r, dict_of(r, v, "values"));
}

static jval run_slice(jrender *r, jval v, const jcall *call) {
    jval a[2];
    jcall_bind(r, call, "slice", "slices fill_with?", a);
    jlist *items = jv_to_list(&r->c, v), *out = jlist_new(&r->c, 0);
    int64_t slices = jarg_int(r, a[0], "slice");
    if (slices == 0) j_fail(&r->c, "slice: division by zero");
    if (slices > JRANGE_MAX) j_limit(&r->c, "more than %d slices", JRANGE_MAX);
    size_t at = 0;
    for (int64_t i = 0; i < slices; i++) {
        bool longer = (size_t)i < items->n % (size_t)slices;
        size_t n = items->n / (size_t)slices + longer;
        jlist *part = jlist_new(&r->c, n + 1);
        for (size_t k = 0; k < n; k++) jlist_add(&r->c, part, items->items[at++]);
        if (a[1].kind != JV_MISSING && a[1].kind != JV_NONE && !longer)
            jlist_add(&r->c, part, a[1]);
        jlist_add(&r->c, out, jv_list(part));
    }
    return jgenerator_new(&r->c, out, "sync_do_slice");
}

static jval run_batch(jrender *r, jval v, const jcall *call) {
    jval a[2], item;
    jiter it;
    jcall_bind(r, call, "batch", "linecount fill_with?", a);
    int64_t size = jarg_int(r, a[0], "batch");
    if (size > JRANGE_MAX) j_limit(&r->c, "batches of more than %d", JRANGE_MAX);
    jlist *out = jlist_new(&r->c, 0), *row = jlist_new(&r->c, 0);
    jiter_init(&r->c, &it, v);
    while (jiter_next(&r->c, &it, &item)) {
        if ((int64_t)row->n == size) {
            jlist_add(&r->c, out, jv_list(row));
            row = jlist_new(&r->c, 0);
        }
        jlist_add(&r->c, row, item);
    }
    if (row->n > 0) {
        bool fill = a[1].kind != JV_MISSING && a[1].kind != JV_NONE;
        while (fill && (int64_t)row->n < size) jlist_add(&r->c, row, a[1]);
        jlist_add(&r->c, out, jv_list(row));
    }
    return jgenerator_new(&r->c, out, "do_batch");
}

static jval run_map(jrender *r, jval v, const jcall *call) {
    jlist *out = jlist_new(&r->c, 0);
    jval item, a[2] = {jv_missing(), jv_missing()};
    jiter it;
    if (!jv_truth(v)) return jgenerator_new(&r->c, out, "sync_do_map");
    const jfilter *filter = NULL;
    jcall rest = *call;
    if (call->n == 0) {
        jcall_bind(r, call, "map", "attribute default?", a);
    } else {
        const jstr *name = jarg_str(r, call->pos[0], "map");
        filter = jfilter_find(name);
        if (filter == NULL)
            j_fail(&r->c, "no filter named '%.*s'", (int)size_min(name->n, 100), name->p);
        rest.pos++;
        rest.n--;
    }
    jiter_init(&r->c, &it, v);
    while (jiter_next(&r->c, &it, &item))
        jlist_add(&r->c, out,
                  filter != NULL ? filter->run(r, item, &rest) : jattr_path(r, item, a[0], a[1]));
    return jgenerator_new(&r->c, out, "sync_do_map");
}

/* select, reject and their ..attr forms: keep the elements for which the test gives `wanted`. */
static jval select_by(jrender *r, jval v, const jcall *call, bool wanted, bool by_attr,
                      const char *name) {
    jlist *out = jlist_new(&r->c, 0);
    jval item, path = jv_none();
    jiter it;
    if (!jv_truth(v)) return jgenerator_new(&r->c, out, name);
    jcall rest = *call;
    if (by_attr) {
        if (call->n == 0) j_fail(&r->c, "%s: missing parameter for attribute name", name);
        path = *rest.pos++;
        rest.n--;
    }
    const jstr *test = rest.n > 0 ? jarg_str(r, rest.pos[0], name) : NULL;
    if (test != NULL) {
        rest.pos++;
        rest.n--;
    }
    jiter_init(&r->c, &it, v);
    while (jiter_next(&r->c, &it, &item)) {
        jval tested = jattr_path(r, item, path, jv_missing());
        bool passes = test != NULL ? jtest_run(r, test, tested, &rest) : jv_truth(tested);
        if (passes == wanted) jlist_add(&r->c, out, item);
    }
    return jgenerator_new(&r->c, out, name);
}

static jval run_select(jrender *r, jval v, const jcall *call) {
    return select_by(r, v, call, true, false, "select");
}
static jval run_reject(jrender *r, jval v, const jcall *call) {
    return select_by(r, v, call, false, false, "reject");
}
static jval run_selectattr(jrender *r, jval v, const jcall *call) {
    return select_by(r, v, call, true, true, "selectattr");
}
static jval run_rejectattr(jrender *r, jval v, const jcall *call) {
    return select_by(r, v, call, false, true, "rejectattr");
}

static jval run_attr(jrender *r, jval v, const jcall *call) {
    jval name;
    jcall_bind(r, call, "attr", "name", &name);
    const jstr *attr = jarg_str(r, name, "attr");
    if (v.kind != JV_DICT) return jattr_get(r, v, attr);
    // attributes only, never the keys of a dict
    jdict empty = {0};
    return jattr_get(r, jmethod_find(v, attr) != NULL ? v : jv_dict(&empty), attr);
}

/* Not in Jinja, but templates of Mistral call it: parses a string of JSON.  The document is
 * outside of the arena for a moment, hence a separate bound. */
enum { FROM_JSON_BYTES_MAX = 1 << 20 };
static jval run_from_json(jrender *r, jval v, const jcall *call) {
    inferd_err err = {0};
    jcall_bind(r, call, "from_json", "", NULL);
    const jstr *s = jarg_str(r, v, "from_json");
    if (s->n > FROM_JSON_BYTES_MAX) j_limit(&r->c, "from_json of %zu bytes", s->n);
    j_charge(&r->c, s->n);
    inferd_status status = json_text_read_wide((bytes){s->p, s->n}, &r->parsed, &err);
    if (status == INFERD_ENOMEM) j_no_memory(&r->c);
    if (status != INFERD_OK) j_fail(&r->c, "from_json: %s", err.text);
    jval parsed = jv_from_json(&r->c, r->parsed, jstr_mark(s), true);
    json_decref(r->parsed);
    r->parsed = NULL;
    return parsed;
}

const jfilter jfilters_list[] = {
    {"sort", run_sort},
    {"dictsort", run_dictsort},
    {"groupby", run_groupby},
    {"unique", run_unique},
    {"min", run_min},
    {"max", run_max},
    {"sum", run_sum},
    {"join", run_join},
    {"first", run_first},
    {"last", run_last},
    {"list", run_list},
    {"reverse", run_reverse},
    {"items", run_items},
    {"keys", run_keys},
    {"values", run_values},
    {"slice", run_slice},
    {"batch", run_batch},
    {"map", run_map},
    {"select", run_select},
    {"reject", run_reject},
    {"selectattr", run_selectattr},
    {"rejectattr", run_rejectattr},
    {"attr", run_attr},
    {"from_json", run_from_json},
};
const size_t jfilters_list_n = INFERD_COUNT(jfilters_list);
