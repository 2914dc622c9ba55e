/* dummy_file.c - writes a made-up model (models/dummy_model.h) as a GGUF file with the same
 * weights, for programs that read only files.
 *
 *     dummy_file dummy:qwen3-30b-a3b?layers=3&vocab=1000&dtype=q4_k PATH */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dummy.h"
#include "dummy_model.h"
#include "model_private.h"
#include "weights.h"

enum { ROWS_AT_ONCE = 256 };

static void need(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "dummy_file: %s\n", what);
    exit(1);
}

/* Vectors are ones, as weights_make_up makes them. */
static void write_vector(FILE *to, const weight_entry *e) {
    for (uint32_t i = 0; i < e->cols; i++) need(fwrite(&(float){1.0f}, 4, 1, to) == 1, "writing");
}

static void write_matrix(FILE *to, const weight_entry *e, uint64_t seed, float scale) {
    size_t row = weight_entry_row_bytes(e);
    unsigned char *rows = malloc(row * ROWS_AT_ONCE);
    need(rows != NULL, "no memory");
    for (uint32_t begin = 0; begin < e->rows; begin += ROWS_AT_ONCE) {
        uint32_t n = u32_min(ROWS_AT_ONCE, e->rows - begin);
        dummy_file_rows(e->tensor->type, e->cols, seed, scale, begin, n, rows);
        need(fwrite(rows, row, n, to) == n, "writing");
    }
    free(rows);
}

int main(int argc, char **argv) {
    model *m;
    decoder_weights w;
    weight_plan plan;
    inferd_err err = {0};
    need(argc == 3, "usage: dummy_file dummy:SHAPE PATH");
    model_options options = {.path = argv[1], .allow_dummy = true};
    need(model_open(&options, &m, &err) == INFERD_OK &&
             weights_plan(m->file, NULL, &m->spec, &w, &plan, &err) == INFERD_OK,
         err.text);
    FILE *to = fopen(argv[2], "wb");
    need(to != NULL, "cannot create the file");
    gguf_identity id = gguf_identify(m->file);
    need(fwrite(id.header.p, 1, id.header.n, to) == id.header.n, "writing");
    for (size_t i = 0; i < plan.n; i++) {
        const weight_entry *e = &plan.entries[i];
        need(fseeko(to, (off_t)weight_entry_file_offset(e), SEEK_SET) == 0, "seeking");
        if (e->matrix == NULL)
            write_vector(to, e);
        else
            write_matrix(to, e, weight_entry_seed(e, m->dummy_seed),
                         dummy_scale(e->tensor->name, m->spec.n_layers));
    }
    need(fclose(to) == 0, "closing the file");
    weights_deinit(&w, &plan);
    model_close(m);
    return 0;
}
