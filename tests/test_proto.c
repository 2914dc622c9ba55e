/* test_proto.c - fields are written as protobuf's specification of its encoding has them. */
#include "otlp.h"
#include "proto.h"
#include "test.h"

static bool is_hex(const buf *b, const char *hex) {
    char text[1024];
    for (size_t i = 0; i < b->n; i++) sprintf(text + 2 * i, "%02x", (unsigned char)b->p[i]);
    text[2 * b->n] = 0;
    if (strcmp(text, hex) != 0) printf("%s, expected %s\n", text, hex);
    return strcmp(text, hex) == 0;
}

/* 150, "testing" and the embedded 150 are the examples of protobuf.dev/programming-guides/encoding.
 */
static void fields_are_those_of_the_specification(void) {
    buf b = {0};
    proto_writer w = {.out = &b};
    proto_varint(&w, 1, 150);
    EXPECT(is_hex(&b, "089601"));
    buf_clear(&b);
    proto_text(&w, 2, "testing");
    EXPECT(is_hex(&b, "120774657374696e67"));
    buf_clear(&b);
    proto_open(&w, 3);
    proto_varint(&w, 1, 150);
    proto_close(&w);
    EXPECT(is_hex(&b, "1a03089601"));
    buf_clear(&b);
    proto_varint(&w, 16, 0); // the number of the field takes two bytes
    proto_varint(&w, 1, UINT64_MAX);
    EXPECT(is_hex(&b, "80010008ffffffffffffffffff01"));
    buf_clear(&b);
    proto_fixed64(&w, 7, 0x0102030405060708);
    proto_fixed32(&w, 16, 0x01020304);
    proto_real(&w, 4, 1.0);
    EXPECT(is_hex(&b, "39080706050403020185010403020121000000000000f03f"));
    buf_deinit(&b);
}

static void a_long_message_has_a_long_length(void) {
    static char text[300];
    buf b = {0};
    proto_writer w = {.out = &b};
    memset(text, 'x', sizeof text - 1);
    proto_open(&w, 1);
    proto_open(&w, 2);
    proto_text(&w, 3, text); // 299 bytes, 3 before them
    proto_close(&w);
    proto_open(&w, 4); // empty
    proto_close(&w);
    proto_close(&w);
    EXPECT_EQ(b.n, 3 + 3 + 302 + 2);
    EXPECT(memcmp(b.p, "\x0a\xb3\x02\x12\xae\x02\x1a\xab\x02xxx", 12) == 0);
    EXPECT(memcmp(b.p + b.n - 3, "x\x22\x00", 3) == 0);
    EXPECT_EQ(w.depth, 0);
    buf_deinit(&b);
}

static void a_bound_fails_and_writes_no_further(void) {
    buf b;
    buf_init(&b, 6);
    proto_writer w = {.out = &b};
    proto_open(&w, 1);
    proto_text(&w, 2, "four");
    proto_close(&w);
    EXPECT(b.failed && b.n <= 6);
    buf_deinit(&b);
}

static void a_span_is_its_fields_in_order(void) {
    buf b = {0};
    trace_context c = {.trace_id = {1}, .flags = 1, .state = "a=1"};
    const unsigned char parent[SPAN_ID_BYTES] = {3};
    const otlp_attribute attributes[] = {{.key = "n", .type = OTLP_INT, .n = -1},
                                         {.key = "l", .type = OTLP_TEXTS, .text = "x"}};
    otlp_span s = {.context = &c,
                   .id = {2},
                   .parent_id = parent,
                   .remote_parent = true,
                   .name = "p",
                   .kind = OTLP_SERVER,
                   .start_ns = 1,
                   .end_ns = 2,
                   .attributes = attributes,
                   .n_attributes = 2,
                   .status = OTLP_ERROR,
                   .message = "m"};
    otlp_add_span(&b, &s);
    EXPECT(is_hex(&b, "126f"
                      "0a1001000000000000000000000000000000"
                      "12080200000000000000"
                      "1a03613d31"
                      "22080300000000000000"
                      "2a0170"
                      "3002"
                      "390100000000000000"
                      "410200000000000000"
                      "4a100a016e120b18ffffffffffffffffff01"
                      "4a0c0a016c12072a050a030a0178"
                      "7a0512016d1802"
                      "850101030000"));
    buf_clear(&b);
    otlp_add_request(&b, &(otlp_resource){"s", "i", "v"}, "\x12\x00", 2);
    EXPECT(b.n > 2 && (unsigned char)b.p[1] == b.n - 2 &&
           memcmp(b.p + b.n - 2, "\x12\x00", 2) == 0);
    buf_deinit(&b);
}

static const test_case cases[] = {
    TEST(fields_are_those_of_the_specification),
    TEST(a_long_message_has_a_long_length),
    TEST(a_bound_fails_and_writes_no_further),
    TEST(a_span_is_its_fields_in_order),
};
TEST_MAIN(cases)
