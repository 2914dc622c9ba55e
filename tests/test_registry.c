/* test_registry.c - which slot serves which model of which configuration, and when a slot is empty
 * again.  But for the last tests there is no fleet here, so a slot that leaves is gone as soon as
 * no answer needs it. */
#include <sys/stat.h>
#include <unistd.h>

#include "registry.h"
#include "test.h"

#include "engine_private.h"
#include "fake_device.h"
#include "inferd/clock.h"
#include "own_allocator.h"
#include "tiny_gguf.h"

#if OWN_ALLOCATOR
static __thread bool no_memory;
void *__libc_malloc(size_t n);

void *malloc(size_t n) {
    return no_memory ? NULL : __libc_malloc(n);
}
#endif

enum { N = 3 };

static char paths[N][64];
static registry r;

static void make_files(void) {
    for (int i = 0; i < N; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/test_registry.%d.%d", (int)getpid(), i);
        tiny_model_write(paths[i], 3 + (uint64_t)(i == 1 ? 0 : i), &(tiny_model_options){0});
    }
}

static void remove_files(void) {
    for (int i = 0; i < N; i++) unlink(paths[i]);
}

static bool fine(inferd_status st, const inferd_err *err) {
    if (st == INFERD_OK) return true;
    printf("%s\n", err->text);
    test_failures++;
    return false;
}

static config_model named(const char *name, int path) {
    return (config_model){.name = (char *)(uintptr_t)name,
                          .path = paths[path],
                          .policy = {.weight = 5, .min_bytes = 7, .pin = PIN_HOT}};
}

/* One configuration after another, as a daemon has them. */
static bool serve(config_model *models, uint32_t n, const int *was, uint32_t n_was, int *slots,
                  buf *problems) {
    inferd_config c = {.models = models, .n_models = n};
    registry_plan p;
    inferd_err err = {0};
    bool done = registry_plan_init(&p, &r, &c, was, n_was) &&
                registry_plan_open(&p, false, problems) && registry_apply(&r, &p, slots, &err);
    registry_plan_deinit(&p);
    return done;
}

static void begin(void) {
    inferd_err err = {0};
    make_files();
    fine(registry_init(&r, &err), &err);
}

static void end(void) {
    registry_deinit(&r);
    remove_files();
}

static uint32_t n_used(void) {
    uint32_t n = 0;
    for (int i = 0; i < REGISTRY_SLOTS; i++) n += r.slots[i].m != NULL;
    return n;
}

static void what_fits_is_kept_and_the_rest_leaves(void) {
    buf problems = {0};
    int first[2], second[2];
    begin();
    EXPECT(serve((config_model[]){named("a", 0), named("b", 2)}, 2, NULL, 0, first, &problems));
    const model *a = r.slots[first[0]].m;
    config_model changed = named("b", 2);
    changed.max_context = 64; // another model in all that follows
    EXPECT(serve((config_model[]){named("a", 0), changed}, 2, first, 2, second, &problems));
    EXPECT(second[0] == first[0] && second[1] != first[1]);
    EXPECT(r.slots[second[0]].m == a);
    EXPECT_EQ(r.slots[first[0]].n_configs, 2);
    EXPECT_EQ(r.slots[first[1]].name_idx, r.slots[second[1]].name_idx);
    EXPECT_EQ(n_used(), 3);
    registry_drop(&r, first, 2);
    EXPECT(!r.slots[first[0]].leaving && r.slots[first[1]].leaving);
    r.slots[first[1]].n_generations = 1; // an answer is still being written
    registry_sweep(&r);
    EXPECT_EQ(n_used(), 3);
    r.slots[first[1]].n_generations = 0;
    registry_sweep(&r);
    EXPECT_EQ(n_used(), 2);
    EXPECT_EQ(registry_match(&r, &changed), second[1]);
    end();
}

/* A reload back to the last but one configuration: a slot was found that an unfinished request's
 * configuration named, that request ended while files were read, and the reload was refused because
 * "all 2048 slots for models are in use". */
static void what_a_plan_found_stays_until_it_is_applied(void) {
    buf problems = {0};
    inferd_err err = {0};
    int first[1], second[1], third[1];
    config_model a = named("a", 0), b = named("a", 2);
    inferd_config c = {.models = &a, .n_models = 1};
    registry_plan p;
    begin();
    EXPECT(serve(&a, 1, NULL, 0, first, &problems));
    EXPECT(serve(&b, 1, first, 1, second, &problems));
    EXPECT(registry_plan_init(&p, &r, &c, second, 1));
    EXPECT(!p.opened[0].wanted);
    registry_drop(&r, first, 1);
    registry_sweep(&r);
    EXPECT(registry_plan_open(&p, false, &problems));
    EXPECT(fine(registry_apply(&r, &p, third, &err) ? INFERD_OK : err.status, &err));
    registry_plan_deinit(&p);
    EXPECT_EQ(third[0], first[0]);
    EXPECT_EQ(r.slots[third[0]].n_configs, 1);
    EXPECT(!r.slots[third[0]].leaving);
    /* A plan that is not applied leaves what it found as it was. */
    EXPECT(registry_plan_init(&p, &r, &c, third, 1));
    registry_plan_deinit(&p);
    EXPECT_EQ(r.slots[third[0]].n_configs, 1);
    registry_drop(&r, third, 1);
    registry_sweep(&r);
    EXPECT_EQ(n_used(), 1);
    end();
}

static void files_of_the_same_bytes_share(void) {
    buf problems = {0};
    int first[2], second[3];
    begin();
    config_model three[] = {named("a", 0), named("b", 1), named("c", 2)};
    EXPECT(serve(three, 2, NULL, 0, first, &problems));
    EXPECT_EQ(r.slots[first[1]].same_as, first[0]); // opened together
    EXPECT_EQ(r.slots[first[0]].same_as, REGISTRY_NONE);
    three[1].name = (char *)(uintptr_t) "d"; // comes later
    EXPECT(serve(three, 3, first, 2, second, &problems));
    EXPECT_EQ(r.slots[second[1]].same_as, first[0]);
    EXPECT_EQ(r.slots[second[2]].same_as, REGISTRY_NONE);
    end();
}

static void one_that_cannot_be_opened_changes_nothing(void) {
    buf problems = {0};
    int first[1], second[2];
    begin();
    config_model two[] = {named("a", 0), named("b", 2)};
    EXPECT(serve(two, 1, NULL, 0, first, &problems));
    EXPECT_EQ(truncate(paths[2], 300), 0);
    EXPECT(!serve(two, 2, first, 1, second, &problems));
    EXPECT(strstr(buf_cstr(&problems), paths[2]) != NULL);
    EXPECT_EQ(n_used(), 1);
    EXPECT_EQ(r.slots[first[0]].n_configs, 1);
    buf_deinit(&problems);
    end();
}

/* ---- a file that was replaced ---- */

static model *open_as(config_model m) {
    model *out = NULL;
    inferd_err err = {0};
    fine(registry_open_model(&m, false, &out, &err), &err);
    return out;
}

static void a_replaced_file_gets_a_slot_like_the_one_before(void) {
    buf problems = {0};
    int was[2], now[2];
    inferd_err err = {0};
    begin();
    config_model two[] = {named("a", 0), named("b", 2)};
    EXPECT(serve(two, 2, NULL, 0, was, &problems));
    r.slots[was[0]].policy.weight = 9; // changed by hand: it stays so
    EXPECT_EQ(rename(paths[1], paths[0]), 0);
    EXPECT_EQ(rename(paths[2], paths[1]), 0);
    model *m = open_as(two[0]);
    now[0] = registry_replace(&r, was[0], m, REGISTRY_NONE, &err);
    now[1] = was[1];
    EXPECT(now[0] != REGISTRY_NONE && now[0] != was[0]);
    const registry_slot *old = &r.slots[was[0]], *next = &r.slots[now[0]];
    EXPECT(next->m == m && next->n_configs == 0 && !next->stale && old->stale);
    EXPECT_STR(next->name, "a");
    EXPECT_STR(next->path, paths[0]);
    EXPECT(next->name != old->name && next->name_idx == old->name_idx);
    EXPECT(next->policy.weight == 9 && next->policy.min_bytes == 7 && next->policy.pin == PIN_HOT);
    registry_count(&r, now, 2);
    registry_drop(&r, was, 2);
    EXPECT(old->leaving && !r.slots[now[1]].leaving);
    EXPECT_EQ(r.slots[now[1]].n_configs, 1);
    EXPECT_EQ(registry_match(&r, &two[0]), now[0]);
    registry_sweep(&r);
    EXPECT_EQ(n_used(), 2);
    EXPECT(r.slots[was[0]].m == NULL);
    end();
}

/* Also before the configuration has changed: a reload in between must not take the old one. */
static void a_stale_slot_is_for_no_other_configuration(void) {
    buf problems = {0};
    int was[1], next[1];
    inferd_err err = {0};
    begin();
    config_model a = named("a", 0);
    EXPECT(serve(&a, 1, NULL, 0, was, &problems));
    int now = registry_replace(&r, was[0], open_as(named("a", 0)), REGISTRY_NONE, &err);
    EXPECT_EQ(registry_match(&r, &a), now);
    EXPECT(serve(&a, 1, was, 1, next, &problems));
    EXPECT_EQ(next[0], now);
    EXPECT_EQ(n_used(), 2);
    end();
}

static void when_all_slots_are_in_use_the_old_one_stays(void) {
    buf problems = {0};
    int was[1], slot = 0;
    inferd_err err = {0};
    begin();
    config_model a = named("a", 0);
    EXPECT(serve(&a, 1, NULL, 0, was, &problems));
    for (int i = 1; i < REGISTRY_SLOTS; i++) { // others still end their work
        r.slots[i] = (registry_slot){.m = r.slots[was[0]].m, .leaving = true, .n_generations = 1};
    }
    model *m = open_as(a);
    slot = registry_replace(&r, was[0], m, REGISTRY_NONE, &err);
    EXPECT_EQ(slot, REGISTRY_NONE);
    EXPECT_EQ(err.status, INFERD_EBUSY);
    EXPECT(!r.slots[was[0]].stale && registry_match(&r, &a) == was[0]);
    model_close(m); // it is still the caller's
    for (int i = 1; i < REGISTRY_SLOTS; i++) r.slots[i] = (registry_slot){0};
    end();
}

/* ---- with a fleet ---- */

static fleet *one_device(fake_device *d) {
    fleet_device about = {.name = "x", .memory_bytes = UINT64_C(64) << 21};
    fleet_options o = {.devices = &about, .n_devices = 1, .n_slots = REGISTRY_SLOTS};
    *d = (fake_device){
        .n_pages = 64, .depth = 1, .context = 64, .weight_pages = 3, .kv = fake_layout(4, 2, 6)};
    engine *e = NULL;
    fleet *f = NULL;
    inferd_err err = {0};
    fine(engine_start_device(&o.limits, fake_as_device(d), o.n_slots, NULL, NULL, &e, &err), &err);
    fine(fleet_of_engines(&o, &e, &f, &err), &err);
    return f;
}

static bool comes_up(fleet *f, int slot) {
    uint64_t until_us = clock_now_us() + 10000000;
    model_state s = MODEL_NONE;
    while (s != MODEL_HOT && s != MODEL_FAILED && clock_now_us() < until_us) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        fleet_tick(f, clock_now_us());
        s = fleet_model_state(f, (uint32_t)slot);
    }
    return s == MODEL_HOT;
}

/* The one that left kept its guarantee while the one in its place came, which failed for good
 * because both together were more than the device has. */
static void a_departing_model_guarantees_nothing_to_new_ones(void) {
    buf problems = {0};
    int was[1], now[1];
    fake_device d;
    begin();
    fleet *f = one_device(&d);
    config_model a = named("a", 0), b = named("b", 2);
    a.policy = b.policy = (model_policy){.min_bytes = 40ull * FAKE_PAGE_BYTES,
                                         .prio = GEN_NORMAL,
                                         .weight = 1,
                                         .pin = PIN_HOT,
                                         .keep_alive_us = POLICY_NEVER};
    EXPECT(serve(&a, 1, NULL, 0, was, &problems));
    EXPECT(registry_start(&r, f));
    EXPECT(comes_up(f, was[0]));
    EXPECT(serve(&b, 1, was, 1, now, &problems));
    EXPECT_EQ(r.slots[was[0]].policy.min_bytes, 0);
    EXPECT_EQ(r.slots[was[0]].policy.pin, PIN_NONE);
    EXPECT(comes_up(f, now[0])); // also while the old one still has answers to end
    /* And back: it gets what the configuration says again. */
    registry_drop(&r, now, 1);
    EXPECT(serve(&a, 1, now, 1, now, &problems));
    EXPECT_EQ(now[0], was[0]);
    EXPECT_EQ(r.slots[was[0]].policy.min_bytes, 40ull * FAKE_PAGE_BYTES);
    EXPECT_EQ(r.slots[was[0]].policy.pin, PIN_HOT);
    fleet_stop(f);
    r.fleet = NULL;
    end();
}

/* ---- a fleet that has no memory ---- */

#if OWN_ALLOCATOR
/* The story: what the fleet answered was dropped, so such a model was told that the queue is full,
 * and its slot was taken for ever. */
static void what_the_fleet_could_not_be_told_is_told_later(void) {
    buf problems = {0};
    int slots[2];
    fake_device d;
    begin();
    fleet *f = one_device(&d);
    config_model two[] = {named("a", 0), named("b", 2)};
    for (int i = 0; i < 2; i++)
        two[i].policy =
            (model_policy){.prio = GEN_NORMAL, .weight = 1, .keep_alive_us = POLICY_NEVER};
    EXPECT(serve(two, 2, NULL, 0, slots, &problems));
    no_memory = true;
    EXPECT(!registry_start(&r, f));
    no_memory = false;
    for (int i = 0; i < 2; i++) {
        EXPECT(r.slots[slots[i]].untold);
        EXPECT_EQ(fleet_model_devices(f, (uint32_t)slots[i]), 0);
    }
    registry_drop(&r, &slots[1], 1); // nothing has to let it go
    registry_sweep(&r);
    EXPECT_EQ(n_used(), 1);
    EXPECT(!r.slots[slots[0]].untold);
    EXPECT_EQ(fleet_model_devices(f, (uint32_t)slots[0]), 1);
    registry_drop(&r, slots, 1); // this one the fleet has, and ends first
    registry_sweep(&r);
    EXPECT_EQ(n_used(), 1);
    uint64_t until_us = clock_now_us() + 10000000;
    while (n_used() > 0 && clock_now_us() < until_us) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        fleet_tick(f, clock_now_us());
        registry_sweep(&r);
    }
    EXPECT_EQ(n_used(), 0);
    fleet_stop(f);
    r.fleet = NULL;
    end();
}
#endif

static const test_case cases[] = {
#if OWN_ALLOCATOR
    TEST(what_the_fleet_could_not_be_told_is_told_later),
#endif
    TEST(a_departing_model_guarantees_nothing_to_new_ones),
    TEST(what_fits_is_kept_and_the_rest_leaves),
    TEST(what_a_plan_found_stays_until_it_is_applied),
    TEST(files_of_the_same_bytes_share),
    TEST(one_that_cannot_be_opened_changes_nothing),
    TEST(a_replaced_file_gets_a_slot_like_the_one_before),
    TEST(a_stale_slot_is_for_no_other_configuration),
    TEST(when_all_slots_are_in_use_the_old_one_stays),
};

int main(int argc, char **argv) {
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
