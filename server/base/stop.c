/* stop.c - see stop.h. */
#include "stop.h"

#include <string.h>

typedef struct stop_string {
    uint32_t n;
    const unsigned char *p; // [n] in set->text
    const uint16_t *back;   // [n] in set->back: longest proper border of p[0 .. i]
} stop_string;

struct stop_set {
    uint32_t n;
    stop_string *strings; // [n] owned
    unsigned char *text;  // all strings; owned
    uint16_t *back;       // one number per byte of text; owned
};

/* back[i]: the length that still matches if p[0 .. i] matched and the next byte does not. */
static void fill_back(const unsigned char *p, uint16_t *back, size_t n) {
    uint16_t k = 0;
    back[0] = 0;
    for (size_t i = 1; i < n; i++) {
        while (k > 0 && p[i] != p[k]) k = back[k - 1];
        if (p[i] == p[k]) k++;
        back[i] = k;
    }
}

stop_set *stop_set_create(const bytes *strings, uint32_t n) {
    size_t n_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        INFERD_CHECK(strings[i].n > 0 && strings[i].n <= UINT16_MAX);
        n_bytes += strings[i].n;
    }
    stop_set *set = calloc(1, sizeof *set);
    if (set == NULL) return NULL;
    set->n = n;
    set->strings = calloc(n == 0 ? 1 : n, sizeof *set->strings);
    set->text = malloc(n_bytes == 0 ? 1 : n_bytes);
    set->back = calloc(n_bytes == 0 ? 1 : n_bytes, sizeof *set->back);
    if (set->strings == NULL || set->text == NULL || set->back == NULL) {
        stop_set_destroy(set);
        return NULL;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(set->text + at, strings[i].p, strings[i].n);
        fill_back(set->text + at, set->back + at, strings[i].n);
        set->strings[i] = (stop_string){(uint32_t)strings[i].n, set->text + at, set->back + at};
        at += strings[i].n;
    }
    return set;
}

void stop_set_destroy(stop_set *set) {
    if (set == NULL) return;
    free(set->strings);
    free(set->text);
    free(set->back);
    free(set);
}

uint32_t stop_set_n(const stop_set *set) {
    return set == NULL ? 0 : set->n;
}

bytes stop_set_at(const stop_set *set, uint32_t i) {
    return (bytes){(const char *)set->strings[i].p, set->strings[i].n};
}

bool stop_feed(const stop_set *set, uint16_t *state, const char *p, size_t n, stop_match *out) {
    if (stop_set_n(set) == 0) return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        bool found = false;
        for (uint32_t k = 0; k < set->n; k++) {
            const stop_string *s = &set->strings[k];
            uint16_t m = state[k];
            while (m > 0 && s->p[m] != c) m = s->back[m - 1];
            if (s->p[m] == c) m++;
            if (m == s->n) { // complete; a longer one that ends here begins earlier
                if (!found || s->n > out->n)
                    *out = (stop_match){.string_idx = k, .end = i + 1, .n = s->n};
                found = true;
                m = s->back[m - 1];
            }
            state[k] = m;
        }
        if (found) return true;
    }
    return false;
}

size_t stop_held(const stop_set *set, const uint16_t *state) {
    size_t held = 0;
    for (uint32_t k = 0; k < stop_set_n(set); k++) held = size_max(held, state[k]);
    return held;
}
