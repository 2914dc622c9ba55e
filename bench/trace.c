/* trace.c - see trace.h. */
#include "trace.h"

#include <errno.h>
#include <string.h>

static const uint64_t NS_PER_S = 1000000000u;

/* Up to ten digits, so that seconds since 1970 fit as nanoseconds; false when there is none
 * or there are more. */
static bool take_digits(const char **p, const char *end, uint64_t *out) {
    const char *start = *p;
    uint64_t value = 0;
    while (*p < end && **p >= '0' && **p <= '9') {
        if (*p - start >= 10) return false;
        value = value * 10 + (uint64_t)(**p - '0');
        (*p)++;
    }
    *out = value;
    return *p > start;
}

static bool take_char(const char **p, const char *end, char c) {
    if (*p == end || **p != c) return false;
    (*p)++;
    return true;
}

/* An optional fraction of a second; digits past the ninth are dropped. */
static bool take_fraction(const char **p, const char *end, uint64_t *out_ns) {
    *out_ns = 0;
    if (!take_char(p, end, '.')) return true;
    uint64_t place = NS_PER_S / 10;
    const char *start = *p;
    while (*p < end && **p >= '0' && **p <= '9') {
        *out_ns += (uint64_t)(**p - '0') * place;
        place /= 10;
        (*p)++;
    }
    return *p > start;
}

/* Days since 1970-01-01 in the Gregorian calendar, counted in years that begin in March. */
static uint64_t days_of(uint64_t year, uint64_t month, uint64_t day) {
    uint64_t y = month <= 2 ? year - 1 : year;
    uint64_t m = month <= 2 ? month + 9 : month - 3; // March = 0
    uint64_t days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
    return days - 719468;
}

/* The offset of the time from UTC: empty, "Z", or "+hh:mm", "-hh:mm". */
static bool take_offset(const char **p, const char *end, int64_t *out_s) {
    uint64_t hours, minutes;
    *out_s = 0;
    if (*p == end || take_char(p, end, 'Z')) return true;
    int sign = **p == '-' ? -1 : 1;
    if (!take_char(p, end, '+') && !take_char(p, end, '-')) return false;
    if (!take_digits(p, end, &hours) || !take_char(p, end, ':')) return false;
    if (!take_digits(p, end, &minutes) || hours > 23 || minutes > 59) return false;
    *out_s = sign * (int64_t)(hours * 3600 + minutes * 60);
    return true;
}

static bool date_parse(const char *p, const char *end, uint64_t *out_ns) {
    uint64_t year, month, day, hour, minute, second, fraction;
    int64_t ahead_s;
    if (!take_digits(&p, end, &year) || !take_char(&p, end, '-')) return false;
    if (!take_digits(&p, end, &month) || !take_char(&p, end, '-')) return false;
    if (!take_digits(&p, end, &day)) return false;
    if (!take_char(&p, end, ' ') && !take_char(&p, end, 'T')) return false;
    if (!take_digits(&p, end, &hour) || !take_char(&p, end, ':')) return false;
    if (!take_digits(&p, end, &minute) || !take_char(&p, end, ':')) return false;
    if (!take_digits(&p, end, &second) || !take_fraction(&p, end, &fraction)) return false;
    if (!take_offset(&p, end, &ahead_s)) return false;
    if (p != end || year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > 31 ||
        hour > 23 || minute > 59 || second > 60)
        return false;
    int64_t seconds =
        (int64_t)(days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second) - ahead_s;
    if (seconds < 0) return false; // before 1970 in UTC
    *out_ns = (uint64_t)seconds * NS_PER_S + fraction;
    return true;
}

bool trace_time_parse(const char *text, const char *end, uint64_t *out_ns) {
    const char *p = text;
    uint64_t seconds, fraction;
    if (take_digits(&p, end, &seconds) && take_fraction(&p, end, &fraction) && p == end) {
        *out_ns = seconds * NS_PER_S + fraction;
        return true;
    }
    return date_parse(text, end, out_ns);
}

static bool field_next(const char **p, const char *end, const char **field,
                       const char **field_end) {
    if (*p > end) return false;
    *field = *p;
    const char *comma = memchr(*p, ',', (size_t)(end - *p));
    *field_end = comma == NULL ? end : comma;
    *p = *field_end + 1; // past the end after the last field
    return true;
}

static bool count_parse(const char *p, const char *end, uint32_t *out) {
    uint64_t value;
    if (!take_digits(&p, end, &value) || p != end || value > UINT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

/* False: `what` names the field that is wrong. */
static bool row_parse(const char *line, size_t n, trace_row *row, const char **what) {
    const char *p = line, *end = line + n, *f, *f_end;
    *what = "time";
    if (!field_next(&p, end, &f, &f_end) || !trace_time_parse(f, f_end, &row->at_ns)) return false;
    *what = "number of prompt tokens";
    if (!field_next(&p, end, &f, &f_end) || !count_parse(f, f_end, &row->n_prompt)) return false;
    *what = "number of output tokens";
    return field_next(&p, end, &f, &f_end) && count_parse(f, f_end, &row->n_output);
}

static inferd_status row_add(trace *t, size_t *capacity, trace_row row, inferd_err *err) {
    if (t->n == TRACE_ROWS_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d rows", TRACE_ROWS_MAX);
    if (t->n == *capacity) {
        size_t wanted = *capacity == 0 ? 4096 : *capacity * 2;
        trace_row *rows = realloc(t->rows, wanted * sizeof *rows);
        if (rows == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu rows", wanted);
        t->rows = rows;
        *capacity = wanted;
    }
    t->rows[t->n++] = row;
    return INFERD_OK;
}

static inferd_status rows_read(trace *t, FILE *file, inferd_err *err) {
    char *line = NULL;
    size_t line_bytes = 0, capacity = 0, line_no = 0;
    uint64_t first_ns = 0;
    inferd_status s = INFERD_OK;
    ssize_t n;
    while (s == INFERD_OK && (n = getline(&line, &line_bytes, file)) >= 0) {
        line_no++;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        trace_row row;
        const char *what;
        if (n == 0) continue;
        if (!row_parse(line, (size_t)n, &row, &what)) {
            if (line_no == 1 && (line[0] < '0' || line[0] > '9')) continue; // the header
            s = inferd_fail(err, INFERD_EFORMAT, "line %zu: bad %s", line_no, what);
            break;
        }
        if (t->n == 0) first_ns = row.at_ns;
        if (row.at_ns < first_ns || (t->n > 0 && row.at_ns - first_ns < t->rows[t->n - 1].at_ns)) {
            s = inferd_fail(err, INFERD_EFORMAT, "line %zu: time goes backwards", line_no);
            break;
        }
        row.at_ns -= first_ns;
        s = row_add(t, &capacity, row, err);
    }
    free(line);
    if (s == INFERD_OK && ferror(file)) s = inferd_fail(err, INFERD_EIO, "%s", strerror(errno));
    if (s == INFERD_OK && t->n == 0) s = inferd_fail(err, INFERD_EFORMAT, "no rows");
    return s;
}

inferd_status trace_read(trace *t, const char *path, inferd_err *err) {
    *t = (trace){0};
    FILE *file = fopen(path, "re");
    if (file == NULL) return inferd_fail(err, INFERD_EIO, "trace %s: %s", path, strerror(errno));
    inferd_status s = rows_read(t, file, err);
    fclose(file);
    if (s != INFERD_OK) {
        inferd_context(err, "trace %s", path);
        trace_deinit(t);
    }
    return s;
}

double trace_period_s(const trace *t) {
    double last_s = (double)t->rows[t->n - 1].at_ns / (double)NS_PER_S;
    return t->n > 1 ? last_s * (double)t->n / (double)(t->n - 1) : 0;
}

void trace_deinit(trace *t) {
    free(t->rows);
    *t = (trace){0};
}
