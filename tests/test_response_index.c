/* test_response_index.c - the index of kept responses against a plain list: what is there, what
 * each tenant has, what goes first. */
#include "test.h"

#include "response_index.h"

enum { IDS = 300, TENANTS = 7, STEPS = 20000 };

typedef struct plain {
    uint64_t tenant, n_bytes, since; // since 0: it is not there
    bool queued;
} plain;

static plain all[IDS];
static response_index x;

static uint32_t random_below(uint32_t *seed, uint32_t n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static void id_of(unsigned i, char out[RESPONSE_ID_BYTES]) {
    snprintf(out, RESPONSE_ID_BYTES, "resp_%032x", i);
}

static response_entry *entry_of(unsigned i) {
    char id[RESPONSE_ID_BYTES];
    id_of(i, id);
    return response_index_find(&x, id);
}

static void put(unsigned i, uint64_t tenant, uint64_t n_bytes, bool queued, uint64_t now) {
    char id[RESPONSE_ID_BYTES];
    response_text *t = queued ? calloc(1, sizeof *t) : NULL;
    if (t != NULL) t->n_refs = 1;
    id_of(i, id);
    response_entry *e = response_index_add(&x, id, tenant, n_bytes, t);
    EXPECT_EQ(e == NULL, all[i].since != 0); // an id is given once
    if (e == NULL)
        response_text_drop(t);
    else
        all[i] = (plain){tenant, n_bytes, now, queued};
}

static void take_out(unsigned i) {
    response_entry *e = entry_of(i);
    EXPECT_EQ(e != NULL, all[i].since != 0);
    if (e != NULL) response_index_remove(&x, e);
    all[i] = (plain){0};
}

static uint64_t sum(uint64_t tenant, response_bound by) {
    uint64_t of = 0;
    for (int i = 0; i < IDS; i++)
        if (all[i].since != 0 && all[i].tenant == tenant)
            of += by == RESPONSE_BY_BYTES ? all[i].n_bytes : 1;
    return of;
}

static uint64_t index_of(const response_entry *e) {
    return strtoull(e->id + strlen("resp_"), NULL, 16);
}

static void check_victim(response_bound by) {
    uint64_t most = 0, oldest = UINT64_MAX;
    const response_entry *e = response_index_victim(&x, by);
    for (uint64_t t = 0; t < TENANTS; t++) most = sum(t, by) > most ? sum(t, by) : most;
    EXPECT_EQ(e == NULL, most == 0);
    if (e == NULL) return;
    const plain *p = &all[index_of(e)];
    EXPECT_EQ(sum(p->tenant, by), most);
    for (int i = 0; i < IDS; i++)
        if (all[i].since != 0 && all[i].tenant == p->tenant && all[i].since < oldest)
            oldest = all[i].since;
    EXPECT_EQ(p->since, oldest);
}

static void check_all(void) {
    uint64_t n = 0, n_bytes = 0, n_queued_bytes = 0, first = UINT64_MAX;
    for (int i = 0; i < IDS; i++) {
        if (all[i].since == 0) continue;
        n++;
        n_bytes += all[i].n_bytes;
        if (!all[i].queued) continue;
        n_queued_bytes += all[i].n_bytes;
        if (all[i].since < first) first = all[i].since;
    }
    EXPECT_EQ(x.n, n);
    EXPECT_EQ(x.n_bytes, n_bytes);
    EXPECT_EQ(x.n_queued_bytes, n_queued_bytes);
    const response_entry *e = response_index_queued(&x);
    EXPECT_EQ(e == NULL, first == UINT64_MAX);
    if (e != NULL) EXPECT_EQ(all[index_of(e)].since, first);
    for (response_bound by = 0; by < RESPONSE_BOUNDS; by++) check_victim(by);
}

static void it_is_as_a_plain_list(void) {
    uint32_t seed = 27;
    printf("seed %u\n", seed);
    EXPECT(response_index_init(&x, 20)); // fewer buckets than entries
    for (uint64_t now = 1; now <= STEPS; now++) {
        unsigned i = random_below(&seed, IDS);
        uint32_t what = random_below(&seed, 10);
        if (what < 5)
            put(i, random_below(&seed, TENANTS), random_below(&seed, 1000), what < 3, now);
        if (what == 5 || what == 6) take_out(i);
        if (what == 7 && response_index_queued(&x) != NULL) {
            response_entry *e = response_index_queued(&x);
            all[index_of(e)].queued = false;
            response_index_note_written(&x, e);
        }
        if (what == 8) {
            response_entry *e = response_index_victim(&x, now % 2);
            if (e != NULL) take_out((unsigned)index_of(e));
        }
        if (what == 9 && entry_of(i) != NULL) {
            uint64_t tenant = random_below(&seed, TENANTS);
            entry_of(i)->unread = true;
            EXPECT(response_index_learn(&x, entry_of(i), tenant));
            EXPECT(!entry_of(i)->unread);
            if (all[i].tenant != tenant) take_out(i); // the newest of another: not compared
        }
        if (now % 16 == 0) check_all();
    }
    response_index_deinit(&x);
    response_index_deinit(&x);
}

/* 65,536 responses of as many tenants: the front waits for none of it. */
static void many_take_no_time(void) {
    enum { MANY = 65536 };
    char id[RESPONSE_ID_BYTES];
    EXPECT(response_index_init(&x, MANY));
    for (unsigned i = 0; i < MANY; i++) {
        id_of(i, id);
        EXPECT(response_index_add(&x, id, i, i, NULL) != NULL);
    }
    for (unsigned i = MANY; i-- > 0;) {
        response_entry *e = response_index_victim(&x, RESPONSE_BY_BYTES);
        EXPECT_EQ(index_of(e), i);
        EXPECT(entry_of(i) == e);
        response_index_remove(&x, e);
    }
    EXPECT(response_index_victim(&x, RESPONSE_BY_NUMBER) == NULL && x.n == 0 && x.n_bytes == 0);
    response_index_deinit(&x);
}

static const test_case cases[] = {TEST(it_is_as_a_plain_list), TEST(many_take_no_time)};
TEST_MAIN(cases)
