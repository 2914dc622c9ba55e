/* sampling.c - see models/sampling.h. */
#include "models/sampling.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "model_private.h"

enum { SIDE_FILE_BYTES_MAX = 1 << 20 };
#define SIDE_FILE    "generation_config.json"
#define GREEDY_BELOW 1e-5 // a temperature below this picks the largest logit, as in vLLM

typedef struct param_row {
    sampling_range range;
    const char *gguf_key;  // NULL: files have none
    const char *side_name; // in generation_config.json; NULL: likewise
} param_row;

static const param_row rows[SAMPLING_PARAMS] = {
    [SAMPLING_TEMPERATURE] = {{"temperature", 0, 2, false, 1},
                              "general.sampling.temp",
                              "temperature"},
    [SAMPLING_TOP_P] = {{"top_p", 0, 1, true, 1}, "general.sampling.top_p", "top_p"},
    [SAMPLING_TOP_K] = {{"top_k", -1, SAMPLING_TOP_K_MAX, false, 0},
                        "general.sampling.top_k",
                        "top_k"},
    [SAMPLING_MIN_P] = {{"min_p", 0, 1, false, 0}, "general.sampling.min_p", "min_p"},
    [SAMPLING_REPETITION_PENALTY] = {{"repetition_penalty", 0.01, 100, false, 1},
                                     "general.sampling.penalty_repeat",
                                     "repetition_penalty"},
    [SAMPLING_PRESENCE_PENALTY] = {{"presence_penalty", -2, 2, false, 0}, NULL, NULL},
    [SAMPLING_FREQUENCY_PENALTY] = {{"frequency_penalty", -2, 2, false, 0}, NULL, NULL},
};

const sampling_range *sampling_about(sampling_param p) {
    return &rows[p].range;
}

const char *sampling_source_name(sampling_source s) {
    static const char *const names[] = {"default", SIDE_FILE, "gguf", "configuration", "request"};
    return names[s];
}

const char *sampling_key(sampling_param p, sampling_source s) {
    return s == SAMPLING_GGUF        ? rows[p].gguf_key
           : s == SAMPLING_SIDE_FILE ? rows[p].side_name
                                     : NULL;
}

void sampling_defaults_init(sampling_defaults *d) {
    *d = (sampling_defaults){0};
    for (int i = 0; i < SAMPLING_PARAMS; i++) d->values[i] = rows[i].range.neutral;
}

void sampling_set(sampling_defaults *d, sampling_param p, double value, sampling_source from) {
    if (isnan(value)) return;
    d->values[p] = p == SAMPLING_TOP_K && value < 0 ? 0 : value; // -1 turns it off, too
    d->from[p] = from;
}

void sampling_fill(const sampling_defaults *d, sample_params *out) {
    const double *v = d->values;
    float top_p = (float)v[SAMPLING_TOP_P];
    out->temperature = v[SAMPLING_TEMPERATURE] < GREEDY_BELOW ? 0 : (float)v[SAMPLING_TEMPERATURE];
    out->top_p = top_p > 0 ? top_p : FLT_MIN;
    out->top_k = (uint32_t)v[SAMPLING_TOP_K];
    out->min_p = (float)v[SAMPLING_MIN_P];
    out->repetition_penalty = (float)v[SAMPLING_REPETITION_PENALTY];
    out->presence_penalty = (float)v[SAMPLING_PRESENCE_PENALTY];
    out->frequency_penalty = (float)v[SAMPLING_FREQUENCY_PENALTY];
}

/* ---- files ---- */

/* Is the value allowed?  Writes the sentence that says what is, without the name of the file. */
static inferd_status check(const char *where, const char *name, sampling_param p, double value,
                           inferd_err *err) {
    const sampling_range *r = &rows[p].range;
    bool inside = value >= r->min && value <= r->max && !(r->above_min && value == r->min);
    if (inside && (p != SAMPLING_TOP_K || value == floor(value))) return INFERD_OK;
    return inferd_fail(err, INFERD_EFORMAT, "%s: %s is %.6g; expected %s from %.12g to %.12g%s",
                       where, name, value, p == SAMPLING_TOP_K ? "a whole number" : "a number",
                       r->min, r->max, r->above_min ? ", the first excluded" : "");
}

static inferd_status read_gguf(const gguf *g, sampling_defaults *d, inferd_err *err) {
    for (sampling_param p = 0; p < SAMPLING_PARAMS; p++) {
        double value = NAN;
        if (rows[p].gguf_key == NULL) continue;
        inferd_status st = gguf_f64_or(g, rows[p].gguf_key, -DBL_MAX, DBL_MAX, NAN, &value, err);
        if (st == INFERD_OK && !isnan(value))
            st = check(gguf_path(g), rows[p].gguf_key, p, value, err);
        if (st != INFERD_OK) return st;
        sampling_set(d, p, value, SAMPLING_GGUF);
    }
    return INFERD_OK;
}

static inferd_status read_members(const char *path, const json_t *root, sampling_defaults *d,
                                  inferd_err *err) {
    if (!json_is_object(root))
        return inferd_fail(err, INFERD_EFORMAT, "%s: expected a JSON object", path);
    for (sampling_param p = 0; p < SAMPLING_PARAMS; p++) {
        const char *name = rows[p].side_name;
        const json_t *v = name == NULL ? NULL : json_object_get(root, name);
        if (v == NULL || json_is_null(v)) continue;
        if (!json_is_number(v))
            return inferd_fail(err, INFERD_EFORMAT, "%s: %s is not a number", path, name);
        inferd_status st = check(path, name, p, json_number_value(v), err);
        if (st != INFERD_OK) return st;
        sampling_set(d, p, json_number_value(v), SAMPLING_SIDE_FILE);
    }
    /* There, temperature has no effect without sampling. */
    if (json_is_false(json_object_get(root, "do_sample")))
        sampling_set(d, SAMPLING_TEMPERATURE, 0, SAMPLING_SIDE_FILE);
    return INFERD_OK;
}

static inferd_status read_side(const char *path, sampling_defaults *d, inferd_err *err) {
    char *text = NULL;
    size_t n = 0;
    json_error_t why;
    inferd_status st = model_read_file(path, SIDE_FILE_BYTES_MAX, &text, &n, err);
    if (st != INFERD_OK) return st;
    json_t *root = json_loadb(text, n, 0, &why);
    free(text);
    st = root != NULL ? read_members(path, root, d, err)
                      : inferd_fail(err, INFERD_EFORMAT, "%s:%d: %s", path, why.line, why.text);
    json_decref(root);
    return st;
}

/* "DIR/NAME.generation_config.json" of "DIR/NAME.gguf" or, of a split model,
 * "DIR/NAME-00001-of-00003.gguf"; else "DIR/generation_config.json"; NULL: no memory. */
static char *side_path(const char *model_path, bool of_model) {
    const char *slash = strrchr(model_path, '/');
    size_t n_folder = slash == NULL ? 0 : (size_t)(slash - model_path) + 1;
    size_t n_kept = of_model ? gguf_stem_bytes(model_path) : n_folder;
    char *path = malloc(n_kept + sizeof "." SIDE_FILE);
    if (path != NULL)
        sprintf(path, "%.*s%s" SIDE_FILE, (int)n_kept, model_path, of_model ? "." : "");
    return path;
}

/* The first of the two that exists; NULL: none. */
inferd_status sampling_find_side(const char *model_path, char **out, inferd_err *err) {
    for (int of_model = 1; of_model >= 0; of_model--) {
        *out = side_path(model_path, of_model);
        if (*out == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
        if (faccessat(AT_FDCWD, *out, F_OK, AT_EACCESS) == 0 ||
            (errno != ENOENT && errno != ENOTDIR))
            return INFERD_OK;
        free(*out);
        *out = NULL;
    }
    return INFERD_OK;
}

/* One that exists and cannot be read is an error. */
static inferd_status read_sides(const char *model_path, sampling_defaults *d, inferd_err *err) {
    char *path;
    inferd_status st = sampling_find_side(model_path, &path, err);
    if (st == INFERD_OK && path != NULL) st = read_side(path, d, err);
    free(path);
    return st;
}

inferd_status model_read_sampling(model *m, inferd_err *err) {
    sampling_defaults *d = &m->info.sampling;
    sampling_defaults_init(d);
    if (m->dummy) return INFERD_OK;
    inferd_status st = read_sides(m->path, d, err);
    return st == INFERD_OK ? read_gguf(m->file, d, err) : st; // the later one wins
}
