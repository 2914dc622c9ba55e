/* forced.h - log-probabilities after given tokens, by the CPU beforehand and by a device now.
 *
 *     text      a prompt, and after parts of it one token each
 *
 *     prompt      p0 p1 p2 p3 p4 ... p2047        rows after some of its tokens are looked at
 *     decode 0    p0 ... p399 n0                  each a sequence: the first contexts[i] tokens
 *     decode 1    p0 n1                           of the prompt, then next[i]
 *     ...
 *
 * A decode row's numbers do not depend on the rows beside it, so one reference serves steps of any
 * size: the first 1, 4, 5 ... rows.
 *
 * Of a row the reference keeps the FORCED_TOP best log-probabilities, one id out of each of
 * FORCED_SAMPLES equal parts of the vocabulary, and the logarithm of the sum of exp(logit).  With
 *
 *     d = reference's log-probability - device's        f(d) = exp(-d) - 1 + d   (never negative)
 *
 * KL(reference || device) is the sum of p f(d) over the vocabulary.  It is computed exactly over
 * the best, and for the rest estimated by the samples, each for the part it was drawn from: without
 * bias, and no term cancels another.  The largest difference is that of |d| over best and samples,
 * and of the logarithm of the sum, which every logit of the row is in.
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

/* What the model computes with: of a file all its bytes, of a made-up model its name and what its
 * weights are made of. */
inferd_status forced_identity(const char *path, uint64_t *out, inferd_err *err);
inferd_status forced_save(const forced_reference *ref, const char *path, inferd_err *err);
/* INFERD_EFORMAT: not such a file, another version, or damaged, and how. */
inferd_status forced_load(const char *path, forced_reference *out, inferd_err *err);

/* ---- forced_row.c ---- */

/* What is kept of a row of logits; `seed` chooses the samples. */
void forced_row_take(const float *logits, uint32_t n_vocab, uint64_t seed, forced_row *out);

typedef struct forced_gap {
    double kl_sum, kl_max, diff_max;
    double lead_max; // of the difference between the two best
    uint32_t n;
    uint32_t worst;  // the row with diff_max
    bool not_finite; // some logit is no number
} forced_gap;
void forced_row_compare(const forced_row *ref, const float *logits, uint32_t n_vocab, uint32_t row,
                        forced_gap *gap);
/* A row of logits as the device's own drawing tells it. */
void forced_draw_compare(const float *logits, uint32_t n_vocab, const sample_result *draw,
                         uint32_t row, forced_gap *gap);

/* ---- forced_rig.c ---- */

/* A model on a device, with room for the text. */
typedef struct forced_rig forced_rig;

typedef struct forced_device {
    const char *kind;        // "cuda", "cpu"
    const char *off;         // parts of the CUDA backend (docs/gpu.md), or NULL
    const char *activations; // cuda: "bf16", "f16"; NULL: its default
    bool emulated, tiny;
    bool exact; // cpu: float activations, keys and values
} forced_device;

/* Ends the program when the device or the model do not open. */
forced_rig *forced_open(const forced_device *d, const char *path, const forced_reference *text);
void forced_close(forced_rig *r);
const char *forced_name(const forced_rig *r); // of the device
void forced_stats(const forced_rig *r, backend_stats *out);

/* `f` gets the logits of a row: its number among `positions`, or among the decode rows. */
typedef void forced_row_fn(void *ctx, uint32_t row, const float *logits);

/* Two places for keys and values of the prompt: steps of `chunk` rows write one of them. */
typedef enum forced_place { FORCED_WHOLE, FORCED_CHUNKS, FORCED_PLACES } forced_place;
void forced_prompt(forced_rig *r, forced_place place, uint32_t chunk, forced_row_fn *f, void *ctx);
/* After the prompt is in `whole` and, where `chunks` is true, in the other place, too: what decode
 * rows need that is not a whole block of it. */
void forced_tails(forced_rig *r, bool chunks);
/* Decode rows [begin, begin + n) in one step; beside them, where `beside` is not 0, that many
 * tokens of the prompt; logits of these are ignored. */
void forced_decode(forced_rig *r, uint32_t begin, uint32_t n, uint32_t beside, forced_row_fn *f,
                   void *ctx);
/* The same where the device draws; NULL: it does not. */
const sample_result *forced_draw(forced_rig *r, uint32_t begin, uint32_t n);

/* ---- forced_answers.c ---- */

/* The same requests to the CPU and to the device; false: a text differs where it must not. */
bool forced_answers(const forced_device *d, const char *path, double bound);

#endif
