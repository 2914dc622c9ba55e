/* test_run_commands.c - what a typed line of a chat means. */
#include "test.h"

#include "run_commands.h"

static char refusal[RUN_REFUSAL_BYTES];

static run_command read_line(const char *typed, const char **out) {
    memset(refusal, 'x', sizeof refusal);
    return run_command_read(typed, refusal, out);
}

static void words_with_a_slash_are_commands(void) {
    const char *out;
    EXPECT_EQ(read_line("/help", &out), RUN_HELP);
    EXPECT_EQ(read_line("/clear", &out), RUN_CLEAR);
    EXPECT_EQ(read_line("/stats \t", &out), RUN_STATS);
    EXPECT_EQ(read_line("/quit", &out), RUN_QUIT);
    for (const char *p = run_commands_help; (p = strstr(p, "  /")) != NULL; p += 3) {
        char word[16] = {0};
        memcpy(word, p + 2, strcspn(p + 2, " "));
        if (word[1] != '/') EXPECT(read_line(word, &out) < RUN_REFUSED && out == word);
    }
}

static void other_text_is_a_message_as_it_is(void) {
    const char *out;
    EXPECT_EQ(read_line("hello", &out), RUN_MESSAGE);
    EXPECT_STR(out, "hello");
    EXPECT_EQ(read_line("  /help", &out), RUN_MESSAGE);
    EXPECT_STR(out, "  /help");
    EXPECT_EQ(read_line("//help", &out), RUN_MESSAGE);
    EXPECT_STR(out, "/help");
    EXPECT_EQ(read_line("///", &out), RUN_MESSAGE);
    EXPECT_STR(out, "//");
    EXPECT_EQ(read_line("", &out), RUN_EMPTY);
    EXPECT_EQ(read_line(" \t ", &out), RUN_EMPTY);
}

static void unknown_commands_are_refused_with_the_nearest(void) {
    const char *out;
    EXPECT_EQ(read_line("/hlep", &out), RUN_REFUSED);
    EXPECT(strncmp(out, "/hlep is not a command; did you mean /help?; /help lists", 56) == 0);
    EXPECT_EQ(read_line("/etc/passwd is a file", &out), RUN_REFUSED);
    EXPECT(strncmp(out, "/etc/passwd is not a command; /help lists", 41) == 0);
    EXPECT_EQ(read_line("/", &out), RUN_REFUSED);
    EXPECT(strncmp(out, "/ is not a command; ", 20) == 0);
    EXPECT_EQ(read_line("/clear it", &out), RUN_REFUSED);
    EXPECT_STR(out, "/clear takes no text behind it");
}

static void a_long_word_is_cut_in_the_sentence(void) {
    const char *out;
    char typed[3000];
    memset(typed, 'q', sizeof typed);
    typed[0] = '/';
    typed[sizeof typed - 1] = 0;
    EXPECT_EQ(read_line(typed, &out), RUN_REFUSED);
    EXPECT(strstr(out, "qqq... is not a command; /help") != NULL);
    EXPECT(strlen(out) < RUN_REFUSAL_BYTES);
}

static void a_line_with_a_backslash_at_its_end_goes_on(void) {
    buf typed = {0};
    EXPECT(run_line_add(&typed, "one \\"));
    EXPECT(run_line_add(&typed, "\\"));
    EXPECT(!run_line_add(&typed, "two \\ three"));
    EXPECT_STR(buf_cstr(&typed), "one \n\ntwo \\ three");
    buf_deinit(&typed);
    EXPECT(!run_line_add(&typed, ""));
    EXPECT_STR(buf_cstr(&typed), "");
    buf_deinit(&typed);
}

static const test_case cases[] = {
    TEST(words_with_a_slash_are_commands),
    TEST(other_text_is_a_message_as_it_is),
    TEST(unknown_commands_are_refused_with_the_nearest),
    TEST(a_long_word_is_cut_in_the_sentence),
    TEST(a_line_with_a_backslash_at_its_end_goes_on),
};
TEST_MAIN(cases)
