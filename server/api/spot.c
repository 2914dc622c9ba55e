/* spot.c - see spot.h.  The time is linear in the message: each search begins where the one before
 * it ended, and the first call that is not found is the last one looked for. */
#include "spot.h"

#include <string.h>

/* The part of the prompt that may be of the message, and is not searched yet. */
typedef struct range {
    size_t from, end; // bytes of the prompt
    size_t span, at;  // one at `from` or before it, and where it begins
} range;

static range find_range(const chat_text *t, uint32_t idx, size_t byte) {
    range r = {.end = t->n};
    size_t at = 0;
    for (size_t i = 0; i < t->n_spans; at += t->spans[i++].n) {
        bool other = t->messages[i] != idx && t->messages[i] != CHAT_NO_MESSAGE;
        if (other && at + t->spans[i].n <= byte)
            r = (range){.from = at + t->spans[i].n, .end = t->n, .span = i, .at = at};
        if (!other || at <= byte) continue;
        r.end = at;
        break;
    }
    return r;
}

static bytes trimmed(const json_t *text) {
    bytes s = {json_string_value(text), json_string_length(text)};
    while (s.n > 0 && strchr(" \t\r\n", s.p[0]) != NULL) s = (bytes){s.p + 1, s.n - 1};
    while (s.n > 0 && strchr(" \t\r\n", s.p[s.n - 1]) != NULL) s.n--;
    return s;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (unsigned char)c >= 0x80;
}

/* Where `text` has these words as words of their own, between `from` and `end`; SIZE_MAX: nowhere.
 * Places do not overlap, so that the time is linear. */
static size_t find_words(bytes text, size_t from, size_t end, bytes words) {
    while (from < end) {
        const char *p = memmem(text.p + from, end - from, words.p, words.n);
        if (p == NULL) break;
        size_t at = (size_t)(p - text.p), behind = at + words.n;
        bool begins = at == 0 || !is_letter(p[0]) || !is_letter(p[-1]);
        bool ends = behind == text.n || !is_letter(p[words.n]) || !is_letter(p[words.n - 1]);
        if (begins && ends) return at;
        from = behind;
    }
    return SIZE_MAX;
}

/* Are these words in the text that is not the template's?  Then r goes on with them, and *begin is
 * where the template's text in front of them begins. */
static bool find(const chat_text *t, range *r, bytes words, size_t *begin) {
    range f = *r;
    bool in_template = true;
    *begin = r->from;
    for (; words.n > 0 && f.span < t->n_spans && f.at < r->end; f.at += t->spans[f.span++].n) {
        bytes span = {t->text + f.at, t->spans[f.span].n};
        bool is_template = t->spans[f.span].specials;
        if (is_template && !in_template) *begin = size_max(f.at, r->from);
        in_template = is_template;
        if (is_template || f.at + span.n <= r->from) continue;
        size_t from = size_max(r->from, f.at) - f.at;
        size_t at = find_words(span, from, size_min(span.n, r->end - f.at), words);
        if (at == SIZE_MAX) continue;
        f.from = f.at + at;
        *r = f;
        return true;
    }
    return false;
}

/* ---- texts ---- */

/* Is the byte in front of the end of this text?  Then *at is its place in it; r goes on behind. */
static bool is_in_text(const chat_text *t, range *r, const json_t *text, size_t byte, size_t *at) {
    bytes s = trimmed(text);
    size_t before;
    if (!find(t, r, s, &before)) return false;
    *at = (size_t)(s.p - json_string_value(text)) + (byte > r->from ? byte - r->from : 0);
    r->from += s.n;
    return byte < r->from;
}

/* ---- calls ---- */

enum { ARGUMENTS_FAR = 1024 }; // bytes behind the name of a call: there they have begun

/* At least behind most of the arguments: notations differ, but all write the letters. */
static size_t skip_arguments(const chat_text *t, range r, const json_t *arguments) {
    const char *p = json_string_value(arguments);
    size_t n = json_string_length(arguments), i = 0, word = 0, n_letters = 0, before;
    size_t end = r.end;
    while (i < n && !is_letter(p[i])) i++;
    while (i + word < n && is_letter(p[i + word])) word++;
    r.end = size_min(end, r.from + ARGUMENTS_FAR);
    if (word == 0 || !find(t, &r, (bytes){p + i, word}, &before)) return r.from;
    for (; i < n; i++) {
        if (p[i] == '\\') // an escape may be written in another way
            i += i + 1 < n && p[i + 1] == 'u' ? 5 : 1;
        else
            n_letters += is_letter(p[i]);
    }
    for (; n_letters > 0 && r.from < end; r.from++) n_letters -= is_letter(t->text[r.from]);
    return r.from;
}

static size_t find_call(const chat_text *t, range r, const json_t *calls, size_t byte) {
    size_t idx = 0, begin;
    for (size_t i = 0; i < json_array_size(calls) && r.from <= byte; i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        bytes name = trimmed(json_object_get(function, "name"));
        if (!find(t, &r, name, &begin) || (i > 0 && byte < begin)) break;
        idx = i;
        r.from += name.n;
        r.from = skip_arguments(t, r, json_object_get(function, "arguments"));
    }
    return idx;
}

/* ---- all of it ---- */

spot spot_find(const chat_text *t, uint32_t idx, const json_t *message, size_t byte) {
    range r = find_range(t, idx, byte);
    const json_t *content = json_object_get(message, "content");
    const json_t *calls = json_object_get(message, "tool_calls");
    size_t at = 0;
    if (is_in_text(t, &r, json_object_get(message, "reasoning_content"), byte, &at))
        return (spot){SPOT_REASONING, at};
    if (is_in_text(t, &r, content, byte, &at) || json_array_size(calls) == 0)
        return (spot){SPOT_CONTENT, at};
    return (spot){SPOT_CALL, find_call(t, r, calls, byte)};
}

size_t spot_find_message(const chat_text *t, uint32_t idx, const json_t *messages, size_t from,
                         size_t end, size_t byte) {
    range r = find_range(t, idx, byte);
    size_t at;
    while (from + 1 < end) {
        size_t before = r.from;
        const json_t *content = json_object_get(json_array_get(messages, from), "content");
        bool found = is_in_text(t, &r, content, byte, &at) || r.from > before;
        if (!found || byte < r.from) break;
        from++;
    }
    return from;
}
