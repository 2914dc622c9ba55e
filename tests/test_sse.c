/* test_sse.c - the bytes of chunks and answers, to the letter and as JSON. */
#include "test.h"

#include <jansson.h>
#include <locale.h>

#include "sse.h"
#include "tiny_tok.h"

static tokenizer *tok;

static answer_head head_of(bool chat) {
    if (tok == NULL) tok = tiny_tok_open();
    return (answer_head){.chat = chat,
                         .id = "id-1",
                         .model = "m",
                         .fingerprint = "fp_1",
                         .tier = "default",
                         .created = 1700000000,
                         .tok = tok};
}

static json_t *parse(buf *b, size_t from) {
    json_error_t e;
    json_t *j = json_loadb(b->p + from, b->n - from, JSON_REJECT_DUPLICATES, &e);
    if (j == NULL) printf("%s in %s\n", e.text, buf_cstr(b));
    return j;
}

static void chunks_of_a_chat_are_to_the_letter(void) {
    answer_head h = head_of(true);
    buf out = {0};
    answer_choice open = {.index = 0, .opens = true};
    sse_chunk(&out, &h, &open, NULL);
    EXPECT_STR(buf_cstr(&out),
               "data: {\"id\":\"id-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
               "\"model\":\"m\",\"system_fingerprint\":\"fp_1\",\"service_tier\":\"default\","
               "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
               "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    buf_clear(&out);
    h.usage_asked = true;
    answer_choice text = {.index = 1, .text = {"a\n\"", 3}};
    sse_chunk(&out, &h, &text, NULL);
    EXPECT(strstr(buf_cstr(&out),
                  "\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\\n\\\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"));
    buf_clear(&out);
    answer_choice last = {.index = 0, .finish = "stop"};
    sse_chunk(&out, &h, &last, NULL);
    EXPECT(strstr(buf_cstr(&out), "{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                  "\"finish_reason\":\"stop\",\"stop_reason\":null}]"));
    buf_clear(&out);
    answer_usage u = {.n_prompt = 10, .n_cached = 8, .n_output = 5};
    sse_usage(&out, &h, &u);
    EXPECT(strstr(buf_cstr(&out),
                  "\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,"
                  "\"total_tokens\":15,\"prompt_tokens_details\":{\"cached_tokens\":8},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n"));
    buf_clear(&out);
    sse_done(&out);
    EXPECT_STR(buf_cstr(&out), "data: [DONE]\n\n");
    buf_deinit(&out);
}

static void an_error_event_has_all_four_keys(void) {
    buf out = {0};
    api_error e = {0};
    api_fail(&e, API_DEADLINE, NULL, "too \"late\"");
    sse_error(&out, &e);
    EXPECT_STR(buf_cstr(&out),
               "data: {\"error\":{\"message\":\"too \\\"late\\\"\",\"type\":\"timeout_error\","
               "\"param\":null,\"code\":\"deadline_exceeded\"}}\n\n");
    buf_deinit(&out);
}

/* Half of a two-byte code point is one byte of the vocabulary: its text is U+FFFD, its bytes are
 * exact. */
static void logprobs_show_exact_bytes(void) {
    answer_head h = head_of(true);
    tok_logprob top[1] = {{tiny_tok_byte('x'), -0.5f}};
    answer_logprob lp = {
        .id = tiny_tok_byte(0xc3), .known = true, .logprob = -1.25f, .n_top = 1, .top = top};
    answer_choice c = {.text = {"x", 1}, .logprobs = &lp, .n_logprobs = 1};
    buf out = {0};
    sse_chunk(&out, &h, &c, NULL);
    EXPECT(strstr(buf_cstr(&out),
                  "\"logprobs\":{\"content\":[{\"token\":\"\xef\xbf\xbd\",\"logprob\":-1.25,"
                  "\"bytes\":[195],\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-0.5,"
                  "\"bytes\":[120]}]}],\"refusal\":null}"));
    buf_deinit(&out);
}

/* Bytes 0xc3 and 0xe2 both show as U+FFFD; JSON must not have the key twice. */
static void top_logprobs_of_a_completion_have_no_key_twice(void) {
    answer_head h = head_of(false);
    tok_logprob top[2] = {{tiny_tok_byte(0xc3), -0.5f}, {tiny_tok_byte(0xe2), -1.5f}};
    answer_logprob lp[2] = {{.id = tiny_tok_byte('a'), .known = false},
                            {.id = tiny_tok_byte('b'),
                             .known = true,
                             .logprob = -2.0f,
                             .text_offset = 1,
                             .n_top = 2,
                             .top = top}};
    answer_choice c = {.text = {"ab", 2}, .logprobs = lp, .n_logprobs = 2, .finish = "length"};
    answer_usage u = {.n_prompt = 1, .n_output = 1};
    buf out = {0};
    answer_open(&out, &h);
    answer_choice_add(&out, &h, &c);
    answer_close(&out, &h, &u, NULL, 0);
    json_t *j = parse(&out, 0);
    json_t *l = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
    EXPECT(json_is_null(json_array_get(json_object_get(l, "token_logprobs"), 0)));
    EXPECT(json_is_null(json_array_get(json_object_get(l, "top_logprobs"), 0)));
    json_t *t = json_array_get(json_object_get(l, "top_logprobs"), 1);
    EXPECT_EQ(json_object_size(t), 2);
    EXPECT_NEAR(json_number_value(json_object_get(t, "\xef\xbf\xbd")), -0.5, 0);
    EXPECT_NEAR(json_number_value(json_object_get(t, "b")), -2.0, 0);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 1)), 1);
    json_decref(j);
    buf_deinit(&out);
}

static void a_number_is_json_in_every_locale(void) {
    buf out = {0};
    bool comma = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
    json_add_real(&out, -0.125);
    buf_add_char(&out, ' ');
    json_add_real(&out, -INFINITY);
    buf_add_char(&out, ' ');
    json_add_real(&out, NAN);
    if (comma) setlocale(LC_NUMERIC, "C");
    EXPECT_STR(buf_cstr(&out), "-0.125 -9999 -9999");
    buf_deinit(&out);
}

static void invalid_utf8_never_leaves(void) {
    answer_head h = head_of(false);
    answer_choice c = {.text = {"a\xff"
                                "b",
                                3}};
    buf out = {0};
    sse_chunk(&out, &h, &c, NULL);
    json_t *j = parse(&out, strlen("data: "));
    EXPECT(j != NULL);
    EXPECT_STR(json_string_value(
                   json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text")),
               "a\xef\xbf\xbd"
               "b");
    json_decref(j);
    buf_deinit(&out);
}

static const test_case cases[] = {
    TEST(chunks_of_a_chat_are_to_the_letter), TEST(an_error_event_has_all_four_keys),
    TEST(logprobs_show_exact_bytes),          TEST(top_logprobs_of_a_completion_have_no_key_twice),
    TEST(a_number_is_json_in_every_locale),   TEST(invalid_utf8_never_leaves),
};

int main(int argc, char **argv) {
    int status = test_run(cases, INFERD_COUNT(cases), argc, argv);
    tok_close(tok);
    return status;
}
