/* cli_run.c - `inferd run MODEL ["prompt"]`: a model in the terminal, through the daemon's engine.
 *
 *   words -> chat_render -> tok_encode -> engine_submit -> events -> tok_stream -> terminal
 *
 * The engine's wake-up is a condition variable here; everything else is as in the daemon. */
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cli.h"
#include "devices.h"
#include "inferd/buf.h"
#include "inferd/clock.h"
#include "scheduler/engine.h"

static const char usage[] =
    "usage: inferd run MODEL.gguf [options] [\"prompt\"]\n"
    "\n"
    "Answers the prompt, or chats when none is given (an empty line or end of file ends it).\n"
    "\n"
    "  --system TEXT        first message of the conversation\n"
    "  --max-tokens N       longest answer (default: the rest of the context)\n"
    "  --temperature X      0 = greedy (default: what the model's files say, else 0.7)\n"
    "  --top-p X            (the same, else 0.95)\n"
    "  --top-k N            0 = off (the same, else off)\n"
    "  --seed N             (default random)\n"
    "  --raw                complete the prompt as it is, without the chat template\n"
    "  --context N          positions (default: what the model was trained for)\n"
    "  --device DEVICE      cpu, cuda, cuda:INDEX, a GPU's UUID, or auto (default: auto)\n"
    "  --memory SIZE        of the page pool (default: 2GiB on the CPU, what is free on a GPU)\n"
    "  --threads N          (default: CPUs allowed)\n"
    "  --allow-dummy        MODEL may be dummy:SHAPE, with made-up weights\n"
    "  --help\n";

typedef struct run_options {
    const char *path, *prompt, *system;
    uint32_t max_tokens, context;
    config_device device;
    uint64_t seed;
    bool raw, seeded, allow_dummy;
    double sampling[SAMPLING_PARAMS]; // NaN: not given
} run_options;

typedef struct session {
    model *m;
    engine *e;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool wake;        // under lock
    json_t *messages; // the conversation so far; owned
    uint64_t next_id;
    uint64_t n_prompt, n_output, prefill_us, decode_us; // for the rates at the end
} session;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) {
    (void)sig;
    interrupted = 1;
}

static void wake_session(void *ctx) {
    session *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->wake = true;
    pthread_cond_signal(&s->woken);
    pthread_mutex_unlock(&s->lock);
}

/* Waits for events of the engine, at most 100 ms. */
static void wait_engine(session *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s->lock);
    if (!s->wake) pthread_cond_timedwait(&s->woken, &s->lock, &until);
    s->wake = false;
    pthread_mutex_unlock(&s->lock);
}

static inferd_status wait_loaded(session *s, inferd_err *err) {
    cli_progress bar;
    cli_progress_init(&bar, "loading");
    for (;;) {
        model_state state = engine_model_state(s->e, 0);
        if (state == MODEL_HOT || state == MODEL_FAILED || interrupted) break;
        uint64_t done, total;
        engine_load_progress(s->e, &done, &total);
        cli_progress_draw(&bar, done, total);
        wait_engine(s);
    }
    cli_progress_end(&bar);
    if (interrupted) return inferd_fail(err, INFERD_ECANCELED, "interrupted");
    if (engine_model_state(s->e, 0) == MODEL_HOT) return INFERD_OK;
    engine_model_error(s->e, 0, err);
    return err->status;
}

/* The next prompt's ids: the conversation through the template, or the plain text. */
static inferd_status encode_prompt(session *s, const run_options *o, const char *text, tok_ids *ids,
                                   inferd_err *err) {
    const tokenizer *tok = model_tokenizer(s->m);
    const chat_template *chat = model_chat_template(s->m);
    if (o->raw || chat == NULL) {
        tok_span span = {strlen(text), true};
        tok_encode_options options = {.add_special = true};
        return tok_encode(tok, (bytes){text, span.n}, &span, 1, &options, ids, err);
    }
    json_t *message = json_pack("{s:s, s:s}", "role", "user", "content", text);
    if (message == NULL || json_array_append_new(s->messages, message) != 0)
        return inferd_fail(err, INFERD_EINVAL, "the prompt is not valid UTF-8");
    chat_input input = {.messages = s->messages, .add_generation_prompt = true};
    chat_text rendered = {0};
    time_t wall = time(NULL);
    struct tm now;
    localtime_r(&wall, &now);
    inferd_status st = chat_render(chat, tok, &input, &now, &rendered, err);
    tok_encode_options options = {0};
    if (st == INFERD_OK)
        st = tok_encode(tok, (bytes){rendered.text, rendered.n}, rendered.spans, rendered.n_spans,
                        &options, ids, err);
    chat_text_deinit(&rendered);
    return st;
}

/* What the model's authors recommend; where they say nothing, what suits a chat with a small model.
 */
static void set_sampling(const model *m, const run_options *o, sample_params *out) {
    sampling_defaults d = model_about(m)->sampling;
    if (d.from[SAMPLING_TEMPERATURE] == SAMPLING_NEUTRAL) d.values[SAMPLING_TEMPERATURE] = 0.7;
    if (d.from[SAMPLING_TOP_P] == SAMPLING_NEUTRAL) d.values[SAMPLING_TOP_P] = 0.95;
    for (sampling_param i = 0; i < SAMPLING_PARAMS; i++)
        sampling_set(&d, i, o->sampling[i], SAMPLING_REQUEST);
    sampling_fill(&d, out);
}

static inferd_status submit(session *s, const run_options *o, tok_ids *ids, uint64_t *id,
                            inferd_err *err) {
    inferd_status st = engine_admit(s->e, 0, (uint32_t)ids->n, o->max_tokens, NULL, err);
    if (st != INFERD_OK) return st;
    gen_request *r = calloc(1, sizeof *r);
    if (r == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a request");
    *id = ++s->next_id;
    *r = (gen_request){.id = *id,
                       .prio = GEN_NORMAL,
                       .prompt = ids->ids,
                       .n_prompt = (uint32_t)ids->n,
                       .max_tokens = o->max_tokens,
                       .n_logprobs = -1,
                       .n_prompt_logprobs = -1,
                       .arrival_us = clock_now_us()};
    *ids = (tok_ids){0};
    set_sampling(s->m, o, &r->sampling);
    r->sampling.seed = o->seed;
    if (!o->seeded && getrandom(&r->sampling.seed, sizeof r->sampling.seed, 0) < 0)
        r->sampling.seed = r->arrival_us;
    if (engine_submit(s->e, r)) return INFERD_OK;
    gen_request_destroy(r);
    return inferd_fail(err, INFERD_EBUSY, "the engine's inbox is full");
}

/* Prints the output until the request has ended; the answer's text is left in `answer`. */
static inferd_status stream_answer(session *s, uint64_t id, buf *answer, inferd_err *err) {
    tok_stream words;
    tok_stream_init(&words, model_tokenizer(s->m), true);
    uint64_t began = clock_now_us(), first = 0;
    size_t printed = 0;
    gen_event ev;
    for (;;) {
        if (interrupted == 1) {
            engine_cancel(s->e, id);
            interrupted = 2;
        }
        if (!engine_next_event(s->e, &ev)) {
            wait_engine(s);
            continue;
        }
        if (ev.id != id) continue;
        if (ev.kind == GEN_EV_TOKEN) {
            if (first == 0) first = ev.at_us;
            tok_stream_push(&words, ev.token.r.id, answer);
        } else if (ev.kind == GEN_EV_DONE) {
            tok_stream_finish(&words, answer);
        }
        if (answer->n > printed) // an answer without text has no bytes to point at
            fwrite(answer->p + printed, 1, answer->n - printed, stdout);
        printed = answer->n;
        fflush(stdout);
        if (ev.kind == GEN_EV_DONE) break;
    }
    uint64_t ended = clock_now_us();
    interrupted = 0;
    /* Flush before the rates, which go to standard error: a pipe would delay the newline. */
    if (answer->n == 0 || answer->p[answer->n - 1] != '\n') putchar('\n');
    fflush(stdout);
    s->n_prompt += ev.done.n_prompt - ev.done.n_cached;
    s->n_output += ev.done.n_output > 0 ? ev.done.n_output - 1 : 0;
    if (first > began) s->prefill_us += first - began;
    if (first != 0 && ended > first) s->decode_us += ended - first;
    if (ev.done.finish == GEN_ERROR) return inferd_fail(err, ev.done.status, "%s", ev.done.text);
    return INFERD_OK;
}

static inferd_status answer_one(session *s, const run_options *o, const char *text,
                                inferd_err *err) {
    tok_ids ids = {0};
    buf answer;
    uint64_t id = 0;
    buf_init(&answer, 0);
    inferd_status st = encode_prompt(s, o, text, &ids, err);
    if (st == INFERD_OK) st = submit(s, o, &ids, &id, err);
    if (st == INFERD_OK) st = stream_answer(s, id, &answer, err);
    if (st == INFERD_OK && !o->raw && s->messages != NULL) {
        json_t *message =
            json_pack("{s:s, s:s}", "role", "assistant", "content", buf_cstr(&answer));
        if (message == NULL || json_array_append_new(s->messages, message) != 0)
            st = inferd_fail(err, INFERD_ENOMEM, "no memory for the conversation");
    }
    tok_ids_deinit(&ids);
    buf_deinit(&answer);
    return st;
}

static inferd_status chat_loop(session *s, const run_options *o, inferd_err *err) {
    char *line = NULL;
    size_t capacity = 0;
    inferd_status st = INFERD_OK;
    while (st == INFERD_OK) {
        if (isatty(STDIN_FILENO)) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        ssize_t n = getline(&line, &capacity, stdin);
        if (n > 0 && line[n - 1] == '\n') line[--n] = 0;
        if (n <= 0) break;
        st = answer_one(s, o, line, err);
    }
    free(line);
    return st;
}

static void print_rates(const session *s) {
    fprintf(stderr, "prompt: %llu tokens", (unsigned long long)s->n_prompt);
    if (s->prefill_us > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)s->n_prompt * 1e6 / (double)s->prefill_us);
    fprintf(stderr, "; answer: %llu tokens", (unsigned long long)s->n_output);
    if (s->decode_us > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)s->n_output * 1e6 / (double)s->decode_us);
    fputc('\n', stderr);
}

static int read_options(int argc, char **argv, run_options *o) {
    enum {
        SYSTEM = 1,
        MAX_TOKENS,
        TEMPERATURE,
        TOP_P,
        TOP_K,
        SEED,
        RAW,
        CONTEXT,
        MEMORY,
        THREADS,
        DEVICE,
        ALLOW_DUMMY
    };
    static const struct option longs[] = {{"system", required_argument, NULL, SYSTEM},
                                          {"max-tokens", required_argument, NULL, MAX_TOKENS},
                                          {"temperature", required_argument, NULL, TEMPERATURE},
                                          {"top-p", required_argument, NULL, TOP_P},
                                          {"top-k", required_argument, NULL, TOP_K},
                                          {"seed", required_argument, NULL, SEED},
                                          {"raw", no_argument, NULL, RAW},
                                          {"context", required_argument, NULL, CONTEXT},
                                          {"memory", required_argument, NULL, MEMORY},
                                          {"threads", required_argument, NULL, THREADS},
                                          {"device", required_argument, NULL, DEVICE},
                                          {"allow-dummy", no_argument, NULL, ALLOW_DUMMY},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    *o = (run_options){.max_tokens = GEN_NO_MAX};
    for (int i = 0; i < SAMPLING_PARAMS; i++) o->sampling[i] = NAN;
    double x = 0;
    int c, fine = 1;
    while (fine && (c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        switch (c) {
        case 'h':
            fputs(usage, stdout);
            return 0;
        case SYSTEM:
            o->system = optarg;
            break;
        case MAX_TOKENS:
            fine = cli_number("--max-tokens", optarg, 1, 1e9, &x);
            o->max_tokens = (uint32_t)x;
            break;
        case TEMPERATURE:
            fine = cli_number("--temperature", optarg, 0, 2, &x);
            o->sampling[SAMPLING_TEMPERATURE] = x;
            break;
        case TOP_P:
            fine = cli_number("--top-p", optarg, 1e-6, 1, &x);
            o->sampling[SAMPLING_TOP_P] = x;
            break;
        case TOP_K:
            fine = cli_number("--top-k", optarg, 0, 1e9, &x);
            o->sampling[SAMPLING_TOP_K] = x;
            break;
        case SEED:
            fine = cli_number("--seed", optarg, 0, 9e15, &x);
            o->seed = (uint64_t)x;
            o->seeded = true;
            break;
        case RAW:
            o->raw = true;
            break;
        case CONTEXT:
            fine = cli_number("--context", optarg, 1, 1e9, &x);
            o->context = (uint32_t)x;
            break;
        case MEMORY:
            fine = cli_size("--memory", optarg, &o->device.memory_bytes);
            break;
        case THREADS:
            fine = cli_number("--threads", optarg, 1, 1024, &x);
            o->device.threads = (uint32_t)x;
            break;
        case DEVICE:
            fine = devices_parse(optarg, &o->device);
            break;
        case ALLOW_DUMMY:
            o->allow_dummy = true;
            break;
        default:
            fine = 0;
        }
    }
    int left = argc - optind;
    if (!fine || left < 1 || left > 2) return fputs(usage, stderr), 2;
    o->path = argv[optind];
    o->prompt = left == 2 ? argv[optind + 1] : NULL;
    return -1;
}

/* *exit_status: the status in case of a failure. */
static inferd_status open_session(session *s, const run_options *o, int *exit_status,
                                  inferd_err *err) {
    model_options mo = {.path = o->path, .context_max = o->context, .allow_dummy = o->allow_dummy};
    *exit_status = CLI_WRONG;
    inferd_status st = model_open(&mo, &s->m, err);
    if (st != INFERD_OK) return st;
    s->messages = json_array();
    if (s->messages == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory");
    if (o->system != NULL &&
        json_array_append_new(s->messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", o->system)) != 0)
        return inferd_fail(err, INFERD_EINVAL, "--system is not valid UTF-8");
    engine_options eo = {.n_slots = 1, .wake = wake_session, .wake_ctx = s};
    inferd_err note;
    st = devices_resolve(&o->device, 0, &eo.device, &note, err);
    *exit_status = cli_device_status(err);
    if (st != INFERD_OK) return st;
    *exit_status = CLI_FAILED;
    const model *expected = s->m;
    st = engine_expect_models(&eo, &expected, 1, err);
    if (st == INFERD_OK) st = engine_start(&eo, &s->e, err);
    if (st != INFERD_OK) return st;
    model_policy policy = {.prio = GEN_NORMAL,
                           .weight = 1,
                           .pin = PIN_HOT,
                           .keep_alive_us = POLICY_NEVER,
                           .replicas_min = 1};
    if (!engine_model_add(s->e, 0, s->m, UINT32_MAX, &policy))
        return inferd_fail(err, INFERD_ENOMEM, "no memory");
    return wait_loaded(s, err);
}

int cli_run(int argc, char **argv) {
    run_options o;
    int status = read_options(argc, argv, &o);
    if (status >= 0) return status;

    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    session s = {.lock = PTHREAD_MUTEX_INITIALIZER, .woken = PTHREAD_COND_INITIALIZER};
    inferd_err err = {0};
    inferd_status st = open_session(&s, &o, &status, &err);
    if (st == INFERD_OK && !o.raw && model_chat_template(s.m) == NULL)
        fputs("inferd: this model has no chat template; the prompt is completed as it is\n",
              stderr);
    if (st == INFERD_OK) {
        st = o.prompt != NULL ? answer_one(&s, &o, o.prompt, &err) : chat_loop(&s, &o, &err);
        print_rates(&s);
    }
    if (st != INFERD_OK) fprintf(stderr, "inferd: %s\n", err.text);
    engine_stop(s.e);
    json_decref(s.messages);
    model_close(s.m);
    free(o.device.kind);
    free(o.device.uuid);
    return st == INFERD_OK ? 0 : status;
}
