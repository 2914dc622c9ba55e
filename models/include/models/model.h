/* model.h - one language model: its file, its tokenizer and its description; and a bound model:
 * the model on a backend, with weights and forward pass.
 *
 * A model is opened once and never changes: any number of threads and backends use it at the same
 * time.  A bound model is its KV layout, its window of prepared weights and its activations on one
 * backend.  Weights come in two stages, each in pieces between which steps are computed:
 *
 *     bound_open                       COLD
 *     bound_stage_*    file -> host    COLD -> STAGING -> WARM
 *     bound_load_*     host -> device  WARM -> LOADING -> HOT
 *     bound_unload                     LOADING, HOT -> WARM
 *     bound_unstage                    any -> COLD
 *
 * The scheduler chooses the pages and the time; the model never sees the pool.
 *
 * Thread: model_* any; bound_* the engine's of the backend. */
#ifndef INFERD_MODEL_H
#define INFERD_MODEL_H

#include "inferd/base.h"
#include "inferd/batch.h"
#include "inferd/status.h"
#include "kernels/backend.h"
#include "models/calls.h"
#include "models/chat.h"
#include "models/sampling.h"
#include "models/tokenizer.h"

typedef struct model model;

typedef struct model_options {
    const char *path;          // a .gguf file, any part of a split one, or dummy:NAME
    const char *template_path; // a Jinja file that replaces the model's chat template, or NULL
    const char *tool_format;   // the name of one (models/calls.h); NULL: the template's
    uint32_t context_max;      // 0 = that of the file
    bool allow_dummy;          // else a dummy: path is refused
} model_options;

/* The prefix of a dummy path: a model of made-up weights at a real one's shape. */
#define MODEL_DUMMY_PREFIX "dummy:"
bool model_path_is_dummy(const char *path);
/* The model's name in a path, borrowed from it: "m" of /x/m.gguf, of /x/m-00001-of-00003.gguf and
 * of dummy:m?seed=1. */
bytes model_path_name(const char *path);

typedef struct model_info {
    const char *path;
    const char *architecture; // "llama"
    const char *name;         // general.name, or ""
    const char *weights;      // the type that most bytes of its tensors have: "Q4_1"
    uint32_t context_trained; // positions the model was trained for
    uint32_t context;         // positions served
    uint32_t n_vocab;         // rows of the output head: every id must be below
    uint32_t n_layers, dim, n_heads, n_kv_heads, head_dim;
    uint32_t ffn_dim;                   // of a layer, or of each expert
    uint32_t n_experts, n_experts_used; // 0: none
    uint64_t n_params;
    uint64_t file_bytes;
    uint32_t n_image_tensors, n_audio_tensors; // of encoders, which are not served
    sampling_defaults sampling;                // of its files
} model_info;

inferd_status model_open(const model_options *options, model **out, inferd_err *err);
void model_close(model *m); // accepts NULL; no bound model uses it any more

const model_info *model_about(const model *m);
const tokenizer *model_tokenizer(const model *m);
const chat_template *model_chat_template(const model *m); // NULL: the model has none
const call_format *model_call_format(const model *m);     // NULL: it has no chat template

/* Since it was opened, on all devices: rows that each expert computed, in all layers, and how often
 * the weights of one were read.  [n_experts] of model_info; NULL rows: only the reads. */
void model_count_experts(const model *m, const uint32_t *rows, uint32_t n_experts,
                         uint32_t n_reads);
uint64_t model_expert_counts(const model *m, uint64_t *rows);

/* How many files are the parts of a model named as "x-00002-of-00003.gguf"; 1 for other
 * names.  The file's header tells, and where it cannot be read the name: 3. */
uint32_t model_n_files(const char *path);
/* The path of part `i`, from 0, of `n` in place of that of another part of the same model. */
void model_name_part(char *path, uint32_t i, uint32_t n);

/* The file that the path names now.  If that is not the open file, the data that model_open read
 * stays valid, but opening the path gives another file.  A made-up model's stays the same.  The
 * file of a split model is all its parts. */
typedef enum model_file {
    MODEL_FILE_SAME,
    MODEL_FILE_REPLACED, // another file, or the same one changed; one part is enough
    MODEL_FILE_MISSING   // none that can be found, or a part is missing
} model_file;
typedef struct model_file_id { // of a file at a moment; all 0: no file
    uint64_t device, inode, n_bytes, mtime_ns;
} model_file_id;
/* `missing` names the file that is missing. */
model_file model_look_at_file(const model *m, model_file_id *out, inferd_err *missing);
const char *model_file_name(model_file f); // "replaced"
/* Weights are read only while the path names a file: the opened one, or another that replaced it
 * before; the open file is whole, then.  `held`: also without that condition.  Whether the open
 * file was written to is checked in any case. */
void model_hold_file(model *m, bool held);
/* A fingerprint that stays the same after a restart: of the file's size, its time, its header and
 * samples of its weights, read when it was opened, and of its rotary frequencies, which may depend
 * on context_max; of a made-up model's shape and seed. */
void model_content(const model *m, uint64_t out[2]);
/* The two files have the same bytes (made-up models: the same shape and seed) and the same rotary
 * frequencies, so one bound model serves both.  Reads both files to the end when everything up to
 * there is equal. */
inferd_status model_same_content(const model *a, const model *b, bool *same, inferd_err *err);

/* ---- a model on a backend ---- */

/* The largest step; scratch is allocated for it. */
typedef struct model_limits {
    uint32_t rows_max;   // tokens per step
    uint32_t logits_max; // rows per step with logits
    kv_type kv;
} model_limits;

typedef struct bound_model bound_model;

/* Chooses the KV layout and counts pages; the model and the backend are borrowed. */
inferd_status bound_open(const model *m, backend *be, const model_limits *limits, bound_model **out,
                         inferd_err *err);
void bound_close(bound_model *p); // unstages first; accepts NULL
/* From now on this model, of the same content (model_same_content), is borrowed, and its file is
 * read.  Not while STAGING. */
void bound_read_from(bound_model *p, const model *m);

/* The size of a model's prepared weights on this backend, of which only constant properties are
 * used: any thread.  Pages as in bound_weight_pages. */
inferd_status model_weigh(const model *m, const backend *be, uint32_t *n_pages, uint64_t *n_bytes,
                          inferd_err *err);

/* backend_options.workspace_least for a device that will have these models. */
inferd_status models_workspace_bytes(const model *const *models, uint32_t n,
                                     const backend_options *o, const model_limits *limits,
                                     uint64_t *out, inferd_err *err);

uint32_t bound_weight_pages(const bound_model *p); // pages that the prepared weights take
uint64_t bound_weight_bytes(const bound_model *p); // bytes of the weights in them
/* Pages' worth of host memory while warm.  One memory: the same ones as weight_pages. */
uint32_t bound_host_pages(const bound_model *p);
uint64_t bound_stage_bytes(const bound_model *p); // to read, or to make up
const kv_layout *bound_kv(const bound_model *p);
/* Tensors of the file that are not read and not needed for text: those of an image encoder. */
uint32_t bound_n_unused_tensors(const bound_model *p);
/* Bytes of prepared weights that a step of one row reads. */
uint64_t bound_step_bytes(const bound_model *p);
/* How the matrices are multiplied on this device, for people: "i16: Q4_1 66.4 MB, Q8_0 30.1 MB;
 * f32: F16 3.0 MB"; "" if there is one way for all. */
void bound_describe_math(const bound_model *p, char *text, size_t text_bytes);

typedef enum bound_state {
    BOUND_COLD,    // only the file
    BOUND_STAGING, // the file is being read and prepared
    BOUND_WARM,    // prepared, in host memory
    BOUND_LOADING, // in flight to the device; steps may be launched and wait there
    BOUND_HOT
} bound_state;
bound_state bound_state_of(const bound_model *p);

typedef struct bound_progress {
    uint64_t done, total; // bytes
    uint64_t device_us;   // that this piece kept the compute threads, or the device, from steps
    bool finished;
    bool waiting; // for the file: nothing to do until `wake` was called
} bound_progress;

/* Called once after each step that was waiting, from another thread: do little. */
typedef void bound_wake(void *ctx);

/* COLD -> STAGING.  A thread begins to read.  `pages` ([bound_weight_pages], copied): the stage
 * uses them from now on.  One memory: always.  Else they are pages of the device: pieces pass
 * through host memory, and no copy stays there; NULL (0 pages): a copy in host memory. */
inferd_status bound_stage_begin(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                                bound_wake *wake, void *ctx, inferd_err *err);
/* Prepare rows that were read, for about budget_us and at most one piece longer; never waits for
 * the file.  STAGING -> WARM when finished, -> COLD after a failure. */
inferd_status bound_stage_step(bound_model *p, uint64_t budget_us, bound_progress *out,
                               inferd_err *err);
/* Any state -> COLD: the reader has ended, its buffers are free, every page is home. */
void bound_unstage(bound_model *p);
/* How the weights were read, or why a faster way failed, for the log: "" or one sentence.  Until
 * the next stage_begin. */
const char *bound_stage_note(const bound_model *p);

/* WARM -> LOADING.  `pages` as many as bound_weight_pages; those of the stage, if it had some. */
inferd_status bound_load_begin(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                               inferd_err *err);
/* LOADING -> HOT when everything has arrived, -> COLD after a failure. */
inferd_status bound_load_step(bound_model *p, uint64_t budget_us, bound_progress *out,
                              inferd_err *err);
/* LOADING or HOT -> WARM; waits for uploads.  Its pages (except with one memory) are free then.
 * Not without a host copy: then only bound_unstage. */
void bound_unload(bound_model *p);

/* Two memories, HOT.  Frees the host copy. / Makes one from the device's weights, beside steps of
 * other models; INFERD_ENOMEM: host memory is used up.  / finished: it is complete. */
void bound_drop_copy(bound_model *p);
inferd_status bound_save_begin(bound_model *p, inferd_err *err);
inferd_status bound_save_step(bound_model *p, uint64_t budget_us, bound_progress *out,
                              inferd_err *err);

/* For tools: write the prepared weights into a file that later stages read instead (packed.h).
 * The backend is fresh: its first pages are taken.  path NULL: the path that stages read;
 * *out_path, if not NULL, gets that path, which the caller frees. */
inferd_status model_pack(const model *m, backend *be, const char *path, char **out_path,
                         inferd_err *err);
/* For tools: all of that at once, COLD -> HOT, waiting for the file. */
inferd_status bound_bring_up(bound_model *p, const uint32_t *pages, uint32_t n_pages,
                             inferd_err *err);

/* LOADING or HOT.  Launch a step: the forward pass of the batch and, if the device can
 * (be_can_draw), the drawing of `draws` ([b->n_logits]; ids below n_vocab).  The arguments are
 * borrowed for the call.  be_step_finish returns the result; without drawing (`draws` is NULL,
 * or the device cannot) it has the logits. */
void bound_launch(bound_model *p, const batch *b, const sample_row *draws, uint32_t n_vocab);

#endif
