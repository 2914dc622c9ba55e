/* bench_engine.c - the engine without HTTP: each stream sends its next request as soon as the
 * previous one is answered.
 *
 *     bench_engine [options] MODEL
 *       --device KIND      cuda (default) or cpu
 *       --streams LIST     numbers of streams, one run each (default 1,8,32,128)
 *       --prompt N         tokens of a prompt (default 1024)
 *       --output N         tokens of an answer (default 128)
 *       --rounds N         answers per stream (default 2)
 *       --limit-s N        a run that takes longer is ended and reported as cut (default 60)
 *       --memory MIB       of the device (default: all free memory)
 *       --step-tokens N    most tokens of a step (default 2048)
 *       --schema FILE      a JSON Schema that all answers follow; they must be able to go on, or
 * fail
 *       --drafts N         draft tokens per step (default 0)
 *       --emulated         on emulated threads: for tests, measures nothing
 *
 * MODEL is a file, or dummy:SHAPE (models/dummy_model.h).  Every request has a different prompt
 * without a shared prefix; answers are greedy and have exactly --output tokens.  Before the first
 * run one request per stream runs unmeasured.
 *
 * Prints JSON, one object per line: the time of loading, then for each number of streams
 *
 *     tokens_s     output tokens divided by the time from the first request to the last token
 *     ttft, itl    milliseconds to the first token, and between tokens
 *     busy         device time of the steps divided by that time
 *     rows_step    tokens computed per step
 *     masks ...    of the schema: masks, those not in a cache, draws that waited for one, and the
 *                  time that all took */
#include <getopt.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "gpu.h"
#include "inferd/clock.h"
#include "scheduler/engine.h"

enum { STREAMS_MAX = 1024, WAIT_MS = 20, HOT_LIMIT_S = 300, SAMPLES_MAX = 1 << 22 };

typedef struct options {
    const char *kind, *streams, *model;
    const char *schema;
    uint32_t prompt, output, rounds, limit_s, memory_mib, step_tokens, drafts;
    bool emulated;
} options;

typedef struct stream {
    uint64_t id; // of its request; 0: none
    uint64_t asked_us, last_us;
    uint32_t n_tokens, n_left;
} stream;

typedef struct bench {
    const options *o;
    model *m;
    engine *e;
    grammar_machine *grammar; // NULL: answers are free
    stream streams[STREAMS_MAX];
    uint32_t n_streams, n_running;
    uint64_t next_id, first_us, last_us, n_tokens, n_failed;
    double *ttft, *itl; // milliseconds; [n_ttft], [n_itl] owned
    uint32_t n_ttft, n_itl;
    char error[GEN_TEXT_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken; // under lock
} bench;

/* ---- the engine's wake ---- */

static void wake(void *ctx) {
    bench *b = ctx;
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void wait_for_engine(bench *b) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WAIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&b->lock);
    while (!b->woken)
        if (pthread_cond_timedwait(&b->changed, &b->lock, &until) != 0) break;
    b->woken = false;
    pthread_mutex_unlock(&b->lock);
}

/* ---- requests ---- */

static uint64_t random_state = 1;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

static void ask(bench *b, stream *s, uint32_t n_output) {
    gen_request *r = calloc(1, sizeof *r);
    tok_id *prompt = malloc(b->o->prompt * sizeof *prompt);
    if (r == NULL || prompt == NULL) gpu_die("no memory for a request");
    uint32_t n_vocab = model_about(b->m)->n_vocab;
    for (uint32_t i = 0; i < b->o->prompt; i++)
        prompt[i] = (tok_id)(n_vocab / 2 + random_below(n_vocab / 4));
    s->id = ++b->next_id;
    s->asked_us = s->last_us = clock_now_us();
    s->n_tokens = 0;
    *r = (gen_request){.id = s->id,
                       .prio = GEN_NORMAL,
                       .prompt = prompt,
                       .n_prompt = b->o->prompt,
                       .max_tokens = n_output,
                       .ignore_eos = true,
                       .no_cache = true,
                       .n_logprobs = -1,
                       .n_prompt_logprobs = -1,
                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                       .grammar = b->grammar,
                       .arrival_us = s->asked_us};
    if (b->grammar != NULL) grammar_machine_hold(b->grammar);
    if (!engine_submit(b->e, r)) gpu_die("the engine's inbox is full");
    b->n_running++;
}

static stream *stream_of(bench *b, uint64_t id) {
    for (uint32_t i = 0; i < b->n_streams; i++)
        if (b->streams[i].id == id) return &b->streams[i];
    return NULL;
}

static void take_token(bench *b, stream *s, const gen_event *ev) {
    double ms = (double)(ev->at_us - s->last_us) * 1e-3;
    if (s->n_tokens++ == 0) {
        if (b->n_ttft < SAMPLES_MAX) b->ttft[b->n_ttft++] = ms;
    } else if (b->n_itl < SAMPLES_MAX) {
        b->itl[b->n_itl++] = ms;
    }
    s->last_us = b->last_us = ev->at_us;
    b->n_tokens++;
}

static void take_event(bench *b, const gen_event *ev, uint32_t n_output) {
    stream *s = stream_of(b, ev->id);
    if (s == NULL) return;
    if (ev->kind == GEN_EV_TOKEN) take_token(b, s, ev);
    if (ev->kind != GEN_EV_DONE) return;
    b->n_running--;
    s->id = 0;
    if (ev->done.finish != GEN_LENGTH) {
        b->n_failed++;
        snprintf(b->error, sizeof b->error, "%s",
                 ev->done.finish == GEN_STOP ? "an answer ended early" : ev->done.text);
    } else if (--s->n_left > 0) {
        ask(b, s, n_output);
    }
}

/* Each of n streams gets n_rounds answers.  False: the time limit was reached first. */
static bool go(bench *b, uint32_t n, uint32_t n_output, uint32_t n_rounds) {
    gen_event ev;
    b->n_streams = n;
    b->n_ttft = b->n_itl = 0;
    b->n_tokens = b->n_failed = 0;
    b->first_us = b->last_us = clock_now_us();
    uint64_t until = b->first_us + (uint64_t)b->o->limit_s * 1000000;
    for (uint32_t i = 0; i < n; i++) {
        b->streams[i] = (stream){.n_left = n_rounds};
        ask(b, &b->streams[i], n_output);
    }
    bool cut = false;
    while (b->n_running > 0) {
        while (engine_next_event(b->e, &ev)) take_event(b, &ev, n_output);
        if (b->n_running == 0) break;
        if (!cut && clock_now_us() > until) {
            cut = true;
            for (uint32_t i = 0; i < n; i++) {
                b->streams[i].n_left = 1;
                if (b->streams[i].id != 0) engine_cancel(b->e, b->streams[i].id);
            }
        }
        if (cut && clock_now_us() > until + 30000000) gpu_die("the engine does not answer");
        wait_for_engine(b);
    }
    return !cut;
}

/* ---- runs ---- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void tell_spread(const char *name, double *values, uint32_t n) {
    static const struct {
        const char *name;
        double part;
    } points[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};
    char key[32];
    qsort(values, n, sizeof *values, by_size);
    for (size_t i = 0; i < INFERD_COUNT(points) && n > 0; i++) {
        snprintf(key, sizeof key, "%s_%s_ms", name, points[i].name);
        row_number(key, values[(uint32_t)((n - 1) * points[i].part)]);
    }
}

static void run(bench *b, uint32_t n) {
    engine_stats before, after;
    uint32_t warm = b->o->output < 8 ? b->o->output : 8;
    go(b, n, warm, 1);
    engine_get_stats(b->e, &before);
    bool whole = go(b, n, b->o->output, b->o->rounds);
    engine_get_stats(b->e, &after);
    double seconds = (double)(b->last_us - b->first_us) * 1e-6;
    uint64_t steps = after.n_steps - before.n_steps;
    row_begin("serve");
    row_text("way", "in-process");
    row_text("model", b->o->model);
    row_text("device", engine_device_name(b->e));
    row_count("streams", n);
    row_count("prompt", b->o->prompt);
    row_count("output", b->o->output);
    row_count("answers", (uint64_t)n * b->o->rounds - b->n_failed);
    row_count("failed", b->n_failed);
    row_bool("cut", !whole);
    row_number("seconds", seconds);
    row_number("tokens_s", (double)b->n_tokens / seconds);
    tell_spread("ttft", b->ttft, b->n_ttft);
    tell_spread("itl", b->itl, b->n_itl);
    row_count("steps", steps);
    row_number("rows_step",
               steps == 0 ? 0 : (double)(after.n_rows - before.n_rows) / (double)steps);
    row_number("busy", (double)(after.device_us_sum - before.device_us_sum) * 1e-6 / seconds);
    row_count("preemptions", after.n_preemptions - before.n_preemptions);
    if (b->grammar != NULL) {
        row_count("masks", after.n_masks - before.n_masks);
        row_count("masks_made", after.n_masks_made - before.n_masks_made);
        row_count("masks_late", after.n_masks_late - before.n_masks_late);
        row_number("masks_s", (double)(after.masks_us - before.masks_us) * 1e-6);
    }
    row_count("drafts", after.n_drafted - before.n_drafted);
    row_count("drafts_right", after.n_drafts_right - before.n_drafts_right);
    row_count("graph_launches", after.backend.n_graph_launches - before.backend.n_graph_launches);
    if (b->error[0] != 0) row_text("error", b->error);
    row_end();
    b->error[0] = 0;
}

static uint32_t largest(const char *list) {
    uint32_t most = 0;
    for (const char *p = list; *p != 0; p += strcspn(p, ","), p += *p == ',')
        most = u32_max(most, (uint32_t)strtoul(p, NULL, 10));
    return most;
}

static void open_grammar(bench *b, const char *path) {
    inferd_err err = {0};
    json_error_t why;
    grammar *g = NULL;
    grammar_vocab *v = NULL;
    json_t *schema = json_load_file(path, 0, &why);
    if (schema == NULL) gpu_die("%s:%d: %s", path, why.line, why.text);
    const grammar_schema_kind kind = {.compact = false};
    gpu_need_status(grammar_of_schema(schema, &kind, NULL, &g, &err), &err);
    const tokenizer *tok = model_tokenizer(b->m);
    uint32_t n_vocab = (uint32_t)size_min(tok_n_vocab(tok), model_about(b->m)->n_vocab);
    gpu_need_status(grammar_vocab_create(tok, n_vocab, &v, &err), &err);
    gpu_need_status(grammar_machine_create(g, v, &b->grammar, &err), &err);
    grammar_release(g);
    grammar_vocab_release(v);
    json_decref(schema);
}

/* Also true if INFERD_CUDA_MODULE names an emulation. */
static bool is_emulated(const options *o) {
    return strcmp(o->kind, "cuda") == 0 &&
           strstr(gpu_module(o->emulated)->about, "emulated") != NULL;
}

static void open_engine(bench *b, const options *o) {
    inferd_err err = {0};
    uint64_t began = clock_now_us();
    gpu_need_status(
        model_open(&(model_options){.path = o->model, .allow_dummy = true}, &b->m, &err), &err);
    engine_options eo = {.device = {.kind = o->kind, .memory_bytes = (uint64_t)o->memory_mib << 20},
                         .limits = {.running_max = largest(o->streams),
                                    .step_tokens_max = o->step_tokens,
                                    .draft_tokens = o->drafts},
                         .n_slots = 1,
                         .wake = wake,
                         .wake_ctx = b};
    if (o->emulated) {
        eo.device.module = gpu_module(true);
        eo.device.memory_bytes = 192ull << 20;
        eo.limits.step_tokens_max = 64;
    }
    const model *expected = b->m;
    gpu_need_status(engine_expect_models(&eo, &expected, 1, &err), &err);
    gpu_need_status(engine_start(&eo, &b->e, &err), &err);
    model_policy policy = {.prio = GEN_NORMAL,
                           .weight = 1,
                           .pin = PIN_HOT,
                           .keep_alive_us = POLICY_NEVER,
                           .replicas_min = 1};
    if (!engine_model_add(b->e, 0, b->m, UINT32_MAX, &policy)) gpu_die("no memory");
    while (engine_model_state(b->e, 0) < MODEL_HOT) {
        wait_for_engine(b);
        if (clock_now_us() - began > (uint64_t)HOT_LIMIT_S * 1000000)
            gpu_die("the model is not loaded");
    }
    if (engine_model_state(b->e, 0) != MODEL_HOT) {
        engine_model_error(b->e, 0, &err);
        gpu_die("loading: %s", err.text);
    }
    engine_stats st;
    engine_get_stats(b->e, &st);
    row_begin("loaded");
    row_text("model", o->model);
    row_text("device", engine_device_name(b->e));
    row_bool("emulated", is_emulated(o));
    row_number("seconds", (double)(clock_now_us() - began) * 1e-6);
    row_count("pages_total", st.pages_total);
    row_count("pages_weight", st.pages_weight);
    row_end();
}

static void read_options(options *o, int argc, char **argv) {
    static const struct option known[] = {
        {"device", required_argument, NULL, 'd'}, {"streams", required_argument, NULL, 's'},
        {"prompt", required_argument, NULL, 'p'}, {"output", required_argument, NULL, 'o'},
        {"rounds", required_argument, NULL, 'r'}, {"limit-s", required_argument, NULL, 'l'},
        {"memory", required_argument, NULL, 'm'}, {"step-tokens", required_argument, NULL, 't'},
        {"schema", required_argument, NULL, 'g'}, {"drafts", required_argument, NULL, 'f'},
        {"emulated", no_argument, NULL, 'e'},     {0}};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        uint32_t n = optarg != NULL ? (uint32_t)strtoul(optarg, NULL, 10) : 1;
        if (c == 'd')
            o->kind = optarg;
        else if (c == 's')
            o->streams = optarg;
        else if (c == 'p' && n > 0)
            o->prompt = n;
        else if (c == 'o' && n > 0)
            o->output = n;
        else if (c == 'r' && n > 0)
            o->rounds = n;
        else if (c == 'l' && n > 0)
            o->limit_s = n;
        else if (c == 'm' && n > 0)
            o->memory_mib = n;
        else if (c == 't' && n > 0)
            o->step_tokens = n;
        else if (c == 'g')
            o->schema = optarg;
        else if (c == 'f')
            o->drafts = n;
        else if (c == 'e')
            o->emulated = true;
        else
            exit(2);
    }
    if (argc - optind != 1)
        gpu_die("bench_engine [options] MODEL: one model, %d given", argc - optind);
    o->model = argv[optind];
    if (largest(o->streams) == 0 || largest(o->streams) > STREAMS_MAX)
        gpu_die("--streams %s: numbers from 1 to %d", o->streams, STREAMS_MAX);
}

int main(int argc, char **argv) {
    static bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    options o = {.kind = "cuda",
                 .streams = "1,8,32,128",
                 .prompt = 1024,
                 .output = 128,
                 .rounds = 2,
                 .limit_s = 60,
                 .step_tokens = 2048};
    read_options(&o, argc, argv);
    b.o = &o;
    b.ttft = malloc(SAMPLES_MAX * sizeof *b.ttft);
    b.itl = malloc(SAMPLES_MAX * sizeof *b.itl);
    if (b.ttft == NULL || b.itl == NULL) gpu_die("no memory for samples");
    open_engine(&b, &o);
    if (o.schema != NULL) open_grammar(&b, o.schema);
    for (const char *p = o.streams; *p != 0; p += strcspn(p, ","), p += *p == ',') {
        uint32_t n = (uint32_t)strtoul(p, NULL, 10);
        if (n > 0) run(&b, n);
        if (engine_is_lost(b.e)) gpu_die("the device is lost");
    }
    engine_stats stats;
    engine_get_stats(b.e, &stats);
    gpu_tell_parts(&stats.backend);
    engine_stop(b.e);
    grammar_machine_release(b.grammar);
    model_close(b.m);
    free(b.ttft);
    free(b.itl);
    gpu_check_emulation(o.emulated);
    return 0;
}
