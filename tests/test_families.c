/* test_families.c - small models of all families, made from a few kilobytes, against the reference.
 *
 * The goldens are what transformers computes in float32 (tests/families/make.py).  In exact mode
 * with float keys and values the logits agree, the most likely tokens too; rows shared with other
 * sequences and chunks of any size change no bit; and each property of a family is seen: the
 * comparison fails when one is changed (family_cases.h). */
#include "family_rig.h"
#include "family_cases.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if !defined(SANITIZED)
#define SANITIZED 0
#endif

static const double NMSE_MAX = 1e-9, FLIP_NMSE = 1e-6;
static const float GAP_SURE = 1e-3f; // of the two largest logits, in their rms
enum { PROMPT_LONG = 1000, FLIP_TOKENS = 300, SAME_TOKENS = 150 };

/* A longer prompt costs minutes with a sanitizer, and runs no other code. */
static bool is_run(const golden_prompt *p) {
    return !SANITIZED || p->n_tokens < PROMPT_LONG;
}

/* INFERD_TEST_FAMILY=qwen3: only that one; for work on it. */
static bool is_chosen(const family_case *c) {
    const char *only = getenv("INFERD_TEST_FAMILY");
    return only == NULL || strcmp(only, c->name) == 0;
}

static void fail_open(const char *name, const inferd_err *err) {
    printf("%s: %s\n", name, err->text);
    test_failures++;
}

/* ---- the reference ---- */

/* The tokens after a prompt, wherever the reference is sure; its own are taken on. */
static void expect_greedy(rig *r, rig_seq *s, const char *name, const golden_prompt *p,
                          float *logits) {
    for (int i = 0; i < GOLDEN_GREEDY; i++) {
        tok_id said = rig_best(logits, r->n_vocab);
        if (said != p->said[i] && p->gaps[i] > GAP_SURE) {
            printf("%s: token %d after %u is %u, expected %u (ahead by %g rms)\n", name, i,
                   p->n_tokens, said, p->said[i], (double)p->gaps[i]);
            test_failures++;
            return;
        }
        rig_part part = {s, &p->said[i], 1, logits};
        if (i + 1 < GOLDEN_GREEDY && !rig_step(r, &part, 1)) return;
    }
}

static void expect_prompt(rig *r, const char *name, const golden *g, const golden_prompt *p) {
    static float logits[RIG_VOCAB_MAX];
    static rig_seq s;
    s = (rig_seq){0};
    rig_forget(r);
    rig_prefill(r, &s, g->tokens, p->n_tokens, RIG_ROWS, logits);
    double off = rig_nmse(logits, p->logits, g->n_vocab);
    if (!(off <= NMSE_MAX)) {
        printf("%s: the logits after %u tokens are off by %.3g, at most %.3g\n", name, p->n_tokens,
               off, NMSE_MAX);
        test_failures++;
    }
    if (getenv("INFERD_TEST_SHOW") != NULL) printf("%s %u: %.3g\n", name, p->n_tokens, off);
    expect_greedy(r, &s, name, p, logits);
}

static void the_reference_says_the_same(void) {
    static golden g;
    backend *be = rig_backend(false);
    for (size_t i = 0; i < INFERD_COUNT(family_cases); i++) {
        const family_case *c = &family_cases[i];
        family_file file;
        inferd_err err;
        rig r;
        if (!is_chosen(c)) continue;
        golden_read(c->name, &g);
        golden_file(&g, &file);
        bool opened = rig_open(&r, be, &file, &(rig_options){KV_F32, g.context}, &err);
        if (c->pending) {
            if (opened) printf("%s can be loaded: it is not pending any more\n", c->name);
        } else if (!opened) {
            fail_open(c->name, &err);
        } else {
            EXPECT_EQ(r.n_vocab, g.n_vocab);
            for (size_t k = 0; k < g.n_prompts; k++)
                if (is_run(&g.prompts[k])) expect_prompt(&r, c->name, &g, &g.prompts[k]);
        }
        rig_close(&r);
        family_file_deinit(&file);
        golden_deinit(&g);
    }
    backend_close(be);
}

/* ---- bits ---- */

/* Rows of others around it, other chunks: `wanted` again. */
static void expect_same(const char *name, const char *how, const float *wanted, const float *got,
                        uint32_t n) {
    if (memcmp(wanted, got, n * sizeof *got) == 0) return;
    printf("%s, %s: other bits (off by %.3g)\n", name, how, rig_nmse(got, wanted, n));
    test_failures++;
}

static void expect_chunks(rig *r, const char *name, const tok_id *tokens, const float *wanted) {
    static const uint32_t chunks[] = {1, 7, 33};
    static float logits[RIG_VOCAB_MAX];
    static rig_seq s;
    for (size_t i = 0; i < INFERD_COUNT(chunks); i++) {
        char how[32];
        s = (rig_seq){0};
        rig_forget(r);
        rig_prefill(r, &s, tokens, SAME_TOKENS, chunks[i], logits);
        snprintf(how, sizeof how, "chunks of %u", chunks[i]);
        expect_same(name, how, wanted, logits, r->n_vocab);
    }
}

/* Three sequences: ours in chunks of 19, one that begins with our last tokens, in chunks of 45, and
 * one that decodes token by token. */
static void expect_beside_others(rig *r, const char *name, const tok_id *tokens,
                                 const float *wanted) {
    static float logits[RIG_VOCAB_MAX], other[RIG_VOCAB_MAX];
    static rig_seq s[3];
    memset(s, 0, sizeof s);
    rig_forget(r);
    while (s[1].n_computed < SAME_TOKENS) {
        uint32_t at = s[1].n_computed, left = SAME_TOKENS - at, n = left < 19 ? left : 19;
        uint32_t n_first = s[0].n_computed < 90 ? 45 : 1;
        rig_part parts[3] = {{&s[0], tokens + 20 + s[0].n_computed % 50, n_first, other},
                             {&s[1], tokens + at, n, n == left ? logits : NULL},
                             {&s[2], tokens + 140 - at / 19, 1, NULL}};
        if (!rig_step(r, parts, 3)) return;
    }
    expect_same(name, "beside others", wanted, logits, r->n_vocab);
}

static void expect_same_bits(backend *be, const family_case *c, const golden *g,
                             const family_file *file, bool fast) {
    static float wanted[RIG_VOCAB_MAX];
    static rig_seq s;
    char name[96];
    inferd_err err;
    rig r;
    snprintf(name, sizeof name, "%s (%s)", c->name, fast ? "fast" : "exact");
    if (!rig_open(&r, be, file, &(rig_options){fast ? KV_AUTO : KV_F32, g->context}, &err)) {
        fail_open(name, &err);
        return;
    }
    s = (rig_seq){0};
    rig_prefill(&r, &s, g->tokens, SAME_TOKENS, RIG_ROWS, wanted);
    expect_chunks(&r, name, g->tokens, wanted);
    expect_beside_others(&r, name, g->tokens, wanted);
    rig_close(&r);
}

static void keep_bits(bool fast) {
    static golden g;
    backend *be = rig_backend(fast);
    for (size_t i = 0; i < INFERD_COUNT(family_cases); i++) {
        family_file file;
        if (family_cases[i].pending || !is_chosen(&family_cases[i])) continue;
        golden_read(family_cases[i].name, &g);
        golden_file(&g, &file);
        expect_same_bits(be, &family_cases[i], &g, &file, fast);
        family_file_deinit(&file);
        golden_deinit(&g);
    }
    backend_close(be);
}

static void others_and_chunks_change_no_bit(void) {
    keep_bits(false);
}

static void others_and_chunks_change_no_bit_of_fast_math(void) {
    keep_bits(true);
}

/* ---- changes ---- */

static void *find_bytes(const unsigned char *p, size_t n, const void *what, size_t n_what) {
    for (size_t i = 0; i + n_what <= n; i++)
        if (memcmp(p + i, what, n_what) == 0) return (void *)(p + i);
    return NULL;
}

static void put_number(unsigned char *at, uint32_t kind, double value) {
    enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7 };
    float f = (float)value;
    uint32_t u = (uint32_t)value;
    INFERD_CHECK(kind == U32 || kind == I32 || kind == F32 || kind == BOOL);
    memcpy(at, kind == F32 ? (void *)&f : (void *)&u, kind == BOOL ? 1 : 4);
}

static uint32_t u32_at(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Another value of ARCHITECTURE.key; false: the file has none. */
static bool change_key(family_file *f, const char *key, uint32_t idx, double value) {
    enum { ARRAY = 9 };
    char text[128];
    size_t n = (size_t)snprintf(text, sizeof text, ".%s", key);
    unsigned char *at = find_bytes(f->p, f->keys_end, text, n);
    if (at == NULL) return false;
    at += n;
    uint32_t kind = u32_at(at);
    if (kind != ARRAY) {
        put_number(at + 4, kind, value);
        return true;
    }
    kind = u32_at(at + 4);
    put_number(at + 16 + idx * family_value_bytes(kind), kind, value);
    return true;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0 && (n == k || name[n - k - 1] == '.');
}

static void change_floats(float *x, size_t n, const family_flip *flip) {
    for (size_t i = 0; i < n && flip->data != FLIP_REVERSE; i++)
        x[i] = (float)(flip->data == FLIP_FILL ? flip->value : x[i] * flip->value);
    for (size_t i = 0; i < n / 2 && flip->data == FLIP_REVERSE; i++) {
        float v = x[i];
        x[i] = x[n - 1 - i];
        x[n - 1 - i] = v;
    }
}

static bool change_tensors(family_file *f, const family_flip *flip) {
    bool any = false;
    for (size_t i = 0; i < f->n_tensors; i++) {
        if (!ends_with(f->tensors[i].name, flip->tensor)) continue;
        INFERD_CHECK(f->tensors[i].type == FAMILY_F32);
        change_floats((float *)(void *)family_tensor_at(f, i), family_elements(&f->tensors[i]),
                      flip);
        any = true;
    }
    return any;
}

static double flipped_nmse(backend *be, const family_case *c, const golden *g,
                           const golden_prompt *p, const family_file *file,
                           const family_flip *flip) {
    static float logits[RIG_VOCAB_MAX];
    static rig_seq s;
    inferd_err err;
    rig r;
    rig_options o = {.kv = KV_F32,
                     .context = flip->context != 0 ? flip->context : g->context,
                     .change = flip->spec,
                     .change_late = flip->spec_late};
    if (!rig_open(&r, be, file, &o, &err)) {
        fail_open(c->name, &err);
        return 0;
    }
    s = (rig_seq){0};
    rig_prefill(&r, &s, g->tokens, p->n_tokens, RIG_ROWS, logits);
    double off = rig_nmse(logits, p->logits, g->n_vocab);
    rig_close(&r);
    return off;
}

static void expect_noticed(backend *be, const family_case *c, const golden *g,
                           const golden_prompt *p, const family_flip *flip) {
    family_file file;
    golden_file(g, &file);
    bool done = flip->key != NULL      ? change_key(&file, flip->key, flip->idx, flip->value)
                : flip->tensor != NULL ? change_tensors(&file, flip)
                                       : true;
    if (!done) {
        printf("%s: nothing to change for \"%s\"\n", c->name, flip->what);
        test_failures++;
    } else {
        double off = flipped_nmse(be, c, g, p, &file, flip);
        if (off <= FLIP_NMSE) { // not a number counts as noticed
            printf("%s: \"%s\" changes the logits by %.3g only\n", c->name, flip->what, off);
            test_failures++;
        }
        if (getenv("INFERD_TEST_SHOW") != NULL) printf("%s, %s: %.3g\n", c->name, flip->what, off);
    }
    family_file_deinit(&file);
}

static void every_property_is_seen(void) {
    static golden g;
    if (SANITIZED) return; // the other tests run the same code
    backend *be = rig_backend(false);
    for (size_t i = 0; i < INFERD_COUNT(family_cases); i++) {
        const family_case *c = &family_cases[i];
        if (c->pending || !is_chosen(c)) continue;
        golden_read(c->name, &g);
        const golden_prompt *p = &g.prompts[0];
        for (size_t k = 0; k < g.n_prompts; k++)
            if (g.prompts[k].n_tokens <= FLIP_TOKENS) p = &g.prompts[k];
        for (size_t k = 0; k < FAMILY_LISTS_MAX && c->flips[k] != NULL; k++)
            for (const family_flip *flip = c->flips[k]; flip->what != NULL; flip++)
                expect_noticed(be, c, &g, p, flip);
        golden_deinit(&g);
    }
    backend_close(be);
}

static const test_case cases[] = {
    TEST(the_reference_says_the_same),
    TEST(others_and_chunks_change_no_bit),
    TEST(others_and_chunks_change_no_bit_of_fast_math),
    TEST(every_property_is_seen),
};

TEST_MAIN(cases)
