/* tags_text.c - see tags_text.h. */
#include "tags_text.h"

#include <string.h>

#include "dfa_private.h"
#include "models/grammar.h"

/* ---- UTF-8, and symbols ---- */

static const unsigned char mark_byte = (unsigned char)GRAMMAR_TOKEN_MARK;

typedef enum utf8_state {
    WHOLE,
    TAIL_1,
    TAIL_2,
    TAIL_3,
    AFTER_E0,
    AFTER_ED,
    AFTER_F0,
    AFTER_F4,
    SYMBOL, // in a control token's
    UTF8_STATES
} utf8_state;

typedef struct utf8_way {
    utf8_state from;
    unsigned char low, high;
    utf8_state to;
} utf8_way;

static const utf8_way ways[] = {
    {WHOLE, 0x00, 0x7f, WHOLE},     {WHOLE, 0xc2, 0xdf, TAIL_1},    {WHOLE, 0xe0, 0xe0, AFTER_E0},
    {WHOLE, 0xe1, 0xec, TAIL_2},    {WHOLE, 0xed, 0xed, AFTER_ED},  {WHOLE, 0xee, 0xef, TAIL_2},
    {WHOLE, 0xf0, 0xf0, AFTER_F0},  {WHOLE, 0xf1, 0xf3, TAIL_3},    {WHOLE, 0xf4, 0xf4, AFTER_F4},
    {TAIL_1, 0x80, 0xbf, WHOLE},    {TAIL_2, 0x80, 0xbf, TAIL_1},   {TAIL_3, 0x80, 0xbf, TAIL_2},
    {AFTER_E0, 0xa0, 0xbf, TAIL_1}, {AFTER_ED, 0x80, 0x9f, TAIL_1}, {AFTER_F0, 0x90, 0xbf, TAIL_2},
    {AFTER_F4, 0x80, 0x8f, TAIL_2}, {WHOLE, 0xff, 0xff, SYMBOL},    {SYMBOL, 0xff, 0xff, WHOLE},
    {SYMBOL, 0x00, 0xfe, SYMBOL}};

/* UTF8_STATES: not UTF-8. */
static utf8_state utf8_next(utf8_state s, unsigned char b) {
    for (size_t i = 0; i < INFERD_COUNT(ways); i++)
        if (ways[i].from == s && b >= ways[i].low && b <= ways[i].high) return ways[i].to;
    return UTF8_STATES;
}

/* ---- the search ---- */

/* Letters are the columns, and once more the columns for bytes inside of a symbol, the closing mark
 * included: so no part of a symbol is taken for text, or for another symbol. */
typedef struct search {
    uint32_t column_of[256];
    unsigned char byte_of[256]; // [n_columns] one byte of each
    uint32_t n_columns, n_letters;
    uint32_t *go;     // [n_nodes, n_letters] owned; node 0: no text has begun
    uint32_t *fall;   // [n_nodes] owned: the node of the longest proper end that begins a text
    uint32_t *ends;   // [n_nodes] owned: the texts that are complete, as bits
    uint32_t *depth;  // [n_nodes] owned: bytes from the root
    uint32_t *symbol; // [n_nodes] owned: bytes before the first symbol; NO_SYMBOL
    uint32_t n_nodes;
} search;
#define NO_SYMBOL UINT32_MAX

static void search_deinit(search *s) {
    free(s->go);
    free(s->fall);
    free(s->ends);
    free(s->depth);
    free(s->symbol);
}

static uint32_t letter_of(const search *s, utf8_state u, unsigned char byte) {
    return s->column_of[byte] + (u == SYMBOL ? s->n_columns : 0);
}

/* Bytes before the first symbol of what leads to a node, and a byte. */
static uint32_t symbol_after(const search *s, uint32_t node, unsigned char byte) {
    if (s->symbol[node] != NO_SYMBOL || byte != mark_byte) return s->symbol[node];
    return s->depth[node];
}

/* Bytes of the texts have columns of their own; others share one with what UTF-8 treats alike. */
static void find_columns(search *s, const bytes *texts, size_t n) {
    bool own[256] = {false};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < texts[i].n; k++) own[(unsigned char)texts[i].p[k]] = true;
    for (unsigned b = 0; b < 256; b++) {
        uint32_t c = 0;
        for (; c < s->n_columns && !own[b]; c++) {
            unsigned char other = s->byte_of[c];
            bool alike = !own[other];
            for (utf8_state u = WHOLE; u < UTF8_STATES && alike; u++)
                alike = utf8_next(u, (unsigned char)b) == utf8_next(u, other);
            if (alike) break;
        }
        if (own[b]) c = s->n_columns;
        s->column_of[b] = c;
        if (c < s->n_columns) continue;
        s->byte_of[s->n_columns++] = (unsigned char)b;
    }
}

static void add_text(search *s, bytes text, size_t which) {
    uint32_t node = 0;
    utf8_state u = WHOLE;
    for (size_t k = 0; k < text.n; k++) {
        unsigned char byte = (unsigned char)text.p[k];
        uint32_t *to = &s->go[node * s->n_letters + letter_of(s, u, byte)];
        if (*to == 0) {
            *to = s->n_nodes++;
            s->depth[*to] = s->depth[node] + 1;
            s->symbol[*to] = symbol_after(s, node, byte);
        }
        node = *to;
        if (byte == mark_byte) u = u == SYMBOL ? WHOLE : SYMBOL;
    }
    s->ends[node] |= 1u << which;
}

/* Breadth first, so that the node that a node falls to is finished before it. */
static void find_falls(search *s, uint32_t *queue) {
    uint32_t n = 0;
    queue[n++] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t node = queue[i];
        uint32_t *row = &s->go[node * s->n_letters];
        const uint32_t *other = &s->go[s->fall[node] * s->n_letters];
        /* Not those behind a symbol, which would be free text before them. */
        uint32_t n_before = s->depth[node] - s->depth[s->fall[node]];
        if (s->symbol[node] >= n_before) s->ends[node] |= s->ends[s->fall[node]];
        for (uint32_t c = 0; c < s->n_letters; c++) {
            if (row[c] == 0) {
                row[c] = node == 0 ? 0 : other[c];
                continue;
            }
            s->fall[row[c]] = node == 0 ? 0 : other[c];
            queue[n++] = row[c];
        }
    }
}

static inferd_status search_init(search *s, const bytes *texts, size_t n, inferd_err *err) {
    size_t n_nodes = 1;
    *s = (search){.n_nodes = 1};
    for (size_t i = 0; i < n; i++) n_nodes += texts[i].n;
    if (n > TAGS_TEXTS_MAX || n_nodes > TAGS_TEXTS_BYTES_MAX + 1)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "%zu triggers of %zu bytes are more than %d of %d bytes", n, n_nodes - 1,
                           TAGS_TEXTS_MAX, TAGS_TEXTS_BYTES_MAX);
    find_columns(s, texts, n);
    s->n_letters = 2 * s->n_columns;
    uint32_t *queue = malloc(n_nodes * sizeof *queue);
    s->go = calloc(n_nodes * s->n_letters, sizeof *s->go);
    s->fall = calloc(n_nodes, sizeof *s->fall);
    s->ends = calloc(n_nodes, sizeof *s->ends);
    s->depth = calloc(n_nodes, sizeof *s->depth);
    s->symbol = calloc(n_nodes, sizeof *s->symbol);
    bool ok = queue != NULL && s->go != NULL && s->fall != NULL && s->ends != NULL &&
              s->depth != NULL && s->symbol != NULL;
    if (ok) s->symbol[0] = NO_SYMBOL;
    for (size_t i = 0; i < n && ok; i++) add_text(s, texts[i], i);
    if (ok) find_falls(s, queue);
    free(queue);
    return ok ? INFERD_OK : dfa_no_memory(err);
}

/* ---- the automaton ---- */

/* The node behind a byte; false: free text would contain a control token, which was, or would have
 * been, the begin of a text. */
static bool move(const search *s, uint32_t node, utf8_state u, unsigned char byte, uint32_t *to) {
    *to = s->go[node * s->n_letters + letter_of(s, u, byte)];
    return s->depth[node] + 1 - s->depth[*to] <= symbol_after(s, node, byte);
}

/* A state for each node and state of UTF-8 that is met.  Accepted: where texts of the bits `wanted`
 * are complete, or, without bits, whole characters without any text or symbol. */
static bool fill_table(const search *s, uint32_t wanted, dfa_table *t, uint32_t *state_of) {
    uint32_t state, n_done = 0;
    uint32_t *met = state_of + (size_t)s->n_nodes * UTF8_STATES; // [n] what each state stands for
    memset(state_of, 0xFF, (size_t)s->n_nodes * UTF8_STATES * sizeof *state_of);
    if (!dfa_table_add(t, &state)) return false;
    state_of[0] = state;
    met[state] = 0;
    for (; n_done < t->n_states; n_done++) {
        uint32_t node = met[n_done] / UTF8_STATES;
        utf8_state u = (utf8_state)(met[n_done] % UTF8_STATES);
        uint32_t ends = s->ends[node];
        bool free_text = ends == 0 && u == WHOLE && s->symbol[node] == NO_SYMBOL;
        t->tags[n_done] = wanted != 0 ? (ends & wanted) != 0 : free_text;
        for (uint32_t c = 0; c < s->n_columns && ends == 0; c++) {
            utf8_state to = utf8_next(u, s->byte_of[c]);
            uint32_t to_node;
            if (to == UTF8_STATES || !move(s, node, u, s->byte_of[c], &to_node)) continue;
            uint32_t next = to_node * UTF8_STATES + to;
            if (state_of[next] == DFA_DEAD) {
                if (!dfa_table_add(t, &state_of[next])) return false;
                met[state_of[next]] = next;
            }
            dfa_table_row(t, n_done)[c] = state_of[next];
        }
    }
    return true;
}

static inferd_status make(const bytes *texts, size_t n, uint32_t wanted, dfa *out,
                          inferd_err *err) {
    search s;
    *out = (dfa){0};
    inferd_status status = search_init(&s, texts, n, err);
    if (status == INFERD_OK) {
        dfa_table t = {.n_columns = s.n_columns};
        uint32_t *state_of = malloc(2 * (size_t)s.n_nodes * UTF8_STATES * sizeof *state_of);
        bool ok = state_of != NULL && fill_table(&s, wanted, &t, state_of) && dfa_table_trim(&t);
        free(state_of);
        if (ok) {
            status = dfa_of_table(&t, s.column_of, out, err);
        } else {
            dfa_table_deinit(&t);
            status = dfa_no_memory(err);
        }
    }
    search_deinit(&s);
    return status;
}

inferd_status tags_until(const bytes *texts, size_t n, size_t which, dfa *out, inferd_err *err) {
    return make(texts, n, 1u << which, out, err);
}

inferd_status tags_without(const bytes *texts, size_t n, dfa *out, inferd_err *err) {
    return make(texts, n, 0, out, err);
}

/* ---- names of control tokens in JSON ---- */

static bool begins(bytes text, size_t at, const char *with) {
    size_t n = strlen(with);
    return text.n - at >= n && memcmp(text.p + at, with, n) == 0;
}

bool tags_add_text(buf *out, bytes text) {
    size_t n_mark = strlen(GRAMMAR_TOKEN_OPEN), named = 0; // bytes of the name so far
    bool in_name = false;
    for (size_t at = 0; at < text.n;) {
        bool open = begins(text, at, GRAMMAR_TOKEN_OPEN);
        if (!open && !begins(text, at, GRAMMAR_TOKEN_CLOSE)) {
            buf_add_char(out, text.p[at++]);
            named++;
            continue;
        }
        if (open == in_name || (in_name && named == 0)) return false;
        buf_add_char(out, GRAMMAR_TOKEN_MARK);
        in_name = open;
        named = 0;
        at += n_mark;
    }
    return !in_name;
}
