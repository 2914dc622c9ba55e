/* api_schema.c - see api_schema.h. */
#include "api_schema.h"

#include <string.h>

#include "json_out.h"

/* Numbers that a text may name; the longer of two names with one beginning comes first. */
static const struct {
    const char *name;
    uint32_t value;
} numbers[] = {{"stop_bytes_max", API_STOP_BYTES_MAX},
               {"stop_max", API_STOP_MAX},
               {"logit_bias_max", API_LOGIT_BIAS_MAX},
               {"prompts_max", API_PROMPTS_MAX}};

/* Returns the length of the name. */
static size_t add_number(buf *out, const char *name) {
    for (size_t i = 0; i < INFERD_COUNT(numbers); i++) {
        size_t n = strlen(numbers[i].name);
        if (strncmp(name, numbers[i].name, n) != 0) continue;
        json_add_uint(out, numbers[i].value);
        return n;
    }
    INFERD_CHECK(!"the number of a schema is in the table");
    return 0;
}

void api_schema_add_text(buf *out, const char *text) {
    while (*text != 0) {
        size_t n = strcspn(text, "'@");
        buf_add(out, text, n);
        text += n;
        if (*text == 0) return;
        if (*text++ == '\'')
            buf_add_char(out, '"');
        else
            text += add_number(out, text);
    }
}

static void add_type(buf *out, const char *type, bool or_null) {
    if (or_null)
        buf_add_format(out, "\"type\":[\"%s\",\"null\"]", type);
    else
        buf_add_format(out, "\"type\":\"%s\"", type);
}

/* All digits of an integer: json_add_real writes nine. */
static void add_bound(buf *out, const char *name, double v) {
    buf_add_format(out, ",\"%s\":", name);
    if (v == (double)(int64_t)v)
        buf_add_format(out, "%lld", (long long)v);
    else
        json_add_real(out, v);
}

static void add_range(buf *out, const api_field *f) {
    add_bound(out, f->above_min ? "exclusiveMinimum" : "minimum", f->min);
    add_bound(out, "maximum", f->max);
}

/* The members of a schema for the values that the row accepts; none: any value. */
static void add_values(buf *out, const api_field *f, bool or_null) {
    switch (f->kind) {
    case FIELD_BOOL:
        add_type(out, "boolean", or_null);
        break;
    case FIELD_INT:
        add_type(out, "integer", or_null);
        add_range(out, f);
        break;
    case FIELD_REAL:
        add_type(out, "number", or_null);
        add_range(out, f);
        break;
    case FIELD_STRING: // the limit is in bytes, and no character has less than one
        add_type(out, "string", or_null);
        buf_add_format(out, ",\"minLength\":1,\"maxLength\":%.0f", f->max);
        break;
    case FIELD_OBJECT:
        add_type(out, "object", or_null);
        break;
    case FIELD_CUSTOM:
        buf_add_str(out, "\"anyOf\":[");
        api_schema_add_text(out, f->schema);
        buf_add_str(out, or_null ? ",{\"type\":\"null\"}]" : "]");
        break;
    case FIELD_IGNORED:
        break;
    case FIELD_REFUSED:
        buf_add_format(out, "\"enum\":[%s%snull],\"deprecated\":true",
                       f->neutral == NULL ? "" : f->neutral, f->neutral == NULL ? "" : ",");
        break;
    }
}

void api_schema_add_field(buf *out, const api_field *f, api_route route) {
    const char *before = f->kind == FIELD_REFUSED   ? "not supported: "
                         : f->kind == FIELD_IGNORED ? "accepted, no effect: "
                                                    : "";
    buf what = {0};
    buf_add_format(&what, "%s%s", before, f->what);
    buf_add_str(out, "{\"description\":");
    json_add_string(out, buf_cstr(&what), what.n);
    if (f->kind != FIELD_IGNORED) buf_add_char(out, ',');
    add_values(out, f, (f->required & (unsigned)route) == 0);
    buf_add_char(out, '}');
    out->failed |= what.failed;
    buf_deinit(&what);
}

/* /tokenize has one of two inputs; null is the same as absent. */
static const char one_input[] =
    "'anyOf':[{'required':['prompt'],'properties':{'prompt':{'type':'string'}}},"
    "{'required':['messages'],'properties':{'messages':{'type':'array'}}}],";

void api_schema_add_body(buf *out, api_route route) {
    size_t n;
    const api_field *rows = api_fields(&n);
    const char *before = "";
    buf_add_str(out, "{\"type\":\"object\",");
    if (route == API_TOKENIZE) api_schema_add_text(out, one_input);
    buf_add_str(out, "\"required\":[");
    for (size_t i = 0; i < n; i++) {
        if ((rows[i].required & (unsigned)route) == 0) continue;
        buf_add_format(out, "%s\"%s\"", before, rows[i].name);
        before = ",";
    }
    before = "";
    buf_add_str(out, "],\"properties\":{");
    for (size_t i = 0; i < n; i++) {
        if ((rows[i].routes & (unsigned)route) == 0) continue;
        buf_add_format(out, "%s\"%s\":", before, rows[i].name);
        api_schema_add_field(out, &rows[i], route);
        before = ",";
    }
    buf_add_str(out, "}}");
}
