/* test_quota_file.c - what was used survives: written whole, read strictly, kept for a while. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quota_file.h"
#include "test.h"

enum { S = 1000000, DAY_S = 86400 };
static const int64_t noon = 1767268800; // 2026-01-01T12:00:00Z
static const limits_spec spec = {.tokens_per_day = 1000, .tokens_per_month = 5000};

static char folder[64], path[96], fresh[104];

static void open_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/test_quota_file_XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/quota.json", folder);
    snprintf(fresh, sizeof fresh, "%s.new", path);
}
static void close_folder(void) {
    unlink(path);
    unlink(fresh);
    EXPECT_EQ(rmdir(folder), 0); // nothing else was left
}
static void write_text(const char *text, size_t n) {
    FILE *f = fopen(path, "we");
    EXPECT(f != NULL && fwrite(text, 1, n, f) == n && fclose(f) == 0);
}
static char text[64 * 1024];
static const char *read_back(void) {
    FILE *f = fopen(path, "re");
    size_t n = f == NULL ? 0 : fread(text, 1, sizeof text - 1, f);
    if (f != NULL) fclose(f);
    text[n] = 0;
    return text;
}

static limits *open_limits(uint32_t n) { // tenants t0, t1, ...
    limits *l = limits_create();
    for (uint32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        EXPECT_EQ(limits_set_tenant(l, i, name, &spec, 0, NULL), INFERD_OK);
    }
    return l;
}
static void use(limits *l, uint32_t number, int64_t unix_s, uint64_t tokens) {
    limits_answer answer;
    limits_ask ask = {1, tokens, false};
    EXPECT(limits_admit(l, number, 0, unix_s, &ask, &answer));
    limits_settle(l, number, 0, unix_s, &ask, tokens);
}
static quota_file *read_file(void) {
    quota_file *q = NULL;
    inferd_err err = {0};
    inferd_status s = quota_file_read(path, &q, &err);
    if (s != INFERD_OK) printf("%s\n", err.text);
    EXPECT_EQ(s, INFERD_OK);
    return q;
}
static inferd_status save(quota_file *q, const limits *l, uint64_t now_us, int64_t unix_s) {
    buf out;
    buf_init(&out, 0);
    EXPECT_EQ(quota_file_snapshot(q, l, now_us, unix_s, &out, NULL), INFERD_OK);
    inferd_status s = quota_file_write(path, out.p, out.n, NULL);
    quota_file_written(q, s == INFERD_OK);
    buf_deinit(&out);
    return s;
}
static uint64_t used_today(const limits *l, uint32_t number, int64_t unix_s) {
    limits_usage u;
    limits_get_usage(l, number, unix_s, &u);
    return u.used_day;
}
static uint64_t used_this_month(const limits *l, uint32_t number, int64_t unix_s) {
    limits_usage u;
    limits_get_usage(l, number, unix_s, &u);
    return u.used_month;
}

static void use_survives(void) {
    open_folder();
    quota_file *q = read_file(); // there is none
    EXPECT_EQ(quota_file_n_tenants(q), 0);
    limits *l = open_limits(3);
    EXPECT(!quota_file_restore(q, l, 0));
    use(l, 0, noon, 100);
    use(l, 2, noon - DAY_S, 70); // the month before
    limits_answer answer;
    EXPECT(limits_admit(l, 0, 0, noon, &(limits_ask){1, 30, false}, &answer)); // runs when killed
    EXPECT_EQ(save(q, l, 5 * S, noon), INFERD_OK);
    EXPECT_STR(read_back(),
               "{\"version\":1,\"tenants\":{\n"
               "\"t0\":{\"day\":\"2026-01-01\",\"day_tokens\":130,\"month\":\"2026-01\","
               "\"month_tokens\":130,\"seen\":\"2026-01-01\"},\n"
               "\"t2\":{\"day\":\"2025-12-31\",\"day_tokens\":70,\"month\":\"2025-12\","
               "\"month_tokens\":70,\"seen\":\"2026-01-01\"}\n"
               "}}\n");
    struct stat st;
    EXPECT(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    quota_file_destroy(q);
    limits_destroy(l);

    q = read_file();
    EXPECT_EQ(quota_file_n_tenants(q), 2);
    l = open_limits(3);
    EXPECT(quota_file_restore(q, l, 0));
    EXPECT(!quota_file_restore(q, l, 1));
    EXPECT(quota_file_restore(q, l, 2));
    EXPECT_EQ(used_today(l, 0, noon), 130);
    EXPECT_EQ(used_this_month(l, 0, noon + DAY_S), 130);
    EXPECT_EQ(used_today(l, 0, noon + DAY_S), 0);
    EXPECT_EQ(used_this_month(l, 2, noon), 0);
    EXPECT_EQ(used_this_month(l, 2, noon - DAY_S), 70);
    quota_file_destroy(q);
    limits_destroy(l);
    quota_file_destroy(NULL);
    close_folder();
}

static void names_of_all_kinds_survive(void) {
    static const char *const names[] = {"a \"b\" \\ c", "h\xc3\xa9 \xf0\x9f\x98\x80",
                                        "{}[],:", " "};
    open_folder();
    for (int round = 0; round < 2; round++) {
        quota_file *q = read_file();
        limits *l = limits_create();
        for (uint32_t i = 0; i < INFERD_COUNT(names); i++) {
            EXPECT_EQ(limits_set_tenant(l, i, names[i], &spec, 0, NULL), INFERD_OK);
            EXPECT_EQ(quota_file_restore(q, l, i), round == 1);
            EXPECT_EQ(used_today(l, i, noon), round == 1 ? i + 1 : 0);
            if (round == 0) use(l, i, noon, i + 1);
        }
        EXPECT_EQ(save(q, l, S, noon), INFERD_OK);
        quota_file_destroy(q);
        limits_destroy(l);
    }
    close_folder();
}

static void it_is_written_when_something_changed_and_not_more_often(void) {
    open_folder();
    quota_file *q = read_file();
    limits *l = open_limits(1);
    EXPECT(!quota_file_due(q, l, 0));
    use(l, 0, noon, 1);
    EXPECT(quota_file_due(q, l, 0)); // the first need not wait
    EXPECT_EQ(save(q, l, 0, noon), INFERD_OK);
    use(l, 0, noon, 1);
    EXPECT(!quota_file_due(q, l, S - 1));
    EXPECT(quota_file_due(q, l, S));
    EXPECT_EQ(save(q, l, 10 * S, noon), INFERD_OK);
    EXPECT(!quota_file_due(q, l, 20 * S)); // nothing changed
    use(l, 0, noon, 1);
    EXPECT(!quota_file_due(q, l, 11 * S - 1));
    EXPECT(quota_file_due(q, l, 11 * S));
    buf out;
    buf_init(&out, 0);
    EXPECT_EQ(quota_file_snapshot(q, l, 11 * S, noon, &out, NULL), INFERD_OK);
    use(l, 0, noon, 1); // while it is written
    EXPECT(!quota_file_due(q, l, 13 * S));
    quota_file_written(q, true);
    EXPECT(quota_file_due(q, l, 13 * S));
    buf_clear(&out);
    EXPECT_EQ(quota_file_snapshot(q, l, 13 * S, noon, &out, NULL), INFERD_OK);
    quota_file_written(q, false); // the disk was full
    EXPECT(!quota_file_due(q, l, 14 * S - 1));
    EXPECT(quota_file_due(q, l, 14 * S)); // once more, though nothing changed since
    buf_deinit(&out);
    buf_init(&out, 40); // too small for it: as if memory were short
    inferd_err err = {0};
    EXPECT_EQ(quota_file_snapshot(q, l, 14 * S, noon, &out, &err), INFERD_ENOMEM);
    EXPECT(!quota_file_due(q, l, 15 * S - 1) && quota_file_due(q, l, 15 * S));
    buf_deinit(&out);
    quota_file_destroy(q);
    limits_destroy(l);
    close_folder();
}

static void removed_tenants_are_remembered_for_a_while(void) {
    open_folder();
    quota_file *q = read_file();
    limits *l = open_limits(2);
    use(l, 0, noon, 10), use(l, 1, noon, 900);
    EXPECT_EQ(save(q, l, S, noon), INFERD_OK);
    quota_file_destroy(q), limits_destroy(l);

    for (int day = 0; day <= 70; day += 10) { // t1 is no longer configured
        int64_t now_s = noon + day * DAY_S;
        q = read_file();
        EXPECT_EQ(quota_file_n_tenants(q), 2);
        l = open_limits(1);
        EXPECT(quota_file_restore(q, l, 0));
        if (day == 20) { // it comes back by a reload, and finds the use of then
            EXPECT_EQ(limits_set_tenant(l, 1, "t1", &spec, 0, NULL), INFERD_OK);
            EXPECT(quota_file_restore(q, l, 1));
            EXPECT_EQ(used_this_month(l, 1, now_s), 900);
            EXPECT_EQ(used_today(l, 1, noon), 900);
        } else {
            /* A clock that is wrong for a moment forgets nobody. */
            EXPECT_EQ(save(q, l, S, now_s + 4000 * (int64_t)DAY_S), INFERD_OK);
            EXPECT(strstr(read_back(), "t1") == NULL);
            EXPECT_EQ(save(q, l, 2 * S, now_s), INFERD_OK);
            EXPECT_EQ(strstr(read_back(), "\"t1\":{\"day\":\"2026-01-01\",\"day_tokens\":900,"
                                          "\"month\":\"2026-01\",\"month_tokens\":900,"
                                          "\"seen\":\"2026-01-01\"}") != NULL,
                      day <= QUOTA_FILE_KEEP_DAYS);
        }
        quota_file_destroy(q), limits_destroy(l);
    }
    close_folder();
}

#define TENANT(members) "{\"version\":1,\"tenants\":{\"bob\":{" members "}}}"
#define GOOD                                                                                       \
    "\"day\":\"2026-01-01\",\"day_tokens\":1,\"month\":\"2026-01\",\"month_tokens\":1,"            \
    "\"seen\":\"2026-01-01\""

static void a_file_that_is_not_right_is_an_error(void) {
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"", "line 1"},
        {"{\"version\":1,\"tenants\":{", "too early"},
        {"[]", "expected an object, found a list"},
        {"{\"tenants\":{}}", "version: expected 1, found nothing"},
        {"{\"version\":\"1\",\"tenants\":{}}", "version: expected 1, found other text"},
        {"{\"version\":2,\"tenants\":{}}", "version: expected 1, found 2"},
        {"{\"version\":1}", "tenants: expected an object, found nothing"},
        {"{\"version\":1,\"tenants\":[]}", "tenants: expected an object, found a list"},
        {"{\"version\":1,\"tenants\":{},\"x\":1}", "has 3 members"},
        {"{\"version\":1,\"tenants\":{\"bob\":3}}", "tenants.bob: expected an object, found a num"},
        {"{\"version\":1,\"tenants\":{\"bob\":{" GOOD "},\"bob\":{" GOOD "}}}", "twice"},
        {TENANT(GOOD ",\"x\":1"), "tenants.bob: has 6 members, expected 5"},
        {TENANT(""), "tenants.bob.day: expected a date such as \"2026-01-02\", found nothing"},
        {TENANT("\"day\":\"2026-02-29\""), "tenants.bob.day: expected a date"},
        {TENANT("\"day\":\"2026-1-01\""), "tenants.bob.day: expected a date"},
        {TENANT("\"day\":\"2026-01-01T\""), "tenants.bob.day: expected a date"},
        {TENANT("\"day\":\"2026-01\""), "tenants.bob.day: expected a date"},
        {TENANT("\"day\":20260101"), "tenants.bob.day: expected a date such as \"2026-01-02\", "
                                     "found a number"},
        {TENANT("\"day\":\"2026-01-01\",\"month\":\"2026-01-01\""),
         "tenants.bob.month: expected a month such as \"2026-01\", found other text"},
        {TENANT("\"day\":\"2026-01-01\",\"month\":\"2026-13\""), "tenants.bob.month"},
        {TENANT("\"day\":\"2026-01-01\",\"month\":\"2026-01\",\"seen\":null"),
         "tenants.bob.seen: expected a date such as \"2026-01-02\", found null"},
        {TENANT("\"day\":\"2026-01-01\",\"day_tokens\":-1,\"month\":\"2026-01\",\"month_tokens\":1,"
                "\"seen\":\"2026-01-01\""),
         "tenants.bob.day_tokens: expected a whole number from 0, found a negative number"},
        {TENANT(
             "\"day\":\"2026-01-01\",\"day_tokens\":1,\"month\":\"2026-01\",\"month_tokens\":1.5,"
             "\"seen\":\"2026-01-01\""),
         "tenants.bob.month_tokens: expected a whole number from 0, found a fraction"},
        {TENANT("\"day\":\"2026-01-01\",\"day_tokens\":1,\"month\":\"2026-01\","
                "\"month_tokens\":99999999999999999999,\"seen\":\"2026-01-01\""),
         "too large"},
    };
    open_folder();
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        quota_file *q = NULL;
        inferd_err err = {0};
        write_text(rows[i].text, strlen(rows[i].text));
        EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EFORMAT);
        EXPECT(q == NULL);
        EXPECT_EQ(err.status, INFERD_EFORMAT);
        EXPECT(strncmp(err.text, "the quota file /", 16) == 0);
        EXPECT(strstr(err.text, path) != NULL);
        if (strstr(err.text, rows[i].sentence) == NULL) EXPECT_STR(err.text, rows[i].sentence);
    }
    write_text(TENANT(GOOD), strlen(TENANT(GOOD))); // so the rest of the rows was right
    quota_file_destroy(read_file());
    close_folder();
}

/* Every beginning of a file is an error, however it came about. */
static void a_cut_file_is_an_error(void) {
    static const char whole[] = TENANT(GOOD);
    open_folder();
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        quota_file *q = NULL;
        inferd_err err = {0};
        write_text(whole, n);
        EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EFORMAT);
        EXPECT(q == NULL);
    }
    char name[LIMITS_NAME_BYTES_MAX + 64] = {0};
    int n = snprintf(name, sizeof name, "{\"version\":1,\"tenants\":{\"");
    memset(name + n, 'n', LIMITS_NAME_BYTES_MAX + 1);
    strcat(name, "\":{}}}");
    quota_file *q = NULL;
    inferd_err err = {0};
    write_text(name, strlen(name));
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "name has 256 bytes, at most 255") != NULL);
    close_folder();
}

static void what_is_not_a_file_is_an_error(void) {
    quota_file *q = NULL;
    inferd_err err = {0};
    open_folder();
    EXPECT(mkdir(path, 0700) == 0);
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "is not a regular file") != NULL);
    EXPECT_EQ(quota_file_write(path, "x", 1, &err), INFERD_EIO); // cannot be replaced by a file
    EXPECT(strstr(err.text, "renaming the new file") != NULL);
    EXPECT(rmdir(path) == 0 && mkfifo(path, 0600) == 0);
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EIO); // and does not wait
    EXPECT(unlink(path) == 0 && symlink("quota.json", path) == 0);
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "cannot be opened: ") != NULL);
    EXPECT(unlink(path) == 0 && truncate(path, 0) != 0);
    write_text("", 0);
    EXPECT(truncate(path, QUOTA_FILE_BYTES_MAX + 1) == 0); // sparse
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "has 134217729 bytes, at most 134217728") != NULL);
    EXPECT(q == NULL);
    close_folder();
}

static void a_failed_write_leaves_the_old_file(void) {
    inferd_err err = {0};
    struct rlimit before, small = {0};
    open_folder();
    EXPECT_EQ(quota_file_write(path, "old", 3, &err), INFERD_OK);
    getrlimit(RLIMIT_FSIZE, &before); // as if the disk were full
    small = before;
    small.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    memset(text, 'x', 1000);
    EXPECT_EQ(quota_file_write(path, text, 1000, &err), INFERD_EIO);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT(strstr(err.text, "writing the new file: File too large") != NULL);
    EXPECT_STR(read_back(), "old");
    EXPECT(access(fresh, F_OK) != 0);
    EXPECT(symlink(path, fresh) == 0); // what somebody put there is not followed
    EXPECT_EQ(quota_file_write(path, "new", 3, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "opening the new file") != NULL);
    EXPECT_STR(read_back(), "old");
    EXPECT_EQ(unlink(fresh), 0);
    memset(text, 'x', 1000);
    int fd = open(fresh, O_WRONLY | O_CREAT, 0600); // left by a crash, longer than the next
    EXPECT(fd >= 0 && write(fd, text, 1000) == 1000 && close(fd) == 0);
    EXPECT_EQ(quota_file_write(path, "new", 3, &err), INFERD_OK);
    EXPECT_STR(read_back(), "new");
    struct stat st;
    EXPECT(stat(path, &st) == 0 && st.st_size == 3);
    close_folder();
    EXPECT_EQ(quota_file_write(path, "new", 3, &err), INFERD_EIO); // no such folder
    EXPECT(strstr(err.text, "No such file") != NULL);
    char longest[5000];
    memset(longest, 'p', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    EXPECT_EQ(quota_file_write(longest, "new", 3, &err), INFERD_EINVAL);
    EXPECT(strstr(err.text, "has 4999 bytes") != NULL);
}

static void a_path_without_a_folder_is_here(void) {
    inferd_err err = {0};
    char here[4096];
    open_folder();
    EXPECT(getcwd(here, sizeof here) != NULL && chdir(folder) == 0);
    EXPECT_EQ(quota_file_write("quota.json", "here", 4, &err), INFERD_OK);
    EXPECT_EQ(chdir(here), 0);
    EXPECT_STR(read_back(), "here");
    close_folder();
}

/* A child uses tokens and writes as the daemon would, and is killed at some moment: what is read
 * then is whole, and lacks at most what was used since the write that ended last. */
static void being_killed_loses_little(void) {
    open_folder();
    for (int round = 0; round < 4; round++) {
        int told[2];
        EXPECT_EQ(pipe(told), 0);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            limits_spec none = {0};
            limits *l = limits_create();
            quota_file *q = read_file();
            limits_set_tenant(l, 0, "t0", &none, 0, NULL);
            quota_file_restore(q, l, 0);
            for (uint64_t now_us = S;; now_us += S) { // a second in much less
                use(l, 0, noon, 7);
                uint64_t used = used_today(l, 0, noon);
                if (save(q, l, now_us, noon) != INFERD_OK) _exit(1);
                if (write(told[1], &used, sizeof used) != sizeof used) _exit(1);
            }
        }
        close(told[1]);
        uint64_t used = 0, last = 0;
        for (int i = 0; i < 1 + 3 * round; i++)
            EXPECT(read(told[0], &used, sizeof used) == sizeof used);
        for (int i = 0; i < 50; i++) quota_file_destroy(read_file()); // whole at every moment
        for (int i = 0; i < 20000; i++) EXPECT(access(path, F_OK) == 0);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(told[0], &last, sizeof last) == sizeof last) used = last;
        close(told[0]);
        quota_file *q = read_file();
        limits *l = open_limits(1);
        EXPECT(quota_file_restore(q, l, 0));
        uint64_t found = used_today(l, 0, noon);
        EXPECT(found == used || found == used + 7);
        quota_file_destroy(q);
        limits_destroy(l);
    }
    close_folder();
}

static void too_many_tenants_are_an_error(void) {
    buf out;
    quota_file *q = NULL;
    inferd_err err = {0};
    open_folder();
    buf_init(&out, 0);
    buf_add_str(&out, "{\"version\":1,\"tenants\":{\"x\":0");
    for (int i = 0; i < QUOTA_FILE_TENANTS_MAX; i++) buf_add_format(&out, ",\"%d\":0", i);
    buf_add_str(&out, "}}");
    write_text(out.p, out.n);
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_EFORMAT);
    EXPECT(strstr(err.text, "has 200001 tenants, at most 200000") != NULL);
    buf_deinit(&out);
    close_folder();
}

/* Those in the table come first, then those seen last. */
static void the_longest_unseen_make_room(void) {
    static const char others[] =
        "{\"version\":1,\"tenants\":{"
        "\"a\":{\"day\":\"2026-01-01\",\"day_tokens\":1,\"month\":\"2026-01\",\"month_tokens\":1,"
        "\"seen\":\"2025-12-30\"},"
        "\"b\":{\"day\":\"2026-01-01\",\"day_tokens\":1,\"month\":\"2026-01\",\"month_tokens\":1,"
        "\"seen\":\"2026-01-01\"},"
        "\"c\":{\"day\":\"2026-01-01\",\"day_tokens\":1,\"month\":\"2026-01\",\"month_tokens\":1,"
        "\"seen\":\"2025-12-31\"}}}";
    open_folder();
    write_text(others, sizeof others - 1);
    quota_file *q = read_file();
    limits *l = open_limits(QUOTA_FILE_TENANTS_MAX - 2);
    limits_kept kept = {noon - 12 * 3600, noon - 12 * 3600, 1, 1};
    for (uint32_t i = 0; i < limits_n_tenants(l); i++) limits_restore(l, i, &kept);
    buf out;
    buf_init(&out, 0);
    EXPECT_EQ(quota_file_snapshot(q, l, S, noon, &out, NULL), INFERD_OK);
    buf_cstr(&out);
    EXPECT(strstr(out.p, "\"t0\":") != NULL && strstr(out.p, "\"t199997\":") != NULL);
    EXPECT(strstr(out.p, "\"b\":") != NULL && strstr(out.p, "\"c\":") != NULL);
    EXPECT(strstr(out.p, "\"a\":") == NULL);
    buf_deinit(&out);
    limits_destroy(l);
    quota_file_destroy(q);
    close_folder();
}

static const test_case cases[] = {
    TEST(use_survives),
    TEST(names_of_all_kinds_survive),
    TEST(it_is_written_when_something_changed_and_not_more_often),
    TEST(removed_tenants_are_remembered_for_a_while),
    TEST(a_file_that_is_not_right_is_an_error),
    TEST(a_cut_file_is_an_error),
    TEST(what_is_not_a_file_is_an_error),
    TEST(a_failed_write_leaves_the_old_file),
    TEST(a_path_without_a_folder_is_here),
    TEST(being_killed_loses_little),
    TEST(too_many_tenants_are_an_error),
    TEST(the_longest_unseen_make_room),
};
TEST_MAIN(cases)
