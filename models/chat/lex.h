/* lex.h - template source to tokens, one at a time.
 *
 * Outside of tags everything is text, trimmed here as Jinja does with trim_blocks and
 * lstrip_blocks: `{%-` removes the white space before a tag and `-%}` behind it; a block tag or
 * comment alone at the start of its line loses its indentation unless it begins with `{%+`, and one
 * newline behind it unless it ends with `+%}`.  Comments and raw blocks never reach the parser.
 *
 *     text ... {% token token ... %} text ... {{ token ... }} text
 *     TEXT    BLOCK_BEGIN ...  BLOCK_END      VARIABLE_BEGIN ... VARIABLE_END ...  EOF
 *
 * Thread: that of the compile. */
#ifndef INFERD_CHAT_LEX_H
#define INFERD_CHAT_LEX_H

#include "chat/memory.h"

typedef enum jtok_kind {
    JT_EOF,
    JT_TEXT,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_VARIABLE_BEGIN,
    JT_VARIABLE_END,
    JT_NAME,
    JT_STRING, // p[n] without its quotes, escapes as written
    JT_INTEGER,
    JT_FLOAT,
    // operators
    JT_ADD,
    JT_SUB,
    JT_MUL,
    JT_DIV,
    JT_FLOORDIV,
    JT_MOD,
    JT_POW,
    JT_TILDE,
    JT_EQ,
    JT_NE,
    JT_LT,
    JT_LE,
    JT_GT,
    JT_GE,
    JT_ASSIGN,
    JT_DOT,
    JT_COMMA,
    JT_COLON,
    JT_PIPE,
    JT_SEMICOLON,
    JT_LPAREN,
    JT_RPAREN,
    JT_LBRACKET,
    JT_RBRACKET,
    JT_LBRACE,
    JT_RBRACE
} jtok_kind;

typedef struct jtok {
    jtok_kind kind;
    uint32_t line;
    const char *p; // in the source
    size_t n;
} jtok;

enum { JLEX_OPEN_MAX = 200, JLEX_TOKENS_MAX = 200000 };

typedef struct jlex {
    jctx *c;
    const char *p; // [n] the source, newlines made '\n', the last one dropped
    size_t n, at;
    uint32_t line;
    enum { JLEX_TEXT, JLEX_BLOCK, JLEX_VARIABLE } state;
    jtok_kind begin;          // of the tag after the text just returned, or JT_EOF
    char open[JLEX_OPEN_MAX]; // expected closing brackets, innermost last
    int n_open;
    size_t n_tokens;
} jlex;

void jlex_init(jlex *l, jctx *c, bytes source);
jtok jlex_next(jlex *l);

#endif
