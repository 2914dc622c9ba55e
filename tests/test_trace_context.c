/* test_trace_context.c - traceparent and tracestate are taken over as W3C Trace Context says. */
#include "test.h"
#include "trace_context.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static bytes text(const char *s) {
    return (bytes){s, strlen(s)};
}

static void a_valid_header_is_taken_over(void) {
    trace_context c;
    EXPECT(trace_context_read(text("00-" TRACE "-" PARENT "-01"), &c));
    EXPECT_EQ(c.trace_id[0], 0x4b);
    EXPECT_EQ(c.trace_id[15], 0x36);
    EXPECT_EQ(c.parent_id[1], 0xf0);
    EXPECT_EQ(c.parent_id[7], 0xb7);
    EXPECT_EQ(c.flags, TRACE_SAMPLED);
    EXPECT_STR(c.state, "");
    EXPECT(trace_context_read(text("00-" TRACE "-" PARENT "-00"), &c) && c.flags == 0);
    EXPECT(trace_context_read(text("00-" TRACE "-" PARENT "-ff"), &c) && c.flags == TRACE_SAMPLED);
    /* A later version may have more. */
    EXPECT(trace_context_read(text("cc-" TRACE "-" PARENT "-01-what-comes"), &c));
    EXPECT(trace_context_read(text("01-" TRACE "-" PARENT "-01"), &c));
}

static void a_header_that_breaks_a_rule_is_not_used(void) {
    static const char *const wrong[] = {
        "",
        "00",
        "00-" TRACE "-" PARENT,                              // no flags
        "00-" TRACE "-" PARENT "-1",                         // half of them
        "00-" TRACE "-" PARENT "-01-more",                   // of version 0
        "00-" TRACE "-" PARENT "-01 ",                       //
        "01-" TRACE "-" PARENT "-01.more",                   //
        "ff-" TRACE "-" PARENT "-01",                        // a version that is not allowed
        "0G-" TRACE "-" PARENT "-01",                        //
        "00-00000000000000000000000000000000-" PARENT "-01", // ids of zeros
        "00-" TRACE "-0000000000000000-01",                  //
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01", // upper case
        "00-" TRACE "-" PARENT "-0x",                        //
        "00_" TRACE "-" PARENT "-01",                        //
        "00-" TRACE "_" PARENT "-01",                        //
        "00-" TRACE "-" PARENT "_01",                        //
        "00-4bf92f3577b34da6a3ce929d0e0e473-" PARENT "-011", //
    };
    trace_context c, none = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (trace_context_read(text(wrong[i]), &c)) printf("taken: %s\n", wrong[i]);
        EXPECT(!trace_context_read(text(wrong[i]), &c));
        EXPECT(memcmp(&c, &none, sizeof c) == 0);
    }
    EXPECT(!trace_context_read((bytes){0}, &c));
}

static void a_state_is_a_list_of_keys_and_values(void) {
    static const char *const right[] = {
        "rojo=00f067aa0ba902b7",
        "rojo=1,congo=t61rcWkgMzE",
        "a=1 , b=2",
        "a=1,,b=2,",
        "fw529a3039@dt=FfYI",
        "0a=1",
        "a=x y",
        "a/b*c-d_e=~!",
    };
    static const char *const wrong[] = {
        "",      " ",       ",,",     "a",           "=1",   "a=",   "A=1",
        "a b=1", "a=1,a=2", "a=\x01", "a=1\xc3\xa4", "@a=1", "a=b=", "a=1,b",
    };
    trace_context c = {0};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        EXPECT(trace_context_read_state(text(right[i]), &c));
        EXPECT_STR(c.state, right[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (trace_context_read_state(text(wrong[i]), &c)) printf("taken: %s\n", wrong[i]);
        EXPECT(!trace_context_read_state(text(wrong[i]), &c));
        EXPECT_STR(c.state, "");
    }
    EXPECT(trace_context_read_state(text("\t a=1 "), &c));
    EXPECT_STR(c.state, "a=1");
}

static void a_state_has_bounds(void) {
    char list[1024] = "";
    trace_context c = {0};
    for (int i = 0; i < 32; i++) sprintf(list + strlen(list), "k%d=1,", i);
    EXPECT(trace_context_read_state(text(list), &c));
    strcat(list, "last=1");
    EXPECT(!trace_context_read_state(text(list), &c)); // 33 members
    memset(list, 'v', sizeof list);
    memcpy(list, "k=", 2);
    list[2 + 256] = 0;
    EXPECT(trace_context_read_state(text(list), &c));
    list[2 + 256] = 'v';
    list[2 + 257] = 0;
    EXPECT(!trace_context_read_state(text(list), &c)); // a value of 257
    memset(list, 'k', 257);
    memcpy(list + 256, "=1", 3);
    EXPECT(trace_context_read_state(text(list), &c));
    memset(list, 'k', 258);
    memcpy(list + 257, "=1", 3);
    EXPECT(!trace_context_read_state(text(list), &c)); // a key of 257
    memset(list, ' ', sizeof list);
    memcpy(list, "a=1,", 4);
    memcpy(list + 509, "b=2", 4);
    EXPECT(trace_context_read_state(text(list), &c)); // 512 bytes
    memcpy(list + 509, " b=2", 5);
    EXPECT(!trace_context_read_state(text(list), &c));
}

/* The second header was once lost. */
static void several_states_are_one_list(void) {
    static char half[TRACE_STATE_BYTES / 2 + 1] = "b=";
    const bytes two[] = {text("a=1,c=2"), text("b=2 ")}, gaps[] = {text(""), text("a=1"), {0}};
    const bytes twice[] = {text("a=1"), text("a=2")}, wrong[] = {text("a=1"), text("B=2")};
    trace_context c = {0};
    EXPECT(trace_context_read_states(two, 2, &c));
    EXPECT_STR(c.state, "a=1,c=2,b=2");
    EXPECT(trace_context_read_states(two, 1, &c));
    EXPECT_STR(c.state, "a=1,c=2");
    EXPECT(trace_context_read_states(gaps, 3, &c));
    EXPECT_STR(c.state, "a=1");
    EXPECT(!trace_context_read_states(twice, 2, &c) && c.state[0] == 0);
    EXPECT(!trace_context_read_states(wrong, 2, &c) && c.state[0] == 0);
    EXPECT(!trace_context_read_states(NULL, 0, &c));
    memset(half + 2, 'v', sizeof half - 3); // 256 bytes
    const bytes full[] = {text(half), {half, 0}, text("a=1")};
    char other[256];
    memcpy(other, half, sizeof other);
    other[0] = 'a';
    bytes long_ones[] = {text(half), {other, 255}};
    EXPECT(trace_context_read_states(full, 3, &c));
    EXPECT_EQ(strlen(c.state), 256 + 1 + 3);
    EXPECT(trace_context_read_states(long_ones, 2, &c)); // 512 bytes with the comma
    EXPECT_EQ(strlen(c.state), TRACE_STATE_BYTES);
    long_ones[1].n = 256;
    EXPECT(!trace_context_read_states(long_ones, 2, &c));
}

static void ids_are_random_and_a_ratio_is_kept(void) {
    unsigned char a[TRACE_ID_BYTES], b[TRACE_ID_BYTES];
    EXPECT(trace_id_make(a, sizeof a) && trace_id_make(b, sizeof b));
    EXPECT(memcmp(a, b, sizeof a) != 0);
    int n = 0;
    for (int i = 0; i < 10000; i++) {
        EXPECT(trace_id_make(a, sizeof a));
        EXPECT(!trace_id_is_sampled(a, 0) && trace_id_is_sampled(a, 1));
        n += trace_id_is_sampled(a, 0.25);
    }
    EXPECT(n > 2000 && n < 3000); // more than ten times its deviation of 43
}

static const test_case cases[] = {
    TEST(a_valid_header_is_taken_over),         TEST(a_header_that_breaks_a_rule_is_not_used),
    TEST(a_state_is_a_list_of_keys_and_values), TEST(a_state_has_bounds),
    TEST(several_states_are_one_list),          TEST(ids_are_random_and_a_ratio_is_kept),
};
TEST_MAIN(cases)
