/* x.y looks up the attribute first and the key second, x['y'] the other way round.  The attributes
 * are the methods of methods.c and, for the interpreter's own objects, the ones below. */
#include "chat/interp.h"
#include "chat/letters.h"

static jval loop_attr(jrender *r, jloop *loop, const jstr *name, bool *found) {
    *found = true;
    if (jstr_is(name, "index")) return jv_int((int64_t)loop->index0 + 1);
    if (jstr_is(name, "index0")) return jv_int((int64_t)loop->index0);
    if (jstr_is(name, "first")) return jv_bool(loop->index0 == 0);
    if (jstr_is(name, "last")) return jv_bool(!jloop_peek(r, loop));
    if (jstr_is(name, "length")) return jv_int((int64_t)jloop_length(r, loop));
    if (jstr_is(name, "revindex"))
        return jv_int((int64_t)jloop_length(r, loop) - (int64_t)loop->index0);
    if (jstr_is(name, "revindex0"))
        return jv_int((int64_t)jloop_length(r, loop) - (int64_t)loop->index0 - 1);
    if (jstr_is(name, "depth")) return jv_int((int64_t)loop->depth0 + 1);
    if (jstr_is(name, "depth0")) return jv_int((int64_t)loop->depth0);
    if (jstr_is(name, "previtem"))
        return loop->index0 > 0 ? loop->before
                                : jv_undefined_because(&r->c, "there is no previous item");
    if (jstr_is(name, "nextitem"))
        return jloop_peek(r, loop) ? loop->after
                                   : jv_undefined_because(&r->c, "there is no next item");
    *found = false;
    return jv_none();
}

static jval macro_attr(jrender *r, const jmacro *macro, const jstr *name, bool *found) {
    *found = true;
    if (jstr_is(name, "name")) return jv_str(macro->def->name);
    if (jstr_is(name, "catch_kwargs")) return jv_bool(macro->def->uses_kwargs);
    if (jstr_is(name, "catch_varargs")) return jv_bool(macro->def->uses_varargs);
    if (jstr_is(name, "caller")) return jv_bool(macro->def->uses_caller);
    if (jstr_is(name, "arguments")) {
        jlist *names = jlist_new(&r->c, macro->def->n_params);
        for (size_t i = 0; i < macro->def->n_params; i++)
            jlist_add(&r->c, names, jv_str(r->ast->symbols[macro->def->params[i]]));
        return jv_tuple(names);
    }
    *found = false;
    return jv_none();
}

/* An attribute proper; *found says whether there is one. */
static jval own_attr(jrender *r, jval owner, const jstr *name, bool *found) {
    if (owner.kind == JV_NAMESPACE) {
        const jval *v = jdict_find(&r->c, owner.u.dict, jv_str(name));
        *found = v != NULL;
        return v != NULL ? *v : jv_none();
    }
    if (owner.kind == JV_LOOP) {
        jval v = loop_attr(r, owner.u.loop, name, found);
        if (*found) return v;
    }
    if (owner.kind == JV_MACRO) return macro_attr(r, owner.u.macro, name, found);
    const jmethod *method = jmethod_find(owner, name);
    *found = method != NULL;
    if (method == NULL) {
        if (!jmethod_refused(owner, name)) return jv_none();
        jundef *u = j_take(&r->c, sizeof *u);
        *u = (jundef){.owner = owner, .name = jv_str(name), .unsafe = true};
        *found = true;
        return (jval){.kind = JV_UNDEFINED, .u.undef = u};
    }
    jbound *bound = j_take(&r->c, sizeof *bound);
    *bound = (jbound){.self = owner, .method = method};
    return (jval){.kind = JV_METHOD, .u.bound = bound};
}

jval jattr_get(jrender *r, jval owner, const jstr *name) {
    bool found;
    if (owner.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, owner);
    jval v = own_attr(r, owner, name, &found);
    if (found) return v;
    if (owner.kind == JV_DICT) {
        const jval *item = jdict_find(&r->c, owner.u.dict, jv_str(name));
        if (item != NULL) return *item;
    }
    return jv_undefined(&r->c, owner, jv_str(name));
}

/* The elements of a slice for a sequence of n: start, start + step, .. (count of them). */
static void read_slice(jrender *r, const jslice *slice, int64_t n, int64_t *start, int64_t *step,
                       int64_t *count) {
    int64_t bounds[2];
    *step = slice->part[2].kind == JV_NONE ? 1 : jarg_int(r, slice->part[2], "slice");
    if (*step == 0) j_fail(&r->c, "slice step cannot be zero");
    if (*step < -INT64_MAX) *step = -INT64_MAX;
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? n : n - 1;
    for (int i = 0; i < 2; i++) {
        if (slice->part[i].kind == JV_NONE) {
            bounds[i] = (i == 0) == (*step > 0) ? low : high;
            continue;
        }
        int64_t at = jarg_int(r, slice->part[i], "slice");
        if (at < 0) at = at < -n ? low : at + n;
        bounds[i] = at < low ? low : at > high ? high : at;
    }
    *start = bounds[0];
    int64_t way = *step > 0 ? bounds[1] - bounds[0] : bounds[0] - bounds[1];
    int64_t stride = *step > 0 ? *step : -*step;
    *count = way <= 0 ? 0 : (way - 1) / stride + 1;
}

static jval slice_list(jrender *r, jval owner, const jslice *slice) {
    int64_t start, step, count;
    const jlist *items = owner.u.list;
    read_slice(r, slice, (int64_t)items->n, &start, &step, &count);
    j_charge(&r->c, (size_t)count / 8);
    jlist *out = jlist_new(&r->c, (size_t)count);
    for (int64_t i = 0; i < count; i++) out->items[out->n++] = items->items[start + i * step];
    return (jval){.kind = owner.kind, .u.list = out};
}

static jval slice_range(jrender *r, jval owner, const jslice *slice) {
    int64_t start, step, count;
    const jrange *range = owner.u.range;
    read_slice(r, slice, (int64_t)range->n, &start, &step, &count);
    if (count <= 1) step = 1; // no second element: any step will do, and this one fits
    jrange *out = j_take(&r->c, sizeof *out);
    *out = (jrange){.start = range->start + start * range->step,
                    .step = range->step * step,
                    .n = (size_t)count};
    return (jval){.kind = JV_RANGE, .u.range = out};
}

static jval slice_text(jrender *r, const jstr *s, const jslice *slice) {
    int64_t start, step, count;
    size_t n = jstr_length(&r->c, s);
    read_slice(r, slice, (int64_t)n, &start, &step, &count);
    if (step == 1) {
        size_t from = jstr_offset(&r->c, s, (size_t)start), to = from;
        for (int64_t i = 0; i < count; i++) to += letter_bytes(s->p[to]);
        j_charge_bytes(&r->c, to - from);
        return jv_str(jstr_slice(&r->c, s, from, to));
    }
    jbuf b;
    jbuf_init(&b, &r->c, 0);
    if (count > 0) {
        size_t at = jstr_offset(&r->c, s, (size_t)start);
        for (int64_t i = 0;; i++) {
            jbuf_add_slice(&b, s, at, at + letter_bytes(s->p[at]));
            if (i + 1 == count) break;
            for (int64_t k = 0; k < step; k++) at += letter_bytes(s->p[at]);
            for (int64_t k = 0; k > step; k--) do
                    at--;
                while (!letter_starts(s->p[at]));
        }
    }
    j_charge_bytes(&r->c, s->n);
    return jv_str(jbuf_str(&b, s->markup));
}

static jval get_slice(jrender *r, jval owner, jval key) {
    switch ((jkind)owner.kind) {
    case JV_STR:
        return slice_text(r, owner.u.s, key.u.slice);
    case JV_LIST:
    case JV_TUPLE:
        return slice_list(r, owner, key.u.slice);
    case JV_RANGE:
        return slice_range(r, owner, key.u.slice);
    case JV_DICT:
        j_fail(&r->c, "unhashable type: 'slice'");
    default:
        j_fail(&r->c, "'%s' object is not subscriptable", jv_type_name(owner));
    }
}

static bool text_at(jrender *r, const jstr *s, int64_t i, jval *out) {
    if (i < 0) i += (int64_t)jstr_length(&r->c, s);
    if (i < 0 || (uint64_t)i >= s->n) return false;
    size_t at = jstr_offset(&r->c, s, (size_t)i);
    if (at >= s->n) return false;
    *out = jv_str(jstr_slice(&r->c, s, at, at + letter_bytes(s->p[at])));
    return true;
}

static bool item_at(jrender *r, jval owner, int64_t i, jval *out) {
    size_t n;
    switch ((jkind)owner.kind) {
    case JV_STR:
        return text_at(r, owner.u.s, i, out);
    case JV_LIST:
    case JV_TUPLE:
        n = owner.u.list->n;
        break;
    case JV_RANGE:
        n = owner.u.range->n;
        break;
    default:
        return false;
    }
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return false;
    *out = owner.kind == JV_RANGE ? jv_int(owner.u.range->start + i * owner.u.range->step)
                                  : owner.u.list->items[i];
    return true;
}

jval jattr_item(jrender *r, jval owner, jval key) {
    bool found = false;
    jval v = jv_none();
    if (owner.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, owner);
    if (key.kind == JV_SLICE) return get_slice(r, owner, key);
    if (owner.kind == JV_DICT) {
        const jval *item = jv_hashable(key) ? jdict_find(&r->c, owner.u.dict, key) : NULL;
        if (item != NULL) return *item;
    } else if (jv_is_integer(key)) {
        found = item_at(r, owner, jv_integer(key), &v);
    }
    if (!found && key.kind == JV_STR) v = own_attr(r, owner, key.u.s, &found);
    return found ? v : jv_undefined(&r->c, owner, key);
}

static bool is_index(const jstr *part, int64_t *i) {
    *i = 0;
    for (size_t k = 0; k < part->n; k++) {
        if (part->p[k] < '0' || part->p[k] > '9' || *i > INT32_MAX) return false;
        *i = *i * 10 + (part->p[k] - '0');
    }
    return part->n > 0;
}

jval jattr_path(jrender *r, jval v, jval path, jval otherwise) {
    bool has_default = otherwise.kind != JV_MISSING && otherwise.kind != JV_NONE;
    int64_t i;
    if (path.kind == JV_NONE || path.kind == JV_MISSING) return v;
    if (path.kind != JV_STR) {
        v = jattr_item(r, v, path);
        return has_default && v.kind == JV_UNDEFINED ? otherwise : v;
    }
    const jstr *s = path.u.s;
    for (size_t from = 0; from <= s->n;) {
        const char *dot = memchr(s->p + from, '.', s->n - from);
        size_t to = dot == NULL ? s->n : (size_t)(dot - s->p);
        const jstr *part = jstr_slice(&r->c, s, from, to);
        v = jattr_item(r, v, is_index(part, &i) ? jv_int(i) : jv_str(part));
        if (has_default && v.kind == JV_UNDEFINED) v = otherwise;
        from = to + 1;
    }
    return v;
}
