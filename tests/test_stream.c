/* test_stream.c - faked events in, chunks and bodies out. */
#include "test.h"

#include <jansson.h>

#include "stream.h"
#include "tiny_tok.h"
#include "tok_tiny.h"

static tokenizer *tok;

/* A stream with one prompt "Hi" (as ids), `n` choices; the caller changes what it wants. */
static stream_options options_of(bool chat, bool streaming, uint32_t n) {
    if (tok == NULL) tok = tiny_tok_open();
    stream_options o = {.chat = chat,
                        .streaming = streaming,
                        .n = n,
                        .n_logprobs = -1,
                        .tok = tok,
                        .id = "x-1",
                        .model = "m",
                        .fingerprint = "fp",
                        .tier = "default",
                        .created = 1,
                        .skip_specials = true,
                        .n_prompts = 1};
    o.prompts = calloc(1, sizeof *o.prompts);
    tok_ids_push(&o.prompts[0].ids, tiny_tok_byte('H'));
    tok_ids_push(&o.prompts[0].ids, tiny_tok_byte('i'));
    return o;
}

static stop_set *stops_of(const char *a, const char *b) {
    bytes s[2] = {{a, strlen(a)}, {b, b == NULL ? 0 : strlen(b)}};
    return stop_set_create(s, b == NULL ? 1 : 2);
}

static bool push(stream *s, uint32_t choice, tok_id id, buf *out) {
    gen_event ev = {.kind = GEN_EV_TOKEN};
    ev.token.r = (sample_result){.id = id, .logprob = -1, .n_top = 1};
    ev.token.r.top[0] = (tok_logprob){id, -1};
    return stream_on_event(s, choice, &ev, out);
}

/* One token per byte; true once it wants to be cancelled. */
static bool push_text(stream *s, uint32_t choice, const char *text, buf *out) {
    for (; *text != 0; text++)
        if (push(s, choice, tiny_tok_byte((unsigned char)*text), out)) return true;
    return false;
}

static void push_done(stream *s, uint32_t choice, gen_finish finish, tok_id stop_id, buf *out) {
    gen_event ev = {.kind = GEN_EV_DONE};
    ev.done.finish = finish;
    ev.done.stop_id = stop_id;
    ev.done.n_prompt = 2;
    ev.done.n_cached = 1;
    stream_on_event(s, choice, &ev, out);
}

/* All `data:` lines as a JSON array; [DONE] as a string. */
static json_t *events_of(buf *out) {
    json_t *all = json_array();
    for (const char *p = buf_cstr(out); *p != 0;) {
        const char *end = strstr(p, "\n\n");
        EXPECT(strncmp(p, "data: ", 6) == 0 && end != NULL);
        if (strncmp(p, "data: ", 6) != 0 || end == NULL) break;
        json_t *j = json_loadb(p + 6, (size_t)(end - p - 6), 0, NULL);
        if (j == NULL) j = json_stringn(p + 6, (size_t)(end - p - 6));
        json_array_append_new(all, j);
        p = end + 2;
    }
    return all;
}

static json_t *choice_at(json_t *events, size_t i) {
    return json_array_get(json_object_get(json_array_get(events, i), "choices"), 0);
}

static const char *content_at(json_t *events, size_t i) {
    json_t *c = choice_at(events, i);
    const char *s = json_string_value(json_object_get(json_object_get(c, "delta"), "content"));
    if (s == NULL) s = json_string_value(json_object_get(c, "text"));
    return s == NULL ? "-" : s;
}

static const char *finish_at(json_t *events, size_t i) {
    const char *s = json_string_value(json_object_get(choice_at(events, i), "finish_reason"));
    return s == NULL ? "-" : s;
}

static json_t *body_of(stream *s) {
    buf out = {0};
    EXPECT(stream_finish(s, &out));
    json_t *j = json_loadb(out.p, out.n, JSON_REJECT_DUPLICATES, NULL);
    EXPECT(j != NULL);
    buf_deinit(&out);
    return j;
}

static json_t *body_choice(json_t *body, size_t i) {
    return json_array_get(json_object_get(body, "choices"), i);
}

static const char *text_of(json_t *choice) {
    json_t *m = json_object_get(choice, "message");
    return json_string_value(m != NULL ? json_object_get(m, "content")
                                       : json_object_get(choice, "text"));
}

/* ---- streams ---- */

static void a_chat_streams_in_the_documented_order(void) {
    stream_options o = options_of(true, true, 1);
    o.include_usage = true;
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "ab", &out);
    push(s, 0, TINY_IM_END, &out);
    push_done(s, 0, GEN_STOP, -1, &out);
    EXPECT(stream_is_done(s));
    EXPECT(stream_finish(s, &out));
    json_t *e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 6);
    EXPECT_STR(content_at(e, 0), "");
    EXPECT_STR(
        json_string_value(json_object_get(json_object_get(choice_at(e, 0), "delta"), "role")),
        "assistant");
    EXPECT_STR(content_at(e, 1), "a");
    EXPECT_STR(content_at(e, 2), "b");
    EXPECT_EQ(json_object_size(json_object_get(choice_at(e, 3), "delta")), 0);
    EXPECT_STR(finish_at(e, 2), "-");
    EXPECT_STR(finish_at(e, 3), "stop");
    for (size_t i = 0; i < 4; i++)
        EXPECT(json_is_null(json_object_get(json_array_get(e, i), "usage")));
    json_t *usage = json_object_get(json_array_get(e, 4), "usage");
    EXPECT_EQ(json_array_size(json_object_get(json_array_get(e, 4), "choices")), 0);
    EXPECT_EQ(json_integer_value(json_object_get(usage, "prompt_tokens")), 2);
    EXPECT_EQ(json_integer_value(json_object_get(usage, "completion_tokens")), 3);
    EXPECT_EQ(json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"),
                                                 "cached_tokens")),
              1);
    EXPECT_STR(json_string_value(json_array_get(e, 5)), "[DONE]");
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

static void usage_is_absent_when_not_asked_for(void) {
    stream_options o = options_of(true, true, 1);
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "a", &out);
    push_done(s, 0, GEN_LENGTH, -1, &out);
    EXPECT(stream_finish(s, &out));
    EXPECT(strstr(buf_cstr(&out), "usage") == NULL);
    buf_deinit(&out);
    stream_destroy(s);
}

static void push_interrupted(stream *s, uint32_t choice, uint64_t queued_us, uint32_t n, buf *out) {
    gen_event ev = {.kind = GEN_EV_DONE};
    ev.done.finish = GEN_LENGTH;
    ev.done.stop_id = -1;
    ev.done.queued_us = queued_us;
    ev.done.queued_steps = 4 - n;
    ev.done.n_preempted = 1; // times it lost its pages: pauses are not among them
    ev.done.n_preempts[GEN_PREEMPT_RECOMPUTE] = 1;
    ev.done.n_preempts[GEN_PREEMPT_PAUSE] = n - 1;
    stream_on_event(s, choice, &ev, out);
}

/* The longest wait and all interruptions; of a running stream nothing is told. */
static void usage_details_are_those_of_all_choices(void) {
    for (int streaming = 0; streaming < 2; streaming++) {
        stream_options o = options_of(true, streaming == 1, 2);
        o.include_usage = o.continuous_usage = streaming == 1;
        o.usage_details = true;
        o.prio = "batch";
        stream *s = stream_create(&o);
        buf out = {0};
        push_text(s, 0, "a", &out);
        push_interrupted(s, 0, 7999, 1, &out);
        push_interrupted(s, 1, 2000, 2, &out);
        EXPECT_EQ(stream_usage(s).n_preempted, 3);
        EXPECT(strstr(buf_cstr(&out), "inferd") == NULL);
        EXPECT(stream_finish(s, &out));
        EXPECT(strstr(buf_cstr(&out),
                      ",\"inferd\":{\"queued_ms\":7,\"queued_steps\":3,\"preempted\":3,"
                      "\"class\":\"batch\",\"preemptions\":{") != NULL);
        EXPECT(strstr(buf_cstr(&out), "\"recompute\":2") != NULL);
        EXPECT(strstr(buf_cstr(&out), "\"pause\":1") != NULL);
        buf_deinit(&out);
        stream_destroy(s);
    }
    stream_options o = options_of(true, false, 1);
    o.prio = "batch";
    stream *s = stream_create(&o);
    buf out = {0};
    push_interrupted(s, 0, 7000, 1, &out);
    EXPECT(stream_finish(s, &out));
    EXPECT(strstr(buf_cstr(&out), "inferd") == NULL);
    buf_deinit(&out);
    stream_destroy(s);
}

static void continuous_usage_counts_up(void) {
    stream_options o = options_of(false, true, 1);
    o.include_usage = o.continuous_usage = true;
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "abc", &out);
    json_t *e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 3);
    for (size_t i = 0; i < 3; i++)
        EXPECT_EQ(json_integer_value(json_object_get(json_object_get(json_array_get(e, i), "usage"),
                                                     "completion_tokens")),
                  i + 1);
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

static void half_a_code_point_waits(void) {
    stream_options o = options_of(true, true, 1);
    stream *s = stream_create(&o);
    buf out = {0};
    push(s, 0, tiny_tok_byte(0xe2), &out);
    push(s, 0, tiny_tok_byte(0x82), &out);
    json_t *e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 1); // the role
    json_decref(e);
    push(s, 0, tiny_tok_byte(0xac), &out);
    e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 2);
    EXPECT_STR(content_at(e, 1), "\xe2\x82\xac");
    json_decref(e);
    buf_clear(&out);
    push(s, 0, tiny_tok_byte(0xe2), &out);
    push_done(s, 0, GEN_LENGTH, -1, &out); // now it can never be completed
    e = events_of(&out);
    EXPECT_STR(content_at(e, 0), "\xef\xbf\xbd");
    EXPECT_STR(finish_at(e, 1), "length");
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

static void a_stop_string_over_token_borders_never_leaves(void) {
    stream_options o = options_of(true, true, 1);
    o.stops = stops_of("END", "zz");
    stream *s = stream_create(&o);
    buf out = {0};
    EXPECT(!push_text(s, 0, "aEN", &out));
    json_t *e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 2);
    EXPECT_STR(content_at(e, 1), "a");
    json_decref(e);
    EXPECT(push_text(s, 0, "D", &out)); // cancel
    EXPECT(!push_text(s, 0, "more", &out));
    push_done(s, 0, GEN_CANCELLED, -1, &out);
    EXPECT_EQ(stream_error(s)->fault, API_OK);
    EXPECT(stream_finish(s, &out));
    EXPECT(strstr(buf_cstr(&out), "EN") == strstr(buf_cstr(&out), "END\""));
    e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 4);
    EXPECT_STR(finish_at(e, 2), "stop");
    EXPECT_STR(json_string_value(json_object_get(choice_at(e, 2), "stop_reason")), "END");
    EXPECT_EQ(stream_usage(s).n_output, 4);
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

static void held_text_comes_out_when_it_was_no_stop_string(void) {
    stream_options o = options_of(false, true, 1);
    o.stops = stops_of("END", NULL);
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "ENx", &out);
    push_text(s, 0, "EN", &out);
    push_done(s, 0, GEN_LENGTH, -1, &out);
    json_t *e = events_of(&out);
    EXPECT_STR(content_at(e, 0), "ENx");
    EXPECT_STR(content_at(e, 1), "EN");
    EXPECT_STR(content_at(e, 2), "");
    EXPECT_STR(finish_at(e, 2), "length");
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

static void logprobs_leave_with_their_text(void) {
    stream_options o = options_of(true, true, 1);
    o.stops = stops_of("bcd", NULL);
    o.n_logprobs = 1;
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "abce", &out);
    json_t *e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 3); // role, "a", "bce"
    for (size_t i = 1; i < 3; i++) {
        json_t *content = json_object_get(json_object_get(choice_at(e, i), "logprobs"), "content");
        EXPECT_EQ(json_array_size(content), i == 1 ? 1 : 3);
        EXPECT_EQ(strlen(content_at(e, i)), i == 1 ? 1 : 3);
    }
    json_decref(e);
    buf_clear(&out);
    EXPECT(push_text(s, 0, "fbcd", &out));
    e = events_of(&out);
    EXPECT_EQ(json_array_size(e), 2); // "f", finish
    EXPECT(json_is_null(json_object_get(choice_at(e, 1), "logprobs")));
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

static void choices_stream_with_a_role_and_a_finish_each(void) {
    stream_options o = options_of(true, true, 2);
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 1, "b", &out);
    push_text(s, 0, "a", &out);
    push_done(s, 1, GEN_LENGTH, -1, &out);
    EXPECT(!stream_is_done(s));
    push_done(s, 0, GEN_STOP, -1, &out);
    EXPECT(stream_finish(s, &out));
    json_t *e = events_of(&out);
    int roles[2] = {0}, finishes[2] = {0};
    for (size_t i = 0; i + 1 < json_array_size(e); i++) {
        json_t *c = choice_at(e, i);
        json_int_t k = json_integer_value(json_object_get(c, "index"));
        roles[k] += json_object_get(json_object_get(c, "delta"), "role") != NULL;
        finishes[k] += json_is_string(json_object_get(c, "finish_reason"));
    }
    EXPECT_EQ(roles[0] * 10 + roles[1], 11);
    EXPECT_EQ(finishes[0] * 10 + finishes[1], 11);
    EXPECT_EQ(json_array_size(e), 7);
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

/* ---- bodies ---- */

static void a_body_has_all_choices_in_order(void) {
    stream_options o = options_of(true, false, 2);
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 1, "two", &out);
    push_text(s, 0, "one", &out);
    push_done(s, 1, GEN_STOP, -1, &out);
    push_done(s, 0, GEN_LENGTH, -1, &out);
    EXPECT_EQ(out.n, 0);
    json_t *b = body_of(s);
    EXPECT_STR(text_of(body_choice(b, 0)), "one");
    EXPECT_STR(text_of(body_choice(b, 1)), "two");
    EXPECT_STR(json_string_value(json_object_get(b, "object")), "chat.completion");
    json_t *usage = json_object_get(b, "usage");
    EXPECT_EQ(json_integer_value(json_object_get(usage, "prompt_tokens")), 2); // once, not twice
    EXPECT_EQ(json_integer_value(json_object_get(usage, "completion_tokens")), 6);
    json_decref(b);
    stream_destroy(s);
}

static void a_stop_id_is_named_and_its_text_is_not_returned(void) {
    stream_options o = options_of(false, false, 1);
    o.stop_ids = malloc(sizeof(tok_id));
    o.stop_ids[0] = tiny_tok_byte('!');
    o.n_stop_ids = 1;
    o.n_logprobs = 0;
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "ab!", &out);
    push_done(s, 0, GEN_STOP, tiny_tok_byte('!'), &out);
    json_t *b = body_of(s);
    json_t *c = body_choice(b, 0);
    EXPECT_STR(text_of(c), "ab");
    EXPECT_EQ(json_integer_value(json_object_get(c, "stop_reason")), tiny_tok_byte('!'));
    EXPECT_EQ(json_array_size(json_object_get(json_object_get(c, "logprobs"), "tokens")), 2);
    json_decref(b);
    stream_destroy(s);
}

static void include_stop_keeps_string_and_token(void) {
    for (int by_id = 0; by_id <= 1; by_id++) {
        stream_options o = options_of(false, false, 1);
        o.include_stop = true;
        if (by_id) {
            o.stop_ids = malloc(sizeof(tok_id));
            o.stop_ids[0] = tiny_tok_byte('!');
            o.n_stop_ids = 1;
        } else {
            o.stops = stops_of("b!", NULL);
        }
        stream *s = stream_create(&o);
        buf out = {0};
        push_text(s, 0, "ab!", &out);
        push_done(s, 0, by_id ? GEN_STOP : GEN_CANCELLED, by_id ? tiny_tok_byte('!') : -1, &out);
        json_t *b = body_of(s);
        EXPECT_STR(text_of(body_choice(b, 0)), "ab!");
        json_decref(b);
        stream_destroy(s);
    }
}

static void min_tokens_also_holds_for_stop_strings(void) {
    stream_options o = options_of(false, false, 1);
    o.stops = stops_of("x", NULL);
    o.min_tokens = 2;
    stream *s = stream_create(&o);
    buf out = {0};
    EXPECT(!push_text(s, 0, "xx", &out));
    EXPECT(push_text(s, 0, "x", &out));
    push_done(s, 0, GEN_CANCELLED, -1, &out);
    json_t *b = body_of(s);
    EXPECT_STR(text_of(body_choice(b, 0)), "xx");
    json_decref(b);
    stream_destroy(s);
}

static void ignored_end_tokens_do_not_hide_text(void) {
    stream_options o = options_of(false, false, 1);
    o.ignore_eos = true;
    o.skip_specials = false;
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "a", &out);
    push(s, 0, TINY_IM_END, &out);
    push_text(s, 0, "b", &out);
    push_done(s, 0, GEN_LENGTH, -1, &out);
    json_t *b = body_of(s);
    EXPECT_STR(text_of(body_choice(b, 0)), "a<|im_end|>b");
    json_decref(b);
    stream_destroy(s);
}

static void echo_with_logprobs_scores_the_prompt(void) {
    stream_options o = options_of(false, false, 1);
    o.echo = true;
    o.n_logprobs = 1;
    stream *s = stream_create(&o);
    buf out = {0};
    for (int i = 0; i < 2; i++) {
        gen_event ev = {.kind = GEN_EV_PROMPT};
        ev.token.r.id = tiny_tok_byte((unsigned char)"Hi"[i]);
        if (i > 0) {
            ev.token.r.logprob = -3;
            ev.token.r.n_top = 1;
            ev.token.r.top[0] = (tok_logprob){tiny_tok_byte('o'), -0.25f};
        }
        stream_on_event(s, 0, &ev, &out);
    }
    push_done(s, 0, GEN_LENGTH, -1, &out);
    json_t *b = body_of(s);
    json_t *c = body_choice(b, 0), *l = json_object_get(c, "logprobs");
    EXPECT_STR(text_of(c), "Hi");
    EXPECT_EQ(json_array_size(json_object_get(l, "tokens")), 2);
    EXPECT(json_is_null(json_array_get(json_object_get(l, "token_logprobs"), 0)));
    EXPECT_NEAR(json_number_value(json_array_get(json_object_get(l, "token_logprobs"), 1)), -3, 0);
    json_t *top = json_array_get(json_object_get(l, "top_logprobs"), 1);
    EXPECT_NEAR(json_number_value(json_object_get(top, "o")), -0.25, 0);
    EXPECT_NEAR(json_number_value(json_object_get(top, "i")), -3, 0);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 1)), 1);
    EXPECT_EQ(stream_usage(s).n_output, 0);
    json_decref(b);
    stream_destroy(s);
}

/* "é" is two bytes and one code point. */
static void text_offsets_count_code_points(void) {
    stream_options o = options_of(false, false, 1);
    o.n_logprobs = 0;
    o.echo = true;
    stream *s = stream_create(&o);
    buf out = {0};
    gen_event ev = {.kind = GEN_EV_PROMPT};
    ev.token.r.id = tiny_tok_byte('H');
    stream_on_event(s, 0, &ev, &out);
    ev.token.r.id = tiny_tok_byte('i');
    stream_on_event(s, 0, &ev, &out);
    push_text(s, 0, "\xc3\xa9z", &out);
    push_done(s, 0, GEN_LENGTH, -1, &out);
    json_t *b = body_of(s);
    json_t *at = json_object_get(json_object_get(body_choice(b, 0), "logprobs"), "text_offset");
    static const int want[] = {0, 1, 2, 2, 3};
    EXPECT_EQ(json_array_size(at), 5);
    for (size_t i = 0; i < 5; i++) EXPECT_EQ(json_integer_value(json_array_get(at, i)), want[i]);
    json_decref(b);
    stream_destroy(s);
}

static void push_prompt(stream *s, tok_id id) {
    gen_event ev = {.kind = GEN_EV_PROMPT};
    ev.token.r = (sample_result){.id = id, .logprob = -1};
    buf out = {0};
    EXPECT(!stream_on_event(s, 0, &ev, &out));
    EXPECT_EQ(out.n, 0);
}

/* The logprobs of a choice of a completion, or of a chunk of one: "name@offset " for each token. */
static void add_offsets(json_t *choice, char *out, size_t n) {
    json_t *l = json_object_get(choice, "logprobs");
    for (size_t i = 0; i < json_array_size(json_object_get(l, "tokens")); i++) {
        json_t *name = json_array_get(json_object_get(l, "tokens"), i);
        json_t *offset = json_array_get(json_object_get(l, "text_offset"), i);
        size_t used = strlen(out);
        snprintf(out + used, n - used, "%s@%d ", json_string_value(name),
                 (int)json_integer_value(offset));
    }
}

/* The U+FFFD of bytes that never became a character comes out with the next token, and the offset
 * of that token was the one of the U+FFFD. */
static void a_token_begins_behind_the_replacement_of_earlier_bytes(void) {
    static const struct {
        const char *text, *offsets;
    } rows[] = {
        {"\xe2 x", "bytes:\\xe2@0  @1 x@2 "},
        {"\xe2\x98x", "bytes:\\xe2@0 bytes:\\x98@0 x@1 "},
        {"\xe2\x98\x83x", "bytes:\\xe2@0 bytes:\\x98@0 bytes:\\x83@0 x@1 "},
        {"a\xe2\xe2\xff", "a@0 bytes:\\xe2@1 bytes:\\xe2@2 bytes:\\xff@3 "},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        for (int echo = 0; echo < 2; echo++) {
            stream_options o = options_of(false, false, 1);
            o.n_logprobs = 0;
            o.echo = echo;
            const char *p = rows[i].text;
            if (echo) {
                tok_ids_deinit(&o.prompts[0].ids);
                o.prompts[0].ids = (tok_ids){0};
                for (; *p != 0; p++)
                    tok_ids_push(&o.prompts[0].ids, tiny_tok_byte((unsigned char)*p));
            }
            stream *s = stream_create(&o);
            buf out = {0};
            for (p = rows[i].text; *p != 0; p++) {
                tok_id id = tiny_tok_byte((unsigned char)*p);
                if (echo)
                    push_prompt(s, id);
                else
                    push(s, 0, id, &out);
            }
            push_done(s, 0, GEN_LENGTH, -1, &out);
            json_t *b = body_of(s);
            char offsets[256] = "";
            add_offsets(body_choice(b, 0), offsets, sizeof offsets);
            EXPECT_STR(offsets, rows[i].offsets);
            json_decref(b);
            stream_destroy(s);
        }
    }
}

/* The stop string is cut off, and its token was still listed: its text seemed to begin at the
 * U+FFFD of the byte before it. */
static void a_stop_string_behind_a_replacement_takes_its_logprobs_along(void) {
    for (int streaming = 0; streaming < 2; streaming++) {
        stream_options o = options_of(false, streaming == 1, 1);
        o.n_logprobs = 0;
        o.stops = stops_of(" ", NULL);
        stream *s = stream_create(&o);
        buf out = {0};
        EXPECT(push_text(s, 0, "\xe2 ", &out));
        push_done(s, 0, GEN_CANCELLED, -1, &out);
        json_t *all = streaming ? events_of(&out) : json_pack("[o]", body_of(s));
        EXPECT_STR(content_at(all, 0), "\xef\xbf\xbd");
        char offsets[64] = "";
        for (size_t i = 0; i < json_array_size(all); i++)
            add_offsets(choice_at(all, i), offsets, sizeof offsets);
        EXPECT_STR(offsets, "bytes:\\xe2@0 ");
        json_decref(all);
        buf_deinit(&out);
        stream_destroy(s);
    }
}

static void an_echo_streams_first(void) {
    stream_options o = options_of(false, true, 1);
    o.echo = true;
    o.show_ids = true;
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "a", &out);
    push_done(s, 0, GEN_LENGTH, -1, &out);
    json_t *e = events_of(&out);
    EXPECT_STR(content_at(e, 0), "Hi");
    EXPECT_EQ(json_array_size(json_object_get(choice_at(e, 0), "prompt_token_ids")), 2);
    EXPECT_STR(content_at(e, 1), "a");
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(choice_at(e, 1), "token_ids"), 0)),
              tiny_tok_byte('a'));
    EXPECT_STR(finish_at(e, 2), "length");
    json_decref(e);
    buf_deinit(&out);
    stream_destroy(s);
}

/* ---- failures ---- */

static void failures_have_the_documented_codes(void) {
    static const struct {
        gen_finish finish;
        inferd_status status;
        int http;
        const char *code;
    } rows[] = {{GEN_TIMEOUT, INFERD_ETIMEOUT, 504, "deadline_exceeded"},
                {GEN_CANCELLED, INFERD_ECANCELED, 503, "shutting_down"},
                {GEN_ERROR, INFERD_EDEVICE, 500, "internal_error"},
                {GEN_ERROR, INFERD_ENOMEM, 500, "internal_error"},
                {GEN_ERROR, INFERD_EBUSY, 503, "server_overloaded"},
                {GEN_ERROR, INFERD_ETOOLONG, 400, "context_length_exceeded"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        stream_options o = options_of(true, true, 1);
        stream *s = stream_create(&o);
        buf out = {0};
        gen_event ev = {.kind = GEN_EV_DONE};
        ev.done.finish = rows[i].finish;
        ev.done.status = rows[i].status;
        snprintf(ev.done.text, sizeof ev.done.text, "secret path"); // only of what broke
        stream_on_event(s, 0, &ev, &out);
        EXPECT_EQ(stream_error(s)->status, rows[i].http);
        EXPECT_STR(stream_error(s)->code, rows[i].code);
        EXPECT(rows[i].http != 504 || strcmp(stream_error(s)->message, "secret path") == 0);
        EXPECT(rows[i].http != 500 || strstr(stream_error(s)->message, "secret") == NULL);
        EXPECT_EQ(out.n, 0);
        stream_destroy(s);
    }
}

/* A limit that a grammar meets while it is used is the schema's, not the prompt's. */
static void a_grammar_that_fails_is_named_by_its_field(void) {
    stream_options o = options_of(true, false, 1);
    o.constraint = "guided_json";
    stream *s = stream_create(&o);
    buf out = {0};
    gen_event ev = {.kind = GEN_EV_DONE};
    ev.done.finish = GEN_ERROR;
    ev.done.status = INFERD_EUNSUPPORTED;
    snprintf(ev.done.text, sizeof ev.done.text, "more than configs_max");
    stream_on_event(s, 0, &ev, &out);
    EXPECT_EQ(stream_error(s)->status, 400);
    EXPECT_STR(stream_error(s)->code, "unsupported_schema");
    EXPECT_STR(stream_error(s)->param, "guided_json");
    EXPECT_STR(stream_error(s)->message, "more than configs_max");
    stream_destroy(s);
}

/* SentencePiece drops the first space of a text; a grammar counted it. */
static void a_constrained_text_keeps_its_first_space(void) {
    tiny_words w;
    words_spm(&w);
    tok_id word = words_add_scored(&w, "\xE2\x96\x81yes", WORD_NORMAL, -1);
    tokenizer *spm = words_open(&w);
    for (int constrained = 0; constrained < 2; constrained++) {
        stream_options o = options_of(true, false, 1);
        o.tok = spm;
        o.constraint = constrained ? "regex" : NULL;
        stream *s = stream_create(&o);
        buf out = {0};
        push(s, 0, word, &out);
        push_done(s, 0, GEN_STOP, -1, &out);
        EXPECT(stream_finish(s, &out));
        EXPECT(strstr(buf_cstr(&out),
                      constrained ? "\"content\":\" yes\"" : "\"content\":\"yes\"") != NULL);
        buf_deinit(&out);
        stream_destroy(s);
    }
    tok_close(spm);
}

static void events_after_a_failure_are_ignored(void) {
    stream_options o = options_of(true, true, 2);
    stream *s = stream_create(&o);
    buf out = {0};
    push_text(s, 0, "a", &out);
    size_t n = out.n;
    push_done(s, 1, GEN_ERROR, -1, &out);
    push_text(s, 0, "b", &out);
    push_done(s, 0, GEN_STOP, -1, &out);
    EXPECT_EQ(out.n, n);
    EXPECT(stream_is_done(s));
    buf_deinit(&out);
    stream_destroy(s);
}

/* The text of a stream is the text of the body, whatever the stop strings hold back. */
static void streamed_and_whole_texts_are_equal(void) {
    uint32_t state = 3;
    for (int round = 0; round < 500; round++) {
        char text[32], whole[64], joined[64] = "";
        size_t n = 0;
        state = state * 1664525u + 1013904223u;
        uint32_t bits = state;
        for (; n < 20; n++, bits = bits >> 1 | bits << 31) text[n] = bits & 1 ? 'a' : 'b';
        text[n] = 0;
        for (int streaming = 0; streaming <= 1; streaming++) {
            stream_options o = options_of(false, streaming, 1);
            o.stops = stops_of("aabba", "bbbb");
            stream *s = stream_create(&o);
            buf out = {0};
            bool cancelled = push_text(s, 0, text, &out);
            push_done(s, 0, cancelled ? GEN_CANCELLED : GEN_LENGTH, -1, &out);
            if (streaming) {
                json_t *e = events_of(&out);
                for (size_t i = 0; i < json_array_size(e); i++) strcat(joined, content_at(e, i));
                json_decref(e);
            } else {
                json_t *b = body_of(s);
                snprintf(whole, sizeof whole, "%s", text_of(body_choice(b, 0)));
                json_decref(b);
            }
            buf_deinit(&out);
            stream_destroy(s);
        }
        EXPECT_STR(joined, whole);
    }
}

/* And so are their log-probabilities, whatever was cut: tokens of no text, of bytes that are no
 * character, and of a part of one. */
static void streamed_and_whole_logprobs_are_equal(void) {
    static const unsigned char often[] = {'a', 'b', 'c', 0xe2, 0x98, 0x83};
    uint32_t state = 5;
    for (int round = 0; round < 3000; round++) {
        tok_id ids[16];
        char whole[512] = "", joined[512] = "";
        for (size_t i = 0; i < INFERD_COUNT(ids); i++) {
            state = state * 1664525u + 1013904223u;
            uint32_t k = (state >> 8) % (INFERD_COUNT(often) + 1);
            ids[i] = k < INFERD_COUNT(often) ? tiny_tok_byte(often[k]) : TINY_IM_END;
        }
        for (int streaming = 0; streaming < 2; streaming++) {
            stream_options o = options_of(false, streaming == 1, 1);
            o.n_logprobs = 0;
            o.ignore_eos = true;
            const char *stops[] = {"\xe2\x98\x83"
                                   "a",
                                   "ac",
                                   "\xef\xbf\xbd"
                                   "b"};
            o.stops = stops_of(stops[round % 3], "bb");
            stream *s = stream_create(&o);
            buf out = {0};
            bool cancelled = false;
            for (size_t i = 0; i < INFERD_COUNT(ids) && !cancelled; i++)
                cancelled = push(s, 0, ids[i], &out);
            push_done(s, 0, cancelled ? GEN_CANCELLED : GEN_LENGTH, -1, &out);
            json_t *all = streaming ? events_of(&out) : json_pack("[o]", body_of(s));
            for (size_t i = 0; i < json_array_size(all); i++)
                add_offsets(choice_at(all, i), streaming ? joined : whole, sizeof whole);
            json_decref(all);
            buf_deinit(&out);
            stream_destroy(s);
        }
        EXPECT_STR(joined, whole);
    }
}

static const test_case cases[] = {
    TEST(a_chat_streams_in_the_documented_order),
    TEST(usage_is_absent_when_not_asked_for),
    TEST(usage_details_are_those_of_all_choices),
    TEST(continuous_usage_counts_up),
    TEST(half_a_code_point_waits),
    TEST(a_stop_string_over_token_borders_never_leaves),
    TEST(held_text_comes_out_when_it_was_no_stop_string),
    TEST(logprobs_leave_with_their_text),
    TEST(choices_stream_with_a_role_and_a_finish_each),
    TEST(a_body_has_all_choices_in_order),
    TEST(a_stop_id_is_named_and_its_text_is_not_returned),
    TEST(include_stop_keeps_string_and_token),
    TEST(min_tokens_also_holds_for_stop_strings),
    TEST(ignored_end_tokens_do_not_hide_text),
    TEST(echo_with_logprobs_scores_the_prompt),
    TEST(text_offsets_count_code_points),
    TEST(a_token_begins_behind_the_replacement_of_earlier_bytes),
    TEST(a_stop_string_behind_a_replacement_takes_its_logprobs_along),
    TEST(an_echo_streams_first),
    TEST(failures_have_the_documented_codes),
    TEST(a_grammar_that_fails_is_named_by_its_field),
    TEST(a_constrained_text_keeps_its_first_space),
    TEST(events_after_a_failure_are_ignored),
    TEST(streamed_and_whole_texts_are_equal),
    TEST(streamed_and_whole_logprobs_are_equal),
};

int main(int argc, char **argv) {
    int status = test_run(cases, INFERD_COUNT(cases), argc, argv);
    tok_close(tok);
    return status;
}
