/* config_values.c - values with units: sizes, durations, decimals, lists of CPUs.
 *
 * All of them are exact: a value that is not a whole number of its stored unit is refused, never
 * rounded.  A fraction in JSON is a double; it counts as a number of millionths if that number,
 * divided again, gives the same double, which holds for all values below 2^53 millionths. */
#include <ctype.h>
#include <string.h>

#include "config_options.h"

/* -- decimals -- */

enum { DECIMALS_MAX = 6 };

typedef struct decimal {
    uint64_t whole, fraction; // fraction / scale
    uint64_t scale;           // a power of ten; at most 10^DECIMALS_MAX
} decimal;

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits, and perhaps a point and digits; *text moves behind them. */
static bool read_decimal(const char **text, decimal *d) {
    const char *p = *text;
    uint64_t scale_max = 1;
    for (int i = 0; i < DECIMALS_MAX; i++) scale_max *= 10;
    *d = (decimal){.scale = 1};
    if (!is_digit(*p)) return false;
    for (; is_digit(*p); p++)
        if (__builtin_mul_overflow(d->whole, (uint64_t)10, &d->whole) ||
            __builtin_add_overflow(d->whole, (uint64_t)(*p - '0'), &d->whole))
            return false;
    if (*p == '.') {
        for (p++; is_digit(*p); p++) {
            if (d->scale >= scale_max) return false;
            d->fraction = d->fraction * 10 + (uint64_t)(*p - '0');
            d->scale *= 10;
        }
        if (d->scale == 1) return false;
    }
    *text = p;
    return true;
}

/* In units of 1 / unit; unit is at most 2^40, so the product with a fraction fits. */
static bool scale_decimal(const decimal *d, uint64_t unit, uint64_t *out) {
    uint64_t whole;
    if ((d->fraction * unit) % d->scale != 0) return false;
    if (__builtin_mul_overflow(d->whole, unit, &whole)) return false;
    return !__builtin_add_overflow(whole, d->fraction * unit / d->scale, out);
}

enum { MICROS = 1000000 }; // in one unit

/* "2.5" or a number as millionths; false: negative, more than six decimals, or too large. */
static bool read_micros(const char *text, uint64_t *out) {
    decimal d;
    return read_decimal(&text, &d) && *text == 0 && scale_decimal(&d, MICROS, out);
}

static bool json_micros(const json_t *v, uint64_t *out) {
    const double exact_max = 9007199254740992; // 2^53
    if (json_is_string(v)) return read_micros(json_string_value(v), out);
    if (json_is_integer(v))
        return json_integer_value(v) >= 0 &&
               !__builtin_mul_overflow((uint64_t)json_integer_value(v), (uint64_t)MICROS, out);
    if (!json_is_real(v)) return false;
    double value = json_real_value(v);
    if (!(value >= 0 && value * MICROS < exact_max)) return false;
    *out = (uint64_t)(value * MICROS + 0.5);
    return (double)*out / MICROS == value;
}

/* -- sizes -- */

typedef enum size_form {
    SIZE_FINE,
    SIZE_UNKNOWN,   // no number, or no unit
    SIZE_AMBIGUOUS, // "2G": some programs mean powers of 1000 by it, others of 1024
    SIZE_NOT_WHOLE  // not a whole number of bytes, or too large
} size_form;

/* A unit is a letter, "i" for powers of 1024, and "B"; powers of 1000 must have the B. */
static size_form read_size(const char *text, uint64_t *out) {
    static const char letters[] = "KMGT";
    uint64_t base, unit = 1;
    decimal d;
    if (!read_decimal(&text, &d)) return SIZE_UNKNOWN;
    while (*text == ' ') text++;
    const char *letter = *text != 0 ? strchr(letters, toupper((unsigned char)*text)) : NULL;
    if (letter != NULL) {
        bool binary = tolower((unsigned char)*++text) == 'i';
        text += binary;
        if (!binary && *text == 0) return SIZE_AMBIGUOUS;
        base = binary ? 1024 : 1000;
        for (const char *p = letters; p <= letter; p++) unit *= base;
    }
    if (toupper((unsigned char)*text) == 'B') text++;
    if (*text != 0) return SIZE_UNKNOWN;
    return scale_decimal(&d, unit, out) ? SIZE_FINE : SIZE_NOT_WHOLE;
}

bool config_read_size(const char *text, uint64_t *out) {
    return read_size(text, out) == SIZE_FINE;
}

const char *config_size_problem(const char *text) {
    uint64_t unused;
    switch (read_size(text, &unused)) {
    case SIZE_AMBIGUOUS:
        return "is ambiguous without \"B\": write GB for powers of 1000, GiB for powers of 1024";
    case SIZE_NOT_WHOLE:
        return "is not a whole number of bytes below 2^64";
    default:
        return "is not a size: write bytes, or a number with KiB, MiB, GiB, TiB (powers of 1024) "
               "or "
               "KB, MB, GB, TB (powers of 1000)";
    }
}

static config_size_text write_in(uint64_t n, uint64_t base, const char *const units[5]) {
    config_size_text out;
    size_t u = 0;
    while (u < 4 && n >= base && n % base == 0) n /= base, u++;
    snprintf(out.text, sizeof out.text, "%llu%s", (unsigned long long)n, units[u]);
    return out;
}

/* 24GB is also 23437500KiB, which no configuration says. */
config_size_text config_write_size(uint64_t n) {
    static const char *const binary[] = {"", "KiB", "MiB", "GiB", "TiB"};
    static const char *const decimal_units[] = {"", "KB", "MB", "GB", "TB"};
    enum { DIGITS_MAX = 5 };
    config_size_text a = write_in(n, 1024, binary), b = write_in(n, 1000, decimal_units);
    bool many = strspn(a.text, "0123456789") > DIGITS_MAX;
    return many && strlen(b.text) < strlen(a.text) ? b : a;
}

/* -- durations -- */

#define SECOND_US       1000000ull
#define DURATION_MAX_US (SECOND_US * 86400 * CONFIG_DURATION_DAYS_MAX)
_Static_assert(DURATION_MAX_US < 1ull << 53, "fractions of seconds are exact up to there");

typedef struct time_unit {
    const char *name;
    uint64_t us;
} time_unit;

/* Largest first, as they are written; "ms" need not precede "m": whole words are compared. */
static const time_unit time_units[] = {
    {"h", 3600 * SECOND_US}, {"m", 60 * SECOND_US}, {"s", SECOND_US}, {"ms", 1000}, {"us", 1}};

/* "1h30m": each unit at most once, and none after a smaller one. */
static bool read_parts(const char *text, uint64_t *out) {
    size_t next = 0;
    uint64_t sum = 0, part;
    decimal d;
    do {
        if (!read_decimal(&text, &d)) return false;
        size_t n = strcspn(text, "0123456789.");
        while (next < INFERD_COUNT(time_units) &&
               (strlen(time_units[next].name) != n || memcmp(text, time_units[next].name, n) != 0))
            next++;
        if (next == INFERD_COUNT(time_units) || !scale_decimal(&d, time_units[next].us, &part) ||
            __builtin_add_overflow(sum, part, &sum))
            return false;
        next++;
        text += n;
    } while (*text != 0);
    *out = sum;
    return true;
}

bool config_read_duration(const char *text, uint64_t *out_us) {
    uint64_t us;
    if (strcmp(text, "never") == 0 || strcmp(text, "-1") == 0) {
        *out_us = POLICY_NEVER;
        return true;
    }
    if (!read_micros(text, &us) && !read_parts(text, &us)) return false;
    if (us > DURATION_MAX_US) return false;
    *out_us = us;
    return true;
}

bool config_json_duration(const json_t *v, uint64_t *out_us) {
    uint64_t us;
    if (json_is_string(v)) return config_read_duration(json_string_value(v), out_us);
    if (json_is_number(v) && json_number_value(v) == -1) {
        *out_us = POLICY_NEVER;
        return true;
    }
    if (!json_micros(v, &us) || us > DURATION_MAX_US) return false;
    *out_us = us;
    return true;
}

/* -- lists of CPUs -- */

/* A number below CONFIG_CORES_MAX; *text moves behind it. */
static bool read_core(const char **text, uint32_t *out) {
    if (!is_digit(**text)) return false;
    for (*out = 0; is_digit(**text); (*text)++) {
        *out = *out * 10 + (uint32_t)(**text - '0');
        if (*out >= CONFIG_CORES_MAX) return false;
    }
    return true;
}

bool config_read_cores(const char *text, uint64_t set[CONFIG_CORES_MAX / 64]) {
    uint32_t first, last, next = 0; // none below `next` may follow
    memset(set, 0, CONFIG_CORES_MAX / 8);
    for (;;) {
        if (!read_core(&text, &first) || first < next) return false;
        last = first;
        if (*text == '-') {
            text++;
            if (!read_core(&text, &last) || last < first) return false;
        }
        for (uint32_t i = first; i <= last; i++) set[i / 64] |= 1ull << i % 64;
        next = last + 1;
        if (*text == 0) return true;
        if (*text++ != ',') return false;
    }
}
