/* bench_tokenizer.c - the speed of a model's tokenizer on a text: one thread, best of several runs.
 *
 *     bench_tokenizer MODEL.gguf TEXT
 */
#include <stdio.h>
#include <stdlib.h>

#include "gguf/gguf.h"
#include "inferd/clock.h"
#include "models/tokenizer.h"

enum { RUNS = 7 };

static bool read_file(const char *path, char **p, size_t *n) {
    FILE *f = fopen(path, "rb");
    long size = -1;
    if (f == NULL) return false;
    if (fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    *p = size > 0 ? malloc((size_t)size) : NULL;
    *n = size > 0 ? (size_t)size : 0;
    bool ok = *p != NULL && fseek(f, 0, SEEK_SET) == 0 && fread(*p, 1, *n, f) == *n;
    fclose(f);
    if (!ok) free(*p);
    return ok;
}

/* Best time of RUNS encodes; 0: failed. */
static uint64_t encode_us(const tokenizer *t, bytes text, size_t *n_ids, inferd_err *err) {
    uint64_t best_us = UINT64_MAX;
    for (int run = 0; run < RUNS; run++) {
        tok_ids ids = {0};
        uint64_t start_us = clock_now_us();
        inferd_status s = tok_encode(t, text, NULL, 0, NULL, &ids, err);
        uint64_t us = clock_now_us() - start_us;
        *n_ids = ids.n;
        tok_ids_deinit(&ids);
        if (s != INFERD_OK) return 0;
        if (us < best_us) best_us = us;
    }
    return best_us == 0 ? 1 : best_us;
}

int main(int argc, char **argv) {
    inferd_err err = {0};
    gguf *g = NULL;
    tokenizer *t = NULL;
    bytes text = {NULL, 0};
    char *p = NULL;
    size_t n_ids;
    int status = 1;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf TEXT\n", argv[0]);
        return 2;
    }
    if (!read_file(argv[2], &p, &text.n)) {
        fprintf(stderr, "%s: cannot be read, or is empty\n", argv[2]);
        return 1;
    }
    text.p = p;
    if (gguf_open(argv[1], &g, &err) != INFERD_OK) goto done;
    uint64_t start_us = clock_now_us();
    if (tok_open(g, &t, &err) != INFERD_OK) goto done;
    uint64_t open_us = clock_now_us() - start_us;
    uint64_t us = encode_us(t, text, &n_ids, &err);
    if (us == 0) goto done;
    printf("open_ms=%.1f bytes=%zu tokens=%zu encode_ms=%.2f MB_per_s=%.1f Mtok_per_s=%.2f\n",
           (double)open_us / 1e3, text.n, n_ids, (double)us / 1e3, (double)text.n / (double)us,
           (double)n_ids / (double)us);
    status = 0;

done:
    if (status != 0) fprintf(stderr, "%s\n", err.text);
    tok_close(t);
    gguf_close(g);
    free(p);
    return status;
}
