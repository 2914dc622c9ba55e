/* test_stop.c - stop strings, against a search that looks at the whole text each time. */
#include "test.h"

#include "stop.h"

typedef struct found {
    bool any;
    size_t begin, end;
} found;

static bytes text_of(const char *s) {
    return (bytes){s, strlen(s)};
}

/* The definition: the smallest end; of those, the smallest begin. */
static found search(const char *text, size_t n, const bytes *stops, uint32_t n_stops) {
    for (size_t end = 1; end <= n; end++) {
        found best = {.begin = SIZE_MAX};
        for (uint32_t k = 0; k < n_stops; k++)
            if (stops[k].n <= end && memcmp(text + end - stops[k].n, stops[k].p, stops[k].n) == 0 &&
                end - stops[k].n < best.begin)
                best = (found){true, end - stops[k].n, end};
        if (best.any) return best;
    }
    return (found){0};
}

/* The longest end of the text that begins a stop string and is not a whole one. */
static size_t search_held(const char *text, size_t n, const bytes *stops, uint32_t n_stops) {
    for (size_t held = n; held > 0; held--)
        for (uint32_t k = 0; k < n_stops; k++)
            if (stops[k].n > held && memcmp(text + n - held, stops[k].p, held) == 0) return held;
    return 0;
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void random_texts_agree_with_a_plain_search(void) {
    uint32_t state = 7;
    int n_matches = 0;
    for (int round = 0; round < 20000; round++) {
        char text[24], words[4][6];
        bytes stops[4];
        uint32_t n_stops = 1 + next_random(&state) % 4;
        for (uint32_t k = 0; k < n_stops; k++) {
            size_t n = 1 + next_random(&state) % 5;
            for (size_t i = 0; i < n; i++) words[k][i] = (char)('a' + next_random(&state) % 2);
            stops[k] = (bytes){words[k], n};
        }
        size_t n = next_random(&state) % sizeof text;
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + next_random(&state) % 3);
        stop_set *set = stop_set_create(stops, n_stops);
        uint16_t progress[4] = {0};
        found want = search(text, n, stops, n_stops), got = {0};
        for (size_t at = 0; at < n && !got.any;) { // in pieces of 1 to 4 bytes
            size_t piece = size_min(1 + next_random(&state) % 4, n - at);
            stop_match m;
            if (stop_feed(set, progress, text + at, piece, &m))
                got = (found){true, at + m.end - m.n, at + m.end};
            at += piece;
        }
        EXPECT_EQ(got.any, want.any);
        EXPECT_EQ(got.begin, want.begin);
        EXPECT_EQ(got.end, want.end);
        if (!want.any) EXPECT_EQ(stop_held(set, progress), search_held(text, n, stops, n_stops));
        n_matches += want.any;
        stop_set_destroy(set);
    }
    EXPECT(n_matches > 5000 && n_matches < 19000);
}

static void longer_of_two_that_end_together_wins(void) {
    bytes stops[2] = {text_of("b"), text_of("ab")};
    stop_set *set = stop_set_create(stops, 2);
    uint16_t progress[2] = {0};
    stop_match m;
    EXPECT(stop_feed(set, progress, "xab", 3, &m));
    EXPECT_EQ(m.string_idx, 1);
    EXPECT_EQ(m.end - m.n, 1);
    stop_set_destroy(set);
}

static void what_may_become_a_stop_string_is_held(void) {
    bytes stops[2] = {text_of("</end>"), text_of("<stop>")};
    stop_set *set = stop_set_create(stops, 2);
    uint16_t progress[2] = {0};
    stop_match m;
    EXPECT(!stop_feed(set, progress, "abc<", 4, &m));
    EXPECT_EQ(stop_held(set, progress), 1);
    EXPECT(!stop_feed(set, progress, "/en", 3, &m));
    EXPECT_EQ(stop_held(set, progress), 4);
    EXPECT(!stop_feed(set, progress, "x", 1, &m));
    EXPECT_EQ(stop_held(set, progress), 0);
    stop_set_destroy(set);
}

static void no_strings_hold_nothing(void) {
    stop_match m;
    EXPECT(!stop_feed(NULL, NULL, "abc", 3, &m));
    EXPECT_EQ(stop_held(NULL, NULL), 0);
}

/* A backtracking matcher would need 1,000 x 200,000 steps here. */
static void work_is_linear_in_the_text(void) {
    enum { N_STOP = 1000, N_TEXT = 200000 };
    char *stop = malloc(N_STOP), *text = malloc(N_TEXT);
    memset(stop, 'a', N_STOP);
    stop[N_STOP - 1] = 'b';
    memset(text, 'a', N_TEXT);
    bytes stops[1] = {{stop, N_STOP}};
    stop_set *set = stop_set_create(stops, 1);
    uint16_t progress[1] = {0};
    stop_match m;
    EXPECT(!stop_feed(set, progress, text, N_TEXT, &m));
    EXPECT_EQ(stop_held(set, progress), N_STOP - 1);
    EXPECT(stop_feed(set, progress, "b", 1, &m));
    EXPECT_EQ(m.n, N_STOP);
    stop_set_destroy(set);
    free(stop);
    free(text);
}

static const test_case cases[] = {
    TEST(random_texts_agree_with_a_plain_search),
    TEST(longer_of_two_that_end_together_wins),
    TEST(what_may_become_a_stop_string_is_held),
    TEST(no_strings_hold_nothing),
    TEST(work_is_linear_in_the_text),
};
TEST_MAIN(cases)
