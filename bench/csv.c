/* csv.c - see csv.h.  A missing figure is an empty field. */
#include "csv.h"

#include <string.h>

void csv_head(FILE *to) {
    fputs("class,index,counted,outcome,error,http_status,finish,model,key,priority,tier,"
          "scheduled_s,late_ms,ttft_ms,tpot_ms,e2e_ms,longest_gap_ms,prompt_asked,prompt_tokens,"
          "cached_tokens,output_asked,output_tokens,chunks,counted_by,turn\n",
          to);
}

static void put_text(FILE *to, const char *text) {
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fprintf(to, "%s,", text);
        return;
    }
    fputc('"', to);
    for (; *text != 0; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputs("\",", to);
}

static void put_ms(FILE *to, bool exists, uint64_t ns) {
    if (exists)
        fprintf(to, "%.3f,", (double)ns / 1e6);
    else
        fputc(',', to);
}

static void put_choice(FILE *to, const choices *list, uint32_t idx) {
    put_text(to, list->n == 0 ? "" : list->items[idx].text);
}

void csv_line(FILE *to, const bench_spec *spec, uint64_t start_ns, const result *r) {
    static const char *const OUTCOMES[] = {"ok", "failed", "cut"};
    const bench_class *c = &spec->classes[r->plan.class_idx];
    uint64_t tpot_ns = 0;
    bool has_first = r->first_ns != 0;
    put_text(to, c->name);
    fprintf(to, "%llu,%d,%s,", (unsigned long long)r->plan.idx, r->is_counted,
            OUTCOMES[r->outcome]);
    put_text(to, r->error_code);
    fprintf(to, "%ld,", r->http_status);
    put_text(to, r->finish);
    put_choice(to, &c->models, r->plan.model);
    if (c->keys.n > 0) fprintf(to, "key%u", r->plan.key + 1);
    fputc(',', to);
    put_choice(to, &c->priorities, r->plan.priority);
    put_choice(to, &c->tiers, r->plan.tier);
    fprintf(to, "%.6f,", ((double)r->sched_ns - (double)start_ns) / 1e9);
    put_ms(to, r->sent_ns != 0, since_ns(r->sched_ns, r->sent_ns));
    put_ms(to, has_first, since_ns(r->sched_ns, r->first_ns));
    bool has_tpot = result_tpot_ns(r, &tpot_ns);
    put_ms(to, has_tpot, tpot_ns);
    put_ms(to, r->outcome == OUTCOME_OK, since_ns(r->sched_ns, r->end_ns));
    put_ms(to, r->n_chunks > 1, r->gap_max_ns);
    fprintf(to, "%llu,", (unsigned long long)plan_prompt_tokens(&r->plan));
    if (r->has_usage) fprintf(to, "%lld", (long long)r->n_prompt);
    fputc(',', to);
    if (r->n_cached >= 0) fprintf(to, "%lld", (long long)r->n_cached);
    fprintf(to, ",%u,%llu,%u,%s,%u\n", r->plan.n_output, (unsigned long long)result_n_output(r),
            r->n_chunks, r->has_usage ? "usage" : "chunks", r->plan.turn + 1);
}
