/* sse.c - see sse.h. */
#include "sse.h"

#include "json_out.h"

/* ---- values ---- */

static void add_cstr(buf *out, const char *s) {
    json_add_string(out, s, strlen(s));
}

static void add_bytes(buf *out, bytes b) {
    json_add_string(out, b.p == NULL ? "" : b.p, b.n);
}

/* "token_id:7", as vLLM writes it. */
static void add_id_name(buf *out, tok_id id) {
    buf_add_str(out, "\"token_id:");
    json_add_uint(out, (uint64_t)id);
    buf_add_char(out, '"');
}

static bool begins_with(bytes b, const char *prefix) {
    size_t n = strlen(prefix);
    return b.n >= n && memcmp(b.p, prefix, n) == 0;
}

/* "bytes: \xe2\x96", as OpenAI writes a token that is not whole characters.  Printable ASCII stays,
 * and a backslash is doubled, so tokens of different bytes have different names. */
static void add_bytes_name(buf *out, bytes piece) {
    static const char digits[] = "0123456789abcdef";
    buf_add_str(out, "\"bytes:");
    for (size_t i = 0; i < piece.n; i++) {
        unsigned char c = (unsigned char)piece.p[i];
        if (c == '\\') {
            buf_add_str(out, "\\\\\\\\");
        } else if (c == '"') {
            buf_add_str(out, "\\\"");
        } else if (c >= 0x20 && c < 0x7f) {
            buf_add_char(out, (char)c);
        } else {
            buf_add_str(out, "\\\\x");
            buf_add_char(out, digits[c >> 4]);
            buf_add_char(out, digits[c & 15]);
        }
    }
    buf_add_char(out, '"');
}

/* The name of a token in a completion, which has no separate field for its bytes: its text, else
 * "bytes:...".  A text that looks like one of the other forms is written as an id, so names are
 * equal only if the bytes are. */
static void add_token_name(buf *out, const answer_head *h, tok_id id) {
    bytes piece = tok_piece(h->tok, id);
    if (h->tokens_as_ids || begins_with(piece, "bytes:") || begins_with(piece, "token_id:"))
        add_id_name(out, id);
    else if (json_is_utf8(piece.p, piece.n))
        add_bytes(out, piece);
    else
        add_bytes_name(out, piece);
}

/* The text of a token in a chat, beside its bytes. */
static void add_token_text(buf *out, const answer_head *h, tok_id id) {
    if (h->tokens_as_ids)
        add_id_name(out, id);
    else
        add_bytes(out, tok_piece(h->tok, id));
}

static void add_token_bytes(buf *out, const answer_head *h, tok_id id) {
    bytes piece = tok_piece(h->tok, id);
    buf_add_char(out, '[');
    for (size_t i = 0; i < piece.n; i++) {
        if (i > 0) buf_add_char(out, ',');
        json_add_uint(out, (unsigned char)piece.p[i]);
    }
    buf_add_char(out, ']');
}

/* ---- log-probabilities ---- */

static void add_chat_token(buf *out, const answer_head *h, tok_id id, float logprob) {
    buf_add_str(out, "{\"token\":");
    add_token_text(out, h, id);
    buf_add_str(out, ",\"logprob\":");
    json_add_real(out, logprob);
    buf_add_str(out, ",\"bytes\":");
    add_token_bytes(out, h, id);
}

static void add_chat_logprobs(buf *out, const answer_head *h, const answer_logprob *lp, size_t n) {
    buf_add_str(out, "{\"content\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        add_chat_token(out, h, lp[i].id, lp[i].logprob);
        buf_add_str(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < lp[i].n_top; k++) {
            if (k > 0) buf_add_char(out, ',');
            add_chat_token(out, h, lp[i].top[k].id, lp[i].top[k].logprob);
            buf_add_char(out, '}');
        }
        buf_add_str(out, "]}");
    }
    buf_add_str(out, "],\"refusal\":null}");
}

static bool same_bytes(const answer_head *h, tok_id a, tok_id b) {
    bytes p = tok_piece(h->tok, a), q = tok_piece(h->tok, b);
    return p.n == q.n && (p.n == 0 || memcmp(p.p, q.p, p.n) == 0);
}

/* {"name": logprob, ...}: every alternative, best first, and the token itself if it is not among
 * them.  Of tokens with equal bytes (the byte <0x41> and the letter A) only one can have the name:
 * the token itself, because clients look it up by its entry in "tokens", else the best one; the
 * others get their ids. */
static void add_top_object(buf *out, const answer_head *h, const answer_logprob *lp) {
    bool seen = false; // the token itself
    buf_add_char(out, '{');
    for (uint32_t k = 0; k < lp->n_top; k++) {
        tok_id id = lp->top[k].id;
        bool taken = id != lp->id && same_bytes(h, id, lp->id);
        for (uint32_t j = 0; j < k && !taken && id != lp->id; j++)
            taken = same_bytes(h, id, lp->top[j].id);
        seen |= id == lp->id;
        if (k > 0) buf_add_char(out, ',');
        if (taken)
            add_id_name(out, id);
        else
            add_token_name(out, h, id);
        buf_add_char(out, ':');
        json_add_real(out, lp->top[k].logprob);
    }
    if (!seen) {
        if (lp->n_top > 0) buf_add_char(out, ',');
        add_token_name(out, h, lp->id);
        buf_add_char(out, ':');
        json_add_real(out, lp->logprob);
    }
    buf_add_char(out, '}');
}

static void add_completion_logprobs(buf *out, const answer_head *h, const answer_logprob *lp,
                                    size_t n) {
    buf_add_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        add_token_name(out, h, lp[i].id);
    }
    buf_add_str(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        if (lp[i].known)
            json_add_real(out, lp[i].logprob);
        else
            buf_add_str(out, "null");
    }
    buf_add_str(out, "],\"top_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        if (lp[i].known)
            add_top_object(out, h, &lp[i]);
        else
            buf_add_str(out, "null");
    }
    buf_add_str(out, "],\"text_offset\":[");
    for (size_t i = 0; i < n; i++) {
        if (i > 0) buf_add_char(out, ',');
        json_add_uint(out, lp[i].text_offset);
    }
    buf_add_str(out, "]}");
}

/* ---- parts of a choice ---- */

static void add_logprobs(buf *out, const answer_head *h, const answer_choice *c) {
    buf_add_str(out, ",\"logprobs\":");
    if (c->logprobs == NULL)
        buf_add_str(out, "null");
    else if (h->chat)
        add_chat_logprobs(out, h, c->logprobs, c->n_logprobs);
    else
        add_completion_logprobs(out, h, c->logprobs, c->n_logprobs);
}

static void add_finish(buf *out, const answer_choice *c) {
    if (c->finish == NULL) {
        buf_add_str(out, ",\"finish_reason\":null");
    } else {
        buf_add_format(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", c->finish);
        if (c->stop_reason == STOP_REASON_ID)
            json_add_uint(out, (uint64_t)c->stop_id);
        else if (c->stop_reason == STOP_REASON_STRING)
            add_bytes(out, c->stop_string);
        else
            buf_add_str(out, "null");
    }
    if (c->show_ids) {
        buf_add_str(out, ",\"token_ids\":");
        json_add_ids(out, c->ids, c->n_ids);
    }
}

static void add_prompt_ids(buf *out, const tok_id *ids, size_t n) {
    if (ids == NULL) return;
    buf_add_str(out, ",\"prompt_token_ids\":");
    json_add_ids(out, ids, n);
}

/* Details of the scheduling: waiting, preemptions and their cost. */
static void add_details(buf *out, const answer_usage *u) {
    buf_add_format(
        out,
        ",\"inferd\":{\"queued_ms\":%llu,\"queued_steps\":%u,\"preempted\":%u,\"class\":\"%s\"",
        (unsigned long long)u->queued_us / 1000, u->queued_steps, u->n_preempted, u->prio);
    buf_add_str(out, ",\"preemptions\":{");
    for (int r = 0; r < GEN_PREEMPTS; r++)
        buf_add_format(out, "%s\"%s\":%u", r == 0 ? "" : ",", gen_preempt_name((gen_preempt)r),
                       u->n_preempts[r]);
    buf_add_format(out,
                   "},\"away_us\":%llu,\"recomputed_tokens\":%llu,\"preempt_cost_us\":%llu,"
                   "\"device_us\":%llu}",
                   (unsigned long long)u->away_us, (unsigned long long)u->n_recomputed,
                   (unsigned long long)(u->waste_us + u->swap_in_us),
                   (unsigned long long)u->device_us);
}

static void add_usage(buf *out, const answer_usage *u) {
    buf_add_str(out, "{\"prompt_tokens\":");
    json_add_uint(out, u->n_prompt);
    buf_add_str(out, ",\"completion_tokens\":");
    json_add_uint(out, u->n_output);
    buf_add_str(out, ",\"total_tokens\":");
    json_add_uint(out, u->n_prompt + u->n_output);
    if (!u->running) {
        buf_add_str(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
        json_add_uint(out, u->n_cached);
        buf_add_str(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
        json_add_uint(out, u->n_reasoning);
        buf_add_char(out, '}');
    }
    if (!u->running && u->prio != NULL) add_details(out, u);
    buf_add_char(out, '}');
}

/* {"id":... up to and with "choices":[ */
static void add_head(buf *out, const answer_head *h, const char *object) {
    buf_add_str(out, "{\"id\":");
    add_cstr(out, h->id);
    buf_add_str(out, ",\"object\":\"");
    buf_add_str(out, object);
    buf_add_str(out, "\",\"created\":");
    json_add_uint(out, (uint64_t)h->created);
    buf_add_str(out, ",\"model\":");
    add_cstr(out, h->model);
    buf_add_str(out, ",\"system_fingerprint\":");
    add_cstr(out, h->fingerprint);
    buf_add_str(out, ",\"service_tier\":");
    add_cstr(out, h->tier);
    buf_add_str(out, ",\"choices\":[");
}

/* Clients look for one of two names. */
static void add_reasoning(buf *out, bytes text, const char *before) {
    buf_add_str(out, before);
    buf_add_str(out, "\"reasoning_content\":");
    add_bytes(out, text);
    buf_add_str(out, ",\"reasoning\":");
    add_bytes(out, text);
}

/* ---- whole answers ---- */

void answer_open(buf *out, const answer_head *h) {
    add_head(out, h, h->chat ? "chat.completion" : "text_completion");
}

void answer_choice_add(buf *out, const answer_head *h, const answer_choice *c) {
    if (out->n > 0 && out->p[out->n - 1] == '}') buf_add_char(out, ',');
    buf_add_str(out, "{\"index\":");
    json_add_uint(out, c->index);
    if (h->chat) {
        buf_add_str(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
        if (c->calls.n > 0 && c->text.n == 0)
            buf_add_str(out, "null");
        else
            add_bytes(out, c->text);
        buf_add_str(out, ",\"refusal\":null");
        if (c->reasoning.n > 0) add_reasoning(out, c->reasoning, ",");
        if (c->calls.n > 0) {
            buf_add_str(out, h->function_calls ? ",\"function_call\":" : ",\"tool_calls\":[");
            buf_add(out, c->calls.p, c->calls.n);
            if (!h->function_calls) buf_add_char(out, ']');
        }
        buf_add_char(out, '}');
    } else {
        buf_add_str(out, ",\"text\":");
        add_bytes(out, c->text);
    }
    add_logprobs(out, h, c);
    add_finish(out, c);
    add_prompt_ids(out, c->prompt_ids, c->n_prompt_ids);
    buf_add_char(out, '}');
}

void answer_close(buf *out, const answer_head *h, const answer_usage *u, const tok_id *prompt_ids,
                  size_t n_prompt_ids) {
    (void)h;
    buf_add_str(out, "],\"usage\":");
    add_usage(out, u);
    add_prompt_ids(out, prompt_ids, n_prompt_ids);
    buf_add_char(out, '}');
}

/* ---- chunks ---- */

static void open_event(buf *out, const answer_head *h) {
    buf_add_str(out, "data: ");
    add_head(out, h, h->chat ? "chat.completion.chunk" : "text_completion");
}

/* "function": {"name": ..., "arguments": ...}, or the part of it in one chunk. */
static void add_called(buf *out, const char *key, const answer_call *call) {
    add_cstr(out, key);
    buf_add_str(out, ":{");
    if (call->id.p != NULL) {
        buf_add_str(out, "\"name\":");
        add_bytes(out, call->name);
        buf_add_char(out, ',');
    }
    buf_add_str(out, call->custom ? "\"input\":" : "\"arguments\":");
    add_bytes(out, call->arguments);
    buf_add_char(out, '}');
}

static void add_call(buf *out, const answer_head *h, const answer_call *call) {
    if (h->function_calls) {
        add_called(out, "function_call", call);
        return;
    }
    const char *kind = call->custom ? "custom" : "function";
    buf_add_str(out, "\"tool_calls\":[{\"index\":");
    json_add_uint(out, call->index);
    if (call->id.p != NULL) {
        buf_add_str(out, ",\"id\":");
        add_bytes(out, call->id);
        buf_add_format(out, ",\"type\":\"%s\"", kind);
    }
    buf_add_char(out, ',');
    add_called(out, kind, call);
    buf_add_str(out, "}]");
}

static void add_delta(buf *out, const answer_head *h, const answer_choice *c) {
    buf_add_str(out, ",\"delta\":{");
    if (c->opens) {
        buf_add_str(out, "\"role\":\"assistant\",\"content\":\"\"");
    } else if (c->reasoning.n > 0) {
        add_reasoning(out, c->reasoning, "");
    } else if (c->call != NULL) {
        add_call(out, h, c->call);
    } else if (c->text.n > 0 || c->finish == NULL) {
        buf_add_str(out, "\"content\":");
        add_bytes(out, c->text);
    }
    buf_add_char(out, '}');
}

void sse_chunk(buf *out, const answer_head *h, const answer_choice *c,
               const answer_usage *running) {
    open_event(out, h);
    buf_add_str(out, "{\"index\":");
    json_add_uint(out, c->index);
    if (h->chat) {
        add_delta(out, h, c);
    } else {
        buf_add_str(out, ",\"text\":");
        add_bytes(out, c->text);
    }
    add_logprobs(out, h, c);
    add_finish(out, c);
    if (!h->chat) add_prompt_ids(out, c->prompt_ids, c->n_prompt_ids);
    buf_add_str(out, "}]");
    if (h->chat) add_prompt_ids(out, c->prompt_ids, c->n_prompt_ids);
    if (h->usage_asked) {
        buf_add_str(out, ",\"usage\":");
        if (running != NULL)
            add_usage(out, running);
        else
            buf_add_str(out, "null");
    }
    buf_add_str(out, "}\n\n");
}

void sse_usage(buf *out, const answer_head *h, const answer_usage *u) {
    open_event(out, h);
    buf_add_str(out, "],\"usage\":");
    add_usage(out, u);
    buf_add_str(out, "}\n\n");
}

void sse_done(buf *out) {
    buf_add_str(out, "data: [DONE]\n\n");
}

void sse_error(buf *out, const api_error *e) {
    buf_add_str(out, "data: ");
    api_error_add(out, e);
    buf_add_str(out, "\n\n");
}
