/* message.c - see message.h. */
#include "message.h"

#include "custom_tool.h"
#include "inferd/siphash.h"
#include "json_out.h"

/* An id that every protocol and template accepts: nine letters and digits. */
static void make_id(const message_parts *p, char out[PARTS_ID_BYTES]) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t of[2] = {p->n_choice, p->n_calls}, h = siphash(p->secret, of, sizeof of);
    for (int i = 0; i < 9; i++, h /= 62) out[i] = letters[h % 62];
    out[9] = 0;
}

static void give(message_parts *p, const message_part *one) {
    if (p->on != NULL) p->on(p->ctx, one);
}

static void keep_begin(message_parts *p, bytes id, bytes name) {
    if (!p->function_calls) {
        buf_add_str(&p->calls, p->n_calls > 0 ? ",{\"id\":" : "{\"id\":");
        json_add_string(&p->calls, id.p, id.n);
        buf_add_str(&p->calls, p->in_custom ? ",\"type\":\"custom\",\"custom\":"
                                            : ",\"type\":\"function\",\"function\":");
    }
    buf_add_str(&p->calls, "{\"name\":");
    json_add_string(&p->calls, name.p, name.n);
    buf_add_str(&p->calls, p->in_custom ? ",\"input\":" : ",\"arguments\":");
}

static void begin_call(message_parts *p, const call_event *ev) {
    char made[PARTS_ID_BYTES];
    make_id(p, made);
    bytes id = ev->id.n > 0 ? ev->id : (bytes){made, strlen(made)};
    p->in_custom = json_object_getn(p->custom, ev->name.p, ev->name.n) != NULL;
    give(p, &(message_part){.kind = PART_CALL,
                            .call_idx = p->n_calls,
                            .id = id,
                            .name = ev->name,
                            .custom = p->in_custom});
    if (p->keeps) keep_begin(p, id, ev->name);
}

/* The input is a string inside the arguments, so it is complete only now. */
static void end_custom(message_parts *p) {
    p->failed |= !custom_tool_unwrap(&p->arguments);
    give(p, &(message_part){.kind = PART_ARGUMENTS,
                            .text = {p->arguments.p, p->arguments.n},
                            .call_idx = p->n_calls,
                            .custom = true});
}

static void end_call(message_parts *p, const call_event *ev) {
    if (p->in_custom) end_custom(p);
    give(p,
         &(message_part){.kind = PART_CALL_END, .call_idx = p->n_calls, .complete = ev->complete});
    p->n_calls++;
    p->is_cut = !ev->complete;
    if (p->keeps) {
        json_add_string(&p->calls, p->arguments.n > 0 ? p->arguments.p : "", p->arguments.n);
        buf_add_str(&p->calls, p->function_calls ? "}" : "}}");
    }
    p->failed = p->failed || p->arguments.failed;
    buf_clear(&p->arguments);
}

/* Is the event one of a call that the answer has no room for? */
static bool is_dropped(message_parts *p, const call_event *ev) {
    bool of_call = ev->kind == CALL_EVENT_BEGIN || ev->kind == CALL_EVENT_ARGUMENTS ||
                   ev->kind == CALL_EVENT_END;
    return of_call && p->function_calls && p->n_calls > 0;
}

static void on_event(void *ctx, const call_event *ev) {
    message_parts *p = ctx;
    if (is_dropped(p, ev)) return;
    message_part one = {.text = ev->text, .call_idx = p->n_calls};
    switch (ev->kind) {
    case CALL_EVENT_REASONING:
        if (p->hides_reasoning) return;
        one.kind = PART_REASONING;
        if (p->keeps) buf_add(&p->reasoning, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_CONTENT:
        one.kind = PART_CONTENT;
        if (p->keeps) buf_add(&p->content, ev->text.p, ev->text.n);
        break;
    case CALL_EVENT_BEGIN:
        begin_call(p, ev);
        return;
    case CALL_EVENT_ARGUMENTS:
        one.kind = PART_ARGUMENTS;
        if (p->keeps || p->in_custom) buf_add(&p->arguments, ev->text.p, ev->text.n);
        if (p->in_custom) return;
        break;
    case CALL_EVENT_END:
        end_call(p, ev);
        return;
    }
    give(p, &one);
}

static bool is_fine(const message_parts *p) {
    return !p->failed && !p->reasoning.failed && !p->content.failed && !p->calls.failed &&
           !p->arguments.failed;
}

bool message_push(message_parts *p, bytes text, void (*on)(void *ctx, const message_part *),
                  void *ctx) {
    p->on = on;
    p->ctx = ctx;
    return call_parser_push(p->parser, text, on_event, p) && is_fine(p);
}

bool message_finish(message_parts *p, void (*on)(void *ctx, const message_part *), void *ctx) {
    p->on = on;
    p->ctx = ctx;
    return call_parser_finish(p->parser, on_event, p) && is_fine(p);
}

bool message_init(message_parts *p, const call_format *f, const call_parser_options *o) {
    p->parser = call_parser_create(f, o);
    return p->parser != NULL;
}

void message_deinit(message_parts *p) {
    call_parser_destroy(p->parser);
    buf_deinit(&p->reasoning);
    buf_deinit(&p->content);
    buf_deinit(&p->calls);
    buf_deinit(&p->arguments);
    p->parser = NULL;
}
