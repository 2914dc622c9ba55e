/* Variables of the request that a template hides by its own assignments.
 *
 * Jinja decides at compile time whether a name of the template's outermost level belongs to the
 * template: it does if the first use of the name at that level is to set it (and not inside of an
 * if).  Then a loop or macro that reads the name too early finds it undefined, even when the
 * request has a variable of that name:
 *
 *     {% for m in messages %}{{ x }}{% endfor %}{% set x = 1 %}      x of the request is hidden
 *     {% if not x %}{% set x = 1 %}{% endif %}                       read first: not hidden
 *
 * The bodies of loops, macros and blocks are levels of their own and are not searched. */
#include "chat/ast.h"

typedef struct finder {
    bool *seen, *hidden; // [n_symbols]
} finder;

static void visit_args(finder *f, const jargs *args);

/* Every name an expression reads. */
static void visit_expression(finder *f, const jnode *node) {
    if (node == NULL) return;
    if (node->kind == JN_NAME || node->kind == JN_NS_ATTR) f->seen[node->id] = true;
    for (size_t i = 0; i < node->n_kids; i++) visit_expression(f, node->kids[i]);
    if (node->kind == JN_CALL || node->kind == JN_FILTER || node->kind == JN_TEST)
        visit_args(f, node->args);
}

static void visit_args(finder *f, const jargs *args) {
    for (size_t i = 0; i < args->n_pos; i++) visit_expression(f, args->pos[i]);
    for (size_t i = 0; i < args->n_kw; i++) visit_expression(f, args->kw[i]);
    visit_expression(f, args->star);
    visit_expression(f, args->star_star);
}

static void note_set(finder *f, uint32_t id, bool in_branch) {
    if (!f->seen[id] && !in_branch) f->hidden[id] = true;
    f->seen[id] = true;
}

static void visit_target(finder *f, const jnode *target, bool in_branch) {
    if (target->kind == JN_NAME)
        note_set(f, target->id, in_branch);
    else if (target->kind == JN_NS_ATTR)
        f->seen[target->id] = true;
    else
        for (size_t i = 0; i < target->n_kids; i++) visit_target(f, target->kids[i], in_branch);
}

static void visit_statement(finder *f, const jnode *node, bool in_branch) {
    switch ((jnode_kind)node->kind) {
    case JN_BODY:
        for (size_t i = 0; i < node->n_kids; i++) visit_statement(f, node->kids[i], in_branch);
        break;
    case JN_IF:
        for (size_t i = 0; i < node->n_kids; i++) {
            if (node->kids[i]->kind == JN_BODY)
                visit_statement(f, node->kids[i], true);
            else
                visit_expression(f, node->kids[i]);
        }
        break;
    case JN_FOR:
        visit_expression(f, node->kids[JFOR_OVER]);
        break;
    case JN_SET:
        visit_expression(f, node->kids[1]);
        visit_target(f, node->kids[0], in_branch);
        break;
    case JN_SET_BLOCK:
        visit_target(f, node->kids[0], in_branch);
        break;
    case JN_MACRO:
        note_set(f, node->id, in_branch);
        break;
    case JN_PRINT:
        for (size_t i = 0; i < node->n_kids; i++) visit_expression(f, node->kids[i]);
        break;
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
        visit_expression(f, node->kids[0]);
        break;
    case JN_WITH:
        for (size_t i = 2; i < node->n_kids; i += 2) visit_expression(f, node->kids[i]);
        break;
    default:
        break;
    }
}

void jast_find_hidden(jctx *c, jast *ast) {
    finder f = {.seen = j_take(c, ast->n_symbols), .hidden = j_take(c, ast->n_symbols)};
    memset(f.seen, 0, ast->n_symbols);
    memset(f.hidden, 0, ast->n_symbols);
    visit_statement(&f, ast->root, false);
    ast->hidden = f.hidden;
}
