/* forced.h - compares log-probabilities after given tokens: the CPU computes a reference beforehand
 * and a device computes them now.
 *
 *     text      a prompt, and sequences of a part of the prompt and one more token
 *
 *     prompt      p0 p1 p2 p3 p4 ... p2047        rows after some of its tokens are compared
 *     decode 0    p0 ... p399 n0                  each a sequence: the first contexts[i] tokens
 *     decode 1    p0 n1                           of the prompt, then next[i]
 *     ...
 *
 * The numbers of a decode row do not depend on the other rows of the step, so one reference is used
 * for steps of any size: the first 1, 4, 5 ... rows.
 *
 * For each row the reference holds the FORCED_TOP best log-probabilities, one id out of each of
 * FORCED_SAMPLES equal parts of the vocabulary, and the logarithm of the sum of exp(logit).  With
 *
 *     d = reference's log-probability - device's        f(d) = exp(-d) - 1 + d   (never negative)
 *
 * KL(reference || device) is the sum of p f(d) over the vocabulary.  It is computed exactly over
 * the best ids and estimated from the samples for the rest, each sample representing the part it
 * was drawn from.  The estimate is unbiased, and no term cancels another.  The largest difference
 * is the maximum of |d| over best and samples and of the difference of the logarithm of the sum,
 * which depends on every logit of the row.
 *
 * Thread: one. */
#ifndef INFERD_BENCH_FORCED_H
#define INFERD_BENCH_FORCED_H

#include "models/model.h"

enum {
    FORCED_TOP = 64,
    FORCED_SAMPLES = 128,
    FORCED_NAME_BYTES = 128,
    FORCED_DECODE_MAX = 256,
    FORCED_PROMPT_MAX = 2048,
    FORCED_ROWS_MAX = 96 // of the prompt
};

typedef struct forced_pair {
    uint32_t id;
    float logprob;
} forced_pair;

typedef struct forced_row {
    float log_sum;
    forced_pair top[FORCED_TOP]; // best first
    forced_pair samples[FORCED_SAMPLES];
} forced_row;

typedef struct forced_reference {
    char model[FORCED_NAME_BYTES]; // dummy:..., or the name of a file
    uint64_t identity;             // forced_identity
    char made_by[FORCED_NAME_BYTES];
    uint32_t n_vocab, n_prompt, n_decode, n_rows;
    tok_id prompt[FORCED_PROMPT_MAX];
    uint32_t contexts[FORCED_DECODE_MAX]; // below n_prompt
    tok_id next[FORCED_DECODE_MAX];
    uint32_t positions[FORCED_ROWS_MAX]; // [n_rows] of the prompt, ascending
    forced_row decode[FORCED_DECODE_MAX];
    forced_row rows[FORCED_ROWS_MAX];
} forced_reference;

/* ---- forced_file.c ---- */

/* A hash of the model's weights: for a file, of all its bytes; for a made-up model, of its name and
 * of the method its weights are generated with. */
inferd_status forced_identity(const char *path, uint64_t *out, inferd_err *err);
inferd_status forced_save(const forced_reference *ref, const char *path, inferd_err *err);
/* INFERD_EFORMAT: not a reference file, another version, or damaged; the error text says which. */
inferd_status forced_load(const char *path, forced_reference *out, inferd_err *err);

/* ---- forced_row.c ---- */

/* Fills the reference of a row of logits; `seed` chooses the samples. */
void forced_row_take(const float *logits, uint32_t n_vocab, uint64_t seed, forced_row *out);

typedef struct forced_gap {
    double kl_sum, kl_max, diff_max;
    double lead_max; // largest error of the difference between the two best
    uint32_t n;
    uint32_t worst;  // the row with diff_max
    bool not_finite; // a logit is NaN or infinite
} forced_gap;
void forced_row_compare(const forced_row *ref, const float *logits, uint32_t n_vocab, uint32_t row,
                        forced_gap *gap);
/* Compares a row of logits with the result of the device's own sampling. */
void forced_draw_compare(const float *logits, uint32_t n_vocab, const sample_result *draw,
                         uint32_t row, forced_gap *gap);

/* ---- forced_rig.c ---- */

/* A model on a device, with memory for the text. */
typedef struct forced_rig forced_rig;

typedef struct forced_device {
    const char *kind;        // "cuda", "cpu"
    const char *off;         // parts of the CUDA backend (docs/gpu.md), or NULL
    const char *activations; // cuda: "bf16", "f16"; NULL: its default
    bool emulated, tiny;
    bool exact; // cpu: float activations, keys and values
} forced_device;

/* Ends the program when the device or the model cannot be opened. */
forced_rig *forced_open(const forced_device *d, const char *path, const forced_reference *text);
void forced_close(forced_rig *r);
const char *forced_name(const forced_rig *r); // of the device
void forced_stats(const forced_rig *r, backend_stats *out);

/* `f` gets the logits of a row; `row` is its index in `positions` or in the decode rows. */
typedef void forced_row_fn(void *ctx, uint32_t row, const float *logits);

/* Two sets of blocks for the keys and values of the prompt; the steps of `chunk` rows write one. */
typedef enum forced_cut { FORCED_WHOLE, FORCED_CHUNKS, FORCED_CUTS } forced_cut;
void forced_prompt(forced_rig *r, forced_cut cut, uint32_t chunk, forced_row_fn *f, void *ctx);
/* Computes the part of each decode row's context that does not fill a whole block of the prompt.
 * The prompt must be in `whole` and, if `chunks` is true, also in the other set of blocks. */
void forced_tails(forced_rig *r, bool chunks);
/* Decode rows [begin, begin + n) in one step; if `beside` is not 0, the step also has that many
 * tokens of the prompt, and their logits are ignored. */
void forced_decode(forced_rig *r, uint32_t begin, uint32_t n, uint32_t beside, forced_row_fn *f,
                   void *ctx);
/* The same with sampling on the device; NULL: the device does not sample. */
const sample_result *forced_draw(forced_rig *r, uint32_t begin, uint32_t n);

/* ---- forced_answers.c ---- */

/* Runs the same requests on CPU and device; false: an answer differs where it must not. */
bool forced_answers(const forced_device *d, const char *path, double bound);

#endif
