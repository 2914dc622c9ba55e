/* test_swap.c - keys and values that leave the device and come back by copying: from host memory,
 * and from a disk, which here is an array with a delay. */
#include "swap_rig.h"

/* Two models of which one fits beside its keys and values; steps are slow, so copying pays. */
static void open_two(core_rig *r, uint32_t n_host, uint64_t a_us, uint64_t move_us) {
    model_policy p = plain_policy();
    core_rig_init(r, 30, n_host, 12);
    r->device.a_us = a_us;
    r->device.b_us = 300;
    r->device.move_us = move_us;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(r, i, &p);
}

static void a_prompt_is_found_again_after_its_model_was_away(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 20);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20)); // needs the pages of the other's cache, too
    core_rig_finish(&r);
    EXPECT_EQ(residency_state(&r.core.models, 0), MODEL_WARM);
    EXPECT(swap_count(&r).n_swapped_out >= 12);
    core_rig_submit(&r, 0, swap_prompt(3, 100));
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(r.outcomes[3].done.done.n_cached, 96);
    EXPECT(swap_count(&r).n_swapped_in >= 12); // the rest had stayed
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages, 1);
    core_rig_deinit(&r);
}

static void a_preempted_sequence_goes_on_without_computing_again(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 20);
    swap_push_out(&r, 80, 1);
    EXPECT(swap_count(&r).n_swapped_in >= 80 / 4);
    EXPECT(swap_count(&r).n_recomputed_tokens <= 8); // the block that was not full
    core_rig_deinit(&r);
}

static void copying_is_not_done_where_computing_is_as_fast(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 5000);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    EXPECT(swap_count(&r).n_swapped_out <= 2); // until the time was known
    core_rig_submit(&r, 0, swap_prompt(3, 100));
    core_rig_finish(&r);
    for (uint64_t id = 1; id <= 3; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

static void weights_go_before_swapped_blocks_and_the_oldest_first(void) {
    static core_rig r;
    open_two(&r, 13, 1000, 20); // room for one model and a page
    for (uint64_t id = 1; id <= 8; id++) {
        core_rig_submit(&r, id % 2, request(id, 100, 6));
        core_rig_finish(&r);
    }
    for (uint64_t id = 1; id <= 8; id++) EXPECT(core_rig_gives(&r, id));
    EXPECT_EQ(core_rig_model(&r, 0)->n_stages + core_rig_model(&r, 1)->n_stages, 2);
    EXPECT(swap_count(&r).n_swapped_out > 0);
    EXPECT(swap_count(&r).blocks_swapped <= 3);
    core_rig_deinit(&r);
}

static void scopes_do_not_share_swapped_blocks(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 20);
    gen_request *a = swap_prompt(1, 100), *b = swap_prompt(3, 100);
    a->cache_scope[0] = 1;
    b->cache_scope[0] = 2;
    core_rig_submit(&r, 0, a);
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    EXPECT(swap_count(&r).n_swapped_out >= 12);
    core_rig_submit(&r, 0, b);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    EXPECT_EQ(r.outcomes[3].done.done.n_cached, 0);
    core_rig_deinit(&r);
}

static void others_go_on_while_much_comes_back(void) {
    static core_rig r;
    model_policy p = plain_policy();
    core_rig_init(&r, 80, 120, 4);
    r.device.a_us = 1000;
    r.device.b_us = 300;
    r.device.move_us = 100;
    core_rig_open(&r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(&r, i, &p);
    core_rig_submit(&r, 0, swap_prompt(1, 400));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 450, 20));
    core_rig_submit(&r, 1, request(3, 440, 20));
    core_rig_finish(&r);
    EXPECT(swap_count(&r).n_swapped_out >= 60);
    core_rig_submit(&r, 0, request(4, 4, 100)); // decodes meanwhile
    core_rig_run(&r, 20000);
    uint64_t longest_us = 0, last_us = core_rig_now(&r);
    uint32_t n_last = r.outcomes[4].n_tokens;
    core_rig_submit(&r, 0, swap_prompt(5, 400));
    while (r.outcomes[5].n_tokens == 0) {
        core_rig_iterate(&r, 100);
        if (r.outcomes[4].n_tokens == n_last) continue;
        n_last = r.outcomes[4].n_tokens;
        uint64_t us = core_rig_now(&r) - last_us;
        if (us > longest_us) longest_us = us;
        last_us = core_rig_now(&r);
    }
    EXPECT(r.outcomes[5].done.done.n_cached == 0); // not over yet
    EXPECT(longest_us < 10000);                    // 60 blocks of 200 us would be 12 ms at once
    core_rig_finish(&r);
    EXPECT(r.outcomes[5].done.done.n_cached >= 240);
    for (uint64_t id = 1; id <= 5; id++) EXPECT(core_rig_gives(&r, id));
    core_rig_deinit(&r);
}

/* ---- the disk ---- */

enum { FILES_MAX = 1024, FILE_BYTES = 64 };

typedef struct fake_file {
    uint64_t name[2], model[2], scope[2];
    uint32_t depth;
    unsigned char slots[FILE_BYTES];
    bool bad; // read in vain
} fake_file;

struct kv_disk {
    core_rig *r;
    uint64_t delay_us;
    fake_file files[FILES_MAX];
    uint32_t n_files;
    bool full;
    struct {
        bool used;
        fake_file *file;
        uint64_t ready_us;
    } tickets[KV_DISK_READS_MAX];
    uint32_t n_tickets, n_asked;
};

static void fake_key(const kv_disk *d, const uint64_t of[2], uint64_t out[2]) {
    (void)d;
    out[0] = of[0] ^ 77;
    out[1] = of[1];
}

static fake_file *find_file(kv_disk *d, const uint64_t name[2]) {
    for (uint32_t i = 0; i < d->n_files; i++)
        if (memcmp(d->files[i].name, name, sizeof d->files[i].name) == 0) return &d->files[i];
    return NULL;
}

static bool fake_has(kv_disk *d, const uint64_t name[2]) {
    return find_file(d, name) != NULL;
}

static void *fake_put_begin(kv_disk *d, const kv_disk_block *b, unsigned char **slots) {
    if (d->full || d->n_files == FILES_MAX || find_file(d, b->name) != NULL) return NULL;
    EXPECT(b->layout->n_groups * b->layout->slot_bytes <= FILE_BYTES);
    fake_file *f = &d->files[d->n_files++];
    *f = (fake_file){.depth = b->depth};
    memcpy(f->name, b->name, sizeof f->name);
    memcpy(f->model, b->model, sizeof f->model);
    memcpy(f->scope, b->scope, sizeof f->scope);
    *slots = f->slots;
    return f;
}

static void fake_put_end(kv_disk *d, void *put) {
    (void)d, (void)put;
}

static bool fake_wait_room(kv_disk *d, const kv_layout *l, uint64_t until_us) {
    (void)l, (void)until_us;
    return !d->full;
}

static uint32_t fake_ask(kv_disk *d, const kv_disk_block *b, void (*wake)(void *), void *ctx) {
    (void)wake, (void)ctx;
    fake_file *f = find_file(d, b->name);
    if (f == NULL) return KV_DISK_NO_TICKET;
    EXPECT(memcmp(f->scope, b->scope, sizeof f->scope) == 0 && f->depth == b->depth);
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) {
        if (d->tickets[i].used) continue;
        d->tickets[i].used = true;
        d->tickets[i].file = f;
        d->tickets[i].ready_us = core_rig_now(d->r) + d->delay_us;
        d->n_tickets++;
        d->n_asked++;
        return i;
    }
    return KV_DISK_NO_TICKET;
}

static kv_disk_answer fake_look(kv_disk *d, uint32_t i, const unsigned char **slots,
                                uint64_t *read_us) {
    EXPECT(d->tickets[i].used);
    if (core_rig_now(d->r) < d->tickets[i].ready_us) return KV_DISK_WAIT;
    *slots = d->tickets[i].file->slots;
    *read_us = d->delay_us;
    return d->tickets[i].file->bad ? KV_DISK_GONE : KV_DISK_READY;
}

static void fake_give_back(kv_disk *d, uint32_t i) {
    EXPECT(d->tickets[i].used);
    if (d->tickets[i].file->bad) d->tickets[i].file->name[0] ^= 1; // it is not found again
    d->tickets[i].used = false;
    d->n_tickets--;
}

static const kv_disk_ops fake_disk_ops = {.key = fake_key,
                                          .has = fake_has,
                                          .put_begin = fake_put_begin,
                                          .put_end = fake_put_end,
                                          .wait_room = fake_wait_room,
                                          .ask = fake_ask,
                                          .look = fake_look,
                                          .give_back = fake_give_back};

static kv_disk disk;

/* Two models, a disk, and n_host pages of which one is left beside the weights of a model. */
static void open_with_disk(core_rig *r, uint32_t n_host, uint64_t delay_us) {
    model_policy p = plain_policy();
    core_rig_init(r, 30, n_host, 12);
    r->device.a_us = 1000;
    r->device.b_us = 300;
    r->device.move_us = 20;
    r->device.kv.slot_bytes = 4 * sizeof(tok_id);
    r->device.content = 5;
    r->pace_us = 50000; // the price of a row is learned from steps of some rows
    disk.r = r;
    disk.delay_us = delay_us;
    r->disk_ops = &fake_disk_ops;
    r->disk = &disk;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(r, i, &p);
}

static void close_with_disk(core_rig *r) {
    core_rig_deinit(r);
    EXPECT_EQ(disk.n_tickets, 0);
}

static void empty_disk(void) {
    memset(&disk, 0, sizeof disk);
}

static void other_work(core_rig *r, uint64_t first_id) {
    for (uint64_t id = first_id; id < first_id + 4; id++) {
        core_rig_submit(r, 1, request(id, 150, 20));
        core_rig_finish(r);
        EXPECT(core_rig_gives(r, id));
    }
}

static void what_host_memory_has_no_room_for_comes_back_from_the_disk(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 13, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    other_work(&r, 10);
    EXPECT(swap_count(&r).n_stored >= 20);
    core_rig_submit(&r, 0, swap_prompt(2, 100));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 96);
    EXPECT(swap_count(&r).n_fetched >= 12);
    close_with_disk(&r);
}

static void what_was_cached_at_the_end_is_found_after_a_restart(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 0, 200); // nothing is parked
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    EXPECT_EQ(swap_count(&r).n_stored, 0);
    close_with_disk(&r);
    EXPECT(disk.n_files >= 25);
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(2, 100));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 96);
    EXPECT_EQ(swap_count(&r).n_fetched, 24);
    close_with_disk(&r);
}

static void without_host_memory_it_goes_from_the_device_to_the_disk(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    other_work(&r, 10);
    EXPECT(swap_count(&r).n_stored >= 12 && swap_count(&r).n_swapped_out == 0);
    core_rig_submit(&r, 0, swap_prompt(2, 100));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 96);
    close_with_disk(&r);
}

static void a_slow_disk_is_not_waited_for_longer_than_computing_takes(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    close_with_disk(&r);
    open_with_disk(&r, 0, 1000000000);
    core_rig_submit(&r, 0, request(2, 100, 20)); // so that times are known
    core_rig_finish(&r);
    uint64_t began_us = core_rig_now(&r);
    core_rig_submit(&r, 0, swap_prompt(3, 100));
    core_rig_finish(&r);
    EXPECT(disk.n_asked > 0);
    EXPECT(core_rig_now(&r) - began_us < 3 * (24 * 4 * 300 + 20000));
    EXPECT(core_rig_gives(&r, 2) && core_rig_gives(&r, 3));
    EXPECT_EQ(r.outcomes[3].done.done.n_cached, 0);
    close_with_disk(&r);
}

static void what_cannot_be_read_is_computed(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    close_with_disk(&r);
    for (uint32_t i = 0; i < disk.n_files; i++) disk.files[i].bad = disk.files[i].depth == 5;
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(2, 100));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT(r.outcomes[2].done.done.n_cached >= 20 && r.outcomes[2].done.done.n_cached < 96);
    close_with_disk(&r);
}

static void others_are_computed_while_one_waits_for_the_disk(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    close_with_disk(&r);
    open_with_disk(&r, 0, 12000);
    core_rig_submit(&r, 0, request(2, 8, 100));
    core_rig_run(&r, 30000);
    uint32_t n_before = r.outcomes[2].n_tokens;
    core_rig_submit(&r, 0, swap_prompt(3, 100));
    core_rig_run(&r, 10000);
    EXPECT_EQ(r.outcomes[3].n_tokens, 0);
    EXPECT(r.outcomes[2].n_tokens >= n_before + 5);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2) && core_rig_gives(&r, 3));
    EXPECT(r.outcomes[3].done.done.n_cached >= 64);
    close_with_disk(&r);
}

static void scopes_do_not_share_what_is_on_the_disk(void) {
    static core_rig r;
    gen_request *a = swap_prompt(1, 100), *b = swap_prompt(2, 100);
    a->cache_scope[0] = 1;
    b->cache_scope[0] = 2;
    empty_disk();
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, a);
    core_rig_finish(&r);
    close_with_disk(&r);
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, b);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 2));
    EXPECT_EQ(disk.n_asked, 0);
    for (uint32_t i = 0; i < disk.n_files; i++) EXPECT_EQ(disk.files[i].scope[0], 1);
    EXPECT_EQ(r.outcomes[2].done.done.n_cached, 0);
    close_with_disk(&r);
}

static void a_sequence_that_waits_for_the_disk_may_be_cancelled(void) {
    static core_rig r;
    empty_disk();
    open_with_disk(&r, 0, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    close_with_disk(&r);
    open_with_disk(&r, 0, 50000);
    core_rig_submit(&r, 0, swap_prompt(2, 100));
    core_rig_run(&r, 8000);
    EXPECT(disk.n_tickets > 0);
    EXPECT(core_next_us(&r.core) < core_rig_now(&r) + 600000); // to stop waiting
    sched_cancel(r.core.sched, 2, core_rig_now(&r));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[2].done.done.finish, GEN_CANCELLED);
    EXPECT_EQ(disk.n_tickets, 0); // what was asked for it is nobody's
    residency_remove(&r.core.models, 0);
    core_rig_run(&r, 10000);
    EXPECT_EQ(disk.n_tickets, 0);
    close_with_disk(&r); // every ticket was given back
}

static void a_full_disk_fails_no_request(void) {
    static core_rig r;
    empty_disk();
    disk.full = true;
    open_with_disk(&r, 13, 200);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    other_work(&r, 10);
    core_rig_submit(&r, 0, swap_prompt(2, 100));
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT_EQ(disk.n_files, 0);
    EXPECT_EQ(swap_count(&r).n_stored, 0);
    close_with_disk(&r);
}

/* ---- a disk that is slow at times ---- */

enum { PROMPTS = 6, COLD_US = 30000 }; // COLD_US: of a token, where computing takes long

static gen_request *prompt_no(uint64_t id, uint32_t which) {
    gen_request *q = request(id, 100, 6);
    for (uint32_t i = 0; i < 100; i++) q->prompt[i] = (tok_id)((i * i + i * which) % FAKE_VOCAB);
    q->prompt[0] = (tok_id)which;
    return q;
}

/* PROMPTS prompts are on the disk; then it answers after so long.  Times of both models are known.
 */
static void open_on_disk(core_rig *r, uint64_t delay_us, uint64_t token_us) {
    empty_disk();
    open_with_disk(r, 0, 200);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        core_rig_submit(r, 0, prompt_no(i + 1, i));
        core_rig_finish(r);
    }
    close_with_disk(r);
    open_with_disk(r, 0, delay_us);
    r->device.b_us = token_us;
    for (uint32_t i = 0; i < 2; i++) {
        core_rig_submit(r, i, request(100 + i, 100, 20));
        core_rig_finish(r);
    }
    EXPECT_EQ(disk.n_asked, 0);
}

static void a_hiccup_counts_for_a_few_times_the_mean(void) {
    sched_took t = {0};
    uint64_t at_us = 100000000;
    for (int i = 0; i < 20; i++) sched_note_took(&t, 200, at_us += 1000);
    EXPECT(t.us > 150 && t.us <= 201);
    sched_note_took(&t, 1000000, at_us += 1000);
    EXPECT(t.us > 200 && t.us < 300);
    for (int i = 0; i < 60; i++) sched_note_took(&t, 1000000, at_us += 1000); // it stays slow
    EXPECT(t.us > 500000);
    EXPECT(!sched_is_old(&t, at_us + 9000000) && sched_is_old(&t, at_us + 11000000));
    sched_note_took(&t, 200, at_us + 11000000); // what was before does not count
    EXPECT(t.us > 150 && t.us <= 201);
}

static void a_copy_that_was_slow_is_tried_again(void) {
    static core_rig r;
    open_two(&r, 60, 1000, 5000);
    core_rig_submit(&r, 0, swap_prompt(1, 100));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(2, 150, 20));
    core_rig_finish(&r);
    uint64_t n_swapped_out = swap_count(&r).n_swapped_out;
    EXPECT(n_swapped_out <= 2);
    core_rig_submit(&r, 0, request(3, 150, 20));
    core_rig_finish(&r);
    EXPECT(swap_count(&r).n_swapped_out <=
           n_swapped_out + 2); // the other model measures for itself
    n_swapped_out = swap_count(&r).n_swapped_out;
    r.device.move_us = 20;
    core_rig_submit(&r, 1, request(6, 150, 20));
    core_rig_finish(&r);
    EXPECT_EQ(swap_count(&r).n_swapped_out, n_swapped_out);
    r.idle_us += 11000000;
    core_rig_submit(&r, 0, request(4, 150, 20));
    core_rig_finish(&r);
    core_rig_submit(&r, 1, request(5, 150, 20));
    core_rig_finish(&r);
    EXPECT(swap_count(&r).n_swapped_out >= n_swapped_out + 12);
    core_rig_deinit(&r);
}

/* Who joined the wait of another keeps what is read when that one leaves. */
static void what_two_wait_for_stays_for_the_second(void) {
    static core_rig r;
    open_on_disk(&r, 500000, COLD_US);
    gen_request *second = prompt_no(11, 0);
    second->prio = GEN_HIGH; // it does not wait for what the first computes
    core_rig_submit(&r, 0, prompt_no(10, 0));
    core_rig_run(&r, 100000);
    uint32_t n_asked = disk.n_asked;
    EXPECT_EQ(n_asked, 16);
    core_rig_submit(&r, 0, second);
    core_rig_iterate(&r, 100);
    sched_cancel(r.core.sched, 10, core_rig_now(&r));
    EXPECT(disk.n_tickets > 0);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 11));
    close_with_disk(&r);
}

/* It was off until the next start, and for every model. */
static void a_disk_that_was_slow_is_tried_again(void) {
    static core_rig r;
    open_on_disk(&r, 1000000000, 300);
    core_rig_submit(&r, 0, prompt_no(10, 0));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[10].done.done.n_cached, 0);
    EXPECT_EQ(disk.n_tickets, 0);
    disk.delay_us = 200;
    uint32_t n_before = disk.n_asked;
    core_rig_submit(&r, 0, prompt_no(11, 1));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[11].done.done.n_cached, 0);
    EXPECT_EQ(disk.n_asked, n_before);
    core_rig_submit(&r, 1, prompt_no(12, 2)); // another model did not see that
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[12].done.done.n_cached, 96);
    r.idle_us += 11000000;
    core_rig_submit(&r, 0, prompt_no(13, 3));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[13].done.done.n_cached, 96);
    core_rig_submit(&r, 0, prompt_no(14, 4));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[14].done.done.n_cached, 96);
    for (uint64_t id = 10; id <= 14; id++) EXPECT(core_rig_gives(&r, id));
    close_with_disk(&r);
}

/* A read that takes longer than a second was given up for the next who asked, and asked again. */
static void what_a_request_waits_for_is_not_dropped(void) {
    static core_rig r;
    open_on_disk(&r, 1500000, COLD_US);
    core_rig_submit(&r, 0, prompt_no(10, 0));
    core_rig_run(&r, 1200000);
    EXPECT_EQ(disk.n_asked, 16);
    core_rig_submit(&r, 0, prompt_no(11, 1));
    core_rig_run(&r, 200000);
    EXPECT_EQ(disk.n_asked, 32);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 10) && core_rig_gives(&r, 11));
    EXPECT(r.outcomes[10].done.done.n_cached >= 64);
    close_with_disk(&r);
}

/* Each time its reads were dropped it waited anew. */
static void waiting_for_a_disk_that_stands_still_has_an_end(void) {
    static core_rig r;
    open_on_disk(&r, 1000000000, COLD_US);
    uint64_t began_us = core_rig_now(&r);
    core_rig_submit(&r, 0, prompt_no(10, 0));
    for (uint32_t i = 1; i <= 4; i++) {
        core_rig_run(&r, 1100000);
        core_rig_submit(&r, 0, prompt_no(10 + i, i));
    }
    while (r.outcomes[10].n_tokens == 0) core_rig_iterate(&r, 1000);
    /* 16 blocks of 4 tokens are worth 1.9 s, and 100 tokens take 3 s, beside the others. */
    EXPECT(core_rig_now(&r) - began_us < 8000000);
    core_rig_finish(&r);
    for (uint64_t id = 10; id <= 14; id++) EXPECT(core_rig_gives(&r, id));
    close_with_disk(&r);
}

/* What was read for whoever stopped waiting stayed until somebody else asked for something. */
static void unclaimed_swapped_blocks_go(void) {
    static core_rig r;
    open_on_disk(&r, 2500000, COLD_US);
    gen_request *q = prompt_no(10, 0);
    q->max_tokens = 80;
    core_rig_submit(&r, 0, q);
    core_rig_run(&r, 1500000);
    EXPECT(disk.n_tickets == 16 && r.outcomes[10].n_tokens == 0);
    core_rig_run(&r, 4000000); // it computes
    EXPECT_EQ(r.outcomes[10].n_done, 0);
    EXPECT_EQ(disk.n_tickets, 0);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 10));
    close_with_disk(&r);
}

/* And the engine looks by itself when nothing else is to be done. */
static void a_read_that_is_to_go_has_a_moment(void) {
    static core_rig r;
    open_on_disk(&r, 200, 300);
    core_rig_submit(&r, 0, prompt_no(10, 0));
    for (int i = 0; i < 1000 && disk.n_tickets == 0; i++) core_rig_iterate(&r, 100);
    sched_pause(r.core.sched, 10);
    EXPECT(disk.n_tickets > 0);
    for (int i = 0; i < 10; i++) core_rig_iterate(&r, 1000);
    EXPECT(core_next_us(&r.core) <= core_rig_now(&r) + 1100000);
    core_rig_run(&r, 1100000);
    EXPECT_EQ(disk.n_tickets, 0);
    sched_resume(r.core.sched, 10, core_rig_now(&r));
    core_rig_finish(&r);
    EXPECT_EQ(disk.n_asked, 16); // once: who could wait for the same again could wait for good
    EXPECT(core_rig_gives(&r, 10));
    close_with_disk(&r);
}

static uint64_t charged_cached(core_rig *r) {
    const struct flow_usage *a = sched_flow_usage(r->core.sched);
    uint64_t n = a->others.cached_tokens;
    for (uint32_t i = 0; i < a->n_rows; i++) n += a->rows[i].is.cached_tokens;
    return n;
}

/* Blocks that come back when it has had rows are told to its client, and were charged to nobody. */
static void what_comes_back_later_is_in_the_usage(void) {
    static core_rig r;
    open_on_disk(&r, 200, 300);
    uint64_t before = charged_cached(&r);
    core_rig_submit(&r, 0, prompt_no(9, 5));
    core_rig_finish(&r);
    EXPECT_EQ(r.outcomes[9].done.done.n_cached, 96);
    EXPECT_EQ(charged_cached(&r) - before, 96);
    before = charged_cached(&r);
    for (uint32_t i = 0; i < disk.n_files; i++) disk.files[i].bad = disk.files[i].depth == 0;
    gen_request *q = prompt_no(10, 0);
    r.core.sched->limits.step_tokens_max = 16; // four blocks
    core_rig_submit(&r, 0, q);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 10));
    uint32_t n_cached = r.outcomes[10].done.done.n_cached;
    EXPECT(n_cached >= 60 && n_cached < 96);
    EXPECT_EQ(charged_cached(&r) - before, n_cached);
    close_with_disk(&r);
}

/* ---- ahead of time ---- */

static void open_ahead(core_rig *r) {
    model_policy p = plain_policy();
    core_rig_init(r, 30, 60, 12);
    r->device.a_us = 1000;
    r->device.b_us = 300;
    r->device.move_us = 20;
    core_rig_open(r, false);
    for (uint32_t i = 0; i < 2; i++) core_rig_attach(r, i, &p);
}

/* Slots that are copied while a running one of this class makes room for urgent work. */
static uint32_t slots_moved_for(gen_class prio) {
    static core_rig r;
    open_ahead(&r);
    gen_request *low = request(1, 80, 100), *high = request(2, 150, 20);
    low->prio = prio;
    high->prio = GEN_HIGH;
    core_rig_submit(&r, 0, low);
    core_rig_run(&r, 100000);
    uint64_t ahead = swap_count(&r).n_copied_ahead;
    EXPECT(prio == GEN_BATCH ? ahead >= 25 : ahead == 0);
    EXPECT(r.device.n_moved * 10 <= 100000 * 3 / 100); // of the time, at 20 us for two slots
    uint32_t before = r.device.n_moved;
    core_rig_submit(&r, 1, high);
    for (int i = 0; i < 1000 && r.outcomes[2].n_done == 0; i++) core_rig_iterate(&r, 1000);
    uint32_t moved = r.device.n_moved - before;
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    EXPECT(r.outcomes[1].done.done.n_preempted > 0);
    core_rig_deinit(&r);
    return moved;
}

static void a_batch_sequence_that_was_copied_ahead_makes_room_for_nothing(void) {
    EXPECT(slots_moved_for(GEN_BATCH) <= 8);
    EXPECT(slots_moved_for(GEN_NORMAL) >= 50);
}

static void copying_ahead_takes_a_small_part_of_the_time(void) {
    static core_rig r;
    open_ahead(&r);
    r.device.move_us = 250;
    gen_request *low = request(1, 80, 100);
    low->prio = GEN_BATCH;
    core_rig_submit(&r, 0, low);
    core_rig_run(&r, 100000);
    EXPECT(swap_count(&r).n_copied_ahead >= 5);
    EXPECT(swap_count(&r).n_copied_ahead * 250 <= 2000 + 100000 * 2 / 100 + 250);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1));
    core_rig_deinit(&r);
}

/* ---- tenants ---- */

enum { SECRET = 201 };

/* Cells of request 2's blocks that hold the first tenant's tokens. */
static uint32_t n_leaks(core_rig *r) {
    uint32_t n = 0;
    LIST_EACH(node, &r->core.sched->running) {
        const seq *q = LIST_ENTRY(node, seq, link);
        for (uint32_t i = 0; q->req->id == 2 && i < q->table.n_blocks * 2; i++)
            for (uint32_t k = 0; k < 4; k++)
                n += r->device.memory[(size_t)q->table.slots[i] * 4 + k] == SECRET;
    }
    return n;
}

/* One tenant fills the device, another follows; how much of the first one's the second could see
 * before it wrote there itself. */
static uint32_t leaks_to(uint32_t tenant, bool zero, uint64_t *n_zeroed) {
    static core_rig r;
    model_policy p = plain_policy();
    uint32_t most = 0;
    core_rig_init(&r, 16, 0, 1);
    r.device.kv.slot_bytes = 4 * sizeof(tok_id);
    r.zero_on_tenant_change = zero;
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    gen_request *a = request(1, 170, 2), *b = request(2, 150, 21);
    for (uint32_t i = 0; i < a->n_prompt; i++) a->prompt[i] = SECRET;
    for (uint32_t i = 0; i < b->n_prompt; i++) b->prompt[i] = (tok_id)(i % 100);
    b->tenant_idx = tenant;
    b->cache_scope[0] = 1;
    core_rig_submit(&r, 0, a);
    core_rig_finish(&r);
    core_rig_submit(&r, 0, b);
    while (r.outcomes[2].n_done == 0) {
        core_rig_iterate(&r, 1000);
        most = u32_max(most, n_leaks(&r));
    }
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 1) && core_rig_gives(&r, 2));
    sched_counters c = swap_count(&r);
    *n_zeroed = c.n_zeroed_pages + c.n_zeroed_slots;
    EXPECT_EQ(*n_zeroed, r.device.n_zeroed);
    core_rig_deinit(&r);
    return most;
}

static void another_tenant_finds_zeroes(void) {
    uint64_t n_zeroed;
    EXPECT(leaks_to(1, false, &n_zeroed) > 0);
    EXPECT_EQ(n_zeroed, 0);
    EXPECT_EQ(leaks_to(1, true, &n_zeroed), 0);
    EXPECT(n_zeroed > 0);
    leaks_to(0, true, &n_zeroed); // its own
    EXPECT_EQ(n_zeroed, 0);
}

static const test_case cases[] = {
    TEST(a_prompt_is_found_again_after_its_model_was_away),
    TEST(a_preempted_sequence_goes_on_without_computing_again),
    TEST(copying_is_not_done_where_computing_is_as_fast),
    TEST(weights_go_before_swapped_blocks_and_the_oldest_first),
    TEST(scopes_do_not_share_swapped_blocks),
    TEST(others_go_on_while_much_comes_back),
    TEST(what_host_memory_has_no_room_for_comes_back_from_the_disk),
    TEST(what_was_cached_at_the_end_is_found_after_a_restart),
    TEST(without_host_memory_it_goes_from_the_device_to_the_disk),
    TEST(a_slow_disk_is_not_waited_for_longer_than_computing_takes),
    TEST(what_cannot_be_read_is_computed),
    TEST(others_are_computed_while_one_waits_for_the_disk),
    TEST(scopes_do_not_share_what_is_on_the_disk),
    TEST(a_sequence_that_waits_for_the_disk_may_be_cancelled),
    TEST(a_full_disk_fails_no_request),
    TEST(a_hiccup_counts_for_a_few_times_the_mean),
    TEST(a_copy_that_was_slow_is_tried_again),
    TEST(what_two_wait_for_stays_for_the_second),
    TEST(a_disk_that_was_slow_is_tried_again),
    TEST(what_a_request_waits_for_is_not_dropped),
    TEST(waiting_for_a_disk_that_stands_still_has_an_end),
    TEST(unclaimed_swapped_blocks_go),
    TEST(a_read_that_is_to_go_has_a_moment),
    TEST(what_comes_back_later_is_in_the_usage),
    TEST(a_batch_sequence_that_was_copied_ahead_makes_room_for_nothing),
    TEST(copying_ahead_takes_a_small_part_of_the_time),
    TEST(another_tenant_finds_zeroes),
};
TEST_MAIN(cases)
