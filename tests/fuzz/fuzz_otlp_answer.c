/* fuzz_otlp_answer.c - what a collector answers.
 *
 * Checked: the message is within its bound and has no control character; bytes that are no answer
 * give none; what was read is read again when it is written by proto.h. */
#include "otlp_answer.h"
#include "proto.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_message(const char *text) {
    INFERD_CHECK(memchr(text, 0, OTLP_MESSAGE_BYTES) != NULL);
    for (; *text != 0; text++) INFERD_CHECK((unsigned char)*text >= ' ' && *text != 0x7f);
}

static void check_again(const otlp_answer *a) {
    otlp_answer again;
    buf b = {0};
    proto_writer w = {.out = &b};
    proto_open(&w, 1);
    proto_varint(&w, 1, a->n_rejected);
    proto_text(&w, 2, a->message);
    proto_close(&w);
    INFERD_CHECK(!b.failed && otlp_answer_read((bytes){b.p, b.n}, &again));
    INFERD_CHECK(again.n_rejected == a->n_rejected && strcmp(again.message, a->message) == 0);
    buf_deinit(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *block = malloc(n + (n == 0)); // of its own, so that reading past it is seen
    otlp_answer a;
    if (n > 0) memcpy(block, data, n);
    bool fine = otlp_answer_read((bytes){block, n}, &a);
    check_message(a.message);
    INFERD_CHECK(fine || (a.n_rejected == 0 && a.message[0] == 0));
    INFERD_CHECK(a.n_rejected <= INT64_MAX);
    check_again(&a);
    free(block);
    return 0;
}
