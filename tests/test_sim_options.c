/* test_sim_options.c - a command line is refused where an option would change nothing or cannot be,
 * before anything runs; and what experiments say beside their tables. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "../sim/experiment.h"

enum { ARGS_MAX = 32, LINE_BYTES = 512 };

static char folder[64];

static void open_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/inferd-options-XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
}

static char *path_of(char out[LINE_BYTES], const char *name) {
    snprintf(out, LINE_BYTES, "%s/%s", folder, name);
    return out;
}

static void write_text(const char *name, const char *text) {
    char path[LINE_BYTES];
    FILE *f = fopen(path_of(path, name), "w");
    EXPECT(f != NULL);
    if (f == NULL) return;
    fputs(text, f);
    fclose(f);
}

static bool is_there(const char *name) {
    char path[LINE_BYTES];
    return access(path_of(path, name), F_OK) == 0;
}

static void close_folder(void) {
    static const char *const NAMES[] = {"a.json", "t.csv"};
    char path[LINE_BYTES];
    for (size_t i = 0; i < INFERD_COUNT(NAMES); i++) unlink(path_of(path, NAMES[i]));
    EXPECT_EQ(rmdir(folder), 0);
}

/* Words of `line`; "$/" is the folder. */
static inferd_status read_line(experiment *e, experiment_kind kind, const char *line,
                               inferd_err *err) {
    static char words[LINE_BYTES]; // paths are kept by the experiment
    char *argv[ARGS_MAX];
    int argc = 0;
    size_t n = 0;
    for (const char *p = line; *p != 0; p++) {
        if (*p == '$')
            n += (size_t)snprintf(&words[n], sizeof words - n, "%s", folder);
        else
            words[n++] = *p;
    }
    words[n] = 0;
    for (char *word = strtok(words, " "); word != NULL && argc < ARGS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;
    experiment_init(e, kind);
    *err = (inferd_err){0};
    return options_read(e, argc, argv, err);
}

static void refused(experiment_kind kind, const char *line, const char *problem) {
    experiment e;
    inferd_err err;
    if (read_line(&e, kind, line, &err) == INFERD_OK) printf("%s: not refused\n", line);
    EXPECT_STR(err.text, problem);
    experiment_deinit(&e);
}

static void what_is_said_is_taken(void) {
    experiment e;
    inferd_err err;
    EXPECT_EQ(read_line(&e, EXPERIMENT_MIX,
                        "--mix g --lambda 8 --models 4 --seconds 0.5 --seed0 9 --slo-ttft-ms 25 "
                        "--verify --json /dev/null",
                        &err),
              INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT_EQ(e.mix, WORKLOAD_MIX_G);
    EXPECT_NEAR(e.lambda, 8, 0);
    EXPECT_EQ(e.n_models, 4);
    EXPECT_NEAR(e.seconds, 0.5, 0);
    EXPECT_EQ(e.seed0, 9);
    EXPECT_EQ(e.slo_ttft_ms, 25);
    EXPECT_EQ(e.world.verify_iterations, 1);
    EXPECT_STR(e.json_path, "/dev/null");
    EXPECT_STR(e.line, "inferd-sim mix --mix g --lambda 8 --models 4 --seconds 0.5 --seed0 9 "
                       "--slo-ttft-ms 25 --verify");
    experiment_deinit(&e);
    EXPECT_EQ(read_line(&e, EXPERIMENT_MIX, "", &err), INFERD_OK);
    EXPECT_EQ(e.world.verify_iterations, WORLD_VERIFY_ITERATIONS);
    experiment_deinit(&e);
}

static void what_cannot_be_is_refused(void) {
    static const struct {
        const char *line, *problem;
    } ROWS[] = {
        {"--lengths x", "--lengths is \"x\": expected conv (default), code"},
        {"--device x", "there is no option --device"},
        {"--seed0 -1", "--seed0 is \"-1\": expected a whole number from 0 to 4294967295"},
        {"--sceonds 1", "there is no option --sceonds"},
        {"--requests 1", "there is no option --requests"},
        {"--seconds", "--seconds without a value"},
        {"--seconds 0", "--seconds is \"0\": expected a number from 0.001 to 8640000"},
        {"--rate 0", "--rate is \"0\": expected a number from 1e-06 to 1000000"},
        {"--lambda -1", "--lambda is \"-1\": expected a number from 1e-06 to 1000000"},
        {"--load 0", "--load is \"0\": expected a number from 1 to 100"},
        {"--rate 5x", "--rate is \"5x\": expected a number from 1e-06 to 1000000"},
        {"--seeds 4", "--seeds is \"4\": expected a whole number from 5 to 64"},
        {"--mix x", "--mix is \"x\": expected z, m (default), b, g, adv, pre, trace"},
        {"--load 70 --rate 1", "--rate: --load finds the rate"},
        {"--models 2.5", "--models is \"2.5\": expected a whole number from 1 to 4096"},
        {"--mix adv --lambda 1", "--lambda: ADV has rates of its own"},
        {"--mix adv --models 20", "--mix adv: workload: n_models is 20, expected 21 to 4096"},
        {"--mix trace", "--mix trace: workload: a workload of kind trace needs a trace"},
        {"--mix trace --trace $/t.csv --lambda 2", "--lambda: the arrivals are those of --trace"},
        {"--mix trace --trace $/t.csv --lengths code",
         "--lengths: the lengths are those of --trace"},
        {"--mix z --trace $/t.csv", "--trace: is of --mix trace"},
    };
    open_folder();
    write_text("t.csv", "0,10,10\n1,10,10\n");
    for (size_t i = 0; i < INFERD_COUNT(ROWS); i++)
        refused(EXPERIMENT_MIX, ROWS[i].line, ROWS[i].problem);
    close_folder();
}

static void each_command_has_its_options(void) {
    refused(EXPERIMENT_SHARES, "--rate 2", "--rate changes nothing here");
    refused(EXPERIMENT_EVICT, "--models 2", "--models changes nothing here");
    refused(EXPERIMENT_RETRY, "--load 70", "--load changes nothing here");
    refused(EXPERIMENT_MODELS, "--mix adv",
            "the search begins with one model: --mix adv: workload: n_models is 1, expected 21 to "
            "4096");
}

/* They were found out about at the end, after hours. */
static void files_are_tried_first(void) {
    char problem[LINE_BYTES];
    experiment e;
    inferd_err err;
    open_folder();
    snprintf(problem, sizeof problem, "--json is \"%s/no/a.json\": No such file or directory",
             folder);
    refused(EXPERIMENT_MIX, "--json $/no/a.json", problem);
    snprintf(problem, sizeof problem, "--json is \"%s\": Is a directory", folder);
    refused(EXPERIMENT_MIX, "--json $", problem);
    EXPECT_EQ(read_line(&e, EXPERIMENT_MIX, "--json $/a.json", &err), INFERD_OK);
    experiment_deinit(&e);
    EXPECT(!is_there("a.json"));
    write_text("a.json", "of yesterday");
    EXPECT_EQ(read_line(&e, EXPERIMENT_MIX, "--json $/a.json", &err), INFERD_OK);
    experiment_deinit(&e);
    EXPECT(is_there("a.json"));
    struct stat st;
    char path[LINE_BYTES];
    EXPECT_EQ(stat(path_of(path, "a.json"), &st), 0);
    EXPECT_EQ(st.st_size, 12);
    close_folder();
}

/* ---- experiments ---- */

static json_t *run_to_json(experiment_kind kind, const char *line) {
    char with_file[LINE_BYTES], path[LINE_BYTES];
    experiment e;
    inferd_err err;
    snprintf(with_file, sizeof with_file, "%s --json $/a.json", line);
    EXPECT_EQ(read_line(&e, kind, with_file, &err), INFERD_OK);
    EXPECT_EQ(experiment_do(&e, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    experiment_deinit(&e);
    json_t *json = json_load_file(path_of(path, "a.json"), 0, NULL);
    INFERD_CHECK(json != NULL);
    return json;
}

/* A note; NAN: there is none, or it is null. */
static double note_of(const json_t *json, const char *section, const char *name) {
    const json_t *value = json_object_get(json_object_get(json, section), name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* The figure of the last group that has it. */
static const json_t *figure_of(const json_t *json, const char *name) {
    const json_t *found = NULL, *value;
    size_t i;
    json_array_foreach(json_object_get(json, "figures"), i, value) {
        if (strcmp(json_string_value(json_object_get(value, "name")), name) == 0) found = value;
    }
    INFERD_CHECK(found != NULL);
    return found;
}

static double median_of(const json_t *json, const char *name) {
    return json_number_value(json_object_get(figure_of(json, name), "median"));
}

#define TARGETS " --slo-ttft-ms 1262 --slo-tpot-ms 60"

static void json_says_what_was_simulated(void) {
    open_folder();
    json_t *json = run_to_json(EXPERIMENT_MODELS,
                               "--seconds 20 --models 2 --lambda 0.3 --host-gb 128" TARGETS);
    const char *cell = "128 GB, 0.3/s, TTFT 1262 ms";
    EXPECT_NEAR(note_of(json, cell, "models_at_99_percent"), 2, 0);
    EXPECT_NEAR(note_of(json, cell, "models_at_90_percent"), 2, 0);
    EXPECT_NEAR(note_of(json, cell, "models_tried_max"), 2, 0);
    EXPECT_NEAR(note_of(json, cell, "ttft_ms"), 1262, 0);
    EXPECT_NEAR(note_of(json, cell, "tpot_ms"), 60, 0);
    EXPECT_NEAR(median_of(json, "2 models attain"), 100, 0);
    EXPECT_NEAR(note_of(json, "device", "memory_gb"), 80, 0);
    EXPECT_NEAR(note_of(json, "options", "seconds"), 20, 0);
    EXPECT(json_is_null(json_object_get(json_object_get(json, "options"), "step_tokens")));
    const json_t *line = json_object_get(json_object_get(json, "options"), "command");
    EXPECT(strstr(json_string_value(line), "inferd-sim models --seconds 20 ") != NULL);
    json_decref(json);
    close_folder();
}

/* Without an option each of the three has several values. */
static void models_are_a_table(void) {
    open_folder();
    json_t *json = run_to_json(EXPERIMENT_MODELS, "--seconds 30 --models 1 --slo-tpot-ms 60");
    static const char *const HOSTS[] = {"64 GB", "128 GB", "1024 GB"};
    static const char *const RATES[] = {"0.037/s", "0.1/s"};
    for (size_t i = 0; i < 6; i++) {
        char cell[LINE_BYTES];
        snprintf(cell, sizeof cell, "%s, %s, TTFT 500 ms", HOSTS[i / 2], RATES[i % 2]);
        EXPECT(!isnan(note_of(json, cell, "models_at_99_percent")));
    }
    const char *key;
    json_t *value;
    size_t n_cells = 0;
    json_object_foreach(json, key, value) n_cells += strstr(key, " GB, ") != NULL;
    EXPECT_EQ(n_cells, 12);
    json_decref(json);
    close_folder();
}

/* The median of nothing was taken for an attainment, in a table that looked like any other. */
static void nothing_is_said_of_no_requests(void) {
    experiment e;
    inferd_err err;
    EXPECT_EQ(read_line(&e, EXPERIMENT_MODELS, "--seconds 0.1 --models 2" TARGETS, &err),
              INFERD_OK);
    EXPECT_EQ(experiment_do(&e, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "1 models: no requests in 0.1 s");
    experiment_deinit(&e);
}

/* The targets are passed to the scheduler, and the load is a part of the capacity. */
static void a_load_is_a_part_of_the_capacity(void) {
    open_folder();
    json_t *json = run_to_json(EXPERIMENT_LOAD, "--seconds 20" TARGETS);
    double capacity = note_of(json, "targets", "dedicated_ends_per_s");
    EXPECT(capacity > 5 && capacity < 15);
    EXPECT_NEAR(median_of(json, "offered"), 1.2 * capacity, 0.15 * capacity); // the last group
    EXPECT(median_of(json, "attainment") < 90);
    json_decref(json);
    close_folder();
}

/* The victim and the attackers, by tenant, in each of the three runs. */
static void an_attack_is_measured_beside_the_victim_alone(void) {
    open_folder();
    json_t *json = run_to_json(EXPERIMENT_MIX, "--mix adv --seconds 6" TARGETS);
    size_t n = 0, i;
    const json_t *value;
    json_array_foreach(json_object_get(json, "figures"), i, value) {
        const char *group = json_string_value(json_object_get(value, "group"));
        const char *name = json_string_value(json_object_get(value, "name"));
        double median = json_number_value(json_object_get(value, "median"));
        if (strcmp(name, "tenant 2, had") != 0) continue;
        EXPECT_EQ(median > 0, strcmp(group, "device seconds, all attacks") == 0);
        n++;
    }
    EXPECT_EQ(n, 3);
    EXPECT_NEAR(median_of(json, "victim, done"), 100, 0);
    EXPECT(median_of(json, "victim, TPOT P99, of alone") > 0.5);
    json_decref(json);
    close_folder();
}

/* Two requests in two seconds are one a second, and not two in 600. */
static void a_trace_that_is_over_is_over(void) {
    open_folder();
    write_text("t.csv", "0,10,10\n1,10,10\n");
    json_t *json = run_to_json(EXPERIMENT_MIX, "--mix trace --trace $/t.csv" TARGETS);
    EXPECT_NEAR(median_of(json, "offered"), 1, 1e-9);
    const char *title = json_string_value(json_object_get(json, "title"));
    EXPECT(strstr(title, "1 models on h100-80, 2 s") != NULL);
    json_decref(json);
    json = run_to_json(EXPERIMENT_MIX, "--mix trace --rate 4 --trace $/t.csv" TARGETS);
    EXPECT_NEAR(median_of(json, "offered"), 4, 1e-9);
    json_decref(json);
    close_folder();
}

static const test_case cases[] = {
    TEST(what_is_said_is_taken),
    TEST(what_cannot_be_is_refused),
    TEST(each_command_has_its_options),
    TEST(files_are_tried_first),
    TEST(json_says_what_was_simulated),
    TEST(models_are_a_table),
    TEST(a_load_is_a_part_of_the_capacity),
    TEST(nothing_is_said_of_no_requests),
    TEST(an_attack_is_measured_beside_the_victim_alone),
    TEST(a_trace_that_is_over_is_over),
};
TEST_MAIN(cases)
