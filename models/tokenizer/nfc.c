/* nfc.c - decompose, order, compose (Unicode Standard Annex 15), one stretch at a time. */
#include "tokenizer/nfc.h"

#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

enum {
    S_BASE = 0xAC00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11A7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT,
    SORT_SMALL_MAX = 16 // runs of marks up to this long are sorted by insertion
};

typedef struct mark {
    uint32_t c;
    uint8_t ccc;
} mark;

/* A stretch of decomposed characters. */
typedef struct stretch {
    mark *marks, *sorted; // [capacity]; owned
    size_t n, capacity;
} stretch;

/* Nothing before or after a safe character can change it, or be changed by it from before. */
static bool is_safe(uint32_t c) {
    unicode_nfc_prop p = unicode_nfc(c);
    return p.ccc == 0 && p.flags == 0;
}

bool nfc_is_normal(const unsigned char *p, size_t n) {
    unsigned length, last_ccc = 0;
    for (size_t at = 0; at < n; at += length) {
        if (p[at] < 0xCC) { // below U+0300 every character is a safe starter
            length = p[at] < 0x80 ? 1 : 2;
            last_ccc = 0;
            continue;
        }
        unicode_nfc_prop prop = unicode_nfc(utf8_decode(p + at, &length));
        if (prop.flags != 0 || (prop.ccc != 0 && prop.ccc < last_ccc)) return false;
        last_ccc = prop.ccc;
    }
    return true;
}

static bool add_mark(stretch *s, uint32_t c) {
    if (s->n == s->capacity) {
        size_t capacity = s->capacity == 0 ? 64 : s->capacity * 2;
        mark *marks = realloc(s->marks, capacity * sizeof *marks);
        if (marks == NULL) return false;
        s->marks = marks;
        mark *sorted = realloc(s->sorted, capacity * sizeof *sorted);
        if (sorted == NULL) return false;
        s->sorted = sorted;
        s->capacity = capacity;
    }
    s->marks[s->n++] = (mark){c, unicode_nfc(c).ccc};
    return true;
}

static const unicode_decomposition *find_decomposition(uint32_t c) {
    size_t low = 0, high = unicode_n_decompositions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (unicode_decompositions[middle].c == c) return &unicode_decompositions[middle];
        if (unicode_decompositions[middle].c < c)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static bool decompose(stretch *s, uint32_t c) {
    if (c >= S_BASE && c < S_BASE + S_COUNT) {
        uint32_t i = c - S_BASE, tail = i % T_COUNT;
        return add_mark(s, L_BASE + i / (V_COUNT * T_COUNT)) &&
               add_mark(s, V_BASE + i % (V_COUNT * T_COUNT) / T_COUNT) &&
               (tail == 0 || add_mark(s, T_BASE + tail));
    }
    const unicode_decomposition *d = find_decomposition(c);
    if (d == NULL) return add_mark(s, c);
    for (size_t i = 0; i < d->n; i++)
        if (!add_mark(s, unicode_decomposed[d->at + i])) return false;
    return true;
}

/* Stable order by combining class, of marks that are all non-starters. */
static void sort_marks(mark *marks, mark *sorted, size_t n) {
    if (n <= SORT_SMALL_MAX) {
        for (size_t i = 1; i < n; i++) {
            mark m = marks[i];
            size_t at = i;
            for (; at > 0 && marks[at - 1].ccc > m.ccc; at--) marks[at] = marks[at - 1];
            marks[at] = m;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[marks[i].ccc + 1]++;
    for (size_t i = 1; i < INFERD_COUNT(start); i++) start[i] += start[i - 1];
    for (size_t i = 0; i < n; i++) sorted[start[marks[i].ccc]++] = marks[i];
    memcpy(marks, sorted, n * sizeof *marks);
}

static void order(stretch *s) {
    for (size_t at = 0; at < s->n;) {
        size_t end = at;
        while (end < s->n && s->marks[end].ccc != 0) end++;
        if (end - at > 1) sort_marks(s->marks + at, s->sorted, end - at);
        at = end + 1;
    }
}

/* The composition of `first` and `second`; 0: there is none. */
static uint32_t compose_pair(uint32_t first, uint32_t second) {
    if (first >= L_BASE && first < L_BASE + L_COUNT && second >= V_BASE &&
        second < V_BASE + V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first >= S_BASE && first < S_BASE + S_COUNT && (first - S_BASE) % T_COUNT == 0 &&
        second > T_BASE && second < T_BASE + T_COUNT)
        return first + (second - T_BASE);
    size_t low = 0, high = unicode_n_compositions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const unicode_composition *u = &unicode_compositions[middle];
        if (u->first == first && u->second == second) return u->c;
        if (u->first < first || (u->first == first && u->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Each mark joins the last starter unless something between them blocks it: a mark of the same
 * class, or another starter. */
static void compose(stretch *s) {
    size_t starter = SIZE_MAX, n = 0;
    unsigned last_ccc = 0; // of the last mark kept after the starter; 0: none
    for (size_t i = 0; i < s->n; i++) {
        mark m = s->marks[i];
        bool blocked = n != starter + 1 && last_ccc >= m.ccc;
        if (starter != SIZE_MAX && !blocked) {
            uint32_t c = compose_pair(s->marks[starter].c, m.c);
            if (c != 0) {
                s->marks[starter].c = c;
                continue;
            }
        }
        if (m.ccc == 0) starter = n;
        last_ccc = m.ccc;
        s->marks[n++] = m;
    }
    s->n = n;
}

static void append_stretch(stretch *s, buf *out) {
    order(s);
    compose(s);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char bytes_of_c[UTF8_BYTES_MAX];
        buf_add(out, bytes_of_c, utf8_encode(s->marks[i].c, bytes_of_c));
    }
    s->n = 0;
}

bool nfc_append(const unsigned char *p, size_t n, buf *out) {
    stretch s = {0};
    bool ok = true;
    size_t safe = 0; // the last safe character before `at`, where a stretch would begin
    unsigned length;
    for (size_t at = 0; ok && at < n;) {
        if (is_safe(utf8_decode(p + at, &length))) {
            // Characters before this one can no longer change.
            buf_add(out, p + safe, at - safe);
            safe = at;
            at += length;
            continue;
        }
        unsigned first;
        for (size_t i = safe; ok && i < at; i += first)
            ok = decompose(&s, utf8_decode(p + i, &first));
        while (ok && at < n) {
            uint32_t c = utf8_decode(p + at, &length);
            if (is_safe(c)) break;
            ok = decompose(&s, c);
            at += length;
        }
        if (ok) append_stretch(&s, out);
        safe = at;
    }
    if (ok) buf_add(out, p + safe, n - safe);
    free(s.marks);
    free(s.sorted);
    return ok && !out->failed;
}
