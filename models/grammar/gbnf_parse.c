/* gbnf_parse.c - from GBNF to rules.
 *
 *     rule     name "::=" choice, to the end of the line
 *     choice   sequence ("|" sequence)*
 *     sequence (item repeat?)*
 *     item     "text" | [class] | . | name | "(" choice ")"
 *     repeat   * + ? {m} {m,} {m,n}
 *
 * A rule goes on in the next line inside of parentheses, after "::=" and "|", and, other than in
 * llama.cpp, before "|".  Names may have "_", too.  Comments go from "#" to the end of the line.  A
 * parenthesis that is open is a frame on a stack. */
#include "gbnf.h"
#include "tokenizer/utf8.h"

typedef struct frame {
    uint32_t choice; // the sequences before this one; DFA_DEAD: none
    uint32_t seq;    // this sequence, but for its last item
    uint32_t last;   // the last item, to which a repeat belongs; DFA_DEAD: none
    size_t at;
} frame;

typedef struct parser {
    const char *p;
    size_t n, at;
    const grammar_limits *limits;
    gbnf *out;
    uint32_t rule; // in work
    frame *frames; // [n_frames] owned
    uint32_t n_frames, frames_capacity;
    uint32_t *slots; // [n_slots] owned; rules by the hash of their names; 0: free, else 1 + a rule
    uint32_t n_slots;
    uint32_t *set_nodes; // [set_nodes_n] owned; the node of each set; DFA_DEAD: none
    uint32_t set_nodes_n, set_nodes_capacity;
    inferd_err *err;
} parser;

/* ---- errors ---- */

inferd_status gbnf_refuse(bytes source, inferd_status status, size_t at, const char *what,
                          bytes name, inferd_err *err) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < source.n; i++) {
        bool ends = source.p[i] == '\n';
        line += ends;
        column = ends ? 1 : column + (((unsigned char)source.p[i] & 0xC0) != 0x80);
    }
    return inferd_fail(err, status, "grammar: line %zu, column %zu: %s%s%.*s%s", line, column, what,
                       name.n > 0 ? " \"" : "", (int)size_min(name.n, 64), name.p,
                       name.n > 0 ? "\"" : "");
}

static inferd_status refuse(parser *w, size_t at, const char *what) {
    return gbnf_refuse(w->out->source, INFERD_EINVAL, at, what, (bytes){"", 0}, w->err);
}

/* ---- the source ---- */

static char peek(const parser *w) {
    return w->at < w->n ? w->p[w->at] : 0;
}

static uint32_t next_code(parser *w) {
    unsigned n;
    uint32_t c = utf8_decode((const unsigned char *)w->p + w->at, &n);
    w->at += n;
    return c;
}

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* Blanks and comments, and ends of lines where a rule may go on. */
static void skip_space(parser *w, bool lines) {
    for (; w->at < w->n; w->at++) {
        char c = w->p[w->at];
        if (c == '#')
            while (w->at + 1 < w->n && w->p[w->at + 1] != '\n' && w->p[w->at + 1] != '\r') w->at++;
        else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            return;
    }
}

static bytes read_name(parser *w) {
    size_t begin = w->at;
    while (is_name_char(peek(w))) w->at++;
    return (bytes){w->p + begin, w->at - begin};
}

/* ---- rules ---- */

static uint32_t hash_name(bytes name) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < name.n; i++) h = (h ^ (unsigned char)name.p[i]) * 16777619u;
    return h ^ h >> 15;
}

static uint32_t find_slot(const parser *w, bytes name) {
    uint32_t i = hash_name(name) & (w->n_slots - 1);
    for (; w->slots[i] != 0; i = (i + 1) & (w->n_slots - 1)) {
        bytes other = w->out->rules[w->slots[i] - 1].name;
        if (other.n == name.n && memcmp(other.p, name.p, name.n) == 0) break;
    }
    return i;
}

static bool rehash(parser *w) {
    uint32_t n_slots = w->n_slots == 0 ? 64 : w->n_slots * 2;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (slots == NULL) return false;
    free(w->slots);
    w->slots = slots;
    w->n_slots = n_slots;
    for (uint32_t i = 0; i < w->out->n_rules; i++)
        w->slots[find_slot(w, w->out->rules[i].name)] = i + 1;
    return true;
}

/* The rule of this name, which may be new. */
static inferd_status put_rule(parser *w, bytes name, size_t at, uint32_t *out) {
    gbnf *g = w->out;
    if (g->n_rules >= w->n_slots / 2 && !rehash(w)) return dfa_no_memory(w->err);
    uint32_t slot = find_slot(w, name);
    if (w->slots[slot] == 0) {
        gbnf_rule *p = dfa_grow(g->rules, &g->rules_capacity, (size_t)g->n_rules + 1, sizeof *p);
        if (p == NULL) return dfa_no_memory(w->err);
        g->rules = p;
        g->rules[g->n_rules] = (gbnf_rule){.name = name, .at = at};
        w->slots[slot] = ++g->n_rules;
    }
    *out = w->slots[slot] - 1;
    return INFERD_OK;
}

/* ---- nodes ---- */

static inferd_status add_node(parser *w, regex_node node, uint32_t *out) {
    return regex_add_node(&w->out->tree, node, out) ? INFERD_OK : dfa_no_memory(w->err);
}

/* Equal sets share a node. */
static inferd_status add_set(parser *w, code_set *set, uint32_t *out) {
    uint32_t number = regex_put_set(&w->out->tree, set);
    if (number == DFA_DEAD) return dfa_no_memory(w->err);
    if (number == w->set_nodes_n) {
        uint32_t *p = dfa_grow(w->set_nodes, &w->set_nodes_capacity, (size_t)number + 1, sizeof *p);
        if (p == NULL) return dfa_no_memory(w->err);
        w->set_nodes = p;
        w->set_nodes[w->set_nodes_n++] = DFA_DEAD;
    }
    *out = w->set_nodes[number];
    if (*out != DFA_DEAD) return INFERD_OK;
    inferd_status s = add_node(w, (regex_node){.kind = REGEX_SET, .a = number}, out);
    if (s == INFERD_OK) w->set_nodes[number] = *out;
    return s;
}

static inferd_status add_code(parser *w, uint32_t first, uint32_t last, uint32_t *out) {
    code_set set = {0};
    code_set_add(&set, first, last);
    inferd_status s = add_set(w, &set, out);
    code_set_deinit(&set);
    return s;
}

/* ---- items ---- */

static bool read_hex(parser *w, unsigned n, uint32_t *out) {
    uint32_t value = 0;
    if (w->n - w->at < n) return false;
    for (unsigned i = 0; i < n; i++) {
        int digit = hex_value(w->p[w->at + i]);
        if (digit < 0) return false;
        value = value * 16 + (uint32_t)digit;
    }
    w->at += n;
    *out = value;
    return value <= CODE_POINT_MAX;
}

/* After a backslash. */
static inferd_status read_escape(parser *w, size_t begin, uint32_t *out) {
    if (w->at >= w->n) return refuse(w, begin, "a backslash ends the grammar");
    uint32_t c = next_code(w);
    *out = c;
    switch (c) {
    case 'n':
        *out = '\n';
        return INFERD_OK;
    case 'r':
        *out = '\r';
        return INFERD_OK;
    case 't':
        *out = '\t';
        return INFERD_OK;
    case 'x':
    case 'u':
    case 'U':
        if (read_hex(w, c == 'x' ? 2 : c == 'u' ? 4 : 8, out)) return INFERD_OK;
        return refuse(w, begin, "an escape without its hexadecimal digits");
    default:
        break;
    }
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter ? refuse(w, begin, "an unknown escape") : INFERD_OK;
}

static inferd_status read_char(parser *w, uint32_t *out) {
    size_t begin = w->at;
    *out = next_code(w);
    return *out == '\\' ? read_escape(w, begin, out) : INFERD_OK;
}

/* After the quote at `begin`. */
static inferd_status read_text(parser *w, size_t begin, uint32_t *out) {
    *out = 0;
    while (peek(w) != '"') {
        uint32_t code, node;
        if (w->at >= w->n) return refuse(w, begin, "a text that does not end");
        inferd_status s = read_char(w, &code);
        if (s == INFERD_OK) s = add_code(w, code, code, &node);
        if (s == INFERD_OK && !regex_add_seq(&w->out->tree, *out, node, out))
            s = dfa_no_memory(w->err);
        if (s != INFERD_OK) return s;
    }
    w->at++;
    return INFERD_OK;
}

static inferd_status read_members(parser *w, size_t begin, code_set *set) {
    while (peek(w) != ']') {
        uint32_t first, last;
        size_t at = w->at;
        if (w->at >= w->n) return refuse(w, begin, "a class that does not end");
        inferd_status s = read_char(w, &first);
        last = first;
        bool is_range = peek(w) == '-' && w->at + 1 < w->n && w->p[w->at + 1] != ']';
        if (s == INFERD_OK && is_range) {
            w->at++;
            s = read_char(w, &last);
        }
        if (s != INFERD_OK) return s;
        if (first > last) return refuse(w, at, "a range out of order");
        code_set_add(set, first, last);
    }
    w->at++;
    return INFERD_OK;
}

/* After the bracket at `begin`. */
static inferd_status read_class(parser *w, size_t begin, uint32_t *out) {
    code_set set = {0};
    bool negated = peek(w) == '^';
    w->at += negated;
    inferd_status s = read_members(w, begin, &set);
    if (s == INFERD_OK && set.n == 0 && !negated && !set.failed)
        s = refuse(w, begin, "a class without members");
    if (s == INFERD_OK) {
        if (negated) code_set_complement(&set);
        s = add_set(w, &set, out);
    }
    code_set_deinit(&set);
    return s;
}

static inferd_status read_reference(parser *w, uint32_t *out) {
    size_t begin = w->at;
    uint32_t rule;
    inferd_status s = put_rule(w, read_name(w), begin, &rule);
    if (s != INFERD_OK) return s;
    return add_node(w, (regex_node){.kind = REGEX_RULE, .a = rule, .b = w->rule}, out);
}

/* ---- repeats ---- */

static bool read_number(parser *w, uint32_t *out) {
    size_t begin = w->at;
    uint64_t value = 0;
    for (; peek(w) >= '0' && peek(w) <= '9'; w->at++)
        value = u64_min(value * 10 + (uint64_t)(peek(w) - '0'), REGEX_NO_MAX - 1);
    *out = (uint32_t)value;
    return w->at > begin;
}

/* After "{" at `begin`. */
static inferd_status read_braces(parser *w, size_t begin, uint32_t *min, uint32_t *max) {
    skip_space(w, false);
    if (!read_number(w, min)) return refuse(w, begin, "a repeat without a count");
    *max = *min;
    skip_space(w, false);
    if (peek(w) == ',') {
        w->at++;
        skip_space(w, false);
        if (!read_number(w, max)) *max = REGEX_NO_MAX;
        skip_space(w, false);
    }
    if (peek(w) != '}') return refuse(w, begin, "a repeat that does not end");
    w->at++;
    if (*min > *max) return refuse(w, begin, "a count out of order");
    if (*min <= w->limits->repeat_max && (*max == REGEX_NO_MAX || *max <= w->limits->repeat_max))
        return INFERD_OK;
    return gbnf_refuse(w->out->source, INFERD_ETOOLONG, begin, "a count beyond the limit of counts",
                       (bytes){"", 0}, w->err);
}

static inferd_status repeat(parser *w, frame *top, size_t begin, char kind) {
    uint32_t min = kind == '+', max = kind == '?' ? 1 : REGEX_NO_MAX;
    inferd_status s = kind == '{' ? read_braces(w, begin, &min, &max) : INFERD_OK;
    if (s != INFERD_OK) return s;
    if (top->last == DFA_DEAD) return refuse(w, begin, "a repeat with nothing before it");
    if (max == 0) top->last = 0;
    if (top->last == 0 || (min == 1 && max == 1)) return INFERD_OK;
    return add_node(w, (regex_node){.kind = REGEX_REPEAT, .a = top->last, .min = min, .max = max},
                    &top->last);
}

/* ---- choices ---- */

static inferd_status open_frame(parser *w, size_t at) {
    if (w->n_frames >= w->limits->stack_max)
        return gbnf_refuse(w->out->source, INFERD_ETOOLONG, at, "parentheses nested too deeply",
                           (bytes){"", 0}, w->err);
    frame *p = dfa_grow(w->frames, &w->frames_capacity, (size_t)w->n_frames + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->err);
    w->frames = p;
    w->frames[w->n_frames++] = (frame){.choice = DFA_DEAD, .last = DFA_DEAD, .at = at};
    return INFERD_OK;
}

/* The last item joins its sequence. */
static inferd_status end_item(parser *w, frame *top) {
    uint32_t last = top->last;
    top->last = DFA_DEAD;
    if (last == DFA_DEAD || regex_add_seq(&w->out->tree, top->seq, last, &top->seq))
        return INFERD_OK;
    return dfa_no_memory(w->err);
}

/* The sequence joins the choices of the frame. */
static inferd_status end_sequence(parser *w, frame *top) {
    inferd_status s = end_item(w, top);
    uint32_t seq = top->seq;
    top->seq = 0;
    if (s != INFERD_OK || top->choice == DFA_DEAD) {
        top->choice = seq;
        return s;
    }
    return add_node(w, (regex_node){.kind = REGEX_ALT, .a = top->choice, .b = seq}, &top->choice);
}

static inferd_status read_item(parser *w, frame *top) {
    size_t begin = w->at;
    inferd_status s = end_item(w, top);
    if (s != INFERD_OK) return s;
    if (is_name_char(peek(w))) return read_reference(w, &top->last);
    switch (w->p[w->at++]) {
    case '"':
        return read_text(w, begin, &top->last);
    case '[':
        return read_class(w, begin, &top->last);
    case '.':
        return add_code(w, 0, CODE_POINT_MAX, &top->last);
    case '(':
        return open_frame(w, begin);
    case '<':
    case '!':
        return gbnf_refuse(w->out->source, INFERD_EUNSUPPORTED, begin,
                           "tokens in a grammar cannot be enforced", (bytes){"", 0}, w->err);
    default:
        return refuse(w, begin, "not expected in a rule");
    }
}

static inferd_status close_parenthesis(parser *w, size_t begin) {
    if (w->n_frames == 1) return refuse(w, begin, "\")\" without \"(\"");
    inferd_status s = end_sequence(w, &w->frames[w->n_frames - 1]);
    uint32_t choice = w->frames[--w->n_frames].choice;
    w->frames[w->n_frames - 1].last = choice;
    return s;
}

/* Is the rule over?  Before "|" it goes on in the next line. */
static bool rule_ends(parser *w) {
    skip_space(w, w->n_frames > 1);
    size_t here = w->at;
    if (w->at < w->n && peek(w) != '\n' && peek(w) != '\r') return false;
    skip_space(w, true);
    if (w->n_frames == 1 && w->at < w->n && peek(w) == '|') return false;
    w->at = here;
    return true;
}

static inferd_status read_step(parser *w) {
    size_t begin = w->at;
    char c = peek(w);
    frame *top = &w->frames[w->n_frames - 1];
    switch (c) {
    case '|': {
        w->at++;
        inferd_status s = end_sequence(w, top);
        skip_space(w, true);
        return s;
    }
    case ')':
        w->at++;
        return close_parenthesis(w, begin);
    case '*':
    case '+':
    case '?':
    case '{':
        w->at++;
        return repeat(w, top, begin, c);
    default:
        break;
    }
    inferd_status s = read_item(w, top);
    if (s == INFERD_OK && c == '(') skip_space(w, true);
    return s;
}

static inferd_status read_rule(parser *w) {
    size_t begin = w->at;
    bytes name = read_name(w);
    if (name.n == 0) return refuse(w, begin, "the name of a rule is expected");
    skip_space(w, false);
    if (w->n - w->at < 3 || memcmp(w->p + w->at, "::=", 3) != 0)
        return refuse(w, w->at, "\"::=\" is expected");
    w->at += 3;
    skip_space(w, true);
    inferd_status s = put_rule(w, name, begin, &w->rule);
    if (s == INFERD_OK && w->out->rules[w->rule].defined)
        s = gbnf_refuse(w->out->source, INFERD_EINVAL, begin, "another definition of", name,
                        w->err);
    w->n_frames = 0;
    if (s == INFERD_OK) s = open_frame(w, begin);
    while (s == INFERD_OK && !rule_ends(w)) s = read_step(w);
    if (s == INFERD_OK && w->n_frames > 1)
        s = refuse(w, w->frames[w->n_frames - 1].at, "a parenthesis that does not end");
    if (s == INFERD_OK) s = end_sequence(w, &w->frames[0]);
    if (s != INFERD_OK) return s;
    w->out->rules[w->rule].body = w->frames[0].choice;
    w->out->rules[w->rule].defined = true;
    w->out->rules[w->rule].defined_at = begin;
    return INFERD_OK;
}

static inferd_status check_defined(parser *w) {
    const gbnf *g = w->out;
    if (!g->rules[0].defined)
        return inferd_fail(w->err, INFERD_EINVAL, "grammar: the rule \"root\" is missing");
    for (uint32_t i = 1; i < g->n_rules; i++)
        if (!g->rules[i].defined)
            return gbnf_refuse(g->source, INFERD_EINVAL, g->rules[i].at, "no definition of",
                               g->rules[i].name, w->err);
    return INFERD_OK;
}

void gbnf_deinit(gbnf *g) {
    regex_tree_deinit(&g->tree);
    free(g->rules);
    *g = (gbnf){0};
}

inferd_status gbnf_parse(bytes source, const grammar_limits *limits, gbnf *out, inferd_err *err) {
    *out = (gbnf){.source = source};
    parser w = {.p = source.p, .n = source.n, .limits = limits, .out = out, .err = err};
    if (source.n > limits->source_bytes_max)
        return inferd_fail(err, INFERD_ETOOLONG, "grammar: %zu bytes; the limit is %zu", source.n,
                           limits->source_bytes_max);
    size_t n_valid = utf8_valid_bytes((const unsigned char *)source.p, source.n);
    if (n_valid < source.n) return refuse(&w, n_valid, "no UTF-8");
    uint32_t empty, root;
    inferd_status s = add_node(&w, (regex_node){.kind = REGEX_EMPTY}, &empty);
    if (s == INFERD_OK) s = put_rule(&w, (bytes){"root", 4}, 0, &root);
    skip_space(&w, true);
    while (s == INFERD_OK && w.at < w.n) {
        s = read_rule(&w);
        skip_space(&w, true);
    }
    if (s == INFERD_OK) s = check_defined(&w);
    free(w.frames);
    free(w.slots);
    free(w.set_nodes);
    if (s != INFERD_OK) gbnf_deinit(out);
    return s;
}
