/* fuzz_top_stream.c - what `inferd ctl top` reads from a socket, and draws.
 *
 * The first byte is the size of the pieces in which the rest comes.  Checked: pieces of another
 * size give the same events, and every screen has its lines, without a byte that a terminal obeys.
 */
#include "json_in.h"
#include "top_state.h"
#include "top_stream.h"
#include "top_text.h"
#include "top_view.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The events as text, and the state that they make. */
typedef struct reading {
    buf said;
    top_state state;
    inferd_status status;
} reading;

static void on_event(void *user, const char *name, bytes data) {
    reading *r = user;
    json_t *v = NULL;
    inferd_err err;
    buf_add_format(&r->said, "%s\n%zu\n", name, data.n);
    buf_add(&r->said, data.p, data.n);
    if (json_in_parse(data, &json_limits_default, &v, &err) == INFERD_OK)
        top_state_take(&r->state, name, v, 0);
    json_decref(v);
}

static void read_in_pieces(reading *r, const uint8_t *data, size_t n, size_t size) {
    top_stream s;
    inferd_err err;
    top_stream_init(&s, on_event, r);
    for (size_t at = 0; at < n && r->status == INFERD_OK; at += size)
        r->status =
            top_stream_push(&s, (bytes){(const char *)data + at, size_min(size, n - at)}, &err);
    top_stream_deinit(&s);
}

static void check_screen(const top_state *state, uint32_t width, uint32_t height) {
    top_view v = {.width = width, .height = height};
    buf out = {0};
    uint32_t n_lines = 0;
    top_view_draw(&v, state, &(top_foot){.keys = "q"}, 0, &out);
    for (size_t i = 0; i < out.n; i++) {
        unsigned char c = (unsigned char)out.p[i];
        INFERD_CHECK(c >= 0x20 || c < TOP_MARKS);
        INFERD_CHECK(c != 0x7f && c != 0);
        n_lines += c == '\n';
    }
    INFERD_CHECK(n_lines == height);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static bool begun;
    if (!begun) top_use_utf8();
    if (!begun) json_in_init();
    begun = true;
    if (n == 0) return 0;
    reading a = {0}, b = {0};
    read_in_pieces(&a, data + 1, n - 1, data[0] + 1u);
    read_in_pieces(&b, data + 1, n - 1, n);
    INFERD_CHECK(a.status == b.status);
    INFERD_CHECK(a.said.n == b.said.n &&
                 (a.said.n == 0 || memcmp(a.said.p, b.said.p, a.said.n) == 0));
    check_screen(&a.state, 80, 24);
    check_screen(&a.state, 41, 11);
    top_state_deinit(&a.state);
    top_state_deinit(&b.state);
    buf_deinit(&a.said);
    buf_deinit(&b.said);
    return 0;
}
