/* The message that each byte of a prompt came from.
 *
 * Spans are shown as text: "[T]<|im_start|>[0]user[T]\n[0]hi": [T] the template, [0] message 0,
 * [-] the rest of the request. */
#include "models/chat.h"
#include "test.h"
#include "tok_tiny.h"

static const struct tm now = {.tm_year = 126, .tm_mday = 15, .tm_hour = 9, .tm_min = 30};

static json_t *read_json(const char *text) {
    json_error_t error;
    json_t *json = text == NULL ? NULL : json_loads(text, 0, &error);
    if (text != NULL && json == NULL) printf("bad JSON in a test: %s\n", error.text);
    return json;
}

/* What holds for every text. */
static void check_text(const chat_text *t, size_t n_messages) {
    size_t covered = 0;
    for (size_t i = 0; i < t->n_spans; i++) {
        covered += t->spans[i].n;
        EXPECT(t->spans[i].n > 0);
        EXPECT(t->messages[i] < n_messages || t->messages[i] == CHAT_NO_MESSAGE);
        EXPECT(!t->spans[i].specials || t->messages[i] == CHAT_NO_MESSAGE);
        EXPECT(i == 0 || t->spans[i].specials != t->spans[i - 1].specials ||
               t->messages[i] != t->messages[i - 1]);
    }
    EXPECT_EQ(covered, t->n);
}

static chat_text render(const char *source, const chat_input *input) {
    chat_template *t = NULL;
    chat_text text = {0};
    inferd_err err = {0};
    inferd_status s = chat_template_open((bytes){source, strlen(source)}, NULL, &t, &err);
    if (s == INFERD_OK) s = chat_render(t, NULL, input, &now, &text, &err);
    EXPECT_EQ(s, INFERD_OK);
    if (s != INFERD_OK) printf("%s\n", err.text);
    chat_template_close(t);
    check_text(&text, json_array_size(input->messages));
    return text;
}

static void show_spans(const chat_text *t, buf *out) {
    size_t at = 0;
    for (size_t i = 0; i < t->n_spans; at += t->spans[i++].n) {
        char index[16];
        snprintf(index, sizeof index, "[%u]", (unsigned)t->messages[i]);
        buf_add_str(out, t->spans[i].specials                ? "[T]"
                         : t->messages[i] == CHAT_NO_MESSAGE ? "[-]"
                                                             : index);
        buf_add(out, t->text + at, t->spans[i].n);
    }
    buf_add_char(out, 0);
}

static void expect_spans(int line, const char *source, chat_input input, const char *wanted) {
    chat_text text = render(source, &input);
    buf got;
    buf_init(&got, 0);
    show_spans(&text, &got);
    if (got.failed || strcmp(got.p, wanted) != 0) {
        printf("line %d: template: %s\n  gives: %s\n  expected: %s\n", line, source, got.p, wanted);
        test_failures++;
    }
    buf_deinit(&got);
    chat_text_deinit(&text);
    json_decref(input.messages);
    json_decref(input.tools);
    json_decref(input.kwargs);
}
#define INPUT(json) .messages = read_json(json)
#define SPANS(source, json, wanted)                                                                \
    expect_spans(__LINE__, source, (chat_input){INPUT(json), .add_generation_prompt = true}, wanted)

#define SAYS(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
#define THREE               "[" SAYS("system", "be") "," SAYS("user", "hi") "," SAYS("assistant", " yo ") "]"
#define CHATML                                                                                     \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"     \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define LLAMA_3                                                                                    \
    "{% for m in messages %}{% set c = '<|h|>' + m['role'] + '<|/h|>\n\n' + m['content'] | trim "  \
    "+ '<|eot|>' %}{% if loop.index0 == 0 %}{% set c = '<|begin|>' + c %}{% endif %}{{ c }}"       \
    "{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
#define MISTRAL                                                                                    \
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"                  \
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"                  \
    "{% for m in rest %}{% if m.role == 'user' %}{% if loop.first and system is defined %}"        \
    "{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}{% else %}"                          \
    "{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}{% else %}"                                 \
    "{{ ' ' + m.content|trim + '</s>' }}{% endif %}{% endfor %}"

static void each_template_names_the_message(void) {
    SPANS(CHATML, THREE,
          "[T]<|im_start|>[0]system[T]\n[0]be[T]<|im_end|>\n<|im_start|>[1]user[T]\n[1]hi"
          "[T]<|im_end|>\n<|im_start|>[2]assistant[T]\n[2] yo [T]<|im_end|>\n"
          "<|im_start|>assistant\n");
    SPANS(LLAMA_3, THREE,
          "[T]<|begin|><|h|>[0]system[T]<|/h|>\n\n[0]be[T]<|eot|><|h|>[1]user[T]<|/h|>\n\n[1]hi"
          "[T]<|eot|><|h|>[2]assistant[T]<|/h|>\n\n[2]yo[T]<|eot|><|h|>assistant<|/h|>\n\n");
    SPANS(MISTRAL, THREE, "[T][INST] [0]be[T]\n\n[1]hi[T][/INST] [2]yo[T]</s>");
}

static void equal_and_empty_contents_are_told_apart(void) {
    SPANS(CHATML, "[" SAYS("user", "a") "," SAYS("user", "a") "," SAYS("user", "") "]",
          "[T]<|im_start|>[0]user[T]\n[0]a[T]<|im_end|>\n<|im_start|>[1]user[T]\n[1]a[T]<|im_end|>"
          "\n<|im_start|>[2]user[T]\n<|im_end|>\n<|im_start|>assistant\n");
    SPANS(
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "[" SAYS("user", "a") "," SAYS("user", "a") "," SAYS("user", "") "," SAYS("user", "a") "]",
        "[0]a[1]a[3]a");
    SPANS("{{ messages[0].content + messages[1].content }}", THREE, "[0]be[1]hi");
    SPANS("{{ messages|length }}{{ '' }}", "[]", "[T]0");
}

#define PARTS                                                                                      \
    "[" SAYS("user", "x") ", {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "   \
                          "\"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]"

static void content_parts_belong_to_their_message(void) {
    SPANS("{% for m in messages %}{{ m.content }};{% endfor %}", PARTS, "[0]x[T];[1]a\nb[T];");
    SPANS("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
          "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}",
          PARTS, "[0]x[T]<[1]a[T]><[1]b[T]>");
    SPANS("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
          "{{ m.content|map(attribute='text')|join }}{% endif %}{% endfor %}",
          PARTS, "[0]x[1]ab");
}

#define CALLS                                                                                      \
    "[" SAYS("user",                                                                               \
             "x") ", {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "                \
                  "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "      \
                  "\"{\\\"a\\\": [1, null, {}, \\\"q\\\"], \\\"b\\\": 2.5}\"}}]}, "                \
                  "{\"role\": \"tool\", \"content\": \"ok\"}]"
#define CALL_LOOP(show)                                                                            \
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<" show ">{% endfor %}{% endfor %}"

static void calls_belong_to_their_message(void) {
    SPANS(CALL_LOOP("{{ c.function|tojson }}"), CALLS,
          "[T]<[1]{\"name\": \"f\", \"arguments\": {\"a\": [1, null, {}, \"q\"], \"b\": 2.5}}[T]>");
    SPANS(CALL_LOOP("{{ c.function.arguments|tojson(indent=1) }}"), CALLS,
          "[T]<[1]{\n \"a\": [\n  1,\n  null,\n  {},\n  \"q\"\n ],\n \"b\": 2.5\n}[T]>");
    SPANS(CALL_LOOP("{{ c.function.name }}({{ c.function.arguments.b }})"), CALLS,
          "[T]<[1]f[T]([1]2.5[T])>");
    SPANS(CALL_LOOP("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"),
          CALLS, "[T]<[1]a[T]=[1][1, [T]None[1], {}, 'q'][T];[1]b[T]=[1]2.5[T];>");
    // the string, for a template that needs it
    SPANS(CALL_LOOP("{{ '' + c.function.arguments }}"), CALLS,
          "[T]<[1]{\"a\": [1, null, {}, \"q\"], \"b\": 2.5}[T]>");
    // an object that the template builds is of no message, its members are
    SPANS(CALL_LOOP("{{ {'f': c.function.name, 'n': 1}|tojson }}"), CALLS,
          "[T]<[-]{\"[T]f[-]\": [1]\"f\"[-], \"[T]n[-]\": [T]1[-]}[T]>");
}

static void the_rest_of_a_request_is_of_no_message(void) {
    chat_input input = {INPUT(THREE), .tools = read_json("[{\"name\": \"f\", \"n\": 3}]"),
                        .kwargs = read_json("{\"day\": \"Monday\"}")};
    expect_spans(__LINE__,
                 "{{ messages[0].content }} on {{ day }}\n{{ tools|tojson }}\n"
                 "{% for m in messages[1:] %}<{{ m.content }}>{% endfor %}",
                 input,
                 "[0]be[T] on [-]Monday[T]\n[-][{\"name\": \"f\", \"n\": 3}][T]\n<[1]hi[T]><[2] yo "
                 "[T]>");
}

static void every_operation_keeps_the_message(void) {
    static const char *const sources[] = {
        "{% macro show(m) %}<{{ m.content }}>{% endmacro %}{% for m in messages %}{{ show(m) }}"
        "{% endfor %}",
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + '<' + m.content "
        "%}{% set ns.t = ns.t + '>' %}{% endfor %}{{ ns.t }}",
        "{% set t %}{% for m in messages %}<{{ m.content }}>{% endfor %}{% endset %}{{ t|trim }}",
        "{{ '<' }}{{ messages|map(attribute='content')|join('><') }}>",
        "{% for m in messages %}{{ '<%s>' % m.content }}{% endfor %}",
        "{% for m in messages %}{{ '<{}>'.format(m.content) }}{% endfor %}",
        "{% for m in messages %}<{{ m.content.upper().lower() }}>{% endfor %}",
        "{% for m in messages %}<{{ ('x' + m.content).replace('x', '') }}>{% endfor %}",
        "{% for m in messages %}<{{ m.content[:1] ~ m.content[1:] }}>{% endfor %}",
        "{% for m in messages[::-1][::-1] %}<{{ m.content.split('|')[0] }}>{% endfor %}",
        "{% for m in messages %}{% if loop.nextitem %}<{{ m.content }}>{% else %}<"
        "{{ loop.previtem.content and m.content }}>{% endif %}{% endfor %}",
        "{% for m in messages %}<{{ (m|tojson|from_json).content }}>{% endfor %}",
        "{% for role, list in messages|groupby('role') %}{% for m in list %}<{{ m.content }}>"
        "{% endfor %}{% endfor %}",
    };
    for (size_t i = 0; i < INFERD_COUNT(sources); i++)
        SPANS(sources[i], "[" SAYS("a", "be") "," SAYS("b", "hi") "," SAYS("b", "yo") "]",
              "[T]<[0]be[T]><[1]hi[T]><[2]yo[T]>");
    SPANS("{% for m in messages|reverse %}{{ m.content }}{% endfor %}", THREE, "[2] yo [1]hi[0]be");
    SPANS("{{ messages[1].content|int + 1 }} {{ '%03d' % messages[1].content|int }}",
          "[" SAYS("user", "3") "," SAYS("user", "40") "]", "[1]41[T] [1]040");
}

static void the_end_is_cut_from_the_spans_too(void) {
    chat_input input = {INPUT(THREE), .continue_final_message = true};
    expect_spans(__LINE__, CHATML, input,
                 "[T]<|im_start|>[0]system[T]\n[0]be[T]<|im_end|>\n<|im_start|>[1]user[T]\n[1]hi"
                 "[T]<|im_end|>\n<|im_start|>[2]assistant[T]\n[2] yo ");
}

/* ---- many messages ---- */

/* Message i says "<i>".  A few contents are empty. */
static json_t *number_messages(size_t n) {
    json_t *messages = json_array();
    for (size_t i = 0; i < n; i++) {
        char text[16] = "";
        if (i % 50 != 7) snprintf(text, sizeof text, "<%zu>", i);
        json_array_append_new(
            messages,
            json_pack("{s:s, s:s}", "role", i % 2 == 0 ? "user" : "assistant", "content", text));
    }
    return messages;
}

/* Each number in the text lies in a span of that message.  Returns how many there are. */
static size_t count_numbers(const chat_text *t) {
    size_t at = 0, n = 0;
    for (size_t i = 0; i < t->n_spans; at += t->spans[i++].n) {
        if (t->messages[i] == CHAT_NO_MESSAGE || t->text[at] != '<') continue;
        EXPECT_EQ(t->messages[i], strtoul(t->text + at + 1, NULL, 10));
        n++;
    }
    return n;
}

static void expect_numbers(const char *source, size_t n_messages, size_t n_numbers) {
    json_t *messages = number_messages(n_messages);
    chat_text text = render(source, &(chat_input){.messages = messages});
    EXPECT_EQ(count_numbers(&text), n_numbers);
    chat_text_deinit(&text);
    json_decref(messages);
}

#define ALL(list) "{% for m in " list " %}{{ m.content }};{% endfor %}"

static void six_hundred_messages_are_counted(void) {
    expect_numbers(ALL("messages"), 600, 588);
    expect_numbers(LLAMA_3, 600, 588);
    expect_numbers(CHATML, 600, 588);
    expect_numbers("{{ messages|map(attribute='content')|join(';') }}", 5000, 4900);
    // with gaps, and with the last ones again
    expect_numbers(ALL("messages[::100]"), 600, 6);
    expect_numbers(ALL("messages") ALL("messages[500:]"), 600, 588 + 98);
}

/* So many have marks that differ, so the order is of no account. */
static void few_messages_may_come_in_any_order(void) {
    expect_numbers(ALL("messages[::-1]"), CHAT_MESSAGES_EXACT, 249);
    expect_numbers(ALL("messages[200:]") ALL("messages") ALL("messages[3:5]"), CHAT_MESSAGES_EXACT,
                   53 + 249 + 2);
    expect_numbers(ALL("messages[-1:]"), CHAT_MESSAGES_EXACT, 1);
}

/* As documented: 599 steps back are taken for the nearest steps that fit, and the index is always
 * one of a message. */
static void a_long_jump_is_taken_for_a_short_one(void) {
    json_t *messages = number_messages(600);
    chat_text text =
        render("{{ messages[599].content }};{{ messages[0].content }}", // 599 % 254 == 91
               &(chat_input){.messages = messages});
    EXPECT_STR(text.text, "<599>;<0>");
    EXPECT_EQ(text.n_spans, 3);
    EXPECT_EQ(text.messages[0], 91);
    EXPECT_EQ(text.messages[2], 0);
    chat_text_deinit(&text);
    text =
        render(ALL("messages") "|{{ messages[0].content }}", &(chat_input){.messages = messages});
    EXPECT_EQ(text.messages[text.n_spans - 1], 508); // 2 * 254, the nearest to 599
    chat_text_deinit(&text);
    json_decref(messages);
}

/* ---- the message at a byte ---- */

static uint32_t message_of(const chat_text *t, const char *part) {
    const char *at = strstr(t->text, part);
    EXPECT(at != NULL);
    return at == NULL ? 0 : chat_text_message_at(t, (size_t)(at - t->text));
}

static void a_header_belongs_to_its_message(void) {
    json_t *messages = read_json(THREE);
    json_t *tools = read_json("[\"tool\"]");
    chat_text text = render("<s>tools: {{ tools[0] }} end{% for m in messages %}<|{{ m.role }}|>\n"
                            "{{ m.content }}<|end{{ loop.index0 }}|>{% endfor %}<|assistant|>",
                            &(chat_input){.messages = messages, .tools = tools});
    EXPECT_STR(text.text, "<s>tools: tool end<|system|>\nbe<|end0|><|user|>\nhi<|end1|>"
                          "<|assistant|>\n yo <|end2|><|assistant|>");
    EXPECT_EQ(message_of(&text, "<s>"), 0);
    EXPECT_EQ(message_of(&text, "tool end"), CHAT_NO_MESSAGE);
    EXPECT_EQ(message_of(&text, " end<"), 0);
    EXPECT_EQ(message_of(&text, "system"), 0);
    EXPECT_EQ(message_of(&text, "|>\nbe"), 0);
    EXPECT_EQ(message_of(&text, "e<|end0"), 0);
    EXPECT_EQ(message_of(&text, "<|end0"), 1);
    EXPECT_EQ(message_of(&text, "<|user"), 1);
    EXPECT_EQ(message_of(&text, "hi"), 1);
    EXPECT_EQ(message_of(&text, " yo "), 2);
    EXPECT_EQ(message_of(&text, "<|end2"), CHAT_NO_MESSAGE);
    EXPECT_EQ(chat_text_message_at(&text, text.n - 1), CHAT_NO_MESSAGE);
    EXPECT_EQ(chat_text_message_at(&text, text.n), CHAT_NO_MESSAGE);
    EXPECT_EQ(chat_text_message_at(&text, SIZE_MAX), CHAT_NO_MESSAGE);
    EXPECT_EQ(chat_text_message_at(&(chat_text){0}, 0), CHAT_NO_MESSAGE);
    chat_text_deinit(&text);
    json_decref(messages);
    json_decref(tools);
}

/* ---- the tokenizer, and the limits ---- */

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Contents of merges, special tokens and their halves. */
static json_t *random_messages(uint64_t *state) {
    static const char *const words[] = {"he",      "ll", "<|im_end|>", "<|im_",
                                        "start|>", "<",  " ",          "o"};
    json_t *messages = json_array();
    for (size_t n = 1 + next_random(state) % 8; n > 0; n--) {
        char content[64] = "";
        for (size_t k = next_random(state) % 5; k > 0; k--)
            strcat(content, words[next_random(state) % INFERD_COUNT(words)]);
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "user", "content", content));
    }
    return messages;
}

/* The spans that differ in `specials` only. */
static size_t merge_spans(const chat_text *t, tok_span *out) {
    size_t n = 0;
    for (size_t i = 0; i < t->n_spans; i++)
        if (n > 0 && out[n - 1].specials == t->spans[i].specials)
            out[n - 1].n += t->spans[i].n;
        else
            out[n++] = t->spans[i];
    return n;
}

/* Returns how many spans were merged. */
static size_t expect_same_ids(const tokenizer *tok, const chat_text *t) {
    tok_ids ids = {0}, wanted = {0};
    tok_span *merged = malloc((t->n_spans + 1) * sizeof *merged);
    bytes text = {t->text, t->n};
    if (merged == NULL) return 0;
    size_t n_merged = merge_spans(t, merged);
    EXPECT_EQ(tok_encode(tok, text, t->spans, t->n_spans, NULL, &ids, NULL), INFERD_OK);
    EXPECT_EQ(tok_encode(tok, text, merged, n_merged, NULL, &wanted, NULL), INFERD_OK);
    EXPECT_EQ(ids.n, wanted.n);
    EXPECT(ids.n == wanted.n &&
           (ids.n == 0 || memcmp(ids.ids, wanted.ids, ids.n * sizeof *ids.ids) == 0));
    free(merged);
    tok_ids_deinit(&ids);
    tok_ids_deinit(&wanted);
    return t->n_spans - n_merged;
}

static void more_spans_give_the_same_ids(void) {
    static const char *const sources[] = {
        CHATML, LLAMA_3, "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ messages|tojson }}<|im_end|>{{ messages|map(attribute='content')|join('<') }}"};
    tiny_words w;
    words_bpe(&w, "smollm", (const char *[]){"h e", "l l", "he ll", "| >", NULL});
    words_add(&w, "<|im_start|>", WORD_CONTROL);
    words_add(&w, "<|im_end|>", WORD_CONTROL);
    tokenizer *tok = words_open(&w);
    uint64_t seed = 42, state = seed;
    size_t n_merged = 0;
    int failures = test_failures;
    for (int i = 0; i < 400; i++) {
        json_t *messages = random_messages(&state);
        chat_text text = render(sources[i % 4], &(chat_input){.messages = messages});
        n_merged += expect_same_ids(tok, &text);
        chat_text_deinit(&text);
        json_decref(messages);
    }
    if (test_failures > failures) printf("seed %llu\n", (unsigned long long)seed);
    EXPECT(n_merged > 100);
    tok_close(tok);
}

/* A prompt near the limit of the output stays within the limit of memory. */
static void eight_mebibytes_fit_into_the_memory(void) {
    enum { CONTENT_BYTES = 4000, MESSAGES = 2070 };
    static const char *const sources[] = {CHATML, LLAMA_3};
    char content[CONTENT_BYTES + 1];
    json_t *messages = json_array();
    memset(content, 'a', CONTENT_BYTES);
    content[CONTENT_BYTES] = 0;
    for (size_t i = 0; i < MESSAGES; i++)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "user", "content", content));
    for (size_t i = 0; i < INFERD_COUNT(sources); i++) {
        chat_text text = render(sources[i], &(chat_input){.messages = messages});
        EXPECT(text.n > (size_t)MESSAGES * CONTENT_BYTES);
        EXPECT_EQ(chat_text_message_at(&text, text.n - 30), MESSAGES - 1);
        chat_text_deinit(&text);
    }
    json_decref(messages);
}

/* The server's text in a message: its control tokens are tokens. */
static void trusted_parts_are_of_the_template(void) {
    static const char said[] = "a\xff<x>\xff"
                               "b<x>\xff<y>\xff";
    json_t *messages = read_json("[{\"role\":\"user\"}]");
    json_object_set_new(json_array_get(messages, 0), "content",
                        json_stringn_nocheck(said, strlen(said)));
    expect_spans(__LINE__, "{{ messages[0].content | upper }}.", (chat_input){.messages = messages},
                 "[0]A[T]<X>[0]B<X>[T]<Y>.");
}

static const test_case cases[] = {
    TEST(each_template_names_the_message),        TEST(equal_and_empty_contents_are_told_apart),
    TEST(content_parts_belong_to_their_message),  TEST(calls_belong_to_their_message),
    TEST(the_rest_of_a_request_is_of_no_message), TEST(every_operation_keeps_the_message),
    TEST(the_end_is_cut_from_the_spans_too),      TEST(six_hundred_messages_are_counted),
    TEST(few_messages_may_come_in_any_order),     TEST(a_long_jump_is_taken_for_a_short_one),
    TEST(a_header_belongs_to_its_message),        TEST(more_spans_give_the_same_ids),
    TEST(eight_mebibytes_fit_into_the_memory),    TEST(trusted_parts_are_of_the_template),
};

TEST_MAIN(cases)
