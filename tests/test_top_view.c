/* test_top_view.c - the screen of `inferd ctl top` as text: names made safe, columns, order,
 * scrolling, and the state that it is drawn from. */
#include <wchar.h>

#include "ctl_json.h"
#include "json_in.h"
#include "test.h"
#include "top_panels.h"
#include "top_state.h"
#include "top_text.h"
#include "top_view.h"

/* ---- texts ---- */

static const char *cut(const char *text, uint32_t width) {
    static buf out;
    top_use_utf8();
    buf_clear(&out);
    top_add_text(&out, text, width);
    return buf_cstr(&out);
}

static void a_text_is_cut_with_an_ellipsis(void) {
    EXPECT_STR(cut("night", 5), "night");
    EXPECT_STR(cut("night", 4), "nig…");
    EXPECT_STR(cut("night", 1), "…");
    EXPECT_STR(cut("night", 0), "");
}

static void wide_characters_count_two_columns(void) {
    EXPECT_EQ(top_width("世界"), 4);
    EXPECT_STR(cut("世界", 4), "世界");
    EXPECT_STR(cut("世界", 3), "世…");
    EXPECT_STR(cut("世界", 2), "…"); // not half of one
    buf out = {0};
    top_add_cell(&out, "世", 5, false);
    top_add_cell(&out, "界", 5, true);
    EXPECT_STR(buf_cstr(&out), "世      界");
    buf_deinit(&out);
}

static void nothing_that_a_terminal_obeys_gets_through(void) {
    EXPECT_STR(cut("a\033[31mb", 50), "a?[31mb");
    EXPECT_STR(cut("a\r\nb\tc\x7f", 50), "a??b?c?");
    EXPECT_STR(cut("a\xc2\x9b"
                   "31m",
                   50),
               "a?31m");                        // U+009B is an escape sequence of one character
    EXPECT_STR(cut("\x01\x04\x0f", 50), "???"); // our own marks
    EXPECT_STR(cut("a\xe2\x80\xae"
                   "b",
                   50),
               "a?b");                                    // right to left
    EXPECT_STR(cut("a\xff\xc3", 50), "a??");              // not UTF-8
    EXPECT_STR(cut("\xc0\x9b\xed\xa0\x80", 50), "?????"); // overlong, half of a pair
    EXPECT_STR(cut("a\xe2\x80\x8b"
                   "b\xef\xb8\x8f",
                   50),
               "ab"); // no width, no meaning here
}

static void accents_stay_with_their_letter_but_not_in_heaps(void) {
    EXPECT_STR(cut("e\xcc\x81", 1), "e\xcc\x81");
    EXPECT_STR(cut("e\xcc\x81\xcc\x81\xcc\x81\xcc\x81", 1), "e\xcc\x81\xcc\x81");
    EXPECT_STR(cut("\xcc\x81x", 5), "x"); // not on what stands before
}

static void marks_of_a_line_take_no_column(void) {
    buf line = {0}, out = {0};
    top_add_mark(&line, TOP_BAD);
    buf_add_str(&line, "abc");
    top_add_mark(&line, TOP_NORMAL);
    buf_add_str(&line, "def");
    top_add_line(&out, buf_cstr(&line), 6);
    EXPECT_STR(buf_cstr(&out), "\007abc\001def\n");
    buf_clear(&out);
    top_add_line(&out, buf_cstr(&line), 5);
    EXPECT_STR(buf_cstr(&out), "\007abc\001d…\n");
    buf_deinit(&line);
    buf_deinit(&out);
}

static const char *wrap(const char *text, uint32_t width, uint32_t lines) {
    static buf out;
    buf_clear(&out);
    top_add_wrapped(&out, text, TOP_NORMAL, width, lines);
    return buf_cstr(&out);
}

static void a_long_text_is_broken_at_spaces(void) {
    top_use_utf8();
    EXPECT_STR(wrap("one two three", 7, 4), "\1one two\n\1three\n");
    EXPECT_STR(wrap("one two three", 6, 4), "\1one\n\1two\n\1three\n");
    EXPECT_STR(wrap("onetwothree four", 6, 4), "\1onetwo\n\1three\n\1four\n");
    EXPECT_STR(wrap("one two three four", 7, 2), "\1one two\n\1three …\n");
    EXPECT_STR(wrap("世界世界", 5, 4), "\1世界\n\1世界\n");
    EXPECT_STR(wrap("", 5, 4), "");
}

/* ---- the state ---- */

static json_t *json(const char *text) {
    json_error_t err;
    json_t *v = json_loads(text, 0, &err);
    if (v == NULL) printf("%s: %s\n", text, err.text);
    return v;
}

static bool take(top_state *s, const char *event, const char *text) {
    json_t *v = json(text);
    bool fine = top_state_take(s, event, v, 0);
    json_decref(v);
    return fine;
}

static const char everything[] =
    "{\"now\":1700000100000,\"daemon\":{\"version\":\"1.2\",\"started_at\":1700000000},"
    "\"queue\":{\"running\":7,\"waiting\":2,\"paused\":1,\"places\":64,\"places_used\":9},"
    "\"devices\":[{\"id\":0,\"name\":\"cpu0\",\"page_bytes\":1048576,\"pages\":{\"free\":50,"
    "\"device\":60,\"device_free\":20,\"host\":40,\"host_free\":30,\"weight\":30,"
    "\"kv\":10,\"cached\":9,\"warm\":1,\"parked\":0},\"recent\":{\"step\":0.97,\"load\":0,\"idle\":"
    "0.03},"
    "\"drill\":\"none\",\"step\":{\"model\":1,\"us\":3200,\"prefill\":3,\"decode\":4,\"n\":7}}],"
    "\"models\":[{\"id\":0,\"name\":\"chat\",\"state\":\"hot\",\"class\":\"normal\",\"pin\":"
    "\"hot\","
    "\"running\":3,\"waiting\":2,\"bytes\":{\"weight\":94},\"in\":400,\"out\":200,\"used\":0.887,"
    "\"share\":{\"percent\":60,\"policy\":\"fixed\"},\"wanted_at\":null},"
    "{\"id\":1,\"name\":\"code\",\"state\":\"loading\",\"progress\":0.45,\"class\":\"high\","
    "\"bytes\":{\"weight\":700},"
    "\"in\":9,\"out\":2,\"used\":0.09,\"wanted_at\":1700000090000},"
    "{\"id\":2,\"name\":\"night\",\"state\":\"cold\",\"held\":true,\"class\":\"batch\",\"wanted_"
    "at\":1700000040000}],"
    "\"tenants\":[{\"id\":0,\"name\":\"shop\",\"used\":0.59,\"entitled\":0.6,\"today\":4800,"
    "\"limit_today\":100000}],"
    "\"history\":{\"rows\":[[1,31,80,9.1,12,424,211,0,0,0,0.9],[2,null,null,null,null,0,0,0,0,0,0]]"
    "},"
    "\"events\":[{\"id\":4,\"at\":1700000095000,\"kind\":\"evict\",\"n\":3,\"text\":\"evicted "
    "night\"}]}";

static void a_delta_replaces_rows_and_takes_away_what_is_gone(void) {
    top_state s = {0};
    EXPECT(take(&s, "delta", "{\"models\":[{\"id\":5}]}") && s.models.n == 0); // before `all`
    EXPECT(take(&s, "all", everything));
    EXPECT_EQ(s.models.n, 3);
    EXPECT(
        take(&s, "delta",
             "{\"now\":5,\"models\":[{\"id\":1,\"name\":\"other\"}],\"gone\":{\"models\":[0,77]},"
             "\"events\":[{\"id\":4,\"n\":9},{\"id\":5,\"n\":1}],\"history\":{\"rows\":[[3]]}}"));
    EXPECT_EQ(s.models.n, 2);
    EXPECT_STR(ctl_text(top_rows_find(&s.models, 1), "name"), "other");
    EXPECT(top_rows_find(&s.models, 0) == NULL);
    EXPECT_EQ(s.events.n, 2);
    EXPECT_EQ(ctl_count(top_rows_find(&s.events, 4), "n"), 9);
    EXPECT_NEAR(top_history_newest(&s, TOP_TTFT_P95), 80, 0);
    EXPECT_NEAR(top_history_mean(&s, TOP_TOKENS_IN), 424.0 / 3, 1e-9);
    EXPECT(take(&s, "all", "{}") && s.models.n == 0 && s.n_history == 0);
    EXPECT(isnan(top_history_newest(&s, TOP_TTFT_P50)));
    top_state_deinit(&s);
}

static void the_state_is_bounded_and_takes_any_json(void) {
    top_state s = {0};
    buf text = {0};
    EXPECT(!take(&s, "all", "[]"));
    EXPECT(take(&s, "all",
                "{\"now\":-1,\"models\":7,\"devices\":[1,null,{}],\"gone\":[1],\"events\":{},"
                "\"history\":{\"rows\":[{},[\"x\",[]]]},\"queue\":[],\"daemon\":3}"));
    EXPECT_EQ(s.devices.n, 1);
    buf_add_str(&text, "{\"models\":[");
    for (int i = 0; i < TOP_ROWS_MAX + 10; i++)
        buf_add_format(&text, "%s{\"id\":%d}", i > 0 ? "," : "", i);
    buf_add_str(&text, "],\"events\":[");
    for (int i = 0; i < TOP_EVENTS_MAX + 10; i++)
        buf_add_format(&text, "%s{\"id\":%d}", i > 0 ? "," : "", i);
    buf_add_str(&text, "]}");
    EXPECT(take(&s, "all", buf_cstr(&text)));
    EXPECT_EQ(s.models.n, TOP_ROWS_MAX);
    EXPECT_EQ(s.events.n, TOP_EVENTS_MAX);
    EXPECT_EQ(ctl_count(s.events.rows[0], "id"), 10); // the oldest ones left
    buf_deinit(&text);
    top_state_deinit(&s);
}

static void refusals_push_out_refusals_only(void) {
    top_state s = {0};
    EXPECT(take(&s, "all",
                "{\"events\":[{\"id\":1,\"kind\":\"device\"},"
                "{\"id\":2,\"kind\":\"refuse\"}]}"));
    for (int i = 3; i < 600; i++) {
        char text[80];
        snprintf(text, sizeof text, "{\"events\":[{\"id\":%d,\"kind\":\"refuse\"}]}", i);
        EXPECT(take(&s, "delta", text));
    }
    EXPECT_EQ(s.events.n, TOP_EVENTS_OF_KIND_MAX + 1);
    EXPECT_EQ(ctl_count(s.events.rows[0], "id"), 1);
    EXPECT_EQ(ctl_count(s.events.rows[1], "id"), 600 - TOP_EVENTS_OF_KIND_MAX);
    EXPECT_EQ(ctl_count(s.events.rows[s.events.n - 1], "id"), 599);
    top_state_deinit(&s);
}

/* ---- the table ---- */

static const char *order_of(const top_view *v, const top_state *s) {
    static buf out;
    uint32_t order[8];
    buf_clear(&out);
    top_view_order(v, s, order);
    for (uint32_t i = 0; i < s->models.n; i++)
        buf_add_format(&out, "%s ", ctl_text(s->models.rows[order[i]], "name"));
    return buf_cstr(&out);
}

static void models_are_sorted_by_each_column(void) {
    static const char *const want[TOP_SORTS] = {
        [TOP_BY_NAME] = "chat code night ",    [TOP_BY_STATE] = "chat code night ",
        [TOP_BY_CLASS] = "code chat night ",   [TOP_BY_MEMORY] = "code chat night ",
        [TOP_BY_USED] = "chat code night ",    [TOP_BY_TOKENS] = "chat code night ",
        [TOP_BY_LAST_USE] = "chat code night "};
    top_state s = {0};
    EXPECT(take(&s, "all", everything));
    for (top_sort k = 0; k < TOP_SORTS; k++)
        EXPECT_STR(order_of(&(top_view){.sort = k}, &s), want[k]);
    EXPECT_STR(order_of(&(top_view){.sort = TOP_BY_CLASS, .reverse = true}, &s),
               "night chat code ");
    EXPECT(take(&s, "delta",
                "{\"models\":[{\"id\":1,\"name\":\"code\"},{\"id\":0,\"name\":\"chat\"}]}"));
    EXPECT_STR(order_of(&(top_view){.sort = TOP_BY_USED}, &s),
               "chat code night "); // equal: by name
    top_state_deinit(&s);
}

static const char *selected(top_view *v, const top_state *s) {
    return ctl_text(top_view_selected(v, s), "name");
}

static void the_selection_follows_its_model(void) {
    top_state s = {0};
    top_view v = {.sort = TOP_BY_NAME};
    EXPECT_STR(selected(&v, &s), "");
    EXPECT(take(&s, "all", everything));
    EXPECT_STR(selected(&v, &s), "chat");
    top_view_move(&v, &s, 1);
    EXPECT_STR(selected(&v, &s), "code");
    v.sort = TOP_BY_CLASS; // it is the first one now
    EXPECT_STR(selected(&v, &s), "code");
    EXPECT_EQ(v.selected_at, 0);
    top_view_move(&v, &s, INT32_MAX);
    EXPECT_STR(selected(&v, &s), "night");
    top_view_move(&v, &s, INT32_MIN);
    EXPECT_STR(selected(&v, &s), "code");
    EXPECT(take(&s, "delta", "{\"gone\":{\"models\":[1]}}")); // the next one takes its place
    EXPECT_STR(selected(&v, &s), "chat");
    top_state_deinit(&s);
}

/* ---- the screen ---- */

static const top_foot no_foot = {.keys = "q quit"};

/* One line at a time; true: it has exactly the lines of the screen, each within its width, and no
 * byte that a terminal obeys. */
static bool is_sound(const buf *out, const top_view *v) {
    uint32_t n = 0, width = u32_min(v->width, TOP_WIDTH_MAX);
    bool fine = !out->failed;
    for (size_t at = 0; at < out->n; n++) {
        const char *p = out->p + at;
        size_t length = strcspn(p, "\n"), columns = 0;
        mbstate_t state = {0};
        for (const char *c = p; c < p + length;) {
            if ((unsigned char)*c < TOP_MARKS) {
                c++;
                continue;
            }
            wchar_t w;
            size_t used = mbrtowc(&w, c, (size_t)(p + length - c), &state);
            int cells = used == 0 || used > 4 ? -1 : wcwidth(w);
            if (cells < 0) return false;
            columns += (size_t)cells;
            c += used;
        }
        fine &= columns <= width;
        at += length + 1;
    }
    return fine && n == v->height;
}

static const char *draw(top_view *v, const top_state *s, const top_foot *foot) {
    static buf out;
    static char text[1 << 20];
    top_use_utf8();
    buf_clear(&out);
    top_view_draw(v, s, foot, 0, &out);
    buf_cstr(&out);
    EXPECT(is_sound(&out, v));
    size_t n = 0;
    for (size_t i = 0; i < out.n && n + 1 < sizeof text; i++)
        if (out.p[i] == '\n' || (unsigned char)out.p[i] >= TOP_MARKS) text[n++] = out.p[i];
    text[n] = 0;
    return text;
}

static bool has(const char *screen, const char *text) {
    if (strstr(screen, text) != NULL) return true;
    printf("no \"%s\" in:\n%s", text, screen);
    return false;
}

/* A GPU: warm weights and swapped-out blocks are in host memory, not in the device's bar. */
static void host_memory_is_no_part_of_the_bar_of_a_gpu(void) {
    top_state s = {0};
    top_view v = {.width = 80, .height = 24};
    EXPECT(take(&s, "all",
                "{\"devices\":[{\"id\":0,\"name\":\"gpu0\",\"page_bytes\":1048576,\"one_memory\":"
                "false,\"pages\":{\"device\":80,\"device_free\":40,\"free\":40,\"weight\":40,"
                "\"warm\":120,\"host\":200,\"host_free\":80}}]}"));
    const char *screen = draw(&v, &s, &no_foot);
    EXPECT(
        has(screen,
            "[WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW.......................................]\n"));
    EXPECT(has(screen, " free 40 MiB of 80 MiB  Weights 40 MiB  KV 0  cached 0  warm 120 MiB"));
    top_state_deinit(&s);
}

static void the_screen_has_the_figures(void) {
    top_state s = {0};
    top_view v = {.width = 80, .height = 24, .sort = TOP_BY_NAME};
    EXPECT(take(&s, "all", everything));
    const char *screen = draw(&v, &s, &no_foot);
    EXPECT(
        has(screen, "inferd 1.2  up 100.0 s   running 7  waiting 2  paused 1   places 9 of 64\n"));
    EXPECT(has(screen,
               "tokens/s 212 in, 106 out   TTFT p50 31 ms p95 80 ms   ITL p50 9.1 ms p95 12 ms\n"));
    EXPECT(has(screen,
               "cpu0      steps 97 %, loads 0 %, idle 3 %   code: 3.2 ms, 7 seqs, rows 3 + 4\n"));
    EXPECT(has(screen,
               " free 20 MiB of 60 MiB  Weights 30 MiB  KV 10 MiB  cached 9.0 MiB  warm 1.0 MiB"));
    EXPECT(
        has(screen,
            "> chat          hot       hot  normal     94 B  88.7  60   200   3    2      now\n"));
    EXPECT(
        has(screen,
            "  code          load 45%  -    high      700 B   9.0   -     2   0    0   10.0 s\n"));
    EXPECT(
        has(screen,
            "  night         drained   -    batch         0   0.0   -     0   0    0   60.0 s\n"));
    EXPECT(has(screen,
               "shop                  59.0    60    4800    100k    0    0       0     0     0\n"));
    EXPECT(has(screen, " 3 x evicted night\n"));
    EXPECT(has(screen, "q quit\n"));
    v.width = 200; // no wider than 100
    EXPECT(
        has(draw(&v, &s, &no_foot),
            "> chat                        hot       hot  normal     94 B  88.7  60   400   200 "));
    top_state_deinit(&s);
}

static void a_bar_has_a_cell_for_each_use_with_pages(void) {
    top_state s = {0};
    top_view v = {.width = 52, .height = 24};
    EXPECT(take(&s, "all", everything));
    EXPECT(has(draw(&v, &s, &no_foot), "[WWWWWWWWWWWWWWWKKKKKcccccw.........               ]\n"));
    EXPECT(
        take(&s, "all", "{\"devices\":[{\"id\":0,\"pages\":{\"weight\":4000000000,\"kv\":1}}]}"));
    EXPECT(has(draw(&v, &s, &no_foot), "[WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW]\n"));
    top_state_deinit(&s);
}

/* Names with everything that hurts, many of each thing, and every size of a terminal. */
static void every_screen_is_sound(void) {
    static const uint32_t widths[] = {1, 39, 40, 63, 80, 92, 100, 250},
                          heights[] = {1, 9, 10, 11, 16, 24, 45, 200};
    static const char evil[] =
        "\\u001b[2J\\u0007\\u009b世\\u202e\\u0301\\u0301\\u0301界\\ud83d\\ude00 long long long "
        "long";
    static const int many[] = {0, 1, 3, 80};
    for (size_t k = 0; k < INFERD_COUNT(many); k++) {
        top_state s = {0};
        buf text = {0};
        buf_add_str(&text, "{\"daemon\":{\"version\":\"\\u001b]0;x\"}");
        for (int part = 0; part < 4; part++) {
            static const char *const names[] = {"devices", "models", "tenants", "events"};
            buf_add_format(&text, ",\"%s\":[", names[part]);
            for (int i = 0; i < many[k]; i++)
                buf_add_format(
                    &text,
                    "%s{\"id\":%d,\"name\":\"%d%s\",\"text\":\"%s\",\"state\":\"%s\",\"class\":\"%"
                    "s\","
                    "\"pin\":\"%s\",\"drill\":\"%s\",\"step\":{\"model\":%d},\"in\":1e300,"
                    "\"today\":1e18,"
                    "\"limit_today\":1e18,\"page_bytes\":1e18,\"pages\":{\"kv\":1e18,\"free\":3},"
                    "\"bytes\":{\"kv\":1e19},\"used\":1e9,\"wanted_at\":-1e18}",
                    i > 0 ? "," : "", i, i, evil, evil, evil, evil, evil, evil, i);
            buf_add_char(&text, ']');
        }
        buf_add_char(&text, '}');
        EXPECT(take(&s, "all", buf_cstr(&text)));
        const top_foot feet[] = {
            no_foot,
            {.trouble = "no answer since 13:11:46: "
                        "/run/user/1000/a/long/path/of/a/socket/admin.sock: No such file",
             .note = "a \033[31mb\nc",
             .bad = true,
             .keys = "q"},
            {.note = "one two three four five six seven eight nine ten eleven twelve thirteen "
                     "fourteen fifteen sixteen seventeen eighteen nineteen twenty",
             .keys = "q",
             .panel = "a\n\n\033b\nc d e f g h i j k l m n o p q r s t u v w x y z"}};
        for (size_t f = 0; f < INFERD_COUNT(feet); f++)
            for (size_t w = 0; w < INFERD_COUNT(widths); w++)
                for (size_t h = 0; h < INFERD_COUNT(heights); h++) {
                    top_view v = {.width = widths[w], .height = heights[h], .tenants = h % 2 == 0};
                    top_view_move(&v, &s, 70);
                    draw(&v, &s, &feet[f]);
                }
        buf_deinit(&text);
        top_state_deinit(&s);
    }
}

static void the_tenants_with_the_most_use_are_shown_where_not_all_have_room(void) {
    top_state s = {0};
    top_view v = {.width = 80, .height = 16, .tenants = true};
    buf text = {0};
    buf_add_str(&text, "{\"tenants\":[");
    for (int i = 0; i < 40; i++)
        buf_add_format(&text, "%s{\"id\":%d,\"name\":\"t%02d\",\"used\":%g}", i > 0 ? "," : "", i,
                       i, i == 33 ? 0.5 : 0.0);
    buf_add_str(&text, "]}");
    EXPECT(take(&s, "all", buf_cstr(&text)));
    const char *screen = draw(&v, &s, &no_foot);
    EXPECT(has(screen, " of 40)"));
    EXPECT(has(screen, "WAIT REFUSED  IN/S OUT/S\nt33 "));
    EXPECT(has(screen, "\nt00 "));
    EXPECT(strstr(screen, "\nt32 ") == NULL);
    buf_deinit(&text);
    top_state_deinit(&s);
}

static void the_table_scrolls_with_the_selection(void) {
    top_state s = {0};
    top_view v = {.width = 80, .height = 24, .sort = TOP_BY_NAME};
    buf text = {0};
    buf_add_str(&text, "{\"models\":[");
    for (int i = 0; i < 70; i++)
        buf_add_format(&text, "%s{\"id\":%d,\"name\":\"m%02d\"}", i > 0 ? "," : "", i, i);
    buf_add_str(&text, "]}");
    EXPECT(take(&s, "all", buf_cstr(&text)));
    EXPECT(has(draw(&v, &s, &no_foot), "> m00"));
    EXPECT(has(draw(&v, &s, &no_foot), "MODEL (70)"));
    uint32_t n = v.n_shown;
    EXPECT(n >= 8 && n < 24);
    top_view_move(&v, &s, (int32_t)n);
    draw(&v, &s, &no_foot);
    EXPECT_EQ(v.first, 1);
    top_view_move(&v, &s, INT32_MAX);
    EXPECT(has(draw(&v, &s, &no_foot), "> m69"));
    EXPECT_EQ(v.first, 70 - n);
    top_view_move(&v, &s, -1);
    draw(&v, &s, &no_foot);
    EXPECT_EQ(v.first, 70 - n); // no need to scroll
    buf_deinit(&text);
    top_state_deinit(&s);
}

static const test_case cases[] = {
    TEST(a_text_is_cut_with_an_ellipsis),
    TEST(wide_characters_count_two_columns),
    TEST(nothing_that_a_terminal_obeys_gets_through),
    TEST(accents_stay_with_their_letter_but_not_in_heaps),
    TEST(marks_of_a_line_take_no_column),
    TEST(a_long_text_is_broken_at_spaces),
    TEST(a_delta_replaces_rows_and_takes_away_what_is_gone),
    TEST(refusals_push_out_refusals_only),
    TEST(host_memory_is_no_part_of_the_bar_of_a_gpu),
    TEST(the_state_is_bounded_and_takes_any_json),
    TEST(models_are_sorted_by_each_column),
    TEST(the_selection_follows_its_model),
    TEST(the_screen_has_the_figures),
    TEST(a_bar_has_a_cell_for_each_use_with_pages),
    TEST(every_screen_is_sound),
    TEST(the_tenants_with_the_most_use_are_shown_where_not_all_have_room),
    TEST(the_table_scrolls_with_the_selection)};
TEST_MAIN(cases)
