/* form_blocks.c - see form_blocks.h. */
#include "form_blocks.h"

void blocks_deinit(form_blocks *b) {
    buf_deinit(&b->text);
    buf_deinit(&b->id);
    buf_deinit(&b->name);
    buf_deinit(&b->done);
}

static void set_text(buf *to, bytes text) {
    buf_clear(to);
    buf_add(to, text.p, text.n);
}

void blocks_open(form_blocks *b, const block_writer *w, void *form, block_kind kind, buf *out) {
    b->open = kind;
    b->cut = false;
    buf_clear(&b->text);
    b->begins = true;
    if (out != NULL) w->opened(form, out);
    b->begins = false;
}

void blocks_close(form_blocks *b, const block_writer *w, void *form, bool cut, buf *out) {
    if (b->open == BLOCK_NONE) return;
    b->cut = cut;
    w->closing(form, out);
    size_t from = b->done.n;
    if (!b->discards) {
        if (from > 0) buf_add_char(&b->done, ',');
        from = b->done.n;
        w->add(form, &b->done);
    }
    b->done.failed = b->done.failed || b->text.failed || b->id.failed || b->name.failed;
    bytes block = {blocks_bytes(&b->done).p + from, b->done.n - from};
    if (out != NULL) w->closed(form, block, out);
    if (out != NULL) out->failed = out->failed || b->done.failed;
    b->open = BLOCK_NONE;
    b->idx++;
}

void blocks_part(form_blocks *b, const block_writer *w, void *form, const message_part *p,
                 buf *out) {
    static const block_kind kinds[] = {[PART_REASONING] = BLOCK_REASONING,
                                       [PART_CONTENT] = BLOCK_TEXT,
                                       [PART_ARGUMENTS] = BLOCK_CALL};
    switch (p->kind) {
    case PART_CALL:
        blocks_close(b, w, form, false, out);
        set_text(&b->id, p->id);
        set_text(&b->name, p->name);
        blocks_open(b, w, form, BLOCK_CALL, out);
        return;
    case PART_CALL_END:
        blocks_close(b, w, form, b->open == BLOCK_CALL && !p->complete, out);
        return;
    default:
        break;
    }
    block_kind kind = kinds[p->kind];
    if (p->text.n == 0 || (kind == BLOCK_CALL && b->open != kind)) return;
    if (b->open != kind) {
        blocks_close(b, w, form, false, out);
        blocks_open(b, w, form, kind, out);
    }
    buf_add(&b->text, p->text.p, p->text.n);
    if (out == NULL) return;
    w->more(form, p->text, out);
    out->failed = out->failed || b->text.failed;
}
