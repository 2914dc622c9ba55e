/* calls_rig.h - formats of tool calls in tests: learned from templates, texts read and written.
 *
 * Real templates are those of INFERD_SHARED/templates; each is opened once, by for_each_template.
 */
#ifndef INFERD_CALLS_RIG_H
#define INFERD_CALLS_RIG_H

#include <dirent.h>

#include "calls/format.h"
#include "calls/learn.h"
#include "chat/json_text.h"
#include "test.h"

/* ---- reading ---- */

typedef struct message {
    buf reasoning, content, calls;
} message;

static inline void on_event(void *ctx, const call_event *ev) {
    message *m = ctx;
    switch (ev->kind) {
    case CALL_EVENT_REASONING:
        buf_add(&m->reasoning, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_CONTENT:
        buf_add(&m->content, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_BEGIN:
        buf_add(&m->calls, ev->name.p, ev->name.n);
        if (ev->id.n > 0) buf_add_format(&m->calls, "#%.*s", (int)ev->id.n, ev->id.p);
        break;
    case CALL_EVENT_ARGUMENTS:
        buf_add(&m->calls, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_END:
        buf_add_str(&m->calls, ev->complete ? ";" : "~;");
        break;
    }
}

static inline void deinit(message *m) {
    buf_deinit(&m->reasoning);
    buf_deinit(&m->content);
    buf_deinit(&m->calls);
}

/* Pieces: [0, cut), [cut, n); cut 0: byte by byte. */
static inline message read_pieces(const call_format *f, const call_parser_options *o, bytes text,
                                  size_t cut) {
    message m = {0};
    call_parser *p = call_parser_create(f, o);
    size_t at = 0;
    while (at < text.n) {
        size_t n = cut == 0 ? 1 : at == 0 ? size_min(cut, text.n) : text.n - at;
        EXPECT(call_parser_push(p, (bytes){text.p + at, n}, on_event, &m));
        at += n;
    }
    EXPECT(call_parser_finish(p, on_event, &m));
    call_parser_destroy(p);
    buf_add(&m.reasoning, "", 0);
    return m;
}

static inline bool same(const buf *a, const buf *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

/* The message of a text; all ways to cut it give the same one. */
static inline message read_text(const call_format *f, const call_parser_options *o, bytes text) {
    message whole = read_pieces(f, o, text, text.n);
    for (size_t cut = 0; cut < text.n; cut++) {
        message m = read_pieces(f, o, text, cut);
        bool equal = same(&m.reasoning, &whole.reasoning) && same(&m.content, &whole.content) &&
                     same(&m.calls, &whole.calls);
        if (!equal) {
            printf("cut at %zu of %.*s\n  %s | %s | %s\n  %s | %s | %s\n", cut, (int)text.n, text.p,
                   buf_cstr(&whole.reasoning), buf_cstr(&whole.content), buf_cstr(&whole.calls),
                   buf_cstr(&m.reasoning), buf_cstr(&m.content), buf_cstr(&m.calls));
            test_failures++;
            cut = text.n;
        }
        deinit(&m);
    }
    return whole;
}

static inline call_format *learn(const char *source) {
    chat_template *t = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    EXPECT_EQ(chat_template_open(bytes_of(source), NULL, &t, &err), INFERD_OK);
    EXPECT_EQ(call_format_open(t, bytes_of(source), NULL, NULL, &f, &err), INFERD_OK);
    chat_template_close(t);
    return f;
}

static inline void expect_read(int line, const call_format *f, const call_parser_options *o,
                               const char *text, const char *thought, const char *content,
                               const char *calls) {
    message m = read_text(f, o, bytes_of(text));
    const char *got[] = {buf_cstr(&m.reasoning), buf_cstr(&m.content), buf_cstr(&m.calls)};
    const char *wanted[] = {thought, content, calls};
    for (int i = 0; i < 3; i++)
        if (strcmp(got[i], wanted[i]) != 0) {
            printf("line %d: \"%s\", expected \"%s\"\n", line, got[i], wanted[i]);
            test_failures++;
        }
    deinit(&m);
}
#define READS(f, text, reasoning, content, calls)                                                  \
    expect_read(__LINE__, f, &(call_parser_options){0}, text, reasoning, content, calls)

/* ---- real templates ---- */

static inline const char *shared_folder(void) {
    const char *folder = getenv("INFERD_SHARED");
    return folder != NULL ? folder : INFERD_SOURCE_DIR "/../shared";
}

static uint64_t random_state = 20;

static inline uint32_t draw(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static inline json_t *draw_text(void) {
    static const char *const parts[] = {"a", "Rome", " ", "\"", "\n",  "\\", "<b>", "{", "}", "[1]",
                                        "ü", "世界", "🚀", "3",  ", x", ":",  "=",   "&", "/", "%"};
    buf b = {0};
    for (uint32_t n = draw(8); n > 0; n--) buf_add_str(&b, parts[draw(INFERD_COUNT(parts))]);
    json_t *v = json_stringn(b.n > 0 ? b.p : "", b.n);
    buf_deinit(&b);
    return v;
}

static inline json_t *draw_value(int depth) {
    uint32_t kind = draw(depth > 0 ? 7 : 5);
    json_t *v;
    switch (kind) {
    case 0:
        return json_integer((json_int_t)draw(2000) - 1000);
    case 1:
        return json_real((double)draw(1000) / 8 - 60);
    case 2:
        return json_boolean(draw(2));
    case 3:
        return json_null();
    case 4:
        return draw_text();
    case 5:
        v = json_array();
        for (uint32_t n = draw(3); n > 0; n--) json_array_append_new(v, draw_value(depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t n = draw(3), i = 0; i < n; i++)
            json_object_set_new(v, i == 0 ? "key" : "other", draw_value(depth - 1));
        return v;
    }
}

static inline const char *type_of(const json_t *v) {
    static const char *const names[] = {"object", "array",   "string",  "integer",
                                        "number", "boolean", "boolean", "null"};
    return names[json_typeof(v)];
}

/* A tool and arguments for it, whose types the schema says. */
static inline json_t *draw_tool(const char *name, json_t *arguments) {
    json_t *properties = json_object();
    static const char *const keys[] = {"path", "n_lines", "x", "deep_value"};
    for (uint32_t n = draw(5), i = 0; i < n && i < 4; i++) {
        json_t *v = draw_value(2);
        json_object_set_new(properties, keys[i],
                            json_pack("{s:s,s:s}", "type", type_of(v), "description", "d"));
        json_object_set_new(arguments, keys[i], v);
    }
    return json_pack("{s:s,s:{s:s,s:s,s:{s:s,s:o,s:[]}}}", "type", "function", "function", "name",
                     name, "description", "d", "parameters", "type", "object", "properties",
                     properties, "required");
}

/* What the template writes for these calls, without the header of the turn. */
typedef struct written {
    buf text;
    size_t at;  // of the answer in the text
    size_t end; // of it, without the end of the turn
} written;

static inline bytes whole_answer(const written *w) {
    return (bytes){w->text.p + w->at, w->text.n - w->at};
}
static inline bytes answer_without_end(const written *w) {
    bytes s = {w->text.p + w->at, w->end - w->at};
    while (s.n > 0 && call_is_white(s.p[s.n - 1])) s.n--;
    return s;
}

/* The header of the next turn, and what ends a turn. */
static inline bool header_and_end(prober *p, buf *turn, buf *end) {
    if (!probe_prompt(p, turn)) return false;
    if (!probe_message(p, probe_said(PROBE_CONTENT, NULL, NULL), end)) return true;
    size_t n = bytes_find((bytes){end->p, end->n}, bytes_of(PROBE_CONTENT), 0);
    n = n == SIZE_MAX ? end->n : n + strlen(PROBE_CONTENT);
    memmove(end->p, end->p + n, end->n - n);
    end->n -= n;
    return true;
}

/* Where the answer begins, with calls of which the first has this name. */
static inline bool find_answer(const call_format *f, const buf *turn, const char *called,
                               written *w) {
    bytes text = {w->text.p, w->text.n};
    size_t at = 0;
    while (at < text.n && at < turn->n && text.p[at] == turn->p[at]) at++;
    at = learn_back(text, at);
    /* Where a prompt has more before its last mark than an earlier turn. */
    bytes opens = bytes_trim((bytes){turn->p, turn->n});
    size_t mark = opens.n;
    while (mark > 0 && opens.p[mark - 1] != '<') mark--;
    bytes last = bytes_from(opens, mark > 0 ? mark - 1 : opens.n);
    if (bytes_start(bytes_from(text, at), last)) at += last.n;
    bytes close = bytes_trim(f->reasoning_close);
    size_t name_at = bytes_find(text, bytes_of(called), at);
    if (name_at == SIZE_MAX) return false; // its calls are mentioned only
    size_t closed = close.n > 0 ? bytes_find((bytes){text.p, name_at}, close, 0) : SIZE_MAX;
    if (closed != SIZE_MAX && closed + close.n > at) at = closed + close.n;
    w->at = at;
    return true;
}

/* False: the template cannot write these. */
static inline bool write_calls(const chat_template *t, const call_format *f, json_t *tools,
                               json_t *calls, written *w) {
    prober p;
    buf turn = {0}, end = {0};
    *w = (written){0};
    json_t *said = probe_said("", NULL, NULL);
    json_object_set(said, "tool_calls", calls);
    bool ok = prober_init(&p, t, NULL, tools) && header_and_end(&p, &turn, &end);
    if (ok)
        ok = probe_message(&p, said, &w->text);
    else
        json_decref(said);
    const json_t *first = json_object_get(json_array_get(calls, 0), "function");
    ok = ok && find_answer(f, &turn, json_string_value(json_object_get(first, "name")), w);
    if (ok) w->end = w->text.n - learn_suffix(whole_answer(w), (bytes){end.p, end.n});
    buf_deinit(&turn);
    buf_deinit(&end);
    prober_deinit(&p);
    return ok;
}

static inline json_t *call_json(const char *name, size_t i, json_t *arguments) {
    char id[20];
    snprintf(id, sizeof id, "callid%03zu", i % 1000);
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name",
                     name, "arguments", arguments);
}

typedef void (*template_use)(const char *name, const chat_template *t, const call_format *f);

/* False: the folder is not there. */
static inline bool for_each_template(template_use use) {
    char path[512];
    snprintf(path, sizeof path, "%s/templates", shared_folder());
    DIR *d = opendir(path);
    if (d == NULL) return false;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strstr(e->d_name, ".jinja") == NULL) continue;
        static char source[1 << 20];
        snprintf(path, sizeof path, "%s/templates/%s", shared_folder(), e->d_name);
        FILE *file = fopen(path, "rb");
        size_t n = file == NULL ? 0 : fread(source, 1, sizeof source - 1, file);
        if (file != NULL) fclose(file);
        source[n] = 0;
        chat_template *t = NULL;
        inferd_err err = {0};
        if (chat_template_open((bytes){source, n}, NULL, &t, &err) != INFERD_OK) continue;
        call_format *f = learn(source);
        use(e->d_name, t, f);
        call_format_close(f);
        chat_template_close(t);
    }
    closedir(d);
    return true;
}

#endif
