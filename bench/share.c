/* share.c - see share.h: options, the rows in their order, and code shared by the rows. */
#include "share.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "report.h"
#include "result.h"

enum {
    COPY_BYTES = 64 << 20,
    COPY_ROUNDS = 9,
    COPY_THREADS_MAX = 64,
    WINDOW_S = 10,
    WINDOW_S_QUICK = 4,
    PATCH_TRIES = 20, // while another change is in progress
    PATCH_TRY_MS = 100,
    TOKEN_ID_LO = 1000, // normal words in common vocabularies
    TOKEN_ID_HI = 40000
};

static const struct {
    const char *id, *figure;
    share_measure *measure;
} rows[] = {
    {"switch", "switch to another model", share_measure_switch},
    {"warm", "switch to a warm model", share_measure_warm},
    {"cold", "switch to a cold model", share_measure_cold},
    {"gap", "gaps of others during a load", share_measure_gap},
    {"urgent", "urgent arrival to its first iteration", share_measure_urgent},
    {"shares", "share error at 10 s", share_measure_shares},
    {"guarantee", "a guaranteed tenant beside a flood", share_measure_guarantee},
    {"weights", "weights 1 : 3 of two tenants of one model", share_measure_weights},
    {"beside", "urgent beside shares of 100 %", share_measure_beside},
    {"inversion", "urgent, not in memory, beside batch work", share_measure_inversion},
    {"roundrobin", "three models that fit, after a fourth", share_measure_roundrobin},
    {"burst", "held / used pages after a burst", share_measure_burst},
    {"kv", "calls on the way of keys and values", share_measure_kv},
};

share_options share_options_default(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return (share_options){.rows = "warm",
                           .threads = n > 0 ? (uint32_t)n : 1,
                           .seed = 1,
                           .id_lo = TOKEN_ID_LO,
                           .id_hi = TOKEN_ID_HI,
                           .window_s = WINDOW_S};
}

/* ---- code shared by the rows ---- */

void share_sleep_ms(double ms) {
    struct timespec t = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (double)(time_t)(ms / 1e3)) * 1e6)};
    nanosleep(&t, NULL);
}

uint64_t share_seed(share *s) {
    return (s->o->seed << 40) + s->n_asked++;
}

uint32_t share_window_s(const share *s) {
    return s->o->is_quick ? u32_min(s->o->window_s, WINDOW_S_QUICK) : s->o->window_s;
}

inferd_status share_state(share *s, json_t **out, inferd_err *err) {
    return share_client_json(&s->admin, "GET", "/admin/state", NULL, out, err);
}

json_t *share_state_model(json_t *state, const char *model) {
    json_t *models = json_object_get(state, "models");
    for (size_t i = 0; i < json_array_size(models); i++) {
        json_t *m = json_array_get(models, i);
        const char *name = json_string_value(json_object_get(m, "name"));
        if (name != NULL && strcmp(name, model) == 0) return m;
    }
    return NULL;
}

json_t *share_state_device(json_t *state) {
    return json_array_get(json_object_get(state, "devices"), 0);
}

inferd_status share_number(json_t *object, const char *path, double *out, inferd_err *err) {
    char name[64];
    for (const char *at = path; object != NULL && *at != 0;) {
        size_t n = strcspn(at, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        object = json_object_get(object, name);
        at += n + (at[n] == '.');
    }
    if (!json_is_number(object))
        return inferd_fail(err, INFERD_EFORMAT, "the state has no number \"%s\"", path);
    *out = json_number_value(object);
    return INFERD_OK;
}

inferd_status share_charged(json_t *account, const char *member, const char *name,
                            const char *number, double *out, inferd_err *err) {
    json_t *flows = json_object_get(account, "principals");
    inferd_status status = INFERD_OK;
    *out = 0;
    if (!json_is_array(flows))
        return inferd_fail(err, INFERD_EFORMAT, "the state has no account.principals");
    for (size_t i = 0; status == INFERD_OK && i < json_array_size(flows); i++) {
        json_t *p = json_array_get(flows, i);
        const char *is = json_string_value(json_object_get(p, member));
        double value = 0;
        if (is == NULL || strcmp(is, name) != 0) continue;
        status = share_number(p, number, &value, err);
        *out += value;
    }
    return status;
}

inferd_status share_patch(share *s, const char *kind, const char *name, const char *body,
                          inferd_err *err) {
    inferd_status status = INFERD_EBUSY;
    for (int i = 0; i < PATCH_TRIES && status == INFERD_EBUSY; i++) {
        if (i > 0) share_sleep_ms(PATCH_TRY_MS);
        status = share_client_object(&s->admin, "PATCH", kind, name, "", body, err);
    }
    return status;
}

inferd_status share_output_fitting(share *s, const char *model, uint32_t n_prompt, uint32_t n,
                                   uint32_t *out, inferd_err *err) {
    json_t *state = NULL;
    double context = 0;
    inferd_status status = share_state(s, &state, err);
    if (status == INFERD_OK)
        status = share_number(share_state_model(state, model), "context", &context, err);
    json_decref(state);
    if (status == INFERD_OK && context <= n_prompt)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "%s has a context of %.0f tokens, expected more than %u", model, context,
                           n_prompt);
    if (status == INFERD_OK) *out = u32_min(n, (uint32_t)context - n_prompt);
    return status;
}

inferd_status share_first_token(share *s, const char *model, const char *tier, uint32_t n_prompt,
                                share_answer *answer, double *out_ms, inferd_err *err) {
    share_ask ask = {.model = model, .tier = tier, .n_prompt = n_prompt, .n_output = 1};
    ask.seed = share_seed(s);
    inferd_status status = share_client_ask(&s->user, &ask, answer, err);
    if (status == INFERD_OK) *out_ms = (double)since_ns(answer->sent_ns, answer->first_ns) / 1e6;
    return status;
}

/* ---- the machine's copy rate ---- */

typedef struct copier {
    pthread_t thread;
    pthread_barrier_t *barrier;
    char *from, *to;
} copier;

static void *copier_main(void *ctx) {
    copier *c = ctx;
    for (int i = 0; i < COPY_ROUNDS + 1; i++) { // the first round touches the memory
        pthread_barrier_wait(c->barrier);
        memcpy(c->to, c->from, COPY_BYTES);
        pthread_barrier_wait(c->barrier);
    }
    return NULL;
}

/* Runs the copy threads; all of `n` have their memory. */
static double copy_all(copier *copiers, uint32_t n, pthread_barrier_t *barrier) {
    samples rates = {0};
    for (int i = 0; i < COPY_ROUNDS + 1; i++) {
        pthread_barrier_wait(barrier);
        uint64_t from_ns = bench_now_ns();
        pthread_barrier_wait(barrier);
        if (i > 0)
            samples_add(&rates, 2e9 * COPY_BYTES * n / (double)since_ns(from_ns, bench_now_ns()));
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(copiers[i].thread, NULL);
    double median = samples_at(&rates, .5);
    samples_free(&rates);
    return median;
}

inferd_status share_copy_rate(uint32_t threads, double *out_bytes_per_s, inferd_err *err) {
    copier copiers[COPY_THREADS_MAX] = {0};
    uint32_t n = u32_min(threads, COPY_THREADS_MAX);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, n + 1);
    bool good = true;
    for (uint32_t i = 0; i < n; i++) {
        copiers[i] =
            (copier){.barrier = &barrier, .from = malloc(COPY_BYTES), .to = malloc(COPY_BYTES)};
        good = good && copiers[i].from != NULL && copiers[i].to != NULL;
        if (good) memset(copiers[i].from, (int)i + 1, COPY_BYTES);
    }
    for (uint32_t i = 0; good && i < n; i++) // with a missing thread the others would wait forever
        INFERD_CHECK(pthread_create(&copiers[i].thread, NULL, copier_main, &copiers[i]) == 0);
    if (good) *out_bytes_per_s = copy_all(copiers, n, &barrier);
    for (uint32_t i = 0; i < n; i++) {
        free(copiers[i].from);
        free(copiers[i].to);
    }
    pthread_barrier_destroy(&barrier);
    return good ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory to copy");
}

/* ---- the run ---- */

static bool names(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; *at != 0; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && memcmp(at, word, n) == 0) return true;
    return false;
}

static inferd_status rows_check(const char *list, inferd_err *err) {
    char word[64];
    for (const char *at = list; *at != 0; at += strcspn(at, ","), at += *at == ',') {
        bool known = false;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        for (size_t i = 0; i < INFERD_COUNT(rows); i++)
            known = known || strcmp(rows[i].id, word) == 0;
        if (!known) return inferd_fail(err, INFERD_EINVAL, "rows: there is no row \"%s\"", word);
    }
    return *list != 0 ? INFERD_OK : inferd_fail(err, INFERD_EINVAL, "rows names no row");
}

static inferd_status models_read(share *s, inferd_err *err) {
    const char *at = s->o->models == NULL ? "" : s->o->models;
    for (; *at != 0; at += strcspn(at, ","), at += *at == ',') {
        if (s->n_models == SHARE_MODELS_MAX)
            return inferd_fail(err, INFERD_EINVAL, "models names more than %d", SHARE_MODELS_MAX);
        s->models[s->n_models] = strndup(at, strcspn(at, ","));
        if (s->models[s->n_models++] == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for a name");
    }
    if (s->n_models >= 3) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "models names %u models, expected at least 3: a,b,c",
                       s->n_models);
}

/* For a row that cannot be measured, the table shows the reason; the other rows still run. */
static void measure(share *s, size_t i) {
    inferd_err why = {0};
    fprintf(stderr, "inferd-bench share: %s\n", rows[i].id);
    if (rows[i].measure(s, &why) == INFERD_OK) return;
    share_row *r = share_table_add(&s->table, rows[i].id, rows[i].figure, "");
    snprintf(r->measured, sizeof r->measured, "%.390s", why.text);
    r->verdict = SHARE_FAILED;
}

static inferd_status tell(share *s, inferd_err *err) {
    const char *path = s->o->json_path;
    share_table_print(path != NULL && strcmp(path, "-") == 0 ? stderr : stdout, &s->table);
    if (path == NULL) return INFERD_OK;
    json_t *root = share_table_json(&s->table);
    if (root == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the report");
    inferd_status status = report_write(root, NULL, path, err);
    json_decref(root);
    return status;
}

inferd_status share_run(const share_options *o, bool *out_all_met, inferd_err *err) {
    share s = {.o = o, .to = {o->url, o->key, o->id_lo, o->id_hi}};
    inferd_status status = rows_check(o->rows, err);
    if (status == INFERD_OK && o->url == NULL)
        status = inferd_fail(err, INFERD_EINVAL, "url is missing");
    if (status == INFERD_OK) status = models_read(&s, err);
    if (status == INFERD_OK) status = share_client_init(&s.user, s.to, err);
    if (status == INFERD_OK)
        status = share_client_init(&s.admin, (share_server){o->url, o->admin_key, 0, 0}, err);
    for (size_t i = 0; status == INFERD_OK && i < INFERD_COUNT(rows); i++)
        if (names(o->rows, rows[i].id)) measure(&s, i);
    if (status == INFERD_OK) status = tell(&s, err);
    *out_all_met = share_table_all_met(&s.table);
    share_table_deinit(&s.table);
    share_client_deinit(&s.user);
    share_client_deinit(&s.admin);
    for (uint32_t i = 0; i < s.n_models; i++) free(s.models[i]);
    return status;
}
