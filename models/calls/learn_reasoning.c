/* learn_reasoning.c - marks of reasoning and content: learn_reasoning.
 *
 * Compared are the header of the next turn, a message of content, and one of reasoning and content:
 *
 *     <|im_start|>assistant\n
 *     <|im_start|>assistant\n                                  said
 *     <|im_start|>assistant\n  <think>\n thought \n</think>\n  said
 *
 * Many templates leave reasoning out of what they write: those are known by words in their source.
 */
#include <string.h>

#include "calls/learn.h"

/* ---- cuts ---- */

static bool opens_mark(bytes s, size_t i) {
    char next = i + 1 < s.n ? s.p[i + 1] : 0;
    bool word = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || next == '/';
    return (s.p[i] == '<' && (word || next == '|' || next == '\xef')) || (s.p[i] == '[' && word);
}

/* Where the mark begins that is open at n; n: none is. */
static size_t open_mark(bytes s, size_t n) {
    enum { MARK_BYTES_MAX = 80 };
    for (size_t i = n; i-- > 0 && n - i < MARK_BYTES_MAX;) {
        if (s.p[i] == '>' || s.p[i] == ']' || s.p[i] == '"' || s.p[i] == '\n') return n;
        if (opens_mark(s, i)) return i;
    }
    return n;
}

size_t learn_back(bytes s, size_t n) {
    return open_mark(s, n);
}

size_t learn_forward(bytes s, size_t at) {
    size_t open = open_mark(s, at);
    if (open == at) return at;
    char close = s.p[open] == '<' ? '>' : ']';
    const char *end = memchr(s.p + at, close, s.n - at);
    return end == NULL ? at : (size_t)(end - s.p) + 1;
}

static bool is_letter(bytes s, size_t i) {
    return i < s.n && ((s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z'));
}

/* A mark and the word behind it belong together, <|channel|>final, and so do a word and the value
 * behind it, to=user: if they part there, both begin where the first one does. */
size_t learn_prefix(bytes a, bytes b) {
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n]) n++;
    n = learn_back(a, n);
    if (n == 0 || !is_letter(a, n) || !is_letter(b, n)) return n;
    if (a.p[n - 1] == '>') return learn_back(a, n - 1);
    if (a.p[n - 1] != '=') return n;
    for (n--; n > 0 && is_letter(a, n - 1);) n--;
    return n > 0 && a.p[n - 1] == ' ' ? n - 1 : n;
}

/* Does a mark and a word stand before n: <|close|>tools? */
static bool follows_word(bytes s, size_t n) {
    size_t from = n;
    while (from > 0 && is_letter(s, from - 1)) from--;
    return from < n && from > 0 && s.p[from - 1] == '>';
}

/* Behind words that differ, a mark that both have belongs to the words: <|close|>tools<|sep|>. */
size_t learn_suffix(bytes a, bytes b) {
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[a.n - 1 - n] == b.p[b.n - 1 - n]) n++;
    size_t in_a = a.n - learn_forward(a, a.n - n), in_b = b.n - learn_forward(b, b.n - n);
    n = size_min(in_a, in_b);
    if (n > 0 && follows_word(a, a.n - n) && follows_word(b, b.n - n)) {
        const char *end = memchr(a.p + a.n - n, '>', n);
        if (a.p[a.n - n] == '<' && end != NULL) n = a.n - (size_t)(end + 1 - a.p);
    }
    return n;
}

/* ---- known marks ---- */

typedef struct mark_pair {
    const char *open, *close, *mention; // mention: in a template that has them; NULL: one of both
} mark_pair;

static const mark_pair known[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|channel>thought\n", "<channel|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
    {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant", "<|channel|>final<|message|>"}};

static bool set_known(bytes source, call_format *f) {
    for (size_t i = 0; i < INFERD_COUNT(known); i++) {
        bytes open = bytes_trim(bytes_of(known[i].open));
        bool there = known[i].mention != NULL
                         ? bytes_find(source, bytes_of(known[i].mention), 0) != SIZE_MAX
                         : bytes_find(source, open, 0) != SIZE_MAX ||
                               bytes_find(source, bytes_of(known[i].close), 0) != SIZE_MAX;
        if (!there) continue;
        return call_format_set(f, &f->reasoning_open, bytes_of(known[i].open)) &&
               call_format_set(f, &f->reasoning_close, bytes_of(known[i].close));
    }
    return true;
}

/* ---- comparing ---- */

static bool is_blank(bytes s) {
    return bytes_trim(s).n == 0;
}

/* The last mark of a header, with a word and a mark before it: <|open|>think<|sep|>. */
static bytes last_mark(bytes header) {
    bytes s = bytes_trim(header);
    size_t at = s.n;
    while (at > 0 && !opens_mark(s, at - 1)) at--;
    if (at == 0) return (bytes){NULL, 0};
    size_t word = --at;
    while (word > 0 && s.p[word - 1] >= 'a' && s.p[word - 1] <= 'z') word--;
    if (word > 0 && word < at && s.p[word - 1] == '>') {
        while (word > 0 && !opens_mark(s, word - 1)) word--;
        if (word > 0) at = word - 1;
    }
    return bytes_from(header, at);
}

/* What stands before the reasoning, without the header of the turn.  Where the header opens the
 * reasoning, too, it may open it with more words; or it closes it at once. */
static bytes opening(bytes before, bytes header, bytes lead, bytes close) {
    bytes rest = bytes_from(before, learn_prefix(before, lead));
    if (!is_blank(rest)) return rest;
    if (!bytes_start(header, before)) return last_mark(before);
    rest = bytes_from(header, before.n);
    bool closes = bytes_start(bytes_trim(rest), bytes_trim(close));
    return is_blank(rest) || closes ? last_mark(before) : rest;
}

/* From a text with reasoning, and `lead`, what stands before content alone. */
static bool compare(call_format *f, bytes text, bytes header, bytes lead) {
    size_t reason = bytes_find(text, bytes_of(PROBE_REASON), 0);
    size_t content = bytes_find(text, bytes_of(PROBE_CONTENT), 0);
    size_t from = reason + strlen(PROBE_REASON);
    bytes before = {text.p, reason}, between = {text.p + from, content - from};
    bytes content_open = bytes_from(lead, learn_prefix(lead, header));
    bytes close = between;
    if (is_blank(content_open) || bytes_find(content_open, bytes_trim(between), 0) != SIZE_MAX) {
        content_open.n = 0;
    } else {
        size_t n = learn_suffix(bytes_trim(between), bytes_trim(content_open));
        if (n == bytes_trim(content_open).n)
            close = (bytes){bytes_trim(between).p, bytes_trim(between).n - n};
        else
            content_open.n = 0;
    }
    if (is_blank(close)) return true;
    return call_format_set(f, &f->reasoning_open, opening(before, header, lead, close)) &&
           call_format_set(f, &f->reasoning_close, close) &&
           call_format_set(f, &f->content_open, content_open);
}

static bool has_both(const buf *text) {
    bytes s = {text->p, text->n};
    size_t reason = bytes_find(s, bytes_of(PROBE_REASON), 0);
    size_t content = bytes_find(s, bytes_of(PROBE_CONTENT), 0);
    return reason != SIZE_MAX && content != SIZE_MAX && reason + strlen(PROBE_REASON) <= content;
}

bool learn_reasoning(prober *p, bytes source, call_format *f) {
    static const char *const fields[] = {"reasoning_content", "reasoning", "thinking"};
    buf header = {0}, said = {0}, text = {0};
    bool ok = true;
    probe_prompt(p, &header);
    if (probe_message(p, probe_said(PROBE_CONTENT, NULL, NULL), &said)) {
        bytes all = {said.p, said.n};
        size_t at = bytes_find(all, bytes_of(PROBE_CONTENT), 0);
        bytes lead = {all.p, at == SIZE_MAX ? 0 : at}, turn = {header.p, header.n};
        for (size_t i = 0; i < INFERD_COUNT(fields) && f->reasoning_close.n == 0 && ok; i++) {
            bool written =
                probe_message(p, probe_said(PROBE_CONTENT, fields[i], PROBE_REASON), &text);
            if (written && has_both(&text) && at != SIZE_MAX)
                ok = compare(f, (bytes){text.p, text.n}, turn, lead);
        }
        if (ok && f->reasoning_close.n == 0) ok = set_known(source, f);
        if (ok && f->content_open.n == 0 && at != SIZE_MAX) {
            bytes open = bytes_from(lead, learn_prefix(lead, turn));
            bytes close = bytes_trim(f->reasoning_close);
            bool closes = close.n > 0 && bytes_find(open, close, 0) != SIZE_MAX;
            bytes begin = bytes_trim(f->reasoning_open), prompt = bytes_trim(turn);
            bool begun =
                prompt.n >= begin.n && bytes_equal(bytes_from(prompt, prompt.n - begin.n), begin);
            f->closes_first = close.n > 0 && !begun && bytes_equal(bytes_trim(open), close);
            bytes mark = bytes_trim(open), before = bytes_trim(turn);
            bool opened = before.n >= mark.n && // by the prompt
                          bytes_equal(bytes_from(before, before.n - mark.n), mark);
            if (!closes && !opened && !is_blank(open))
                ok = call_format_set(f, &f->content_open, open);
        }
    } else {
        ok = set_known(source, f);
    }
    bytes turn = bytes_trim((bytes){header.p, header.n}), close = bytes_trim(f->reasoning_close);
    f->closes_turn =
        turn.n > 0 && close.n > turn.n && bytes_equal(bytes_from(close, close.n - turn.n), turn);
    buf_deinit(&header);
    buf_deinit(&said);
    buf_deinit(&text);
    return ok && !p->no_memory;
}
