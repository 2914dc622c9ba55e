/* api_mend.c - see api_mend.h. */
#include "api_mend.h"

#include "api_mends.h"
#include "inferd/json_whole.h"

typedef struct mending {
    const chat_template *t;
    const tokenizer *tok;
    const chat_input *in;
    const struct tm *now;
    json_t *origin; // of in->messages; NULL: the same
} mending;

void mended_deinit(mended *m) {
    chat_text_deinit(&m->text);
    json_decref(m->origin);
    *m = (mended){0};
}

static json_t *same_origin(const json_t *messages) {
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (json_array_append_new(out, json_integer((json_int_t)i)) != 0) break;
    return json_if_whole(out, json_array_size(out) == json_array_size(messages));
}

json_t *api_mend_calls(json_t *messages, json_t **origin) {
    draft d = {.messages = json_incref(messages),
               .origin = *origin != NULL ? json_incref(*origin) : same_origin(messages)};
    d.no_memory = d.origin == NULL;
    if (!d.no_memory) api_split_calls(&d);
    if (d.changed && !d.no_memory) {
        json_decref(*origin);
        *origin = json_incref(d.origin);
    }
    json_decref(d.origin);
    return json_if_whole(d.messages, !d.no_memory);
}

/* The mends of a set, in their order; d->changed tells of the last one. */
static void apply(draft *d, unsigned mends) {
    d->no_memory = d->origin == NULL;
    for (unsigned i = 0; i < api_n_mends && !d->no_memory; i++) {
        if ((mends >> i & 1) == 0) continue;
        d->changed = false;
        api_mends[i](d);
    }
}

/* The conversation with a set of mends, rendered.  *changed: the last mend did something;
 * otherwise nothing is rendered, as it would be refused once more. */
static inferd_status render_with(const mending *g, unsigned mends, mended *out, bool *changed,
                                 inferd_err *err) {
    chat_input in = *g->in;
    draft d = {.messages = json_incref(in.messages),
               .origin = g->origin != NULL ? json_incref(g->origin) : same_origin(in.messages),
               .tools = json_incref(in.tools),
               .kwargs = json_incref(in.kwargs)};
    inferd_status s = INFERD_EINVAL;
    *out = (mended){0};
    apply(&d, mends);
    *changed = d.changed;
    in.messages = d.messages;
    in.tools = d.tools;
    in.kwargs = d.kwargs;
    if (d.no_memory)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt");
    else if (d.changed)
        s = chat_render(g->t, g->tok, &in, g->now, &out->text, err);
    if (s == INFERD_OK) {
        out->origin = json_incref(d.origin);
        out->without_effort = d.kwargs != g->in->kwargs; // the one change of them
    }
    json_decref(d.messages);
    json_decref(d.origin);
    json_decref(d.tools);
    json_decref(d.kwargs);
    return s;
}

/* Renders without each of the mends before the last one; those without effect stay away. */
static inferd_status take_back(const mending *g, unsigned mends, unsigned last, mended *out,
                               inferd_err *err) {
    for (unsigned i = 0; i < last; i++) {
        mended fewer;
        bool changed;
        if ((mends >> i & 1) == 0) continue;
        inferd_status s = render_with(g, mends & ~(1u << i), &fewer, &changed, err);
        if (s == INFERD_ENOMEM) return s;
        if (s != INFERD_OK) continue;
        mended_deinit(out);
        *out = fewer;
        mends &= ~(1u << i);
    }
    return INFERD_OK;
}

/* INFERD_EINVAL: no mend helps.  INFERD_ETOOLONG: it is accepted, but for a limit. */
static inferd_status search(const mending *g, mended *out, inferd_err *err) {
    unsigned mends = 0;
    for (unsigned i = 0; i < api_n_mends; i++) {
        bool changed;
        inferd_status s = render_with(g, mends | 1u << i, out, &changed, err);
        if (s == INFERD_ENOMEM || s == INFERD_ETOOLONG) return s;
        if (changed) mends |= 1u << i;
        if (s != INFERD_OK) continue;
        s = take_back(g, mends, i, out, err);
        if (s != INFERD_OK) mended_deinit(out);
        return s;
    }
    return INFERD_EINVAL;
}

inferd_status api_mend_render(const chat_template *t, const tokenizer *tok, const chat_input *in,
                              const struct tm *now, mended *out, inferd_err *err) {
    mending g = {.t = t, .tok = tok, .in = in, .now = now, .origin = out->origin};
    mended found;
    inferd_err later = {0};
    inferd_status s = chat_render(t, tok, in, now, &out->text, err);
    if (s != INFERD_EINVAL) return s;
    s = search(&g, &found, &later);
    if (s == INFERD_OK) {
        mended_deinit(out);
        *out = found;
    } else if (s != INFERD_EINVAL) {
        *err = later;
    }
    return s;
}
