/* cli_render.c - `inferd render TEMPLATE`: a chat template on variables from standard input. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "inferd/buf.h"
#include "inferd/json_whole.h"
#include "models/chat.h"

static const char usage[] =
    "usage: inferd render TEMPLATE.jinja [--now 2026-01-15T09:30:00] < lines\n"
    "\n"
    "Reads one JSON object of variables per line (messages, tools, bos_token, ...) and prints\n"
    "one JSON string per line, or {\"error\": ...}.\n"
    "\n"
    "  --now TIME   what strftime_now sees, local time (default: now)\n";

/* False: the reason was printed on standard error. */
static bool read_template(const char *path, buf *out) {
    FILE *f = fopen(path, "rbe");
    if (f == NULL) {
        fprintf(stderr, "inferd: %s: %s\n", path,
                errno == ENOENT ? "no such file" : strerror(errno));
        return false;
    }
    char chunk[65536];
    size_t n;
    errno = 0;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) buf_add(out, chunk, n);
    if (ferror(f))
        fprintf(stderr, "inferd: %s: %s\n", path,
                errno == EISDIR ? "it is a directory, expected a file" : strerror(errno));
    else if (out->failed)
        fprintf(stderr, "inferd: %s: it is longer than the limit of %zu bytes\n", path,
                chat_limits_default.source_bytes_max);
    bool fine = !ferror(f) && !out->failed;
    fclose(f);
    return fine;
}

static void print_json(json_t *value) {
    char *text = value != NULL ? json_dumps_whole(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    puts(text != NULL ? text : "{\"error\":\"out of memory\"}");
    fflush(stdout);
    free(text);
    json_decref(value);
}

static void render_line(const chat_template *t, const char *line, size_t n, const struct tm *now) {
    json_error_t problem;
    inferd_err err = {0};
    chat_text text = {0};
    json_t *vars = json_loadb(line, n, JSON_REJECT_DUPLICATES, &problem);
    if (vars == NULL) {
        print_json(json_pack("{s:s}", "error", problem.text));
    } else if (!json_is_object(vars)) {
        print_json(json_pack("{s:s}", "error", "expected a JSON object"));
    } else if (chat_template_render(t, NULL, vars, now, &text, &err) != INFERD_OK) {
        print_json(json_pack("{s:s}", "error", err.text));
    } else {
        print_json(json_stringn(text.text, text.n));
    }
    chat_text_deinit(&text);
    json_decref(vars);
}

int cli_render(int argc, char **argv) {
    static const struct option longs[] = {
        {"help", no_argument, NULL, 'h'}, {"now", required_argument, NULL, 'n'}, {0}};
    time_t wall = time(NULL);
    struct tm now;
    localtime_r(&wall, &now);
    int c;
    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (c == 'h') return fputs(usage, stdout) < 0;
        if (c != 'n') return fputs(usage, stderr), 2;
        memset(&now, 0, sizeof now);
        const char *end = strptime(optarg, "%Y-%m-%dT%H:%M:%S", &now);
        if (end == NULL || *end != 0) {
            fprintf(stderr, "inferd: --now is \"%s\"; expected 2026-01-15T09:30:00\n", optarg);
            return 2;
        }
        now.tm_isdst = -1;
        mktime(&now); // sets the day of the week
    }
    if (argc - optind != 1) return fputs(usage, stderr), 2;

    buf source;
    buf_init(&source, chat_limits_default.source_bytes_max);
    if (!read_template(argv[optind], &source)) {
        buf_deinit(&source);
        return CLI_WRONG;
    }
    chat_template *t;
    inferd_err err = {0};
    inferd_status st =
        chat_template_open((bytes){source.p, source.n}, &chat_limits_default, &t, &err);
    buf_deinit(&source);
    if (st != INFERD_OK) {
        fprintf(stderr, "inferd: %s: %s\n", argv[optind], err.text);
        return CLI_WRONG;
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        if (line[n - 1] == '\n') n--;
        if (n > 0) render_line(t, line, (size_t)n, &now);
    }
    free(line);
    chat_template_close(t);
    return 0;
}
