/* sampling.h - the sampling parameters of requests that give none: what a model's authors
 * recommend.
 *
 * Each parameter comes from the first place that has it:
 *
 *   1  the request
 *   2  models[].sampling of the configuration
 *   3  general.sampling.* of the GGUF file: temp, top_p, top_k, min_p, penalty_repeat
 *   4  generation_config.json beside it, the file of Hugging Face's transformers; for a folder with
 *      several models NAME.generation_config.json beside NAME.gguf, which then is the only one read
 *   5  the neutral value
 *
 * Other members of those files (mirostat, the order of samplers, beams) are not used.
 * Thread: any; values. */
#ifndef INFERD_SAMPLING_H
#define INFERD_SAMPLING_H

#include "inferd/base.h"
#include "inferd/sample.h"

typedef enum sampling_param {
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_P,
    SAMPLING_TOP_K,
    SAMPLING_MIN_P,
    SAMPLING_REPETITION_PENALTY,
    SAMPLING_PRESENCE_PENALTY,
    SAMPLING_FREQUENCY_PENALTY,
    SAMPLING_PARAMS
} sampling_param;

typedef enum sampling_source {
    SAMPLING_NEUTRAL,
    SAMPLING_SIDE_FILE,
    SAMPLING_GGUF,
    SAMPLING_CONFIG,
    SAMPLING_REQUEST
} sampling_source;

typedef struct sampling_defaults {
    double values[SAMPLING_PARAMS]; // of top_k: whole, 0 = off
    sampling_source from[SAMPLING_PARAMS];
} sampling_defaults;

enum { SAMPLING_TOP_K_MAX = INT32_MAX };

typedef struct sampling_range {
    const char *name; // as in requests: "temperature"
    double min, max;
    bool above_min; // min itself is not allowed
    double neutral; // has no effect
} sampling_range;

const sampling_range *sampling_about(sampling_param p);
const char *sampling_source_name(sampling_source s); // "generation_config.json"
/* Its name in files: "general.sampling.temp"; NULL: it is in none, or the source is no file. */
const char *sampling_key(sampling_param p, sampling_source s);

/* Neutral values; and values over others: NaN leaves what is there. */
void sampling_defaults_init(sampling_defaults *d);
void sampling_set(sampling_defaults *d, sampling_param p, double value, sampling_source from);
/* Fills all parameters but seed, choice index and bias. */
void sampling_fill(const sampling_defaults *d, sample_params *out);

#endif
