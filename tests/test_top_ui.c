/* test_top_ui.c - the keys of `inferd ctl top`: what they send, ask and show. */
#include "json_in.h"
#include "test.h"
#include "top_text.h"
#include "top_ui.h"

/* A daemon with two models, the screen, and the request of the last key. */
typedef struct rig {
    top_state s;
    top_ui ui;
    top_request rq;
} rig;

static void begin(rig *r) {
    *r = (rig){0};
    top_ui_init(&r->ui);
    json_t *v = json_loads(
        "{\"models\":[{\"id\":0,\"name\":\"a/b\",\"state\":\"hot\",\"running\":3,\"pin\":\"warm\"},"
        "{\"id\":1,\"name\":\"code\",\"state\":\"cold\"}]}",
        0, NULL);
    EXPECT(top_state_take(&r->s, "all", v, 0));
    json_decref(v);
}

static void end(rig *r) {
    top_request_deinit(&r->rq);
    top_ui_deinit(&r->ui);
    top_state_deinit(&r->s);
}

/* The path of what is sent, or "". */
static const char *key(rig *r, int k) {
    top_request_deinit(&r->rq);
    top_ui_key(&r->ui, &r->s, k, &r->rq);
    return buf_cstr(&r->rq.path);
}

static const char *note(rig *r) {
    static buf text;
    top_foot foot = top_ui_foot(&r->ui, &r->s, NULL);
    buf_clear(&text);
    if (foot.note != NULL) buf_add_str(&text, foot.note);
    if (foot.ask != NULL) buf_add_format(&text, "  %s", foot.ask);
    return buf_cstr(&text);
}

static void answer(rig *r, int status, const char *text) {
    json_t *v = text == NULL ? NULL : json_loads(text, 0, NULL);
    top_ui_answer(&r->ui, status, v, "no answer in time");
    json_decref(v);
}

static void a_load_asks_for_a_plan_names_its_victims_and_waits_for_y(void) {
    rig r;
    begin(&r);
    key(&r, 'j');
    EXPECT_STR(key(&r, 'l'), "/admin/plan");
    EXPECT_STR(buf_cstr(&r.rq.body), "{\"load\":\"code\"}");
    answer(&r, 200,
           "{\"fits\":true,\"now\":true,\"bring_up\":{\"s\":0.4},\"victims\":["
           "{\"name\":\"night\",\"bytes\":100663296,\"idle_s\":40},{\"name\":\"x\",\"bytes\":0,"
           "\"idle_s\":0}]}");
    EXPECT_STR(note(&r), "load code: evicts 2 models: night (96 MiB, idle 40.0 s) and x (0, idle "
                         "0), about 400 ms.  y/n");
    EXPECT_STR(top_ui_foot(&r.ui, &r.s, NULL).keys, "y yes  n no  P the plan");
    EXPECT_STR(key(&r, 'y'), "/admin/models/code/load");
    EXPECT_STR(buf_cstr(&r.rq.body), "{}");
    answer(&r, 202, "{\"model\":\"code\",\"state\":\"loading\"}");
    EXPECT_STR(note(&r), "load code: accepted; its state is loading");
    EXPECT(!r.ui.bad);
    end(&r);
}

static void a_plan_of_several_devices_says_on_which_a_victim_is(void) {
    rig r;
    begin(&r);
    key(&r, 'l');
    answer(&r, 200,
           "{\"model\":\"a/b\",\"fits\":true,\"now\":true,\"bring_up\":{\"s\":0.4},\"devices\":["
           "{\"name\":\"d0\",\"used\":true},{\"name\":\"d1\",\"used\":true}],\"victims\":["
           "{\"name\":\"x\",\"device\":\"d0\",\"bytes\":0,\"idle_s\":0,\"why\":\"idle\"},"
           "{\"name\":\"y\",\"device\":\"d1\",\"bytes\":0,\"idle_s\":0,\"why\":\"idle\"}]}");
    EXPECT_STR(note(&r), "load a/b: evicts 2 models: x (0 on d0, idle 0) and y (0 on d1, idle 0), "
                         "about 400 ms.  y/n");
    key(&r, 'P');
    EXPECT(strstr(buf_cstr(&r.ui.panel), "  evicts      y on d1 (idle, 0, idle 0)\n") != NULL);
    end(&r);
}

/* It said "evicts no model" and a time, and the panel had the time, too. */
static void a_plan_for_turns_says_that_models_at_work_are_evicted(void) {
    rig r;
    begin(&r);
    key(&r, 'l');
    answer(&r, 200,
           "{\"model\":\"a/b\",\"fits\":true,\"now\":false,\"turns\":true,\"victims\":[],"
           "\"bring_up\":{\"s\":0.4}}");
    EXPECT_STR(note(&r), "load a/b: evicts models of its class that are at work in turns, when "
                         "requests for it come.  y/n");
    key(&r, 'P');
    EXPECT(strstr(buf_cstr(&r.ui.panel), "  not now: models of its class that are at work are "
                                         "evicted in turns, when requests for it come\n") != NULL);
    EXPECT(strstr(buf_cstr(&r.ui.panel), "brought up") == NULL);
    end(&r);
}

/* Draws the screen, without marks. */
static const char *draw(rig *r, uint32_t width, uint32_t height) {
    static buf out, text;
    r->ui.view.width = width;
    r->ui.view.height = height;
    top_foot foot = top_ui_foot(&r->ui, &r->s, NULL);
    buf_clear(&out);
    buf_clear(&text);
    top_view_draw(&r->ui.view, &r->s, &foot, 0, &out);
    for (size_t i = 0; i < out.n; i++)
        if (out.p[i] == '\n' || (unsigned char)out.p[i] >= TOP_MARKS) buf_add_char(&text, out.p[i]);
    return buf_cstr(&text);
}

static bool has(const char *screen, const char *text) {
    if (strstr(screen, text) != NULL) return true;
    printf("no \"%s\" in:\n%s", text, screen);
    return false;
}

/* The question was cut after four lines, and its y/n with it. */
static void a_question_keeps_its_number_and_y_n_where_not_all_victims_have_room(void) {
    rig r;
    buf plan = {0};
    begin(&r);
    buf_add_str(&plan, "{\"model\":\"a/b\",\"fits\":true,\"now\":true,\"bring_up\":{\"s\":0.4},"
                       "\"victims\":[");
    for (int i = 0; i < 30; i++)
        buf_add_format(&plan, "%s{\"name\":\"victim%02d\",\"bytes\":100663296,\"idle_s\":40}",
                       i > 0 ? "," : "", i);
    buf_add_str(&plan, "]}");
    draw(&r, 40, 14);
    key(&r, 'l');
    answer(&r, 200, buf_cstr(&plan));
    EXPECT(has(draw(&r, 40, 14),
               "\nload a/b: evicts 30 models: victim00 (96\nMiB, idle 40.0 s), victim01 (96 MiB,\n"
               "idle 40.0 s) and 28 more (P shows them),\nabout 400 ms.  y/n\ny yes"));
    const char *screen = draw(&r, 100, 50);
    EXPECT(has(screen, "\nload a/b: evicts 30 models: victim00 (96 MiB, idle 40.0 s), "));
    EXPECT(has(screen, " more (P shows"));
    EXPECT(has(screen, "  y/n\ny yes"));
    EXPECT_STR(key(&r, 'P'), ""); // beside the question, which stays
    screen = draw(&r, 40, 14);
    EXPECT(has(screen, "\nPLAN OF a/b\n"));
    EXPECT(has(screen, " more lines: down, PgDn\n"));
    EXPECT(has(screen, "y/n\ny yes"));
    key(&r, TOP_KEY_END);
    screen = draw(&r, 40, 14);
    EXPECT(has(screen, "brought up in"));
    EXPECT(has(screen, "\nthe end; up, PgUp: the lines before\n"));
    key(&r, TOP_KEY_HOME);
    for (int i = 0; i < 30; i++) { // each one is seen
        char name[32];
        snprintf(name, sizeof name, "  evicts      victim%02d", i);
        for (int k = 0; k < 200 && strstr(draw(&r, 40, 14), name) == NULL; k++)
            key(&r, TOP_KEY_DOWN);
        EXPECT(has(draw(&r, 40, 14), name));
    }
    EXPECT_STR(key(&r, 'y'), "/admin/models/a%2Fb/load");
    EXPECT(top_ui_foot(&r.ui, &r.s, NULL).panel == NULL); // the events come back
    buf_deinit(&plan);
    end(&r);
}

/* Without victims, too: a long sentence of the daemon, a long name. */
static void y_n_is_on_every_screen(void) {
    rig r;
    buf text = {0};
    begin(&r);
    buf_add_str(&text, "{\"fits\":false,\"problems\":[\"");
    for (int i = 0; i < 100; i++) buf_add_str(&text, i % 7 == 0 ? "too_large_" : "too large, ");
    buf_add_str(&text, "\"]}");
    key(&r, 'l');
    answer(&r, 200, buf_cstr(&text));
    for (uint32_t width = TOP_WIDTH_MIN; width < 120; width++) {
        EXPECT(has(draw(&r, width, 14), "\nload a/b: does not fit; "));
        EXPECT(has(draw(&r, width, 14), "y/n\ny yes"));
    }
    buf_deinit(&text);
    end(&r);
}

static void a_plan_that_does_not_fit_says_why_before_the_question(void) {
    rig r;
    begin(&r);
    key(&r, 'l');
    answer(&r, 200,
           "{\"fits\":false,\"problems\":[\"too "
           "large\"],\"checks\":[{\"kept\":true,\"text\":\"fine\"},"
           "{\"kept\":false,\"text\":\"9 MiB <= 4 MiB\"}]}");
    EXPECT_STR(note(&r), "load a/b: does not fit; too large; 9 MiB <= 4 MiB.  y/n");
    EXPECT_STR(key(&r, 'x'), "");
    EXPECT_STR(note(&r), "nothing was sent");
    end(&r);
}

static void the_name_is_one_segment_of_the_path(void) {
    rig r;
    begin(&r);
    EXPECT_STR(key(&r, 'u'), "");
    EXPECT_STR(
        note(&r),
        "unload a/b: 3 running and 0 waiting requests end first; then it leaves the device, and a "
        "later request brings it back.  y/n");
    EXPECT_STR(key(&r, 'y'), "/admin/models/a%2Fb/unload");
    end(&r);
}

static void a_pin_asks_which(void) {
    static const struct {
        char key;
        const char *path, *body;
        bool plan;
    } pins[] = {{'h', "/admin/models/a%2Fb/pin", "{\"level\":\"hot\"}", true},
                {'w', "/admin/models/a%2Fb/pin", "{\"level\":\"warm\"}", false},
                {'u', "/admin/models/a%2Fb/unpin", "{}", false}};
    rig r;
    begin(&r);
    for (size_t i = 0; i < INFERD_COUNT(pins); i++) {
        EXPECT_STR(key(&r, 'p'), "");
        EXPECT(strstr(note(&r), "pin a/b, which is pinned warm: h hot") != NULL);
        EXPECT_STR(key(&r, pins[i].key), pins[i].plan ? "/admin/plan" : "");
        if (pins[i].plan)
            answer(&r, 200, "{\"fits\":true,\"bring_up\":{\"from\":\"device\",\"s\":0}}");
        if (pins[i].plan)
            EXPECT_STR(note(&r),
                       "pin hot a/b: it is on the device.  It then stays on the device.  y/n");
        EXPECT_STR(key(&r, 'y'), pins[i].path);
        EXPECT_STR(buf_cstr(&r.rq.body), pins[i].body);
        answer(&r, 202, "{}");
    }
    key(&r, 'p');
    EXPECT_STR(key(&r, 'q'), ""); // no letter of a pin: nothing, and not the end
    EXPECT(!r.ui.quit);
    end(&r);
}

static void a_refusal_is_shown_with_the_sentence_of_the_daemon(void) {
    rig r;
    begin(&r);
    key(&r, 'd');
    EXPECT_STR(key(&r, 'y'), "/admin/models/a%2Fb/drain");
    answer(&r, 409, "{\"error\":{\"message\":\"the name stands for another model\"}}");
    EXPECT_STR(note(&r), "drain a/b: refused: the name stands for another model");
    EXPECT(r.ui.bad);
    key(&r, 'l');
    answer(&r, 500, NULL);
    EXPECT_STR(note(&r), "load a/b: no plan: the answer has status 500  y/n");
    key(&r, 'n');
    key(&r, 'l');
    answer(&r, 0, NULL);
    EXPECT_STR(note(&r), "load a/b: no answer in time"); // no question: the daemon is not there
    EXPECT_STR(key(&r, 'y'), "");
    end(&r);
}

static void one_request_at_a_time_and_it_can_be_given_up(void) {
    rig r;
    begin(&r);
    EXPECT_STR(key(&r, 'l'), "/admin/plan");
    EXPECT_STR(key(&r, 'd'), "");
    EXPECT_STR(note(&r), "an answer is awaited; Esc gives it up");
    key(&r, 'j'); // but the selection moves, and the plan stays that of its model
    key(&r, TOP_KEY_ESCAPE);
    EXPECT(r.ui.gives_up && r.ui.mode == TOP_BROWSES);
    r.ui.gives_up = false;
    answer(&r, 200, "{\"fits\":true}"); // too late
    EXPECT_STR(key(&r, 'y'), "");
    end(&r);
}

static void the_plan_is_a_panel(void) {
    rig r;
    begin(&r);
    EXPECT_STR(key(&r, 'P'), "/admin/plan");
    answer(&r, 200,
           "{\"model\":\"a/"
           "b\",\"fits\":true,\"checks\":[{\"kept\":true,\"name\":\"device\",\"text\":\"1 <= 2\"}],"
           "\"bring_up\":{\"s\":2,\"from\":\"file\",\"basis\":\"a guess\"}}");
    EXPECT_STR(top_ui_foot(&r.ui, &r.s, NULL).panel,
               "PLAN OF a/b\nevicts no model, about 2.0 s.\na/b fits\n  ok  device     1 <= 2\n"
               "  brought up in about 2.0 s, from its file (a guess)\n");
    key(&r, TOP_KEY_ESCAPE);
    EXPECT(top_ui_foot(&r.ui, &r.s, NULL).panel == NULL);
    key(&r, '?');
    EXPECT(strstr(top_ui_foot(&r.ui, &r.s, NULL).panel, "sort by name") != NULL);
    key(&r, '?');
    EXPECT(top_ui_foot(&r.ui, &r.s, NULL).panel == NULL);
    end(&r);
}

static void the_detail_follows_the_selection(void) {
    rig r;
    begin(&r);
    json_t *v = json_loads("{\"devices\":[{\"id\":0,\"name\":\"cpu0\"},{\"id\":1,\"name\":\"gpu0\"}"
                           "],\"models\":[{\"id\":1,\"name\":\"code\","
                           "\"state\":\"failed\",\"error\":\"no "
                           "memory\",\"pin\":\"none\",\"class\":\"high\",\"weight\":2,"
                           "\"share\":{\"percent\":30,\"policy\":\"burst\"},\"running\":1,"
                           "\"waiting\":2,\"in\":3,\"out\":4,\"used\":0.5,"
                           "\"bytes\":{\"weight\":1024,\"file\":2048,\"kv\":1,\"cached\":2,"
                           "\"warm\":3,\"parked\":4,\"min\":5,\"max\":6},"
                           "\"devices\":[0,1],\"context\":512,\"loads\":7,\"evictions\":8,\"last_"
                           "switch_ms\":400,\"aliases\":[\"c\",\"d\"]}]}",
                           0, NULL);
    EXPECT(top_state_take(&r.s, "delta", v, 0));
    json_decref(v);
    key(&r, '\r');
    EXPECT(strncmp(top_ui_foot(&r.ui, &r.s, NULL).panel, "MODEL a/b\nhot, pin warm", 23) == 0);
    key(&r, 'j');
    EXPECT_STR(
        top_ui_foot(&r.ui, &r.s, NULL).panel,
        "MODEL code\nfailed: no memory\nfailed, pin none, class high, weight 2, share burst 30 %\n"
        "1 running, 2 waiting; 3 tokens/s in, 4 out; 50.0 % of a device\n"
        "7 loads, 8 evictions, the last switch took 400 ms\n"
        "weights 1.0 KiB (file 2.0 KiB), KV 1 B, cached KV 2 B; in host memory: weights 3 B, KV 4 "
        "B\n"
        "guaranteed 5 B, at most 6 B\non cpu0, gpu0; context 512 tokens\naliases: c, d\n");
    key(&r, '?'); // another panel
    EXPECT(strncmp(top_ui_foot(&r.ui, &r.s, NULL).panel, "KEYS", 4) == 0);
    key(&r, '\r');
    key(&r, '\r');
    EXPECT(top_ui_foot(&r.ui, &r.s, NULL).panel == NULL);
    end(&r);
}

static void the_keys_of_the_order(void) {
    rig r;
    begin(&r);
    EXPECT_EQ(r.ui.view.sort, TOP_BY_STATE);
    key(&r, 's');
    EXPECT_STR(note(&r), "sorted by class");
    key(&r, 'S');
    EXPECT_STR(note(&r), "sorted by class, reversed");
    key(&r, 's');
    EXPECT_STR(note(&r), "sorted by memory");
    key(&r, '1');
    EXPECT_STR(note(&r), "sorted by name");
    key(&r, '1');
    EXPECT(r.ui.view.reverse);
    key(&r, '8'); // no such column
    EXPECT_EQ(r.ui.view.sort, TOP_BY_NAME);
    end(&r);
}

static void without_models_there_is_nothing_to_command(void) {
    rig r = {0};
    top_ui_init(&r.ui);
    EXPECT_STR(key(&r, 'l'), "");
    EXPECT_STR(note(&r), "no model is selected");
    key(&r, TOP_KEY_PAGE_DOWN);
    key(&r, 'q');
    EXPECT(r.ui.quit);
    end(&r);
}

static const test_case cases[] = {
    TEST(a_load_asks_for_a_plan_names_its_victims_and_waits_for_y),
    TEST(a_plan_of_several_devices_says_on_which_a_victim_is),
    TEST(a_plan_for_turns_says_that_models_at_work_are_evicted),
    TEST(a_question_keeps_its_number_and_y_n_where_not_all_victims_have_room),
    TEST(y_n_is_on_every_screen),
    TEST(a_plan_that_does_not_fit_says_why_before_the_question),
    TEST(the_name_is_one_segment_of_the_path),
    TEST(a_pin_asks_which),
    TEST(a_refusal_is_shown_with_the_sentence_of_the_daemon),
    TEST(one_request_at_a_time_and_it_can_be_given_up),
    TEST(the_plan_is_a_panel),
    TEST(the_detail_follows_the_selection),
    TEST(the_keys_of_the_order),
    TEST(without_models_there_is_nothing_to_command)};
TEST_MAIN(cases)
