/* dummy_model.h - models at the shapes of real ones, with weights made up from a seed.
 *
 *     dummy:SHAPE[?OPTION=VALUE[&OPTION=VALUE]...]       dummy:llama-3.1-8b?dtype=q4_k_m&layers=4
 *
 *     dtype     f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs
 *               mxfp4, or q4_k_m: q4_k, with q6_k for the head and, in half of the layers, for
 *               attn_v and ffn_down;  bf16 when absent.  Rows that are no whole blocks of the type
 *               have another, as in files that llama.cpp quantises
 *     layers    how many; that of the shape when absent, like the next two
 *     context   positions
 *     vocab     rows of the embedding
 *     seed      of the weights; 0 when absent
 *
 * Speed and memory are those of the real model; the output is nonsense.  Everything except the
 * matrices' bytes is a GGUF file, so it is read, planned and checked like any other.
 *
 * Thread: any. */
#ifndef INFERD_DUMMY_MODEL_H
#define INFERD_DUMMY_MODEL_H

#include "gguf/gguf.h"

/* The file of `path`, which begins with MODEL_DUMMY_PREFIX.  INFERD_EINVAL: an unknown word, with
 * the list of known ones; INFERD_EUNSUPPORTED: a shape that this build cannot compute, with the
 * missing feature. */
inferd_status dummy_model_open(const char *path, gguf **out, uint64_t *seed, inferd_err *err);

/* The standard deviation of a matrix.  It is smaller for outputs added to the residual stream, so
 * that the stream does not grow with the number of layers. */
float dummy_scale(const char *tensor_name, uint32_t n_layers);

#endif
