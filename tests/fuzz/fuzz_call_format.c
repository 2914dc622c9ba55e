/* fuzz_call_format.c - any bytes as a chat template whose tool calls are learned: a format comes
 * out in the end, and what it allows can be written down. */
#include <string.h>

#include "models/calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char tool[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"integer\",\"null\"]},\"c\":{},\"d\":{"
        "\"type\":\"array\",\"items\":{\"enum\":[\"x\",1,null]}},\"e\":{\"$ref\":\"#/$defs/x\"},"
        "\"g\":{\"anyOf\":[{\"$ref\":\"#/$defs/x\"},{\"type\":\"null\"}]},\"h\":{\"type\":"
        "\"object\"}},\"required\":[\"a\"],\"$defs\":{\"x\":{\"type\":\"object\",\"properties\":{"
        "\"y\":{\"$ref\":\"#/$defs/x\"},\"z\":{\"type\":\"boolean\"}}}}}}}]";
    static json_t *tools;
    chat_template *t = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    bytes source = {(const char *)data, n};
    if (tools == NULL) tools = json_loads(tool, 0, NULL);
    if (n > 4096 || chat_template_open(source, NULL, &t, &err) != INFERD_OK) return 0;
    INFERD_CHECK(call_format_open(t, source, NULL, NULL, &f, &err) == INFERD_OK);
    for (int choice = CALL_AUTO; choice <= CALL_REQUIRED; choice++) {
        call_tags_options o = {.tools = tools, .choice = (call_choice)choice, .parallel = true};
        json_t *tags = call_tags(f, &o);
        INFERD_CHECK(tags != NULL || call_format_style(f) == CALL_NONE);
        json_decref(tags);
    }
    call_format_close(f);
    chat_template_close(t);
    return 0;
}
