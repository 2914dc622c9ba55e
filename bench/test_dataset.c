/* test_dataset.c - data sets, and conversations made of them. */
#include "../tests/test.h"

#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dataset.h"
#include "spec_value.h"
#include "talk.h"

static inferd_status read_as(dataset *d, const char *format, const char *text, inferd_err *err) {
    char spec[64];
    int fd = memfd_create("dataset", 0);
    EXPECT(fd >= 0);
    snprintf(spec, sizeof spec, "%s:/proc/self/fd/%d", format, fd);
    EXPECT_EQ(write(fd, text, strlen(text)), strlen(text));
    inferd_status s = dataset_read(d, spec, err);
    close(fd);
    return s;
}

static const char CHATS[] =
    "\xef\xbb\xbf [ {\"id\":\"}]\\\"\", \"conversations\":[{\"from\":\"system\",\"value\":\"be "
    "brief\"},"
    "{\"from\":\"human\",\"value\":\"one two\"},{\"from\":\"gpt\",\"value\":\"three \\u00e4 "
    "four\"},"
    "{\"from\":\"human\",\"value\":\"five\"},{\"from\":\"gpt\",\"value\":\"six\"},"
    "{\"from\":\"gpt\",\"value\":\"more\"}]},\n"
    "{\"conversations\":[]}, {\"conversations\":[{\"from\":\"gpt\",\"value\":\"to nothing\"}]},"
    "{\"conversations\":[{\"from\":\"user\",\"value\":\"a [b] {c\\\\\"},"
    "{\"from\":\"human\",\"value\":\"again\"}]} ]\n";

static void conversations_are_read(void) {
    dataset d;
    inferd_err err = {0};
    EXPECT_EQ(read_as(&d, "sharegpt", CHATS, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT_EQ(d.n, 2);
    EXPECT_EQ(d.n_skipped, 2);
    EXPECT_EQ(d.entries[0].n_turns, 2);
    EXPECT_STR(dataset_text(&d, d.entries[0].system), "be brief");
    EXPECT_STR(dataset_text(&d, d.turns[0].user), "one two");
    EXPECT_STR(dataset_text(&d, d.turns[0].answer), "three \xc3\xa4 four");
    EXPECT_STR(dataset_text(&d, d.turns[1].answer), "six");
    EXPECT_EQ(d.entries[1].n_turns, 2);
    EXPECT_STR(dataset_text(&d, d.entries[1].system), "");
    EXPECT_STR(dataset_text(&d, d.turns[2].user), "a [b] {c\\");
    EXPECT_STR(dataset_text(&d, d.turns[2].answer), "");
    dataset_deinit(&d);
    EXPECT_EQ(read_as(&d, "text", "first\r\n\n second prompt\nthird", &err), INFERD_OK);
    EXPECT_EQ(d.n, 3);
    EXPECT_STR(dataset_text(&d, d.turns[0].user), "first");
    EXPECT_STR(dataset_text(&d, d.turns[2].user), "third");
    dataset_deinit(&d);
    EXPECT_EQ(read_as(&d, "text",
                      "\xef\xbb\xbf"
                      "first\n\xef\xbb\xbf"
                      "b\n",
                      &err),
              INFERD_OK);
    EXPECT_EQ(d.n, 2);
    EXPECT_STR(dataset_text(&d, d.turns[0].user), "first");
    EXPECT_STR(dataset_text(&d, d.turns[1].user), "\xef\xbb\xbf"
                                                  "b"); // of the text
    dataset_deinit(&d);
}

static void bad_entries_are_named_by_index(void) {
    static const char GOOD[] = "{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"}]}";
    static const char *const BAD[][2] = {
        {"7", "entry 1: not an object"},
        {"{\"conversations\":7}", "entry 1: \"conversations\" is no array"},
        {"{}", "entry 1: \"conversations\" is no array"},
        {"{\"conversations\":[7]}", "entry 1: conversations[0] is no object"},
        {"{\"conversations\":[{\"from\":\"human\"}]}", "entry 1: conversations[0] is no object"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":7}]}", "entry 1: conversations[0]"},
        {"{\"conversations\":[{\"from\":\"cat\",\"value\":\"x\"}]}",
         "conversations[0].from is \"cat\""},
        {"{\"conversations\":[}]", "entry 1: bad JSON"},
        {"{\"conversations\":[", "entry 1: the file ends in it"},
        {"{\"a\":\"\\", "entry 1: the file ends in it"},
        {"{} {}", "entry 1"},
        {"", "entry 1: not an object"},
    };
    dataset d;
    inferd_err err = {0};
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++) {
        char text[512];
        snprintf(text, sizeof text, "[%s,%s", GOOD, BAD[i][0]);
        EXPECT_EQ(read_as(&d, "sharegpt", text, &err), INFERD_EFORMAT);
        if (strstr(err.text, BAD[i][1]) == NULL) EXPECT_STR(err.text, BAD[i][1]);
    }
    static const char *const WHOLE[][3] = {
        {"sharegpt", "{}", "no JSON array"},
        {"sharegpt", "[]", "no prompts"},
        {"sharegpt", "[{\"conversations\":[]}]", "no prompts"},
        {"sharegpt", "[{\"conversations\":[]}] x", "more follows"},
        {"sharegpt", "[{\"conversations\":[]} {}", "entry 0: neither a comma nor ]"},
        {"text", "\n\n", "no prompts"},
        {"text", "a\n\xff\n", "line 2 is no UTF-8"},
    };
    for (size_t i = 0; i < INFERD_COUNT(WHOLE); i++) {
        EXPECT_EQ(read_as(&d, WHOLE[i][0], WHOLE[i][1], &err), INFERD_EFORMAT);
        if (strstr(err.text, WHOLE[i][2]) == NULL) EXPECT_STR(err.text, WHOLE[i][2]);
    }
    EXPECT_EQ(dataset_read(&d, "/nowhere.json", &err), INFERD_EIO);
    EXPECT_EQ(dataset_read(&d, "/nowhere.jsonl", &err), INFERD_EUNSUPPORTED);
    EXPECT_EQ(dataset_read(&d, "text:/nowhere.jsonl", &err), INFERD_EIO);
}

/* Cut and changed bytes are refused or read, and never more than they are. */
static void any_bytes_can_be_read(void) {
    rng random = rng_make(3, 0, 0);
    size_t n = sizeof CHATS - 1;
    for (size_t i = 0; i < n + 1500; i++) {
        char text[sizeof CHATS];
        dataset d;
        inferd_err err = {0};
        memcpy(text, CHATS, sizeof CHATS);
        if (i < n)
            text[i] = 0;
        else
            for (size_t k = 0; k < 1 + i % 3; k++)
                text[rng_below(&random, n)] = "\\\"[]{},:x\x80\n"[rng_below(&random, 11)];
        if (read_as(&d, i % 2 == 0 ? "sharegpt" : "text", text, &err) != INFERD_OK) continue;
        EXPECT(d.n > 0 && d.text.n <= n + 8);
        dataset_deinit(&d);
    }
}

static void every_entry_comes_once_before_any_comes_twice(void) {
    for (size_t n = 1; n < 60; n++) {
        dataset d = {.n = n};
        for (uint64_t seed = 0; seed < 5; seed++) {
            int seen[64] = {0};
            for (uint64_t i = 0; i < 2 * n; i++) seen[dataset_draw(&d, seed, i)]++;
            for (size_t k = 0; k < n; k++) EXPECT_EQ(seen[k], 2);
        }
    }
    dataset d = {.n = 1000};
    int n_same = 0;
    for (uint64_t i = 0; i < 100; i++) n_same += dataset_draw(&d, 1, i) == dataset_draw(&d, 2, i);
    EXPECT(n_same < 10);
}

static json_t *messages_of(buf *body) {
    json_t *root = json_loads(buf_cstr(body), JSON_REJECT_DUPLICATES, NULL);
    json_t *list = json_incref(json_object_get(root, "messages"));
    json_decref(root);
    return list;
}

static const char *content(const json_t *messages, size_t i, const char *role) {
    const json_t *m = json_array_get(messages, i);
    EXPECT_STR(json_string_value(json_object_get(m, "role")), role);
    return json_string_value(json_object_get(m, "content"));
}

static void a_turn_has_the_answers_of_the_model(void) {
    bench_class c = {.tokens_per_word = 1, .is_chat = true, .turns = {.lo = 5, .hi = 5}};
    inferd_err err = {0};
    buf body;
    buf_init(&body, 0);
    EXPECT_EQ(value_choices(&c.models, "m", NULL), INFERD_OK);
    EXPECT_EQ(read_as(&c.data, "sharegpt", CHATS, &err), INFERD_OK);
    c.output.from_dataset = true;
    const bench_spec spec = {.classes = &c, .n_classes = 1, .seed = 9};
    decks d;
    decks_init(&d, &spec);
    if (dataset_draw(&c.data, 9, 0) != 0) decks_take(&d, 0); // of the one without a system message
    uint64_t idx = 6;
    talk *t = talk_create(&c, 9, 0, idx, &d);
    EXPECT_EQ(t->n_turns, 2); // as many as the entry has
    request_plan plan = talk_plan(t, &c, 9, 0, idx, (deck_card){1, false});
    EXPECT_EQ(plan.card.entry, 0);
    EXPECT_EQ(plan.n_prompt, 2);
    EXPECT_EQ(plan.n_output, 3);
    c.output.lo = c.output.hi = 77; // the other conversation ends without an answer
    EXPECT_EQ(plan_draw_card(&c, 9, 0, 7, 1, (deck_card){1, false}).n_output, 77);
    EXPECT(talk_answer(t, &plan, &c, "said \"so\"\n", 5));
    plan = talk_plan(t, &c, 9, 0, idx, (deck_card){1, false});
    EXPECT_EQ(plan_prompt_tokens(&plan), 2 + 5 + 1);
    EXPECT(plan_body(&plan, &c, &t->history, &body));
    json_t *list = messages_of(&body);
    EXPECT_EQ(json_array_size(list), 4);
    EXPECT_STR(content(list, 0, "system"), "be brief");
    EXPECT_STR(content(list, 1, "user"), "one two");
    EXPECT_STR(content(list, 2, "assistant"), "said \"so\"\n");
    EXPECT_STR(content(list, 3, "user"), "five");
    EXPECT(!talk_answer(t, &plan, &c, "end", 1));
    json_decref(list);
    talk_destroy(t);
    dataset_deinit(&c.data);
    choices_deinit(&c.models);
    buf_deinit(&body);
}

/* The numbers of lines are multiples of the most turns, or not; conversations have 1 to 4. */
static void no_line_comes_twice_before_all_came_once(void) {
    static const char LINES[] = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn\n";
    for (size_t n_bytes = 2; n_bytes < sizeof LINES; n_bytes += 2) {
        bench_class c = {.tokens_per_word = 1, .is_chat = true, .turns = {.lo = 1, .hi = 4}};
        char text[sizeof LINES] = "";
        inferd_err err = {0};
        int seen[16] = {0};
        uint64_t n_taken = 0;
        memcpy(text, LINES, n_bytes);
        EXPECT_EQ(read_as(&c.data, "text", text, &err), INFERD_OK);
        const bench_spec spec = {.classes = &c, .n_classes = 1, .seed = 3};
        decks d;
        decks_init(&d, &spec);
        for (uint64_t idx = 0; n_taken < 5 * c.data.n; idx++) {
            talk *t = talk_create(&c, 3, 0, idx, &d);
            for (; t->turn < t->n_turns; t->turn++, n_taken++) {
                request_plan plan = talk_plan(t, &c, 3, 0, idx, (deck_card){0});
                EXPECT_EQ(plan.card.is_again, n_taken >= c.data.n);
                buf message;
                buf_init(&message, 0);
                plan_message(&plan, &c, &message);
                int *of = &seen[(buf_cstr(&message)[1] - 'a') & 15];
                EXPECT_EQ(*of, n_taken / c.data.n); // each once per round
                ++*of;
                buf_deinit(&message);
            }
            talk_destroy(t);
        }
        dataset_deinit(&c.data);
    }
}

/* Each class had an order of its own, and so a prompt came from two of them. */
static void classes_share_the_entries_of_a_data_set(void) {
    for (size_t n = 1; n < 40; n++) {
        bench_class classes[4] = {{.turns = {.lo = 1, .hi = 1}}};
        char text[128] = "";
        inferd_err err = {0};
        for (size_t i = 0; i < n; i++) strcat(text, (char[]){(char)('A' + i), '\n', 0});
        for (size_t i = 0; i < 3; i++) // the last one has none
            EXPECT_EQ(read_as(&classes[i].data, "text", i == 1 ? "other\n" : text, &err),
                      INFERD_OK);
        const bench_spec spec = {.classes = classes, .n_classes = 4, .seed = n};
        int seen[64] = {0};
        decks d;
        decks_init(&d, &spec);
        for (uint64_t i = 0; i < 3 * n; i++) { // class 0 takes three times as many as class 2
            deck_card card = decks_take(&d, i % 4 == 3 ? 2 : 0);
            EXPECT_EQ(seen[card.entry & 63]++, i / n);
            EXPECT_EQ(card.is_again, i >= n);
        }
        EXPECT(!decks_take(&d, 1).is_again); // a data set of its own
        EXPECT(decks_take(&d, 1).is_again);
        EXPECT(!decks_take(&d, 3).is_again && decks_take(&d, 3).entry == 0);
        for (size_t i = 0; i < 3; i++) dataset_deinit(&classes[i].data);
    }
}

/* Two servers answer at other times, and get the same requests of each class. */
static void a_class_takes_the_same_entries_whatever_others_take(void) {
    bench_class classes[2] = {{.name = NULL}};
    inferd_err err = {0};
    for (size_t i = 0; i < 2; i++)
        EXPECT_EQ(read_as(&classes[i].data, "text", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n", &err),
                  INFERD_OK);
    const bench_spec spec = {.classes = classes, .n_classes = 2, .seed = 11};
    decks alone, beside;
    decks_init(&alone, &spec);
    decks_init(&beside, &spec);
    for (uint32_t i = 0; i < 4; i++) decks_take(&beside, 1);
    for (uint32_t i = 0; i < 5; i++)
        EXPECT_EQ(decks_take(&alone, 0).entry, decks_take(&beside, 0).entry);
    deck_card left = decks_take(&beside, 0); // its part is used: the last one of the other class
    EXPECT_EQ(left.entry, dataset_draw(&classes[0].data, 11, 9));
    EXPECT(!left.is_again && decks_take(&beside, 1).is_again);
    for (size_t i = 0; i < 2; i++) dataset_deinit(&classes[i].data);
}

static void random_turns_differ_and_share_the_system_message(void) {
    bench_class c = {.tokens_per_word = 1,
                     .is_chat = true,
                     .turns = {.lo = 2, .hi = 4},
                     .prompt = {.lo = 8, .hi = 20},
                     .output = {.lo = 3, .hi = 9},
                     .system_tokens = 12,
                     .think_lo_s = 1,
                     .think_hi_s = 3};
    buf body[2];
    json_t *lists[2];
    int seen[8] = {0};
    EXPECT_EQ(value_choices(&c.models, "a,b,c", NULL), INFERD_OK);
    for (uint64_t i = 0; i < 300; i++) seen[plan_turns(&c, 1, 0, i, (deck_card){0})]++;
    EXPECT(seen[2] > 60 && seen[3] > 60 && seen[4] > 60 && seen[2] + seen[3] + seen[4] == 300);
    for (uint32_t turn = 0; turn < 2; turn++) {
        request_plan plan = plan_draw(&c, 1, 0, 7, turn);
        EXPECT_EQ(plan.model, plan_draw(&c, 1, 0, 7, 0).model);
        buf_init(&body[turn], 0);
        EXPECT(plan_body(&plan, &c, NULL, &body[turn]));
        lists[turn] = messages_of(&body[turn]);
    }
    EXPECT_STR(content(lists[0], 0, "system"), content(lists[1], 0, "system"));
    EXPECT(strcmp(content(lists[0], 1, "user"), content(lists[1], 1, "user")) != 0);
    talk t = {.idx = 7, .turn = 1};
    double think_s = talk_think_s(&t, &c, 1);
    EXPECT(think_s >= 1 && think_s <= 3);
    for (int i = 0; i < 2; i++) {
        json_decref(lists[i]);
        buf_deinit(&body[i]);
    }
    choices_deinit(&c.models);
}

static void times_are_one_or_two(void) {
    double lo, hi;
    EXPECT(value_times(&lo, &hi, "2s-8s", NULL) == INFERD_OK && lo == 2 && hi == 8);
    EXPECT(value_times(&lo, &hi, "500ms", NULL) == INFERD_OK && lo == .5 && hi == .5);
    static const char *const BAD[] = {"", "-", "2-1", "1-", "-1", "x", "1-2-3"};
    for (size_t i = 0; i < INFERD_COUNT(BAD); i++)
        EXPECT_EQ(value_times(&lo, &hi, BAD[i], NULL), INFERD_EINVAL);
}

static const test_case CASES[] = {
    TEST(conversations_are_read),
    TEST(bad_entries_are_named_by_index),
    TEST(any_bytes_can_be_read),
    TEST(every_entry_comes_once_before_any_comes_twice),
    TEST(a_turn_has_the_answers_of_the_model),
    TEST(no_line_comes_twice_before_all_came_once),
    TEST(classes_share_the_entries_of_a_data_set),
    TEST(a_class_takes_the_same_entries_whatever_others_take),
    TEST(random_turns_differ_and_share_the_system_message),
    TEST(times_are_one_or_two),
};
TEST_MAIN(CASES)
