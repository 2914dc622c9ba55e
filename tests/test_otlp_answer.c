/* test_otlp_answer.c - rejected spans are read from a collector's answer, and nothing from bytes
 * that are no answer. */
#include "otlp_answer.h"
#include "test.h"

/* In a block of its own, so that a sanitizer sees a byte read past it. */
static bool read_text(const char *text, size_t n, otlp_answer *out) {
    char *block = malloc(n + (n == 0));
    if (n > 0) memcpy(block, text, n);
    bool fine = otlp_answer_read((bytes){block, n}, out);
    free(block);
    return fine;
}
#define READ(text, out) read_text(text, sizeof(text) - 1, out)

/* What opentelemetry-proto writes for rejected_spans=300, error_message="quota". */
static void a_partial_success_has_a_number_and_a_text(void) {
    otlp_answer a;
    EXPECT(READ("\x0a\x0a\x08\xac\x02\x12\x05quota", &a));
    EXPECT_EQ(a.n_rejected, 300);
    EXPECT_STR(a.message, "quota");
    EXPECT(READ("", &a) && a.n_rejected == 0); // all were taken
    EXPECT_STR(a.message, "");
    EXPECT(READ("\x0a\x00", &a) && a.n_rejected == 0);
    EXPECT(READ("\x0a\x06\x12\x04slow", &a) && a.n_rejected == 0); // a warning
    EXPECT_STR(a.message, "slow");
}

static void fields_of_later_versions_are_skipped(void) {
    otlp_answer a;
    EXPECT(READ("\x10\x05\x19\x01\x02\x03\x04\x05\x06\x07\x08\x1a\x03xyz\x25\x01\x02\x03\x04"
                "\x0a\x06\x18\x01\x08\x02\x22\x00",
                &a));
    EXPECT_EQ(a.n_rejected, 2);
    EXPECT(READ("\x08\x05\x0a\x02\x0a\x00", &a) && a.n_rejected == 0); // numbers of other types
    EXPECT(READ("\x0a\x02\x08\x02\x0a\x03\x12\x01x", &a));             // merged
    EXPECT(a.n_rejected == 2 && strcmp(a.message, "x") == 0);
    EXPECT(READ("\x0a\x04\x08\x02\x08\x03", &a) && a.n_rejected == 3); // the last one counts
}

static void other_bytes_say_nothing(void) {
    otlp_answer a;
    EXPECT(!READ("OK", &a));
    EXPECT(!READ("{\"partialSuccess\":{}}", &a));
    EXPECT(!READ("<html>", &a));
    EXPECT(!READ("\x0a", &a));                     // no length
    EXPECT(!READ("\x0a\x05\x08\x02", &a));         // a length beyond the end
    EXPECT(!READ("\x0a\x02\x08\x02\x0a\x09", &a)); // behind a whole field
    EXPECT_EQ(a.n_rejected, 0);
    EXPECT(!READ("\x0a\x02\x08\x82", &a));                      // a number that is cut off
    EXPECT(!READ("\x0a\x02\x12\x04slow", &a));                  // the inner one is longer
    EXPECT(!READ("\x19\x01\x02", &a) && !READ("\x25\x01", &a)); // fixed ones
    EXPECT(!READ("\x0b\x0c", &a));                              // a group
    EXPECT(!READ("\x02\x00", &a));                              // field 0
    EXPECT(!READ("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &a));
    EXPECT(!READ("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", &a)); // 65 bits
    EXPECT(!READ("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &a));
    EXPECT(READ("\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &a)); // -1
    EXPECT_EQ(a.n_rejected, 0);
}

static void a_message_is_one_line_and_has_a_bound(void) {
    otlp_answer a;
    char text[4 + 300];
    EXPECT(READ("\x0a\x0c\x08\x01\x12\x08"
                "a\x1b[\n\x7f\xc2\x9b\x00",
                &a));
    EXPECT_STR(a.message, "a [     ");
    memcpy(text, "\x0a\xaf\x02\x12\xac\x02", 6); // 303 bytes, of them a text of 300
    memset(text + 6, 'x', sizeof text - 6);
    EXPECT(!read_text(text, sizeof text, &a)); // two bytes are missing
    memcpy(text, "\x0a\x84\x01\x12\x81\x01", 6);
    memcpy(text + 6 + 126, "\xc3\xa4z", 3); // a character over the bound of 127 bytes
    EXPECT(read_text(text, 6 + 129, &a));
    EXPECT_EQ(strlen(a.message), 126);
    EXPECT_EQ(a.message[125], 'x');
}

static const test_case cases[] = {
    TEST(a_partial_success_has_a_number_and_a_text),
    TEST(fields_of_later_versions_are_skipped),
    TEST(other_bytes_say_nothing),
    TEST(a_message_is_one_line_and_has_a_bound),
};
TEST_MAIN(cases)
