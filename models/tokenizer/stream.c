/* stream.c - ids back to text, whole characters at a time.
 *
 * A token may end in the middle of a character.  `pending` holds the start of a character that is
 * still possible; each further byte completes it, continues it, or makes it impossible.  In the
 * last case it becomes one U+FFFD (Unicode's maximal subpart) and the byte is processed anew. */
#include "tokenizer/utf8.h"
#include "tokenizer/vocab.h"

static const char replacement[] = "\xEF\xBF\xBD"; // U+FFFD

void tok_stream_init(tok_stream *s, const tokenizer *t, bool skip_specials) {
    *s = (tok_stream){.tok = t, .skip_specials = skip_specials};
    s->at_start = t->family == VOCAB_SPM && t->add_space_prefix;
}

static void push_byte(tok_stream *s, unsigned char b, buf *out) {
    if (s->n_pending > 0 && !utf8_continues(s->pending[0], s->n_pending, b)) {
        buf_add_str(out, replacement);
        s->n_pending = 0;
    }
    if (s->n_pending == 0 && utf8_length(b) == 0) {
        buf_add_str(out, replacement);
        return;
    }
    s->pending[s->n_pending++] = b;
    if (s->n_pending == utf8_length(s->pending[0])) {
        buf_add(out, s->pending, s->n_pending);
        s->n_pending = 0;
    }
}

size_t tok_stream_push(tok_stream *s, tok_id id, buf *out) {
    if (s->skip_specials && tok_is_control(s->tok, id)) return 0;
    bytes piece = tok_piece(s->tok, id);
    const unsigned char *p = (const unsigned char *)piece.p;
    size_t n = piece.n;
    if (n == 0) return 0;
    if (s->at_start && p[0] == ' ') {
        p++;
        n--;
    }
    s->at_start = false;
    bool abandons = s->n_pending > 0 && n > 0 && !utf8_continues(s->pending[0], s->n_pending, p[0]);
    size_t whole = s->n_pending == 0 ? utf8_valid_bytes(p, n) : 0;
    buf_add(out, p, whole);
    for (size_t i = whole; i < n; i++) push_byte(s, p[i], out);
    return abandons ? sizeof replacement - 1 : 0;
}

void tok_stream_finish(tok_stream *s, buf *out) {
    if (s->n_pending > 0) buf_add_str(out, replacement);
    s->n_pending = 0;
}
