/* test_response_store.c - responses on disk: they come back, of their tenant only, within bounds; a
 * damaged file does not. */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "response_draft.h"
#include "response_scan.h"
#include "response_store.h"

static char folder[64];
static response_store *store;

static void open_store(uint32_t n_max, uint64_t bytes_max) {
    response_store_options o = {.folder = folder, .n_max = n_max, .bytes_max = bytes_max};
    inferd_err err = {0};
    EXPECT_EQ(response_store_open(&o, &store, &err), INFERD_OK);
}

static void begin(uint32_t n_max, uint64_t bytes_max) {
    strcpy(folder, "/tmp/inferd-responses-XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    open_store(n_max, bytes_max);
}

static void in_folder(char out[128], const char *name) {
    snprintf(out, 128, "%s/%s", folder, name);
}

static uint32_t count_files(bool deletes) {
    uint32_t n = 0;
    char path[512];
    DIR *d = opendir(folder);
    for (const struct dirent *one; d != NULL && (one = readdir(d)) != NULL;) {
        if (one->d_name[0] == '.' && one->d_name[1] != 'n') continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        if (deletes) unlink(path);
    }
    if (d != NULL) closedir(d);
    return n;
}

static void end(void) {
    response_store_close(store);
    store = NULL;
    count_files(true);
    rmdir(folder);
}

static void id_of(unsigned i, char out[RESPONSE_ID_BYTES]) {
    snprintf(out, RESPONSE_ID_BYTES, "resp_%032x", i);
}

/* About n_bytes large. */
static void keep(const char *tenant, unsigned i, size_t n_bytes) {
    char id[RESPONSE_ID_BYTES], response[128];
    char *item = malloc(n_bytes + 3);
    id_of(i, id);
    memset(item, 'x', n_bytes + 2);
    item[0] = item[n_bytes + 1] = '"';
    snprintf(response, sizeof response, "{\"id\":\"%s\",\"n\":%u}", id, i);
    response_store_keep(store, tenant, id, (bytes){item, n_bytes + 2}, (bytes){"{}", 2},
                        (bytes){response, strlen(response)});
    free(item);
}

/* Is it there, and is it this one? */
static bool has(const char *tenant, unsigned i) {
    char id[RESPONSE_ID_BYTES];
    json_t *items = NULL;
    buf response = {0};
    id_of(i, id);
    inferd_status s = response_store_get(store, tenant, id, &response, NULL);
    EXPECT(s == INFERD_OK || s == INFERD_ENOTFOUND);
    EXPECT_EQ(response.n > 0, s == INFERD_OK);
    if (s == INFERD_OK) {
        char expected[128];
        snprintf(expected, sizeof expected, "{\"id\":\"%s\",\"n\":%u}", id, i);
        EXPECT_STR(buf_cstr(&response), expected);
        if (response_store_items(store, tenant, id, &json_limits_default, &items, NULL) ==
            INFERD_OK) // else it was displaced meanwhile
            EXPECT_EQ(json_array_size(items), 2);
    }
    json_decref(items);
    buf_deinit(&response);
    return s == INFERD_OK;
}

static void what_is_kept_is_there_at_once_and_after_a_restart(void) {
    begin(100, 1 << 20);
    keep("a", 1, 10);
    EXPECT(has("a", 1)); // written, or not yet
    response_store_settle(store);
    EXPECT(has("a", 1));
    EXPECT_EQ(count_files(false), 1);
    response_store_close(store);
    open_store(100, 1 << 20);
    EXPECT(has("a", 1));
    EXPECT(!has("a", 2));
    end();
}

static void a_tenant_sees_only_its_own(void) {
    char id[RESPONSE_ID_BYTES];
    begin(100, 1 << 20);
    keep("a", 1, 10);
    keep("", 2, 10);
    EXPECT(!has("b", 1) && !has("", 1) && !has("a", 2) && has("", 2));
    id_of(1, id);
    EXPECT_EQ(response_store_delete(store, "b", id, NULL), INFERD_ENOTFOUND);
    EXPECT(has("a", 1));
    EXPECT_EQ(response_store_delete(store, "a", id, NULL), INFERD_OK);
    EXPECT_EQ(response_store_delete(store, "a", id, NULL), INFERD_ENOTFOUND);
    EXPECT(!has("a", 1));
    response_store_settle(store);
    EXPECT_EQ(count_files(false), 1);
    end();
}

static void only_our_ids_become_paths(void) {
    static const char *const ids[] = {"",
                                      "resp_",
                                      "../quotas",
                                      "resp_../../../../etc/passwd000000000",
                                      "resp_0000000000000000000000000000000g",
                                      "resp_0000000000000000000000000000000A",
                                      "resp_000000000000000000000000000000001",
                                      "resp_00000000000000000000000000000001/",
                                      "RESP_00000000000000000000000000000001"};
    begin(100, 1 << 20);
    keep("a", 1, 10);
    for (size_t i = 0; i < INFERD_COUNT(ids); i++) {
        buf response = {0};
        EXPECT_EQ(response_store_get(store, "a", ids[i], &response, NULL), INFERD_ENOTFOUND);
        EXPECT_EQ(response_store_delete(store, "a", ids[i], NULL), INFERD_ENOTFOUND);
        response_store_keep(store, "a", ids[i], (bytes){"", 0}, (bytes){"", 0}, (bytes){"{}", 2});
    }
    response_store_settle(store);
    EXPECT_EQ(count_files(false), 1);
    end();
}

static void the_oldest_go_first(void) {
    begin(3, 1 << 20);
    for (unsigned i = 1; i <= 5; i++) {
        keep("a", i, 10);
        response_store_settle(store);
        usleep(2000); // the order is kept over a restart by the times of the files
    }
    EXPECT(!has("a", 1) && !has("a", 2) && has("a", 3) && has("a", 4) && has("a", 5));
    EXPECT_EQ(count_files(false), 3);
    response_store_close(store);
    open_store(2, 1 << 20); // a smaller bound
    response_store_settle(store);
    EXPECT(!has("a", 3) && has("a", 4) && has("a", 5));
    end();
}

static void bytes_have_a_bound(void) {
    begin(100, 10000);
    for (unsigned i = 1; i <= 4; i++) keep("a", i, 3000);
    response_store_settle(store);
    EXPECT(!has("a", 1) && has("a", 2) && has("a", 3) && has("a", 4));
    keep("a", 5, 20000); // larger than all
    response_store_settle(store);
    EXPECT(!has("a", 5) && has("a", 4));
    metrics_responses now;
    response_store_stats(store, &now);
    EXPECT_EQ(now.n, 3);
    EXPECT(now.n_bytes > 9000 && now.n_bytes <= 10000);
    EXPECT_EQ(now.n_not_kept, 1); // those that were displaced had been kept
    end();
}

/* One that keeps much displaced the responses of all others. */
static void the_tenant_with_the_most_gives_way(void) {
    begin(10, 1 << 20);
    keep("small", 1, 10);
    for (unsigned i = 2; i <= 30; i++) keep("large", i, 10);
    response_store_settle(store);
    EXPECT(has("small", 1) && !has("large", 21) && has("large", 22) && has("large", 30));
    end();
}

static void damage(unsigned i, int how) {
    char id[RESPONSE_ID_BYTES], name[64], path[128];
    struct stat st;
    id_of(i, id);
    snprintf(name, sizeof name, "%s.json", id);
    in_folder(path, name);
    EXPECT_EQ(stat(path, &st), 0);
    int fd = open(path, O_RDWR);
    if (how == 0) EXPECT_EQ(ftruncate(fd, st.st_size - 1), 0);
    if (how == 1) EXPECT_EQ(pwrite(fd, "!", 1, st.st_size - 3), 1);
    if (how == 2) EXPECT_EQ(ftruncate(fd, 0), 0);
    if (how == 3) EXPECT_EQ(pwrite(fd, "!", 1, 3), 1);
    close(fd);
}

static void a_damaged_file_is_never_answered(void) {
    for (int restarts = 0; restarts <= 1; restarts++) {
        begin(100, 1 << 20);
        for (unsigned i = 1; i <= 5; i++) keep("a", i, 100);
        response_store_settle(store);
        if (restarts) response_store_close(store);
        for (unsigned i = 1; i <= 4; i++) damage(i, (int)i - 1);
        if (restarts) open_store(100, 1 << 20);
        for (unsigned i = 1; i <= 4; i++) EXPECT(!has("a", i));
        EXPECT(has("a", 5));
        EXPECT_EQ(count_files(false), 1); // it is deleted
        end();
    }
}

static inferd_status look(const char *tenant, unsigned i, inferd_err *err) {
    char id[RESPONSE_ID_BYTES];
    buf response = {0};
    id_of(i, id);
    inferd_status s = response_store_get(store, tenant, id, &response, err);
    buf_deinit(&response);
    return s;
}

/* Only n more files can be opened, until the old limit comes back. */
static struct rlimit without_files(int n) {
    struct rlimit before, now;
    int lowest = dup(0);
    close(lowest);
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    now = before;
    now.rlim_cur = (rlim_t)lowest + (rlim_t)n;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
    return before;
}

/* While the process had all its files open, a GET deleted the response: each failed read counted as
 * damage. */
static void a_file_that_cannot_be_read_now_stays(void) {
    char id[RESPONSE_ID_BYTES];
    inferd_err err = {0};
    json_t *items = NULL;
    begin(100, 1 << 20);
    keep("a", 1, 10);
    response_store_settle(store);
    id_of(1, id);
    struct rlimit before = without_files(0);
    EXPECT_EQ(look("a", 1, &err), INFERD_EBUSY);
    EXPECT(strstr(err.text, "later") != NULL);
    EXPECT_EQ(look("b", 1, &err), INFERD_ENOTFOUND);
    EXPECT_EQ(response_store_items(store, "a", id, &json_limits_default, &items, &err),
              INFERD_EBUSY);
    form_host host = {.store = store, .tenant = "a", .limits = &json_limits_default};
    api_error answer = {0};
    EXPECT(!response_store_previous(&host, id, &items, &answer));
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.retry_after_s, 1);
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT(has("a", 1));
    EXPECT_EQ(count_files(false), 1);
    end();
}

/* The same when the daemon starts: the files of that moment were deleted.  They count, and have
 * their tenants when they can be read. */
static void a_file_that_cannot_be_read_at_the_start_stays(void) {
    char id[RESPONSE_ID_BYTES];
    begin(100, 1 << 20);
    for (unsigned i = 1; i <= 4; i++) keep(i % 2 == 1 ? "a" : "b", i, 10);
    response_store_settle(store);
    response_store_close(store);
    struct rlimit before = without_files(2); // the folder, twice
    open_store(100, 1 << 20);
    EXPECT_EQ(look("a", 1, NULL), INFERD_OK); // the second one is free again
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_EQ(count_files(false), 4);
    EXPECT(!has("b", 1) && has("a", 1) && has("b", 2) && !has("a", 2));
    id_of(3, id);
    EXPECT_EQ(response_store_delete(store, "b", id, NULL), INFERD_ENOTFOUND);
    EXPECT_EQ(response_store_delete(store, "a", id, NULL), INFERD_OK);
    id_of(4, id);
    EXPECT_EQ(response_store_delete(store, "b", id, NULL), INFERD_OK);
    EXPECT_EQ(count_files(false), 2);
    end();
}

static void a_file_that_is_gone_is_forgotten(void) {
    begin(100, 1 << 20);
    keep("a", 1, 10);
    response_store_settle(store);
    count_files(true);
    EXPECT_EQ(look("a", 1, NULL), INFERD_ENOTFOUND);
    response_store_settle(store);
    end();
}

/* The tools of the deepest request that is read are one level deeper in a response. */
static void a_response_is_as_deep_as_its_request_may_be(void) {
    enum { DEPTH = 90 };
    char response[256], id[RESPONSE_ID_BYTES], items[2 * DEPTH + 1];
    buf got = {0};
    json_t *list = NULL;
    begin(100, 1 << 20);
    id_of(1, id);
    for (int i = 0; i < DEPTH; i++) items[i] = '[', items[DEPTH + i] = ']';
    items[2 * DEPTH] = 0;
    int n = snprintf(response, sizeof response, "{\"id\":\"%s\",\"tools\":\"}]\\\\\"}", id);
    response_store_keep(store, "a", id, (bytes){items, 2 * DEPTH}, (bytes){"\"\\\"]\"", 5},
                        (bytes){response, (size_t)n});
    response_store_settle(store);
    EXPECT_EQ(response_store_get(store, "a", id, &got, NULL), INFERD_OK);
    EXPECT_STR(buf_cstr(&got), response);
    EXPECT_EQ(response_store_items(store, "a", id, &json_limits_default, &list, NULL), INFERD_OK);
    EXPECT_EQ(json_array_size(list), 2);
    EXPECT_STR(json_string_value(json_array_get(list, 1)), "\"]");
    json_decref(list);
    buf_deinit(&got);
    end();
}

/* Each request was within the limits, the conversation is not: it said context_length_exceeded. */
static void a_long_conversation_is_read_or_refused_with_its_reason(void) {
    enum { VALUES = 2000 };
    static char items[2 * VALUES];
    char response[64], id[RESPONSE_ID_BYTES];
    json_limits limits = {.depth_max = 4, .structural_max = 10, .memory_max = 1 << 20};
    json_t *list = NULL;
    api_error err = {0};
    begin(100, 1 << 20);
    id_of(1, id);
    for (int i = 0; i < VALUES; i++) items[2 * i] = '1', items[2 * i + 1] = ',';
    snprintf(response, sizeof response, "{\"id\":\"%s\"}", id);
    response_store_keep(store, "a", id, (bytes){items, 2 * VALUES - 1}, (bytes){"", 0},
                        (bytes){response, strlen(response)});
    form_host host = {.store = store, .tenant = "a", .limits = &limits};
    EXPECT(response_store_previous(&host, id, &list, &err));
    EXPECT_EQ(json_array_size(list), VALUES);
    json_decref(list);
    list = NULL;
    limits.memory_max = 1000;
    EXPECT(!response_store_previous(&host, id, &list, &err));
    EXPECT_STR(err.code, "request_exceeds_limit");
    EXPECT_EQ(err.status, 400);
    response_store_settle(store);
    EXPECT_EQ(count_files(false), 1);
    end();
}

static void files_of_others_are_left_alone(void) {
    char path[128];
    begin(100, 1 << 20);
    response_store_close(store);
    in_folder(path, "readme.json");
    close(open(path, O_CREAT | O_WRONLY, 0600));
    in_folder(path, ".new"); // of a killed process
    close(open(path, O_CREAT | O_WRONLY, 0600));
    open_store(1, 1 << 20);
    EXPECT_EQ(count_files(false), 1);
    end();
}

/* A full disk, or a folder that is gone: the store goes on when it is there again. */
static void a_failed_write_is_no_failure(void) {
    char away[128];
    begin(100, 1 << 20);
    keep("a", 1, 10);
    response_store_settle(store);
    snprintf(away, sizeof away, "%s-away", folder);
    count_files(true);
    EXPECT_EQ(rmdir(folder), 0); // an open folder without a name: no file can be made in it
    keep("a", 2, 10);
    response_store_settle(store);
    EXPECT(!has("a", 2) && !has("a", 1));
    response_store_close(store);
    open_store(100, 1 << 20);
    keep("a", 3, 10);
    EXPECT(has("a", 3));
    end();
}

static void a_folder_that_cannot_be_used_is_an_error(void) {
    response_store_options o = {.folder = "/proc/inferd", .n_max = 1, .bytes_max = 1};
    inferd_err err = {0};
    response_store *none = NULL;
    EXPECT_EQ(response_store_open(&o, &none, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "/proc/inferd") != NULL && none == NULL);
}

static void a_conversation_that_is_too_long_is_not_kept(void) {
    enum { ITEM_BYTES = 1024 * 1024 };
    char *text = malloc(ITEM_BYTES), id[RESPONSE_ID_BYTES];
    memset(text, 'x', ITEM_BYTES);
    json_t *item = json_stringn(text, ITEM_BYTES);
    begin(100, 1 << 30);
    form_host host = {.store = store, .tenant = "a", .limits = &json_limits_default};
    for (unsigned n = 15; n <= 16; n++) {
        bool no_memory = false, long_one = n == 16;
        response_draft *d = response_draft_create(&host, &no_memory);
        for (unsigned i = 0; i < n; i++) EXPECT(response_draft_add(d, item));
        EXPECT_EQ(response_draft_is_kept(d), !long_one);
        id_of(n, id);
        char response[64];
        snprintf(response, sizeof response, "{\"id\":\"%s\"}", id);
        response_draft_keep(d, id, (bytes){"", 0}, (bytes){response, strlen(response)});
        response_draft_destroy(d);
    }
    response_store_settle(store);
    EXPECT_EQ(count_files(false), 1); // the shorter one
    EXPECT(response_draft_add(NULL, item) && !response_draft_is_kept(NULL));
    host.store = NULL;
    bool no_memory = false;
    EXPECT(response_draft_create(&host, &no_memory) == NULL && !no_memory);
    json_decref(item);
    free(text);
    end();
}

/* Threads that keep, read and delete at once. */
static void *churn(void *ctx) {
    unsigned base = *(unsigned *)ctx;
    char id[RESPONSE_ID_BYTES];
    for (unsigned i = base; i < base + 200; i++) {
        keep(base % 2000 == 0 ? "a" : "b", i, 200);
        has(base % 2000 == 0 ? "a" : "b", i);
        id_of(i - 3, id);
        if (i % 4 == 0) response_store_delete(store, "a", id, NULL);
        if (i % 7 == 0) has("a", i - 5);
    }
    return NULL;
}

static void threads_at_once(void) {
    pthread_t threads[4];
    unsigned bases[4] = {1000, 2000, 3000, 4000};
    begin(50, 100000);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, &bases[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    response_store_settle(store);
    EXPECT(count_files(false) <= 50);
    end();
}

static const test_case cases[] = {TEST(what_is_kept_is_there_at_once_and_after_a_restart),
                                  TEST(a_tenant_sees_only_its_own),
                                  TEST(only_our_ids_become_paths),
                                  TEST(the_oldest_go_first),
                                  TEST(bytes_have_a_bound),
                                  TEST(the_tenant_with_the_most_gives_way),
                                  TEST(a_damaged_file_is_never_answered),
                                  TEST(a_file_that_cannot_be_read_now_stays),
                                  TEST(a_file_that_cannot_be_read_at_the_start_stays),
                                  TEST(a_file_that_is_gone_is_forgotten),
                                  TEST(a_response_is_as_deep_as_its_request_may_be),
                                  TEST(a_long_conversation_is_read_or_refused_with_its_reason),
                                  TEST(files_of_others_are_left_alone),
                                  TEST(a_failed_write_is_no_failure),
                                  TEST(a_folder_that_cannot_be_used_is_an_error),
                                  TEST(a_conversation_that_is_too_long_is_not_kept),
                                  TEST(threads_at_once)};
TEST_MAIN(cases)
