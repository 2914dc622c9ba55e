/* report.c - the table; report_json.c writes the same figures as JSON. */
#include "report.h"

#include <string.h>

/* A steady time shorter than this share of the run is not meaningful. */
static const double STEADY_SHARE_MIN = 0.5;

static void print_hist(FILE *to, const char *name, const hist *h) {
    if (h->n == 0) return;
    fprintf(to, "  %-14s %10.2f %10.2f %10.2f %10.2f %10.2f %10llu\n", name,
            (double)hist_at(h, 0.5) / 1e6, (double)hist_at(h, 0.9) / 1e6,
            (double)hist_at(h, 0.99) / 1e6, (double)h->max / 1e6, hist_mean(h) / 1e6,
            (unsigned long long)h->n);
}

static void print_tally(FILE *to, const char *title, const tally *t) {
    if (t->n == 0) return;
    fprintf(to, "  %s", title);
    for (uint32_t i = 0; i < t->n; i++) {
        const tally_entry *e = &t->entries[i];
        fprintf(to, "%s %s %llu", i == 0 ? "" : ",", e->name, (unsigned long long)e->n);
        if (e->text[0] != 0) fprintf(to, " (first: %s)", e->text);
    }
    fputc('\n', to);
}

static void print_tokens(FILE *to, const group *g) {
    if (g->n_ok == 0) return;
    fprintf(to, "  prompt tokens  asked %llu", (unsigned long long)g->n_prompt_asked);
    if (g->n_by_usage > 0) {
        fprintf(to, ", reported by usage %llu", (unsigned long long)g->n_prompt);
        if (g->n_prompt_asked_of_told > 0)
            fprintf(to, " (%.3f of asked)",
                    (double)g->n_prompt / (double)g->n_prompt_asked_of_told);
        fprintf(to, ", cached %llu", (unsigned long long)g->n_cached);
    }
    fprintf(to, "\n  output tokens  asked %llu, got %llu: ", (unsigned long long)g->n_output_asked,
            (unsigned long long)g->n_output);
    if (g->n_by_chunks == 0)
        fprintf(to, "counted by usage\n");
    else if (g->n_by_usage == 0)
        fprintf(to, "counted by CHUNKS, usage was not sent\n");
    else
        fprintf(to, "counted by usage for %llu requests, by CHUNKS for %llu\n",
                (unsigned long long)g->n_by_usage, (unsigned long long)g->n_by_chunks);
    if (g->n_short > 0)
        fprintf(to, "  ! %llu outputs are shorter than asked despite ignore_eos\n",
                (unsigned long long)g->n_short);
    if (g->n_textless > 0)
        fprintf(to, "  ! %llu answers had no text; their TTFT is that of the finish chunk\n",
                (unsigned long long)g->n_textless);
}

static void print_rates(FILE *to, const stats *s, const group *g) {
    double wall_s = stats_wall_s(s), steady_s = stats_steady_s(s);
    if (wall_s <= 0) return;
    fprintf(to, "  per second     requests %.2f, ", (double)g->n_ok / wall_s);
    if (g->n_by_usage > 0) fprintf(to, "prompt tokens %.1f, ", (double)g->n_prompt / wall_s);
    fprintf(to, "output tokens %.1f", (double)g->n_output / wall_s);
    if (steady_s > STEADY_SHARE_MIN * wall_s)
        fprintf(to, " (steady %.1f)", g->n_output_steady / steady_s);
    fputc('\n', to);
    if (g->n_slo == 0) return;
    fprintf(to,
            "  goodput        %.2f requests/s, %.1f output tokens/s: %llu of %llu (%.2f %%) met "
            "the targets\n",
            (double)g->n_slo_met / wall_s, (double)g->n_slo_output / wall_s,
            (unsigned long long)g->n_slo_met, (unsigned long long)g->n_slo,
            100.0 * (double)g->n_slo_met / (double)g->n_slo);
}

static void print_group(FILE *to, const stats *s, const group *g) {
    if (g == s->groups[0])
        fprintf(to, "\nall");
    else
        fprintf(to, "\n%s %s", g->by, g->name);
    fprintf(to, ": %llu requests, %llu ok, %llu failed, %llu cut off\n",
            (unsigned long long)g->n_offered, (unsigned long long)g->n_ok,
            (unsigned long long)g->n_failed, (unsigned long long)g->n_cut);
    fprintf(to, "  %-14s %10s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max", "mean",
            "n");
    print_hist(to, "ttft", &g->ttft);
    print_hist(to, "itl", &g->itl);
    print_hist(to, "tpot", &g->tpot);
    print_hist(to, "e2e", &g->e2e);
    print_hist(to, "longest gap", &g->longest);
    print_hist(to, "sent late", &g->late);
    print_rates(to, s, g);
    print_tokens(to, g);
    print_tally(to, "finish        ", &g->finishes);
    print_tally(to, "errors        ", &g->errors);
}

static void print_warnings(FILE *to, const stats *s) {
    if (s->cpu_wall_s > 0 && s->cpu_s / s->cpu_wall_s > GENERATOR_BUSY_WARN)
        fprintf(to, "! the generator itself was busy %.0f %% of the time: figures may be its own\n",
                100 * s->cpu_s / s->cpu_wall_s);
    if (s->n_warmup_failed > 0)
        fprintf(to, "! %llu warm-up requests failed\n", (unsigned long long)s->n_warmup_failed);
    for (size_t i = 0; i < s->spec->n_classes; i++) {
        const bench_class *c = &s->spec->classes[i];
        if (c->data.n_skipped > 0)
            fprintf(to, "! class %s: %zu of %zu conversations of the data set have no human turn\n",
                    c->name, c->data.n_skipped, c->data.n + c->data.n_skipped);
    }
    if (s->n_again > 0)
        fprintf(
            to,
            "! the data set has fewer prompts than were sent: %llu of %llu requests had one that "
            "was sent before, and a prefix cache makes their figures better\n",
            (unsigned long long)s->n_again, (unsigned long long)s->groups[0]->n_offered);
    if (s->groups_dropped)
        fprintf(to, "! more than %d groups: the later ones are missing\n", GROUPS_MAX);
    if (s->is_interrupted) fprintf(to, "! interrupted: these are the figures until then\n");
}

void report_print(FILE *to, const stats *s) {
    static const char *const KINDS[] = {"all", "class", "model", "priority", "tier", "key", "turn"};
    fprintf(to, "inferd-bench: %s, seed %llu, %.2f s", s->spec->url,
            (unsigned long long)s->spec->seed, stats_wall_s(s));
    fprintf(to, " (steady %.2f s)", stats_steady_s(s));
    fprintf(to, ", generator busy %.1f %%\n",
            s->cpu_wall_s > 0 ? 100 * s->cpu_s / s->cpu_wall_s : 0.0);
    for (size_t k = 0; k < INFERD_COUNT(KINDS); k++)
        for (uint32_t i = 0; i < s->n_groups; i++)
            if (strcmp(s->groups[i]->by, KINDS[k]) == 0) print_group(to, s, s->groups[i]);
    print_warnings(to, s);
}
