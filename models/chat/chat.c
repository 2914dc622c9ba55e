/* Conversations: a request, converted to the form that a template reads.
 *
 * OpenAI requests and templates differ in two points.  Content may be a list of parts, while many
 * templates only handle strings; and the arguments of a tool call are a string of JSON, while most
 * templates need the object.  The needs of a template are found out when it is opened, by rendering
 * small conversations and checking the output for a known word (chat_probe):
 *
 *   content parts     their texts are output as text: the template iterates them, and gets the
 *                     list; otherwise (quoted, missing, an error) the texts joined by newlines
 *   argument objects  are output like a Python dict: the template needs the string; otherwise it
 *                     gets the object, and if it raises on that, the string
 *   null contents     beside calls are output as a word, None or null: it gets an empty text
 *   nothing           but with the texts `functions` and `datetime`: it gets them (firefunction)
 *
 * continue_final_message works as in transformers: a word is put behind the last message and the
 * output is cut at that word. */
#include "chat/json_text.h"
#include "chat/letters.h"
#include "chat/template.h"
#include "inferd/json_whole.h"

static const char parts_probe[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": ["
    "{\"type\": \"text\", \"text\": \"inferd probe one\"},"
    "{\"type\": \"text\", \"text\": \"inferd probe two\"}]}],"
    "\"tools\": null, \"documents\": null, \"add_generation_prompt\": true}";

// ids of nine letters and digits, because templates of Mistral require them
static const char arguments_probe[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"abcdefgh1\","
    "\"type\": \"function\", \"function\": {\"name\": \"f\","
    "\"arguments\": {\"inferd_probe\": \"b\"}}}]},"
    "{\"role\": \"tool\", \"tool_call_id\": \"abcdefgh1\", \"name\": \"f\", \"content\": \"c\"}],"
    "\"tools\": null, \"documents\": null, \"add_generation_prompt\": true}";

// `content`: beside the call
#define CALLED(content)                                                                            \
    "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": " content   \
    ", \"tool_calls\": [{\"id\": \"abcdefgh1\", \"type\": \"function\", \"function\": "            \
    "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"b\\\"}\"}}]}, {\"role\": \"tool\", "       \
    "\"tool_call_id\": \"abcdefgh1\", \"name\": \"f\", \"content\": \"c\"}]"

static const char called_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", "
    "\"description\": \"d\"}}, \"required\": [\"a\"]}}}]";

static const char functions_probe[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"functions\": \"[]\","
    "\"datetime\": \"a\", \"bos_token\": \"\", \"add_generation_prompt\": true}";

static const chat_limits probe_limits = {
    .steps_max = 200000,
    .depth_max = 64,
    .output_bytes_max = 1 << 20,
    .memory_bytes_max = 8 << 20,
};

/* The word appears, and not between quotes. */
static bool has_bare(const chat_text *text, const char *word) {
    const char *at = strstr(text->text, word);
    return at != NULL && (at == text->text || (at[-1] != '\'' && at[-1] != '"'));
}

static inferd_status render_probe(const chat_template *t, const char *json, chat_text *out,
                                  inferd_err *err) {
    inferd_err ignored;
    json_t *vars;
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    *out = (chat_text){0};
    inferd_status s = json_text_read((bytes){json, strlen(json)}, &vars, err);
    if (s != INFERD_OK) return s;
    s = template_render(t, &probe_limits, NULL, vars, &now, out, &ignored);
    json_decref(vars);
    if (s == INFERD_ENOMEM) return inferd_fail(err, s, "%s", ignored.text);
    return INFERD_OK; // a failed render is an answer, too
}

static bool names(const chat_template *t, const char *name) {
    for (uint32_t i = 0; i < t->ast.n_symbols; i++)
        if (jstr_is(t->ast.symbols[i], name)) return true;
    return false;
}

static size_t count_word(const char *text, const char *word) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) n++;
    return n;
}

typedef struct null_words {
    bool rendered;
    size_t n;
} null_words;

/* How often the words for null are in the text of these messages. */
static inferd_status count_nulls(const chat_template *t, const char *json, null_words *out,
                                 inferd_err *err) {
    chat_text text = {0};
    inferd_err ignored = {0};
    chat_input in = {.kwargs = json_pack("{ss,ss}", "bos_token", "", "eos_token", ""),
                     .add_generation_prompt = true};
    inferd_status s = json_text_read((bytes){json, strlen(json)}, &in.messages, err);
    if (s == INFERD_OK)
        s = json_text_read((bytes){called_tools, sizeof called_tools - 1}, &in.tools, err);
    if (s == INFERD_OK && in.kwargs == NULL)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for a probe of the template");
    if (s == INFERD_OK && chat_try(t, NULL, &in, &text, &ignored) == INFERD_ENOMEM)
        s = inferd_fail(err, INFERD_ENOMEM, "%s", ignored.text);
    *out = (null_words){.rendered = text.text != NULL};
    if (out->rendered) out->n = count_word(text.text, "None") + count_word(text.text, "null");
    chat_text_deinit(&text);
    json_decref(in.kwargs);
    json_decref(in.messages);
    json_decref(in.tools);
    return s;
}

static inferd_status find_null_words(chat_template *t, inferd_err *err) {
    null_words null = {0}, empty = {0};
    inferd_status s = count_nulls(t, CALLED("null"), &null, err);
    if (s == INFERD_OK) s = count_nulls(t, CALLED("\"\""), &empty, err);
    t->prints_null = null.rendered && empty.rendered && null.n > empty.n;
    return s;
}

inferd_status chat_probe(chat_template *t, inferd_err *err) {
    chat_text text;
    inferd_status s = render_probe(t, parts_probe, &text, err);
    if (s != INFERD_OK) return s;
    t->reads_parts = text.text != NULL && has_bare(&text, "inferd probe one") &&
                     has_bare(&text, "inferd probe two");
    chat_text_deinit(&text);
    s = render_probe(t, arguments_probe, &text, err);
    if (s != INFERD_OK) return s;
    t->wants_argument_text = text.text != NULL && strstr(text.text, "{'inferd_probe'") != NULL;
    bool fails = text.text == NULL;
    chat_text_deinit(&text);
    if (fails) s = render_probe(t, functions_probe, &text, err);
    if (s != INFERD_OK) return s;
    t->wants_functions = fails && text.text != NULL && names(t, "functions");
    chat_text_deinit(&text);
    return find_null_words(t, err);
}

/* ---- messages ---- */

static bool is_text_part(json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    return type != NULL && strcmp(type, "text") == 0 &&
           json_is_string(json_object_get(part, "text"));
}

static bool is_text_list(json_t *content) {
    if (!json_is_array(content)) return false;
    for (size_t i = 0; i < json_array_size(content); i++)
        if (!is_text_part(json_array_get(content, i))) return false;
    return true;
}

static json_t *join_parts(json_t *content) {
    buf text;
    buf_init(&text, 0);
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_object_get(json_array_get(content, i), "text");
        if (i > 0) buf_add_char(&text, '\n');
        buf_add(&text, json_string_value(part), json_string_length(part));
    }
    json_t *joined = text.failed ? NULL : json_stringn_nocheck(text.n > 0 ? text.p : "", text.n);
    buf_deinit(&text);
    return joined;
}

/* The arguments as an object, a new reference; NULL when they are none.  False: no memory. */
static bool parse_arguments(json_t *arguments, json_t **out) {
    json_t *parsed;
    bytes text = {json_string_value(arguments), json_string_length(arguments)};
    *out = NULL;
    if (text.p == NULL) return true;
    if (text.n == 0) return (*out = json_object()) != NULL; // a call without arguments
    inferd_status s = json_text_read_wide(text, &parsed, NULL);
    if (s != INFERD_OK) return s != INFERD_ENOMEM;
    if (json_is_object(parsed))
        *out = parsed;
    else
        json_decref(parsed);
    return true;
}

bool chat_opens_arguments(json_t *arguments, bool *opens) {
    json_t *parsed;
    bool ok = parse_arguments(arguments, &parsed);
    *opens = parsed != NULL;
    json_decref(parsed);
    return ok;
}

/* A copy of one tool call with its arguments as an object, or a new reference to the call itself.
 * NULL: no memory. */
static json_t *open_call(json_t *call, bool *changed) {
    json_t *function = json_object_get(call, "function"), *arguments;
    if (!parse_arguments(json_object_get(function, "arguments"), &arguments)) return NULL;
    if (arguments == NULL) return json_incref(call);
    json_t *copy = json_copy_whole(call), *inner = json_copy_whole(function);
    *changed = true;
    if (json_object_set_new(inner, "arguments", arguments) == 0 &&
        json_object_set(copy, "function", inner) == 0) {
        json_decref(inner);
        return copy;
    }
    json_decref(inner);
    json_decref(copy);
    return NULL;
}

static json_t *open_calls(json_t *calls, bool *changed) {
    json_t *out = json_array();
    for (size_t i = 0; out != NULL && i < json_array_size(calls); i++) {
        if (json_array_append_new(out, open_call(json_array_get(calls, i), changed)) == 0) continue;
        json_decref(out);
        out = NULL;
    }
    return out;
}

typedef struct shape { // the form in which the messages are passed
    bool join_parts, open_arguments, fill_contents;
    bool opened; // out: some arguments were
} shape;

/* The message in that shape: itself or a copy; a new reference, NULL: no memory. */
static json_t *shape_message(json_t *message, shape *sh) {
    json_t *content = json_object_get(message, "content");
    json_t *calls = json_object_get(message, "tool_calls");
    bool join = sh->join_parts && is_text_list(content);
    bool open = sh->open_arguments && json_array_size(calls) > 0;
    bool fill = sh->fill_contents && (content == NULL || json_is_null(content));
    if (!join && !open && !fill) return json_incref(message);
    json_t *copy = json_copy_whole(message);
    bool ok = copy != NULL;
    if (fill) ok = ok && json_object_set_new(copy, "content", json_string("")) == 0;
    if (join) ok = ok && json_object_set_new(copy, "content", join_parts(content)) == 0;
    if (open)
        ok = ok && json_object_set_new(copy, "tool_calls", open_calls(calls, &sh->opened)) == 0;
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

static json_t *shape_messages(json_t *messages, shape *sh) {
    json_t *out = json_array();
    for (size_t i = 0; out != NULL && i < json_array_size(messages); i++) {
        json_t *message = shape_message(json_array_get(messages, i), sh);
        if (json_array_append_new(out, message) == 0) continue;
        json_decref(out);
        out = NULL;
    }
    return out;
}

/* ---- the last message, left open ---- */

static const char open_tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";
enum { OPEN_TAG_BYTES = sizeof open_tag - 1 };

static json_t *add_tag(json_t *text) {
    buf b;
    buf_init(&b, 0);
    buf_add(&b, json_string_value(text), json_string_length(text));
    buf_add_str(&b, open_tag);
    json_t *tagged = b.failed ? NULL : json_stringn_nocheck(b.p, b.n);
    buf_deinit(&b);
    return tagged;
}

/* Put the tag behind the last text of the last message, in a copy of it.  *text: the original text,
 * borrowed from the request; NULL when there is none. */
static inferd_status tag_last(json_t *messages, json_t **text, inferd_err *err) {
    size_t n = json_array_size(messages), i = 0;
    json_t *last = n > 0 ? json_deep_copy_whole(json_array_get(messages, n - 1)) : NULL;
    json_t *content = json_object_get(last, "content"), *holder = last;
    const char *key = "content";
    for (i = json_array_size(content); i-- > 0;) {
        if (!is_text_part(json_array_get(content, i))) continue;
        holder = json_array_get(content, i);
        key = "text";
        break;
    }
    json_t *original = json_object_get(holder, key);
    if (n > 0 && last == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt");
    if (!json_is_string(original)) {
        json_decref(last);
        return inferd_fail(err, INFERD_EINVAL,
                           "continue_final_message: the last message has no text content");
    }
    *text = json_incref(original);
    if (json_object_set_new(holder, key, add_tag(original)) != 0 ||
        json_array_set(messages, n - 1, last) != 0) {
        json_decref(last);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt");
    }
    json_decref(last);
    return INFERD_OK;
}

static bytes strip(bytes s) {
    size_t n;
    while (s.n > 0 && letter_is_space(letter_read(s.p, &n))) {
        s.p += n;
        s.n -= n;
    }
    while (s.n > 0) {
        size_t at = s.n - 1;
        while (at > 0 && !letter_starts(s.p[at])) at--;
        if (!letter_is_space(letter_read(s.p + at, &n))) break;
        s.n = at;
    }
    return s;
}

static void cut_text(chat_text *t, size_t n) {
    size_t covered = 0, i = 0;
    while (i < t->n_spans && covered + t->spans[i].n <= n) covered += t->spans[i++].n;
    if (covered < n) t->spans[i++].n = n - covered;
    t->n_spans = i;
    t->n = n;
    t->text[n] = 0;
}

static inferd_status cut_at_tag(chat_text *t, json_t *original, inferd_err *err) {
    bytes wanted = strip((bytes){json_string_value(original), json_string_length(original)});
    size_t n_tag = OPEN_TAG_BYTES - 1, at = SIZE_MAX; // the tag, without its space
    for (size_t i = 0; i + n_tag <= t->n; i++) {
        const char *found = memmem(t->text + i, t->n - i, open_tag, n_tag);
        if (found == NULL) break;
        at = i = (size_t)(found - t->text);
    }
    bool has_trusted = memchr(wanted.p, CHAT_TRUSTED, wanted.n) != NULL; // which is left out
    bool there = has_trusted || wanted.n == 0 || memmem(t->text, t->n, wanted.p, wanted.n) != NULL;
    if (at == SIZE_MAX || !there)
        return inferd_fail(err, INFERD_EINVAL,
                           "continue_final_message: the chat template does not show the last "
                           "message as it is, so it cannot be continued");
    bool spaced = t->n - at >= OPEN_TAG_BYTES && t->text[at + n_tag] == ' ';
    size_t end = at;
    size_t n;
    while (!spaced && end > 0) { // the template trims its output, so its end was trimmed too
        size_t start = end - 1;
        while (start > 0 && !letter_starts(t->text[start])) start--;
        if (!letter_is_space(letter_read(t->text + start, &n))) break;
        end = start;
    }
    cut_text(t, end);
    return INFERD_OK;
}

/* ---- all of it ---- */

static bool add_token(json_t *tokens, const tokenizer *tok, const char *key, tok_id id) {
    if (id < 0) return true;
    bytes name = tok_name(tok, id);
    return json_object_set_new(tokens, key, json_stringn(name.p, name.n)) == 0;
}

/* The special tokens the tokenizer names; as in transformers, others are undefined. */
static json_t *special_tokens(const tokenizer *tok) {
    json_t *tokens = json_object();
    if (tokens == NULL || tok == NULL) return tokens;
    if (add_token(tokens, tok, "bos_token", tok_bos(tok)) &&
        add_token(tokens, tok, "eos_token", tok_eos(tok)))
        return tokens;
    json_decref(tokens);
    return NULL;
}

/* The tools as the text `functions`. */
static json_t *functions_text(const json_t *tools) {
    json_t *list = json_array(), *tool, *out = NULL;
    size_t i;
    bool ok = list != NULL;
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        json_t *function = json_object_get(tool, "function");
        ok = ok && json_array_append(list, function != NULL ? function : tool) == 0;
    }
    char *text = ok ? json_dumps_whole(list, JSON_INDENT(4)) : NULL;
    if (text != NULL) out = json_string(text);
    free(text);
    json_decref(list);
    return out;
}

/* What a template wants that has no `tools`; the request may give its own. */
static bool add_functions(json_t *vars, const chat_input *input, const struct tm *now) {
    char date[32] = "";
    if (now != NULL) strftime(date, sizeof date, "%Y-%m-%d", now);
    return (json_object_get(vars, "functions") != NULL ||
            json_object_set_new(vars, "functions", functions_text(input->tools)) == 0) &&
           (json_object_get(vars, "datetime") != NULL ||
            json_object_set_new(vars, "datetime", json_string(date)) == 0);
}

static json_t *or_null(json_t *json) {
    return json != NULL ? json_incref(json) : json_null();
}

/* The variables of the template.  The kwargs of the request cannot replace the conversation. */
static json_t *make_vars(const chat_input *input, json_t *messages) {
    json_t *vars = input->kwargs != NULL ? json_copy_whole(input->kwargs) : json_object();
    if (vars != NULL && json_object_set(vars, "messages", messages) == 0 &&
        json_object_set_new(vars, "tools", or_null(input->tools)) == 0 &&
        (json_object_get(vars, "documents") != NULL ||
         json_object_set_new(vars, "documents", json_null()) == 0) &&
        json_object_set_new(vars, "add_generation_prompt",
                            json_boolean(input->add_generation_prompt)) == 0)
        return vars;
    json_decref(vars);
    return NULL;
}

static inferd_status render_shaped(const chat_template *t, const chat_limits *limits,
                                   json_t *tokens, const chat_input *input, shape *sh,
                                   const struct tm *now, chat_text *out, inferd_err *err) {
    inferd_status s = INFERD_OK;
    json_t *original = NULL, *vars = NULL, *messages = shape_messages(input->messages, sh);
    if (messages != NULL && input->continue_final_message) s = tag_last(messages, &original, err);
    if (s == INFERD_OK && messages != NULL) vars = make_vars(input, messages);
    if (vars != NULL && t->wants_functions && !add_functions(vars, input, now)) {
        json_decref(vars);
        vars = NULL;
    }
    if (s == INFERD_OK && vars == NULL)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt");
    if (s == INFERD_OK) s = template_render(t, limits, tokens, vars, now, out, err);
    if (s == INFERD_OK && input->continue_final_message) s = cut_at_tag(out, original, err);
    if (s != INFERD_OK) chat_text_deinit(out);
    json_decref(original);
    json_decref(vars);
    json_decref(messages);
    return s;
}

static inferd_status render(const chat_template *t, const chat_limits *limits, const tokenizer *tok,
                            const chat_input *input, const struct tm *now, chat_text *out,
                            inferd_err *err) {
    shape sh = {.join_parts = !t->reads_parts,
                .open_arguments = !t->wants_argument_text,
                .fill_contents = t->prints_null};
    *out = (chat_text){0};
    if (input->continue_final_message && input->add_generation_prompt)
        return inferd_fail(err, INFERD_EINVAL,
                           "continue_final_message and add_generation_prompt "
                           "exclude each other");
    json_t *tokens = special_tokens(tok);
    if (tokens == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt");
    inferd_status s = render_shaped(t, limits, tokens, input, &sh, now, out, err);
    if (s == INFERD_EINVAL && sh.opened) { // perhaps it needs the strings after all
        inferd_err second = {0};
        sh.open_arguments = false;
        inferd_status again = render_shaped(t, limits, tokens, input, &sh, now, out, &second);
        if (again != INFERD_EINVAL) { // otherwise keep the first error
            s = again;
            if (err != NULL) *err = second;
        }
    }
    json_decref(tokens);
    return s;
}

inferd_status chat_render(const chat_template *t, const tokenizer *tok, const chat_input *input,
                          const struct tm *now, chat_text *out, inferd_err *err) {
    return render(t, &t->limits, tok, input, now, out, err);
}

inferd_status chat_try(const chat_template *t, const tokenizer *tok, const chat_input *input,
                       chat_text *out, inferd_err *err) {
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    return render(t, &probe_limits, tok, input, &now, out, err);
}
