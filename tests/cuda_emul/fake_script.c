/* fake_script.c - breaking the fake by a line of text; fake_api.h has its words.
 *
 * Thread: as fake_fail_call and its like. */
#include <string.h>

#include "fake_api.h"
#include "fake_inner.h"

enum { ITEM_BYTES = 128, FIELDS_MAX = 4, FOREVER_MS = 3600 * 1000 };

static bool find_result(const char *name, cu_result *out) {
    static const struct {
        const char *name;
        cu_result result;
    } table[] = {
        {"ENOMEM", CU_ENOMEM},       {"EINVAL", CU_EINVAL},   {"EUNSUPPORTED", CU_EUNSUPPORTED},
        {"ENODEVICE", CU_ENODEVICE}, {"EDRIVER", CU_EDRIVER}, {"EFAILED", CU_EFAILED},
        {"ELOST", CU_ELOST}};
    for (size_t i = 0; i < INFERD_COUNT(table); i++)
        if (strcmp(table[i].name, name) == 0) return *out = table[i].result, true;
    return false;
}

static bool read_count(const char *text, uint32_t *out) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    *out = (uint32_t)n;
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && n > 0 && n <= UINT32_MAX;
}

/* CALL:N[:RESULT[:always]] */
static bool fail(char *text) {
    char *fields[FIELDS_MAX] = {0}, *rest = text;
    uint32_t n = 0, count;
    cu_result result = CU_ENOMEM;
    while (n < FIELDS_MAX && (fields[n] = strsep(&rest, ":")) != NULL) n++;
    if (n < 2 || rest != NULL || !fk_has_call(fields[0]) || !read_count(fields[1], &count) ||
        (n > 2 && !find_result(fields[2], &result)) || (n > 3 && strcmp(fields[3], "always") != 0))
        return false;
    if (n > 3)
        fake_fail_call_always(fields[0], count, result);
    else
        fake_fail_call(fields[0], count, result);
    return true;
}

static bool hang(const char *text) {
    uint32_t n;
    if (!read_count(text, &n)) return false;
    fake_opts *o = fake_options();
    o->stuck_ms = FOREVER_MS;
    o->quiet = true; // waiting for such an event is meant here
    fake_lose_event_at(n);
    return true;
}

static bool wrong(const char *text) {
    fake_opts *o = fake_options();
    return text[0] != 0 &&
           (size_t)snprintf(o->wrong, sizeof o->wrong, "%s", text) < sizeof o->wrong;
}

static bool without(const char *text) {
    fake_opts *o = fake_options();
    if (strcmp(text, "lt") == 0) return !(o->lt = false);
    if (strcmp(text, "vmm") != 0) return false;
    for (uint32_t i = 0; i < FAKE_DEVICES_MAX; i++) o->device[i].vmm = false;
    return true;
}

static bool one(char *item) {
    if (strncmp(item, "fail=", 5) == 0) return fail(item + 5);
    if (strncmp(item, "hang=", 5) == 0) return hang(item + 5);
    if (strncmp(item, "wrong=", 6) == 0) return wrong(item + 6);
    if (strncmp(item, "no=", 3) == 0) return without(item + 3);
    return false;
}

bool fake_script(const char *text, char *why, size_t why_bytes) {
    while (*text != 0) {
        char item[ITEM_BYTES];
        size_t n = strcspn(text, ";");
        snprintf(item, sizeof item, "%.*s", (int)size_min(n, sizeof item - 1), text);
        if (n >= sizeof item || !one(item)) {
            snprintf(why, why_bytes, "\"%.*s\" is not understood", (int)size_min(n, ITEM_BYTES),
                     text);
            return false;
        }
        text += n;
        text += *text == ';';
    }
    return true;
}
