/* bench_forced.c - compares the results of a device with references that the CPU made before, and
 * checks the differences against limits.
 *
 *     bench_forced --make DIR [--models LIST] [--tiny] [--text FILE]
 *         on the CPU, float32 throughout: a file NAME.forced for each model
 *     bench_forced --reference DIR [--model FILE.gguf] [--device cuda|cpu] [--emulated] [--tiny]
 *         the same rows on the device, with graphs and without
 *     bench_forced --answers [--models LIST] [--model FILE.gguf] [--emulated] [--tiny]
 *         the same requests to the CPU and to the device
 *
 *     --models LIST   separated by commas; files, or dummy:SHAPE (models/dummy_model.h).  Default:
 *                     dummy:llama-3.1-8b with two layers, as bf16 and as q4_k_m; --tiny: tiny ones
 *     --model FILE    the model file of a reference, at its current path; without it a reference
 *                     made from a file is not run
 *     --prompt N --rows N
 *                     tokens of the prompt and rows of decoding (2048, 256; --tiny: 40, 65)
 *     --text FILE     the prompt text for models with a real vocabulary; otherwise random ids
 *     --activations T bf16 or f16, of the CUDA backend
 *     --emulated      on emulated threads: checks this program and the kernels' results
 *     --exact         --device cpu: computes as for the references; otherwise as when serving
 *
 * Prints JSON, a line per case.  A case fails when a difference is above its limit or NaN: the
 * program prints "WRONG RESULT" with the case, continues, and ends with status 1.  Any other
 * failure ends it immediately with status 1.
 *
 * Limits: see docs/gpu.md, "What is verified". */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>
#include <sys/stat.h>

#include "forced.h"
#include "gpu.h"
#include "inferd/dummy_math.h"

#define SUFFIX ".forced"

enum { REFERENCES_MAX = 64, PATH_BYTES = 512, SEED = 15, TEXT_BYTES_MAX = 1 << 20 };

typedef struct options {
    const char *make, *reference, *models, *model, *text;
    forced_device device;
    bool answers;
    uint32_t n_prompt, n_decode; // 0: the maximum, or few with --tiny
} options;

/* ---- limits ---- */

/* With bf16 activations: about five times what the emulated kernels measured, docs/gpu.md. */
typedef struct limits {
    const char *model; // prefix of its name
    double kl_mean, kl, diff;
    double lead; // of the difference between the two best
} limits;

static const limits known_limits[] = {
    {"dummy:tiny-", 4e-5, 1e-4, 0.08, 0.05},
    {"dummy:tiny", 6e-6, 1e-5, 0.03, 0.02},
    {"dummy:", 5e-4, 1e-3, 0.25, 0.2},
    {"", 6e-3, 2e-2, 2.5, 1},
};
enum { DRAW_LIMIT_PPM = 1000 }; // of sampling results, compared with the logits sampled from

/* f16 has three bits more than bf16: differences are an eighth, and KL is a 64th.  The limits are
 * reduced by half of these factors, because some errors do not become smaller. */
static limits limits_of(const forced_device *d, const char *name) {
    const limits *known = known_limits;
    while (strncmp(name, known->model, strlen(known->model)) != 0) known++;
    limits l = *known;
    if (d->activations == NULL || strcmp(d->activations, "f16") != 0) return l;
    l.kl_mean /= 32;
    l.kl /= 32;
    l.diff /= 4;
    l.lead /= 4;
    return l;
}

/* ---- making ---- */

static uint64_t random_at(uint32_t kind, uint32_t i) {
    return dummy_hash(SEED, kind, i);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Positions around the ends of tiles, blocks and splits, then random ones; ascending, each once. */
static void choose_positions(forced_reference *t) {
    enum { RANDOM = 40 };
    uint32_t all[FORCED_ROWS_MAX], n = 0;
    all[n++] = 0;
    all[n++] = t->n_prompt - 1;
    for (uint32_t at = 16; at <= t->n_prompt; at *= 2)
        for (uint32_t near = at - 1; near <= at + 1; near++)
            if (near < t->n_prompt) all[n++] = near;
    for (uint32_t i = 0; i < RANDOM; i++) all[n++] = (uint32_t)(random_at(1, i) % t->n_prompt);
    qsort(all, n, sizeof *all, by_size);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || all[i] != all[i - 1]) t->positions[t->n_rows++] = all[i];
}

/* The first contexts are of all kinds, for steps of few rows.  The others are whole blocks, as many
 * short as long ones; every fourth has up to 7 more tokens, which are computed for each row. */
static void choose_contexts(forced_reference *t) {
    uint32_t n = t->n_prompt;
    const uint32_t first[] = {n / 5, 1, n - 1, n / 2 + 3, 0, 33, n * 4 / 5, 65};
    for (uint32_t i = 0; i < t->n_decode; i++) {
        uint32_t doublings = (uint32_t)(random_at(2, i) % 7);
        uint32_t c = (uint32_t)(random_at(3, i) % n) >> doublings;
        t->contexts[i] =
            i < INFERD_COUNT(first) ? first[i] % n : c / 32 * 32 + (i % 4 == 0 ? c % 8 : 0);
    }
}

static void read_text(const char *path, const model *m, tok_ids *ids) {
    inferd_err err = {0};
    char *text = malloc(TEXT_BYTES_MAX);
    FILE *f = fopen(path, "rbe");
    if (text == NULL || f == NULL) gpu_die("%s: %s", path, strerror(errno));
    size_t n = fread(text, 1, TEXT_BYTES_MAX, f);
    fclose(f);
    gpu_need_status(tok_encode(model_tokenizer(m), (bytes){text, n}, NULL, 0, NULL, ids, &err),
                    &err);
    free(text);
}

static void choose_tokens(forced_reference *t, const model *m, const char *text) {
    tok_ids ids = {0};
    if (text != NULL && !model_path_is_dummy(model_about(m)->path)) {
        read_text(text, m, &ids);
        if (ids.n < t->n_prompt)
            gpu_die("%s has %zu tokens, %u are needed", text, ids.n, t->n_prompt);
    }
    for (uint32_t i = 0; i < t->n_prompt; i++)
        t->prompt[i] = ids.n > 0 ? ids.ids[i] : (tok_id)(random_at(4, i) % t->n_vocab);
    for (uint32_t i = 0; i < t->n_decode; i++)
        t->next[i] = t->prompt[random_at(5, i) % t->n_prompt];
    tok_ids_deinit(&ids);
}

/* The last part of a path; for a made-up model the whole name. */
static const char *short_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return model_path_is_dummy(path) || slash == NULL ? path : slash + 1;
}

static void describe(forced_reference *t, const options *o, const char *path) {
    inferd_err err = {0};
    model *m = NULL;
    memset(t, 0, sizeof *t);
    if (snprintf(t->model, sizeof t->model, "%s", short_name(path)) >= (int)sizeof t->model)
        gpu_die("%s: a name of %d bytes at most", path, FORCED_NAME_BYTES - 1);
    gpu_need_status(forced_identity(path, &t->identity, &err), &err);
    gpu_need_status(model_open(&(model_options){.path = path, .allow_dummy = true}, &m, &err),
                    &err);
    t->n_vocab = model_about(m)->n_vocab;
    t->n_prompt = o->n_prompt != 0 ? o->n_prompt : o->device.tiny ? 40 : FORCED_PROMPT_MAX;
    t->n_decode = o->n_decode != 0 ? o->n_decode : o->device.tiny ? 65 : FORCED_DECODE_MAX;
    choose_tokens(t, m, o->text);
    choose_contexts(t);
    choose_positions(t);
    model_close(m);
}

typedef struct taking {
    forced_reference *ref;
    forced_row *rows;
    uint32_t kind;
} taking;

static void take_row(void *ctx, uint32_t row, const float *logits) {
    taking *t = ctx;
    forced_row_take(logits, t->ref->n_vocab, random_at(t->kind, row), &t->rows[row]);
}

static void save(const options *o, const forced_reference *t) {
    char path[PATH_BYTES];
    inferd_err err = {0};
    struct stat about;
    int n = snprintf(path, sizeof path, "%s/", o->make);
    int end = snprintf(path + n, sizeof path - (size_t)n, "%s" SUFFIX, t->model);
    if (n + end >= (int)sizeof path) gpu_die("%s: too long a path", o->make);
    for (char *p = path + n; *p != 0; p++)
        if (strchr(":?&=/", *p) != NULL) *p = '_';
    gpu_need_status(forced_save(t, path, &err), &err);
    if (stat(path, &about) != 0) gpu_die("%s: %s", path, strerror(errno));
    row_begin("made");
    row_text("model", t->model);
    row_text("file", path);
    row_text("device", t->made_by);
    row_count("bytes", (uint64_t)about.st_size);
    row_count("prompt", t->n_prompt);
    row_count("prompt_rows", t->n_rows);
    row_count("decode_rows", t->n_decode);
    row_end();
}

static void make(const options *o, const char *path) {
    static forced_reference t;
    double began = gpu_now_us();
    forced_device d = {.kind = "cpu", .exact = true, .tiny = o->device.tiny};
    describe(&t, o, path);
    forced_rig *r = forced_open(&d, path, &t);
    snprintf(t.made_by, sizeof t.made_by, "%s", forced_name(r));
    forced_prompt(r, FORCED_WHOLE, t.n_prompt, take_row, &(taking){&t, t.rows, 6});
    forced_tails(r, false);
    forced_decode(r, 0, t.n_decode, 0, take_row, &(taking){&t, t.decode, 7});
    forced_close(r);
    save(o, &t);
    fprintf(stderr, "%s: %.1f s\n", path, (gpu_now_us() - began) * 1e-6);
}

/* ---- comparing ---- */

typedef struct comparing {
    const forced_reference *ref;
    const forced_row *rows;
    forced_gap gap;
    float *kept; // [rows, n_vocab] or NULL
} comparing;

typedef struct run {
    const forced_reference *ref;
    forced_rig *rig;
    const char *device;
    const char *activations;
    limits limits;
    bool graphs, tiny;
    bool wrong; // a case failed
} run;

static void compare_row(void *ctx, uint32_t row, const float *logits) {
    comparing *c = ctx;
    uint32_t n = c->ref->n_vocab;
    forced_row_compare(&c->rows[row], logits, n, row, &c->gap);
    if (c->kept != NULL) memcpy(c->kept + (size_t)row * n, logits, n * sizeof *logits);
}

static bool above(double value, double limit) {
    return !(value <= limit); // also true for NaN
}

static void tell(run *r, const char *name, uint32_t rows, const forced_gap *gap,
                 const forced_gap *drawn, const char *degraded) {
    const limits *l = &r->limits;
    double mean = gap->kl_sum / gap->n, draw_limit = DRAW_LIMIT_PPM * 1e-6;
    bool wrong = gap->n == 0 || gap->not_finite || above(mean, l->kl_mean) ||
                 above(gap->kl_max, l->kl) || above(gap->diff_max, l->diff) ||
                 above(gap->lead_max, l->lead) || drawn->not_finite ||
                 above(drawn->diff_max, draw_limit);
    r->wrong |= wrong;
    if (wrong)
        printf("WRONG RESULT %s: %s, %u rows, graphs %s: mean KL %.3g (limit %.3g), largest %.3g "
               "(%.3g), largest difference %.3g (%.3g) in row %u, lead %.3g (%.3g), drawn %.3g "
               "(%.3g)%s\n",
               r->ref->model, name, rows, r->graphs ? "on" : "off", mean, l->kl_mean, gap->kl_max,
               l->kl, gap->diff_max, l->diff, gap->worst, gap->lead_max, l->lead, drawn->diff_max,
               draw_limit, gap->not_finite || drawn->not_finite ? ", not a number" : "");
    row_begin("forced");
    row_text("model", r->ref->model);
    row_text("device", r->device);
    row_text("activations", r->activations);
    row_text("case", name);
    row_count("rows", rows);
    row_bool("graphs", r->graphs);
    row_count("compared", gap->n);
    row_number("kl_mean", mean);
    row_number("kl_max", gap->kl_max);
    row_number("diff_max", gap->diff_max);
    row_number("lead_diff_max", gap->lead_max);
    row_count("worst_row", gap->worst);
    if (drawn->n > 0) row_number("draw_diff_max", drawn->diff_max);
    row_number("limit_kl_mean", l->kl_mean);
    row_number("limit_kl", l->kl);
    row_number("limit_diff", l->diff);
    row_number("limit_lead", l->lead);
    if (degraded != NULL) row_text("degraded", degraded);
    row_bool("ok", !wrong);
    row_end();
}

static void run_prompt(run *r, const char *name, forced_cut cut, uint32_t chunk) {
    comparing c = {.ref = r->ref, .rows = r->ref->rows};
    forced_prompt(r->rig, cut, chunk, compare_row, &c);
    tell(r, name, r->ref->n_prompt, &c.gap, &(forced_gap){0}, NULL);
}

/* The first step of a kind is launched, the second recorded, the third replayed. */
static void run_decode(run *r, uint32_t n, uint32_t beside) {
    uint32_t n_times = r->graphs ? 3 : 1;
    bool draw = beside == 0 && (!r->tiny || n <= 8);
    backend_stats before, after;
    forced_gap drawn = {0};
    comparing c = {.ref = r->ref, .rows = r->ref->decode};
    c.kept = malloc((size_t)n * r->ref->n_vocab * sizeof *c.kept);
    if (c.kept == NULL) gpu_die("no memory for %u rows", n);
    forced_stats(r->rig, &before);
    for (uint32_t i = 0; i < n_times; i++) {
        forced_decode(r->rig, 0, n, beside, i + 1 == n_times ? compare_row : NULL, &c);
    }
    /* A replayed step may have more rows than the launched one, and therefore other kernels; the
     * results are compared with logits of the same kind of step. */
    for (uint32_t i = 0; i < n_times && draw; i++) {
        const sample_result *draws = forced_draw(r->rig, 0, n);
        for (uint32_t k = 0; draws != NULL && i + 1 == n_times && k < n; k++)
            forced_draw_compare(c.kept + (size_t)k * r->ref->n_vocab, r->ref->n_vocab, &draws[k], k,
                                &drawn);
    }
    forced_stats(r->rig, &after);
    bool replayed = after.n_graph_launches > before.n_graph_launches;
    const char *degraded = !r->graphs || beside > 0 || replayed ? NULL
                           : after.n_graphs_refused > before.n_graphs_refused
                               ? "capture was refused"
                               : "no graph was replayed";
    if (!r->graphs && replayed) gpu_die("graphs were replayed although they are off");
    tell(r, beside > 0 ? "mixed" : "decode", n, &c.gap, &drawn, degraded);
    free(c.kept);
}

static void run_all(run *r) {
    static const uint32_t all[] = {1, 4, 5, 8, 64, 65, 256}, few[] = {1, 4, 5, 65};
    const uint32_t *rows = r->tiny ? few : all;
    size_t n = r->tiny ? INFERD_COUNT(few) : INFERD_COUNT(all);
    uint32_t n_prompt = r->ref->n_prompt;
    run_prompt(r, "prompt", FORCED_WHOLE, n_prompt);
    run_prompt(r, "chunks", FORCED_CHUNKS, n_prompt / 4 + 1);
    forced_tails(r->rig, true);
    for (size_t i = 0; i < n; i++)
        if (rows[i] <= r->ref->n_decode) run_decode(r, rows[i], 0);
    run_decode(r, u32_min(8, r->ref->n_decode), n_prompt / 2 + 1);
}

/* The path of a reference's model; NULL: not on this machine. */
static const char *find_model(const options *o, const forced_reference *ref) {
    inferd_err err = {0};
    uint64_t identity;
    const char *path = model_path_is_dummy(ref->model) ? ref->model : o->model;
    if (path == NULL) return NULL;
    gpu_need_status(forced_identity(path, &identity, &err), &err);
    if (identity == ref->identity) return path;
    if (path != ref->model)
        gpu_die("%s is not the %s that the reference was made of: its bytes differ", path,
                ref->model);
    gpu_die("the reference of %s is of other made-up weights than this program's", ref->model);
    return NULL;
}

static void tell_parts(const forced_rig *rig) {
    backend_stats stats;
    forced_stats(rig, &stats);
    gpu_tell_parts(&stats);
}

static bool compare(const options *o, const char *file) {
    static forced_reference ref;
    inferd_err err = {0};
    bool cuda = strcmp(o->device.kind, "cuda") == 0, wrong = false;
    gpu_need_status(forced_load(file, &ref, &err), &err);
    const char *path = find_model(o, &ref);
    if (path == NULL) {
        row_begin("forced");
        row_text("model", ref.model);
        row_text("not_run", "no --model");
        row_end();
        return true;
    }
    const char *off = getenv("INFERD_CUDA_OFF");
    bool forbidden = off != NULL && strstr(off, "graphs") != NULL;
    for (int graphs = cuda && !forbidden ? 1 : 0; graphs >= 0; graphs--) {
        forced_device d = o->device;
        d.off = graphs == 1 ? NULL : "graphs";
        run r = {
            .ref = &ref, .rig = forced_open(&d, path, &ref), .graphs = graphs == 1, .tiny = d.tiny};
        r.device = forced_name(r.rig);
        r.activations = cuda      ? d.activations != NULL ? d.activations : "bf16"
                        : d.exact ? "f32"
                                  : "cpu";
        r.limits = limits_of(&d, ref.model);
        run_all(&r);
        if (cuda && (graphs == 1 || forbidden)) tell_parts(r.rig);
        wrong |= r.wrong;
        forced_close(r.rig);
    }
    return !wrong;
}

static bool is_reference(const char *name) {
    size_t n = strlen(name), k = sizeof SUFFIX - 1;
    return n > k && strcmp(name + n - k, SUFFIX) == 0;
}

static bool compare_all(const options *o) {
    static char paths[REFERENCES_MAX][PATH_BYTES];
    uint32_t n = 0;
    bool ok = true;
    DIR *dir = opendir(o->reference);
    if (dir == NULL) gpu_die("%s: %s", o->reference, strerror(errno));
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (!is_reference(e->d_name)) continue;
        if (n == REFERENCES_MAX) gpu_die("%s: more than %d references", o->reference, n);
        if (snprintf(paths[n++], PATH_BYTES, "%s/%s", o->reference, e->d_name) >= PATH_BYTES)
            gpu_die("%s: too long a path", o->reference);
    }
    closedir(dir);
    if (n == 0) gpu_die("%s has no file *" SUFFIX, o->reference);
    qsort(paths, n, PATH_BYTES, (int (*)(const void *, const void *))strcmp);
    for (uint32_t i = 0; i < n; i++) ok &= compare(o, paths[i]);
    return ok;
}

/* ---- the program ---- */

static uint32_t number(const char *text, uint32_t most) {
    unsigned long v = strtoul(text, NULL, 10);
    if (v < 1 || v > most) gpu_die("%s: a number from 1 to %u", text, most);
    return (uint32_t)v;
}

static void read_options(options *o, int argc, char **argv) {
    static const struct option known[] = {{"make", required_argument, NULL, 'm'},
                                          {"reference", required_argument, NULL, 'r'},
                                          {"answers", no_argument, NULL, 'a'},
                                          {"models", required_argument, NULL, 'l'},
                                          {"model", required_argument, NULL, 'f'},
                                          {"text", required_argument, NULL, 'x'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"emulated", no_argument, NULL, 'e'},
                                          {"tiny", no_argument, NULL, 't'},
                                          {"exact", no_argument, NULL, 'c'},
                                          {"prompt", required_argument, NULL, 'p'},
                                          {"rows", required_argument, NULL, 'n'},
                                          {"activations", required_argument, NULL, 'v'},
                                          {0}};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == 'm')
            o->make = optarg;
        else if (c == 'r')
            o->reference = optarg;
        else if (c == 'a')
            o->answers = true;
        else if (c == 'l')
            o->models = optarg;
        else if (c == 'f')
            o->model = optarg;
        else if (c == 'x')
            o->text = optarg;
        else if (c == 'd')
            o->device.kind = optarg;
        else if (c == 'v')
            o->device.activations = optarg;
        else if (c == 'e')
            o->device.emulated = true;
        else if (c == 't')
            o->device.tiny = true;
        else if (c == 'c')
            o->device.exact = true;
        else if (c == 'p')
            o->n_prompt = number(optarg, FORCED_PROMPT_MAX);
        else if (c == 'n')
            o->n_decode = number(optarg, FORCED_DECODE_MAX);
        else
            exit(2);
    }
    if (argc != optind || (o->make != NULL) + (o->reference != NULL) + o->answers != 1)
        gpu_die("bench_forced: one of --make DIR, --reference DIR, --answers");
    if (o->models != NULL) return;
    o->models = o->device.tiny ? "dummy:tiny,dummy:tiny?dtype=q4_k_m"
                               : "dummy:llama-3.1-8b?layers=2&dtype=bf16,"
                                 "dummy:llama-3.1-8b?layers=2&dtype=q4_k_m";
}

static bool each_model(const options *o, bool (*f)(const options *o, const char *path)) {
    bool ok = true;
    char *list = strdup(o->models), *rest = list;
    if (list == NULL) gpu_die("no memory for a list");
    for (char *path = strsep(&rest, ","); path != NULL; path = strsep(&rest, ","))
        if (path[0] != 0) ok &= f(o, path);
    free(list);
    return ok;
}

static bool make_one(const options *o, const char *path) {
    make(o, path);
    return true;
}

static bool answer_one(const options *o, const char *path) {
    return forced_answers(&o->device, path, limits_of(&o->device, short_name(path)).lead);
}

int main(int argc, char **argv) {
    options o = {.device = {.kind = "cuda"}};
    bool ok = true;
    read_options(&o, argc, argv);
    if (o.make != NULL)
        each_model(&o, make_one);
    else if (o.reference != NULL)
        ok = compare_all(&o);
    else
        ok = each_model(&o, answer_one);
    if (o.make == NULL && o.reference == NULL && o.model != NULL)
        ok = answer_one(&o, o.model) && ok;
    gpu_check_emulation(o.device.emulated);
    return ok ? 0 : 1;
}
