/* test_sse.c - the bytes of chunks and answers, to the letter and as JSON. */
#include "test.h"

#include <jansson.h>
#include <locale.h>

#include "json_out.h"
#include "sse.h"
#include "tiny_tok.h"
#include "tok_tiny.h"

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

/* The log-probabilities of one token of a completion, as JSON; the caller drops it. */
static json_t *completion_logprobs(answer_head *h, const answer_logprob *lp, size_t n) {
    answer_choice c = {.text = {"ab", 2}, .logprobs = lp, .n_logprobs = n, .finish = "length"};
    answer_usage u = {.n_prompt = 1, .n_output = 1};
    buf out = {0};
    answer_open(&out, h);
    answer_choice_add(&out, h, &c);
    answer_close(&out, h, &u, NULL, 0);
    json_t *j = parse(&out, 0);
    json_t *l = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
    json_incref(l);
    json_decref(j);
    buf_deinit(&out);
    return l;
}

static const char *name_at(json_t *logprobs, size_t i) {
    return json_string_value(json_array_get(json_object_get(logprobs, "tokens"), i));
}

static double top_of(json_t *logprobs, size_t i, const char *name) {
    json_t *v = json_object_get(json_array_get(json_object_get(logprobs, "top_logprobs"), i), name);
    if (v == NULL) printf("no key %s\n", name);
    return json_is_number(v) ? json_number_value(v) : 1;
}

/* Bytes 0xc3 and 0xe2 both were U+FFFD, and of two keys the worse one was left out: logprobs 20
 * gave 15 to 18 entries. */
static void top_logprobs_of_a_completion_have_every_alternative(void) {
    answer_head h = head_of(false);
    tok_logprob top[2] = {{tiny_tok_byte(0xc3), -0.5f}, {tiny_tok_byte(0xe2), -1.5f}};
    answer_logprob lp[2] = {{.id = tiny_tok_byte('a'), .known = false},
                            {.id = tiny_tok_byte('b'),
                             .known = true,
                             .logprob = -2.0f,
                             .text_offset = 1,
                             .n_top = 2,
                             .top = top}};
    json_t *l = completion_logprobs(&h, lp, 2);
    EXPECT(json_is_null(json_array_get(json_object_get(l, "token_logprobs"), 0)));
    EXPECT(json_is_null(json_array_get(json_object_get(l, "top_logprobs"), 0)));
    EXPECT_EQ(json_object_size(json_array_get(json_object_get(l, "top_logprobs"), 1)), 3);
    EXPECT_NEAR(top_of(l, 1, "bytes:\\xc3"), -0.5, 0);
    EXPECT_NEAR(top_of(l, 1, "bytes:\\xe2"), -1.5, 0);
    EXPECT_NEAR(top_of(l, 1, "b"), -2.0, 0);
    EXPECT_EQ(json_integer_value(json_array_get(json_object_get(l, "text_offset"), 1)), 1);
    json_decref(l);
    lp[1].id = top[1].id; // among the alternatives: not said twice
    lp[1].logprob = top[1].logprob;
    l = completion_logprobs(&h, lp, 2);
    EXPECT_STR(name_at(l, 1), "bytes:\\xe2");
    EXPECT_EQ(json_object_size(json_array_get(json_object_get(l, "top_logprobs"), 1)), 2);
    EXPECT_NEAR(top_of(l, 1, "bytes:\\xe2"), -1.5, 0);
    json_decref(l);
}

/* The letter A and the byte <0x41> have the same text.  The token itself has the name, so that what
 * a client finds under it is the token's own figure; then the best one. */
static void tokens_of_equal_bytes_keep_a_key_each(void) {
    tiny_words w;
    words_spm(&w);
    tok_id letter = words_add(&w, "A", WORD_NORMAL), odd = words_add(&w, "token_id:3", WORD_NORMAL),
           named = words_add(&w, "bytes:", WORD_NORMAL), byte = SPM_BYTE_0 + 0x41;
    tokenizer *spm = words_open(&w);
    answer_head h = head_of(false);
    h.tok = spm;
    char id_name[32];
    tok_logprob top[2] = {{letter, -0.25f}, {byte, -2.5f}};
    answer_logprob lp = {.id = odd, .known = true, .logprob = -3, .n_top = 2, .top = top};
    json_t *l = completion_logprobs(&h, &lp, 1);
    snprintf(id_name, sizeof id_name, "token_id:%d", byte);
    EXPECT_NEAR(top_of(l, 0, "A"), -0.25, 0);
    EXPECT_NEAR(top_of(l, 0, id_name), -2.5, 0);
    snprintf(id_name, sizeof id_name, "token_id:%d", odd); // its text is the name of id 3
    EXPECT_STR(name_at(l, 0), id_name);
    EXPECT_NEAR(top_of(l, 0, id_name), -3, 0);
    json_decref(l);
    lp.id = byte;
    lp.logprob = -2.5f;
    l = completion_logprobs(&h, &lp, 1);
    snprintf(id_name, sizeof id_name, "token_id:%d", letter);
    EXPECT_STR(name_at(l, 0), "A");
    EXPECT_NEAR(top_of(l, 0, "A"), -2.5, 0);
    EXPECT_NEAR(top_of(l, 0, id_name), -0.25, 0);
    json_decref(l);
    lp.id = named;
    l = completion_logprobs(&h, &lp, 1);
    snprintf(id_name, sizeof id_name, "token_id:%d", named);
    EXPECT_STR(name_at(l, 0), id_name);
    json_decref(l);
    tok_close(spm);
}

/* Names of bytes are told apart: a backslash of the token is doubled, a quote is JSON's. */
static void bytes_are_named_as_openai_names_them(void) {
    static const struct {
        const char *text, *name;
    } rows[] = {{" \xe2\x96", "bytes: \\xe2\\x96"},
                {"\\xe2\xff", "bytes:\\\\xe2\\xff"},
                {"\"\n\xf0", "bytes:\"\\x0a\\xf0"}};
    static const char *const merges[] = {NULL};
    tiny_words w;
    words_bpe(&w, "smollm", merges);
    tok_id ids[INFERD_COUNT(rows)];
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        for (const char *p = rows[i].text; *p != 0; p++)
            tiny_byte_name((unsigned char)*p, &w.names[w.n]);
        ids[i] = words_add(&w, "", WORD_NORMAL);
    }
    answer_head h = head_of(false);
    tokenizer *bpe = words_open(&w);
    h.tok = bpe;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        answer_logprob lp = {.id = ids[i], .known = true, .logprob = -1};
        json_t *l = completion_logprobs(&h, &lp, 1);
        EXPECT_STR(name_at(l, 0), rows[i].name);
        EXPECT_NEAR(top_of(l, 0, rows[i].name), -1, 0);
        json_decref(l);
    }
    tok_close(bpe);
}

/* vLLM's way to be exact: every name is an id.  The bytes of a chat stay those of the text. */
static void tokens_are_named_by_their_ids_when_asked(void) {
    answer_head h = head_of(false);
    tok_logprob top[2] = {{tiny_tok_byte(0xc3), -0.5f}, {tiny_tok_byte('x'), -1.5f}};
    answer_logprob lp = {
        .id = tiny_tok_byte('x'), .known = true, .logprob = -1.5f, .n_top = 2, .top = top};
    char x[32], c3[32], json[256];
    snprintf(x, sizeof x, "token_id:%d", tiny_tok_byte('x'));
    snprintf(c3, sizeof c3, "token_id:%d", tiny_tok_byte(0xc3));
    h.tokens_as_ids = true;
    json_t *l = completion_logprobs(&h, &lp, 1);
    EXPECT_STR(name_at(l, 0), x);
    EXPECT_NEAR(top_of(l, 0, x), -1.5, 0);
    EXPECT_NEAR(top_of(l, 0, c3), -0.5, 0);
    json_decref(l);
    h.chat = true;
    answer_choice c = {.text = {"x", 1}, .logprobs = &lp, .n_logprobs = 1};
    buf out = {0};
    sse_chunk(&out, &h, &c, NULL);
    snprintf(json, sizeof json,
             "{\"token\":\"%s\",\"logprob\":-1.5,\"bytes\":[120],\"top_logprobs\":[{\"token\":"
             "\"%s\",\"logprob\":-0.5,\"bytes\":[195]}",
             x, c3);
    EXPECT(strstr(buf_cstr(&out), json) != NULL);
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
    TEST(chunks_of_a_chat_are_to_the_letter),
    TEST(an_error_event_has_all_four_keys),
    TEST(logprobs_show_exact_bytes),
    TEST(top_logprobs_of_a_completion_have_every_alternative),
    TEST(tokens_of_equal_bytes_keep_a_key_each),
    TEST(bytes_are_named_as_openai_names_them),
    TEST(tokens_are_named_by_their_ids_when_asked),
    TEST(a_number_is_json_in_every_locale),
    TEST(invalid_utf8_never_leaves),
};

int main(int argc, char **argv) {
    int status = test_run(cases, INFERD_COUNT(cases), argc, argv);
    tok_close(tok);
    return status;
}
