/* family_file.c - writes the small model of a family, as test_families does (family_file.h):
 *
 *     family_file tests/families/NAME.head SEED OUT.gguf
 *
 * and prints the hash of its bytes. */
#include "family_file.h"

#include <inttypes.h>

int main(int argc, char **argv) {
    char *end = NULL;
    size_t head_bytes;
    family_file file;
    uint64_t seed = argc == 4 ? strtoull(argv[2], &end, 10) : 0;
    if (argc != 4 || end == argv[2] || *end != 0) {
        fprintf(stderr, "usage: family_file NAME.head SEED OUT.gguf\n");
        return 2;
    }
    unsigned char *head = family_read(argv[1], &head_bytes);
    family_make(head, head_bytes, seed, &file);
    family_write(argv[3], file.p, file.n);
    printf("%016" PRIx64 "\n", family_hash(file.p, file.n));
    family_file_deinit(&file);
    free(head);
    return 0;
}
