#include "chat/value.h"

#include <math.h>
#include <string.h>

#include "chat/json_text.h"
#include "chat/letters.h"

jval jv_undefined(jctx *c, jval owner, jval name) {
    jundef *u = j_take(c, sizeof *u);
    *u = (jundef){.owner = owner, .name = name};
    return (jval){.kind = JV_UNDEFINED, .u.undef = u};
}

jval jv_undefined_because(jctx *c, const char *message) {
    jundef *u = j_take(c, sizeof *u);
    *u = (jundef){.message = message};
    return (jval){.kind = JV_UNDEFINED, .u.undef = u};
}

void jv_fail_undefined(jctx *c, jval v) {
    const jundef *u = v.u.undef;
    const jstr *name = u->name.kind == JV_STR ? u->name.u.s : &jstr_empty;
    int n = (int)size_min(name->n, 100);
    if (u->message != NULL) j_fail(c, "%s", u->message);
    const char *owner = u->owner.kind == JV_NONE ? "None" : jv_type_name(u->owner);
    const char *object = u->owner.kind == JV_NONE ? "" : " object";
    if (u->unsafe)
        j_fail(c, "access to attribute '%.*s' of '%s' object is unsafe", n, name->p, owner);
    if (u->owner.kind == JV_MISSING) j_fail(c, "'%.*s' is undefined", n, name->p);
    if (u->name.kind == JV_STR)
        j_fail(c, "'%s%s' has no attribute '%.*s'", owner, object, n, name->p);
    if (u->name.kind == JV_INT)
        j_fail(c, "%s%s has no element %lld", owner, object, (long long)u->name.u.i);
    j_fail(c, "%s%s has no such element", owner, object);
}

const char *jv_type_name(jval v) {
    static const char *const names[] = {
        [JV_MISSING] = "missing",   [JV_NONE] = "NoneType",       [JV_BOOL] = "bool",
        [JV_INT] = "int",           [JV_FLOAT] = "float",         [JV_WIDE] = "int",
        [JV_STR] = "str",           [JV_UNDEFINED] = "Undefined", [JV_LIST] = "list",
        [JV_TUPLE] = "tuple",       [JV_DICT] = "dict",           [JV_RANGE] = "range",
        [JV_VIEW] = "dict_items",   [JV_GENERATOR] = "generator", [JV_NAMESPACE] = "Namespace",
        [JV_MACRO] = "Macro",       [JV_LOOP] = "LoopContext",    [JV_METHOD] = "method",
        [JV_FUNCTION] = "function", [JV_SLICE] = "slice",
    };
    if (v.kind == JV_STR && v.u.s->markup) return "Markup";
    if (v.kind == JV_VIEW && v.u.view->what == JVIEW_KEYS) return "dict_keys";
    if (v.kind == JV_VIEW && v.u.view->what == JVIEW_VALUES) return "dict_values";
    return names[v.kind];
}

jlist *jlist_new(jctx *c, size_t capacity) {
    jlist *list = j_take(c, sizeof *list);
    *list = (jlist){.capacity = capacity};
    if (capacity > 0) list->items = j_take_array(c, capacity, sizeof *list->items);
    return list;
}

void jlist_add(jctx *c, jlist *list, jval v) {
    list->items = j_grow_array(c, list->items, list->n, &list->capacity, sizeof *list->items);
    list->items[list->n++] = v;
}

jval jv_pair(jctx *c, jval a, jval b) {
    jlist *list = jlist_new(c, 2);
    list->items[0] = a;
    list->items[1] = b;
    list->n = 2;
    return jv_tuple(list);
}

jdict *jdict_new(jctx *c, size_t capacity) {
    jdict *d = j_take(c, sizeof *d);
    *d = (jdict){.capacity = capacity};
    if (capacity > 0) d->pairs = j_take_array(c, capacity, sizeof *d->pairs);
    return d;
}

jval *jdict_find(jctx *c, const jdict *d, jval key) {
    j_charge(c, d->n / 8);
    for (size_t i = 0; i < d->n; i++) {
        jval k = d->pairs[i].key;
        if (k.kind == JV_STR && key.kind == JV_STR) {
            if (!jstr_equal(k.u.s, key.u.s)) continue;
        } else if (!jv_equal(c, k, key))
            continue;
        return &d->pairs[i].value;
    }
    return NULL;
}

void jdict_add(jctx *c, jdict *d, jval key, jval value) {
    d->pairs = j_grow_array(c, d->pairs, d->n, &d->capacity, sizeof *d->pairs);
    d->pairs[d->n++] = (jpair){.key = key, .value = value};
}

void jdict_set(jctx *c, jdict *d, jval key, jval value) {
    jval *old = jdict_find(c, d, key);
    if (old != NULL)
        *old = value;
    else
        jdict_add(c, d, key, value);
}

static bool is_hashable(jval v, int depth) {
    if (v.kind == JV_LIST || v.kind == JV_DICT || v.kind == JV_SLICE) return false;
    if (v.kind != JV_TUPLE) return true;
    if (depth > JVALUE_DEPTH_MAX) return false;
    for (size_t i = 0; i < v.u.list->n; i++)
        if (!is_hashable(v.u.list->items[i], depth + 1)) return false;
    return true;
}

bool jv_hashable(jval v) {
    return is_hashable(v, 0);
}

bool jv_truth(jval v) {
    switch ((jkind)v.kind) {
    case JV_MISSING:
    case JV_NONE:
    case JV_UNDEFINED:
        return false;
    case JV_BOOL:
        return v.u.b;
    case JV_INT:
        return v.u.i != 0;
    case JV_FLOAT:
        return v.u.f != 0;
    case JV_STR:
        return v.u.s->n > 0;
    case JV_LIST:
    case JV_TUPLE:
        return v.u.list->n > 0;
    case JV_DICT:
        return v.u.dict->n > 0;
    case JV_RANGE:
        return v.u.range->n > 0;
    case JV_VIEW:
        return v.u.view->dict->n > 0;
    default:
        return true;
    }
}

static bool int_equals_double(int64_t i, double f) {
    // exact: 2^53 + 1 does not equal the double 2^53
    return f >= -9223372036854775808.0 && f < 9223372036854775808.0 && f == trunc(f) &&
           (int64_t)f == i;
}

static bool numbers_equal(jval a, jval b) {
    if (a.kind == JV_FLOAT && b.kind == JV_FLOAT) return a.u.f == b.u.f;
    if (a.kind == JV_FLOAT) return int_equals_double(jv_integer(b), a.u.f);
    if (b.kind == JV_FLOAT) return int_equals_double(jv_integer(a), b.u.f);
    return jv_integer(a) == jv_integer(b);
}

static bool values_equal(jctx *c, jval a, jval b, int depth);

static bool lists_equal(jctx *c, const jlist *a, const jlist *b, int depth) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!values_equal(c, a->items[i], b->items[i], depth + 1)) return false;
    return true;
}

static bool dicts_equal(jctx *c, const jdict *a, const jdict *b, int depth) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const jval *other = jdict_find(c, b, a->pairs[i].key);
        if (other == NULL || !values_equal(c, a->pairs[i].value, *other, depth + 1)) return false;
    }
    return true;
}

static bool views_equal(jctx *c, const jview *a, const jview *b, int depth) {
    if (a == b) return true;
    if (a->what != b->what || a->what == JVIEW_VALUES || a->dict->n != b->dict->n) return false;
    if (a->what == JVIEW_ITEMS) return dicts_equal(c, a->dict, b->dict, depth);
    for (size_t i = 0; i < a->dict->n; i++)
        if (jdict_find(c, b->dict, a->dict->pairs[i].key) == NULL) return false;
    return true;
}

static bool values_equal(jctx *c, jval a, jval b, int depth) {
    if (depth > JVALUE_DEPTH_MAX) j_limit(c, "data nested deeper than %d", JVALUE_DEPTH_MAX);
    j_charge(c, 1);
    if (jv_is_number(a) && jv_is_number(b)) return numbers_equal(a, b);
    if (a.kind != b.kind) return false;
    switch ((jkind)a.kind) {
    case JV_MISSING:
    case JV_NONE:
    case JV_UNDEFINED:
        return true;
    case JV_WIDE:
    case JV_STR:
        j_charge_bytes(c, a.u.s->n);
        return jstr_equal(a.u.s, b.u.s);
    case JV_LIST:
    case JV_TUPLE:
        return lists_equal(c, a.u.list, b.u.list, depth);
    case JV_DICT:
        return dicts_equal(c, a.u.dict, b.u.dict, depth);
    case JV_RANGE:
        return a.u.range->n == b.u.range->n &&
               (a.u.range->n == 0 || (a.u.range->start == b.u.range->start &&
                                      (a.u.range->n == 1 || a.u.range->step == b.u.range->step)));
    case JV_VIEW:
        return views_equal(c, a.u.view, b.u.view, depth);
    default:
        return a.u.dict == b.u.dict; // the same object; any pointer of the union works
    }
}

bool jv_equal(jctx *c, jval a, jval b) {
    return values_equal(c, a, b, 0);
}

static int compare_int_double(int64_t i, double f) {
    if (isnan(f)) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static int compare_numbers(jval a, jval b) {
    if (a.kind == JV_FLOAT && b.kind == JV_FLOAT) {
        if (isnan(a.u.f) || isnan(b.u.f)) return 2;
        return a.u.f < b.u.f ? -1 : a.u.f > b.u.f;
    }
    if (b.kind == JV_FLOAT) return compare_int_double(jv_integer(a), b.u.f);
    if (a.kind == JV_FLOAT) {
        int order = compare_int_double(jv_integer(b), a.u.f);
        return order == 2 ? 2 : -order;
    }
    int64_t x = jv_integer(a), y = jv_integer(b);
    return x < y ? -1 : x > y;
}

static int compare_values(jctx *c, jval a, jval b, const char *op, int depth) {
    if (depth > JVALUE_DEPTH_MAX) j_limit(c, "data nested deeper than %d", JVALUE_DEPTH_MAX);
    j_charge(c, 1);
    if (a.kind == JV_UNDEFINED) jv_fail_undefined(c, a);
    if (b.kind == JV_UNDEFINED) jv_fail_undefined(c, b);
    if (jv_is_number(a) && jv_is_number(b)) return compare_numbers(a, b);
    if (a.kind == JV_STR && b.kind == JV_STR) {
        j_charge_bytes(c, size_min(a.u.s->n, b.u.s->n));
        int order = jstr_compare(a.u.s, b.u.s);
        return order < 0 ? -1 : order > 0;
    }
    if (a.kind != b.kind || (a.kind != JV_LIST && a.kind != JV_TUPLE))
        j_fail(c, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a),
               jv_type_name(b));
    const jlist *x = a.u.list, *y = b.u.list;
    for (size_t i = 0; i < x->n && i < y->n; i++)
        if (!values_equal(c, x->items[i], y->items[i], depth + 1))
            return compare_values(c, x->items[i], y->items[i], op, depth + 1);
    return x->n < y->n ? -1 : x->n > y->n;
}

int jv_compare(jctx *c, jval a, jval b, const char *op) {
    return compare_values(c, a, b, op, 0);
}

bool jv_contains(jctx *c, jval container, jval item) {
    jiter it;
    jval v;
    switch ((jkind)container.kind) {
    case JV_STR:
        if (item.kind == JV_UNDEFINED) jv_fail_undefined(c, item);
        if (item.kind != JV_STR)
            j_fail(c, "'in <string>' requires string as left operand, not %s", jv_type_name(item));
        return jstr_find(c, container.u.s, item.u.s, 0, container.u.s->n) != SIZE_MAX;
    case JV_DICT:
        if (!jv_hashable(item)) j_fail(c, "unhashable type: '%s'", jv_type_name(item));
        return jdict_find(c, container.u.dict, item) != NULL;
    case JV_VIEW:
        if (container.u.view->what == JVIEW_KEYS)
            return jdict_find(c, container.u.view->dict, item) != NULL;
        break;
    default:
        break;
    }
    if (!jv_iterable(container))
        j_fail(c, "argument of type '%s' is not iterable", jv_type_name(container));
    jiter_init(c, &it, container);
    while (jiter_next(c, &it, &v))
        if (jv_equal(c, v, item)) return true;
    return false;
}

bool jv_has_length(jval v) {
    return v.kind == JV_STR || v.kind == JV_UNDEFINED || v.kind == JV_LIST || v.kind == JV_TUPLE ||
           v.kind == JV_DICT || v.kind == JV_RANGE || v.kind == JV_VIEW;
}

size_t jv_length(jctx *c, jval v) {
    switch ((jkind)v.kind) {
    case JV_STR:
        return jstr_length(c, v.u.s);
    case JV_UNDEFINED:
        return 0;
    case JV_LIST:
    case JV_TUPLE:
        return v.u.list->n;
    case JV_DICT:
        return v.u.dict->n;
    case JV_RANGE:
        return v.u.range->n;
    case JV_VIEW:
        return v.u.view->dict->n;
    default:
        j_fail(c, "object of type '%s' has no len()", jv_type_name(v));
    }
}

bool jv_iterable(jval v) {
    return jv_has_length(v) || v.kind == JV_GENERATOR;
}

void jiter_init(jctx *c, jiter *it, jval of) {
    if (!jv_iterable(of)) j_fail(c, "'%s' object is not iterable", jv_type_name(of));
    *it = (jiter){.of = of};
}

static jval view_item(jctx *c, const jview *view, size_t i) {
    const jpair *pair = &view->dict->pairs[i];
    if (view->what == JVIEW_KEYS) return pair->key;
    if (view->what == JVIEW_VALUES) return pair->value;
    return jv_pair(c, pair->key, pair->value);
}

bool jiter_next(jctx *c, jiter *it, jval *out) {
    const jval of = it->of;
    size_t i = it->i++;
    j_charge(c, 1);
    switch ((jkind)of.kind) {
    case JV_STR: {
        if (it->at >= of.u.s->n) return false;
        size_t n = letter_bytes(of.u.s->p[it->at]);
        const jstr *letter = jstr_slice(c, of.u.s, it->at, it->at + n);
        *out = jv_str(jstr_with_markup(c, letter, false)); // as in Python: plain
        it->at += n;
        return true;
    }
    case JV_LIST:
    case JV_TUPLE:
        if (i >= of.u.list->n) return false;
        *out = of.u.list->items[i];
        return true;
    case JV_DICT:
        if (i >= of.u.dict->n) return false;
        *out = of.u.dict->pairs[i].key;
        return true;
    case JV_RANGE:
        if (i >= of.u.range->n) return false;
        *out = jv_int(of.u.range->start + (int64_t)i * of.u.range->step);
        return true;
    case JV_VIEW:
        if (i >= of.u.view->dict->n) return false;
        *out = view_item(c, of.u.view, i);
        return true;
    case JV_GENERATOR:
        if (of.u.gen->i >= of.u.gen->n) return false;
        *out = of.u.gen->items[of.u.gen->i++];
        return true;
    default:
        return false; // undefined: empty
    }
}

jlist *jv_to_list(jctx *c, jval v) {
    jiter it;
    jval item;
    jiter_init(c, &it, v);
    jlist *list = jlist_new(c, v.kind == JV_LIST || v.kind == JV_TUPLE ? v.u.list->n : 0);
    while (jiter_next(c, &it, &item)) jlist_add(c, list, item);
    return list;
}

typedef struct json_reader {
    jctx *c;
    jmark mark;
    bool copy;
} json_reader;

static jval read_json(const json_reader *j, json_t *json, int depth);

static const jstr *read_json_text(const json_reader *j, const char *p, size_t n) {
    return (j->copy ? jstr_copy : jstr_new)(j->c, p, n, j->mark);
}

/* The parts between bytes CHAT_TRUSTED are the template's; the bytes themselves are left out. */
static const jstr *read_marked_text(const json_reader *j, const char *p, size_t n) {
    jbuf b;
    bool trusted = false;
    jbuf_init(&b, j->c, n);
    for (const char *end = p + n; p < end; trusted = !trusted) {
        const char *next = memchr(p, CHAT_TRUSTED, (size_t)(end - p));
        if (next == NULL) next = end;
        jbuf_add(&b, p, (size_t)(next - p), trusted ? JMARK_TEMPLATE : j->mark);
        p = next < end ? next + 1 : end;
    }
    return jbuf_str(&b, false);
}

static jval read_json_array(const json_reader *j, json_t *json, int depth) {
    jlist *list = jlist_new(j->c, json_array_size(json));
    for (size_t i = 0; i < json_array_size(json); i++)
        list->items[list->n++] = read_json(j, json_array_get(json, i), depth + 1);
    return jv_list(list);
}

static jval read_json_object(const json_reader *j, json_t *json, int depth) {
    jdict *d = jdict_new(j->c, json_object_size(json));
    for (void *it = json_object_iter(json); it != NULL; it = json_object_iter_next(json, it)) {
        const jstr *key = read_json_text(j, json_object_iter_key(it), json_object_iter_key_len(it));
        jval value = read_json(j, json_object_iter_value(it), depth + 1);
        jdict_add(j->c, d, jv_str(key), value);
    }
    return jv_dict(d);
}

static jval read_json_string(const json_reader *j, const json_t *json) {
    const char *p = json_string_value(json), *digits = json_text_wide(json);
    size_t n = json_string_length(json);
    if (digits == NULL) {
        bool marked = j->mark >= JMARK_MESSAGE && memchr(p, CHAT_TRUSTED, n) != NULL;
        return jv_str((marked ? read_marked_text : read_json_text)(j, p, n));
    }
    const jstr *s = jstr_copy(j->c, digits, strlen(digits), j->mark);
    return jv_with_mark((jval){.kind = JV_WIDE, .u.s = s}, j->mark);
}

static jval read_json(const json_reader *j, json_t *json, int depth) {
    jval v = jv_none();
    if (depth > JVALUE_DEPTH_MAX) j_limit(j->c, "data nested deeper than %d", JVALUE_DEPTH_MAX);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = read_json_object(j, json, depth);
        break;
    case JSON_ARRAY:
        v = read_json_array(j, json, depth);
        break;
    case JSON_STRING:
        return read_json_string(j, json);
    case JSON_INTEGER:
        v = jv_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = jv_float(json_real_value(json));
        break;
    case JSON_TRUE:
        v = jv_bool(true);
        break;
    case JSON_FALSE:
        v = jv_bool(false);
        break;
    case JSON_NULL: // its text "None" is the interpreter's, but its "null" is data
        v.mark = jv_with_mark(v, j->mark).mark;
        return v;
    }
    return jv_with_mark(v, j->mark);
}

jval jv_from_json(jctx *c, json_t *json, jmark mark, bool copy) {
    json_reader j = {.c = c, .mark = mark, .copy = copy};
    return read_json(&j, json, 0);
}

jval jv_from_messages(jctx *c, json_t *messages) {
    if (!json_is_array(messages)) return jv_from_json(c, messages, JMARK_REQUEST, false);
    jlist *list = jlist_new(c, json_array_size(messages));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_reader j = {.c = c, .mark = (jmark)(JMARK_MESSAGE + i % JMARK_CYCLE)};
        list->items[list->n++] = read_json(&j, json_array_get(messages, i), 1);
    }
    return jv_list(list);
}
