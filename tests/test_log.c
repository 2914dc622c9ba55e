/* test_log.c - log lines: what a stranger's bytes can do in them, and that nobody waits for them.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "log.h"
#include "test.h"

static char folder[64], path[96];
static char text[64 * 1024];

static void open_log(bool json, log_level level) {
    inferd_err err = {0};
    snprintf(folder, sizeof folder, "/tmp/inferd-test-XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/log", folder);
    EXPECT_EQ(log_open(path, json, level, &err), INFERD_OK);
}

static void close_log(void) {
    log_close();
    unlink(path);
    rmdir(folder);
}

/* The file's text behind the two times of its first line. */
static const char *read_log(void) {
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n < 0 ? 0 : n] = 0;
    const char *level = strstr(text, "level");
    if (level == NULL) return text;
    return level[-1] == '"' ? level - 1 : level;
}

static void write_samples(void) {
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "done");
    log_str(&line, "id", "req-1");
    log_str(&line, "path", "/v1/models");
    log_str(&line, "text", "a b=\"c\"\\\n\r\t\x1b[2J\x7f end");
    log_bytes(&line, "nul", (bytes){"a\0b", 3});
    log_str(&line, "utf8", "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    log_str(&line, "bad", "\xff\xc0\xaf\xed\xa0\x80");
    log_str(&line, "bidi",
            "a\xe2\x80\xae"
            "b\xc2\x9b"
            "c");
    log_str(&line, "none", NULL);
    log_u64(&line, "big", UINT64_MAX);
    log_i64(&line, "low", INT64_MIN);
    log_bool(&line, "ok", true);
    log_end(&line);
}

static void values_are_escaped(void) {
    open_log(false, LOG_LEVEL_INFO);
    write_samples();
    EXPECT_STR(
        read_log(),
        "level=info event=done id=req-1 path=/v1/models "
        "text=\"a b=\\\"c\\\"\\\\\\x0a\\x0d\\x09\\x1b[2J\\x7f end\" nul=\"a\\x00b\" "
        "utf8=\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\" bad=\"\\xff\\xc0\\xaf\\xed\\xa0\\x80\" "
        "bidi=\"a\\xe2\\x80\\xaeb\\xc2\\x9bc\" none=\"\" big=18446744073709551615 "
        "low=-9223372036854775808 ok=true\n");
    EXPECT(strncmp(text, "ts=20", 5) == 0 && strstr(text, "Z mono_us=") != NULL);
    close_log();
    open_log(true, LOG_LEVEL_INFO);
    write_samples();
    EXPECT_STR(read_log(),
               "\"level\":\"info\",\"event\":\"done\",\"id\":\"req-1\",\"path\":\"/v1/models\","
               "\"text\":\"a b=\\\"c\\\"\\\\\\u000a\\u000d\\u0009\\u001b[2J\\u007f "
               "end\",\"nul\":\"a\\u0000b\","
               "\"utf8\":\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\","
               "\"bad\":\"\\u00ff\\u00c0\\u00af\\u00ed\\u00a0\\u0080\","
               "\"bidi\":\"a\\u00e2\\u0080\\u00aeb\\u00c2\\u009bc\",\"none\":\"\",\"big\":"
               "18446744073709551615,"
               "\"low\":-9223372036854775808,\"ok\":true}\n");
    EXPECT(strncmp(text, "{\"ts\":\"20", 9) == 0);
    close_log();
}

/* Two and three bytes more than a character needs, and characters that do not exist. */
static void text_that_is_no_utf8_is_escaped(void) {
    static const struct {
        const char *value, *shown;
    } rows[] = {
        {"\xc3\xa9", "\"\xc3\xa9\""},
        {"\xe0\x83\xa9", "\"\\xe0\\x83\\xa9\""},          // U+00E9 in three
        {"\xf0\x80\x83\xa9", "\"\\xf0\\x80\\x83\\xa9\""}, // in four
        {"\xf0\x82\x82\xac", "\"\\xf0\\x82\\x82\\xac\""}, // U+20AC in four
        {"\xf4\x8f\xbf\xbf", "\"\xf4\x8f\xbf\xbf\""},     // the last one
        {"\xf4\x90\x80\x80", "\"\\xf4\\x90\\x80\\x80\""}, // behind it
        {"\xf7\xbf\xbf\xbf", "\"\\xf7\\xbf\\xbf\\xbf\""}, // far behind it
        {"\xed\x9f\xbf", "\"\xed\x9f\xbf\""},             // before the surrogates
        {"\xed\xa0\x80", "\"\\xed\\xa0\\x80\""},          // their first,
        {"\xed\xbf\xbf", "\"\\xed\\xbf\\xbf\""},          // and last
        {"\xee\x80\x80", "\"\xee\x80\x80\""},             // behind them
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        char line[128];
        open_log(false, LOG_LEVEL_INFO);
        log_text(LOG_LEVEL_INFO, "e", "v", rows[i].value);
        snprintf(line, sizeof line, "level=info event=e v=%s\n", rows[i].shown);
        EXPECT_STR(read_log(), line);
        close_log();
    }
}

/* Against the C library's, over some centuries: around each day's end, leap years and months. */
static void dates_are_those_of_the_calendar(void) {
    for (int64_t day = 0; day < 200000; day++) {
        struct timespec at = {.tv_sec = day * 86400 + day % 86400, .tv_nsec = 999999999};
        struct tm tm;
        char stamp[LOG_STAMP_BYTES], want[LOG_STAMP_BYTES];
        gmtime_r(&at.tv_sec, &tm);
        strftime(want, sizeof want, "%Y-%m-%dT%H:%M:%S.999Z", &tm);
        log_stamp(stamp, &at);
        if (strcmp(stamp, want) == 0) continue;
        EXPECT_STR(stamp, want);
        return;
    }
}

static void levels_are_kept(void) {
    open_log(false, LOG_LEVEL_ERROR);
    EXPECT(log_wants(LOG_LEVEL_ERROR) && !log_wants(LOG_LEVEL_INFO) && !log_wants(LOG_LEVEL_DEBUG));
    log_text(LOG_LEVEL_INFO, "quiet", "a", "b");
    log_text(LOG_LEVEL_ERROR, "loud", "a", "b");
    EXPECT_STR(read_log(), "level=error event=loud a=b\n");
    close_log();
}

static void long_line_is_cut_at_a_field(void) {
    for (int json = 0; json < 2; json++) {
        log_line line;
        char value[3000];
        memset(value, 'x', sizeof value - 1);
        value[sizeof value - 1] = 0;
        open_log(json, LOG_LEVEL_INFO);
        log_begin(&line, LOG_LEVEL_INFO, "long");
        log_str(&line, "a", value);
        log_str(&line, "b", "short");
        log_end(&line);
        EXPECT_STR(read_log(),
                   json ? "\"level\":\"info\",\"event\":\"long\",\"b\":\"short\",\"cut\":true}\n"
                        : "level=info event=long b=short cut=true\n");
        close_log();
        open_log(json, LOG_LEVEL_INFO);
        log_begin(&line, LOG_LEVEL_INFO, "many");
        for (int i = 0; i < 1000; i++) log_u64(&line, "n", 1000000u + (unsigned)i);
        log_end(&line);
        size_t n = strlen(read_log());
        EXPECT(n > 1900 && strlen(text) <= LOG_LINE_BYTES);
        EXPECT_STR(text + strlen(text) - (json ? 13 : 10),
                   json ? ",\"cut\":true}\n" : " cut=true\n");
        close_log();
    }
}

/* R06: a pipe that nobody empties costs lines, not time. */
static void full_pipe_drops_and_counts(void) {
    inferd_err err = {0};
    log_line line;
    open_log(false, LOG_LEVEL_INFO);
    close_log();
    EXPECT(mkdir(folder, 0700) == 0 && mkfifo(path, 0600) == 0);
    EXPECT_EQ(log_open(path, false, LOG_LEVEL_INFO, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "without a reader") != NULL);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    EXPECT_EQ(log_open(path, false, LOG_LEVEL_INFO, &err), INFERD_OK);
    uint64_t before = log_n_dropped(), begin_us = clock_now_us();
    for (int i = 0; i < 5000; i++) {
        log_begin(&line, LOG_LEVEL_INFO, "tick");
        log_u64(&line, "i", (uint64_t)i);
        log_end(&line);
    }
    EXPECT(clock_now_us() - begin_us < 2000000);
    uint64_t n_dropped = log_n_dropped() - before;
    EXPECT(n_dropped > 0 && n_dropped < 5000);
    size_t n_lines = 0;
    ssize_t n;
    while ((n = read(reader, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) n_lines += text[i] == '\n';
    EXPECT_EQ(n_lines + n_dropped, 5000); // whole lines, and none unaccounted for
    log_text(LOG_LEVEL_INFO, "again", "a", "b");
    n = read(reader, text, sizeof text - 1);
    text[n < 0 ? 0 : n] = 0;
    EXPECT(strstr(text, "event=log_dropped lines=") != NULL);
    EXPECT(strstr(text, "event=again a=b\n") != NULL);
    close(reader);
    close_log();
}

static void reopening_follows_rotation(void) {
    inferd_err err = {0};
    char old[128];
    open_log(false, LOG_LEVEL_INFO);
    snprintf(old, sizeof old, "%s.1", path);
    log_text(LOG_LEVEL_INFO, "one", "a", "b");
    rename(path, old);
    log_text(LOG_LEVEL_INFO, "two", "a", "b");
    EXPECT_EQ(log_reopen(&err), INFERD_OK);
    log_text(LOG_LEVEL_INFO, "three", "a", "b");
    EXPECT_STR(read_log(), "level=info event=three a=b\n");
    /* C08: a place that is gone leaves the old file in use. */
    rename(path, old);
    EXPECT_EQ(mkdir(path, 0700), 0);
    EXPECT_EQ(log_reopen(&err), INFERD_EIO);
    log_text(LOG_LEVEL_INFO, "four", "a", "b");
    rmdir(path);
    rename(old, path);
    EXPECT(strstr(read_log(), "event=four") != NULL);
    close_log();
    EXPECT_EQ(log_open("/nonexistent/folder/log", false, LOG_LEVEL_INFO, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "/nonexistent/folder/log") != NULL);
}

static const test_case cases[] = {
    TEST(values_are_escaped),
    TEST(text_that_is_no_utf8_is_escaped),
    TEST(dates_are_those_of_the_calendar),
    TEST(levels_are_kept),
    TEST(long_line_is_cut_at_a_field),
    TEST(full_pipe_drops_and_counts),
    TEST(reopening_follows_rotation),
};
TEST_MAIN(cases)
