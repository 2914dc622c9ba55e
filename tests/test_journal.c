/* test_journal.c - the newest events as sentences, and ten minutes of service. */
#include "test.h"

#include <math.h>

#include "history.h"
#include "journal.h"

static void events_have_growing_numbers(void) {
    journal *j = journal_create();
    journal_add(j, JOURNAL_LOAD, 1, 1000, "loaded %s", "chat");
    journal_add(j, JOURNAL_EVICT, 1, 2000, "evicted %s", "code");
    EXPECT_EQ(journal_n(j), 2);
    EXPECT_STR(journal_at(j, 0)->text, "loaded chat");
    EXPECT_EQ(journal_at(j, 1)->id, 2);
    EXPECT_EQ(journal_at(j, 1)->kind, JOURNAL_EVICT);
    EXPECT_EQ(journal_n_changes(j), 2);
    journal_destroy(j);
}

static void a_repeated_event_is_counted(void) {
    journal *j = journal_create();
    journal_add(j, JOURNAL_REFUSE, 1, 1000, "refused");
    journal_add(j, JOURNAL_LOAD, 1, 1500, "loaded chat");
    journal_add(j, JOURNAL_REFUSE, 3, 2000, "refused");
    EXPECT_EQ(journal_n(j), 2);
    EXPECT_EQ(journal_at(j, 0)->n, 4);
    EXPECT_EQ(journal_at(j, 0)->at_ms, 2000);
    EXPECT_EQ(journal_at(j, 0)->change, 3); // a viewer that saw two changes gets it again
    journal_add(j, JOURNAL_REFUSE, 1, 2000 + JOURNAL_REPEAT_MS + 1, "refused");
    EXPECT_EQ(journal_n(j), 3); // too late to be the same
    journal_destroy(j);
}

/* The time of an event of an hour ago was changed to the new time of the clock. */
static void an_event_is_none_of_before_the_clock_was_set_back(void) {
    journal *j = journal_create();
    journal_add(j, JOURNAL_REFUSE, 1, 4000000, "refused");
    journal_add_in(j, 7, JOURNAL_REFUSE, 4000000, "refused for chat", "");
    journal_add(j, JOURNAL_REFUSE, 1, 400000, "refused");
    journal_add_in(j, 7, JOURNAL_REFUSE, 400000, "refused for chat", "");
    EXPECT_EQ(journal_n(j), 4);
    EXPECT_EQ(journal_at(j, 0)->at_ms, 4000000);
    EXPECT_EQ(journal_at(j, 2)->at_ms, 400000);
    journal_add(j, JOURNAL_REFUSE, 1, 400001, "refused");
    EXPECT_EQ(journal_n(j), 4);
    EXPECT_EQ(journal_at(j, 2)->n, 2);
    journal_destroy(j);
}

static void the_oldest_events_go(void) {
    journal *j = journal_create();
    for (int i = 0; i < JOURNAL_EVENTS + 5; i++)
        journal_add(j, JOURNAL_ADMIN, 1, i, "number %d", i);
    EXPECT_EQ(journal_n(j), JOURNAL_EVENTS);
    EXPECT_STR(journal_at(j, 0)->text, "number 5");
    EXPECT_EQ(journal_at(j, JOURNAL_EVENTS - 1)->id, JOURNAL_EVENTS + 5);
    journal_destroy(j);
}

static void a_row_has_what_happened_in_its_second(void) {
    history *h = history_create();
    history_totals t = {.prompt_tokens = 100, .output_tokens = 10, .step_us = 5, .wall_us = 1000};
    history_close(h, &t, 1000000, 7); // begins the first second
    EXPECT_EQ(history_n(h), 0);
    EXPECT(!history_is_due(h, 1999999));
    for (int i = 0; i < 100; i++) history_note(h, HISTORY_ITL, i < 90 ? 10000 : 80000);
    t = (history_totals){.prompt_tokens = 300,
                         .output_tokens = 60,
                         .preemptions = 2,
                         .switches = 1,
                         .refused = 4,
                         .step_us = 250005,
                         .wall_us = 1001000};
    history_close(h, &t, 2000000, 8);
    EXPECT_EQ(history_n(h), 1);
    const history_row *row = history_at(h, 0);
    EXPECT_EQ(row->at_s, 8);
    EXPECT(isnan(row->p50_ms[HISTORY_TTFT]));
    EXPECT(fabsf(row->p50_ms[HISTORY_ITL] - 10) < 0.6f); // to the width of a bucket
    EXPECT(fabsf(row->p95_ms[HISTORY_ITL] - 80) < 5);
    EXPECT_EQ(row->prompt_tokens_per_s, 200);
    EXPECT_EQ(row->output_tokens_per_s, 50);
    EXPECT(fabsf(row->busy - 0.25f) < 1e-5f);
    EXPECT_EQ(row->preemptions, 2);
    EXPECT_EQ(row->switches, 1);
    EXPECT_EQ(row->refused, 4);
    history_close(h, &t, 3000000, 9); // a quiet second
    EXPECT(isnan(history_at(h, 1)->p50_ms[HISTORY_ITL]));
    EXPECT_EQ(history_at(h, 1)->output_tokens_per_s, 0);
    history_destroy(h);
}

static void quantiles_are_right_to_five_percent(void) {
    history *h = history_create();
    history_totals t = {0};
    uint64_t now_us = 1000000;
    history_close(h, &t, now_us, 0);
    for (uint64_t us = 8, i = 0; us < 10000000000; us = us * 13 / 10 + 1, i++) {
        history_note(h, HISTORY_TTFT, us);
        history_close(h, &t, now_us += 1000000, 0);
        float ms = history_at(h, i)->p50_ms[HISTORY_TTFT];
        EXPECT(fabs(ms * 1000 / (double)us - 1) < 0.07);
    }
    history_destroy(h);
}

static void events_of_a_group_are_one(void) {
    journal *j = journal_create();
    for (int i = 0; i < 1000; i++) {
        char text[64];
        snprintf(text, sizeof text, "refused for model %d", i % 20);
        journal_add_in(j, 7, JOURNAL_REFUSE, i, text, "refused for several models");
        EXPECT_EQ(journal_n(j), 1);
        EXPECT_STR(journal_at(j, 0)->text, i == 0 ? text : "refused for several models");
    }
    EXPECT_EQ(journal_at(j, 0)->n, 1000);
    journal_add_in(j, 8, JOURNAL_REFUSE, 1000, "refused for another tenant", "");
    EXPECT_EQ(journal_n(j), 2);
    journal_destroy(j);
}

static void refusals_do_not_push_out_other_events(void) {
    journal *j = journal_create();
    journal_add(j, JOURNAL_LOAD, 1, 0, "loaded chat");
    for (int i = 0; i < 1000; i++) {
        journal_add_in(j, (uint64_t)i + 1, JOURNAL_REFUSE, i, "refused", "");
        journal_add(j, JOURNAL_FAIL, 1, i, "failed %d", i);
    }
    EXPECT_EQ(journal_n(j), 1 + 2 * JOURNAL_CAUSED);
    EXPECT_EQ(journal_at(j, 0)->kind, JOURNAL_LOAD);
    for (uint32_t i = 1; i < journal_n(j); i++)
        EXPECT(journal_at(j, i)->id > journal_at(j, i - 1)->id);
    EXPECT_EQ(journal_at(j, journal_n(j) - 1)->id, 2001);
    journal_destroy(j);
}

static const test_case cases[] = {
    TEST(events_have_growing_numbers),
    TEST(a_repeated_event_is_counted),
    TEST(an_event_is_none_of_before_the_clock_was_set_back),
    TEST(the_oldest_events_go),
    TEST(events_of_a_group_are_one),
    TEST(refusals_do_not_push_out_other_events),
    TEST(a_row_has_what_happened_in_its_second),
    TEST(quantiles_are_right_to_five_percent),
};
TEST_MAIN(cases)
