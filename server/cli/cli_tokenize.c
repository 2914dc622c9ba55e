/* cli_tokenize.c - `inferd tokenize MODEL`: JSON strings in, arrays of token ids out. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "inferd/buf.h"
#include "inferd/json_whole.h"
#include "models/model.h"

static const char usage[] =
    "usage: inferd tokenize MODEL.gguf < lines\n"
    "\n"
    "Reads one JSON string per line and prints one JSON array of token ids per line.\n"
    "Special tokens written in the text are matched; none are added.  A line that is not a\n"
    "JSON string gives {\"error\": ...} and exit status 1.\n";

static void print_error(buf *out, const char *text) {
    json_t *o = json_pack("{s:s}", "error", text);
    char *s = o != NULL ? json_dumps_whole(o, JSON_COMPACT) : NULL;
    buf_add_str(out, s != NULL ? s : "{\"error\":\"out of memory\"}");
    free(s);
    json_decref(o);
}

static bool tokenize_line(const tokenizer *tok, const char *line, size_t n, buf *out) {
    json_error_t problem;
    json_t *value = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    tok_ids ids = {0};
    inferd_err err = {0};
    bool fine = false;
    if (value == NULL) {
        print_error(out, problem.text);
    } else if (!json_is_string(value)) {
        print_error(out, "expected a JSON string");
    } else {
        bytes text = {json_string_value(value), json_string_length(value)};
        tok_span span = {text.n, true};
        tok_encode_options options = {0};
        fine = tok_encode(tok, text, &span, 1, &options, &ids, &err) == INFERD_OK;
        if (!fine) print_error(out, err.text);
    }
    if (fine) {
        buf_add_char(out, '[');
        for (size_t i = 0; i < ids.n; i++)
            buf_add_format(out, i == 0 ? "%d" : ", %d", (int)ids.ids[i]);
        buf_add_char(out, ']');
    }
    buf_add_char(out, '\n');
    tok_ids_deinit(&ids);
    json_decref(value);
    return fine;
}

int cli_tokenize(int argc, char **argv) {
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'}, {0}};
    int c;
    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (c == 'h') return fputs(usage, stdout) < 0;
        return fputs(usage, stderr), 2;
    }
    if (argc - optind != 1) return fputs(usage, stderr), 2;

    model *m;
    inferd_err err = {0};
    model_options options = {.path = argv[optind]};
    if (model_open(&options, &m, &err) != INFERD_OK) {
        fprintf(stderr, "inferd: %s\n", err.text);
        return CLI_WRONG;
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int status = 0;
    buf out;
    buf_init(&out, 0);
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        if (line[n - 1] == '\n') n--;
        if (n == 0) continue;
        buf_clear(&out);
        if (!tokenize_line(model_tokenizer(m), line, (size_t)n, &out)) status = 1;
        if (out.failed || fwrite(out.p, 1, out.n, stdout) != out.n) {
            fprintf(stderr, "inferd: cannot write the answer\n");
            status = 1;
            break;
        }
        fflush(stdout);
    }
    buf_deinit(&out);
    free(line);
    model_close(m);
    return status;
}
