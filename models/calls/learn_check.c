/* learn_check.c - a format must give back what the template writes: learn_reads_back. */
#include <string.h>

#include "calls/learn.h"
#include "chat/json_text.h"

/* Calls that are hard to read: quotes, marks, line breaks, other scripts, nesting, nothing. */
static const char *const arguments[] = {
    "{\"" PROBE_KEY_1 "\":\"say \\\"hi\\\", it's <b>\\n\\\\ \\u00fc\\u4e16\"}",
    "{\"" PROBE_KEY_1 "\":\"\",\"" PROBE_KEY_2 "\":\" 12 \"}",
    "{}",
};
static const char nested[] =
    "{\"inferd_number\":-1.5,\"inferd_flag\":true,\"inferd_list\":[1,[\"a\\n\"],{}],"
    "\"inferd_object\":{\"k\":{\"l\":[null,false,\"m'\"]}}}";

/* A tree says nothing of a null, nor of what is empty. */
static const char nested_tree[] =
    "{\"inferd_number\":-1.5,\"inferd_flag\":true,\"inferd_list\":[1,[\"a\\n\"],{\"k\":2}],"
    "\"inferd_object\":{\"k\":{\"l\":[false,\"m'\"]}}}";

static const char tool_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"" PROBE_NAME_1 "\",\"parameters\":{"
    "\"type\":\"object\",\"properties\":{\"" PROBE_KEY_1 "\":{\"type\":\"string\"},\"" PROBE_KEY_2
    "\":{\"type\":\"string\"},\"inferd_number\":{\"type\":\"number\"},\"inferd_flag\":{\"type\":"
    "\"boolean\"},\"inferd_list\":{\"type\":\"array\"},\"inferd_object\":{\"type\":\"object\"}}}}}"
    "]";

typedef struct seen {
    buf arguments, name;
    size_t n_calls, n_content;
} seen;

static void on_event(void *ctx, const call_event *ev) {
    seen *s = ctx;
    if (ev->kind == CALL_EVENT_CONTENT) s->n_content += bytes_trim(ev->text).n;
    if (ev->kind == CALL_EVENT_BEGIN) {
        s->n_calls++;
        buf_add(&s->name, ev->name.p, ev->name.n);
    }
    if (ev->kind == CALL_EVENT_ARGUMENTS) buf_add(&s->arguments, ev->text.p, ev->text.n);
}

static bool same_json(bytes a, bytes b) {
    json_t *x = NULL, *y = NULL;
    inferd_err ignored;
    bool same = json_text_read(a, &x, &ignored) == INFERD_OK &&
                json_text_read(b, &y, &ignored) == INFERD_OK && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* What a model would write: the message without the header and the end of its turn. */
static bytes answer_in(bytes message, size_t header, bytes end) {
    size_t n = learn_suffix(message, end);
    return (bytes){message.p + header, message.n > header + n ? message.n - header - n : 0};
}

/* `header`: bytes before the first mark of calls, less the reasoning; see begin_of_calls. */
static bool check(prober *p, const call_format *f, const char *text, size_t header, bytes end,
                  const json_t *tools) {
    buf message = {0};
    seen s = {0};
    bool ok = probe_message(p, probe_calls(PROBE_NAME_1, text, NULL, NULL), &message);
    if (!ok) { // the template does not take such arguments at all
        buf_deinit(&message);
        return !p->no_memory;
    }
    call_parser *parser = call_parser_create(f, &(call_parser_options){.tools = tools});
    bytes answer = answer_in((bytes){message.p, message.n}, header, end);
    ok = parser != NULL && call_parser_push(parser, answer, on_event, &s) &&
         call_parser_finish(parser, on_event, &s);
    if (!ok) p->no_memory = true;
    ok = ok && s.n_calls == 1 && s.n_content == 0 &&
         bytes_equal((bytes){s.name.p, s.name.n}, bytes_of(PROBE_NAME_1)) &&
         same_json((bytes){s.arguments.p, s.arguments.n}, bytes_of(text));
    call_parser_destroy(parser);
    buf_deinit(&message);
    buf_deinit(&s.arguments);
    buf_deinit(&s.name);
    return ok;
}

bool learn_reads_back(prober *p, const call_format *f, size_t header, bytes end) {
    json_t *tools = NULL;
    inferd_err ignored;
    bool ok = json_text_read(bytes_of(tool_text), &tools, &ignored) == INFERD_OK;
    if (!ok) p->no_memory = true;
    for (size_t i = 0; ok && i < INFERD_COUNT(arguments); i++)
        ok = check(p, f, arguments[i], header, end, tools);
    ok = ok && check(p, f, f->tree ? nested_tree : nested, header, end, tools);
    json_decref(tools);
    return ok;
}
