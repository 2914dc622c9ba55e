/* cli_ctl.c - `inferd ctl`: the admin API from a terminal.
 *
 * Each command is one request; the answer is shown as a table, or unchanged with --json.
 *
 * Exit status: 0 done, 1 refused (the daemon's message is printed), a plan that does not fit, or an
 * answer that standard output does not take (what the daemon did stays done), 2 bad usage, 3 no
 * connection to a daemon. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "admin_socket.h"
#include "cli.h"
#include "cli_top.h"
#include "ctl_client.h"
#include "ctl_show.h"
#include "inferd/json_whole.h"
#include "json_in.h"
#include "top_screen.h"

static const char usage[] =
    "usage: inferd ctl [--socket PATH | --url URL [--key-env NAME]] COMMAND\n"
    "\n"
    "  state | models | tenants          show the current state\n"
    "  top                               a screen with keys; tables with --every, --count or "
    "--json,\n"
    "                                    or where there is no terminal\n"
    "  load NAME | prefetch NAME         bring a model up: onto a device, or into host memory\n"
    "  unload NAME | drop NAME           off the devices, or out of host memory, too\n"
    "  drain NAME | undrain NAME         off the devices until undrain; new requests get 503\n"
    "  pin NAME | unpin NAME             it is not evicted; it may be again\n"
    "  plan FILE.json | plan --load NAME | plan model NAME KEY=VALUE...   would it fit?\n"
    "  set model|tenant NAME KEY=VALUE...   weight=4 share.percent=30 max=8GiB\n"
    "  config get | config put FILE.json (- is standard input)\n"
    "  lose DEVICE | slow DEVICE TIMES|hang   a drill (1 ends it), with serve --allow-faults\n"
    "\n"
    "  --wait          of load to unpin: answer when it is done, not when it is begun\n"
    "  --timeout S     how long --wait waits (default: 60)\n"
    "  --level warm|hot   of pin: in host memory, or on a device (default)\n"
    "  --load NAME     of plan: what loading this model would do\n"
    "  --persist       of set: write the change to the daemon's file, too\n"
    "  --every S       of top: tables every S seconds\n"
    "  --count N       of top: tables N times\n"
    "  --socket PATH   the daemon's admin.listen (default: $INFERD_ADMIN_SOCKET, else\n"
    "                  $XDG_RUNTIME_DIR/inferd/admin.sock, else /run/inferd/admin.sock)\n"
    "  --url URL       http://HOST:PORT, with an admin key\n"
    "  --key-env NAME  the environment variable with that key (default: INFERD_ADMIN_KEY)\n"
    "  --json          print the JSON answer unchanged\n"
    "  --help\n"
    "\n"
    "exit status: 0 done, 1 refused, does not fit or cannot be printed, 2 usage, 3 cannot "
    "connect\n";

enum {
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_USAGE,
    EXIT_UNREACHABLE,
    TIMEOUT_S = 60,  // without --timeout
    GRACE_S = 10,    // extra time: the daemon itself answers when a wait is over
    CONFIG_S = 3600, // checking a configuration reads files of models
    FILE_BYTES_MAX = 64 * 1024 * 1024
};

typedef struct ctl {
    ctl_target target;
    bool json, wait, persist;
    bool every; // --every is there
    double timeout_s, every_s, count;
    const char *level, *load;
    char **words; // [n_words] of the command
    int n_words;
} ctl;

static int use(const char *why) {
    if (why != NULL) fprintf(stderr, "inferd: %s\n", why);
    fputs(usage, stderr);
    return EXIT_USAGE;
}

/* ---- requests ---- */

static json_t *parse(const buf *text) {
    json_limits limits = json_limits_default;
    json_t *v = NULL;
    inferd_err err;
    limits.structural_max = CTL_ANSWER_BYTES_MAX;
    limits.memory_max = 64ull * CTL_ANSWER_BYTES_MAX;
    if (json_in_parse((bytes){text->p, text->n}, &limits, &v, &err) != INFERD_OK) return NULL;
    return v;
}

typedef void show(buf *out, const json_t *answer);

static volatile sig_atomic_t interrupted; // SIGINT, while tables are repeated: ends a wait, too

/* False: standard error says why, but not for EPIPE (`| head`), where the reader wants no more. */
static bool print(buf *out) {
    bool written = !out->failed && (out->n == 0 || fwrite(out->p, 1, out->n, stdout) == out->n);
    written = written && fflush(stdout) == 0 && !ferror(stdout);
    if (out->failed)
        fputs("inferd: standard output: no memory for the answer\n", stderr);
    else if (!written && errno != EPIPE && !interrupted)
        fprintf(stderr, "inferd: standard output: %s\n", strerror(errno));
    buf_deinit(out);
    return written || interrupted;
}

typedef char socket_places[ADMIN_SOCKET_PLACES][ADMIN_SOCKET_BYTES];

/* Where to ask: as the options say, else the socket of the environment, else the first default one
 * with a daemon.  False: there is none, and standard error says where it was looked for. */
static bool find_target(const ctl *c, socket_places places, ctl_target *out) {
    *out = c->target;
    if (out->url != NULL || out->socket_path != NULL) return true;
    out->socket_path = getenv("INFERD_ADMIN_SOCKET");
    if (out->socket_path != NULL && *out->socket_path != 0) return true;
    inferd_err why[ADMIN_SOCKET_PLACES];
    uint32_t n = admin_socket_places(places);
    for (uint32_t i = 0; i < n; i++) {
        out->socket_path = places[i];
        if (ctl_is_there(places[i], &why[i])) return true;
    }
    fputs("inferd: found no daemon: INFERD_ADMIN_SOCKET is not set", stderr);
    for (uint32_t i = 0; i < n; i++) fprintf(stderr, "; %s", why[i].text);
    fputs(".  Name it with --socket PATH (admin.listen), or --url http://HOST:PORT\n", stderr);
    return false;
}

/* Of an answer that is no success: what the daemon says, on standard error. */
static void print_refusal(int status, const json_t *v) {
    buf out = {0};
    if (v != NULL) show_error(&out, v);
    if (out.n == 0) buf_add_format(&out, "inferd: the answer has status %d\n", status);
    show_blank_controls(&out);
    fputs(buf_cstr(&out), stderr);
    buf_deinit(&out);
}

static bool is_success(const ctl_answer *answer) {
    return answer->status >= 200 && answer->status < 300;
}

/* Sends a request and shows the answer.  `how` NULL: unchanged. */
static int ask(const ctl *c, const char *method, const char *path, bytes body, unsigned timeout_s,
               show *how) {
    ctl_answer answer;
    ctl_target target;
    socket_places places;
    inferd_err err = {0};
    buf out = {0};
    if (!find_target(c, places, &target)) return EXIT_UNREACHABLE;
    if (ctl_ask(&target, method, path, body, timeout_s, &answer, &err) != INFERD_OK) {
        if (!interrupted) fprintf(stderr, "inferd: %s\n", err.text);
        return err.status == INFERD_EINVAL ? EXIT_USAGE : EXIT_UNREACHABLE;
    }
    bool fine = is_success(&answer);
    json_t *v = parse(&answer.body);
    if (c->json || (fine && how == NULL)) {
        buf_add(&out, answer.body.p, answer.body.n);
        if (out.n > 0 && out.p[out.n - 1] != '\n') buf_add_char(&out, '\n');
    } else if (fine) {
        how(&out, v);
        show_blank_controls(&out);
    }
    bool no = fine && how == show_plan && !json_is_true(json_object_get(v, "fits"));
    bool written = print(&out);
    if (!fine) print_refusal(answer.status, v);
    json_decref(v);
    buf_deinit(&answer.body);
    return fine && written && !no ? EXIT_DONE : EXIT_REFUSED;
}

/* ---- commands ---- */

static void show_command(buf *out, const json_t *v) {
    const char *name = json_string_value(json_object_get(v, "model"));
    const char *state = json_string_value(json_object_get(v, "state"));
    buf_add_format(out, "%s: %s\n", name == NULL ? "" : name, state == NULL ? "" : state);
}

static int do_show(const ctl *c, show *how) {
    return ask(c, "GET", "/admin/state", (bytes){0}, TIMEOUT_S, how);
}

static void on_interrupt(int sig) {
    (void)sig;
    interrupted = 1;
}

static int do_tables(ctl *c) {
    int status = EXIT_DONE;
    bool screen = isatty(STDOUT_FILENO) && top_screen_named() && !c->json;
    /* No SA_RESTART: the signal ends a wait.  One between the look at the flag and the wait does
     * not, and a second one ends the process. */
    struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND};
    c->target.stop = &interrupted;
    sigaction(SIGINT, &sa, NULL);
    for (double i = 0; status == EXIT_DONE && !interrupted && (c->count == 0 || i < c->count);
         i++) {
        if (i > 0) usleep((useconds_t)(c->every_s * 1e6));
        if (interrupted) break;
        if (screen)
            fputs("\033[H\033[2J", stdout);
        else if (i > 0)
            fputs("\n", stdout);
        status = do_show(c, show_state);
    }
    return interrupted ? EXIT_DONE : status;
}

/* The screen, or tables again and again. */
static int do_top(ctl *c) {
    socket_places places;
    ctl_target target;
    if (c->json || c->count > 0 || c->every || !cli_top_can()) return do_tables(c);
    if (!find_target(c, places, &target)) return EXIT_UNREACHABLE;
    int status = cli_top(&target);
    return status == CLI_TOP_NO_SCREEN ? do_tables(c) : status;
}

static int do_command(const ctl *c, const char *command) {
    buf path = {0}, body = {0};
    if (c->n_words != 2) return use("expected the name of one model");
    if (c->level != NULL && strcmp(command, "pin") != 0) return use("--level belongs to pin");
    buf_add_str(&path, "/admin/models/");
    ctl_add_segment(&path, c->words[1]);
    buf_add_format(&path, "/%s", command);
    buf_add_format(&body, "{\"wait\":%s,\"timeout_ms\":%.0f", c->wait ? "true" : "false",
                   c->timeout_s * 1000);
    if (c->level != NULL) buf_add_format(&body, ",\"level\":\"%s\"", c->level);
    buf_add_char(&body, '}');
    int status = ask(c, "POST", buf_cstr(&path), (bytes){body.p, body.n},
                     (unsigned)c->timeout_s + GRACE_S, show_command);
    buf_deinit(&path);
    buf_deinit(&body);
    return status;
}

static bool read_file(const char *path, buf *out) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    buf_init(out, FILE_BYTES_MAX);
    for (size_t n = 1; f != NULL && n > 0 && !out->failed;) {
        char piece[16384];
        n = fread(piece, 1, sizeof piece, f);
        buf_add(out, piece, n);
    }
    bool fine = f != NULL && !ferror(f) && !out->failed;
    if (!fine)
        fprintf(stderr, "inferd: %s: %s\n", path,
                out->failed ? "more than 64 MiB" : strerror(errno));
    if (f != NULL && f != stdin) fclose(f);
    return fine;
}

/* share.percent=30: a JSON value if it parses, else text. */
static bool set_value(json_t *into, char *word) {
    char *value = strchr(word, '='), *dot;
    if (value == NULL || value == word) return false;
    *value++ = 0;
    while ((dot = strchr(word, '.')) != NULL) {
        *dot = 0;
        json_t *inner = json_object_get(into, word);
        if (!json_is_object(inner)) {
            inner = json_object();
            if (json_object_set_new(into, word, inner) != 0) return false;
        }
        into = inner;
        word = dot + 1;
    }
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    if (v == NULL) v = json_string(value);
    return json_object_set_new(into, word, v) == 0;
}

/* ---- plans ---- */

/* A question of a file, which holds one, or a model as in the configuration.  NULL: said why. */
static json_t *question_of_file(const char *path) {
    buf text = {0};
    json_t *v = read_file(path, &text) ? parse(&text) : NULL;
    bool read = text.n > 0 && !text.failed;
    buf_deinit(&text);
    if (json_is_object(v))
        return json_object_get(v, "path") != NULL ? json_pack("{s:o}", "model", v) : v;
    if (read) fprintf(stderr, "inferd: %s: expected a JSON object\n", path);
    json_decref(v);
    return NULL;
}

static bool is_text(const json_t *v, const char *text) {
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

/* By name or alias. */
static json_t *find_model(const json_t *config, const char *name) {
    const json_t *models = json_object_get(config, "models");
    for (size_t i = 0; i < json_array_size(models); i++) {
        json_t *m = json_array_get(models, i);
        const json_t *aliases = json_object_get(m, "aliases");
        if (is_text(json_object_get(m, "name"), name)) return m;
        for (size_t k = 0; k < json_array_size(aliases); k++)
            if (is_text(json_array_get(aliases, k), name)) return m;
    }
    return NULL;
}

/* null brings a default back, as in `set`. */
static void drop_nulls(json_t *v) {
    const char *key;
    json_t *inner;
    void *next;
    json_object_foreach_safe(v, next, key, inner) {
        if (json_is_null(inner))
            json_object_del(v, key);
        else
            drop_nulls(inner);
    }
}

/* plan model NAME KEY=VALUE...: the model as it would be after `set` with the same words.  NULL:
 * said why, *status is set. */
static json_t *question_of_words(const ctl *c, int *status) {
    ctl_answer answer;
    ctl_target target;
    socket_places places;
    inferd_err err = {0};
    *status = EXIT_UNREACHABLE;
    if (!find_target(c, places, &target)) return NULL;
    if (ctl_ask(&target, "GET", "/admin/config", (bytes){0}, TIMEOUT_S, &answer, &err) !=
        INFERD_OK) {
        fprintf(stderr, "inferd: %s\n", err.text);
        if (err.status == INFERD_EINVAL) *status = EXIT_USAGE;
        return NULL;
    }
    bool fine = is_success(&answer);
    json_t *config = parse(&answer.body), *model = fine ? find_model(config, c->words[2]) : NULL;
    if (!fine)
        print_refusal(answer.status, config);
    else if (model == NULL)
        fprintf(stderr, "inferd: the configuration has no model \"%s\"\n", c->words[2]);
    buf_deinit(&answer.body);
    json_incref(model);
    json_decref(config);
    *status = model == NULL ? EXIT_REFUSED : EXIT_USAGE;
    if (model == NULL) return NULL;
    for (int i = 3; i < c->n_words; i++) {
        if (set_value(model, c->words[i])) continue;
        json_decref(model);
        use("expected: plan model NAME KEY=VALUE...");
        return NULL;
    }
    drop_nulls(model);
    return json_pack("{s:o}", "model", model);
}

static int do_plan(const ctl *c) {
    int status = EXIT_USAGE;
    bool words = c->n_words >= 4 && strcmp(c->words[1], "model") == 0 && c->load == NULL;
    if (!words && c->n_words != (c->load == NULL ? 2 : 1))
        return use("expected a file, --load NAME, or model NAME KEY=VALUE...");
    json_t *v = c->load != NULL ? json_pack("{s:s}", "load", c->load)
                : words         ? question_of_words(c, &status)
                                : question_of_file(c->words[1]);
    char *question = v == NULL ? NULL : json_dumps_whole(v, JSON_COMPACT);
    json_decref(v);
    if (question == NULL) return status;
    status =
        ask(c, "POST", "/admin/plan", (bytes){question, strlen(question)}, CONFIG_S, show_plan);
    free(question);
    return status;
}

static void show_changed(buf *out, const json_t *v) {
    const json_t *restart = json_object_get(v, "needs_restart");
    buf_add_str(
        out,
        json_is_true(json_object_get(v, "persisted"))
            ? "applied, and written to the file\n"
            : "applied, but not written to the file: valid until the next reload or restart\n");
    for (size_t i = 0; i < json_array_size(restart); i++)
        buf_add_format(out, "needs a restart: %s\n", json_string_value(json_array_get(restart, i)));
    if (json_object_get(v, "warning") != NULL)
        buf_add_format(out, "warning: %s\n", json_string_value(json_object_get(v, "warning")));
}

static int do_set(const ctl *c) {
    buf path = {0};
    json_t *patch = json_object();
    bool is_model = c->n_words > 1 && strcmp(c->words[1], "model") == 0;
    bool fine = c->n_words >= 4 && (is_model || strcmp(c->words[1], "tenant") == 0);
    for (int i = 3; fine && i < c->n_words; i++) fine = set_value(patch, c->words[i]);
    char *text = fine ? json_dumps_whole(patch, JSON_COMPACT) : NULL;
    json_decref(patch);
    if (text == NULL) return use("expected: set model|tenant NAME KEY=VALUE...");
    buf_add_str(&path, is_model ? "/admin/models/" : "/admin/tenants/");
    ctl_add_segment(&path, c->words[2]);
    if (c->persist) buf_add_str(&path, "?persist=true");
    int status =
        ask(c, "PATCH", buf_cstr(&path), (bytes){text, strlen(text)}, CONFIG_S, show_changed);
    free(text);
    buf_deinit(&path);
    return status;
}

static int do_config(const ctl *c) {
    buf text = {0};
    if (c->n_words == 2 && strcmp(c->words[1], "get") == 0)
        return ask(c, "GET", "/admin/config", (bytes){0}, TIMEOUT_S, NULL);
    if (c->n_words != 3 || strcmp(c->words[1], "put") != 0)
        return use("expected: config get, or config put FILE");
    int status = EXIT_USAGE;
    if (read_file(c->words[2], &text))
        status = ask(c, "PUT", "/admin/config", (bytes){text.n == 0 ? "" : text.p, text.n},
                     CONFIG_S, show_changed);
    if (text.p != NULL) explicit_bzero(text.p, text.capacity); // it may hold keys
    buf_deinit(&text);
    return status;
}

/* lose DEVICE, slow DEVICE 3, slow DEVICE hang */
static int do_drill(const ctl *c, bool slow) {
    buf path = {0}, body = {0};
    double times = 0;
    if (c->n_words != (slow ? 3 : 2))
        return use(slow ? "expected: slow DEVICE TIMES, or slow DEVICE hang"
                        : "expected: lose DEVICE");
    bool hang = slow && strcmp(c->words[2], "hang") == 0;
    if (slow && !hang && !cli_number("slow", c->words[2], 1, 1000, &times)) return EXIT_USAGE;
    buf_add_str(&path, "/admin/devices/");
    ctl_add_segment(&path, c->words[1]);
    buf_add_str(&path, slow ? "/slow" : "/lose");
    if (hang)
        buf_add_str(&body, "{\"times\":\"hang\"}");
    else if (slow)
        buf_add_format(&body, "{\"times\":%.3f}", times);
    int status = ask(c, "POST", buf_cstr(&path), (bytes){body.p, body.n}, TIMEOUT_S, show_drill);
    buf_deinit(&path);
    buf_deinit(&body);
    return status;
}

static int run(ctl *c) {
    static const char *const orders[] = {"load",  "unload",  "drop", "prefetch",
                                         "drain", "undrain", "pin",  "unpin"};
    const char *command = c->words[0];
    bool alone = c->n_words == 1;
    for (size_t i = 0; i < INFERD_COUNT(orders); i++)
        if (strcmp(command, orders[i]) == 0) return do_command(c, command);
    if (strcmp(command, "plan") == 0) return do_plan(c);
    if (strcmp(command, "set") == 0) return do_set(c);
    if (strcmp(command, "lose") == 0) return do_drill(c, false);
    if (strcmp(command, "slow") == 0) return do_drill(c, true);
    if (strcmp(command, "config") == 0) return do_config(c);
    if (alone && strcmp(command, "state") == 0) return do_show(c, show_state);
    if (alone && strcmp(command, "models") == 0) return do_show(c, show_models);
    if (alone && strcmp(command, "tenants") == 0) return do_show(c, show_tenants);
    if (alone && strcmp(command, "top") == 0) return do_top(c);
    return use("no such command");
}

/* ---- options ---- */

static int read_options(int argc, char **argv, ctl *c, const char **key_env) {
    enum { SOCKET = 1, URL, KEY_ENV, JSON, WAIT, TIMEOUT, LEVEL, LOAD, PERSIST, EVERY, COUNT };
    static const struct option longs[] = {{"socket", required_argument, NULL, SOCKET},
                                          {"url", required_argument, NULL, URL},
                                          {"key-env", required_argument, NULL, KEY_ENV},
                                          {"json", no_argument, NULL, JSON},
                                          {"wait", no_argument, NULL, WAIT},
                                          {"timeout", required_argument, NULL, TIMEOUT},
                                          {"level", required_argument, NULL, LEVEL},
                                          {"load", required_argument, NULL, LOAD},
                                          {"persist", no_argument, NULL, PERSIST},
                                          {"every", required_argument, NULL, EVERY},
                                          {"count", required_argument, NULL, COUNT},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int option;
    while ((option = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        switch (option) {
        case 'h':
            fputs(usage, stdout);
            return EXIT_DONE;
        case SOCKET:
            c->target.socket_path = optarg;
            break;
        case URL:
            c->target.url = optarg;
            break;
        case KEY_ENV:
            *key_env = optarg;
            break;
        case JSON:
            c->json = true;
            break;
        case WAIT:
            c->wait = true;
            break;
        case TIMEOUT:
            if (!cli_number("--timeout", optarg, 0, 86400, &c->timeout_s)) return EXIT_USAGE;
            break;
        case LEVEL:
            if (strcmp(optarg, "warm") != 0 && strcmp(optarg, "hot") != 0)
                return use("--level is warm or hot");
            c->level = optarg;
            break;
        case LOAD:
            c->load = optarg;
            break;
        case PERSIST:
            c->persist = true;
            break;
        case EVERY:
            if (!cli_number("--every", optarg, 0.1, 3600, &c->every_s)) return EXIT_USAGE;
            c->every = true;
            break;
        case COUNT:
            if (!cli_number("--count", optarg, 1, 1e9, &c->count)) return EXIT_USAGE;
            break;
        default:
            return use(NULL);
        }
    }
    c->words = argv + optind;
    c->n_words = argc - optind;
    if (c->target.socket_path != NULL && c->target.url != NULL)
        return use("--socket and --url exclude each other");
    return c->n_words == 0 ? use("expected a command") : -1;
}

int cli_ctl(int argc, char **argv) {
    ctl c = {.timeout_s = TIMEOUT_S, .every_s = 1};
    const char *key_env = NULL;
    int status = read_options(argc, argv, &c, &key_env);
    if (status >= 0) return status;
    if (c.target.url != NULL) {
        c.target.key = getenv(key_env != NULL ? key_env : "INFERD_ADMIN_KEY");
        if (c.target.key == NULL && key_env != NULL) {
            fprintf(stderr, "inferd: the environment has no %s (--key-env)\n", key_env);
            return EXIT_USAGE;
        }
        if (c.target.key != NULL && strpbrk(c.target.key, "\r\n") != NULL)
            return use("the key holds a line break");
    } else if (key_env != NULL) {
        return use("--key-env belongs to --url: the socket file needs no key");
    }
    json_in_init();
    return run(&c);
}
