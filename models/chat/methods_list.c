/* Methods of lists and dicts: those of Python that change nothing.
 *
 * The sandbox of transformers refuses append() and pop(), too.  Templates call them on lists of
 * their own all the same (Kimi K2 queues the ids of calls in one), and would refuse the second turn
 * of any conversation with tools: so a list that the template writes as [...] has them.  It holds
 * texts and numbers only, so no list contains itself. */
#include <string.h>

#include "chat/interp.h"

/* ---- dicts ---- */

static jval dict_get(jrender *r, jval v, const jcall *call) {
    jval a[2];
    jcall_bind(r, call, "get", "key default?", a);
    if (!jv_hashable(a[0])) j_fail(&r->c, "unhashable type: '%s'", jv_type_name(a[0]));
    const jval *item = jdict_find(&r->c, v.u.dict, a[0]);
    if (item != NULL) return *item;
    return a[1].kind == JV_MISSING ? jv_none() : a[1];
}

static jval make_view(jrender *r, jval v, const jcall *call, int what) {
    jcall_bind(r, call, "a view", "", NULL);
    jview *view = j_take(&r->c, sizeof *view);
    *view = (jview){.dict = v.u.dict, .what = what};
    return (jval){.kind = JV_VIEW, .u.view = view};
}
static jval dict_items(jrender *r, jval v, const jcall *call) {
    return make_view(r, v, call, JVIEW_ITEMS);
}
static jval dict_keys(jrender *r, jval v, const jcall *call) {
    return make_view(r, v, call, JVIEW_KEYS);
}
static jval dict_values(jrender *r, jval v, const jcall *call) {
    return make_view(r, v, call, JVIEW_VALUES);
}
static jval dict_copy(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "copy", "", NULL);
    return v; // nothing can change it
}

static const jmethod dict_methods[] = {
    {"get", dict_get},       {"items", dict_items}, {"keys", dict_keys},
    {"values", dict_values}, {"copy", dict_copy},
};

/* ---- lists and tuples ---- */

static jval list_count(jrender *r, jval v, const jcall *call) {
    jval a;
    int64_t count = 0;
    jcall_bind(r, call, "count", "value", &a);
    for (size_t i = 0; i < v.u.list->n; i++) count += jv_equal(&r->c, v.u.list->items[i], a);
    return jv_int(count);
}
static jval list_index(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "index", "value", &a);
    for (size_t i = 0; i < v.u.list->n; i++)
        if (jv_equal(&r->c, v.u.list->items[i], a)) return jv_int((int64_t)i);
    j_fail(&r->c, "the value is not in the list");
}

static jval list_copy(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "copy", "", NULL);
    return v.u.list->open ? jv_list(jv_to_list(&r->c, v)) : v;
}

static jval list_append(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "append", "value", &a);
    if (a.kind > JV_STR)
        j_fail(&r->c, "append() takes a text or a number here, got '%s'", jv_type_name(a));
    jlist_add(&r->c, v.u.list, a);
    return jv_none();
}

static jval list_pop(jrender *r, jval v, const jcall *call) {
    jlist *list = v.u.list;
    jval a;
    jcall_bind(r, call, "pop", "index?", &a);
    int64_t i = jarg_int_or(r, a, "pop", -1), n = (int64_t)list->n;
    if (i < 0) i += n;
    if (i < 0 || i >= n) j_fail(&r->c, "pop index out of range");
    jval taken = list->items[i];
    j_charge(&r->c, (size_t)(n - i) / 8);
    memmove(list->items + i, list->items + i + 1, (size_t)(n - i - 1) * sizeof *list->items);
    list->n--;
    return taken;
}

static const jmethod list_methods[] = {
    {"count", list_count}, {"index", list_index}, {"copy", list_copy}};
static const jmethod open_list_methods[] = {{"append", list_append}, {"pop", list_pop}};
static const jmethod tuple_methods[] = {{"count", list_count}, {"index", list_index}};

/* ---- lookup ---- */

static const jmethod *of_list(const jlist *list, const jstr *name) {
    const jmethod *m = NULL;
    if (list->open) m = jmethod_search(open_list_methods, INFERD_COUNT(open_list_methods), name);
    return m != NULL ? m : jmethod_search(list_methods, INFERD_COUNT(list_methods), name);
}

const jmethod *jmethod_of_container(jval self, const jstr *name) {
    if (self.kind == JV_DICT) return jmethod_search(dict_methods, INFERD_COUNT(dict_methods), name);
    if (self.kind == JV_LIST) return of_list(self.u.list, name);
    return jmethod_search(tuple_methods, INFERD_COUNT(tuple_methods), name);
}
