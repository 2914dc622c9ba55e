/* fuzz_responses.c - any bytes as a body of POST /v1/responses.
 *
 * A body that is read is that of a chat: the chat's check takes it, or refuses it with a complete
 * error, and its path is given in the client's terms.  Then an answer is written: parts in an order
 * that the last bytes choose; what was written must be JSON, and the same items whole and streamed.
 */
#include "api_params.h"
#include "inferd/buf.h"
#include "responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const json_limits limits = {
    .depth_max = 64, .structural_max = 200000, .memory_max = 32u << 20};

static const form_host host = {.tenant = "", .limits = &limits};

static void check_refusal(const api_error *e) {
    INFERD_CHECK(e->fault != API_OK && e->status >= 400 && e->type != NULL);
    INFERD_CHECK(e->message[0] != 0 && memchr(e->message, 0, sizeof e->message) != NULL);
    INFERD_CHECK(memchr(e->param, 0, sizeof e->param) != NULL);
}

static json_t *parsed(bytes text) {
    json_t *v = json_loadb(text.p, text.n, JSON_ALLOW_NUL, NULL);
    INFERD_CHECK(v != NULL);
    return v;
}

/* Each event is JSON, with the number that follows; the last one has the response. */
static json_t *last_event(const buf *out) {
    json_t *last = NULL;
    const char *at = out->p, *end = out->p + out->n;
    for (json_int_t i = 0; at < end; i++) {
        const char *line = memmem(at, (size_t)(end - at), "\ndata: ", 7);
        INFERD_CHECK(line != NULL && memcmp(at, "event: ", 7) == 0);
        const char *stop = memmem(line, (size_t)(end - line), "\n\n", 2);
        INFERD_CHECK(stop != NULL);
        json_decref(last);
        last = parsed((bytes){line + 7, (size_t)(stop - line - 7)});
        INFERD_CHECK(json_integer_value(json_object_get(last, "sequence_number")) == i);
        at = stop + 2;
    }
    INFERD_CHECK(last != NULL);
    return last;
}

/* Calls are named after the tools of the request, if there are any. */
static void give_parts(answer_form *f, const uint8_t *data, size_t n, buf *out) {
    const char *name = json_object_iter_key(json_object_iter(((responses_form *)f)->names));
    bytes called = {name == NULL ? "f" : name, name == NULL ? 1 : strlen(name)};
    for (size_t i = 0; i < n; i++) {
        message_part p = {.kind = (part_kind)(data[i] % (PART_CALL_END + 1)),
                          .text = {(const char *)data + i, n - i < 8 ? n - i : 8},
                          .id = {"abcdefgh1", 9},
                          .name = called,
                          .complete = data[i] % 2 == 0};
        f->type->part(f, &p, out);
    }
}

static json_t *answer(json_t *body, bool streaming, const uint8_t *data, size_t n) {
    answer_form *f = NULL;
    json_t *chat = NULL;
    unknown_fields unknown = {0};
    api_error e = {0};
    INFERD_CHECK(responses_read(body, &host, &chat, &f, &unknown, &e));
    json_decref(chat);
    answer_head head = {.id = "resp_1", .model = "m", .tier = "default", .created = 7};
    answer_end end = {.finish = n % 2 == 0 ? "stop" : "length"};
    buf out = {0}, *events = streaming ? &out : NULL;
    f->streaming = streaming;
    f->type->begin(f, &head, &end.usage, events);
    give_parts(f, data, n, events);
    f->type->end(f, &end, &out);
    INFERD_CHECK(!out.failed);
    json_t *v = streaming ? last_event(&out) : parsed((bytes){out.p, out.n}), *items;
    items = json_incref(json_object_get(streaming ? json_object_get(v, "response") : v, "output"));
    INFERD_CHECK(json_array_size(items) > 0);
    json_decref(v);
    buf_deinit(&out);
    answer_form_destroy(f);
    return items;
}

static void answer_twice(json_t *body, const uint8_t *data, size_t n) {
    json_t *whole = answer(body, false, data, n), *streamed = answer(body, true, data, n);
    INFERD_CHECK(json_equal(whole, streamed));
    json_decref(whole);
    json_decref(streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum { PARTS_BYTES = 16 };
    static bool ready;
    if (!ready) json_in_init();
    ready = true;
    size_t n_body = n > PARTS_BYTES ? n - PARTS_BYTES : n;
    json_t *body = NULL, *chat = NULL;
    answer_form *f = NULL;
    unknown_fields unknown = {0};
    api_error e = {0};
    if (!api_params_parse(&limits, (bytes){(const char *)data, n_body}, &body, &e)) {
        check_refusal(&e);
        json_decref(body);
        return 0;
    }
    if (responses_read(body, &host, &chat, &f, &unknown, &e)) {
        api_params p;
        INFERD_CHECK(e.fault == API_OK && chat != NULL && f != NULL);
        if (!api_params_take(API_CHAT, chat, &p, &e)) {
            check_refusal(&e);
            form_locate(f, &e);
        } else {
            INFERD_CHECK(json_array_size(p.messages) > 0);
            answer_twice(body, data + n_body, n - n_body);
        }
        api_params_deinit(&p);
    } else {
        INFERD_CHECK(chat == NULL);
    }
    if (e.fault != API_OK) check_refusal(&e);
    answer_form_destroy(f);
    json_decref(body);
    return 0;
}
