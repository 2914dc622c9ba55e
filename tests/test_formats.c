/* test_formats.c - the formats of JSON Schema, by texts at their edges. */
#include "dfa_rig.h"

static void expect_format(const char *name, const char *const *texts, size_t n) {
    dfa d = {0};
    inferd_err err = {0};
    EXPECT(dfa_of_format(name, &dfa_limits_default, &d, &err) == INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT(rig_is_trim(&d));
    rig_expect(&d, name, texts, n);
    dfa_deinit(&d);
}
#define EXPECT_FORMAT(name, ...) expect_format(name, RIG_TEXTS(__VA_ARGS__))

static void dates_know_months_and_leap_years(void) {
    EXPECT_FORMAT("date", "+2024-02-29", "-2023-02-29", "-1900-02-29", "+2000-02-29", "+0004-02-29",
                  "-0000-01-01", "+0001-01-01", "+9999-12-31", "-2024-04-31", "+2024-04-30",
                  "-2024-13-01", "-2024-00-10", "-2024-1-1", "-2024-01-32", "-24-01-01",
                  "-2100-02-29", "+2400-02-29", "+2023-02-28", "-2023-02-00");
}

static void times_and_durations(void) {
    EXPECT_FORMAT("time", "+23:59:59Z", "-24:00:00Z", "-23:59:60Z", "+00:00:00.123456789+05:30",
                  "-12:00:00", "-12:00Z", "-12:00:00.Z", "+12:00:00-23:59", "-12:00:00+24:00");
    EXPECT_FORMAT("date-time", "+2024-02-29T12:00:00Z", "-2023-02-29T12:00:00Z",
                  "-2024-02-29 12:00:00Z", "+1985-04-12T23:20:50.52Z", "-1985-04-12T23:20:50");
    EXPECT_FORMAT("duration", "+P1Y2M3DT4H5M6S", "+P1D", "+PT36H", "+P4W", "-P", "-PT", "-P1W2D",
                  "-1Y", "-P1Y3D", "-PT1H5S", "+P1Y2M", "+P2M3D", "+PT4H5M", "+P1DT4H", "+P1YT5S",
                  "-P1", "-P1DT", "-PT1S2M", "-P1.5D");
}

static void mail_and_hosts(void) {
    EXPECT_FORMAT("email", "+a@b", "+first.last+tag@sub.example.com", "-.a@b.c", "-a..b@c.d", "-a@",
                  "-@b", "-a@xn--b", "-a b@c.d", "-a@-b.c", "-a@b-.c", "+o'neil@x.y", "-a@b..c");
    EXPECT_FORMAT("idn-email",
                  "+\xc3\xbc"
                  "ser@b\xc3\xbc"
                  "cher.example",
                  "+a@b.c", "-a@", "-a@\xc3\xa9x--b", "-a b@c");
    EXPECT_FORMAT("hostname", "+example.com", "+a", "+a-b.c-d", "-a_b", "-", "--a", "-a-", "-a..b",
                  "-.a", "+1.2.3.4", "-xn--X", "-a.ab--c", "+a--b.c", "+abc-d", "+a-1", "-ab--",
                  "+ab-c", "+abc--d");
    char name[300];
    memset(name, 'a', sizeof name);
    name[0] = '+';
    for (int i = 64; i < 256; i += 64) name[i] = '.';
    name[254] = 0; // 63 . 63 . 63 . 61
    EXPECT_FORMAT("hostname", name);
    name[0] = '-';
    name[254] = 'a';
    name[255] = 0;
    EXPECT_FORMAT("hostname", name); // 254 characters
    memcpy(name + 64, "a.a", sizeof "a.a");
    EXPECT_FORMAT("hostname", name); // a label of 64
    name[0] = '+';
    memcpy(name + 64, ".a", sizeof ".a");
    EXPECT_FORMAT("hostname", name); // of 63
}

static void addresses(void) {
    EXPECT_FORMAT("ipv4", "+0.0.0.0", "+255.255.255.255", "-256.0.0.1", "-1.2.3", "-1.2.3.4.5",
                  "-01.2.3.4", "-1.2.3.", "+127.0.0.1");
    EXPECT_FORMAT("ipv6", "+::", "+::1", "+1::", "+1:2:3:4:5:6:7:8", "-1:2:3:4:5:6:7",
                  "+2001:db8::ff", "-1::2::3", "+1:2:3:4:5:6:7::", "+::2:3:4:5:6:7:8",
                  "-1:2:3:4:5:6:7:8::", "+::ffff:1.2.3.4", "+1:2:3:4:5:6:1.2.3.4", "-::1.2.3.256",
                  "-12345::", "-::1%eth0", "-:1", "-1:", "-1:2:3:4:5:6:7:1.2.3.4");
    EXPECT_FORMAT("uuid", "+2eb8aa08-aa98-11ea-b4aa-73b441d16380",
                  "+2EB8AA08-AA98-11EA-B4AA-73B441D16380", "-2eb8aa08aa9811eab4aa73b441d16380",
                  "-2eb8aa08-aa98-11ea-b4aa-73b441d1638", "-2eb8aa08-aa98-11ea-b4aa-73b441d16380-");
}

static void resources(void) {
    EXPECT_FORMAT("uri", "+https://example.com/a?b=c#d", "+mailto:a@b.c", "+urn:isbn:0451450523",
                  "-/a/b", "-//example.com", "-https://a b", "-http://[::1", "+http://[::1]:80/",
                  "+http://u:p@h:8080/%20x", "-http://h/%2", "-:a", "-1a:b", "-http://\xc3\xa9.com",
                  "+file:///etc/hosts", "-http://a/|", "+http:a", "-http://a\\\\b");
    EXPECT_FORMAT("uri-reference", "+/a/b?c", "+", "+#x", "+a:b", "+//h/p", "-a b", "+../x", "-:x",
                  "-\xc3\xa9", "-http://[v.x]/");
    EXPECT_FORMAT("iri", "+http://\xc3\xa9.com/\xe4\xb8\xad", "-\xc3\xa9", "+http://a.b",
                  "-http://a b");
    EXPECT_FORMAT("iri-reference", "+/\xc3\xa9", "+", "+a", "-a b");
    EXPECT_FORMAT("uri-template", "+/a/{b}{?c,d*}", "+", "-{", "-a}", "-{}", "+{+x:3}", "-{x:0}");
}

static void pointers(void) {
    EXPECT_FORMAT("json-pointer", "+", "+/a/~0~1/b", "-a", "-/~2", "-/~", "+/", "+/\\\"");
    EXPECT_FORMAT("relative-json-pointer", "+0", "+1/a", "+2#", "-01", "-", "-a", "-/a", "-0#/a");
}

static void unknown_formats_are_said(void) {
    static const char *const unknown[] = {"", "regex", "Date", "phone"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        dfa d;
        inferd_err err = {0};
        EXPECT(dfa_of_format(unknown[i], &dfa_limits_default, &d, &err) == INFERD_EUNSUPPORTED);
        EXPECT(dfa_is_empty(&d));
    }
}

static const test_case cases[] = {
    TEST(dates_know_months_and_leap_years),
    TEST(times_and_durations),
    TEST(mail_and_hosts),
    TEST(addresses),
    TEST(resources),
    TEST(pointers),
    TEST(unknown_formats_are_said),
};
TEST_MAIN(cases)
