/* fuzz_bench.c - any bytes as a file of inferd-bench; the first byte chooses what they are: a
 * result for `compare`, ShareGPT JSON, or lines.  What is refused has a sentence, and what is read
 * can be used. */
#include "compare.h"
#include "dataset.h"
#include "trail.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void as_result(const char *text, size_t n) {
    static double out[TRAIL_MAX];
    json_t *root = NULL;
    inferd_err err = {0};
    if (result_parse(&root, text, n, &err) != INFERD_OK) {
        INFERD_CHECK(err.text[0] != 0);
        return;
    }
    for (int c = 0; c < COMPARE_COLUMNS; c++)
        INFERD_CHECK(result_values(root, (compare_column)c, -1, out) <= TRAIL_MAX);
    INFERD_CHECK(result_rates(root, "all", out) <= SLICES_MAX);
    INFERD_CHECK(result_same_load(root, root, &err) == INFERD_OK);
    json_decref(root);
}

static void as_dataset(const char *text, size_t n, bool is_sharegpt) {
    dataset d;
    inferd_err err = {0};
    FILE *file = fmemopen((void *)(uintptr_t)text, n, "r");
    if (file == NULL) return;
    if (dataset_read_file(&d, file, is_sharegpt, &err) == INFERD_OK) {
        INFERD_CHECK(d.n > 0 && d.n_turns >= d.n && d.text.n <= 3 * n + 1);
        for (size_t i = 0; i < d.n; i++) {
            const dataset_entry *e = &d.entries[dataset_draw(&d, 1, i)];
            INFERD_CHECK(e->n_turns > 0 && e->first_turn + e->n_turns <= d.n_turns);
            INFERD_CHECK(dataset_text(&d, d.turns[e->first_turn].user)[0] != 0);
        }
        dataset_deinit(&d);
    } else {
        INFERD_CHECK(err.text[0] != 0);
    }
    fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2 || n > 1 << 16) return 0;
    const char *text = (const char *)data + 1;
    if (data[0] == 'r')
        as_result(text, n - 1);
    else
        as_dataset(text, n - 1, data[0] == 's');
    return 0;
}
