/* cli_run.c - `inferd run MODEL ["prompt"]`: a model in the terminal, through the daemon's engine.
 *
 *   words -> chat_render -> tok_encode -> engine_submit -> events -> tok_stream -> terminal
 *
 *   one prompt      its answer, then the statistics
 *   a pipe          each line of standard input is a message of one conversation; likewise
 *   a terminal      a chat: line editing (run_terminal.h), commands (run_commands.h)
 *
 * Standard output has the texts alone, each with one newline at its end, flushed before anything
 * goes to standard error; the chat's own words go to its terminal.
 * The engine's wake-up is a condition variable here; everything else is as in the daemon. */
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#include "cli.h"
#include "devices.h"
#include "inferd/buf.h"
#include "inferd/clock.h"
#include "run_commands.h"
#include "run_terminal.h"
#include "scheduler/engine.h"

static const char usage[] =
    "usage: inferd run MODEL.gguf [options] [\"prompt\"]\n"
    "\n"
    "Answers the prompt.  Without one it chats on a terminal (/help lists the commands), and\n"
    "otherwise each line of standard input that is not empty is a message of one conversation.\n"
    "Standard output has the answers alone; statistics go to standard error.\n"
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
    "  --no-history         the chat's lines are not kept in ~/.local/state/inferd/history\n"
    "  --help\n"
    "\n"
    "exit status, as of `inferd serve`: 0 done, 1 failed, 2 wrong option or model file,\n"
    "3 no such device, 70 device lost, 75 device not ready yet, 130 interrupted (docs/run.md)\n";

enum {
    TICK_MS = 100,        // the longest wait between two looks at the engine
    STEP_HANG_MS = 60000, // as of the daemon, by default
    INTERRUPTS_MAX = 3,   // so many unanswered Ctrl-C end the process at once
    MESSAGE_BYTES_MAX = 16 << 20
};

typedef struct run_options {
    const char *path, *prompt, *system;
    uint32_t max_tokens, context;
    config_device device;
    uint64_t seed;
    bool raw, seeded, allow_dummy, no_history;
    double sampling[SAMPLING_PARAMS]; // NaN: not given
} run_options;

/* For rates: of one answer, or of all. */
typedef struct rates {
    uint64_t n_answers, n_prompt, n_cached, n_output; // tokens; cached: of the prompt
    uint64_t prefill_us, decode_us;
    uint64_t n_prefilled, n_decoded; // tokens computed in these times
} rates;

typedef struct session {
    model *m;
    engine *e;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool wake;        // under lock
    json_t *messages; // the conversation so far; owned
    uint64_t next_id;
    rates last, all;
    uint32_t n_context; // tokens of the conversation after its last answer
    gen_finish finish;  // of the last answer
    cli_hang hang;
    bool hangs; // the engine's thread never returns
} session;

/* Ctrl-C since the last thing that it could stop.  A driver that does not answer must not keep the
 * process. */
static volatile sig_atomic_t n_interrupts;
static void on_interrupt(int sig) {
    (void)sig;
    if (++n_interrupts > INTERRUPTS_MAX) _exit(CLI_INTERRUPTED);
}

static void wake_session(void *ctx) {
    session *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->wake = true;
    pthread_cond_signal(&s->woken);
    pthread_mutex_unlock(&s->lock);
}

/* Waits for events of the engine, at most TICK_MS.  Fails if its device hangs. */
static inferd_status wait_engine(session *s, inferd_err *err) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s->lock);
    if (!s->wake) pthread_cond_timedwait(&s->woken, &s->lock, &until);
    s->wake = false;
    pthread_mutex_unlock(&s->lock);
    uint64_t stuck_us = engine_stuck_us(s->e);
    s->hangs = cli_hangs(&s->hang, 0, stuck_us, TICK_MS, STEP_HANG_MS);
    if (!s->hangs) return INFERD_OK;
    return inferd_fail(err, INFERD_ELOST,
                       "the device hangs: no step or piece of a load was finished for %llu ms",
                       (unsigned long long)(stuck_us / 1000));
}

static inferd_status wait_loaded(session *s, inferd_err *err) {
    cli_progress bar;
    cli_progress_init(&bar, "loading");
    for (;;) {
        model_state state = engine_model_state(s->e, 0);
        if (state == MODEL_HOT || state == MODEL_FAILED || n_interrupts > 0) break;
        uint64_t done, total;
        engine_load_progress(s->e, &done, &total);
        cli_progress_draw(&bar, done, total);
        if (wait_engine(s, err) != INFERD_OK) break;
    }
    cli_progress_end(&bar);
    if (s->hangs) return err->status;
    if (n_interrupts > 0) return inferd_fail(err, INFERD_ECANCELED, "interrupted");
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

/* Prints the text but for newlines at its end, which may be the last ones. */
static void print_new(const buf *answer, size_t *printed) {
    size_t n = answer->n;
    while (n > *printed && answer->p[n - 1] == '\n') n--;
    if (n > *printed) fwrite(answer->p + *printed, 1, n - *printed, stdout);
    *printed = n;
    fflush(stdout);
}

static void add_rates(rates *to, const rates *r) {
    to->n_answers += r->n_answers;
    to->n_prompt += r->n_prompt;
    to->n_cached += r->n_cached;
    to->n_output += r->n_output;
    to->prefill_us += r->prefill_us;
    to->decode_us += r->decode_us;
    to->n_prefilled += r->n_prefilled;
    to->n_decoded += r->n_decoded;
}

/* began, first, ended: times of the request, of its first token (0: none), and of its end. */
static void count_answer(session *s, const gen_event *done, uint64_t began, uint64_t first,
                         uint64_t ended) {
    s->last = (rates){.n_answers = 1,
                      .n_prompt = done->done.n_prompt,
                      .n_cached = done->done.n_cached,
                      .n_output = done->done.n_output};
    if (first > began) {
        s->last.prefill_us = first - began;
        s->last.n_prefilled = done->done.n_prompt - done->done.n_cached;
    }
    if (first != 0 && ended > first && done->done.n_output > 0) {
        s->last.decode_us = ended - first;
        s->last.n_decoded = done->done.n_output - 1;
    }
    add_rates(&s->all, &s->last);
    s->n_context = done->done.n_prompt + done->done.n_output;
    s->finish = done->done.finish;
}

/* Prints the output until the request has ended; the answer's text is left in `answer`. */
static inferd_status stream_answer(session *s, uint64_t id, buf *answer, inferd_err *err) {
    tok_stream words;
    tok_stream_init(&words, model_tokenizer(s->m), true);
    uint64_t began = clock_now_us(), first = 0;
    size_t printed = 0;
    bool cancelled = false;
    gen_event ev = {0};
    do {
        if (!cancelled && (n_interrupts > 0 || ferror(stdout))) {
            engine_cancel(s->e, id);
            cancelled = true;
        }
        if (!engine_next_event(s->e, &ev)) {
            if (wait_engine(s, err) != INFERD_OK) return err->status;
            continue;
        }
        if (ev.id != id) continue;
        if (ev.kind == GEN_EV_TOKEN) {
            if (first == 0) first = ev.at_us;
            tok_stream_push(&words, ev.token.r.id, answer);
        } else if (ev.kind == GEN_EV_DONE) {
            tok_stream_finish(&words, answer);
        }
        print_new(answer, &printed);
    } while (ev.id != id || ev.kind != GEN_EV_DONE);
    count_answer(s, &ev, began, first, clock_now_us());
    if (ev.done.finish == GEN_ERROR && printed == 0)
        return inferd_fail(err, ev.done.status, "%s", ev.done.text);
    /* Flush before the rates, which go to standard error: a pipe would delay the newline. */
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout))
        return inferd_fail(err, INFERD_EIO, "the answer cannot be written to standard output");
    if (ev.done.finish == GEN_ERROR) return inferd_fail(err, ev.done.status, "%s", ev.done.text);
    return INFERD_OK;
}

static inferd_status keep_answer(session *s, buf *answer, inferd_err *err) {
    json_t *message = json_pack("{s:s, s:s}", "role", "assistant", "content", buf_cstr(answer));
    if (message != NULL && json_array_append_new(s->messages, message) == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the conversation");
}

/* A message without an answer leaves the conversation. */
static void drop_messages(session *s, size_t n_before) {
    while (json_array_size(s->messages) > n_before)
        json_array_remove(s->messages, json_array_size(s->messages) - 1);
}

static inferd_status answer_one(session *s, const run_options *o, const char *text,
                                inferd_err *err) {
    tok_ids ids = {0};
    buf answer;
    uint64_t id = 0;
    size_t n_before = json_array_size(s->messages);
    buf_init(&answer, 0);
    inferd_status st = encode_prompt(s, o, text, &ids, err);
    if (st == INFERD_OK) st = submit(s, o, &ids, &id, err);
    if (st == INFERD_OK) st = stream_answer(s, id, &answer, err);
    bool none = st != INFERD_OK || (s->finish == GEN_CANCELLED && answer.n == 0);
    if (!none && json_array_size(s->messages) > n_before) st = keep_answer(s, &answer, err);
    if (none || st != INFERD_OK) drop_messages(s, n_before);
    tok_ids_deinit(&ids);
    buf_deinit(&answer);
    return st;
}

static void add_rate(FILE *out, uint64_t n, uint64_t us) {
    if (us > 0) fprintf(out, ", %.1f tokens/s", (double)n * 1e6 / (double)us);
}

static void print_rates(FILE *out, const rates *r) {
    fprintf(out, "prompt: %llu tokens", (unsigned long long)r->n_prompt);
    if (r->n_cached > 0) fprintf(out, " (%llu cached)", (unsigned long long)r->n_cached);
    add_rate(out, r->n_prefilled, r->prefill_us);
    fprintf(out, "; answer: %llu tokens", (unsigned long long)r->n_output);
    add_rate(out, r->n_decoded, r->decode_us);
    fputc('\n', out);
}

/* Each line of standard input is a message; the first failure ends. */
static inferd_status answer_lines(session *s, const run_options *o, inferd_err *err) {
    char *line = NULL;
    size_t capacity = 0;
    inferd_status st = INFERD_OK;
    ssize_t n;
    if (isatty(STDIN_FILENO)) fputs("each line is a message; Ctrl-D ends\n", stderr);
    while (st == INFERD_OK && n_interrupts == 0 && (n = getline(&line, &capacity, stdin)) >= 0) {
        if (n > 0 && line[n - 1] == '\n') line[--n] = 0;
        if (n > 0) st = answer_one(s, o, line, err);
    }
    free(line);
    return st;
}

/* ---- a chat on a terminal ---- */

/* "SmolLM2-135M-Instruct" of /models/SmolLM2-135M-Instruct.Q4_1.gguf. */
static void name_model(const model_info *about, char *out, size_t n_out) {
    bytes name = model_path_name(about->path);
    snprintf(out, n_out, "%.*s", (int)name.n, name.p);
    size_t n = strlen(out), n_type = strlen(about->weights);
    if (n > n_type + 1 && strcasecmp(out + n - n_type, about->weights) == 0 &&
        strchr("-._", out[n - n_type - 1]) != NULL)
        out[n - n_type - 1] = 0;
}

static void print_welcome(const session *s) {
    char name[128];
    const model_info *about = model_about(s->m);
    name_model(about, name, sizeof name);
    printf("%s (%s, context %u): type a message; /help, /clear, /stats, /quit; Ctrl-C stops an "
           "answer, Ctrl-D ends\n",
           name, about->weights, about->context);
}

static void print_stats(const session *s) {
    if (s->all.n_answers == 0) {
        puts("no answer yet");
    } else {
        fputs("last answer: ", stdout);
        print_rates(stdout, &s->last);
        printf("in all (answers: %llu): ", (unsigned long long)s->all.n_answers);
        print_rates(stdout, &s->all);
    }
    printf("context: %u of %u tokens\n", s->n_context, model_about(s->m)->context);
}

static void clear_conversation(session *s, const run_options *o) {
    drop_messages(s, o->system != NULL ? 1 : 0);
    s->n_context = 0;
    puts("new conversation");
}

/* What the user can do about a failure, or about an answer that was cut. */
static const char *advice(const session *s, const run_options *o, inferd_status st) {
    bool first = json_array_size(s->messages) <= (o->system != NULL ? 1 : 0);
    if (st == INFERD_ETOOLONG && (o->raw || first)) return ": send a shorter message";
    if (st == INFERD_ETOOLONG) return ": /clear starts a new conversation";
    return "";
}

/* False: the device is gone, and with it the chat. */
static bool chat_answer(session *s, const run_options *o, const char *text, inferd_err *err) {
    *err = (inferd_err){0};
    n_interrupts = 0;
    inferd_status st = answer_one(s, o, text, err);
    bool stopped = st == INFERD_OK && s->finish == GEN_CANCELLED;
    n_interrupts = 0;
    if (st == INFERD_ELOST || st == INFERD_EIO) return false;
    if (st != INFERD_OK)
        fprintf(stderr, "inferd: %s%s\n", err->text, advice(s, o, st));
    else if (stopped)
        puts("(stopped)");
    else if (s->finish == GEN_LENGTH && s->n_context >= model_about(s->m)->context)
        printf("(the context is full%s)\n", advice(s, o, INFERD_ETOOLONG));
    else if (s->finish == GEN_LENGTH)
        puts("(stopped at --max-tokens)");
    *err = (inferd_err){0};
    return true;
}

/* A message of one or more lines. */
static run_read read_message(run_terminal *t, buf *line, buf *typed) {
    buf_clear(typed);
    for (;;) {
        run_read r = run_terminal_read(t, typed->n == 0 ? "> " : ". ", line);
        if (r != RUN_READ_LINE) return r;
        run_terminal_remember(t, buf_cstr(line));
        if (!run_line_add(typed, buf_cstr(line))) return r;
    }
}

/* False: the chat ends. */
static bool chat_turn(session *s, const run_options *o, const char *typed, inferd_err *err) {
    char refusal[RUN_REFUSAL_BYTES];
    const char *text;
    switch (run_command_read(typed, refusal, &text)) {
    case RUN_EMPTY:
        return true;
    case RUN_MESSAGE:
        return chat_answer(s, o, text, err);
    case RUN_HELP:
        fputs(run_commands_help, stdout);
        return true;
    case RUN_CLEAR:
        clear_conversation(s, o);
        return true;
    case RUN_STATS:
        print_stats(s);
        return true;
    case RUN_QUIT:
        return false;
    case RUN_REFUSED:
        puts(text);
        return true;
    }
    return true;
}

static inferd_status chat(session *s, const run_options *o, inferd_err *err) {
    inferd_err note;
    buf line, typed;
    run_terminal *t = run_terminal_open(!o->no_history, &n_interrupts, &note);
    if (t == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the line editor");
    if (note.status != INFERD_OK) fprintf(stderr, "inferd: %s\n", note.text);
    buf_init(&line, MESSAGE_BYTES_MAX);
    buf_init(&typed, MESSAGE_BYTES_MAX);
    print_welcome(s);
    for (bool on = true; on;) {
        n_interrupts = 0;
        run_read r = read_message(t, &line, &typed);
        if (r != RUN_READ_LINE) puts(r == RUN_READ_INTERRUPT ? "^C" : "");
        if (typed.failed)
            printf("the message has more than %d bytes\n", MESSAGE_BYTES_MAX);
        else if (r == RUN_READ_LINE)
            on = chat_turn(s, o, buf_cstr(&typed), err);
        else
            on = r == RUN_READ_INTERRUPT;
        fflush(stdout);
    }
    run_terminal_close(t);
    buf_deinit(&line);
    buf_deinit(&typed);
    return err->status;
}

static bool is_text(const char *what, const char *text) {
    json_t *string = text != NULL ? json_string(text) : json_null();
    if (string == NULL) fprintf(stderr, "inferd: %s is not valid UTF-8\n", what);
    json_decref(string);
    return string != NULL;
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
        ALLOW_DUMMY,
        NO_HISTORY
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
                                          {"no-history", no_argument, NULL, NO_HISTORY},
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
        case NO_HISTORY:
            o->no_history = true;
            break;
        default:
            fine = 0;
        }
    }
    int left = argc - optind;
    if (!fine || left < 1 || left > 2) return fputs(usage, stderr), CLI_WRONG;
    o->path = argv[optind];
    o->prompt = left == 2 ? argv[optind + 1] : NULL;
    return is_text("--system", o->system) && is_text("the prompt", o->prompt) ? -1 : CLI_WRONG;
}

/* Signals of the terminal are for this thread: it waits for the keyboard, and the engine's do not.
 */
static inferd_status start_engine(session *s, const engine_options *eo, inferd_err *err) {
    static const int signals[] = {SIGINT, SIGWINCH, SIGTSTP, SIGCONT};
    sigset_t ours, before;
    sigemptyset(&ours);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) sigaddset(&ours, signals[i]);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    inferd_status st = engine_start(eo, &s->e, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
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
        return inferd_fail(err, INFERD_ENOMEM, "no memory");
    engine_options eo = {
        .n_slots = 1, .limits = {.kv = KV_AUTO}, .wake = wake_session, .wake_ctx = s};
    inferd_err note;
    st = devices_resolve(&o->device, 0, &eo.device, &note, err);
    *exit_status = cli_device_status(err);
    if (st != INFERD_OK) return st;
    *exit_status = CLI_FAILED;
    const model *expected = s->m;
    st = engine_expect_models(&eo, &expected, 1, err);
    if (st == INFERD_OK) st = start_engine(s, &eo, err);
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

/* The answers, by one prompt, a chat or a pipe; returns the exit status. */
static int answer_all(session *s, const run_options *o, inferd_err *err) {
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!o->raw && model_chat_template(s->m) == NULL)
        fputs("inferd: this model has no chat template; the prompt is completed as it is\n",
              stderr);
    inferd_status st = o->prompt != NULL ? answer_one(s, o, o->prompt, err)
                       : terminal        ? chat(s, o, err)
                                         : answer_lines(s, o, err);
    if (s->all.n_answers > 0 && (o->prompt != NULL || !terminal)) print_rates(stderr, &s->all);
    return st == INFERD_ELOST ? CLI_LOST
           : st != INFERD_OK  ? CLI_FAILED
           : n_interrupts > 0 ? CLI_INTERRUPTED
                              : 0;
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
    if (st == INFERD_OK) status = answer_all(&s, &o, &err);
    if (st == INFERD_ELOST) status = CLI_LOST;
    if (st == INFERD_ECANCELED) status = CLI_INTERRUPTED;
    if (err.status != INFERD_OK) fprintf(stderr, "inferd: %s\n", err.text);
    if (s.hangs) _exit(CLI_LOST); // its thread is in a driver that never answers
    engine_stop(s.e);
    json_decref(s.messages);
    model_close(s.m);
    free(o.device.kind);
    free(o.device.gpu.uuid);
    return status;
}
