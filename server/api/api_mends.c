/* api_mends.c - the mends of a conversation; see api_mend.h. */
#include "api_mends.h"

#include <string.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/json_whole.h"
#include "inferd/siphash.h"
#include "json_cut.h"
#include "models/chat.h"

/* ---- messages ---- */

static bool is_role(const json_t *m, const char *role) {
    const char *found = json_string_value(json_object_get(m, "role"));
    return found != NULL && strcmp(found, role) == 0;
}

static const json_t *calls_of(const json_t *m) {
    const json_t *calls = json_object_get(m, "tool_calls");
    return json_array_size(calls) > 0 ? calls : NULL;
}

static const char *id_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* A copy to be changed. */
static json_t *copy(draft *d, json_t *v) {
    json_t *out = json_copy_whole(v);
    d->changed = true;
    d->no_memory |= out == NULL;
    return out;
}

static void set(draft *d, json_t *object, const char *key, json_t *value) { // takes the value
    d->no_memory |= json_object_set_new(object, key, value) != 0;
}

/* The next messages of a draft, made from those that it has. */
typedef struct list {
    draft *d;
    json_t *messages, *origin;
} list;

static list list_begin(draft *d) {
    list l = {.d = d, .messages = json_array(), .origin = json_array()};
    d->no_memory |= l.messages == NULL || l.origin == NULL;
    return l;
}

/* Takes `m`, and `origin`. */
static void add_from(list *l, json_t *m, json_t *origin) {
    l->d->no_memory |= json_array_append_new(l->messages, m) != 0;
    l->d->no_memory |= json_array_append_new(l->origin, origin) != 0;
}

/* Takes `m`, which stands for message i of the draft. */
static void add(list *l, json_t *m, size_t i) {
    add_from(l, m, json_incref(json_array_get(l->d->origin, i)));
}

static void keep(list *l, size_t i) {
    add(l, json_incref(json_array_get(l->d->messages, i)), i);
}

static void list_end(list *l) {
    json_decref(l->d->messages);
    json_decref(l->d->origin);
    l->d->messages = l->messages;
    l->d->origin = l->origin;
}

static void set_role(list *l, size_t i, const char *role) {
    json_t *m = copy(l->d, json_array_get(l->d->messages, i));
    set(l->d, m, "role", json_string(role));
    add(l, m, i);
}

/* ---- texts ---- */

/* A string, or the texts of its parts, in lines as those of a template that wants strings. */
static void add_content(buf *out, const json_t *m) {
    const json_t *content = json_object_get(m, "content"), *part;
    if (json_is_string(content))
        buf_add(out, json_string_value(content), json_string_length(content));
    for (size_t k = 0; k < json_array_size(content); k++) {
        part = json_object_get(json_array_get(content, k), "text");
        if (k > 0) buf_add_char(out, '\n');
        if (part != NULL) buf_add(out, json_string_value(part), json_string_length(part));
    }
}

/* Messages [i, end) as one of this role, with a blank line between their texts. */
static void join(list *l, size_t i, size_t end, const char *role) {
    buf text = {0};
    size_t from = end; // the first one with text
    json_t *m = copy(l->d, json_array_get(l->d->messages, i));
    for (size_t k = i; k < end; k++) {
        size_t before = text.n;
        if (before > 0) buf_add_str(&text, "\n\n");
        size_t begin = text.n;
        add_content(&text, json_array_get(l->d->messages, k));
        if (text.n > begin && from == end) from = k;
        if (text.n == begin) text.n = before; // nothing to separate
    }
    set(l->d, m, "role", json_string(role));
    set(l->d, m, "content", text.failed ? NULL : json_stringn(text.n > 0 ? text.p : "", text.n));
    add(l, m, from < end ? from : i);
    buf_deinit(&text);
}

/* Joins each message with those behind it of which `joins` says so. */
static void join_all(draft *d, bool (*joins)(const json_t *head, const json_t *next)) {
    list l = list_begin(d);
    size_t n = json_array_size(d->messages), end;
    for (size_t i = 0; i < n; i = end) {
        const json_t *head = json_array_get(d->messages, i);
        for (end = i + 1; end < n && joins(head, json_array_get(d->messages, end));) end++;
        if (end == i + 1)
            keep(&l, i);
        else
            join(&l, i, end, id_of(head, "role"));
    }
    list_end(&l);
}

/* ---- the mends ---- */

/* An assistant's content may be null beside its calls: some templates fail on it. */
static void fill_contents(draft *d) {
    list l = list_begin(d);
    for (size_t i = 0; i < json_array_size(d->messages); i++) {
        json_t *m = json_array_get(d->messages, i), *content = json_object_get(m, "content");
        bool empty = content == NULL || json_is_null(content);
        m = empty ? copy(d, m) : json_incref(m);
        if (empty) set(d, m, "content", json_string(""));
        add(&l, m, i);
    }
    list_end(&l);
}

static void set_absent(draft *d, json_t *object, const char *key, json_t *value) { // takes it
    if (json_object_get(object, key) == NULL)
        set(d, object, key, value);
    else
        json_decref(value);
}

static void complete_tool(draft *d, json_t *function) {
    json_t *schema = json_object_get(function, "parameters");
    if (!json_is_string(json_object_get(function, "description")))
        set(d, function, "description", json_string(""));
    if (!json_is_object(schema)) set(d, function, "parameters", schema = json_object());
    set_absent(d, schema, "type", json_string("object"));
    set_absent(d, schema, "properties", json_object());
}

static void describe_properties(draft *d, json_t *function) {
    json_t *schema = json_object_get(function, "parameters"), *property;
    const char *key;
    json_object_foreach(json_object_get(schema, "properties"), key, property) {
        if (json_is_object(property)) set_absent(d, property, "description", json_string(""));
    }
}

static void change_tools(draft *d, void (*change)(draft *d, json_t *function)) {
    json_t *tools = d->tools == NULL ? json_array() : json_deep_copy_whole(d->tools), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) change(d, json_object_get(tool, "function"));
    d->no_memory |= tools == NULL;
    d->changed |= d->tools == NULL || json_equal(tools, d->tools) == 0;
    json_decref(d->tools);
    d->tools = tools;
}

/* Tools may lack a description and parameters; the list of them may be absent. */
static void complete_tools(draft *d) {
    change_tools(d, complete_tool);
}

static void complete_properties(draft *d) {
    change_tools(d, describe_properties);
}

static bool is_object(draft *d, json_t *arguments) {
    bool opens = false;
    if (!chat_opens_arguments(arguments, &opens)) d->no_memory = true;
    return opens;
}

/* As it was cut off, closed; a text that is no part of an object is a member of one. */
static json_t *make_object(draft *d, const json_t *arguments) {
    bytes text = {json_string_value(arguments), json_string_length(arguments)};
    buf out = {0};
    json_t *made = NULL, *wrapped;
    if (json_cut_close(text, &out)) made = json_stringn(out.p, out.n);
    d->no_memory |= out.failed || (out.n > 0 && made == NULL);
    buf_deinit(&out);
    if (d->no_memory || (made != NULL && is_object(d, made))) return made;
    json_decref(made);
    wrapped = json_pack("{ss%}", "arguments", text.p, text.n);
    char *written = wrapped == NULL ? NULL : json_dumps_whole(wrapped, 0);
    made = written == NULL ? NULL : json_string(written);
    free(written);
    json_decref(wrapped);
    d->no_memory |= made == NULL;
    return made;
}

/* The arguments of a call that `max_tokens` cut, sent back. */
static void complete_arguments(draft *d) {
    list l = list_begin(d);
    for (size_t i = 0, k; i < json_array_size(d->messages) && !d->no_memory; i++) {
        json_t *m = json_array_get(d->messages, i), *calls = NULL, *call;
        json_array_foreach(calls_of(m), k, call) {
            json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
            if (!json_is_string(arguments) || is_object(d, arguments) || d->no_memory) continue;
            if (calls == NULL) calls = json_deep_copy_whole(calls_of(m));
            call = json_array_get(calls, k);
            set(d, json_object_get(call, "function"), "arguments", make_object(d, arguments));
        }
        m = calls != NULL ? copy(d, m) : json_incref(m);
        if (calls != NULL) set(d, m, "tool_calls", calls);
        add(&l, m, i);
    }
    list_end(&l);
}

enum { SHORT_ID_CHARS = 9 };
static const char id_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";

/* The short form of an id: itself if it has it, else from its hash; no two ids have the same. */
static const char *short_id(draft *d, json_t *known, json_t *taken, const char *id) {
    char out[SHORT_ID_CHARS + 1] = "";
    const char *found = json_string_value(json_object_get(known, id));
    if (found != NULL) return found;
    bool fits = strlen(id) == SHORT_ID_CHARS;
    for (size_t i = 0; i < strlen(id) && fits; i++)
        fits = (id[i] >= 'A' && id[i] <= 'Z') || strchr(id_letters, id[i]) != NULL;
    for (uint64_t salt = 0; salt == 0 || json_object_get(taken, out) != NULL; salt++) {
        /* The key is no secret, and the same in each process; all the same, ids that collide with
         * every salt cannot be found. */
        unsigned char key[16] = {0};
        memcpy(key, &salt, sizeof salt);
        uint64_t h = siphash(key, id, strlen(id));
        for (int k = 0; k < SHORT_ID_CHARS; k++, h /= sizeof id_letters - 1)
            out[k] = id_letters[h % (sizeof id_letters - 1)];
        if (fits && salt == 0) memcpy(out, id, SHORT_ID_CHARS);
    }
    set(d, taken, out, json_true());
    set(d, known, id, json_string(out));
    d->changed |= strcmp(id, out) != 0;
    return json_string_value(json_object_get(known, id));
}

/* Templates of Mistral want ids of nine letters and digits. */
static void shorten_ids(draft *d) {
    list l = list_begin(d);
    json_t *known = json_object(), *taken = json_object(), *call;
    d->no_memory |= known == NULL || taken == NULL;
    for (size_t i = 0, k; i < json_array_size(d->messages) && !d->no_memory; i++) {
        json_t *m = json_copy_whole(json_array_get(d->messages, i)), *calls = NULL;
        const char *id = id_of(m, "tool_call_id");
        if (id != NULL) set(d, m, "tool_call_id", json_string(short_id(d, known, taken, id)));
        if (calls_of(m) != NULL) calls = json_deep_copy_whole(calls_of(m));
        json_array_foreach(calls, k, call) {
            id = id_of(call, "id");
            if (id != NULL) set(d, call, "id", json_string(short_id(d, known, taken, id)));
        }
        if (calls_of(m) != NULL) set(d, m, "tool_calls", calls);
        add(&l, m, i);
    }
    json_decref(known);
    json_decref(taken);
    list_end(&l);
}

/* It is told in x-inferd-ignored. */
static void leave_out_effort(draft *d) {
    if (json_object_get(d->kwargs, "reasoning_effort") == NULL) return;
    json_t *kwargs = copy(d, d->kwargs);
    json_object_del(kwargs, "reasoning_effort");
    json_decref(d->kwargs);
    d->kwargs = kwargs;
}

/* An answer that was cut in its reasoning, before its first word. */
static void leave_out_silence(draft *d) {
    list l = list_begin(d);
    size_t n = json_array_size(d->messages);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(d->messages, i);
        buf text = {0};
        add_content(&text, m);
        bool silent = is_role(m, "assistant") && calls_of(m) == NULL && text.n == 0;
        d->no_memory |= text.failed;
        buf_deinit(&text);
        if (silent && i + 1 < n)
            d->changed = true;
        else
            keep(&l, i);
    }
    list_end(&l);
}

/* Message i with one of its calls; the text and the reasoning stand before the first. */
static void add_call(list *l, size_t i, size_t k, json_t *call) {
    json_t *m = copy(l->d, json_array_get(l->d->messages, i)), *calls = json_array();
    l->d->no_memory |= json_array_append(calls, call) != 0;
    set(l->d, m, "tool_calls", calls);
    if (k > 0) {
        set(l->d, m, "content", json_string(""));
        json_object_del(m, "reasoning_content");
        json_object_del(m, "reasoning");
        json_object_del(m, "thinking");
    }
    add_from(l, m, json_pack("[O,I]", json_array_get(l->d->origin, i), (json_int_t)k));
}

/* The calls of message i, each before its result; the results are [i + 1, end). */
static void split(list *l, size_t i, size_t end) {
    json_t *by_id = json_object(), *call, *calls;
    size_t k;
    l->d->no_memory |= by_id == NULL;
    for (size_t r = end; r-- > i + 1;) { // the first of those with the same id
        const char *id = id_of(json_array_get(l->d->messages, r), "tool_call_id");
        if (id != NULL) set(l->d, by_id, id, json_integer((json_int_t)r));
    }
    calls = json_object_get(json_array_get(l->d->messages, i), "tool_calls");
    json_array_foreach(calls, k, call) {
        const char *id = id_of(call, "id");
        json_int_t r = id == NULL ? 0 : json_integer_value(json_object_get(by_id, id));
        add_call(l, i, k, call);
        if (r <= 0) continue;
        keep(l, (size_t)r);
        set(l->d, by_id, id, json_integer(-r));
    }
    for (size_t r = i + 1; r < end; r++) { // of no call of this message
        const char *id = id_of(json_array_get(l->d->messages, r), "tool_call_id");
        json_int_t at = id == NULL ? 0 : json_integer_value(json_object_get(by_id, id));
        if (at != -(json_int_t)r) keep(l, r);
    }
    json_decref(by_id);
}

/* Templates of Llama 3 and gpt-oss take one call a message: call, result, call, result. */
void api_split_calls(draft *d) {
    list l = list_begin(d);
    size_t n = json_array_size(d->messages), end;
    for (size_t i = 0; i < n && !d->no_memory; i = end) {
        end = i + 1;
        if (json_array_size(calls_of(json_array_get(d->messages, i))) < 2) {
            keep(&l, i);
            continue;
        }
        while (end < n && is_role(json_array_get(d->messages, end), "tool")) end++;
        split(&l, i, end);
    }
    list_end(&l);
}

/* Before a greeting stands an empty message of the user. */
static void open_with_user(draft *d) {
    list l = list_begin(d);
    size_t n = json_array_size(d->messages), first = 0;
    while (first < n && is_role(json_array_get(d->messages, first), "system")) first++;
    for (size_t i = 0; i < n; i++) {
        if (i == first && is_role(json_array_get(d->messages, i), "assistant")) {
            add(&l, json_pack("{ss,ss}", "role", "user", "content", ""), i);
            d->changed = true;
        }
        keep(&l, i);
    }
    list_end(&l);
}

static bool joins_system(const json_t *head, const json_t *next) {
    return is_role(next, "system") && (is_role(head, "system") || is_role(head, "user"));
}

/* A system's message behind the first one is text of the user's, as in form_turns.h. */
static void move_late_systems(draft *d) {
    join_all(d, joins_system);
    list l = list_begin(d);
    for (size_t i = 0; i < json_array_size(d->messages); i++)
        if (i > 0 && is_role(json_array_get(d->messages, i), "system"))
            set_role(&l, i, "user");
        else
            keep(&l, i);
    list_end(&l);
}

/* A template without system messages (Gemma 2): its text stands before the user's. */
static void move_systems(draft *d) {
    if (!is_role(json_array_get(d->messages, 0), "system")) return;
    move_late_systems(d);
    list l = list_begin(d);
    size_t i = is_role(json_array_get(d->messages, 1), "user") ? 2 : 1;
    join(&l, 0, i, "user");
    for (; i < json_array_size(d->messages); i++) keep(&l, i);
    list_end(&l);
}

/* Calls that the user answered instead of the tools. */
static void add_results(draft *d) {
    list l = list_begin(d);
    size_t n = json_array_size(d->messages);
    for (size_t i = 0; i < n && !d->no_memory; i++) {
        const json_t *calls = calls_of(json_array_get(d->messages, i));
        keep(&l, i);
        if (i + 1 == n || !is_role(json_array_get(d->messages, i + 1), "user")) continue;
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *m = json_pack("{ss,ss}", "role", "tool", "content", "");
            json_t *id = json_object_get(json_array_get(calls, k), "id");
            if (id != NULL) set(d, m, "tool_call_id", json_incref(id));
            add(&l, m, i);
            d->changed = true;
        }
    }
    list_end(&l);
}

static bool joins_turn(const json_t *head, const json_t *next) {
    if (is_role(next, "user")) return is_role(head, "user") || is_role(head, "tool");
    return is_role(next, "assistant") && is_role(head, "assistant") && calls_of(head) == NULL &&
           calls_of(next) == NULL;
}

/* Turns that do not alternate: a user's text goes to the end of the result, or of the user's text,
 * before it; an assistant's to that before it. */
static void alternate(draft *d) {
    add_results(d);
    join_all(d, joins_turn);
}

/* What changes least comes first. */
const mend api_mends[] = {
    fill_contents,  complete_tools,    complete_properties, complete_arguments,
    shorten_ids,    leave_out_effort,  leave_out_silence,   api_split_calls,
    open_with_user, move_late_systems, move_systems,        alternate,
};
const unsigned api_n_mends = INFERD_COUNT(api_mends);
