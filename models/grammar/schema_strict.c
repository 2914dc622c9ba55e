/* schema_strict.c - OpenAI's strict profile. */
#include "schema.h"

void schema_check_strict(schema_ctx *c) {
    (void)c;
}
