/* test_admin.c - the parts of the admin API that need no daemon: changes of a configuration's text,
 * the arithmetic of a plan, what `inferd ctl` reads and shows, routes with a name in the middle. */
#include "config_edit.h"
#include "model_plan.h"
#include "ctl_client.h"
#include "ctl_show.h"
#include "http_guard.h"
#include "test.h"

/* ---- changes of the text ---- */

static const char config_text[] =
    "{\"admin\":{\"keys\":[\"admin-key-1\"]},"
    "\"models\":[{\"name\":\"a\",\"path\":\"a.gguf\",\"aliases\":[\"x\"],"
    "\"share\":{\"policy\":\"fixed\",\"percent\":10}},{\"name\":\"b\",\"path\":\"b.gguf\"}],"
    "\"tenants\":[{\"name\":\"s\",\"keys\":[\"key-of-s-1\",\"key-of-s-2\"]},"
    "{\"name\":\"t\",\"key_file\":\"t.keys\"}]}";

static json_t *load(const char *text) {
    json_t *v = json_loads(text, 0, NULL);
    EXPECT(v != NULL);
    return v;
}

static bool is_json(const json_t *v, const char *text) {
    json_t *wanted = json_loads(text, JSON_DECODE_ANY, NULL);
    bool same = wanted != NULL && json_equal((json_t *)(uintptr_t)v, wanted);
    if (!same && v != NULL) {
        char *is = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        printf("is %s, expected %s\n", is, text);
        free(is);
    }
    json_decref(wanted);
    return same;
}

static void models_are_found_by_alias_and_tenants_are_not(void) {
    json_t *root = load(config_text);
    EXPECT(edit_find(root, EDIT_MODELS, "x") == edit_find(root, EDIT_MODELS, "a"));
    EXPECT(edit_find(root, EDIT_MODELS, "a") != NULL);
    EXPECT(edit_find(root, EDIT_MODELS, "s") == NULL);
    EXPECT(edit_find(root, EDIT_TENANTS, "s") != NULL);
    EXPECT(edit_find(root, EDIT_TENANTS, "x") == NULL);
    json_decref(root);
}

static void a_patch_replaces_merges_and_takes_away(void) {
    static const struct {
        const char *patch, *share, *weight;
    } tries[] = {
        {"{\"weight\":4}", "{\"policy\":\"fixed\",\"percent\":10}", "4"},
        {"{\"share\":{\"percent\":20}}", "{\"policy\":\"fixed\",\"percent\":20}", NULL},
        {"{\"share\":{\"percent\":null}}", "{\"policy\":\"fixed\"}", NULL},
        {"{\"share\":null}", NULL, NULL},
        {"{\"share\":{\"percent\":null,\"policy\":null}}", NULL, NULL},
        {"{\"share\":\"half\",\"weight\":\"1\"}", "\"half\"", "\"1\""}, // the reader says why not
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        json_t *root = load(config_text), *patch = load(tries[i].patch);
        const json_t *a = edit_find(root, EDIT_MODELS, "a");
        EXPECT_EQ(edit_merge(root, EDIT_MODELS, "x", patch, NULL), INFERD_OK);
        const json_t *share = json_object_get(a, "share"), *weight = json_object_get(a, "weight");
        EXPECT(tries[i].share == NULL ? share == NULL : is_json(share, tries[i].share));
        EXPECT(tries[i].weight == NULL ? weight == NULL : is_json(weight, tries[i].weight));
        EXPECT_STR(json_string_value(json_object_get(a, "path")), "a.gguf");
        json_decref(patch);
        json_decref(root);
    }
}

static void a_patch_of_an_unknown_tenant_is_not_found(void) {
    json_t *root = load(config_text), *patch = load("{\"weight\":1}");
    inferd_err err = {0};
    EXPECT_EQ(edit_merge(root, EDIT_MODELS, "s", patch, &err), INFERD_ENOTFOUND);
    EXPECT(strstr(err.text, "\"s\"") != NULL && strstr(err.text, "models") != NULL);
    json_decref(patch);
    json_decref(root);
}

static void only_what_may_change_can_be_patched(void) {
    static const struct {
        edit_section section;
        const char *patch;
        bool fine;
    } tries[] = {
        {EDIT_MODELS,
         "{\"weight\":1,\"class\":\"high\",\"min\":0,\"max\":0,\"share\":{},"
         "\"slo\":{},\"pin\":\"hot\",\"keep_alive\":1,\"replicas\":{}}",
         true},
        {EDIT_MODELS, "{\"path\":\"b\"}", false},
        {EDIT_MODELS, "{\"limits\":{}}", false},
        {EDIT_MODELS, "{}", false},
        {EDIT_MODELS, "[]", false},
        {EDIT_TENANTS, "{\"limits\":{},\"max_class\":\"high\"}", true},
        {EDIT_TENANTS, "{\"keys\":[]}", false},
        {EDIT_TENANTS, "{\"pin\":\"hot\"}", false},
        {EDIT_TENANTS, "{\"weight\":1,\"name\":\"z\"}", false},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        json_t *patch = load(tries[i].patch);
        inferd_err err = {0};
        EXPECT_EQ(edit_check_patch(tries[i].section, patch, &err) == INFERD_OK, tries[i].fine);
        EXPECT_EQ(err.text[0] == 0, tries[i].fine);
        json_decref(patch);
    }
}

static void an_element_replaces_its_name_or_is_appended(void) {
    json_t *root = load(config_text), *b = load("{\"name\":\"b\",\"path\":\"new\"}");
    json_t *c = load("{\"name\":\"c\"}"), *nameless = load("{\"path\":\"c\"}");
    EXPECT_EQ(edit_put(root, EDIT_MODELS, b, NULL), INFERD_OK);
    EXPECT_EQ(edit_put(root, EDIT_MODELS, c, NULL), INFERD_OK);
    EXPECT_EQ(edit_put(root, EDIT_MODELS, nameless, NULL), INFERD_EINVAL);
    const json_t *models = json_object_get(root, "models");
    EXPECT_EQ(json_array_size(models), 3);
    EXPECT(is_json(json_array_get(models, 1), "{\"name\":\"b\",\"path\":\"new\"}"));
    EXPECT(is_json(json_array_get(models, 2), "{\"name\":\"c\"}"));
    json_object_del(root, "tenants");
    EXPECT_EQ(edit_put(root, EDIT_TENANTS, c, NULL), INFERD_OK);
    EXPECT_EQ(json_array_size(json_object_get(root, "tenants")), 1);
    json_decref(nameless);
    json_decref(c);
    json_decref(b);
    json_decref(root);
}

static void masks_hide_every_key_and_come_back_as_the_same(void) {
    json_t *root = load(config_text), *file = load(config_text);
    uint32_t n = 0;
    buf text = {0};
    EXPECT_EQ(edit_mask(root, NULL), INFERD_OK);
    EXPECT_EQ(edit_write(root, &text, NULL), INFERD_OK);
    EXPECT(strstr(buf_cstr(&text), "key-of") == NULL && strstr(text.p, "admin-key") == NULL);
    EXPECT(strstr(text.p, "t.keys") != NULL && text.p[text.n - 1] == '\n');
    EXPECT_EQ(edit_unmask(root, file, &n, NULL), INFERD_OK);
    EXPECT_EQ(n, 3);
    EXPECT(json_equal(root, file));
    buf_deinit(&text);
    json_decref(file);
    json_decref(root);
}

static void a_mask_without_a_key_behind_it_is_refused(void) {
    static const char *const tries[] = {
        "{\"tenants\":[{\"name\":\"s\",\"keys\":[\"****\",\"****\",\"****\"]}]}", // has two
        "{\"tenants\":[{\"name\":\"new\",\"keys\":[\"****\"]}]}",
        "{\"tenants\":[{\"name\":\"t\",\"keys\":[\"****\"]}]}", // has a file
    };
    json_t *file = load(config_text);
    for (size_t i = 0; i < INFERD_COUNT(tries) + 1; i++) {
        json_t *root = load(i < INFERD_COUNT(tries) ? tries[i] : config_text);
        inferd_err err = {0};
        uint32_t n;
        inferd_status st = edit_unmask(root, file, &n, &err);
        EXPECT_EQ(st, i < INFERD_COUNT(tries) ? INFERD_EINVAL : INFERD_OK);
        EXPECT(strstr(err.text, "key-of") == NULL);
        json_decref(root);
    }
    json_decref(file);
}

/* ---- plans ---- */

static plan_model hot(const char *name, gen_class prio, uint32_t pages, uint64_t idle_ms) {
    return (plan_model){.name = name,
                        .hot = true,
                        .prio = prio,
                        .weight = 1,
                        .weight_pages = pages,
                        .idle_us = idle_ms * 1000,
                        .reload_us = 1000000};
}

static const plan_check *check_of(const plan_answer *p, const char *name) {
    for (uint32_t i = 0; i < p->n_checks; i++)
        if (strcmp(p->checks[i].name, name) == 0) return &p->checks[i];
    return NULL;
}

static const char *say_of(const plan_answer *p, const char *name) {
    const plan_check *c = check_of(p, name);
    return c != NULL ? c->text : "";
}

/* 100 pages: 20 + 30 + 20 + 20 are used, 10 are free; cached pages of c: 5 of its 10. */
static plan_model four[4];
static plan_member four_names[4];
static plan_device device_of_four(void) {
    four[0] = hot("a", GEN_NORMAL, 20, 1000);
    four[1] = hot("b", GEN_NORMAL, 30, 9000);
    four[2] = hot("c", GEN_BATCH, 10, 100000);
    four[2].kv_pages = 10;
    four[2].cached_pages = 5;
    four[3] = hot("d", GEN_HIGH, 20, 0);
    four[3].n_work = 1;
    for (uint32_t i = 0; i < 4; i++)
        four_names[i] = (plan_member){.name = four[i].name,
                                      .weights_idx = i,
                                      .owns = true,
                                      .held_pages = four[i].weight_pages + four[i].kv_pages,
                                      .cached_pages = four[i].cached_pages};
    return (plan_device){.n_pages = 100,
                         .n_free = 10,
                         .page_bytes = 1 << 20,
                         .models = four,
                         .n_models = 4,
                         .members = four_names,
                         .n_members = 4};
}

static plan_answer plan_of(const plan_device *d, gen_class prio, uint32_t pages, uint32_t min,
                           uint32_t max) {
    plan_wanted w = {.name = "new",
                     .idx = UINT32_MAX,
                     .member_idx = UINT32_MAX,
                     .prio = prio,
                     .weight_pages = pages,
                     .min_pages = min,
                     .max_pages = max};
    plan_answer p;
    EXPECT(plan_model_check(d, &w, &p));
    return p;
}

static void no_model_is_evicted_while_there_is_room(void) {
    plan_device d = device_of_four();
    for (uint32_t pages = 0; pages <= 14; pages++) { // 10 free, 5 cached, one for keys and values
        plan_answer p = plan_of(&d, GEN_NORMAL, pages, 0, FEASIBLE_UNLIMITED);
        EXPECT(p.fits && p.now && !p.slices);
        EXPECT_EQ(p.n_victims, 0);
        plan_answer_deinit(&p);
    }
}

static void the_least_worth_goes_first(void) {
    plan_device d = device_of_four();
    static const struct { uint32_t pages, n; } tries[] = {{15, 1}, {29, 1}, {65, 3}, {79, 3}};
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        plan_answer p = plan_of(&d, GEN_NORMAL, tries[i].pages, 0, FEASIBLE_UNLIMITED);
        EXPECT(p.now);
        EXPECT_EQ(p.n_victims, tries[i].n);
        EXPECT_EQ(p.n_idle, tries[i].n);
        static const uint32_t order[] = {
            2, 1, 0}; // c is idle for long; b is larger, and idle for longer than a
        for (uint32_t k = 0; k < p.n_victims && k < 3; k++) EXPECT_EQ(p.victims[k], order[k]);
        plan_answer_deinit(&p);
    }
}

/* c, b and a would go in this order.  Once b goes c is not needed; nor are c and b for what a alone
 * leaves, were it worth the least. */
static void an_unneeded_victim_is_spared(void) {
    plan_device d = device_of_four();
    plan_answer p = plan_of(&d, GEN_NORMAL, 30, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.now && p.n_victims == 1 && p.n_idle == 1 && p.victims[0] == 1); // 15 + 30 >= 31
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 45, 0, FEASIBLE_UNLIMITED); // 15 + 30 < 46: c and b
    EXPECT(p.now && p.n_victims == 2 && p.victims[0] == 2 && p.victims[1] == 1);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_SYSTEM, 80, 0, FEASIBLE_UNLIMITED); // nobody is, where work has to go, too
    EXPECT(p.now && p.n_victims == 4 && p.n_idle == 3);
    plan_answer_deinit(&p);
}

/* Such a plan named no model, because a min is given in any case, and then models were evicted. */
static void a_min_names_the_models_that_it_takes_pages_of(void) {
    plan_device d = device_of_four();
    plan_answer p = plan_of(&d, GEN_NORMAL, 30, 31, FEASIBLE_UNLIMITED); // for its load, as without
    EXPECT(p.now && p.n_victims == 1 && p.n_for_load == 1 && p.victims[0] == 1);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 10, 15, FEASIBLE_UNLIMITED); // 10 free and 5 cached: there is room
    EXPECT(p.now && p.n_victims == 0);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 10, 16, FEASIBLE_UNLIMITED); // the load has room, the min has not
    EXPECT(p.now && p.n_for_load == 0 && p.n_victims == 1 && p.victims[0] == 2);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 10, 50, FEASIBLE_UNLIMITED); // in order, and none is spared
    EXPECT(p.now && p.n_for_load == 0 && p.n_victims == 2);
    EXPECT(p.victims[0] == 2 && p.victims[1] == 1);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 80, 81, FEASIBLE_UNLIMITED); // d works, and is of a higher class
    EXPECT(p.now && p.n_for_load == 4 && p.n_victims == 4 && p.n_idle == 3 && p.victims[3] == 3);
    plan_answer_deinit(&p);
}

static void no_model_is_evicted_in_vain(void) {
    plan_device d = device_of_four();
    plan_answer p = plan_of(&d, GEN_NORMAL, 80, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.fits && !p.now && !p.slices);
    EXPECT_EQ(p.n_victims, 0);
    const plan_check *c = check_of(&p, "memory");
    EXPECT(!c->kept && c->need_pages == 81 && c->have_pages == 80);
    plan_answer_deinit(&p);
}

static void work_of_a_lower_class_goes_after_the_idle(void) {
    plan_device d = device_of_four();
    plan_answer p = plan_of(&d, GEN_SYSTEM, 80, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.now);
    EXPECT_EQ(p.n_victims, 4);
    EXPECT_EQ(p.n_idle, 3);
    EXPECT_EQ(p.victims[3], 3);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_HIGH, 80, 0, FEASIBLE_UNLIMITED); // the same class: turns
    EXPECT(!p.now && p.slices);
    EXPECT_EQ(p.n_victims, 0);
    plan_answer_deinit(&p);
}

static void what_is_pinned_stays_and_counts_for_others(void) {
    plan_device d = device_of_four();
    four[1].pinned = true;
    four[1].pinned_pages = 30;
    plan_answer p = plan_of(&d, GEN_SYSTEM, 69, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.now);
    EXPECT_EQ(p.n_victims, 3); // all others
    for (uint32_t k = 0; k < p.n_victims; k++) EXPECT(p.victims[k] != 1);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_SYSTEM, 70, 0, FEASIBLE_UNLIMITED); // with keys and values 71 > 70
    EXPECT(!p.fits && !p.now);
    EXPECT(!check_of(&p, "device")->kept);
    EXPECT_EQ(check_of(&p, "device")->have_pages, 70);
    plan_answer_deinit(&p);
}

static void guarantees_and_ceilings_are_checked(void) {
    plan_device d = device_of_four();
    four_names[0].min_pages = 60;
    plan_answer p = plan_of(&d, GEN_NORMAL, 5, 40, FEASIBLE_UNLIMITED);
    EXPECT(check_of(&p, "guarantees")->kept);
    EXPECT(check_of(&p, "ceiling") == NULL);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 5, 41, FEASIBLE_UNLIMITED);
    EXPECT(!p.fits && !check_of(&p, "guarantees")->kept);
    EXPECT_EQ(check_of(&p, "guarantees")->need_pages, 101);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 5, 0, 6);
    EXPECT(check_of(&p, "ceiling")->kept);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 5, 0, 5);
    EXPECT(!p.fits && !check_of(&p, "ceiling")->kept);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 40, 0, FEASIBLE_UNLIMITED); // 100 - 60
    EXPECT(!p.fits && !check_of(&p, "device")->kept);
    plan_answer_deinit(&p);
}

static void pages_guaranteed_to_others_are_not_free(void) {
    plan_device d = device_of_four();
    four_names[3].min_pages = 26; // holds 20
    plan_answer p = plan_of(&d, GEN_NORMAL, 8, 0, FEASIBLE_UNLIMITED);
    EXPECT_EQ(p.n_victims, 0);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 9, 0, FEASIBLE_UNLIMITED); // 10 + 5 - 6 < 9 + 1
    EXPECT_EQ(p.n_victims, 1);
    plan_answer_deinit(&p);
}

static void a_model_that_is_there_is_not_its_own_victim(void) {
    plan_device d = device_of_four();
    plan_wanted w = {.name = "b",
                     .idx = 1,
                     .member_idx = 1,
                     .prio = GEN_NORMAL,
                     .weight_pages = 30,
                     .max_pages = FEASIBLE_UNLIMITED};
    plan_answer p;
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.fits && p.now);
    EXPECT_EQ(p.n_victims, 0); // what it holds counts
    plan_answer_deinit(&p);
    w.weight_pages = 60;
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.now && p.n_victims == 1 && p.victims[0] == 0); // c alone is one page too small
    plan_answer_deinit(&p);
}

/* A plan added a model's cached pages to what was free and to what it held, and said "now". */
static void cached_pages_count_once(void) {
    plan_device d = device_of_four();
    plan_wanted w = {.name = "c",
                     .idx = 2,
                     .member_idx = 2,
                     .prio = GEN_NORMAL,
                     .weight_pages = 30,
                     .max_pages = FEASIBLE_UNLIMITED};
    plan_answer p;
    four[0].pinned = four[1].pinned = true;
    EXPECT(plan_model_check(&d, &w, &p)); // it holds 10 and 5, 5 are cached, 10 are free
    EXPECT(!p.now && check_of(&p, "memory")->have_pages == 30);
    plan_answer_deinit(&p);
}

/* Cached pages of a model within its guarantee are kept free for it when they go, and so is what
 * several leave: of 10 pages that are reserved anyway each of two guarantees would be a part. */
static void what_goes_is_kept_for_whom_it_was_guaranteed(void) {
    plan_device d = device_of_four();
    four_names[2].min_pages = 20; // has them, with 5 cached ones
    plan_answer p = plan_of(&d, GEN_NORMAL, 9, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.now && p.n_victims == 0);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 10, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.now && p.n_victims == 1);
    plan_answer_deinit(&p);
    d = device_of_four();
    d.reserved_pages = 10;
    four_names[0].min_pages = four_names[1].min_pages = 8;
    p = plan_of(&d, GEN_NORMAL, 63, 0, FEASIBLE_UNLIMITED); // 5 + 15 + 20 + 30 - 6
    EXPECT(p.now && p.n_victims == 3);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 64, 0, FEASIBLE_UNLIMITED);
    EXPECT(!p.now && p.n_victims == 0);
    EXPECT_EQ(check_of(&p, "memory")->have_pages, 64);
    plan_answer_deinit(&p);
}

/* The guarantees of those who share its weights were left out with its own. */
static void a_model_that_shares_weights_keeps_its_guarantee(void) {
    plan_device d = device_of_four();
    plan_wanted w = {.name = "b",
                     .idx = 1,
                     .member_idx = 1,
                     .prio = GEN_NORMAL,
                     .weight_pages = 30,
                     .min_pages = 20,
                     .max_pages = FEASIBLE_UNLIMITED};
    plan_answer p;
    four_names[3] = (plan_member){.name = "b2", .weights_idx = 1, .min_pages = 50};
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT_EQ(check_of(&p, "guarantees")->need_pages, 70);
    EXPECT(strstr(say_of(&p, "guarantees"), "b2 50 MiB") != NULL);
    EXPECT_EQ(check_of(&p, "device")->have_pages, 50);
    plan_answer_deinit(&p);
    w.member_idx = 3, w.name = "b2", w.min_pages = 50; // the other way round
    four_names[1].min_pages = 45;                      // of which the weights fill 30
    w.max_pages = 1; // they count for b: its own are keys and values
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT_EQ(check_of(&p, "guarantees")->need_pages, 95);
    EXPECT_EQ(check_of(&p, "device")->have_pages, 85);
    EXPECT(check_of(&p, "ceiling")->kept && p.now);
    plan_answer_deinit(&p);
}

/* A newcomer that has the same content finds its weights there. */
static void a_new_model_shares_the_weights_that_are_there(void) {
    plan_device d = device_of_four();
    plan_wanted w = {.name = "b2",
                     .idx = 1,
                     .member_idx = UINT32_MAX,
                     .prio = GEN_NORMAL,
                     .weight_pages = 30,
                     .max_pages = 1};
    plan_answer p;
    d.n_free = 1;
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.now && p.n_victims == 0);
    plan_answer_deinit(&p);
    d.n_free = 0, four[2].cached_pages = 0;
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.now && p.n_victims == 1 && p.victims[0] == 2); // never b
    plan_answer_deinit(&p);
}

static void guarantees_are_told_against_the_capacity(void) {
    plan_device d = device_of_four();
    plan_answer p = plan_of(&d, GEN_NORMAL, 5, 100, FEASIBLE_UNLIMITED);
    EXPECT(check_of(&p, "guarantees")->kept);
    EXPECT(strstr(say_of(&p, "guarantees"), "<= capacity 100 MiB") != NULL);
    plan_answer_deinit(&p);
}

/* Steps of 12 and 6 ms each 30 and 20 ms: 0.40 + 0.30 + 12/20. */
static void targets_of_a_device_are_kept_together(void) {
    static const char *const names[] = {"a", "new"};
    feasible_task tasks[] = {{12000, 30000, 0}, {6000, 20000, 1}};
    plan_device d = device_of_four();
    plan_wanted w = {.name = "new",
                     .idx = UINT32_MAX,
                     .member_idx = UINT32_MAX,
                     .prio = GEN_NORMAL,
                     .weight_pages = 5,
                     .max_pages = FEASIBLE_UNLIMITED};
    plan_answer p;
    d.tasks = tasks, d.task_names = names;
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.fits && check_of(&p, "targets") == NULL); // nothing is known of its steps
    plan_answer_deinit(&p);
    d.n_tasks = 2;
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(!p.fits && !check_of(&p, "targets")->kept);
    EXPECT_EQ(check_of(&p, "targets")->need_pages, 130);
    EXPECT(strstr(say_of(&p, "targets"), "0.70 + 0.60 = 1.30 > 1") != NULL);
    plan_answer_deinit(&p);
    tasks[1].period_us = 60000; // 0.40 + 0.10 + 12/30
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.fits && check_of(&p, "targets")->kept);
    EXPECT_EQ(check_of(&p, "targets")->need_pages, 90);
    plan_answer_deinit(&p);
}

static void shares_of_a_device_are_at_most_all_of_it(void) {
    plan_device d = device_of_four();
    plan_wanted w = {.name = "new",
                     .idx = UINT32_MAX,
                     .member_idx = UINT32_MAX,
                     .prio = GEN_NORMAL,
                     .weight_pages = 5,
                     .max_pages = FEASIBLE_UNLIMITED,
                     .share_percent = 60};
    plan_answer p;
    for (d.share_percent = 40; d.share_percent <= 41; d.share_percent++) {
        EXPECT(plan_model_check(&d, &w, &p));
        EXPECT_EQ(p.fits, d.share_percent == 40);
        EXPECT_EQ(check_of(&p, "shares")->need_pages, d.share_percent + 60);
        plan_answer_deinit(&p);
    }
    w.share_percent = 0; // nothing is guaranteed to it
    EXPECT(plan_model_check(&d, &w, &p));
    EXPECT(p.fits && check_of(&p, "shares") == NULL);
    plan_answer_deinit(&p);
}

/* What leaves is guaranteed its pages still, and they are kept free for it. */
static void a_victim_takes_its_guarantee_along(void) {
    plan_device d = device_of_four();
    four_names[1].min_pages = 25;                                       // of its 30
    plan_answer p = plan_of(&d, GEN_NORMAL, 15, 0, FEASIBLE_UNLIMITED); // 16 of 10 + 5, and 1 more
    EXPECT(p.now && p.n_victims == 1 && p.victims[0] == 2);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 54, 0, FEASIBLE_UNLIMITED); // 10 + 5, 15 of c, 5 of b, 20 of a
    EXPECT(p.now && p.n_victims == 3);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 55, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.fits && !p.now && p.n_victims == 0);
    plan_answer_deinit(&p);
}

static void what_tenants_are_guaranteed_is_kept(void) {
    plan_device d = device_of_four();
    four_names[3].min_pages = 26; // holds 20; tenants' guarantees are out of the same pages
    d.tenants_min_pages = 30, d.reserved_pages = 9;
    plan_answer p = plan_of(&d, GEN_NORMAL, 5, 0, FEASIBLE_UNLIMITED);
    EXPECT(p.now && p.n_victims == 0); // 10 + 5 - 9
    EXPECT_EQ(check_of(&p, "device")->have_pages, 70);
    plan_answer_deinit(&p);
    p = plan_of(&d, GEN_NORMAL, 6, 0, FEASIBLE_UNLIMITED);
    EXPECT_EQ(p.n_victims, 1);
    plan_answer_deinit(&p);
}

static bool first_goes(const plan_model *a, const plan_model *b) {
    plan_model both[] = {*a, *b};
    plan_device d = {.models = both, .n_models = 2};
    worth_candidate x = plan_candidate(&d, 0), y = plan_candidate(&d, 1);
    return x.prio != y.prio ? x.prio > y.prio : x.value < y.value;
}

static void worth_is_weight_and_time_against_pages_and_age(void) {
    plan_model a = hot("a", GEN_NORMAL, 10, 1000), b = a;
    EXPECT(!first_goes(&a, &b) && !first_goes(&b, &a));
    b.weight = 2;
    EXPECT(first_goes(&a, &b));
    b = a, b.reload_us = 2000000;
    EXPECT(first_goes(&a, &b));
    b = a, b.weight_pages = 9;
    EXPECT(first_goes(&a, &b));
    b = a, b.idle_us = 500000;
    EXPECT(first_goes(&a, &b));
    b = a;
    for (int i = 0; i < 10; i++) worth_note_pause(&b.pauses, 100000, 1); // it is wanted soon
    EXPECT(first_goes(&a, &b));
    b = a, b.prio = GEN_HIGH;
    EXPECT(first_goes(&a, &b));
    b.idle_us = 30000000; // its class is forgotten
    EXPECT(first_goes(&b, &a));
    b.n_work = 1; // with work, it stays in any case
    EXPECT(first_goes(&a, &b));
    a = hot("a", GEN_NORMAL, UINT32_MAX - 1, UINT64_MAX / 1000); // no sum runs over
    a.weight = UINT32_MAX;
    a.reload_us = UINT64_MAX;
    EXPECT(first_goes(&a, &b) || first_goes(&b, &a));
}

static void bytes_become_pages_rounded_up(void) {
    EXPECT_EQ(plan_pages(0, 4096), 0);
    EXPECT_EQ(plan_pages(1, 4096), 1);
    EXPECT_EQ(plan_pages(4096, 4096), 1);
    EXPECT_EQ(plan_pages(4097, 4096), 2);
    EXPECT_EQ(plan_pages(5, 0), 0);
    EXPECT(plan_pages(UINT64_MAX, 1) < UINT32_MAX);
    EXPECT_EQ(plan_prepared_bytes(1000), 1150);
}

/* ---- ctl ---- */

static void urls_are_taken_apart(void) {
    static const struct {
        const char *url, *host, *port; // host NULL: refused
    } tries[] = {
        {"http://127.0.0.1:8080", "127.0.0.1", "8080"},
        {"http://host/", "host", "80"},
        {"HTTP://[::1]:9", "::1", "9"},
        {"http://[::1]", "::1", "80"},
        {"https://host", NULL, NULL},
        {"http://", NULL, NULL},
        {"http://h:", NULL, NULL},
        {"http://h:x", NULL, NULL},
        {"http://h:123456", NULL, NULL},
        {"http://h/path", NULL, NULL},
        {"http://[::1", NULL, NULL},
        {"host:80", NULL, NULL},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        char host[256], port[8];
        bool fine = ctl_split_url(tries[i].url, host, port);
        EXPECT_EQ(fine, tries[i].host != NULL);
        if (!fine || tries[i].host == NULL) continue;
        EXPECT_STR(host, tries[i].host);
        EXPECT_STR(port, tries[i].port);
    }
}

static void answers_are_read_whole_or_not_at_all(void) {
    static const struct {
        const char *text;
        int status; // 0: no answer
        const char *body;
    } tries[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi"},
        {"HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\nhi, more", 200, "hi"},
        {"HTTP/1.1 409 Conflict\r\n\r\nto the end", 409, "to the end"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: "
         "chunked\r\n\r\n2\r\nhi\r\nA\r\n0123456789\r\n0\r\n\r\n",
         200, "hi0123456789"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi\r\n", 0, NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz", 0, NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", 0, NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", 0, NULL},
        {"SSH-2.0-OpenSSH\r\n\r\n", 0, NULL},
        {"", 0, NULL},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        ctl_answer a;
        inferd_err err = {0};
        inferd_status st = ctl_read_answer((bytes){tries[i].text, strlen(tries[i].text)}, &a, &err);
        EXPECT_EQ(st == INFERD_OK, tries[i].status != 0);
        EXPECT_EQ(err.text[0] != 0, tries[i].status == 0);
        if (st != INFERD_OK) continue;
        EXPECT_EQ(a.status, tries[i].status);
        EXPECT_STR(buf_cstr(&a.body), tries[i].body == NULL ? "" : tries[i].body);
        buf_deinit(&a.body);
    }
}

static void names_become_one_segment(void) {
    buf out = {0};
    ctl_add_segment(&out, "org/Model 1.5~x_%\xc3\xa4");
    EXPECT_STR(buf_cstr(&out), "org%2FModel%201.5~x_%25%C3%A4");
    buf_deinit(&out);
}

static void sizes_and_times_are_for_people(void) {
    static const struct {
        uint64_t n;
        const char *text;
    } sizes[] = {
        {0, "0"},          {1, "1 B"},           {1023, "1023 B"},        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"}, {10 << 20, "10 MiB"}, {3ull << 30, "3.0 GiB"}, {1ull << 50, "1024 TiB"}};
    static const struct {
        double s;
        const char *text;
    } times[] = {{0, "0"},         {0.0021, "2 ms"}, {1, "1.0 s"},
                 {119, "119.0 s"}, {180, "3.0 min"}, {7200, "2.0 h"}};
    for (size_t i = 0; i < INFERD_COUNT(sizes); i++) {
        buf out = {0};
        show_add_size(&out, sizes[i].n);
        EXPECT_STR(buf_cstr(&out), sizes[i].text);
        buf_deinit(&out);
    }
    for (size_t i = 0; i < INFERD_COUNT(times); i++) {
        buf out = {0};
        show_add_seconds(&out, times[i].s);
        EXPECT_STR(buf_cstr(&out), times[i].text);
        buf_deinit(&out);
    }
}

static void counts_have_at_most_five_places(void) {
    static const struct {
        uint64_t n;
        const char *text;
    } tries[] = {{0, "0"},          {99999, "99999"},     {100000, "100k"},
                 {999499, "999k"},  {999500, "1.0M"},     {12345678, "12M"},
                 {9949999, "9.9M"}, {3000000000, "3.0G"}, {UINT64_MAX, "18E"}};
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        buf out = {0};
        show_add_count(&out, tries[i].n);
        EXPECT_STR(buf_cstr(&out), tries[i].text);
        buf_deinit(&out);
    }
}

static void tables_are_aligned_and_hold_no_controls(void) {
    json_t *state =
        load("{\"tenants\":[{\"name\":\"a\\u001b[2J\",\"class\":\"high\",\"weight\":2,"
             "\"keys\":10},{\"name\":\"longer \\u00e4\",\"keys\":1,\"min_bytes\":1024}]}");
    buf out = {0};
    show_tenants(&out, state);
    buf_add_char(&out, 0);
    EXPECT(memchr(out.p, 0x1b, out.n) == NULL);
    EXPECT(strncmp(out.p, "TENANT    USED%", 15) == 0);
    const char *limits = strstr(out.p, "TENANT    UP TO");
    EXPECT(limits != NULL);
    if (limits != NULL) {
        const char *first = strchr(limits, '\n') + 1, *second = strchr(first, '\n') + 1;
        EXPECT(strncmp(first, "a [2J     high ", 15) == 0);
        EXPECT(strncmp(second, "longer \xc3\xa4  -    ", 16) == 0);
        EXPECT(strstr(first, "  10\n") != NULL && strstr(second, "   1\n") != NULL);
    }
    show_state(&out, NULL); // whatever comes, nothing breaks
    show_models(&out, NULL);
    show_plan(&out, state);
    show_error(&out, state);
    buf_deinit(&out);
    json_decref(state);
}

/* A plan named its victims raw: only tables replaced what a terminal obeys. */
static void sentences_hold_no_controls(void) {
    json_t *plan = load("{\"model\":\"a\\u001b]0;x\\u0007\",\"fits\":true,\"victims\":"
                        "[{\"name\":\"b\\u009b31m\\u00e4\\u007f\",\"why\":\"idle\"}]}");
    buf out = {0};
    show_plan(&out, plan);
    show_blank_controls(&out);
    EXPECT(strncmp(buf_cstr(&out), "a ]0;x  fits\n", 13) == 0);
    EXPECT(strstr(buf_cstr(&out), "b  31m\xc3\xa4  (idle") != NULL);
    buf_clear(&out);
    buf_add_str(&out, "\xc2"); // half a character at the end
    show_blank_controls(&out);
    EXPECT_STR(buf_cstr(&out), "\xc2");
    buf_deinit(&out);
    show_blank_controls(&out); // nothing
    json_decref(plan);
}

/* A state with the longest names and numbers that there may be. */
static const char wide_state[] =
    "{\"recent\":{\"window_s\":10.9},"
    "\"devices\":[{\"name\":\"NAME\",\"about\":\"NAME NAME\",\"page_bytes\":2097152,\"lost\":true,"
    "\"pages\":{\"device\":511999,\"device_free\":511999,\"weight\":511999,\"kv\":511999,"
    "\"cached\":511999,\"host\":511999,\"host_free\":511999,\"warm\":511999,\"parked\":511999},"
    "\"recent\":{\"step\":1,\"load\":1,\"idle\":1},\"turns\":18000000000,\"thrash\":{\"now\":true}}"
    "],"
    "\"models\":[{\"name\":\"NAME\",\"state\":\"loading\",\"bytes\":{\"loaded\":1,\"total\":1},"
    "\"held\":true,\"pin\":\"warm\",\"class\":\"system\",\"weight\":1000,"
    "\"share\":{\"policy\":\"besteffort\",\"percent\":6400},\"min_bytes\":1072693248,"
    "\"max_bytes\":1072693248,\"running\":100000,\"waiting\":100000,\"loads\":1234567,"
    "\"pages\":{\"weight\":511999,\"kv\":511999},\"evictions\":{\"idle\":12345678},"
    "\"switch\":{\"mean\":{\"stage_s\":119.9}},\"device_s\":431999000,\"idle_s\":431999000,"
    "\"recent\":{\"share\":64,\"prompt_tokens_per_s\":123456,\"output_tokens_per_s\":123456},"
    "\"placed\":[{\"device\":\"NAME\",\"replica\":\"joining\"}],\"desired_replicas\":64}],"
    "\"tenants\":[{\"name\":\"NAME\",\"class\":\"normal\",\"weight\":1000,"
    "\"share\":{\"policy\":\"besteffort\",\"percent\":6400},\"min_bytes\":1072693248,"
    "\"max_bytes\":1072693248,\"used_bytes\":1072693248,\"refused\":123456789012,"
    "\"queue\":{\"running\":100000,\"waiting\":100000},\"use\":{\"tokens_today\":9007199254740992},"
    "\"recent\":{\"share\":64,\"prompt_tokens_per_s\":123456,\"output_tokens_per_s\":123456},"
    "\"limits\":{\"requests_per_min\":4000000000,\"tokens_per_min\":4000000000,"
    "\"concurrent\":4000000000,\"tokens_per_day\":900719925474099,"
    "\"tokens_per_month\":900719925474099},\"keys\":100000}],"
    "\"queues\":{\"running\":100000,\"waiting\":100000,\"paused\":100000},\"draining\":true,"
    "\"config\":{\"path\":\"/NAME/NAME\",\"reloads\":{\"ok\":123456789,\"refused\":123456789},"
    "\"unsaved\":4096}}";

/* wide_state with this name everywhere. */
static json_t *state_of(const char *name) {
    buf text = {0};
    for (const char *p = wide_state; *p != 0;) {
        const char *hole = strstr(p, "NAME");
        buf_add(&text, p, hole != NULL ? (size_t)(hole - p) : strlen(p));
        p = hole != NULL ? hole + 4 : p + strlen(p);
        if (hole != NULL) buf_add_str(&text, name);
    }
    json_t *state = load(buf_cstr(&text));
    buf_deinit(&text);
    return state;
}

/* Code points of the longest line. */
static size_t longest_line(const char *text) {
    size_t longest = 0, n = 0;
    for (; *text != 0; text++) {
        n = *text == '\n' ? 0 : n + (((unsigned char)*text & 0xC0) != 0x80);
        longest = size_max(longest, n);
    }
    return longest;
}

static void no_table_is_wider_than_a_terminal(void) {
    static void (*const shows[])(buf *, const json_t *) = {show_state, show_models, show_tenants};
    static const char *const names[] = {
        "m", "Meta-Llama-3.1-70B-Instruct-Q4_K_M-with-a-very-long-name-of-a-fine-tune-2026-11-26",
        "gr\xc3\xbc\xc3\x9f-"
        "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc"
        "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc"
        "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        json_t *state = state_of(names[i]);
        for (size_t k = 0; k < INFERD_COUNT(shows); k++) {
            buf out = {0};
            shows[k](&out, state);
            size_t n = longest_line(buf_cstr(&out));
            EXPECT(n <= SHOW_WIDTH);
            if (n > SHOW_WIDTH) printf("%zu columns:\n%s", n, buf_cstr(&out));
            if (i > 0) EXPECT(strstr(buf_cstr(&out), "\xe2\x80\xa6") != NULL);
            json_t *whole = json_string(buf_cstr(&out)); // cut between characters: it is UTF-8
            EXPECT(whole != NULL);
            json_decref(whole);
            buf_deinit(&out);
        }
        json_decref(state);
    }
}

static void a_model_tells_how_many_replicas_serve_and_how_many_it_wants(void) {
    json_t *state = load("{\"models\":[{\"name\":\"one\",\"placed\":[{\"replica\":\"serving\"}],"
                         "\"desired_replicas\":1},{\"name\":\"two\",\"placed\":[{\"replica\":"
                         "\"serving\"},{\"replica\":\"joining\"}],\"desired_replicas\":2,"
                         "\"placement_problem\":\"cpu1 is full\"}]}");
    buf out = {0};
    show_state(&out, state);
    EXPECT(strstr(buf_cstr(&out), "  1\ntwo ") != NULL);
    EXPECT(strstr(buf_cstr(&out), "  1, wants 2\n") != NULL);
    EXPECT(strstr(buf_cstr(&out), "two: no device for another replica: cpu1 is full\n") != NULL);
    buf_deinit(&out);
    json_decref(state);
}

static void a_plan_tells_warm_and_cold_bring_ups_apart(void) {
    json_t *plan = load(
        "{\"model\":\"m\",\"fits\":true,\"victims\":[{\"name\":\"a\",\"when\":\"load\",\"why\":"
        "\"idle\",\"bytes\":1024,\"idle_s\":2},{\"name\":\"b\",\"when\":\"min\",\"why\":\"idle\","
        "\"bytes\":1024,\"idle_s\":2}],\"bring_up\":{\"s\":2.8,\"from\":\"file\",\"measured\":true,"
        "\"basis\":\"its earlier loads\",\"file\":{\"n\":1,\"s\":2.8},\"host\":{\"n\":3,\"s\":"
        "0.06}}}");
    buf out = {0};
    show_plan(&out, plan);
    EXPECT_STR(buf_cstr(&out), "m fits\n"
                               "  evicts      a (idle, 1.0 KiB, idle 2.0 s)\n"
                               "  evicts      b, once it uses its min (idle, 1.0 KiB, idle 2.0 s)\n"
                               "  brought up in 2.8 s, from its file (its earlier loads)\n"
                               "    from its file: 2.8 s (mean of 1 bring-up)\n"
                               "    from its copy in host memory: 60 ms (mean of 3 bring-ups)\n");
    buf_deinit(&out);
    json_decref(plan);
}

/* ---- routes ---- */

static void a_name_may_stand_in_the_middle_of_a_route(void) {
    static const http_route routes[] = {
        {"/m/*", HTTP_GET, HTTP_OPEN, false, false, NULL},
        {"/m/*", HTTP_PATCH, HTTP_OPEN, true, false, NULL},
        {"/m/*/load", HTTP_POST, HTTP_ADMIN, true, false, NULL},
        {"/u/**", HTTP_POST, HTTP_ADMIN, false, false, NULL},
    };
    static const struct {
        const char *method, *target;
        int route, status;
        const char *tail;
    } tries[] = {
        {"GET", "/m/a", 0, 0, "a"},           {"PATCH", "/m/a%2Fb", 1, 0, "a/b"},
        {"POST", "/m/a/load", 2, 0, "a"},     {"POST", "/m/a%2Fb/load", 2, 0, "a/b"},
        {"POST", "/m/a/b/load", -1, 404, ""}, {"POST", "/m//load", -1, 404, ""},
        {"POST", "/m/a/loads", -1, 404, ""},  {"POST", "/m/a", -1, 405, ""},
        {"GET", "/m/a/load", -1, 405, ""},    {"POST", "/u/a/b", 3, 0, "a/b"},
        {"POST", "/u/a", 3, 0, "a"},          {"POST", "/u/", -1, 404, ""},
        {"POST", "/u/%00", -1, 404, ""},      {"POST", "/m/%2/load", -1, 404, ""},
        {"POST", "/m/%/load", -1, 404, ""},
    };
    for (size_t i = 0; i < INFERD_COUNT(tries); i++) {
        guard g;
        guard_refusal why = {0};
        guard_init(&g, tries[i].method, tries[i].target, "HTTP/1.1");
        bool fine = guard_route(&g, routes, INFERD_COUNT(routes), &why);
        EXPECT_EQ(fine, tries[i].route >= 0);
        EXPECT_EQ(fine ? 0 : why.status, tries[i].status);
        if (fine) EXPECT_EQ(g.route - routes, tries[i].route);
        EXPECT_STR(g.tail, tries[i].tail);
        if (why.status == 405 && strcmp(tries[i].target, "/m/a") == 0)
            EXPECT_EQ(why.allow, HTTP_GET | HTTP_HEAD | HTTP_PATCH);
    }
}

static const test_case tests[] = {
    TEST(models_are_found_by_alias_and_tenants_are_not),
    TEST(a_patch_replaces_merges_and_takes_away),
    TEST(a_patch_of_an_unknown_tenant_is_not_found),
    TEST(only_what_may_change_can_be_patched),
    TEST(an_element_replaces_its_name_or_is_appended),
    TEST(masks_hide_every_key_and_come_back_as_the_same),
    TEST(a_mask_without_a_key_behind_it_is_refused),
    TEST(no_model_is_evicted_while_there_is_room),
    TEST(the_least_worth_goes_first),
    TEST(an_unneeded_victim_is_spared),
    TEST(a_min_names_the_models_that_it_takes_pages_of),
    TEST(no_model_is_evicted_in_vain),
    TEST(work_of_a_lower_class_goes_after_the_idle),
    TEST(what_is_pinned_stays_and_counts_for_others),
    TEST(guarantees_and_ceilings_are_checked),
    TEST(pages_guaranteed_to_others_are_not_free),
    TEST(a_model_that_is_there_is_not_its_own_victim),
    TEST(cached_pages_count_once),
    TEST(what_goes_is_kept_for_whom_it_was_guaranteed),
    TEST(a_model_that_shares_weights_keeps_its_guarantee),
    TEST(a_new_model_shares_the_weights_that_are_there),
    TEST(guarantees_are_told_against_the_capacity),
    TEST(shares_of_a_device_are_at_most_all_of_it),
    TEST(targets_of_a_device_are_kept_together),
    TEST(a_victim_takes_its_guarantee_along),
    TEST(what_tenants_are_guaranteed_is_kept),
    TEST(worth_is_weight_and_time_against_pages_and_age),
    TEST(bytes_become_pages_rounded_up),
    TEST(urls_are_taken_apart),
    TEST(answers_are_read_whole_or_not_at_all),
    TEST(names_become_one_segment),
    TEST(sizes_and_times_are_for_people),
    TEST(counts_have_at_most_five_places),
    TEST(tables_are_aligned_and_hold_no_controls),
    TEST(sentences_hold_no_controls),
    TEST(no_table_is_wider_than_a_terminal),
    TEST(a_model_tells_how_many_replicas_serve_and_how_many_it_wants),
    TEST(a_plan_tells_warm_and_cold_bring_ups_apart),
    TEST(a_name_may_stand_in_the_middle_of_a_route),
};
TEST_MAIN(tests)
