/* options.c - see options.h. */
#include "options.h"

#include <string.h>

enum { KEY_BYTES = 64 };

int usage_error(const inferd_err *err) {
    fprintf(stderr, "inferd-bench: %s\n", err->text);
    fprintf(stderr, "Try inferd-bench --help.\n");
    return EXIT_USAGE;
}

/* "--key" or "--key=value"; `*value` points into the word, or is NULL.  False: not an option. */
static bool option_split(const char *word, char key[KEY_BYTES], const char **value) {
    if (strncmp(word, "--", 2) != 0 || word[2] == 0) return false;
    size_t n = strcspn(word + 2, "=");
    *value = word[2 + n] == 0 ? NULL : word + 2 + n + 1;
    snprintf(key, KEY_BYTES, "%.*s", (int)size_min(n, KEY_BYTES - 1), word + 2);
    return true;
}

inferd_status options_read(int argc, char **argv, option_reader r, inferd_err *err) {
    for (int i = 0; i < argc; i++) {
        char key[KEY_BYTES];
        const char *value;
        if (!option_split(argv[i], key, &value))
            return inferd_fail(err, INFERD_EINVAL, "\"%s\" is no option", argv[i]);
        option_kind kind = r.kind(key);
        if (kind == OPTION_UNKNOWN)
            return inferd_fail(err, INFERD_EINVAL, "there is no option --%s", key);
        if (value == NULL && kind == OPTION_SWITCH) value = "on";
        if (value == NULL && ++i < argc) value = argv[i];
        if (value == NULL) return inferd_fail(err, INFERD_EINVAL, "--%s needs a value", key);
        inferd_status s = r.take(r.ctx, key, value, err);
        if (s != INFERD_OK) return s;
    }
    return INFERD_OK;
}
