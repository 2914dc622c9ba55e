/* check_main.c - the command line of check.h. */
#include <errno.h>
#include <string.h>

#include "check.h"

enum { SEEDS_DEFAULT = 200, EXIT_SOUND = 0, EXIT_FOUND = 1, EXIT_USAGE = 2 };

typedef unsigned long long ull; // for printing

typedef struct settings {
    uint64_t seed0, n_seeds;
    bool trace, quiet, keep_going;
} settings;

static bool read_number(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == 0 && text[0] != '-';
}

static bool read_settings(int argc, char **argv, settings *out) {
    *out = (settings){.seed0 = 1, .n_seeds = SEEDS_DEFAULT};
    for (int i = 0; i < argc; i++) {
        bool traces = strcmp(argv[i], "--trace") == 0;
        if (strcmp(argv[i], "--quiet") == 0) {
            out->quiet = true;
        } else if (strcmp(argv[i], "--keep-going") == 0) {
            out->keep_going = true;
        } else if (traces || strcmp(argv[i], "--seed0") == 0) {
            if (++i == argc || !read_number(argv[i], &out->seed0)) return false;
            out->trace |= traces;
        } else if (strcmp(argv[i], "--seeds") != 0 || ++i == argc ||
                   !read_number(argv[i], &out->n_seeds) || out->n_seeds == 0) {
            return false;
        }
    }
    if (out->trace) out->n_seeds = 1;
    return true;
}

static void print_sum(const check_result *s, uint64_t n_seeds, uint64_t n_failed) {
    printf("%llu worlds, %llu not sound\n", (ull)n_seeds, (ull)n_failed);
    printf("events %llu, steps %llu, requests %llu, tokens %llu, preempted %llu, loads %llu (%llu "
           "failed), evicted %llu, time slices %llu, draft tokens right %llu, cached tokens %llu, "
           "moves %llu\n",
           (ull)s->n_events, (ull)s->n_steps, (ull)s->n_requests, (ull)s->n_tokens,
           (ull)s->n_preempted, (ull)s->n_loads, (ull)s->n_failed_loads, (ull)s->n_evicted,
           (ull)s->n_slices, (ull)s->n_drafts_right, (ull)s->n_hits, (ull)s->n_moves);
    printf("copied ahead %llu, to the disk %llu, and back %llu, zeroed %llu\n",
           (ull)s->n_copied_ahead, (ull)s->n_stored, (ull)s->n_fetched, (ull)s->n_zeroed);
    printf("longest waits: %llu steps in a flood, %llu us for a time slice, %llu us of urgent "
           "work, %llu us with a guarantee, %llu us until all had ended\n",
           (ull)s->flood_steps, (ull)s->slice_us, (ull)s->urgent_us, (ull)s->guaranteed_us,
           (ull)s->drain_us);
}

int check_main(int argc, char **argv) {
    settings o;
    check_result r = {0};
    uint64_t n_failed = 0, n = 0;
    if (!read_settings(argc, argv, &o)) {
        fprintf(stderr, "check [--seeds N] [--seed0 N] [--trace SEED] [--quiet] [--keep-going]\n");
        return EXIT_USAGE;
    }
    for (; n < o.n_seeds && (n_failed == 0 || o.keep_going); n++) {
        uint64_t seed = o.seed0 + n;
        if (o.quiet) { // so that its reader knows which seed did not return
            printf("seed %llu\n", (ull)seed);
            fflush(stdout);
        }
        if (!check_seed(seed, o.trace, &r)) {
            fprintf(stderr, "no memory for a world\n");
            return EXIT_USAGE;
        }
        if (r.failed == CHECK_NONE) continue;
        n_failed++;
        printf("seed %llu at %llu us: %s: %s\n", (ull)seed, (ull)r.at_us,
               check_invariant_name(r.failed), r.text);
        printf("repeat with every event: inferd-sim check --trace %llu\n", (ull)seed);
    }
    print_sum(&r, n, n_failed);
    return n_failed == 0 ? EXIT_SOUND : EXIT_FOUND;
}
