/* Methods of strings and the loop: those of Python that change nothing.  Those of lists and dicts
 * are in methods_list.c. */
#include "chat/interp.h"
#include "chat/letters.h"

/* ---- strings ---- */

static jval str_upper(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "upper", "", NULL);
    return jv_str(jtext_upper(&r->c, v.u.s));
}
static jval str_lower(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "lower", "", NULL);
    return jv_str(jtext_lower(&r->c, v.u.s));
}
static jval str_capitalize(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "capitalize", "", NULL);
    return jv_str(jtext_capitalize(&r->c, v.u.s));
}

static jval str_title(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "title", "", NULL);
    return jv_str(jtext_title(&r->c, v.u.s));
}

static jval str_swapcase(jrender *r, jval v, const jcall *call) {
    const jstr *s = v.u.s;
    jbuf b;
    size_t n;
    jcall_bind(r, call, "swapcase", "", NULL);
    jbuf_init(&b, &r->c, 0);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        const jstr *letter = jstr_slice(&r->c, s, i, i + n);
        jbuf_add_str(&b, (letter_is_upper(cp) ? jtext_lower : jtext_upper)(&r->c, letter));
        j_charge(&r->c, 1);
    }
    return jv_str(jbuf_str(&b, s->markup));
}

static jval strip(jrender *r, jval v, const jcall *call, const char *what, int ends) {
    jval chars;
    jcall_bind(r, call, what, "chars?", &chars);
    return jv_str(jstr_strip(&r->c, v.u.s, jarg_str_or(r, chars, what, NULL), ends));
}
static jval str_strip(jrender *r, jval v, const jcall *call) {
    return strip(r, v, call, "strip", JSTRIP_BOTH);
}
static jval str_lstrip(jrender *r, jval v, const jcall *call) {
    return strip(r, v, call, "lstrip", JSTRIP_LEFT);
}
static jval str_rstrip(jrender *r, jval v, const jcall *call) {
    return strip(r, v, call, "rstrip", JSTRIP_RIGHT);
}

static bool space_at(const jstr *s, size_t i, size_t *n) {
    return letter_is_space(letter_read(s->p + i, n));
}

/* Words between white space; after `max` of them, the rest. */
static jlist *split_words(jrender *r, const jstr *s, int64_t max) {
    jlist *out = jlist_new(&r->c, 0);
    size_t i = 0, n;
    j_charge_bytes(&r->c, s->n);
    for (;;) {
        while (i < s->n && space_at(s, i, &n)) i += n;
        if (i >= s->n) return out;
        if (max == 0) break;
        size_t from = i;
        while (i < s->n && !space_at(s, i, &n)) i += n;
        jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, from, i)));
        if (max > 0) max--;
        j_charge(&r->c, 1);
    }
    jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, i, s->n)));
    return out;
}

static jlist *split_at(jrender *r, const jstr *s, const jstr *sep, int64_t max) {
    jlist *out = jlist_new(&r->c, 0);
    size_t from = 0;
    j_charge_bytes(&r->c, s->n);
    for (; max != 0; max--) {
        const char *at = memmem(s->p + from, s->n - from, sep->p, sep->n);
        if (at == NULL) break;
        jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, from, (size_t)(at - s->p))));
        from = (size_t)(at - s->p) + sep->n;
        j_charge(&r->c, 1);
    }
    jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, from, s->n)));
    return out;
}

static void reverse_list(jlist *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        jval swap = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
}

static jlist *rsplit_words(jrender *r, const jstr *s, int64_t max) {
    jlist *out = jlist_new(&r->c, 0);
    size_t n, to = s->n;
    j_charge_bytes(&r->c, s->n);
    while (max-- != 0) {
        const jstr *rest = jstr_strip(&r->c, jstr_slice(&r->c, s, 0, to), NULL, JSTRIP_RIGHT);
        size_t from = to = rest->n;
        while (from > 0) {
            size_t at = from - 1;
            while (!letter_starts(s->p[at])) at--;
            if (space_at(s, at, &n)) break;
            from = at;
        }
        if (from == to) break;
        jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, from, to)));
        to = from;
    }
    const jstr *rest = jstr_strip(&r->c, jstr_slice(&r->c, s, 0, to), NULL, JSTRIP_RIGHT);
    if (rest->n > 0) jlist_add(&r->c, out, jv_str(rest));
    reverse_list(out);
    return out;
}

static jlist *rsplit_at(jrender *r, const jstr *s, const jstr *sep, int64_t max) {
    jlist *out = jlist_new(&r->c, 0);
    size_t to = s->n;
    for (; max != 0; max--) {
        size_t at = jstr_rfind(&r->c, s, sep, 0, to);
        if (at == SIZE_MAX) break;
        jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, at + sep->n, to)));
        to = at;
        j_charge(&r->c, 1);
    }
    jlist_add(&r->c, out, jv_str(jstr_slice(&r->c, s, 0, to)));
    reverse_list(out);
    return out;
}

static jval str_split(jrender *r, jval v, const jcall *call) {
    jval a[2];
    jcall_bind(r, call, "split", "sep? maxsplit?", a);
    const jstr *sep = jarg_str_or(r, a[0], "split", NULL);
    int64_t max = jarg_int_or(r, a[1], "split", -1);
    if (sep == NULL) return jv_list(split_words(r, v.u.s, max));
    if (sep->n == 0) j_fail(&r->c, "empty separator");
    return jv_list(split_at(r, v.u.s, sep, max));
}

static jval str_rsplit(jrender *r, jval v, const jcall *call) {
    jval a[2];
    jcall_bind(r, call, "rsplit", "sep? maxsplit?", a);
    const jstr *sep = jarg_str_or(r, a[0], "rsplit", NULL);
    int64_t max = jarg_int_or(r, a[1], "rsplit", -1);
    if (sep == NULL) return jv_list(rsplit_words(r, v.u.s, max));
    if (sep->n == 0) j_fail(&r->c, "empty separator");
    return jv_list(rsplit_at(r, v.u.s, sep, max));
}

static jval str_splitlines(jrender *r, jval v, const jcall *call) {
    jval keep;
    jcall_bind(r, call, "splitlines", "keepends?", &keep);
    return jv_list(jtext_lines(&r->c, v.u.s, jarg_true(keep)));
}

static jval make_parts(jrender *r, const jstr *s, size_t from, size_t to) {
    jlist *parts = jlist_new(&r->c, 3);
    jlist_add(&r->c, parts, jv_str(jstr_slice(&r->c, s, 0, from)));
    jlist_add(&r->c, parts, jv_str(jstr_slice(&r->c, s, from, to)));
    jlist_add(&r->c, parts, jv_str(jstr_slice(&r->c, s, to, s->n)));
    return jv_tuple(parts);
}

static jval str_partition(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "partition", "sep", &a);
    const jstr *sep = jarg_str(r, a, "partition"), *s = v.u.s;
    if (sep->n == 0) j_fail(&r->c, "empty separator");
    size_t at = jstr_find(&r->c, s, sep, 0, s->n);
    return at == SIZE_MAX ? make_parts(r, s, s->n, s->n) : make_parts(r, s, at, at + sep->n);
}

static jval str_rpartition(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "rpartition", "sep", &a);
    const jstr *sep = jarg_str(r, a, "rpartition"), *s = v.u.s;
    if (sep->n == 0) j_fail(&r->c, "empty separator");
    size_t at = jstr_rfind(&r->c, s, sep, 0, s->n);
    return at == SIZE_MAX ? make_parts(r, s, 0, 0) : make_parts(r, s, at, at + sep->n);
}

/* [start, end) in code points, with slice semantics, to bytes.  False: start is behind the end. */
static bool read_range(jrender *r, const jstr *s, jval start, jval end, size_t *from, size_t *to) {
    *from = 0;
    *to = s->n;
    if (start.kind == JV_MISSING && end.kind == JV_MISSING) return true;
    int64_t n = (int64_t)jstr_length(&r->c, s);
    int64_t a = jarg_int_or(r, start, "start", 0), b = jarg_int_or(r, end, "end", n);
    if (a < 0) a = a < -n ? 0 : a + n;
    if (b < 0) b = b < -n ? 0 : b + n;
    if (a > n) return false;
    *from = jstr_offset(&r->c, s, (size_t)a);
    *to = b >= n ? s->n : jstr_offset(&r->c, s, (size_t)b);
    return *from <= *to;
}

static bool has_end(const jstr *s, size_t from, size_t to, const jstr *part, bool at_start) {
    if (part->n > to - from) return false;
    return memcmp(at_start ? s->p + from : s->p + to - part->n, part->p, part->n) == 0;
}

static jval has_affix(jrender *r, jval v, const jcall *call, const char *what, bool at_start) {
    jval a[3];
    size_t from, to;
    bool found = false;
    jcall_bind(r, call, what, "affix start? end?", a);
    bool inside = read_range(r, v.u.s, a[1], a[2], &from, &to);
    if (a[0].kind != JV_TUPLE)
        return jv_bool(has_end(v.u.s, from, to, jarg_str(r, a[0], what), at_start) && inside);
    for (size_t i = 0; i < a[0].u.list->n; i++)
        found |= has_end(v.u.s, from, to, jarg_str(r, a[0].u.list->items[i], what), at_start);
    return jv_bool(found && inside);
}
static jval str_startswith(jrender *r, jval v, const jcall *call) {
    return has_affix(r, v, call, "startswith", true);
}
static jval str_endswith(jrender *r, jval v, const jcall *call) {
    return has_affix(r, v, call, "endswith", false);
}

static jval str_removeprefix(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "removeprefix", "prefix", &a);
    const jstr *prefix = jarg_str(r, a, "removeprefix"), *s = v.u.s;
    return jv_str(has_end(s, 0, s->n, prefix, true) ? jstr_slice(&r->c, s, prefix->n, s->n) : s);
}
static jval str_removesuffix(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "removesuffix", "suffix", &a);
    const jstr *suffix = jarg_str(r, a, "removesuffix"), *s = v.u.s;
    return jv_str(has_end(s, 0, s->n, suffix, false) ? jstr_slice(&r->c, s, 0, s->n - suffix->n)
                                                     : s);
}

/* The position of `sub`, in code points; -1 when it is not there. */
static int64_t find(jrender *r, jval v, const jcall *call, const char *what, bool last) {
    jval a[3];
    size_t from, to;
    jcall_bind(r, call, what, "sub start? end?", a);
    const jstr *sub = jarg_str(r, a[0], what), *s = v.u.s;
    if (!read_range(r, s, a[1], a[2], &from, &to)) return -1;
    size_t at = (last ? jstr_rfind : jstr_find)(&r->c, s, sub, from, to);
    return at == SIZE_MAX ? -1 : (int64_t)jstr_length(&r->c, jstr_slice(&r->c, s, 0, at));
}
static jval str_find(jrender *r, jval v, const jcall *call) {
    return jv_int(find(r, v, call, "find", false));
}
static jval str_rfind(jrender *r, jval v, const jcall *call) {
    return jv_int(find(r, v, call, "rfind", true));
}
static jval str_index(jrender *r, jval v, const jcall *call) {
    int64_t at = find(r, v, call, "index", false);
    if (at < 0) j_fail(&r->c, "substring not found");
    return jv_int(at);
}
static jval str_rindex(jrender *r, jval v, const jcall *call) {
    int64_t at = find(r, v, call, "rindex", true);
    if (at < 0) j_fail(&r->c, "substring not found");
    return jv_int(at);
}

static jval str_count(jrender *r, jval v, const jcall *call) {
    jval a[3];
    size_t from, to;
    int64_t count = 0;
    jcall_bind(r, call, "count", "sub start? end?", a);
    const jstr *sub = jarg_str(r, a[0], "count"), *s = v.u.s;
    if (!read_range(r, s, a[1], a[2], &from, &to)) return jv_int(0);
    if (sub->n == 0) return jv_int((int64_t)jstr_length(&r->c, jstr_slice(&r->c, s, from, to)) + 1);
    j_charge_bytes(&r->c, to - from);
    for (const char *at; (at = memmem(s->p + from, to - from, sub->p, sub->n)) != NULL; count++)
        from = (size_t)(at - s->p) + sub->n;
    return jv_int(count);
}

static jval str_replace(jrender *r, jval v, const jcall *call) {
    jval a[3];
    jcall_bind(r, call, "replace", "old new count?", a);
    const jstr *with = jarg_str(r, a[1], "replace");
    if (v.u.s->markup) with = jstr_escape(&r->c, with);
    return jv_str(jstr_replace(&r->c, v.u.s, jarg_str(r, a[0], "replace"), with,
                               jarg_int_or(r, a[2], "replace", -1)));
}

static jval str_join(jrender *r, jval v, const jcall *call) {
    jval a, item;
    jiter it;
    jbuf b;
    jcall_bind(r, call, "join", "iterable", &a);
    jbuf_init(&b, &r->c, 0);
    jiter_init(&r->c, &it, a);
    for (size_t i = 0; jiter_next(&r->c, &it, &item); i++) {
        if (item.kind != JV_STR)
            j_fail(&r->c, "sequence item %zu: expected str instance, %s found", i,
                   jv_type_name(item));
        if (i > 0) jbuf_add_str(&b, v.u.s);
        jv_print(&r->c, &b, v.u.s->markup ? jv_str(jstr_escape(&r->c, item.u.s)) : item);
    }
    return jv_str(jbuf_str(&b, v.u.s->markup));
}

static jval pad(jrender *r, jval v, const jcall *call, const char *what, char align) {
    jval a[2];
    jcall_bind(r, call, what, "width fillchar?", a);
    const jstr *fill = jarg_str_or(r, a[1], what, " ");
    if (jstr_length(&r->c, fill) != 1)
        j_fail(&r->c, "the fill character must be exactly one character long");
    return jv_str(jtext_pad(r, v.u.s, jarg_int(r, a[0], what), align, fill));
}
static jval str_center(jrender *r, jval v, const jcall *call) {
    return pad(r, v, call, "center", '^');
}
static jval str_ljust(jrender *r, jval v, const jcall *call) {
    return pad(r, v, call, "ljust", '<');
}
static jval str_rjust(jrender *r, jval v, const jcall *call) {
    return pad(r, v, call, "rjust", '>');
}

static jval str_zfill(jrender *r, jval v, const jcall *call) {
    jval a;
    jcall_bind(r, call, "zfill", "width", &a);
    const jstr *s = v.u.s;
    int64_t width = jarg_int(r, a, "zfill");
    size_t sign = s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
    const jstr *digits = jstr_slice(&r->c, s, sign, s->n);
    digits = jtext_pad(r, digits, width < INT32_MIN ? 0 : width - (int64_t)sign, '>',
                       jstr_lit(&r->c, "0"));
    return jv_str(jstr_concat(&r->c, jstr_slice(&r->c, s, 0, sign), digits, s->markup));
}

static jval str_format(jrender *r, jval v, const jcall *call) {
    return jv_str(jformat_braces(r, v.u.s, call));
}

/* Every code point passes `is`, and there is at least one. */
static jval all_are(jrender *r, jval v, const jcall *call, bool (*is)(uint32_t cp)) {
    const jstr *s = v.u.s;
    size_t n;
    jcall_bind(r, call, "is..", "", NULL);
    j_charge(&r->c, s->n / 8);
    for (size_t i = 0; i < s->n; i += n)
        if (!is(letter_read(s->p + i, &n))) return jv_bool(false);
    return jv_bool(s->n > 0);
}
static jval str_isdigit(jrender *r, jval v, const jcall *call) {
    return all_are(r, v, call, letter_is_digit);
}
static jval str_isalpha(jrender *r, jval v, const jcall *call) {
    return all_are(r, v, call, letter_is_alpha);
}
static jval str_isalnum(jrender *r, jval v, const jcall *call) {
    return all_are(r, v, call, letter_is_alnum);
}
static jval str_isspace(jrender *r, jval v, const jcall *call) {
    return all_are(r, v, call, letter_is_space);
}
static jval str_isupper(jrender *r, jval v, const jcall *call) {
    return jv_bool(jtest_run(r, jstr_lit(&r->c, "upper"), v, call));
}
static jval str_islower(jrender *r, jval v, const jcall *call) {
    return jv_bool(jtest_run(r, jstr_lit(&r->c, "lower"), v, call));
}

static const jmethod str_methods[] = {
    {"upper", str_upper},
    {"lower", str_lower},
    {"casefold", str_lower},
    {"capitalize", str_capitalize},
    {"title", str_title},
    {"swapcase", str_swapcase},
    {"strip", str_strip},
    {"lstrip", str_lstrip},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"rsplit", str_rsplit},
    {"splitlines", str_splitlines},
    {"partition", str_partition},
    {"rpartition", str_rpartition},
    {"startswith", str_startswith},
    {"endswith", str_endswith},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"find", str_find},
    {"rfind", str_rfind},
    {"index", str_index},
    {"rindex", str_rindex},
    {"count", str_count},
    {"replace", str_replace},
    {"join", str_join},
    {"center", str_center},
    {"ljust", str_ljust},
    {"rjust", str_rjust},
    {"zfill", str_zfill},
    {"format", str_format},
    {"isdigit", str_isdigit},
    {"isdecimal", str_isdigit},
    {"isnumeric", str_isdigit},
    {"isalpha", str_isalpha},
    {"isalnum", str_isalnum},
    {"isspace", str_isspace},
    {"isupper", str_isupper},
    {"islower", str_islower},
};

/* ---- the loop ---- */

static jval loop_cycle(jrender *r, jval v, const jcall *call) {
    if (call->n_kw > 0 || call->n == 0) j_fail(&r->c, "no items for cycling given");
    return call->pos[v.u.loop->index0 % call->n];
}

static jval loop_changed(jrender *r, jval v, const jcall *call) {
    jloop *loop = v.u.loop;
    jlist *now = jlist_new(&r->c, call->n);
    for (size_t i = 0; i < call->n; i++) jlist_add(&r->c, now, call->pos[i]);
    bool same =
        loop->last_changed != NULL && jv_equal(&r->c, jv_tuple(loop->last_changed), jv_tuple(now));
    if (!same) loop->last_changed = now;
    return jv_bool(!same);
}

static const jmethod loop_methods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};

/* ---- lookup ---- */

const jmethod *jmethod_search(const jmethod *methods, size_t n, const jstr *name) {
    for (size_t i = 0; i < n; i++)
        if (jstr_is(name, methods[i].name)) return &methods[i];
    return NULL;
}

const jmethod *jmethod_find(jval self, const jstr *name) {
    switch ((jkind)self.kind) {
    case JV_STR:
        return jmethod_search(str_methods, INFERD_COUNT(str_methods), name);
    case JV_DICT:
    case JV_LIST:
    case JV_TUPLE:
        return jmethod_of_container(self, name);
    case JV_LOOP:
        return jmethod_search(loop_methods, INFERD_COUNT(loop_methods), name);
    default:
        return NULL;
    }
}

bool jmethod_refused(jval self, const jstr *name) {
    static const char *const list_names[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
    static const char *const dict_names[] = {"clear", "pop", "popitem", "setdefault", "update"};
    if (name->n > 4 && memcmp(name->p, "__", 2) == 0 && memcmp(name->p + name->n - 2, "__", 2) == 0)
        return true;
    for (size_t i = 0; self.kind == JV_LIST && i < INFERD_COUNT(list_names); i++)
        if (jstr_is(name, list_names[i])) return true;
    for (size_t i = 0; self.kind == JV_DICT && i < INFERD_COUNT(dict_names); i++)
        if (jstr_is(name, dict_names[i])) return true;
    return false;
}
