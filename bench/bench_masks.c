/* bench_masks.c - masks of tokens on the cases of MaskBench: how long, and are they right.
 *
 *     bench_masks PIECES [CASES]        time of every mask of every instance, and the status
 *     bench_masks --bytes [CASES]       the status alone, by bytes, without a vocabulary
 *     bench_masks --complete [LINES]    {"schema": text, "text": start} gives {"text": the whole};
 *                                       "any_order": true as with --any-order
 *       --any-order  of properties; else the schema's
 *       --no-warm    one pass over the instances
 *       --cpu-time   of the thread, for a busy machine: coarser by the call, some 0.3 us
 *       --repeat N   cold passes, each with a new machine; the fastest counts at each token
 *       --only TEXT  cases with this text in their name
 *
 * A file of cases (stdin where none is named) has a line per schema: masks_case.h.  A line of
 * results goes out for each as it is done:
 *
 *     {"status": passed | refused | false_accept | false_reject, "id", "test", "at", "error",
 *      "parse_ns", "compile_ns", "cold": [ns ...], "warm": [ns ...], "accept": [ns ...],
 *      "states", "bytes"}
 *
 * `compile_ns` is JSON text to grammar and machine; `parse_ns`, of that, JSON text to JSON.  A
 * token is a mask, a look at its bit and a step; `cold` and `warm` are times of grammar_mask_get,
 * `accept` of the step.  The machine is new for each schema, and so is its cache of masks: `cold`
 * is the first pass over the instances of the schema, `warm` a second one.  An instance is accepted
 * if all its tokens are and the text may end behind them.  The first test that is wrong decides, a
 * false accept before a false reject; `at` is the number of tokens or bytes accepted of it, -1: all
 * of it.  A limit met on the way is a false reject with an error.  Single threaded. */
#include <string.h>
#include <time.h>

#include "masks_case.h"

enum { COMPLETE_BYTES_MAX = 1 << 20 };
enum { ACCEPTED = -1, BROKEN = -2 };

typedef struct samples {
    uint32_t *ns; // [n] owned
    size_t n, capacity;
    size_t at; // of the pass: before n where an earlier pass was
} samples;

typedef struct bench {
    grammar_vocab *vocab;
    uint32_t n_vocab; // 0: by bytes
    bool any_order;
    bool warm;
    int n_cold;       // passes
    const char *only; // NULL: all
    samples cold, hot, accept;
} bench;

typedef struct verdict {
    const char *status;
    int64_t test, at; // test -1: none
} verdict;

static clockid_t the_clock = CLOCK_MONOTONIC;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(the_clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "bench_masks: %s\n", what);
    exit(1);
}

/* ---- samples ---- */

static void add_sample(samples *s, uint64_t ns) {
    uint32_t value = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    if (s->at < s->n) {
        if (value < s->ns[s->at]) s->ns[s->at] = value;
        s->at++;
        return;
    }
    if (s->n == s->capacity) {
        size_t capacity = s->capacity == 0 ? 1024 : 2 * s->capacity;
        uint32_t *p = realloc(s->ns, capacity * sizeof *p);
        if (p == NULL) die("no memory for samples");
        *s = (samples){p, s->n, capacity, s->at};
    }
    s->ns[s->n++] = value;
    s->at++;
}

static void print_samples(const char *name, const samples *s) {
    printf(", \"%s\": [", name);
    for (size_t i = 0; i < s->n; i++) printf(i == 0 ? "%u" : ", %u", s->ns[i]);
    printf("]");
}

/* ---- one instance ---- */

/* How many tokens are accepted, or ACCEPTED, or BROKEN (err). */
static int64_t walk_tokens(grammar_machine *m, const mask_test *t, samples *masks, samples *accepts,
                           inferd_err *err) {
    grammar_pos p = grammar_start(m);
    int64_t end = p == 0 ? BROKEN : ACCEPTED;
    for (size_t i = 0; end == ACCEPTED && i < t->n_tokens; i++) {
        uint64_t start = now_ns();
        grammar_mask *mask = grammar_mask_get(m, p, err);
        add_sample(masks, now_ns() - start);
        if (mask == NULL) {
            end = BROKEN;
        } else if (!grammar_mask_has(mask, t->tokens[i])) {
            end = (int64_t)i;
        } else {
            start = now_ns();
            bool ok = grammar_accept(m, p, t->tokens[i], err);
            if (accepts != NULL) add_sample(accepts, now_ns() - start);
            if (!ok) end = BROKEN;
        }
        grammar_mask_release(mask);
    }
    if (end == ACCEPTED && !grammar_may_end(m, p)) end = (int64_t)t->n_tokens;
    grammar_drop(m, p);
    return end;
}

/* The same in bytes.  One by one only to find where the text ends. */
static int64_t walk_bytes(grammar_machine *m, const mask_test *t, inferd_err *err) {
    grammar_pos p = grammar_start(m);
    int64_t end = ACCEPTED;
    if (p == 0) return BROKEN;
    if (!grammar_accept_bytes(m, p, t->text, err)) {
        size_t n = 0;
        while (n < t->text.n && grammar_accept_bytes(m, p, (bytes){t->text.p + n, 1}, err)) n++;
        end = err->status == INFERD_EINVAL ? (int64_t)n : BROKEN;
        if (n == t->text.n) {
            inferd_fail(err, INFERD_EFORMAT, "accepted byte by byte, but not as a whole");
            end = BROKEN;
        }
    } else if (!grammar_may_end(m, p)) {
        end = (int64_t)t->text.n;
    }
    grammar_drop(m, p);
    return end;
}

/* ---- one case ---- */

static verdict judge(bench *b, grammar_machine *m, const mask_case *c, inferd_err *err) {
    verdict v = {"passed", -1, 0};
    for (size_t i = 0; i < c->n_tests; i++) {
        const mask_test *t = &c->tests[i];
        int64_t end =
            b->n_vocab == 0 ? walk_bytes(m, t, err) : walk_tokens(m, t, &b->cold, &b->accept, err);
        if (end == BROKEN) return (verdict){"false_reject", (int64_t)i, end};
        bool first = v.test < 0 || (!t->valid && strcmp(v.status, "false_reject") == 0);
        if (t->valid != (end == ACCEPTED) && first)
            v = (verdict){t->valid ? "false_reject" : "false_accept", (int64_t)i, end};
    }
    err->status = INFERD_OK; // "not accepted" is an answer
    return v;
}

static inferd_status compile(const bench *b, bytes schema, bool any_order, grammar_machine **out,
                             uint64_t *parse_ns, uint64_t *compile_ns, inferd_err *err) {
    const grammar_schema_kind kind = {.any_order = any_order};
    json_error_t problem;
    grammar *g = NULL;
    uint64_t start = now_ns();
    json_t *root =
        json_loadb(schema.p, schema.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    *parse_ns = now_ns() - start;
    inferd_status s = root != NULL ? grammar_of_schema(root, &kind, NULL, &g, err)
                                   : inferd_fail(err, INFERD_EINVAL, "not JSON: %s", problem.text);
    if (s == INFERD_OK) s = grammar_machine_create(g, b->vocab, out, err);
    *compile_ns = now_ns() - start;
    grammar_release(g);
    json_decref(root);
    return s;
}

static void print_text(const char *name, const char *text) {
    json_t *v = json_string(text);
    char *quoted = v == NULL ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    printf(", \"%s\": %s", name, quoted == NULL ? "\"(not UTF-8)\"" : quoted);
    free(quoted);
    json_decref(v);
}

/* What there is to say of a case, from its passes. */
typedef struct outcome {
    verdict v;
    inferd_err err;
    uint64_t parse_ns, compile_ns;
    grammar_stats stats;
    bool compiled;
} outcome;

/* A cold pass, and after the last one a warm one. */
static void pass(bench *b, const mask_case *c, bool last, outcome *o) {
    grammar_machine *m = NULL;
    uint64_t parse_ns, compile_ns;
    o->err = (inferd_err){0};
    o->compiled =
        compile(b, c->schema, b->any_order, &m, &parse_ns, &compile_ns, &o->err) == INFERD_OK;
    o->v = (verdict){"refused", -1, 0};
    if (parse_ns < o->parse_ns) o->parse_ns = parse_ns;
    if (compile_ns < o->compile_ns) o->compile_ns = compile_ns;
    if (!o->compiled) return;
    b->cold.at = b->accept.at = 0;
    o->v = judge(b, m, c, &o->err);
    for (size_t i = 0; last && b->warm && o->err.status == INFERD_OK && i < c->n_tests; i++) {
        inferd_err ignored = {0}; // of tokens that are not accepted
        walk_tokens(m, &c->tests[i], &b->hot, NULL, &ignored);
    }
    grammar_machine_stats(m, &o->stats);
    grammar_machine_release(m);
}

static void run_case(bench *b, const mask_case *c) {
    outcome o = {.parse_ns = UINT64_MAX, .compile_ns = UINT64_MAX};
    b->cold.n = b->hot.n = b->accept.n = b->hot.at = 0;
    for (int i = 0; i < b->n_cold; i++) pass(b, c, i + 1 == b->n_cold, &o);
    printf("{\"status\": \"%s\"", o.v.status);
    print_text("id", c->id);
    if (o.v.test >= 0)
        printf(", \"test\": %lld, \"at\": %lld", (long long)o.v.test, (long long)o.v.at);
    if (o.err.status != INFERD_OK) print_text("error", o.err.text);
    printf(", \"parse_ns\": %llu, \"compile_ns\": %llu", (unsigned long long)o.parse_ns,
           (unsigned long long)o.compile_ns);
    if (o.compiled) printf(", \"states\": %u, \"bytes\": %zu", o.stats.n_states, o.stats.n_bytes);
    if (o.compiled && b->n_vocab > 0) {
        print_samples("cold", &b->cold);
        print_samples("warm", &b->hot);
        print_samples("accept", &b->accept);
    }
    printf("}\n");
}

/* ---- completing ---- */

static void complete(bench *b, bytes line) {
    json_error_t problem;
    inferd_err err = {0};
    grammar_machine *m = NULL;
    uint64_t ns;
    json_t *row = json_loadb(line.p, line.n, JSON_ALLOW_NUL, &problem);
    const json_t *schema = json_object_get(row, "schema"), *text = json_object_get(row, "text");
    if (!json_is_string(schema) || !json_is_string(text)) die("a line has no schema or no text");
    bytes source = {json_string_value(schema), json_string_length(schema)};
    bytes start = {json_string_value(text), json_string_length(text)};
    buf whole = {0};
    buf_add(&whole, start.p, start.n);
    grammar_pos p = 0;
    bool any_order = json_is_true(json_object_get(row, "any_order"));
    inferd_status s = compile(b, source, any_order, &m, &ns, &ns, &err);
    if (s == INFERD_OK && (p = grammar_start(m)) == 0)
        s = inferd_fail(&err, INFERD_ENOMEM, "no memory for a position");
    if (s == INFERD_OK && !grammar_accept_bytes(m, p, start, &err)) s = err.status;
    if (s == INFERD_OK && !grammar_complete(m, p, COMPLETE_BYTES_MAX, &whole))
        s = inferd_fail(&err, INFERD_ETOOLONG, "no end within %d bytes", COMPLETE_BYTES_MAX);
    printf("{\"done\": %s", s == INFERD_OK ? "true" : "false");
    print_text(s == INFERD_OK ? "text" : "error", s == INFERD_OK ? buf_cstr(&whole) : err.text);
    printf("}\n");
    if (m != NULL) grammar_drop(m, p);
    grammar_machine_release(m);
    buf_deinit(&whole);
    json_decref(row);
}

/* ---- all of them ---- */

static void run_line(bench *b, bytes line, bool completing) {
    inferd_err err = {0};
    mask_case c;
    if (completing) {
        complete(b, line);
    } else if (mask_case_read(line, b->n_vocab, &c, &err) != INFERD_OK) {
        die(err.text);
    } else {
        if (b->only == NULL || strstr(c.id, b->only) != NULL) run_case(b, &c);
        mask_case_deinit(&c);
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    inferd_err err = {0};
    bench b = {.warm = true, .n_cold = 1};
    bool by_bytes = false, completing = false;
    const char *paths[2] = {NULL, NULL};
    int n_paths = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bytes") == 0)
            by_bytes = true;
        else if (strcmp(argv[i], "--complete") == 0)
            by_bytes = completing = true;
        else if (strcmp(argv[i], "--any-order") == 0)
            b.any_order = true;
        else if (strcmp(argv[i], "--no-warm") == 0)
            b.warm = false;
        else if (strcmp(argv[i], "--cpu-time") == 0)
            the_clock = CLOCK_THREAD_CPUTIME_ID;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            b.only = argv[++i];
        else if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0)
            b.n_cold = atoi(argv[++i]);
        else if (argv[i][0] == '-' || n_paths == 2)
            die("an option is wrong; the file begins with them");
        else
            paths[n_paths++] = argv[i];
    }
    const char *cases = paths[by_bytes ? 0 : 1];
    if (by_bytes) b.warm = false;
    if (by_bytes ? n_paths > 1 : n_paths == 0) die("no pieces; the file begins with the options");
    inferd_status s = by_bytes ? mask_bytes_vocab(&b.vocab, &err)
                               : mask_pieces_read(paths[0], &b.vocab, &b.n_vocab, &err);
    if (s != INFERD_OK) die(err.text);
    FILE *in = cases == NULL ? stdin : fopen(cases, "r");
    if (in == NULL) die("the cases cannot be read");
    if (cases == NULL && !completing) {
        printf("ready\n");
        fflush(stdout);
    }
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, in)) > 0;)
        run_line(&b, (bytes){line, (size_t)n}, completing);
    free(line);
    free(b.cold.ns);
    free(b.hot.ns);
    free(b.accept.ns);
    grammar_vocab_release(b.vocab);
    if (in != stdin) fclose(in);
    return 0;
}
