/* tiny_tok.h - the vocabulary of tiny_gguf.h as an open tokenizer, for tests of what is built on
 * one: token TINY_BYTE_0 + b is the byte b, so any text can be fed in any pieces. */
#ifndef INFERD_TINY_TOK_H
#define INFERD_TINY_TOK_H

#include <unistd.h>

#include "models/tokenizer.h"
#include "tiny_gguf.h"

static inline tokenizer *tiny_tok_open(void) {
    char path[] = P_tmpdir "/inferd-tok-XXXXXX";
    int fd = mkstemp(path);
    INFERD_CHECK(fd >= 0);
    close(fd);
    tiny_gguf g;
    tiny_gguf_init(&g);
    tiny_kv_str(&g, "general.architecture", "llama");
    tiny_tokenizer_add(&g);
    tiny_gguf_write(&g, path);
    tiny_gguf_deinit(&g);
    gguf *file = NULL;
    tokenizer *tok = NULL;
    inferd_err err = {0};
    if (gguf_open(path, &file, &err) != INFERD_OK || tok_open(file, &tok, &err) != INFERD_OK) {
        fprintf(stderr, "tiny tokenizer: %s\n", err.text);
        exit(1);
    }
    gguf_close(file);
    unlink(path);
    return tok;
}

static inline tok_id tiny_tok_byte(unsigned char byte) {
    return TINY_BYTE_0 + byte;
}

#endif
