/* reasoning.c - see models/reasoning.h. */
#include "models/reasoning.h"

#include <string.h>

#include "chat/template.h"

static const reasoning known[] = {{.begin = "<think>", .end = "</think>"},
                                  {.begin = "[THINK]", .end = "[/THINK]"},
                                  {.begin = "<seed:think>", .end = "</seed:think>"}};
static const reasoning none = {.begin = NULL, .end = NULL};

static bool holds(bytes text, const char *mark) {
    return text.n > 0 && memmem(text.p, text.n, mark, strlen(mark)) != NULL;
}

reasoning reasoning_of_source(bytes source) {
    for (size_t i = 0; i < INFERD_COUNT(known); i++)
        if (holds(source, known[i].begin) || holds(source, known[i].end)) return known[i];
    return none;
}

/* The last place of a mark, as the number of bytes behind its first one; 0: nowhere. */
static size_t last_of(bytes text, const char *mark) {
    size_t n = strlen(mark), found = 0;
    if (n == 0) return 0;
    const char *p;
    for (size_t at = 0; at < text.n; at = found) {
        p = memmem(text.p + at, text.n - at, mark, n);
        if (p == NULL) break;
        found = (size_t)(p - text.p) + 1;
    }
    return found;
}

static bool is_open(bytes text, const reasoning *marks) {
    return last_of(text, marks->begin) > last_of(text, marks->end);
}

/* Does the text end with the mark, and white space? */
static bool ends_with(bytes text, const char *mark) {
    size_t n = strlen(mark);
    while (text.n > 0 && strchr(" \t\r\n", text.p[text.n - 1]) != NULL) text.n--;
    return text.n >= n && memcmp(text.p + text.n - n, mark, n) == 0;
}

/* The end of a prompt that the template wrote: behind the last text of the request. */
static bytes tail_of(const chat_text *prompt) {
    size_t n = 0;
    for (size_t i = prompt->n_spans; i > 0 && prompt->spans[i - 1].specials; i--)
        n += prompt->spans[i - 1].n;
    return (bytes){n > 0 ? prompt->text + prompt->n - n : "", n};
}

/* The text of the last message, or its last part. */
static bytes last_message(json_t *messages) {
    json_t *message = json_array_get(messages, json_array_size(messages) - 1);
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content))
        content = json_object_get(json_array_get(content, json_array_size(content) - 1), "text");
    return (bytes){json_string_value(content), json_string_length(content)};
}

/* False: the mark ends a generation. */
static bool find_token(const tokenizer *tok, const char *mark, bool *is_token) {
    tok_id id = tok != NULL ? tok_find(tok, (bytes){mark, strlen(mark)}) : -1;
    *is_token = id >= 0 && tok_is_control(tok, id);
    return id < 0 || !tok_is_end(tok, id);
}

reasoning reasoning_in_prompt(reasoning marks, const chat_input *input, const chat_text *prompt) {
    bytes continued = {NULL, 0}, tail = tail_of(prompt);
    if (input->continue_final_message) continued = last_message(input->messages);
    if (is_open(continued.n > 0 ? continued : tail, &marks)) {
        marks.begin = NULL;
        return marks;
    }
    if (continued.n > 0 || ends_with(tail, marks.end) || marks.begin[0] == 0) return none;
    return marks;
}

reasoning reasoning_of_prompt(const chat_template *t, const tokenizer *tok, const chat_input *input,
                              const chat_text *prompt) {
    reasoning marks = t->reasoning;
    if (marks.end == NULL || !find_token(tok, marks.begin, &marks.begin_is_token) ||
        !find_token(tok, marks.end, &marks.end_is_token))
        return none;
    return reasoning_in_prompt(marks, input, prompt);
}
