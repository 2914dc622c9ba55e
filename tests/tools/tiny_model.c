/* tiny_model.c - writes the small random model of tiny_gguf.h, for end-to-end runs.
 *
 *     tiny_model PATH SEED [--type f32|f16|bf16|q8_0|q4_0|q4_1] [--tied] [--name NAME]
 *                          [--layers N] [--ctx N] [--ffn N] */
#include "tiny_gguf.h"

#include <strings.h>

static void usage(void) {
    fprintf(stderr, "usage: tiny_model PATH SEED [--type f32|f16|bf16|q8_0|q4_0|q4_1] [--tied]\n"
                    "                  [--name NAME] [--layers 1..6] [--ctx N] [--ffn N]\n");
    exit(2);
}

static uint64_t number(const char *text, uint64_t max) {
    char *end;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || v > max) usage();
    return v;
}

static uint32_t type_named(const char *name) {
    static const dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                  DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
    for (size_t i = 0; i < INFERD_COUNT(types); i++)
        if (strcasecmp(name, dtype_about(types[i]).name) == 0) return types[i];
    usage();
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) usage();
    tiny_model_options o = {0};
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--tied") == 0) {
            o.tied = true;
            continue;
        }
        if (i + 1 == argc) usage();
        const char *option = argv[i++], *value = argv[i];
        if (strcmp(option, "--type") == 0)
            o.type = type_named(value);
        else if (strcmp(option, "--name") == 0)
            o.name = value;
        else if (strcmp(option, "--layers") == 0)
            o.n_layers = (uint32_t)number(value, 6);
        else if (strcmp(option, "--ctx") == 0)
            o.n_ctx = (uint32_t)number(value, 1 << 24);
        else if (strcmp(option, "--ffn") == 0) // the size of the file
            o.ffn_dim = (uint32_t)number(value, 1 << 16);
        else
            usage();
    }
    tiny_model_write(argv[1], number(argv[2], UINT64_MAX), &o);
    return 0;
}
