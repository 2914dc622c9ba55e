/* doctor_report.c - the lines of `inferd doctor`, and reading below its root; see doctor.h. */
#include <ctype.h>
#include <glob.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "json_out.h"

/* ---- lines ---- */

void doctor_deinit(doctor *d) {
    free(d->lines);
    d->lines = NULL;
    d->n_lines = 0;
}

void doctor_add(doctor *d, doctor_level level, const char *subject, const char *format, ...) {
    enum { FIRST = 32 };
    bool full = d->n_lines == DOCTOR_LINES_MAX;
    bool grows = d->n_lines == 0 || (d->n_lines >= FIRST && (d->n_lines & (d->n_lines - 1)) == 0);
    if (!full && grows) {
        size_t n = d->n_lines == 0 ? FIRST : 2 * d->n_lines;
        doctor_line *grown = realloc(d->lines, n * sizeof *grown);
        full = grown == NULL;
        if (!full) d->lines = grown;
    }
    if (full) {
        d->n_left_out++;
        return;
    }
    doctor_line *l = &d->lines[d->n_lines++];
    *l = (doctor_line){.level = level, .subject = subject};
    va_list args;
    va_start(args, format);
    vsnprintf(l->figure, sizeof l->figure, format, args);
    va_end(args);
    inferd_blank_controls(l->figure);
}

void doctor_advise(doctor *d, const char *format, ...) {
    if (d->n_lines == 0 || d->n_left_out > 0) return;
    doctor_line *l = &d->lines[d->n_lines - 1];
    va_list args;
    va_start(args, format);
    vsnprintf(l->advice, sizeof l->advice, format, args);
    va_end(args);
    inferd_blank_controls(l->advice);
}

doctor_level doctor_worst(const doctor *d) {
    doctor_level worst = DOCTOR_OK;
    for (uint32_t i = 0; i < d->n_lines; i++)
        if (d->lines[i].level > worst) worst = d->lines[i].level;
    return worst;
}

const char *doctor_level_name(doctor_level level) {
    static const char *const names[] = {"ok", "warning", "problem"};
    return names[level];
}

/* Breaks lines between words at DOCTOR_COLUMNS; `indent` columns stand before each. */
static void add_wrapped(buf *out, const char *text, int indent) {
    enum { COLUMNS = 100 };
    int column = indent;
    while (*text != 0) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > COLUMNS) {
            buf_add_format(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            buf_add_char(out, ' ');
            column++;
        }
        buf_add(out, text, (size_t)n);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
}

void doctor_write_text(const doctor *d, buf *out) {
    enum { INDENT = 28 };
    uint32_t counts[3] = {0};
    for (uint32_t i = 0; i < d->n_lines; i++) {
        const doctor_line *l = &d->lines[i];
        counts[l->level]++;
        buf_add_format(out, "%-8s %-18s ", doctor_level_name(l->level), l->subject);
        add_wrapped(out, l->figure, INDENT);
        if (l->advice[0] != 0) {
            buf_add_format(out, "\n%*s", INDENT, "> ");
            add_wrapped(out, l->advice, INDENT);
        }
        buf_add_char(out, '\n');
    }
    if (d->n_left_out > 0) buf_add_format(out, "%u more lines are left out\n", d->n_left_out);
    buf_add_format(out, "%u ok, %u warning%s, %u problem%s\n", counts[DOCTOR_OK],
                   counts[DOCTOR_WARNING], counts[DOCTOR_WARNING] == 1 ? "" : "s",
                   counts[DOCTOR_PROBLEM], counts[DOCTOR_PROBLEM] == 1 ? "" : "s");
}

static void add_member(buf *out, const char *name, const char *text) {
    buf_add_format(out, ",\"%s\":", name);
    if (text[0] == 0)
        buf_add_str(out, "null");
    else
        json_add_string(out, text, strlen(text));
}

void doctor_write_json(const doctor *d, buf *out) {
    buf_add_format(out, "{\"status\":\"%s\",\"checks\":[", doctor_level_name(doctor_worst(d)));
    for (uint32_t i = 0; i < d->n_lines; i++) {
        const doctor_line *l = &d->lines[i];
        buf_add_format(out, "%s{\"level\":\"%s\"", i > 0 ? "," : "", doctor_level_name(l->level));
        add_member(out, "subject", l->subject);
        add_member(out, "figure", l->figure);
        add_member(out, "advice", l->advice);
        buf_add_char(out, '}');
    }
    buf_add_format(out, "],\"left_out\":%u}\n", d->n_left_out);
}

/* ---- reading ---- */

static bool path_of(const doctor *d, const char *path, char out[PATH_MAX]) {
    int n = snprintf(out, PATH_MAX, "%s%s", d->root, path);
    return n > 0 && n < PATH_MAX;
}

bool doctor_exists(const doctor *d, const char *path) {
    char whole[PATH_MAX];
    return path_of(d, path, whole) && access(whole, F_OK) == 0;
}

bool doctor_read(const doctor *d, const char *path, char *out, size_t out_bytes) {
    char whole[PATH_MAX];
    out[0] = 0;
    FILE *f = path_of(d, path, whole) ? fopen(whole, "re") : NULL;
    if (f == NULL) return false;
    size_t n = fread(out, 1, out_bytes - 1, f);
    while (n > 0 && isspace((unsigned char)out[n - 1])) n--;
    out[n] = 0;
    fclose(f);
    return n > 0;
}

uint64_t doctor_read_number(const doctor *d, const char *path, uint64_t fallback) {
    char text[64], *end;
    if (!doctor_read(d, path, text, sizeof text)) return fallback;
    uint64_t n = strtoull(text, &end, 10);
    return end == text ? fallback : n;
}

bool doctor_find(const doctor *d, const char *path, const char *name, char *out, size_t out_bytes) {
    char whole[PATH_MAX], line[8192];
    bool found = false;
    FILE *f = path_of(d, path, whole) ? fopen(whole, "re") : NULL;
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        size_t n = strlen(name);
        if (strncmp(line, name, n) != 0) continue;
        const char *p = line + n + strspn(line + n, " \t");
        if (*p != ':') continue;
        p += 1 + strspn(p + 1, " \t");
        snprintf(out, out_bytes, "%.*s", (int)strcspn(p, "\n"), p);
        found = true;
    }
    if (f != NULL) fclose(f);
    return found;
}

uint64_t doctor_meminfo(const doctor *d, const char *name) {
    char text[64];
    if (!doctor_find(d, "/proc/meminfo", name, text, sizeof text)) return 0;
    return strtoull(text, NULL, 10) * 1024;
}

bool doctor_has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *p = words; (p = strstr(p, word)) != NULL; p += n) {
        bool begins = p == words || p[-1] == ' ';
        if (begins && (p[n] == 0 || p[n] == ' ')) return true;
    }
    return false;
}

/* ---- devices ---- */

/* Base class 03; the sound and USB functions of a card are devices of their own. */
static bool is_display(const char *class) {
    return strncmp(class, "0x03", 4) == 0;
}

bool doctor_has_gpu(const doctor *d) {
    char pattern[PATH_MAX];
    glob_t found;
    bool any = doctor_exists(d, "/dev/dxg") || doctor_exists(d, "/proc/driver/nvidia/version");
    if (any || !path_of(d, "/sys/bus/pci/devices/*/vendor", pattern) ||
        glob(pattern, 0, NULL, &found) != 0)
        return any;
    for (size_t i = 0; i < found.gl_pathc && !any; i++) {
        char vendor[16], class[16], path[PATH_MAX];
        const char *file = found.gl_pathv[i] + strlen(d->root);
        snprintf(path, sizeof path, "%.*s/class", (int)(strrchr(file, '/') - file), file);
        any = doctor_read(d, file, vendor, sizeof vendor) && strcmp(vendor, "0x10de") == 0 &&
              doctor_read(d, path, class, sizeof class) && is_display(class);
    }
    globfree(&found);
    return any;
}

bool doctor_uses_gpu(const doctor *d) {
    return d->config == NULL || d->config->n_devices == 0 || doctor_n_devices(d, "cuda") > 0;
}

bool doctor_has_unit(const doctor *d) {
    static const char *const folders[] = {"/etc", "/lib", "/usr/lib", "/usr/local/lib"};
    for (size_t i = 0; i < INFERD_COUNT(folders); i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/systemd/system/inferd.service", folders[i]);
        if (doctor_exists(d, path)) return true;
    }
    return false;
}

uint32_t doctor_n_devices(const doctor *d, const char *kind) {
    uint32_t n = 0;
    for (uint32_t i = 0; d->config != NULL && i < d->config->n_devices; i++) {
        const char *its = d->config->devices[i].kind;
        if (its == NULL || strcmp(its, "auto") == 0) its = doctor_has_gpu(d) ? "cuda" : "cpu";
        n += strcmp(its, kind) == 0;
    }
    return n;
}
