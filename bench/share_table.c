/* share_table.c - see share_table.h. */
#include "share_table.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES_FIRST = 64 };

void samples_add(samples *s, double v) {
    if (s->n == s->capacity) {
        size_t more = s->capacity == 0 ? SAMPLES_FIRST : 2 * s->capacity;
        INFERD_CHECK(more <= SHARE_SAMPLES_MAX);
        double *grown = realloc(s->v, more * sizeof *grown);
        INFERD_CHECK(grown != NULL);
        s->v = grown;
        s->capacity = more;
    }
    s->v[s->n++] = v;
    s->is_sorted = false;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_at(samples *s, double q) {
    if (s->n == 0) return 0;
    if (!s->is_sorted) qsort(s->v, s->n, sizeof *s->v, by_value);
    s->is_sorted = true;
    double rank = q * (double)s->n; // the smallest value with at least this many at or below it
    size_t k = (size_t)rank;
    if ((double)k < rank) k++;
    return s->v[k == 0 ? 0 : k - 1];
}

void samples_free(samples *s) {
    free(s->v);
    *s = (samples){0};
}

json_t *samples_json(samples *s) {
    return json_pack("{s:i,s:f,s:f,s:f,s:f,s:f}", "n", (int)s->n, "min", samples_at(s, 0), "p50",
                     samples_at(s, .5), "p90", samples_at(s, .9), "p99", samples_at(s, .99), "max",
                     samples_at(s, 1));
}

static const char *verdict_word(share_verdict v) {
    static const char *const words[] = {"met", "missed", "", "not measured"};
    return words[v];
}

share_row *share_table_add(share_table *t, const char *id, const char *figure, const char *goal) {
    INFERD_CHECK(t->n < SHARE_ROWS_MAX);
    share_row *r = &t->rows[t->n++];
    *r = (share_row){.figure = figure, .goal = goal, .verdict = SHARE_TOLD};
    snprintf(r->id, sizeof r->id, "%s", id);
    return r;
}

void share_table_print(FILE *to, const share_table *t) {
    fprintf(to, "| figure | goal | measured | spread | |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < t->n; i++) {
        const share_row *r = &t->rows[i];
        fprintf(to, "| %s | %s | %s | %s | %s |\n", r->figure, r->goal, r->measured, r->spread,
                verdict_word(r->verdict));
    }
}

json_t *share_table_json(const share_table *t) {
    json_t *rows = json_array();
    for (size_t i = 0; rows != NULL && i < t->n; i++) {
        const share_row *r = &t->rows[i];
        json_t *row = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "id", r->id, "figure", r->figure,
                                "goal", r->goal, "measured", r->measured, "spread", r->spread,
                                "verdict", verdict_word(r->verdict));
        json_t *values = r->values != NULL ? json_incref(r->values) : json_object();
        bool is_whole = json_object_set_new(row, "values", values) == 0;
        if (json_array_append_new(rows, row) != 0 || !is_whole) {
            json_decref(rows);
            return NULL;
        }
    }
    return rows == NULL ? NULL : json_pack("{s:o}", "rows", rows);
}

bool share_table_all_met(const share_table *t) {
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].verdict == SHARE_MISSED || t->rows[i].verdict == SHARE_FAILED) return false;
    return true;
}

void share_table_deinit(share_table *t) {
    for (size_t i = 0; i < t->n; i++) json_decref(t->rows[i].values);
    t->n = 0;
}
