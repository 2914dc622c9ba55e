/* test_panel.c - weights in panels: at every level this machine has the same bytes as the plain
 * loops, whatever bits the file has, and back again the values of the file. */
#include <math.h>

#include "cpu/level.h"
#include "cpu/panel.h"
#include "test.h"

static const dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q4_0,
                              DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
                              DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,   DTYPE_Q2_K,
                              DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
static const char *const levels[] = {"define", "base",       "avx2",       "avxvnni",
                                     "avx512", "avx512vnni", "avx512bf16", "avx512amx"};
enum { FIRST_WITH_VECTORS = 2 }; // of the levels
enum { SEED = 20, GUARD = 0x5a, GUARD_BYTES = 256 };

static uint64_t random_state;
static unsigned char random_byte(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned char)(random_state >> 56);
}

static size_t row_bytes_of(dtype type, uint32_t cols) {
    dtype_info info = dtype_about(type);
    return (size_t)cols / info.block_elems * info.block_bytes;
}

/* Exactly so many bytes: a sanitizer sees what is read behind them. */
static unsigned char *random_bytes(size_t n) {
    unsigned char *p = malloc(n);
    INFERD_CHECK(p != NULL);
    for (size_t i = 0; i < n; i++) p[i] = random_byte();
    return p;
}

/* A panel in noise, `shift` bytes behind an aligned place. */
typedef struct place {
    unsigned char *memory, *panel;
    size_t n_bytes, n_memory;
} place;

static place place_for(dtype type, uint32_t cols, size_t shift) {
    place p = {.n_bytes = panel_bytes(type, cols)};
    p.n_memory = (GUARD_BYTES + shift + p.n_bytes + GUARD_BYTES + 63) / 64 * 64;
    p.memory = aligned_alloc(64, p.n_memory);
    INFERD_CHECK(p.memory != NULL);
    memset(p.memory, GUARD, p.n_memory);
    p.panel = p.memory + GUARD_BYTES + shift;
    return p;
}

static bool guards_are_whole(const place *p) {
    bool whole = true;
    for (unsigned char *at = p->memory; at < p->panel; at++) whole &= *at == GUARD;
    for (unsigned char *at = p->panel + p->n_bytes; at < p->memory + p->n_memory; at++)
        whole &= *at == GUARD;
    return whole;
}

static void compare(const cpu_level *level, dtype type, uint32_t cols, uint32_t n_rows,
                    size_t shift) {
    unsigned char *rows = random_bytes(n_rows * row_bytes_of(type, cols));
    place wanted = place_for(type, cols, shift), got = place_for(type, cols, shift);
    panel_pack(type, cols, rows, n_rows, wanted.panel);
    level->pack(type, cols, rows, n_rows, got.panel);
    bool same = memcmp(wanted.panel, got.panel, wanted.n_bytes) == 0;
    if (!same)
        printf("%s: %s, %u rows of %u, shift %zu: other bytes\n", level->name,
               dtype_about(type).name, n_rows, cols, shift);
    EXPECT(same);
    EXPECT(guards_are_whole(&wanted) && guards_are_whole(&got));
    free(rows);
    free(wanted.memory);
    free(got.memory);
}

static void every_level_packs_the_same_bytes(void) {
    printf("seed %d\n", SEED);
    static const uint32_t n_rows[] = {64, 64, 1, 63};
    random_state = SEED;
    for (size_t l = 0; l < INFERD_COUNT(levels); l++) {
        inferd_err err = {0};
        const cpu_level *level = level_choose(levels[l], &err);
        if (level == NULL) continue;                                     // not on this machine
        EXPECT((l < FIRST_WITH_VECTORS) == (level->pack == panel_pack)); // sooner where it can
        for (size_t t = 0; t < INFERD_COUNT(types); t++) {
            uint32_t block = dtype_about(types[t]).block_elems;
            for (uint32_t n = 1; n <= 5; n++)
                for (size_t r = 0; r < INFERD_COUNT(n_rows); r++)
                    compare(level, types[t], n * (block > 1 ? block : 8), n_rows[r], 0);
            compare(level, types[t], 3 * PANEL_BLOCK, PANEL_ROWS, 0);
            compare(level, types[t], 2 * PANEL_BLOCK, PANEL_ROWS, 16); // no line begins there
        }
    }
}

static void ragged_columns_are_filled_with_zeros(void) {
    random_state = SEED + 1;
    for (size_t l = 0; l < INFERD_COUNT(levels); l++) {
        inferd_err err = {0};
        const cpu_level *level = level_choose(levels[l], &err);
        if (level == NULL) continue;
        for (uint32_t cols = 1; cols < 80; cols += 3) {
            compare(level, DTYPE_F32, cols, PANEL_ROWS, 0);
            compare(level, DTYPE_F16, cols, PANEL_ROWS, 0);
            compare(level, DTYPE_BF16, cols, PANEL_ROWS, 0);
        }
    }
}

/* Not only like the plain loops: like the file. */
static void rows_come_back_as_the_file_has_them(void) {
    enum { COLS = 2 * PANEL_BLOCK };
    static float wanted[COLS], got[COLS];
    random_state = SEED + 2;
    for (size_t l = 0; l < INFERD_COUNT(levels); l++) {
        inferd_err err = {0};
        const cpu_level *level = level_choose(levels[l], &err);
        if (level == NULL) continue;
        for (size_t t = 0; t < INFERD_COUNT(types); t++) {
            size_t row_bytes = row_bytes_of(types[t], COLS);
            unsigned char *rows = random_bytes(PANEL_ROWS * row_bytes);
            place p = place_for(types[t], COLS, 0);
            weight w = {.type = types[t], .rows = PANEL_ROWS, .cols = COLS, .data = p.panel};
            level->pack(types[t], COLS, rows, PANEL_ROWS, p.panel);
            for (uint32_t row = 0; row < PANEL_ROWS; row++) {
                uint32_t n_other = 0;
                dtype_to_f32(types[t], rows + row * row_bytes, wanted, COLS);
                panel_row_to_f32(&w, row, 0, COLS, got);
                for (uint32_t k = 0; k < COLS; k++) // random bits are not all numbers
                    n_other += memcmp(&wanted[k], &got[k], sizeof got[k]) != 0 &&
                               !(wanted[k] != wanted[k] && got[k] != got[k]);
                EXPECT_EQ(n_other, 0);
            }
            free(rows);
            free(p.memory);
        }
    }
}

/* Halves of a block that scale it: their places, -1 for none. */
static void scales_of(dtype type, int out[2]) {
    bool minima = type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K ||
                  type == DTYPE_Q5_K || type == DTYPE_Q2_K;
    out[0] = type == DTYPE_Q6_K ? 208 : type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : 0;
    out[1] = minima ? out[0] + 2 : -1;
}

static bool has_blocks(dtype type) {
    return dtype_about(type).block_elems > 1;
}

/* Random bits, all of whose numbers are finite; what counts in a number is its upper half. */
static unsigned char *finite_bytes(dtype type, size_t n) {
    unsigned char *p = random_bytes(n);
    dtype_info info = dtype_about(type);
    int at[2];
    scales_of(type, at);
    for (size_t i = 0; i < n; i += info.block_bytes) {
        if (!has_blocks(type)) p[i + info.block_bytes - 1] &= 0xbf;
        if (type == DTYPE_MXFP4) p[i] %= MXFP4_SCALE_FINITE + 1;
        for (int k = 0; has_blocks(type) && type != DTYPE_MXFP4 && k < 2; k++)
            if (at[k] >= 0) p[i + (size_t)at[k] + 1] &= 0xbf;
    }
    return p;
}

/* The upper half of an infinity, or of what is no number. */
static uint16_t bad_half(dtype type, bool infinite) {
    bool brain = type == DTYPE_F32 || type == DTYPE_BF16;
    return infinite ? brain ? 0xff80 : 0xfc00 : brain ? 0x7fc1 : 0x7d55;
}

static void put_bad(unsigned char *p, dtype type, bool infinite) {
    uint16_t half = bad_half(type, infinite);
    if (type == DTYPE_MXFP4) { // 254 with a code of 12, or NaN
        p[0] = infinite ? 254 : 255;
        if (infinite) p[16] = 0xf0;
        return;
    }
    memcpy(p, &half, sizeof half); // little-endian, as we are
}

/* One number of a panel after the other is none: each row's first and last, and some between. */
static void finds_each(const cpu_level *level, dtype type, uint32_t cols, uint32_t n_rows,
                       size_t shift) {
    dtype_info info = dtype_about(type);
    size_t row_bytes = row_bytes_of(type, cols), n_blocks = row_bytes / info.block_bytes;
    unsigned char *rows = finite_bytes(type, n_rows * row_bytes);
    place p = place_for(type, cols, shift);
    int at[2] = {(int)info.block_bytes - 2, -1};
    if (has_blocks(type)) scales_of(type, at);
    EXPECT(level->pack(type, cols, rows, n_rows, p.panel));
    uint32_t n_missed = 0, n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        for (size_t b = 0; b < n_blocks; b += b + 9 < n_blocks ? 7 : 1) {
            for (int k = 0; k < 2; k++, n++) {
                if (at[k] < 0) continue;
                unsigned char kept[17],
                    *bad = rows + row * row_bytes + b * info.block_bytes + at[k];
                float value = 0;
                size_t n_kept = type == DTYPE_MXFP4 ? sizeof kept : 2;
                memcpy(kept, bad, n_kept);
                put_bad(bad, type, n % 2 == 0);
                n_missed += level->pack(type, cols, rows, n_rows, p.panel);
                uint32_t col = dtype_find_not_finite(type, rows + row * row_bytes, cols, &value);
                EXPECT(col / info.block_elems == b && !isfinite(value));
                memcpy(bad, kept, n_kept);
            }
        }
    }
    if (n_missed > 0)
        printf("%s: %s, %u rows of %u, shift %zu: %u of %u missed\n", level->name, info.name,
               n_rows, cols, shift, n_missed, n);
    EXPECT_EQ(n_missed, 0);
    EXPECT(level->pack(type, cols, rows, n_rows, p.panel));
    EXPECT(guards_are_whole(&p));
    free(rows);
    free(p.memory);
}

/* Infinities in matrices were packed, and every answer of the model was an error of its own. */
static void numbers_that_are_none_are_found(void) {
    random_state = SEED + 3;
    for (size_t l = 0; l < INFERD_COUNT(levels); l++) {
        inferd_err err = {0};
        const cpu_level *level = level_choose(levels[l], &err);
        if (level == NULL) continue;
        for (size_t t = 0; t < INFERD_COUNT(types); t++) {
            finds_each(level, types[t], PANEL_BLOCK, PANEL_ROWS, 0);
            finds_each(level, types[t], 2 * PANEL_BLOCK, 5, 0);
            finds_each(level, types[t], PANEL_BLOCK, PANEL_ROWS, 16);
            if (!has_blocks(types[t])) finds_each(level, types[t], 13, 7, 0);
            if (!has_blocks(types[t])) finds_each(level, types[t], 72, PANEL_ROWS, 0);
        }
    }
}

/* A large scale alone is no reason to refuse a block of MXFP4: its codes may be small. */
static void large_scales_of_small_codes_are_finite(void) {
    for (size_t l = 0; l < INFERD_COUNT(levels); l++) {
        inferd_err err = {0};
        const cpu_level *level = level_choose(levels[l], &err);
        if (level == NULL) continue;
        unsigned char rows[PANEL_ROWS * 17] = {0};
        place p = place_for(DTYPE_MXFP4, 32, 0);
        rows[17 * 33] = 254;
        rows[17 * 33 + 9] = 0x3b; // 3 * 2^126 and -3 * 2^126
        EXPECT(level->pack(DTYPE_MXFP4, 32, rows, PANEL_ROWS, p.panel));
        rows[17 * 33 + 9] = 0xc3; // -4 * 2^126
        EXPECT(!level->pack(DTYPE_MXFP4, 32, rows, PANEL_ROWS, p.panel));
        free(p.memory);
    }
}

static const test_case cases[] = {
    TEST(every_level_packs_the_same_bytes),       TEST(ragged_columns_are_filled_with_zeros),
    TEST(rows_come_back_as_the_file_has_them),    TEST(numbers_that_are_none_are_found),
    TEST(large_scales_of_small_codes_are_finite),
};
TEST_MAIN(cases)
