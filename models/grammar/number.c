/* number.c - the JSON numbers of a range, and the multiples of a number, as automata.
 *
 * A range falls into numbers without a sign and numbers with one, each with bounds of their
 * magnitude.  Digits are compared with those of a bound as they are read: less, equal so far, or
 * greater; how many digits a number has before its point is known when the point or the end comes.
 * So a state is: where in the number, how many digits were read, and one comparison per bound.
 *
 * Bounds are taken as the decimals they were written as: the shortest that reads as the double.
 * Validators read numbers with a point as doubles, and rounding keeps the order: a decimal that is
 * not above a closed bound is not above it as a double.  With an open bound it may become equal, so
 * numbers with a point have at most EXACT_DIGITS digits there, which doubles tell apart.  Numbers
 * without a point are compared exactly, so beyond 2^53 a bound is all digits of the double. */
#include <inttypes.h>
#include <math.h>

#include "dfa_private.h"

enum {
    EXACT_DIGITS = 15,
    BOUND_DIGITS_MAX = 400, // before the point of a bound: the largest double has 309
    MULTIPLE_MAX = 10000,   // of multiple_of, and of its digits where it has a point
    PLACES_MAX = 10,        // behind the point of multiple_of
    COLUMN_POINT = 10,
    COLUMN_MINUS,
    N_COLUMNS
};

static void number_columns(uint32_t column_of[256]) {
    for (int b = 0; b < 256; b++) column_of[b] = UINT32_MAX;
    for (uint32_t d = 0; d < 10; d++) column_of['0' + d] = d;
    column_of['.'] = COLUMN_POINT;
    column_of['-'] = COLUMN_MINUS;
}

/* ---- decimals ---- */

/* digits[0, n_before) . digits[n_before, n): no zero at either end, but for the only digit before
 * the point. */
typedef struct decimal {
    char digits[BOUND_DIGITS_MAX + 2 * NUMBER_DIGITS_MAX];
    uint32_t n_before, n;
} decimal;

/* From "ddd.ddde+xx"; false: too many digits behind the point. */
static bool read_decimal(const char *text, decimal *out) {
    char digits[BOUND_DIGITS_MAX];
    int n = 0, n_before = 0;
    bool point = false;
    *out = (decimal){0};
    for (; *text != 0 && *text != 'e' && n < BOUND_DIGITS_MAX; text++) {
        if (*text == '.') point = true;
        if (*text < '0' || *text > '9') continue;
        digits[n++] = *text;
        n_before += !point;
    }
    if (*text == 'e') n_before += atoi(text + 1);
    while (n > 0 && digits[n - 1] == '0') n--;
    int skip = 0;
    while (skip < n && digits[skip] == '0') skip++, n_before--;
    if (skip == n) n_before = 0; // zero
    if (n_before > BOUND_DIGITS_MAX || n - skip - n_before > NUMBER_DIGITS_MAX) return false;
    int end = n - skip > n_before ? n - skip : n_before;
    for (int i = n_before <= 0 ? n_before - 1 : 0; i < end; i++)
        out->digits[out->n++] = i < 0 || skip + i >= n ? '0' : digits[skip + i];
    out->n_before = n_before <= 0 ? 1 : (uint32_t)n_before;
    return true;
}

/* The magnitude of a double. */
static inferd_status decimal_of_double(double value, decimal *out, inferd_err *err) {
    char text[BOUND_DIGITS_MAX];
    value = fabs(value);
    if (!isfinite(value)) return inferd_fail(err, INFERD_EINVAL, "a bound that is not finite");
    if (value >= 0x1p53) {
        snprintf(text, sizeof text, "%.0f", value);
    } else {
        int precision = 0;
        do snprintf(text, sizeof text, "%.*e", precision, value);
        while (strtod(text, NULL) != value && precision++ < 17);
    }
    if (read_decimal(text, out)) return INFERD_OK;
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "a bound of %g, with more than %d digits behind its point, cannot be "
                       "enforced",
                       value, NUMBER_DIGITS_MAX);
}

static inferd_status decimal_of_int(int64_t value, decimal *out) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
    read_decimal(text, out);
    return INFERD_OK;
}

/* ---- ranges of magnitudes ---- */

typedef struct magnitudes {
    bool any; // false: no number at all
    bool has_low, has_high, open_low, open_high;
    decimal low, high;
} magnitudes;

typedef struct spec {
    const number_range *range;
    int sign_min, sign_max;        // of the bounds; -1, 0, 1
    decimal min, max;              // their magnitudes
    magnitudes positive, negative; // numbers without and with "-"
    uint32_t n_before_max;         // digits
    uint32_t n_point_max;          // digits of a number with a point
} spec;

static int sign_of(double x) {
    return x < 0 ? -1 : x > 0;
}

static inferd_status read_bounds(const number_range *r, spec *w, inferd_err *err) {
    inferd_status s = INFERD_OK;
    *w = (spec){.range = r};
    if (r->has_min) {
        w->sign_min = r->exact ? (r->min_int > 0) - (r->min_int < 0) : sign_of(r->min);
        s = r->exact ? decimal_of_int(r->min_int, &w->min)
                     : decimal_of_double(r->min, &w->min, err);
    }
    if (s == INFERD_OK && r->has_max) {
        w->sign_max = r->exact ? (r->max_int > 0) - (r->max_int < 0) : sign_of(r->max);
        s = r->exact ? decimal_of_int(r->max_int, &w->max)
                     : decimal_of_double(r->max, &w->max, err);
    }
    return s;
}

/* Without a sign: from the minimum, or zero, to the maximum.  With one: from the maximum's
 * magnitude, or zero, to the minimum's.  "-0" has the value zero; it is written only where there
 * are negative numbers, too. */
static void split_signs(spec *w) {
    const number_range *r = w->range;
    magnitudes *p = &w->positive, *n = &w->negative;
    p->any = !r->has_max || w->sign_max >= 0;
    p->has_low = r->has_min && w->sign_min >= 0;
    p->open_low = r->open_min;
    p->low = w->min;
    p->has_high = r->has_max;
    p->open_high = r->open_max;
    p->high = w->max;
    n->any = !r->has_min || w->sign_min < 0;
    n->has_low = r->has_max && w->sign_max <= 0;
    n->open_low = r->open_max;
    n->low = w->max;
    n->has_high = r->has_min;
    n->open_high = r->open_min;
    n->high = w->min;
}

static bool is_unbounded(const magnitudes *m) {
    bool from_zero = !m->has_low || (m->low.n == 1 && m->low.digits[0] == '0' && !m->open_low);
    return m->any && from_zero && !m->has_high;
}

/* ---- the automaton of a range ---- */

enum { LESS, EQUAL, GREATER, N_ORDERS };
enum { WHOLE, ZERO, POINT, PLACES, N_PHASES }; // before the point; "0"; at it; behind it

typedef struct place {                             // in a number
    uint32_t negative, phase, n_digits, low, high; // low, high: the order of what was read
} place;

typedef struct ranger {
    const spec *spec;
    dfa_table table;
    uint32_t *state_of; // [n_places] DFA_DEAD: none yet
    place *places;      // [table.n_states] of each state
} ranger;

static uint32_t place_index(place p) {
    uint32_t i = p.negative * N_PHASES + p.phase;
    i = i * (NUMBER_DIGITS_MAX + 1) + p.n_digits;
    return (i * N_ORDERS + p.low) * N_ORDERS + p.high;
}
enum { N_PLACES = 2 * N_PHASES * (NUMBER_DIGITS_MAX + 1) * N_ORDERS * N_ORDERS };

/* The order after another digit, before the point: as if the number had as many digits as `d`. */
static uint32_t order_whole(const decimal *d, uint32_t order, uint32_t at, uint32_t digit) {
    if (at >= d->n_before) return GREATER;
    uint32_t other = (uint32_t)(d->digits[at] - '0');
    return order != EQUAL || digit == other ? order : digit < other ? LESS : GREATER;
}

/* When the digits before the point are over. */
static uint32_t order_settled(const decimal *d, uint32_t order, uint32_t n_digits) {
    return n_digits < d->n_before ? LESS : order;
}

static uint32_t order_behind(const decimal *d, uint32_t order, uint32_t at, uint32_t digit) {
    uint32_t other = at < d->n ? (uint32_t)(d->digits[at] - '0') : 0;
    return order != EQUAL || digit == other ? order : digit < other ? LESS : GREATER;
}

/* When all digits are over: what is left of the bound is not zero. */
static uint32_t order_at_end(const decimal *d, uint32_t order, uint32_t at) {
    return order == EQUAL && at < d->n ? LESS : order;
}

static bool is_number_in(const magnitudes *m, place p) {
    if (p.phase == POINT || p.n_digits == 0) return false;
    if (p.phase != PLACES) {
        p.low = order_settled(&m->low, p.low, p.n_digits);
        p.high = order_settled(&m->high, p.high, p.n_digits);
    }
    p.low = order_at_end(&m->low, p.low, p.n_digits);
    p.high = order_at_end(&m->high, p.high, p.n_digits);
    bool above = !m->has_low || p.low == GREATER || (p.low == EQUAL && !m->open_low);
    bool below = !m->has_high || p.high == LESS || (p.high == EQUAL && !m->open_high);
    return m->any && above && below;
}

/* After a digit; false: none may come here. */
static bool read_digit(const spec *w, const magnitudes *m, place *p, uint32_t digit) {
    uint32_t at = p->n_digits;
    switch (p->phase) {
    case WHOLE:
        if (at >= w->n_before_max) return false;
        if (m->has_low) p->low = order_whole(&m->low, p->low, at, digit);
        if (m->has_high) p->high = order_whole(&m->high, p->high, at, digit);
        if (at == 0 && digit == 0) p->phase = ZERO;
        break;
    case ZERO:
        return false;
    default:
        if (at >= w->n_point_max) return false;
        if (m->has_low) p->low = order_behind(&m->low, p->low, at, digit);
        if (m->has_high) p->high = order_behind(&m->high, p->high, at, digit);
        p->phase = PLACES;
        break;
    }
    p->n_digits++;
    return true;
}

/* After a point; false: none may come here. */
static bool read_point(const spec *w, const magnitudes *m, place *p) {
    if (w->range->integer || p->n_digits == 0 || p->phase > ZERO) return false;
    if (p->n_digits >= w->n_point_max) return false;
    if (m->has_low) p->low = order_settled(&m->low, p->low, p->n_digits);
    if (m->has_high) p->high = order_settled(&m->high, p->high, p->n_digits);
    p->phase = POINT;
    return true;
}

static bool read_column(const spec *w, place *p, uint32_t column) {
    if (column == COLUMN_MINUS) {
        bool at_start = !p->negative && p->phase == WHOLE && p->n_digits == 0;
        p->negative = 1;
        return at_start;
    }
    const magnitudes *m = p->negative ? &w->negative : &w->positive;
    return column == COLUMN_POINT ? read_point(w, m, p) : read_digit(w, m, p, column);
}

static bool put_place(ranger *w, place p, uint32_t *state) {
    uint32_t index = place_index(p);
    *state = w->state_of[index];
    if (*state != DFA_DEAD) return true;
    if (!dfa_table_add(&w->table, state)) return false;
    w->state_of[index] = *state;
    w->places[*state] = p;
    w->table.tags[*state] = is_number_in(p.negative ? &w->spec->negative : &w->spec->positive, p);
    return true;
}

static inferd_status range_automaton(const spec *bounds, dfa *out, inferd_err *err) {
    ranger w = {
        .spec = bounds,
        .table = {.n_columns = N_COLUMNS},
        .state_of = malloc(N_PLACES * sizeof *w.state_of),
        .places = malloc(N_PLACES * sizeof *w.places),
    };
    uint32_t column_of[256], state;
    bool ok = w.state_of != NULL && w.places != NULL;
    if (ok) {
        memset(w.state_of, 0xFF, N_PLACES * sizeof *w.state_of);
        ok = put_place(&w, (place){.low = EQUAL, .high = EQUAL}, &state);
    }
    for (uint32_t i = 0; ok && i < w.table.n_states; i++)
        for (uint32_t c = 0; ok && c < N_COLUMNS; c++) {
            place p = w.places[i];
            if (!read_column(bounds, &p, c)) continue;
            ok = put_place(&w, p, &state);
            if (ok) dfa_table_row(&w.table, i)[c] = state;
        }
    ok = ok && dfa_table_trim(&w.table) && dfa_table_minimize(&w.table);
    free(w.state_of);
    free(w.places);
    number_columns(column_of);
    if (ok) return dfa_of_table(&w.table, column_of, out, err);
    dfa_table_deinit(&w.table);
    return dfa_no_memory(err);
}

/* ---- multiples ---- */

typedef struct multiple { // of number / 10^n_places
    uint32_t number, n_places;
} multiple;

/* A validator divides doubles, so with a point only what they hold exactly is the same for all. */
static inferd_status read_multiple(double of, multiple *out, inferd_err *err) {
    uint64_t power = 1, fives = 1;
    if (!(of > 0) || !isfinite(of))
        return inferd_fail(err, INFERD_EINVAL, "a multiple of %g: not positive", of);
    for (*out = (multiple){0}; out->n_places <= PLACES_MAX; out->n_places++) {
        double number = of * (double)power;
        if (number > MULTIPLE_MAX) break;
        if (number == floor(number) && number / (double)power == of) {
            out->number = (uint32_t)number;
            if (out->number % fives == 0) return INFERD_OK;
            break;
        }
        power *= 10;
        fives *= 5;
    }
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "a multiple of %g cannot be enforced: integers up to %d can, and halves, "
                       "quarters ... of them",
                       of, MULTIPLE_MAX);
}

/* States: the start; after "-"; after "0"; a remainder of what was read: before the point, at the
 * point, and behind 1, 2 ... places; and zeros behind the last place. */
typedef struct multiples {
    multiple of;
    bool point; // numbers with a point, too
    dfa_table table;
} multiples;

enum { AT_START, AT_MINUS, AT_ZERO, AT_REST, N_FIXED };

static uint32_t rest_state(const multiples *w, uint32_t group, uint32_t rest) {
    return N_FIXED + group * w->of.number + rest;
}

/* Is rest / 10^n_read a multiple, with n_read of the places read? */
static bool is_multiple(const multiples *w, uint32_t rest, uint32_t n_read) {
    uint64_t value = rest;
    for (uint32_t i = n_read; i < w->of.n_places; i++) value = value * 10 % w->of.number;
    return value % w->of.number == 0;
}

static void fill_multiples(multiples *w) {
    dfa_table *t = &w->table;
    uint32_t number = w->of.number, n_places = w->of.n_places;
    for (uint32_t d = 0; d < 10; d++)
        dfa_table_row(t, AT_START)[d] = dfa_table_row(t, AT_MINUS)[d] =
            d == 0 ? AT_ZERO : rest_state(w, 0, d % number);
    dfa_table_row(t, AT_START)[COLUMN_MINUS] = AT_MINUS;
    t->tags[AT_ZERO] = 1;
    if (w->point) dfa_table_row(t, AT_ZERO)[COLUMN_POINT] = rest_state(w, 1, 0);
    if (n_places > 0) dfa_table_row(t, AT_REST)[0] = AT_REST;
    t->tags[AT_REST] = 1;
    for (uint32_t rest = 0; rest < number; rest++) {
        uint32_t *whole = dfa_table_row(t, rest_state(w, 0, rest));
        t->tags[rest_state(w, 0, rest)] = is_multiple(w, rest, 0);
        for (uint32_t d = 0; d < 10; d++)
            whole[d] = rest_state(w, 0, (uint32_t)(((uint64_t)rest * 10 + d) % number));
        if (w->point) whole[COLUMN_POINT] = rest_state(w, 1, rest);
        for (uint32_t k = 0; w->point && k <= n_places; k++) { // k places were read
            uint32_t state = rest_state(w, 1 + k, rest);
            if (k > 0) t->tags[state] = is_multiple(w, rest, k);
            for (uint32_t d = 0; k < n_places && d < 10; d++)
                dfa_table_row(t, state)[d] =
                    rest_state(w, 2 + k, (uint32_t)(((uint64_t)rest * 10 + d) % number));
            if (k == n_places && rest == 0) dfa_table_row(t, state)[0] = AT_REST;
        }
    }
}

static inferd_status multiples_automaton(const number_range *r, dfa *out, inferd_err *err) {
    multiples w = {.point = !r->integer, .table = {.n_columns = N_COLUMNS}};
    uint32_t column_of[256], state;
    inferd_status s = read_multiple(r->multiple_of, &w.of, err);
    if (s != INFERD_OK) return s;
    uint32_t n_groups = w.point ? 2 + w.of.n_places : 1;
    bool ok = true;
    for (uint32_t i = 0; ok && i < N_FIXED + n_groups * w.of.number; i++)
        ok = dfa_table_add(&w.table, &state);
    if (ok) fill_multiples(&w);
    ok = ok && dfa_table_trim(&w.table) && dfa_table_minimize(&w.table);
    number_columns(column_of);
    if (ok) return dfa_of_table(&w.table, column_of, out, err);
    dfa_table_deinit(&w.table);
    return dfa_no_memory(err);
}

/* ---- together ---- */

#define WHOLE_PATTERN    "(0|[1-9][0-9]{0,39})"
#define PLACES_PATTERN   "([.][0-9]{1,40})?"
#define EXPONENT_PATTERN "([eE][+-]?[0-9]{1,2})?"

static inferd_status or_pattern(dfa *d, const char *pattern, const dfa_limits *limits,
                                inferd_err *err) {
    dfa other, both;
    inferd_status s =
        regex_compile((bytes){pattern, strlen(pattern)}, REGEX_TEXT, limits, &other, err);
    if (s != INFERD_OK) return s;
    s = dfa_or(d, &other, limits, &both, err);
    dfa_deinit(&other);
    if (s != INFERD_OK) return s;
    dfa_deinit(d);
    *d = both;
    return dfa_minimize(d, err);
}

/* How many digits there may be, so that no text is endless and doubles tell decimals apart.  Of
 * multiples a validator divides doubles, so they are exact, and there are few digits, because each
 * takes as many states as there are remainders. */
static inferd_status set_digits(spec *w, inferd_err *err) {
    const number_range *r = w->range;
    bool divided = r->multiple_of != 0;
    bool open = (r->has_min && r->open_min) || (r->has_max && r->open_max);
    w->n_before_max = divided ? EXACT_DIGITS : NUMBER_DIGITS_MAX;
    w->n_point_max = divided || open || r->exact ? EXACT_DIGITS : NUMBER_DIGITS_MAX;
    const magnitudes *both[] = {&w->positive, &w->negative};
    for (int i = 0; i < 2; i++)
        if (both[i]->any && both[i]->has_low && both[i]->low.n_before > w->n_before_max)
            return inferd_fail(err, INFERD_EUNSUPPORTED,
                               "a bound of %u digits cannot be enforced; the limit is %u",
                               both[i]->low.n_before, w->n_before_max);
    return INFERD_OK;
}

/* Numbers whose magnitude has no bound may have an exponent; those of the other sign are a range.
 */
static inferd_status real_automaton(const spec *w, const dfa_limits *limits, dfa *out,
                                    inferd_err *err) {
    static const char unsigned_pattern[] = WHOLE_PATTERN PLACES_PATTERN EXPONENT_PATTERN;
    static const char negative_pattern[] = "-" WHOLE_PATTERN PLACES_PATTERN EXPONENT_PATTERN;
    static const char signed_pattern[] = "-?" WHOLE_PATTERN PLACES_PATTERN EXPONENT_PATTERN;
    bool positive = is_unbounded(&w->positive), negative = is_unbounded(&w->negative);
    const char *pattern = positive && negative ? signed_pattern
                          : positive           ? unsigned_pattern
                                               : negative_pattern;
    if ((positive || !w->positive.any) && (negative || !w->negative.any) && (positive || negative))
        return regex_compile((bytes){pattern, strlen(pattern)}, REGEX_TEXT, limits, out, err);
    inferd_status s = range_automaton(w, out, err);
    if (s == INFERD_OK && (positive || negative)) s = or_pattern(out, pattern, limits, err);
    return s;
}

static inferd_status keep_multiples(const number_range *r, const dfa_limits *limits, dfa *d,
                                    inferd_err *err) {
    dfa steps, both;
    if (r->multiple_of == 0) return INFERD_OK;
    inferd_status s = multiples_automaton(r, &steps, err);
    if (s != INFERD_OK) return s;
    s = dfa_and(d, &steps, limits, &both, err);
    dfa_deinit(&steps);
    if (s != INFERD_OK) return s;
    dfa_deinit(d);
    *d = both;
    return dfa_minimize(d, err);
}

inferd_status dfa_of_numbers(const number_range *range, const dfa_limits *limits, dfa *out,
                             inferd_err *err) {
    *out = (dfa){0};
    spec *w = malloc(sizeof *w); // too large for the stack of a worker
    if (w == NULL) return dfa_no_memory(err);
    inferd_status s = read_bounds(range, w, err);
    if (s == INFERD_OK) {
        split_signs(w);
        s = set_digits(w, err);
    }
    if (s == INFERD_OK)
        s = range->integer || range->multiple_of != 0 ? range_automaton(w, out, err)
                                                      : real_automaton(w, limits, out, err);
    if (s == INFERD_OK) s = keep_multiples(range, limits, out, err);
    free(w);
    if (s != INFERD_OK) dfa_deinit(out);
    return s;
}
