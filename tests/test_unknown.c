/* test_unknown.c - names of fields that a stranger made up, in a header and in the log. */
#include "test.h"

#include "unknown.h"

/* The header of a request with these fields, without its name and its newline. */
static const char *value_of(const char *const *names, size_t n) {
    static char line[UNKNOWN_LINE_BYTES];
    unknown_fields u = {0};
    for (size_t i = 0; i < n; i++) unknown_add(&u, names[i]);
    EXPECT_EQ(u.n, n);
    unknown_line(&u, line);
    size_t length = strlen(line);
    EXPECT(length < UNKNOWN_LINE_BYTES && line[length - 1] == '\n');
    EXPECT(strncmp(line, "x-inferd-ignored: ", 18) == 0);
    line[length - 1] = 0;
    EXPECT(strpbrk(line, "\r\n") == NULL);
    return line + 18;
}

static void a_header_lists_the_names(void) {
    EXPECT_STR(value_of((const char *const[]){"temprature"}, 1), "temprature");
    EXPECT_STR(value_of((const char *const[]){"b", "a.c", "x-y_Z9"}, 3), "b, a.c, x-y_Z9");
    char line[UNKNOWN_LINE_BYTES] = "x";
    unknown_line(&(unknown_fields){0}, line);
    EXPECT_STR(line, "");
}

/* A name with a line break must not become a header, nor two names. */
static void hostile_names_stay_in_their_place(void) {
    EXPECT_STR(value_of((const char *const[]){"a\r\nSet-Cookie: x=1"}, 1),
               "a%0D%0ASet-Cookie%3A%20x%3D1");
    EXPECT_STR(value_of((const char *const[]){"a, b", "%41", "\xc3\xa9", "\x7f\x01"}, 4),
               "a%2C%20b, %2541, %C3%A9, %7F%01");
    EXPECT_STR(value_of((const char *const[]){""}, 1), "%");
}

static void long_and_many_names_are_bounded(void) {
    char name[3000];
    memset(name, 'q', sizeof name);
    name[sizeof name - 1] = 0;
    const char *value = value_of((const char *const[]){name}, 1);
    EXPECT_EQ(strlen(value), 64 + 3);
    EXPECT_STR(value + 62, "qq...");
    const char *many[40];
    for (int i = 0; i < 40; i++) many[i] = "f";
    EXPECT_STR(value_of(many, 40), "f, f, f, f, f, f, f, f, +32");
    for (int i = 0; i < 40; i++) many[i] = name;
    value = value_of(many, 40);
    EXPECT(strlen(value) <= UNKNOWN_VALUE_BYTES && strstr(value, "..., +38") != NULL);
    memset(name, '\n', sizeof name - 1); // three bytes each: the first does not fit, the count does
    EXPECT_STR(value_of((const char *const[]){name, "small"}, 2), "small, +1");
}

/* The log is told each name once, and 256 names at most, whatever is invented. */
static void a_name_is_told_once(void) {
    unknown_names *u = unknown_names_create();
    char name[API_QUOTE_BYTES];
    EXPECT_EQ(unknown_names_add(u, "temprature"), UNKNOWN_NEW);
    EXPECT_EQ(unknown_names_add(u, "temprature"), UNKNOWN_TOLD);
    EXPECT_EQ(unknown_names_add(u, ""), UNKNOWN_NEW);
    EXPECT_EQ(unknown_names_add(u, ""), UNKNOWN_TOLD);
    for (int i = 2; i < UNKNOWN_TOLD_MAX; i++) {
        snprintf(name, sizeof name, "f%d", i);
        EXPECT_EQ(unknown_names_add(u, name), UNKNOWN_NEW);
    }
    EXPECT_EQ(unknown_names_add(u, "one more"), UNKNOWN_FULL);
    EXPECT_EQ(unknown_names_add(u, "one more"), UNKNOWN_TOLD);
    EXPECT_EQ(unknown_names_add(u, "another"), UNKNOWN_TOLD);
    EXPECT_EQ(unknown_names_add(u, "f77"), UNKNOWN_TOLD);
    unknown_names_destroy(u);
}

static const test_case cases[] = {
    TEST(a_header_lists_the_names),
    TEST(hostile_names_stay_in_their_place),
    TEST(long_and_many_names_are_bounded),
    TEST(a_name_is_told_once),
};

int main(int argc, char **argv) {
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
