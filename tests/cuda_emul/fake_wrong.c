/* fake_wrong.c - a kernel whose result is wrong, for tests of what should notice it.
 *
 * A kernel does not say what it writes.  So the memory behind each pointer of its parameters is
 * kept before it runs and compared afterwards; the first word that differs is changed once more:
 * by a factor of 16 in float and bf16, by up to a half in f16.
 *
 * Thread: under the fake's lock, which holds from fk_wrong_before to fk_wrong_after. */
#include <fnmatch.h>
#include <string.h>

#include "fake_inner.h"

enum { KEPT_BYTES = 4096, KEPT_MAX = 64, WORD = 4 };
static const uint32_t CHANGE = 0x02000200;

static struct {
    unsigned char *at[KEPT_MAX];
    size_t n_bytes[KEPT_MAX];
    unsigned char before[KEPT_MAX][KEPT_BYTES];
    uint32_t n;
} kept;

static bool is_wrong(const char *name) {
    return fk.opt.wrong[0] != 0 && fnmatch(fk.opt.wrong, name, 0) == 0;
}

static void keep(unsigned char *p) {
    size_t n = KEPT_BYTES;
    if (kept.n == KEPT_MAX || (uintptr_t)p % WORD != 0 || !fk_memory_is_device_address(p)) return;
    while (n >= WORD && !fk_memory_may_touch((uintptr_t)p, n)) n /= 2;
    if (n < WORD) return;
    fk_memory_open(p, n);
    memcpy(kept.before[kept.n], p, n);
    kept.at[kept.n] = p;
    kept.n_bytes[kept.n++] = n;
}

void fk_wrong_before(const fake_op *op) {
    kept.n = 0;
    if (!is_wrong(op->kernel->name)) return;
    for (uint32_t i = 0; i + sizeof(void *) <= op->launch.params_bytes; i += sizeof(void *)) {
        void *p;
        memcpy(&p, op->params + i, sizeof p);
        keep(p);
    }
}

void fk_wrong_after(void) {
    for (uint32_t i = 0; i < kept.n; i++)
        for (size_t at = 0; at + WORD <= kept.n_bytes[i]; at += WORD) {
            uint32_t word;
            memcpy(&word, kept.at[i] + at, WORD);
            if (memcmp(kept.before[i] + at, &word, WORD) == 0) continue;
            word ^= CHANGE;
            memcpy(kept.at[i] + at, &word, WORD);
            return;
        }
}

void fk_wrong_product(const fake_op *op) {
    if (!is_wrong("lt_matmul")) return;
    uint16_t *half = op->dst;
    half[op->shape.out == LT_F32 ? 1 : 0] ^= (uint16_t)CHANGE; // of a float the upper half
}
