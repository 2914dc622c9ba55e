/* Weights in the layout of device memory: what format_prepare writes is worth what dtype_to_f32
 * says, and lies where layout.h says. */
#include "cuda/formats.h"

#include "test.h"

static const dtype all_types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q4_0,
                                  DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
                                  DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,   DTYPE_Q2_K,
                                  DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};

static uint64_t random_state;
static uint32_t next_u32(void) { // xorshift
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static void put_half(unsigned char *p, float f) {
    uint16_t h = f32_to_f16(f);
    p[0] = (unsigned char)h;
    p[1] = (unsigned char)(h >> 8);
}

/* d of a random sign, from the smallest halves to large ones; K-quants multiply it by up to 127. */
static float random_d(float largest) {
    float sizes[] = {0x1p-24f, 0x1p-15f, 1e-3f, 1.0f, largest};
    float d = sizes[next_u32() % INFERD_COUNT(sizes)] * (float)(1 + next_u32() % 1000) / 1000.0f;
    return next_u32() % 4 == 0 ? -d : d;
}

/* A random block: bits of any kind, and finite d. */
static void random_block(dtype type, unsigned char *block) {
    uint32_t n = dtype_about((uint32_t)type).block_bytes;
    for (uint32_t i = 0; i < n; i++) block[i] = (unsigned char)next_u32();
    switch ((uint32_t)type) {
    case DTYPE_F32: {
        float f = random_d(1e30f);
        memcpy(block, &f, 4);
        break;
    }
    case DTYPE_BF16:
    case DTYPE_F16:
        block[1] &= 0xbf; // no infinity
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        put_half(block + 2, random_d(60000));
        put_half(block, random_d(60000));
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        put_half(block + 2, random_d(1000));
        put_half(block, random_d(1000));
        break;
    case DTYPE_Q6_K:
        put_half(block + 208, random_d(500));
        break;
    case DTYPE_Q2_K: // weights are halves
        put_half(block + 80, random_d(700));
        put_half(block + 82, random_d(700));
        break;
    case DTYPE_Q3_K:
        put_half(block + 108, random_d(2000));
        break;
    case DTYPE_IQ4_XS:
        put_half(block, random_d(2000));
        break;
    case DTYPE_MXFP4: // powers of two that halves have
        block[0] = (unsigned char)(104 + next_u32() % 40);
        break;
    default:
        put_half(block, random_d(60000));
    }
}

typedef struct sample {
    dtype type;
    uint32_t rows, cols;
    size_t row_bytes, n_bytes; // of a row in the file; of the image
    unsigned char *file, *image;
    float *want, *got; // [rows, cols]
    cu_matrix m;
} sample;

static void *or_stop(void *p) {
    INFERD_CHECK(p != NULL);
    return p;
}

/* A random matrix, and memory for its image: full of 0xA5, with 256 more bytes that stay so. */
static sample sample_make(dtype type, uint32_t rows, uint32_t cols) {
    dtype_info about = dtype_about((uint32_t)type);
    sample s = {.type = type, .rows = rows, .cols = cols};
    s.row_bytes = (size_t)(cols / about.block_elems) * about.block_bytes;
    s.file = or_stop(malloc(rows * s.row_bytes));
    for (size_t i = 0; i < rows * s.row_bytes; i += about.block_bytes)
        random_block(type, s.file + i);
    s.n_bytes = format_bytes(type, rows, cols);
    s.image = or_stop(aligned_alloc(256, s.n_bytes + 256));
    memset(s.image, 0xA5, s.n_bytes + 256);
    s.want = or_stop(malloc((size_t)rows * cols * sizeof *s.want));
    s.got = or_stop(malloc((size_t)rows * cols * sizeof *s.got));
    for (uint32_t i = 0; i < rows; i++)
        dtype_to_f32(type, s.file + i * s.row_bytes, s.want + (size_t)i * cols, cols);
    s.m = format_matrix(type, rows, cols, s.image);
    return s;
}

static void sample_free(sample *s) {
    free(s->file);
    free(s->image);
    free(s->want);
    free(s->got);
}

/* In pieces of `step` rows, last rows first: the order is the caller's. */
static inferd_status sample_prepare(sample *s, uint32_t step, inferd_err *err) {
    for (uint32_t n = (s->rows + step - 1) / step; n-- > 0;) {
        uint32_t begin = n * step, rows = u32_min(step, s->rows - begin);
        inferd_status status = format_prepare(&s->m, s->type, s->image,
                                              s->file + begin * s->row_bytes, begin, rows, err);
        if (status != INFERD_OK) return status;
    }
    format_to_f32(&s->m, 0, s->rows, s->got);
    return INFERD_OK;
}

/* What a K-quant's scale and minimum, and a weight of Q2_K, may lose: half a unit of the half's
 * last place each. */
static double allowed(const sample *s, uint32_t row, uint32_t col) {
    const unsigned char *block = s->file + row * s->row_bytes +
                                 (size_t)(col / 256) * dtype_about((uint32_t)s->type).block_bytes;
    double want = fabs((double)s->want[(size_t)row * s->cols + col]);
    if (s->type == DTYPE_Q6_K || s->type == DTYPE_Q3_K || s->type == DTYPE_IQ4_XS)
        return want * (0x1p-11 + 1e-6);
    if (s->type == DTYPE_Q2_K) return want * 0x1p-11 + 0x1p-25;
    if (s->type != DTYPE_Q4_K && s->type != DTYPE_Q5_K) return 0;
    double dmin = (double)f16_to_f32((uint16_t)(block[2] | block[3] << 8));
    const unsigned char *packed = block + 4;
    uint32_t group = col % 256 / 32;
    uint32_t min = group < 4 ? packed[group + 4] & 63u
                             : (uint32_t)packed[group + 4] >> 4 | (uint32_t)packed[group] >> 6 << 4;
    double base = fabs(dmin) * min; // |scale * code| <= |want| + base
    return (want + 2 * base) * (0x1p-11 + 1e-6);
}

static void check_values(const sample *s) {
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < s->rows; i++)
        for (uint32_t j = 0; j < s->cols; j++) {
            double got = (double)s->got[(size_t)i * s->cols + j];
            double want = (double)s->want[(size_t)i * s->cols + j];
            if (fabs(got - want) <= allowed(s, i, j)) continue;
            if (n_wrong++ == 0)
                printf("%s [%u, %u] at (%u, %u): %.9g, expected %.9g\n",
                       dtype_about((uint32_t)s->type).name, s->rows, s->cols, i, j, got, want);
        }
    EXPECT_EQ(n_wrong, 0);
}

/* The same matrix as if it had more rows and columns: its padding shows. */
static void check_padding(const sample *s) {
    cu_matrix whole = s->m;
    whole.rows = (s->rows + 15) / 16 * 16;
    whole.cols = s->m.format < CU_FMT_Q4 ? s->m.stride : s->m.n_col_tiles * TILE_COLS;
    float *all = or_stop(malloc((size_t)whole.rows * whole.cols * sizeof *all));
    format_to_f32(&whole, 0, whole.rows, all);
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < whole.rows; i++)
        for (uint32_t j = 0; j < whole.cols; j++)
            if ((i >= s->rows || j >= s->cols) && all[(size_t)i * whole.cols + j] != 0) n_wrong++;
    EXPECT_EQ(n_wrong, 0);
    free(all);
    for (int i = 0; i < 256; i++) EXPECT_EQ(s->image[s->n_bytes + (size_t)i], 0xA5);
}

static void prepared_weights_keep_their_values(void) {
    static const uint32_t rows[] = {1, 15, 16, 17, 100};
    random_state = 7001; // the seed
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
        uint32_t block = dtype_about((uint32_t)all_types[t]).block_elems;
        uint32_t unit = block == 1 ? 13 : block;
        for (size_t i = 0; i < INFERD_COUNT(rows); i++)
            for (uint32_t blocks = 1; blocks <= 5; blocks++) {
                sample s = sample_make(all_types[t], rows[i], blocks * unit);
                inferd_err err = {0};
                EXPECT_EQ(sample_prepare(&s, blocks % 2 == 0 ? 16 : 48, &err), INFERD_OK);
                check_values(&s);
                check_padding(&s);
                sample_free(&s);
            }
    }
}

static void every_byte_of_the_image_is_written(void) {
    random_state = 7002;
    for (size_t t = 0; t < INFERD_COUNT(all_types); t++) {
        sample s = sample_make(all_types[t], 35, 256);
        inferd_err err = {0};
        EXPECT_EQ(sample_prepare(&s, 16, &err), INFERD_OK);
        unsigned char *first = or_stop(malloc(s.n_bytes));
        memcpy(first, s.image, s.n_bytes);
        memset(s.image, 0x3C, s.n_bytes);
        EXPECT_EQ(sample_prepare(&s, 48, &err), INFERD_OK);
        EXPECT_EQ(memcmp(first, s.image, s.n_bytes), 0);
        free(first);
        sample_free(&s);
    }
}

/* A tile's fragments as layout.h's table has them, from its words alone. */
static uint32_t code_by_table(const cu_matrix *m, uint32_t lane, uint32_t s, uint32_t e) {
    uint32_t pair = e / 2, half = 16 * (e % 2);
    const uint32_t *low = (const uint32_t *)m->low, *high = (const uint32_t *)m->high;
    uint32_t code = ((low[4 * lane + s] >> (4 * pair)) & 0x000f000fu) >> half & 15u;
    if (m->format == CU_FMT_Q5 || m->format == CU_FMT_Q5M)
        code |= (high[lane] >> (4 * s + pair + half) & 1u) << 4;
    if (m->format == CU_FMT_Q6)
        code |= (high[2 * lane + s / 2] >> (8 * (s % 2) + 2 * pair + half) & 3u) << 4;
    if (m->format == CU_FMT_Q8) code |= (low[128 + 4 * lane + s] >> (4 * pair + half) & 15u) << 4;
    return code;
}

static void codes_lie_in_fragment_order(void) {
    static const uint32_t row_of[8] = {0, 0, 8, 8, 0, 0, 8, 8},
                          col_of[8] = {0, 1, 0, 1, 8, 9, 8, 9};
    static const int offset[CU_FORMATS] = {
        [CU_FMT_Q4] = 8, [CU_FMT_Q5] = 16, [CU_FMT_Q6] = 32, [CU_FMT_Q8] = 128};
    random_state = 7003;
    for (size_t t = 3; t < INFERD_COUNT(all_types); t++) {
        if (all_types[t] == DTYPE_Q2_K) continue; // in rows
        sample s = sample_make(all_types[t], 16, 256);
        inferd_err err = {0};
        EXPECT_EQ(sample_prepare(&s, 16, &err), INFERD_OK);
        bool minima = s.m.format == CU_FMT_Q4M || s.m.format == CU_FMT_Q5M;
        uint32_t groups = s.m.format == CU_FMT_Q6 ? 4 : 2, n_wrong = 0;
        const uint16_t *halves = s.m.scales;
        for (uint32_t i = 0; i < 32 * 4 * 8; i++) { // of the first tile
            uint32_t lane = i / 32, step = i / 8 % 4, e = i % 8;
            uint32_t row = lane / 4 + row_of[e], col = 16 * step + 2 * (lane % 4) + col_of[e];
            uint32_t at = (row % 8 * 2 + row / 8) * groups + col / (64 / groups);
            float code = (float)((int)code_by_table(&s.m, lane, step, e) - offset[s.m.format]);
            float value = minima
                              ? f16_to_f32(halves[2 * at]) * code + f16_to_f32(halves[2 * at + 1])
                              : f16_to_f32(halves[at]) * code;
            n_wrong += value != s.got[row * 256 + col];
        }
        EXPECT_EQ(n_wrong, 0);
        sample_free(&s);
    }
}

static void bad_scale_is_named(dtype type, size_t at, float d, uint32_t row, uint32_t col,
                               const char *text) {
    sample s = sample_make(type, 20, 512);
    dtype_info about = dtype_about((uint32_t)type);
    unsigned char *block = s.file + row * s.row_bytes + col / about.block_elems * about.block_bytes;
    memset(block, 0xFF, about.block_bytes);
    put_half(block, 0);
    if (type != DTYPE_Q4_0) put_half(block + 2, 0);
    put_half(block + at, d);
    inferd_err err = {0};
    EXPECT_EQ(sample_prepare(&s, 32, &err), INFERD_EFORMAT);
    EXPECT_STR(err.text, text);
    sample_free(&s);
}

static void scales_beyond_half_precision_are_refused(void) {
    random_state = 7004;
    bad_scale_is_named(
        DTYPE_Q4_0, 0, INFINITY, 17, 32,
        "row 17, column 32: the scale of a Q4_0 block is inf, not finite in half precision");
    bad_scale_is_named(
        DTYPE_Q5_1, 2, -INFINITY, 3, 480,
        "row 3, column 480: the minimum of a Q5_1 block is -inf, not finite in half precision");
    bad_scale_is_named(
        DTYPE_Q4_K, 0, 2000, 19, 256,
        "row 19, column 256: the scale of a Q4_K block is 126000, not finite in half precision");
    bad_scale_is_named(
        DTYPE_Q5_K, 2, 2000, 0, 0,
        "row 0, column 0: the minimum of a Q5_K block is -126000, not finite in half precision");
    sample s = sample_make(DTYPE_Q6_K, 20, 512);
    unsigned char *block = s.file + 5 * s.row_bytes + 210; // columns 256..511
    memset(block + 192, 1, 16);
    block[192 + 7] = 0x80; // scale -128 of columns 368..383
    put_half(block + 208, 512);
    inferd_err err = {0};
    EXPECT_EQ(sample_prepare(&s, 32, &err), INFERD_EFORMAT);
    EXPECT_STR(
        err.text,
        "row 5, column 368: the scale of a Q6_K block is -65536, not finite in half precision");
    put_half(block + 208, 511.5f); // 65472 is a half
    dtype_to_f32(DTYPE_Q6_K, block - 210, s.want + 5 * 512, 512);
    EXPECT_EQ(sample_prepare(&s, 32, &err), INFERD_OK);
    check_values(&s);
    sample_free(&s);
}

/* As the type has them: 143 is the largest scale of MXFP4 that is a half, 255 is NaN. */
static void values_that_only_the_type_has_are_refused(void) {
    static const struct {
        dtype type;
        size_t at;
        uint8_t bytes[2];
        const char *text;
    } all[] = {
        {DTYPE_MXFP4,
         0,
         {144},
         "the scale of a MXFP4 block is 65536, not finite in half precision"},
        {DTYPE_MXFP4, 0, {255}, "the scale of a MXFP4 block is nan, not finite in half precision"},
        {DTYPE_IQ4_NL, 0, {0, 0x7c}, "the scale of a IQ4_NL block is inf, not finite in half "},
        {DTYPE_Q3_K, 108, {0, 0x7c}, "the scale of a Q3_K block is "},
        {DTYPE_Q2_K, 82, {0, 0x6e}, " is -92160, not finite in half precision"}, // 15 * 6144
    };
    random_state = 7006;
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        dtype_info about = dtype_about((uint32_t)all[i].type);
        sample s = sample_make(all[i].type, 20, 512);
        unsigned char *block = s.file + 9 * s.row_bytes + about.block_bytes;
        memset(block, 0x11, about.block_bytes);
        if (all[i].type == DTYPE_Q2_K) {
            put_half(block + 80, 0);
            block[3] = 0xf1; // the min of columns 48 to 63
        }
        memcpy(block + all[i].at, all[i].bytes, all[i].bytes[1] != 0 ? 2 : 1);
        inferd_err err = {0};
        EXPECT_EQ(sample_prepare(&s, 32, &err), INFERD_EFORMAT);
        char where[64];
        snprintf(where, sizeof where, "row 9, column %u",
                 about.block_elems + (all[i].type == DTYPE_Q2_K ? 48 : 0));
        EXPECT(strstr(err.text, where) != NULL);
        EXPECT(strstr(err.text, all[i].text) != NULL);
        if (strstr(err.text, where) == NULL || strstr(err.text, all[i].text) == NULL)
            printf("  %s\n", err.text);
        sample_free(&s);
    }
}

static void bad_value_is_named(dtype type, uint64_t bits, uint32_t row, uint32_t col,
                               const char *text) {
    sample s = sample_make(type, 20, 77);
    inferd_err err = {0};
    EXPECT_EQ(sample_prepare(&s, 32, &err), INFERD_OK);
    uint32_t n = dtype_about((uint32_t)type).block_bytes;
    memcpy(s.file + row * s.row_bytes + col * n, &bits, n);
    EXPECT_EQ(sample_prepare(&s, 32, &err), INFERD_EFORMAT);
    EXPECT_STR(err.text, text);
    sample_free(&s);
}

static void values_that_are_no_numbers_are_refused(void) {
    random_state = 7005;
    bad_value_is_named(DTYPE_F32, 0x7f800000, 0, 0, "row 0, column 0 is inf, not a finite number");
    bad_value_is_named(DTYPE_F16, 0xfc00, 19, 76, "row 19, column 76 is -inf, not a finite number");
    bad_value_is_named(DTYPE_BF16, 0x7fc0, 16, 40, "row 16, column 40 is nan, not a finite number");
}

static void sizes_are_as_the_layout_says(void) {
    // tiles of 16 x 64: 17 rows are 2 tiles, 96 columns are 2
    EXPECT_EQ(format_bytes(DTYPE_Q4_0, 17, 96), 4 * 512 + 4 * 64);
    EXPECT_EQ(format_bytes(DTYPE_Q4_1, 17, 96), 4 * 512 + 4 * 128);
    EXPECT_EQ(format_bytes(DTYPE_Q5_0, 17, 96), 4 * 512 + 4 * 128 + 4 * 64);
    EXPECT_EQ(format_bytes(DTYPE_Q8_0, 17, 96), 4 * 1024 + 4 * 64);
    EXPECT_EQ(format_bytes(DTYPE_Q6_K, 1, 256), 4 * 512 + 4 * 256 + 4 * 128);
    EXPECT_EQ(format_bytes(DTYPE_Q4_0, 16, 64), 512 + 256);   // planes begin at 256
    EXPECT_EQ(format_bytes(DTYPE_BF16, 17, 13), 32 * 16 * 2); // rows to 16, columns to 8
    EXPECT_EQ(format_bytes(DTYPE_F32, 1, 1), 16 * 8 * 4);
    EXPECT(format_bytes(DTYPE_Q8_0, 262144, 32768) > (size_t)8 << 30);
    cu_format f;
    EXPECT(format_of(DTYPE_Q4_K, &f) && f == CU_FMT_Q4M);
    EXPECT(!format_of((dtype)16, &f)); // IQ2_XXS
    for (uint32_t i = 0; i < DTYPE_LIMIT; i++)
        EXPECT_EQ(format_of((dtype)i, &f), dtype_about(i).supported);
}

static const test_case cases[] = {
    TEST(prepared_weights_keep_their_values),
    TEST(every_byte_of_the_image_is_written),
    TEST(codes_lie_in_fragment_order),
    TEST(scales_beyond_half_precision_are_refused),
    TEST(values_that_are_no_numbers_are_refused),
    TEST(values_that_only_the_type_has_are_refused),
    TEST(sizes_are_as_the_layout_says),
};
TEST_MAIN(cases)
