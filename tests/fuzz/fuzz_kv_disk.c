/* fuzz_kv_disk.c - any bytes as a file of keys and values: taken only when they are those of the
 * block; and a whole file that is changed at any place, or cut, is not taken.
 *
 *     input   any byte | bytes of a file ...        5 bytes also: place (4 bytes) | change */
#include <stdlib.h>
#include <string.h>

#include "kv_disk_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const kv_layout layout = {.type = KV_F16,
                                 .n_layers = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .block_tokens = 4,
                                 .group_layers = 1,
                                 .n_groups = 2,
                                 .slots_per_page = 6,
                                 .layer_bytes = 64,
                                 .slot_bytes = 64};
static const uint64_t key[2] = {7, 8};

/* The same block, by the bytes that are not slots. */
static bool same_words(const unsigned char *a, const unsigned char *b) {
    enum { SUM_BYTES = 16 }; // at the end of the header
    size_t slots = kv_disk_file_bytes(&layout) - layout.n_groups * layout.slot_bytes;
    return memcmp(a, b, KV_DISK_HEADER_BYTES - SUM_BYTES) == 0 &&
           memcmp(a + KV_DISK_HEADER_BYTES, b + KV_DISK_HEADER_BYTES,
                  layout.block_tokens * sizeof(tok_id)) == 0 &&
           slots > KV_DISK_HEADER_BYTES;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const tok_id tokens[4] = {1, 2, 3, 4};
    kv_disk_block b = {
        .name = {1, 2}, .model = {3, 4}, .scope = {5, 6}, .depth = 7, .tokens = tokens};
    size_t n_file = kv_disk_file_bytes(&layout);
    b.layout = &layout;
    unsigned char *right = calloc(1, n_file), *any = malloc(n > 0 ? n : 1);
    INFERD_CHECK(right != NULL && any != NULL);
    kv_disk_fill(&b, right);
    kv_disk_put_sum(key, right, kv_disk_file_bytes(b.layout));
    INFERD_CHECK(kv_disk_is_whole(key, &b, right, n_file));
    if (n > 0) {
        memcpy(any, data + 1, n - 1);
        bool taken = kv_disk_is_whole(key, &b, any, n - 1);
        INFERD_CHECK(!taken || (n - 1 == n_file && same_words(any, right)));
    }
    if (n == 5 && data[4] != 0) {
        uint32_t at;
        memcpy(&at, data, sizeof at);
        right[at % n_file] ^= data[4];
        INFERD_CHECK(!kv_disk_is_whole(key, &b, right, n_file));
        INFERD_CHECK(!kv_disk_is_whole(key, &b, right, at % n_file));
    }
    free(right);
    free(any);
    return 0;
}
