#include "chat/parse.h"

#include "chat/letters.h"

void jparse_step(jparser *p) {
    p->now = p->next;
    p->next = jlex_next(&p->lex);
    p->c->line = p->now.line;
}

static bool is_name(const jtok *t, const char *name) {
    return t->kind == JT_NAME && t->n == strlen(name) && memcmp(t->p, name, t->n) == 0;
}

bool jparse_at_name(const jparser *p, const char *name) {
    return is_name(&p->now, name);
}

bool jparse_skip(jparser *p, jtok_kind kind) {
    if (p->now.kind != kind) return false;
    jparse_step(p);
    return true;
}

bool jparse_skip_name(jparser *p, const char *name) {
    if (!jparse_at_name(p, name)) return false;
    jparse_step(p);
    return true;
}

void jparse_unexpected(jparser *p) {
    if (p->now.kind == JT_EOF) j_syntax(p->c, "unexpected end of template");
    j_syntax(p->c, "unexpected '%.*s'", (int)size_min(p->now.n, 40), p->now.p);
}

void jparse_expect(jparser *p, jtok_kind kind, const char *what) {
    if (p->now.kind == JT_EOF) j_syntax(p->c, "expected %s, got end of template", what);
    if (p->now.kind != kind)
        j_syntax(p->c, "expected %s, got '%.*s'", what, (int)size_min(p->now.n, 40), p->now.p);
    jparse_step(p);
}

void jparse_enter(jparser *p) {
    if (++p->depth > JAST_DEPTH_MAX)
        j_limit(p->c, "a template nested deeper than %d", JAST_DEPTH_MAX);
}

void jparse_leave(jparser *p) {
    p->depth--;
}

uint32_t jparse_symbol(jparser *p, bytes name) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < name.n; i++) hash = (hash ^ (unsigned char)name.p[i]) * 16777619u;
    jsymbol **bucket = &p->buckets[hash % JSYM_BUCKETS];
    for (jsymbol *s = *bucket; s != NULL; s = s->next)
        if (s->name->n == name.n && memcmp(s->name->p, name.p, name.n) == 0) return s->id;
    jsymbol *s = j_take(p->c, sizeof *s);
    *s = (jsymbol){.next = *bucket,
                   .name = jstr_copy(p->c, name.p, name.n, JMARK_TEMPLATE),
                   .id = (uint32_t)p->n_symbols};
    *bucket = s;
    p->symbols =
        j_grow_array(p->c, p->symbols, p->n_symbols, &p->symbols_capacity, sizeof *p->symbols);
    p->symbols[p->n_symbols++] = s->name;
    return s->id;
}

jnode *jparse_node(jparser *p, jnode_kind kind, uint32_t line) {
    jnode *node = j_take(p->c, sizeof *node);
    *node = (jnode){.kind = (uint8_t)kind, .depth = 1, .line = line};
    return node;
}

void jparse_push(jparser *p, jnode_list *list, jnode *node) {
    list->v = j_grow_array(p->c, list->v, list->n, &list->capacity, sizeof *list->v);
    list->v[list->n++] = node;
}

jnode *jparse_finish(jparser *p, jnode *node, const jnode_list *kids) {
    node->kids = kids->v;
    node->n_kids = (uint32_t)kids->n;
    for (size_t i = 0; i < kids->n; i++)
        if (kids->v[i] != NULL && kids->v[i]->depth >= node->depth)
            node->depth = (uint16_t)(kids->v[i]->depth + 1);
    // Postfix chains (a.b.c|d|e) are deep without recursion in the parser.
    if (node->depth > JAST_DEPTH_MAX)
        j_limit(p->c, "a template nested deeper than %d", JAST_DEPTH_MAX);
    return node;
}

static jnode *parse_body(jparser *p, const char *const *ends, const char *opened);

/* The end of the tag, the body, and the name of the tag that ended it. */
static jnode *parse_block(jparser *p, const char *const *ends, const char *opened) {
    jparse_skip(p, JT_COLON);
    jparse_expect(p, JT_BLOCK_END, "end of tag");
    return parse_body(p, ends, opened);
}

static jnode *parse_if(jparser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    jnode *node = jparse_node(p, JN_IF, p->now.line);
    jnode_list kids = {0};
    do {
        jparse_step(p);
        jparse_push(p, &kids, jparse_tuple(p, JTUPLE_NO_IF, NULL));
        jparse_push(p, &kids, parse_block(p, ends, "if"));
    } while (jparse_at_name(p, "elif"));
    if (jparse_skip_name(p, "else")) jparse_push(p, &kids, parse_block(p, last, "if"));
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_for(jparser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    jnode *node = jparse_node(p, JN_FOR, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    for (int i = 0; i < JFOR_N_KIDS; i++) jparse_push(p, &kids, NULL);
    kids.v[JFOR_TARGET] = jparse_target(p, 0, "in");
    if (!jparse_skip_name(p, "in")) jparse_unexpected(p);
    kids.v[JFOR_OVER] = jparse_tuple(p, JTUPLE_NO_IF, "recursive");
    if (jparse_skip_name(p, "if")) kids.v[JFOR_TEST] = jparse_expression(p);
    node->flag = jparse_skip_name(p, "recursive");
    p->loops++;
    kids.v[JFOR_BODY] = parse_block(p, ends, "for");
    p->loops--;
    if (jparse_skip_name(p, "else")) kids.v[JFOR_ELSE] = parse_block(p, ends, "for");
    if (!jparse_skip_name(p, "endfor")) jparse_unexpected(p);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_set(jparser *p) {
    static const char *const ends[] = {"endset", NULL};
    jnode *node = jparse_node(p, JN_SET, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    jparse_push(p, &kids, jparse_target(p, JTUPLE_NAMESPACE, NULL));
    if (jparse_skip(p, JT_ASSIGN)) {
        jparse_push(p, &kids, jparse_tuple(p, 0, NULL));
        return jparse_finish(p, node, &kids);
    }
    node->kind = JN_SET_BLOCK;
    jnode *filter = jparse_filters(p, NULL, false);
    jparse_push(p, &kids, parse_block(p, ends, "set"));
    jparse_push(p, &kids, filter);
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

static void parse_signature(jparser *p, jmacro_def *def, uint16_t *depth) {
    jnode_list defaults = {0};
    size_t capacity = 0;
    jparse_expect(p, JT_LPAREN, "'('");
    while (p->now.kind != JT_RPAREN) {
        if (def->n_params > 0) jparse_expect(p, JT_COMMA, "','");
        if (p->now.kind != JT_NAME) jparse_unexpected(p);
        uint32_t id = jparse_symbol(p, (bytes){p->now.p, p->now.n});
        jparse_step(p);
        if (jparse_skip(p, JT_ASSIGN)) {
            jnode *value = jparse_expression(p);
            if (value->depth >= *depth) *depth = (uint16_t)(value->depth + 1);
            jparse_push(p, &defaults, value);
        } else if (defaults.n > 0)
            j_syntax(p->c, "non-default argument follows default argument");
        def->params =
            j_grow_array(p->c, def->params, def->n_params, &capacity, sizeof *def->params);
        def->params[def->n_params++] = id;
    }
    jparse_step(p);
    def->defaults = defaults.v;
    def->n_defaults = defaults.n;
}

/* The body of a macro or of a caller: its own names, no loop around it. */
static void parse_macro_body(jparser *p, jmacro_def *def, const char *const *ends,
                             const char *opened, jnode *node) {
    jmacro_scope scope = {.outer = p->macros, .def = def};
    int loops = p->loops;
    p->macros = &scope;
    p->loops = 0;
    def->body = parse_block(p, ends, opened);
    p->loops = loops;
    p->macros = scope.outer;
    jparse_step(p);
    node->macro = def;
    if (def->body->depth >= node->depth) node->depth = (uint16_t)(def->body->depth + 1);
}

static jmacro_def *new_macro(jparser *p, const jstr *name) {
    jmacro_def *def = j_take(p->c, sizeof *def);
    *def = (jmacro_def){.name = name};
    return def;
}

static jnode *parse_macro(jparser *p) {
    static const char *const ends[] = {"endmacro", NULL};
    jnode *node = jparse_node(p, JN_MACRO, p->now.line);
    jnode_list none = {0};
    jparse_step(p);
    node->id = jparse_symbol(p, (bytes){p->now.p, p->now.n});
    jmacro_def *def = new_macro(p, jparse_name(p));
    parse_signature(p, def, &node->depth);
    parse_macro_body(p, def, ends, "macro", node);
    return jparse_finish(p, node, &none);
}

static jnode *parse_call(jparser *p) {
    static const char *const ends[] = {"endcall", NULL};
    jnode *node = jparse_node(p, JN_CALL_BLOCK, p->now.line);
    jnode_list kids = {0};
    jmacro_def *def = new_macro(p, jstr_lit(p->c, "caller"));
    jparse_step(p);
    if (p->now.kind == JT_LPAREN) parse_signature(p, def, &node->depth);
    jnode *call = jparse_expression(p);
    if (call->kind != JN_CALL) j_syntax(p->c, "expected a call");
    jparse_push(p, &kids, call);
    parse_macro_body(p, def, ends, "call", node);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_filter_block(jparser *p) {
    static const char *const ends[] = {"endfilter", NULL};
    jnode *node = jparse_node(p, JN_FILTER_BLOCK, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    jparse_push(p, &kids, jparse_filters(p, NULL, true));
    jparse_push(p, &kids, parse_block(p, ends, "filter"));
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_with(jparser *p) {
    static const char *const ends[] = {"endwith", NULL};
    jnode *node = jparse_node(p, JN_WITH, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    jparse_push(p, &kids, NULL);
    while (p->now.kind != JT_BLOCK_END && p->now.kind != JT_EOF) {
        if (kids.n > 1) jparse_expect(p, JT_COMMA, "','");
        // one name or a tuple in brackets: a comma begins the next assignment
        jnode *target = jparse_target(p, JTUPLE_SIMPLE, NULL);
        jparse_expect(p, JT_ASSIGN, "'='");
        jparse_push(p, &kids, target);
        jparse_push(p, &kids, jparse_expression(p));
    }
    jnode *body = parse_block(p, ends, "with");
    kids.v[0] = body;
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

/* Marks the assistant's output, for training; here it is only a scope. */
static jnode *parse_generation(jparser *p) {
    static const char *const ends[] = {"endgeneration", NULL};
    jnode *node = jparse_node(p, JN_GENERATION, p->now.line);
    jnode_list kids = {0};
    int loops = p->loops;
    jparse_step(p);
    p->loops = 0; // it is a function in Jinja, so break does not leave it
    jparse_push(p, &kids, parse_block(p, ends, "generation"));
    p->loops = loops;
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_print(jparser *p) {
    jnode *node = jparse_node(p, JN_PRINT, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    while (p->now.kind != JT_BLOCK_END && p->now.kind != JT_EOF) {
        if (kids.n > 0) jparse_expect(p, JT_COMMA, "','");
        jparse_push(p, &kids, jparse_expression(p));
    }
    return jparse_finish(p, node, &kids);
}

static jnode *parse_jump(jparser *p) {
    bool is_break = jparse_at_name(p, "break");
    jnode *node = jparse_node(p, is_break ? JN_BREAK : JN_CONTINUE, p->now.line);
    if (p->loops == 0) j_syntax(p->c, "'%s' outside of a loop", is_break ? "break" : "continue");
    jparse_step(p);
    return node;
}

static jnode *parse_statement(jparser *p, const char *opened) {
    static const struct {
        const char *name;
        jnode *(*parse)(jparser *p);
    } statements[] = {
        {"if", parse_if},         {"for", parse_for},
        {"set", parse_set},       {"macro", parse_macro},
        {"call", parse_call},     {"filter", parse_filter_block},
        {"with", parse_with},     {"generation", parse_generation},
        {"print", parse_print},   {"break", parse_jump},
        {"continue", parse_jump},
    };
    static const char *const refused[] = {"include", "import",     "from", "extends",
                                          "block",   "autoescape", "do",   "trans"};
    if (p->now.kind != JT_NAME) jparse_unexpected(p);
    for (size_t i = 0; i < INFERD_COUNT(statements); i++)
        if (jparse_at_name(p, statements[i].name)) return statements[i].parse(p);
    for (size_t i = 0; i < INFERD_COUNT(refused); i++)
        if (jparse_at_name(p, refused[i]))
            j_syntax(p->c, "the tag '%s' is not available in chat templates", refused[i]);
    j_syntax(p->c, "unknown tag '%.*s'%s%s%s", (int)size_min(p->now.n, 40), p->now.p,
             opened == NULL ? "" : " inside of '", opened == NULL ? "" : opened,
             opened == NULL ? "" : "'");
}

static bool at_end(const jparser *p, const char *const *ends) {
    for (; ends != NULL && *ends != NULL; ends++)
        if (jparse_at_name(p, *ends)) return true;
    return false;
}

/* Statements until one of the tags `ends`, which becomes the current token; the whole template when
 * there are none. */
static jnode *parse_body(jparser *p, const char *const *ends, const char *opened) {
    jnode *body = jparse_node(p, JN_BODY, p->now.line);
    jnode_list kids = {0};
    jparse_enter(p);
    while (p->now.kind != JT_EOF) {
        jnode *node;
        uint32_t line = p->now.line;
        if (p->now.kind == JT_TEXT) {
            node = jparse_node(p, JN_TEXT, line);
            node->value = jv_str(jstr_new(p->c, p->now.p, p->now.n, JMARK_TEMPLATE));
            jparse_step(p);
        } else if (jparse_skip(p, JT_VARIABLE_BEGIN)) {
            jnode_list one = {0};
            jparse_push(p, &one, jparse_tuple(p, 0, NULL));
            node = jparse_finish(p, jparse_node(p, JN_PRINT, line), &one);
            jparse_expect(p, JT_VARIABLE_END, "'}}'");
        } else {
            jparse_expect(p, JT_BLOCK_BEGIN, "a tag");
            if (at_end(p, ends)) {
                jparse_leave(p);
                return jparse_finish(p, body, &kids);
            }
            node = parse_statement(p, opened);
            jparse_expect(p, JT_BLOCK_END, "'%}'");
        }
        jparse_push(p, &kids, node);
    }
    if (ends != NULL)
        j_syntax(p->c, "the template ends inside of '%s', which began in line %u", opened,
                 body->line);
    jparse_leave(p);
    return jparse_finish(p, body, &kids);
}

void jast_parse(jctx *c, bytes source, jast *out) {
    static const char *const fixed[] = {[JSYM_LOOP] = "loop",
                                        [JSYM_CALLER] = "caller",
                                        [JSYM_KWARGS] = "kwargs",
                                        [JSYM_VARARGS] = "varargs"};
    jparser *p = j_take(c, sizeof *p);
    memset(p, 0, sizeof *p);
    p->c = c;
    c->line = 1;
    size_t bad = letters_invalid_at(source.p, source.n);
    if (bad < source.n) j_syntax(c, "the template is not UTF-8 at byte %zu", bad);
    for (size_t i = 0; i < INFERD_COUNT(fixed); i++)
        jparse_symbol(p, (bytes){fixed[i], strlen(fixed[i])});
    jlex_init(&p->lex, c, source);
    p->now = jlex_next(&p->lex);
    p->next = jlex_next(&p->lex);
    out->root = parse_body(p, NULL, NULL);
    out->symbols = p->symbols;
    out->n_symbols = (uint32_t)p->n_symbols;
    jast_find_hidden(c, out);
}
