/* test_sim_options.c - a command line is refused where an option would change nothing or cannot be,
 * before anything runs; and what experiments say beside their tables. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "../sim/options.h"

enum { ARGS_MAX = 32, LINE_BYTES = 512, ALL = (1 << 28) - 1 };
static const uint32_t MIX_OPTIONS = (uint32_t)ALL & ~(uint32_t)OPTION_REQUESTS;

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
    static const char *const NAMES[] = {"a.json", "b.svg", "t.csv", "u.csv", "one.csv"};
    char path[LINE_BYTES];
    for (size_t i = 0; i < INFERD_COUNT(NAMES); i++) unlink(path_of(path, NAMES[i]));
    EXPECT_EQ(rmdir(folder), 0);
}

/* Words of `line`; "$/" is the folder. */
static inferd_status read_line(experiment *e, uint32_t taken, const char *line, inferd_err *err) {
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
    experiment_init(e);
    *err = (inferd_err){0};
    return options_read(e, "mix", taken, argc, argv, err);
}

static void refused(uint32_t taken, const char *line, const char *problem) {
    experiment e;
    inferd_err err;
    if (read_line(&e, taken, line, &err) == INFERD_OK) printf("%s: not refused\n", line);
    EXPECT_STR(err.text, problem);
    experiment_deinit(&e);
}

static void what_is_said_is_taken(void) {
    experiment e;
    inferd_err err;
    EXPECT_EQ(read_line(&e, MIX_OPTIONS,
                        "--mix g --cv 8 --models 4 --seconds 0.5 --seed0 9 --slo-scale 2.5 "
                        "--device h200-141 --verify --cache-all --svg /dev/null",
                        &err),
              INFERD_OK);
    EXPECT_STR(err.text, "");
    EXPECT_EQ(e.mix, WORKLOAD_MIX_G);
    EXPECT_NEAR(e.cv, 8, 0);
    EXPECT_EQ(e.n_models, 4);
    EXPECT_NEAR(e.seconds, 0.5, 0);
    EXPECT_EQ(e.seed0, 9);
    EXPECT_NEAR(e.slo_scale, 2.5, 0);
    EXPECT_STR(e.preset->name, "h200-141");
    EXPECT_EQ(e.verify_iterations, 1);
    EXPECT(e.cache_all && e.shape != NULL);
    EXPECT_STR(e.svg_path, "/dev/null");
    EXPECT_STR(e.line, "inferd-sim mix --mix g --cv 8 --models 4 --seconds 0.5 --seed0 9 "
                       "--slo-scale 2.5 --device h200-141 --verify --cache-all");
    experiment_deinit(&e);
    EXPECT_EQ(read_line(&e, MIX_OPTIONS, "--mix adv --attacks long,flood", &err), INFERD_OK);
    EXPECT_EQ(e.attacks, ATTACK_FLOOD | ATTACK_LONG);
    experiment_deinit(&e);
    EXPECT_EQ(read_line(&e, MIX_OPTIONS, "", &err), INFERD_OK);
    EXPECT_EQ(e.verify_iterations, WORLD_VERIFY_ITERATIONS);
    experiment_deinit(&e);
}

static void what_cannot_be_is_refused(void) {
    static const struct {
        const char *line, *problem;
    } ROWS[] = {
        {"--sceonds 1", "there is no option --sceonds"},
        {"--requests 1", "--requests changes nothing here"},
        {"--seconds", "--seconds without a value"},
        {"--seconds 0", "--seconds is \"0\", expected a number from 0.001 to 8640000"},
        {"--rate 0", "--rate is \"0\", expected a number from 1e-06 to 1000000"},
        {"--lambda -1", "--lambda is \"-1\", expected a number from 1e-06 to 1000000"},
        {"--load 0", "--load is \"0\", expected a number from 1 to 100"},
        {"--slo-scale 20000", "--slo-scale is \"20000\", expected a number from 0.01 to 1000"},
        {"--slo-scale 0", "--slo-scale is \"0\", expected a number from 0.01 to 1000"},
        {"--slo-scale 5x", "--slo-scale is \"5x\", expected a number from 0.01 to 1000"},
        {"--mix z --zipf 11", "--zipf is \"11\", expected a number from 0 to 10"},
        {"--mix g --cv 0", "--cv is \"0\", expected a number from 0.01 to 100"},
        {"--seeds 4", "--seeds is \"4\", expected a number from 5 to 64"},
        {"--mix x", "--mix is \"x\", expected z, m, b, g, adv, pre or trace"},
        {"--mix adv --attacks flood,flood",
         "--attacks is \"flood,flood\", expected some of flood,short,long,storm, each once"},
        {"--mix adv --attacks flo",
         "--attacks is \"flo\", expected some of flood,short,long,storm, each once"},
        {"--mix adv --attacks short,",
         "--attacks is \"short,\", expected some of flood,short,long,storm, each once"},
        {"--zipf 1", "--zipf is of --mix z and trace"},
        {"--mix z --cv 2", "--cv is of --mix g"},
        {"--attacks flood", "--attacks is of --mix adv"},
        {"--mix adv --lambda 1", "--lambda: ADV has rates of its own"},
        {"--slo-ttft-ms 1 --slo-tpot-ms 1 --slo-scale 2",
         "--slo-scale: --slo-ttft-ms and --slo-tpot-ms are the targets"},
        {"--mix adv --models 20", "--mix adv: workload: n_models is 20, expected 21 to 4096"},
        {"--mix trace", "--mix trace: workload: a workload of kind trace needs a trace"},
        {"--mix trace --trace $/t.csv --trace $/u.csv",
         "--mix trace: workload: 2 traces, a workload of kind trace is a single one"},
        {"--mix z --trace $/one.csv",
         "--mix mix-z: workload: trace 0 takes no time, so it cannot be repeated"},
        {"--mix z --trace $/t.csv --lambda 2", "--lambda: the arrivals are those of --trace"},
        {"--trace $/t.csv --lengths code", "--lengths: the lengths are those of --trace"},
    };
    open_folder();
    write_text("t.csv", "0,10,10\n1,10,10\n");
    write_text("u.csv", "0,10,10\n4,10,10\n");
    write_text("one.csv", "0,10,10\n");
    for (size_t i = 0; i < INFERD_COUNT(ROWS); i++)
        refused(MIX_OPTIONS, ROWS[i].line, ROWS[i].problem);
    close_folder();
}

/* Churn turns no world: no option but these changes anything, and with 64 devices it took hours. */
static void churn_takes_what_it_ends_with(void) {
    const uint32_t taken = OPTION_DEVICE | OPTION_DEVICES | OPTIONS_TOLD | OPTION_SVG;
    experiment e;
    inferd_err err;
    refused(taken, "--devices 17", "--devices is 17, expected 2 to 16");
    refused(taken, "--devices 1", "--devices is 1, expected 2 to 16");
    refused(taken, "--seconds 10", "--seconds changes nothing here");
    EXPECT_EQ(read_line(&e, taken, "--devices 16", &err), INFERD_OK);
    EXPECT_EQ(e.n_devices, 16);
    experiment_deinit(&e);
}

/* They were found out about at the end, after hours. */
static void files_are_tried_first(void) {
    char problem[LINE_BYTES];
    experiment e;
    inferd_err err;
    open_folder();
    snprintf(problem, sizeof problem, "--json %s/no/a.json: No such file or directory", folder);
    refused(MIX_OPTIONS, "--json $/no/a.json", problem);
    snprintf(problem, sizeof problem, "--svg %s: Is a directory", folder);
    refused(MIX_OPTIONS, "--json $/a.json --svg $", problem);
    snprintf(problem, sizeof problem, "--json and --svg are the same file, %s/a.json", folder);
    refused(MIX_OPTIONS, "--json $/a.json --svg $/./a.json", problem);
    EXPECT(!is_there("a.json"));
    write_text("a.json", "of yesterday");
    EXPECT_EQ(read_line(&e, MIX_OPTIONS, "--json $/a.json --svg $/b.svg", &err), INFERD_OK);
    experiment_deinit(&e);
    EXPECT(is_there("a.json") && !is_there("b.svg"));
    struct stat st;
    char path[LINE_BYTES];
    EXPECT_EQ(stat(path_of(path, "a.json"), &st), 0);
    EXPECT_EQ(st.st_size, 12);
    close_folder();
}

/* ---- experiments ---- */

static char *read_whole(const char *name) {
    char path[LINE_BYTES];
    buf text;
    int c;
    buf_init(&text, 0);
    FILE *f = fopen(path_of(path, name), "r");
    EXPECT(f != NULL);
    while (f != NULL && (c = fgetc(f)) != EOF) buf_add_char(&text, (char)c);
    if (f != NULL) fclose(f);
    char *out = strdup(buf_cstr(&text));
    buf_deinit(&text);
    return out;
}

/* The number behind `key` in the text; -1: there is none. */
static double number_of(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at != NULL ? strtod(at + strlen(key), NULL) : -1;
}

static char *run_to_json(inferd_status (*command)(const experiment *e, inferd_err *err),
                         const char *line) {
    char with_file[LINE_BYTES];
    experiment e;
    inferd_err err;
    snprintf(with_file, sizeof with_file, "%s --json $/a.json", line);
    EXPECT_EQ(read_line(&e, (uint32_t)ALL, with_file, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    if (e.n_models > 0) e.models_max = e.n_models;
    EXPECT_EQ(command(&e, &err), INFERD_OK);
    EXPECT_STR(err.text, "");
    experiment_deinit(&e);
    return read_whole("a.json");
}

#define TARGETS " --slo-ttft-ms 1262 --slo-tpot-ms 60"

static void json_says_what_was_simulated(void) {
    open_folder();
    char *json = run_to_json(experiment_models, "--seconds 20 --models 2 --lambda 0.3" TARGETS);
    EXPECT(strstr(json, "\"models_at_99_percent\": 2") != NULL);
    EXPECT(strstr(json, "\"models_at_90_percent\": 2") != NULL);
    EXPECT(strstr(json, "\"models_tried_max\": 2") != NULL);
    EXPECT(strstr(json, "\"targets\": {\"ttft_ms\": 1262, \"tpot_ms\": 60}") != NULL);
    EXPECT(strstr(json, "\"device\": {\"name\": \"h100-80\", \"memory_gb\": 80, ") != NULL);
    EXPECT(strstr(json, "\"model\": {\"name\": \"8b\", ") != NULL);
    EXPECT(strstr(json, "\"options\": {\"command\": \"inferd-sim mix --seconds 20 ") != NULL);
    EXPECT(strstr(json, "\"seconds\": 20, ") != NULL && strstr(json, "\"zipf\": null") != NULL);
    free(json);
    json = run_to_json(experiment_rate, "--seconds 5 --mix g --models 1 --lambda 4" TARGETS);
    EXPECT(number_of(json, "\"rate_at_90_percent\": ") >=
           number_of(json, "\"rate_at_99_percent\": "));
    EXPECT(number_of(json, "\"rate_at_99_percent\": ") >= 0);
    free(json);
    close_folder();
}

/* The median of nothing was taken for an attainment, in a table that looked like any other. */
static void nothing_is_said_of_no_requests(void) {
    experiment e;
    inferd_err err;
    EXPECT_EQ(read_line(&e, (uint32_t)ALL, "--seconds 0.1 --models 2" TARGETS, &err), INFERD_OK);
    e.models_max = 2;
    EXPECT_EQ(experiment_models(&e, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "1 models: no requests in 0.1 s");
    EXPECT_EQ(experiment_rate(&e, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "rate x 0.25: no requests in 0.1 s");
    experiment_deinit(&e);
}

/* A target of 32 bits was cut: 20000 times the base was next to nothing. */
static void targets_that_cannot_be_are_refused(void) {
    experiment e;
    slo_targets t;
    inferd_err err;
    EXPECT_EQ(read_line(&e, (uint32_t)ALL, "--device cpu-small --shape 1b --slo-scale 1000", &err),
              INFERD_OK);
    e.slo_scale = 1e9; // as a slower device would want
    EXPECT_EQ(experiment_targets(&e, false, &t, &err), INFERD_EINVAL);
    EXPECT(strstr(err.text, "--slo-scale is 1e+09: a TTFT of ") != NULL);
    EXPECT(strstr(err.text, " ms, expected 0.001 to 4.29497e+06") != NULL);
    experiment_deinit(&e);
}

/* Each changes what is offered, and nothing else of the line does. */
static void parameters_of_the_mixes_change_them(void) {
    static const struct {
        const char *a, *b, *figure;
    } ROWS[] = {
        {"--mix z --zipf 0.5 --models 6 --seconds 20", "--mix z --zipf 1.5 --models 6 --seconds 20",
         "\"model 0, had\""},
        {"--mix g --cv 1 --models 2 --seconds 40", "--mix g --cv 8 --models 2 --seconds 40",
         "\"offered\""},
        {"--mix adv --attacks short --seconds 4", "--mix adv --attacks long --seconds 4",
         "\"tenant 2, had\""},
    };
    open_folder();
    for (size_t i = 0; i < INFERD_COUNT(ROWS); i++) {
        char line[LINE_BYTES];
        snprintf(line, sizeof line, "%s%s", ROWS[i].a, TARGETS);
        char *a = run_to_json(experiment_mix, line);
        snprintf(line, sizeof line, "%s%s", ROWS[i].b, TARGETS);
        char *b = run_to_json(experiment_mix, line);
        const char *in_a = strstr(a, ROWS[i].figure), *in_b = strstr(b, ROWS[i].figure);
        for (const char *p = in_a; p != NULL; p = strstr(p + 1, ROWS[i].figure)) in_a = p;
        for (const char *p = in_b; p != NULL; p = strstr(p + 1, ROWS[i].figure)) in_b = p;
        EXPECT(in_a != NULL && in_b != NULL);
        if (in_a != NULL && in_b != NULL) EXPECT(strncmp(in_a, in_b, strcspn(in_a, "}")) != 0);
        if (i == 2) EXPECT(strstr(a, "\"adv, short\"") != NULL && strstr(b, "\"adv, long\""));
        free(a);
        free(b);
    }
    close_folder();
}

/* Two requests in two seconds are one a second, and not two in 600. */
static void a_trace_that_is_over_is_over(void) {
    open_folder();
    write_text("t.csv", "0,10,10\n1,10,10\n");
    char *json = run_to_json(experiment_mix, "--mix trace --trace $/t.csv" TARGETS);
    EXPECT_NEAR(number_of(json, "\"name\": \"offered\", \"unit\": \"1/s\", \"median\": "), 1, 1e-9);
    EXPECT(strstr(json, "1 models on 1 x h100-80, 2 s") != NULL);
    free(json);
    json = run_to_json(experiment_mix, "--mix trace --rate 4 --trace $/t.csv" TARGETS);
    EXPECT_NEAR(number_of(json, "\"name\": \"offered\", \"unit\": \"1/s\", \"median\": "), 4, 1e-9);
    free(json);
    close_folder();
}

/* 1/s and 1/4 s: the second was left out, so that there were fewer requests than asked for. */
static void all_traces_count_for_speed(void) {
    open_folder();
    write_text("t.csv", "0,10,10\n1,10,10\n");
    write_text("u.csv", "0,10,10\n4,10,10\n");
    char *json = run_to_json(experiment_speed, "--trace $/t.csv --trace $/u.csv --requests 100");
    EXPECT_NEAR(number_of(json, "\"name\": \"requests\", \"unit\": \"\", \"median\": "), 100, 1);
    EXPECT_NEAR(number_of(json, "\"name\": \"offered\", \"unit\": \"1/s\", \"median\": "), 1.25,
                0.02);
    EXPECT(strstr(json, "\"goal_per_minute\": 1000000") != NULL);
    free(json);
    json = run_to_json(experiment_speed, "--requests 100 --models 2 --lambda 3");
    EXPECT_NEAR(number_of(json, "\"name\": \"requests\", \"unit\": \"\", \"median\": "), 100, 30);
    free(json);
    close_folder();
}

static const test_case cases[] = {
    TEST(what_is_said_is_taken),
    TEST(what_cannot_be_is_refused),
    TEST(churn_takes_what_it_ends_with),
    TEST(files_are_tried_first),
    TEST(json_says_what_was_simulated),
    TEST(nothing_is_said_of_no_requests),
    TEST(targets_that_cannot_be_are_refused),
    TEST(parameters_of_the_mixes_change_them),
    TEST(a_trace_that_is_over_is_over),
    TEST(all_traces_count_for_speed),
};
TEST_MAIN(cases)
