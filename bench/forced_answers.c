/* forced_answers.c - runs the same requests on the CPU and on a device, through the engine.
 *
 * All requests are submitted at the same time, with prompts of different lengths, at temperature 0.
 * The answers must be equal token by token, with one exception: where the CPU's two best
 * log-probabilities are closer to each other than `bound`, the device may choose either token.  If
 * it chooses the second, the rest of that answer continues a different text and is not compared.
 *
 * Prints a line {"bench":"answers",...} with the number of requests and tokens, and the number of
 * tokens that had to be equal. */
#include <string.h>
#include <time.h>

#include "forced.h"
#include "gpu.h"
#include "inferd/clock.h"
#include "scheduler/engine.h"

enum { REQUESTS_MAX = 64, REQUESTS_TINY = 12, OUTPUT = 24, PROMPT_MAX = 96, LIMIT_S = 200 };

typedef struct answer {
    uint32_t n;
    tok_id ids[OUTPUT];
    float lead[OUTPUT]; // log-probability of the best token minus that of the second
} answer;

typedef struct asking {
    model *m;
    engine *e;
    uint32_t n_requests, n_running;
    answer *answers; // [n_requests]
    const char *device;
    char error[GEN_TEXT_BYTES];
} asking;

static uint64_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

static void ignore(void *ctx) {
    (void)ctx;
}

static void wait_a_little(uint64_t began_us, const char *what) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (clock_now_us() - began_us > (uint64_t)LIMIT_S * 1000000)
        gpu_die("%s takes longer than %d s", what, LIMIT_S);
}

static void start(asking *a, const forced_device *d) {
    inferd_err err = {0};
    uint64_t began = clock_now_us(), weights = model_about(a->m)->file_bytes;
    bool cpu = strcmp(d->kind, "cpu") == 0;
    engine_options o = {
        .device = {.kind = d->kind, .exact_math = d->exact, .activations = d->activations},
        .limits = {.running_max = a->n_requests,
                   .step_tokens_max = d->tiny ? 64 : 512,
                   .kv = !cpu       ? KV_F16
                         : d->exact ? KV_F32
                                    : KV_AUTO},
        .n_slots = 1,
        .wake = ignore};
    uint64_t tiny_logits = 8ull * o.limits.step_tokens_max * model_about(a->m)->n_vocab;
    if (!cpu) o.device.workspace_bytes = d->tiny ? (96ull << 20) + tiny_logits : 2ull << 30;
    o.device.memory_bytes =
        weights * 5 / 4 + o.device.workspace_bytes + (d->tiny ? 64ull << 20 : 1ull << 30);
    if (d->emulated) o.device.module = gpu_module(true);
    gpu_need_status(engine_start(&o, &a->e, &err), &err);
    model_policy policy = {.prio = GEN_NORMAL,
                           .weight = 1,
                           .pin = PIN_HOT,
                           .keep_alive_us = POLICY_NEVER,
                           .replicas_min = 1};
    if (!engine_model_add(a->e, 0, a->m, UINT32_MAX, &policy)) gpu_die("no memory");
    while (engine_model_state(a->e, 0) < MODEL_HOT) wait_a_little(began, "loading");
    if (engine_model_state(a->e, 0) != MODEL_HOT) {
        engine_model_error(a->e, 0, &err);
        gpu_die("loading: %s", err.text);
    }
    a->device = engine_device_name(a->e);
}

static void ask(asking *a, uint64_t id) {
    gen_request *r = calloc(1, sizeof *r);
    uint32_t n_vocab = model_about(a->m)->n_vocab, n = 1 + random_below(PROMPT_MAX);
    tok_id *prompt = malloc(n * sizeof *prompt);
    if (r == NULL || prompt == NULL) gpu_die("no memory for a request");
    for (uint32_t i = 0; i < n; i++) prompt[i] = (tok_id)random_below(n_vocab);
    *r = (gen_request){.id = id,
                       .prio = GEN_NORMAL,
                       .prompt = prompt,
                       .n_prompt = n,
                       .max_tokens = OUTPUT,
                       .ignore_eos = true,
                       .n_logprobs = 2,
                       .n_prompt_logprobs = -1,
                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                       .arrival_us = clock_now_us()};
    if (!engine_submit(a->e, r)) gpu_die("the engine's inbox is full");
    a->n_running++;
}

static void take_event(asking *a, const gen_event *ev) {
    answer *got = &a->answers[ev->id - 1];
    if (ev->kind == GEN_EV_TOKEN && got->n < OUTPUT) {
        const sample_result *r = &ev->token.r;
        got->ids[got->n] = r->id;
        got->lead[got->n++] = r->n_top < 2 ? 0 : r->top[0].logprob - r->top[1].logprob;
    }
    if (ev->kind != GEN_EV_DONE) return;
    a->n_running--;
    if (ev->done.finish != GEN_LENGTH) snprintf(a->error, sizeof a->error, "%s", ev->done.text);
}

static void collect(const forced_device *d, model *m, uint32_t n_requests, answer *out) {
    asking a = {.m = m, .n_requests = n_requests, .answers = out};
    gen_event ev;
    start(&a, d);
    random_state = 15;
    for (uint32_t i = 0; i < n_requests; i++) ask(&a, i + 1);
    uint64_t began = clock_now_us();
    while (a.n_running > 0) {
        while (engine_next_event(a.e, &ev)) take_event(&a, &ev);
        if (a.n_running > 0) wait_a_little(began, "answering");
    }
    if (a.error[0] != 0) gpu_die("%s: a request failed: %s", a.device, a.error);
    engine_stats stats;
    engine_get_stats(a.e, &stats);
    if (strcmp(d->kind, "cuda") == 0) gpu_tell_parts(&stats.backend);
    engine_stop(a.e);
}

/* Returns how many tokens had to be equal; *differs: the first wrong one, or UINT32_MAX. */
static uint32_t compare(const answer *cpu, const answer *device, double bound, uint32_t *differs) {
    uint32_t n_compared = 0;
    *differs = UINT32_MAX;
    for (uint32_t i = 0; i < OUTPUT; i++) {
        bool sure = (double)cpu->lead[i] >= bound, same = cpu->ids[i] == device->ids[i];
        n_compared += sure;
        if (sure && !same) *differs = i;
        if (!same) break;
    }
    return n_compared;
}

bool forced_answers(const forced_device *d, const char *path, double bound) {
    static answer cpu[REQUESTS_MAX], device[REQUESTS_MAX];
    uint32_t n = d->tiny ? REQUESTS_TINY : REQUESTS_MAX, n_compared = 0, n_wrong = 0;
    inferd_err err = {0};
    model *m = NULL;
    memset(cpu, 0, sizeof cpu);
    memset(device, 0, sizeof device);
    gpu_need_status(model_open(&(model_options){.path = path, .allow_dummy = true}, &m, &err),
                    &err);
    collect(&(forced_device){.kind = "cpu", .exact = true, .tiny = d->tiny}, m, n, cpu);
    collect(d, m, n, device);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t differs;
        n_compared += compare(&cpu[i], &device[i], bound, &differs);
        if (differs == UINT32_MAX) continue;
        n_wrong++;
        printf("WRONG RESULT %s: answer %u, token %u is %d, the CPU says %d by %.3f\n", path, i,
               differs, device[i].ids[differs], cpu[i].ids[differs], (double)cpu[i].lead[differs]);
    }
    if (n_compared < n)
        printf("WRONG RESULT %s: %u tokens of %u answers can be compared, too few\n", path,
               n_compared, n);
    bool ok = n_wrong == 0 && n_compared >= n;
    row_begin("answers");
    row_text("model", path);
    row_count("requests", n);
    row_count("tokens", (uint64_t)n * OUTPUT);
    row_count("compared", n_compared);
    row_number("bound", bound);
    row_count("wrong", n_wrong);
    row_bool("ok", ok);
    row_end();
    model_close(m);
    return ok;
}
