/* api_error.c - see api_error.h. */
#include "api_error.h"

#include "json_out.h"

typedef struct fault_row {
    int status;
    const char *type, *code;
    unsigned retry_after_s;
} fault_row;

/* Statuses that clients retry (408, 409, 429, 5xx) are used only where time can help. */
static const fault_row fault_rows[API_FAULTS] = {
    [API_BAD_JSON] = {400, "invalid_request_error", NULL, 0},
    [API_BAD_VALUE] = {400, "invalid_request_error", "invalid_value", 0},
    [API_MISSING] = {400, "invalid_request_error", "missing_required_parameter", 0},
    [API_UNSUPPORTED] = {400, "invalid_request_error", "unsupported_parameter", 0},
    [API_BAD_SCHEMA] = {400, "invalid_request_error", "invalid_schema", 0},
    [API_UNSUPPORTED_SCHEMA] = {400, "invalid_request_error", "unsupported_schema", 0},
    [API_TOO_LONG] = {400, "invalid_request_error", "context_length_exceeded", 0},
    [API_NO_MODEL] = {404, "invalid_request_error", "model_not_found", 0},
    [API_NO_PREVIOUS] = {400, "invalid_request_error", "previous_response_not_found", 0},
    [API_NO_RESPONSE] = {404, "invalid_request_error", "response_not_found", 0},
    [API_TOO_LARGE] = {413, "invalid_request_error", "request_too_large", 0},
    [API_UNLOADED] = {503, "unavailable_error", "model_unavailable", 2},
    [API_OVERLOADED] = {503, "overloaded_error", "server_overloaded", 1},
    /* The caller sets the delay; a target that is too short even for a request alone never fits. */
    [API_DRAINING] = {503, "unavailable_error", "shutting_down", 5},
    [API_DEVICE_LOST] = {503, "unavailable_error", "device_lost", 10},
    [API_DEADLINE] = {504, "timeout_error", "deadline_exceeded", 0},
    [API_INTERNAL] = {500, "server_error", "internal_error", 0},
    [API_REQUEST_RATE] = {429, "requests", "rate_limit_exceeded", 1},
    [API_TOKEN_RATE] = {429, "tokens", "rate_limit_exceeded", 1},
    [API_CONCURRENCY] = {429, "requests", "concurrency_limit_exceeded", 1},
    /* The caller sets the delay; for memory or a limit of 0 there is none. */
    [API_QUOTA] = {429, "insufficient_quota", "insufficient_quota", 0},
    /* Not a 429: clients would retry it, and the request never becomes small enough. */
    [API_OVER_LIMIT] = {400, "invalid_request_error", "request_exceeds_limit", 0},
};

static bool record(api_error *e, api_fault fault, const char *param) {
    if (e->fault != API_OK) return false;
    INFERD_CHECK(fault > API_OK && fault < API_FAULTS);
    const fault_row *row = &fault_rows[fault];
    e->fault = fault;
    e->status = row->status;
    e->type = row->type;
    e->code = row->code;
    e->retry_after_s = row->retry_after_s;
    snprintf(e->param, sizeof e->param, "%s", param == NULL ? "" : param);
    return true;
}

bool api_fail(api_error *e, api_fault fault, const char *param, const char *format, ...) {
    if (!record(e, fault, param)) return false;
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

static api_fault fault_of(inferd_status s) {
    switch (s) {
    case INFERD_EINVAL:
        return API_BAD_VALUE;
    case INFERD_ETOOLONG:
        return API_TOO_LONG;
    case INFERD_EUNSUPPORTED:
        return API_UNSUPPORTED;
    case INFERD_EQUOTA:
        return API_QUOTA;
    case INFERD_EBUSY:
        return API_OVERLOADED;
    case INFERD_ETIMEOUT:
        return API_DEADLINE;
    case INFERD_ECANCELED:
        return API_DRAINING;
    case INFERD_EMODEL:
        return API_UNLOADED;
    case INFERD_ELOST:
        return API_DEVICE_LOST;
    default:
        return API_INTERNAL;
    }
}

bool api_fail_status(api_error *e, const inferd_err *err, const char *param) {
    api_fault fault = fault_of(err->status);
    /* Details of internal failures go to the log only; the client learns that there was one. */
    if (fault == API_INTERNAL)
        return api_fail(e, fault, NULL,
                        err->status == INFERD_ENOMEM ? "the server is short of memory"
                                                     : "the server failed to compute the answer");
    if (fault == API_UNLOADED) return api_fail(e, fault, "model", "the model could not be loaded");
    if (fault == API_DEVICE_LOST) return api_fail(e, fault, NULL, "the device failed; ask again");
    /* The field is named if changing it would help. */
    bool of_field = fault == API_BAD_VALUE || fault == API_TOO_LONG || fault == API_UNSUPPORTED ||
                    fault == API_QUOTA;
    return api_fail(e, fault, of_field ? param : NULL, "%s", err->text);
}

void api_retry_after(api_error *e, uint32_t ms) {
    if (ms > 0) e->retry_after_s = (ms + 999) / 1000;
}

const char *api_quote(char out[API_QUOTE_BYTES], const char *s, size_t n) {
    enum { QUOTE_MAX = 64 };
    size_t keep = size_min(n, QUOTE_MAX);
    if (keep < n) // do not cut inside a code point
        while (keep > 0 && ((unsigned char)s[keep] & 0xC0) == 0x80) keep--;
    memcpy(out, s, keep);
    memcpy(out + keep, keep < n ? "..." : "", keep < n ? 4 : 1);
    return out;
}

void api_error_add(buf *out, const api_error *e) {
    buf_add_str(out, "{\"error\":{\"message\":");
    json_add_string(out, e->message, strlen(e->message));
    buf_add_format(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0] == 0)
        buf_add_str(out, "null");
    else
        json_add_string(out, e->param, strlen(e->param));
    if (e->code == NULL)
        buf_add_str(out, ",\"code\":null}}");
    else
        buf_add_format(out, ",\"code\":\"%s\"}}", e->code);
}
