/* test_status.c - what a failure says is one line of printable text. */
#include "inferd/status.h"

#include "test.h"

static void a_sentence_gets_words_in_front(void) {
    inferd_err err = {0};
    EXPECT_EQ(inferd_fail(&err, INFERD_EFORMAT, "key %s is %d", "a.b", 7), INFERD_EFORMAT);
    inferd_context(&err, "opening %s", "x.gguf");
    EXPECT(strcmp(err.text, "opening x.gguf: key a.b is 7") == 0);
    EXPECT_EQ(err.status, INFERD_EFORMAT);
}

/* Seen with a model file whose architecture was "ll\033ma": the name went to the terminal as it
 * was. */
static void quoted_names_cannot_steer_a_terminal_or_break_a_line(void) {
    inferd_err err = {0};
    inferd_fail(&err, INFERD_EFORMAT, "\"%s\"", "ll\033[2Jma\r\n\x7f\xc3\xa9");
    EXPECT(strcmp(err.text, "\"ll [2Jma   \xc3\xa9\"") == 0);
    inferd_context(&err, "a\tb");
    EXPECT(strcmp(err.text, "a b: \"ll [2Jma   \xc3\xa9\"") == 0);
}

/* A terminal obeys U+009b as it obeys ESC [; its bytes may be parts of other characters. */
static void controls_of_two_bytes_are_blanked(void) {
    char text[] = "a\xc2\x9b"
                  "31m\xc2\x80\xc2\x9f\xc2\xa0\xc3\x9b\xe2\x9b\x80\xc2";
    inferd_blank_controls(text);
    EXPECT(strcmp(text, "a  31m    \xc2\xa0\xc3\x9b\xe2\x9b\x80\xc2") == 0);
}

static void a_long_sentence_is_cut(void) {
    inferd_err err = {0};
    inferd_fail(&err, INFERD_EINVAL, "%01000d", 1);
    EXPECT_EQ(strlen(err.text), INFERD_ERR_TEXT_BYTES - 1);
    inferd_context(&err, "%0470d", 1);
    EXPECT_EQ(strlen(err.text), INFERD_ERR_TEXT_BYTES - 1);
    inferd_context(&err, "%01000d", 1);
    EXPECT_EQ(strlen(err.text), INFERD_ERR_TEXT_BYTES - 1);
    EXPECT_EQ(inferd_fail(NULL, INFERD_EBUSY, "no listener"), INFERD_EBUSY);
    inferd_context(NULL, "no listener");
}

static const test_case cases[] = {
    TEST(a_sentence_gets_words_in_front),
    TEST(quoted_names_cannot_steer_a_terminal_or_break_a_line),
    TEST(controls_of_two_bytes_are_blanked),
    TEST(a_long_sentence_is_cut),
};
TEST_MAIN(cases)
