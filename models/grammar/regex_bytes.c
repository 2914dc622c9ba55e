/* regex_bytes.c - from symbols to the bytes in which code points are written.
 *
 * The code points of all symbols, as sequences of byte ranges, make one tree; its leaves are
 * symbols; equal parts of it are shared.  Each state of the table is then the root of a copy of the
 * tree, in which a leaf is the state that follows its symbol.  Of all copies, equal parts are
 * shared again: a state that goes to one other with any character needs few states for the bytes
 * between.
 *
 * The table is minimal and so is what comes out, because a part within a character accepts other
 * first bytes than a root - but for parts of escapes of JSON, which is no loss worth another pass.
 */
#include "regex_private.h"
#include "tokenizer/utf8.h"

enum {
    SEQUENCE_MAX = 6, // bytes of \u001f
    EDGES_MAX = 256
};
#define LEAF 0x80000000u // of a target: the rest is a symbol

typedef struct byte_range {
    uint8_t first, last;
} byte_range;
typedef struct sequence {
    byte_range bytes[SEQUENCE_MAX];
    uint32_t n, symbol;
} sequence;
typedef struct byte_edge {
    uint32_t first, last, to;
} byte_edge;

typedef struct decode_tree {
    sequence *sequences; // [n_sequences] owned
    uint32_t n_sequences, sequences_capacity;
    dfa_keys nodes; // each is its edges: first, last, to; children before parents, the root last
    bool failed;    // no memory
} decode_tree;

/* ---- sequences ---- */

static void add_sequence(decode_tree *w, const sequence *q) {
    if (w->failed) return;
    sequence *p =
        dfa_grow(w->sequences, &w->sequences_capacity, (size_t)w->n_sequences + 1, sizeof *p);
    if (p == NULL) {
        w->failed = true;
        return;
    }
    w->sequences = p;
    w->sequences[w->n_sequences++] = *q;
}

/* Code points that are written with one length, and whose bytes are independent ranges. */
static void add_block(decode_tree *w, uint32_t first, uint32_t last, uint32_t symbol) {
    unsigned char low[UTF8_BYTES_MAX], high[UTF8_BYTES_MAX];
    sequence q = {.n = utf8_encode(first, low), .symbol = symbol};
    utf8_encode(last, high);
    for (uint32_t i = 0; i < q.n; i++) q.bytes[i] = (byte_range){low[i], high[i]};
    add_sequence(w, &q);
}

/* UTF-8 of a range: cut where the length changes, and where a leading part changes while the rest
 * is not complete. */
static void add_utf8(decode_tree *w, uint32_t first, uint32_t last, uint32_t symbol) {
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xFFFF, CODE_POINT_MAX};
    while (first <= last) {
        uint32_t end = last;
        unsigned n_more = 0; // continuation bytes
        while (first > ends[n_more]) n_more++;
        end = u32_min(end, ends[n_more]);
        for (unsigned i = 1; i <= n_more; i++) {
            uint32_t below = (1u << (6 * i)) - 1; // the bits of the last i bytes
            if ((first & ~below) == (end & ~below)) break;
            if ((first & below) != 0)
                end = first | below;
            else if ((end & below) != below)
                end = (end & ~below) - 1;
        }
        add_block(w, first, end, symbol);
        first = end + 1;
    }
}

/* The canonical escape of a code point in a JSON string; "": it has none. */
static const char *json_escape(uint32_t c, char text[8]) {
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        break;
    }
    if (c >= 0x20) return "";
    snprintf(text, 8, "\\u%04x", (unsigned)c);
    return text;
}

void json_canonical(buf *out, bytes text) {
    char escape[8];
    for (size_t i = 0; i < text.n; i++) {
        const char *p = json_escape((unsigned char)text.p[i], escape);
        if (*p != 0)
            buf_add_str(out, p);
        else
            buf_add_char(out, text.p[i]);
    }
}

static void add_escaped(decode_tree *w, const char *text, uint32_t symbol) {
    sequence q = {.n = (uint32_t)strlen(text), .symbol = symbol};
    for (uint32_t i = 0; i < q.n; i++)
        q.bytes[i] = (byte_range){(uint8_t)text[i], (uint8_t)text[i]};
    add_sequence(w, &q);
}

static void add_json(decode_tree *w, uint32_t first, uint32_t last, uint32_t symbol) {
    char escape[8];
    uint32_t plain = first; // from here to the code point in work nothing is escaped
    for (uint32_t c = first; c <= u32_min(last, '\\'); c++) {
        const char *text = json_escape(c, escape);
        if (*text == 0) continue;
        if (plain < c) add_utf8(w, plain, c - 1, symbol);
        plain = c + 1;
        add_escaped(w, text, symbol);
    }
    if (plain <= last) add_utf8(w, plain, last, symbol);
}

static int compare_sequences(const void *a, const void *b) {
    const sequence *x = a, *y = b;
    for (uint32_t i = 0; i < x->n && i < y->n; i++)
        if (x->bytes[i].first != y->bytes[i].first)
            return x->bytes[i].first < y->bytes[i].first ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* ---- the tree ---- */

typedef struct open_node {
    byte_edge edges[EDGES_MAX]; // the last one, but for the deepest node, has no target yet
    uint32_t n;
} open_node;

/* Adds an edge; one that continues the edge before it is joined with it. */
static void add_edge(byte_edge *edges, uint32_t *n, byte_edge e) {
    if (*n > 0 && edges[*n - 1].to == e.to && edges[*n - 1].last + 1 == e.first)
        edges[*n - 1].last = e.last;
    else
        edges[(*n)++] = e;
}

/* Ends the open nodes deeper than `depth`: each becomes the target of its parent's last edge. */
static void end_nodes(decode_tree *w, open_node *open, uint32_t from, uint32_t depth) {
    for (uint32_t d = from; d > depth; d--) {
        bool added;
        uint32_t node =
            dfa_keys_put(&w->nodes, (const uint32_t *)open[d].edges, 3 * open[d].n, &added);
        if (node == DFA_DEAD) w->failed = true;
        byte_edge last = open[d - 1].edges[--open[d - 1].n];
        last.to = node;
        add_edge(open[d - 1].edges, &open[d - 1].n, last);
    }
}

static bool same_range(byte_range a, byte_range b) {
    return a.first == b.first && a.last == b.last;
}

/* From the sorted sequences.  The node at depth d has read d bytes of the sequence in work. */
static void build_tree(decode_tree *w) {
    open_node *open = calloc(SEQUENCE_MAX, sizeof *open);
    if (open == NULL) {
        w->failed = true;
        return;
    }
    const sequence *before = NULL;
    for (uint32_t i = 0; i < w->n_sequences; i++) {
        const sequence *q = &w->sequences[i];
        uint32_t depth = 0; // bytes that it has in common with the one before
        while (before != NULL && depth + 1 < q->n && depth + 1 < before->n &&
               same_range(q->bytes[depth], before->bytes[depth]))
            depth++;
        if (before != NULL) end_nodes(w, open, before->n - 1, depth);
        for (uint32_t d = depth; d + 1 < q->n; d++) {
            open[d].edges[open[d].n++] = (byte_edge){q->bytes[d].first, q->bytes[d].last, DFA_DEAD};
            open[d + 1].n = 0;
        }
        byte_range last = q->bytes[q->n - 1];
        add_edge(open[q->n - 1].edges, &open[q->n - 1].n,
                 (byte_edge){last.first, last.last, LEAF | q->symbol});
        before = q;
    }
    if (before != NULL) end_nodes(w, open, before->n - 1, 0);
    bool added; // the root is no node below: it is not shared
    if (dfa_keys_put(&w->nodes, (const uint32_t *)open[0].edges, 3 * open[0].n, &added) == DFA_DEAD)
        w->failed = true;
    free(open);
}

static bool make_tree(const symbols *s, bool json, decode_tree *w) {
    *w = (decode_tree){0};
    for (uint32_t i = 0; i < s->n_intervals; i++) {
        code_interval at = s->intervals[i];
        if (json)
            add_json(w, at.first, at.last, at.symbol);
        else
            add_utf8(w, at.first, at.last, at.symbol);
    }
    if (!w->failed && w->n_sequences > 0)
        qsort(w->sequences, w->n_sequences, sizeof *w->sequences, compare_sequences);
    if (!w->failed) build_tree(w);
    return !w->failed;
}

/* ---- copies of the tree ---- */

typedef struct expander {
    const dfa_table *table;
    const decode_tree *tree;
    dfa_keys inner; // states within a character, each is its edges; they follow the table's states
    uint32_t *values; // [n_nodes] the state of each node in the copy in work
    dfa_keys roots;   // of state i, its edges, with i in front: all are different
    uint32_t limit;
} expander;

/* The edges of a node in the copy of state `state`; ways to nowhere are left out. */
static uint32_t copy_edges(const expander *w, uint32_t state, uint32_t node, byte_edge *edges) {
    const uint32_t *p = w->tree->nodes.words + w->tree->nodes.at[node];
    const uint32_t *end = w->tree->nodes.words + w->tree->nodes.at[node + 1];
    uint32_t n = 0;
    for (; p < end; p += 3) {
        uint32_t to =
            (p[2] & LEAF) != 0 ? dfa_table_row(w->table, state)[p[2] & ~LEAF] : w->values[p[2]];
        if (to != DFA_DEAD) add_edge(edges, &n, (byte_edge){p[0], p[1], to});
    }
    return n;
}

static inferd_status copy_tree(expander *w, uint32_t state, inferd_err *err) {
    struct {
        uint32_t number;
        byte_edge edges[EDGES_MAX];
    } root = {.number = state};
    byte_edge edges[EDGES_MAX];
    uint32_t n_nodes = w->tree->nodes.n, n;
    bool added;
    for (uint32_t node = 0; node + 1 < n_nodes; node++) {
        w->values[node] = DFA_DEAD;
        n = copy_edges(w, state, node, edges);
        if (n == 0) continue;
        uint32_t inner = dfa_keys_put(&w->inner, (const uint32_t *)edges, 3 * n, &added);
        if (inner == DFA_DEAD) return dfa_no_memory(err);
        if (inner + w->table->n_states >= w->limit)
            return inferd_fail(err, INFERD_ETOOLONG, "pattern: needs more than %u states",
                               w->limit);
        w->values[node] = w->table->n_states + inner;
    }
    n = copy_edges(w, state, n_nodes - 1, root.edges);
    if (dfa_keys_put(&w->roots, (const uint32_t *)&root, 1 + 3 * n, &added) == DFA_DEAD)
        return dfa_no_memory(err);
    return INFERD_OK;
}

/* Bytes between two bounds of edges of the tree share a column. */
static uint32_t find_columns(const decode_tree *w, uint32_t column_of[256]) {
    bool begins[257] = {[0] = true};
    for (uint32_t i = 0; i < w->nodes.n_words; i += 3)
        begins[w->nodes.words[i]] = begins[w->nodes.words[i + 1] + 1] = true;
    uint32_t n = 0;
    for (uint32_t b = 0; b < 256; b++) {
        n += begins[b];
        column_of[b] = n - 1;
    }
    return n;
}

static void fill_row(dfa_table *t, uint32_t state, const uint32_t *p, const uint32_t *end,
                     const uint32_t column_of[256]) {
    uint32_t *row = dfa_table_row(t, state);
    for (; p < end; p += 3)
        for (uint32_t c = column_of[p[0]]; c <= column_of[p[1]]; c++) row[c] = p[2];
}

static bool fill_table(const expander *w, const uint32_t column_of[256], dfa_table *out) {
    uint32_t state;
    for (uint32_t i = 0; i < w->table->n_states; i++) {
        if (!dfa_table_add(out, &state)) return false;
        fill_row(out, state, w->roots.words + w->roots.at[i] + 1,
                 w->roots.words + w->roots.at[i + 1], column_of);
        out->tags[state] = w->table->tags[i];
    }
    for (uint32_t i = 0; i < w->inner.n; i++) {
        if (!dfa_table_add(out, &state)) return false;
        fill_row(out, state, w->inner.words + w->inner.at[i], w->inner.words + w->inner.at[i + 1],
                 column_of);
    }
    return true;
}

inferd_status regex_bytes(dfa_table *t, const symbols *s, bool json, const dfa_limits *limits,
                          dfa *out, inferd_err *err) {
    decode_tree tree;
    dfa_table bytes_table = {0};
    uint32_t column_of[256];
    *out = (dfa){0};
    inferd_status status = make_tree(s, json, &tree) ? INFERD_OK : dfa_no_memory(err);
    expander w = {.table = t, .tree = &tree, .limit = limits->states_max};
    if (status == INFERD_OK) {
        w.values = calloc(size_max(tree.nodes.n, 1), sizeof *w.values);
        if (w.values == NULL) status = dfa_no_memory(err);
    }
    for (uint32_t i = 0; status == INFERD_OK && i < t->n_states; i++)
        status = copy_tree(&w, i, err);
    if (status == INFERD_OK) {
        bytes_table.n_columns = find_columns(&tree, column_of);
        status = fill_table(&w, column_of, &bytes_table)
                     ? dfa_of_table(&bytes_table, column_of, out, err)
                     : dfa_no_memory(err);
    }
    free(tree.sequences);
    free(w.values);
    dfa_keys_deinit(&tree.nodes);
    dfa_keys_deinit(&w.inner);
    dfa_keys_deinit(&w.roots);
    dfa_table_deinit(&bytes_table);
    dfa_table_deinit(t);
    return status;
}
