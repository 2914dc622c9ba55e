/* test_sampling.c - sampling parameters of a model's files: which place wins, and what is refused.
 */
#include "bound_rig.h"

static char folder[64];

static const char *in_folder(const char *name) {
    static char paths[2][160];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

static void write_text(const char *name, const char *content) {
    FILE *f = fopen(in_folder(name), "w");
    INFERD_CHECK(f != NULL && fputs(content, f) >= 0 && fclose(f) == 0);
}

static void begin(void (*add_keys)(tiny_gguf *g)) {
    snprintf(folder, sizeof folder, "/tmp/test_sampling.%d", (int)getpid());
    INFERD_CHECK(mkdir(folder, 0700) == 0);
    tiny_model_write(in_folder("m.gguf"), 1, &(tiny_model_options){.add_keys = add_keys});
}

static void end(void) {
    static const char *const names[] = {"m.gguf", "m.generation_config.json",
                                        "generation_config.json"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++) unlink(in_folder(names[i]));
    EXPECT(rmdir(folder) == 0);
}

static sampling_defaults read_defaults(void) {
    model *m = open_model(in_folder("m.gguf"));
    INFERD_CHECK(m != NULL);
    sampling_defaults d = model_about(m)->sampling;
    model_close(m);
    return d;
}

static void is_from(const sampling_defaults *d, sampling_param p, double value,
                    sampling_source from) {
    EXPECT_EQ(d->values[p], value);
    EXPECT_EQ(d->from[p], from);
}

static void opening_fails(const char *sentence) {
    model *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(model_open(&(model_options){.path = in_folder("m.gguf")}, &m, &err), INFERD_EFORMAT);
    EXPECT(m == NULL);
    EXPECT(strstr(err.text, sentence) != NULL);
    if (strstr(err.text, sentence) == NULL) printf("  %s: %s\n", sentence, err.text);
}

static void without_files_nothing_has_an_effect(void) {
    begin(NULL);
    sampling_defaults d = read_defaults();
    static const double neutral[] = {1, 1, 0, 0, 1, 0, 0};
    for (sampling_param p = 0; p < SAMPLING_PARAMS; p++)
        is_from(&d, p, neutral[p], SAMPLING_NEUTRAL);
    end();
}

static void the_folder_has_a_file(void) {
    begin(NULL);
    write_text(
        "generation_config.json",
        "{\"temperature\": 0.6, \"top_p\": null, \"top_k\": 20, \"repetition_penalty\": 1.05,"
        " \"do_sample\": true, \"max_new_tokens\": 99, \"eos_token_id\": [1, 2]}");
    sampling_defaults d = read_defaults();
    is_from(&d, SAMPLING_TEMPERATURE, 0.6, SAMPLING_SIDE_FILE);
    is_from(&d, SAMPLING_TOP_P, 1, SAMPLING_NEUTRAL);
    is_from(&d, SAMPLING_TOP_K, 20, SAMPLING_SIDE_FILE);
    is_from(&d, SAMPLING_REPETITION_PENALTY, 1.05, SAMPLING_SIDE_FILE);
    end();
}

/* One model of several in a folder; of the folder's file nothing is used then. */
static void a_file_of_the_model_is_the_only_one(void) {
    begin(NULL);
    write_text("generation_config.json", "{\"temperature\": 0.6, \"min_p\": 0.1}");
    write_text("m.generation_config.json", "{\"temperature\": 0.2, \"do_sample\": true}");
    sampling_defaults d = read_defaults();
    is_from(&d, SAMPLING_TEMPERATURE, 0.2, SAMPLING_SIDE_FILE);
    is_from(&d, SAMPLING_MIN_P, 0, SAMPLING_NEUTRAL);
    end();
}

static void no_sampling_is_greedy(void) {
    begin(NULL);
    write_text("generation_config.json", "{\"temperature\": 0.6, \"do_sample\": false}");
    sampling_defaults d = read_defaults();
    is_from(&d, SAMPLING_TEMPERATURE, 0, SAMPLING_SIDE_FILE);
    end();
}

static void add_recommended(tiny_gguf *g) {
    tiny_kv_f32(g, "general.sampling.temp", 0.5f);
    tiny_kv_bits(g, "general.sampling.top_k", GGUF_I32, (uint32_t)-1, 4);
    tiny_kv_f32(g, "general.sampling.penalty_repeat", 1.25f);
    tiny_kv_f32(g, "general.sampling.mirostat_tau", 5);
}

static void the_models_file_wins_over_the_one_beside_it(void) {
    begin(add_recommended);
    write_text("generation_config.json", "{\"temperature\": 0.6, \"top_p\": 0.5, \"top_k\": 7}");
    sampling_defaults d = read_defaults();
    is_from(&d, SAMPLING_TEMPERATURE, 0.5, SAMPLING_GGUF);
    is_from(&d, SAMPLING_TOP_P, 0.5, SAMPLING_SIDE_FILE);
    is_from(&d, SAMPLING_TOP_K, 0, SAMPLING_GGUF); // -1 is off
    is_from(&d, SAMPLING_REPETITION_PENALTY, 1.25, SAMPLING_GGUF);
    end();
}

static void add_hot(tiny_gguf *g) {
    tiny_kv_f32(g, "general.sampling.temp", 2.5f);
}

static void wrong_values_are_refused(void) {
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"{\"temperature\": 3}",
         "generation_config.json: temperature is 3; expected a number from 0 to 2"},
        {"{\"temperature\": -0.1}", "temperature is -0.1"},
        {"{\"top_p\": 0}", "top_p is 0; expected a number from 0 to 1, the first excluded"},
        {"{\"top_k\": 2.5}", "top_k is 2.5; expected a whole number from -1 to 2147483647"},
        {"{\"min_p\": \"0.1\"}", "min_p is not a number"},
        {"{\"repetition_penalty\": true}", "repetition_penalty is not a number"},
        {"[1]", "expected a JSON object"},
        {"{\"temperature\": 0.5", "generation_config.json:1: "},
        {"", "generation_config.json:1: "},
    };
    begin(NULL);
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        write_text("generation_config.json", rows[i].text);
        opening_fails(rows[i].sentence);
    }
    end();
    begin(add_hot);
    opening_fails("general.sampling.temp is 2.5; expected a number from 0 to 2");
    end();
}

static void a_request_is_filled(void) {
    sampling_defaults d;
    sample_params s = {.seed = 7};
    sampling_defaults_init(&d);
    sampling_set(&d, SAMPLING_TEMPERATURE, 0.000001, SAMPLING_REQUEST); // greedy
    sampling_set(&d, SAMPLING_TOP_P, 1e-60, SAMPLING_REQUEST);          // 0 as a float, not off
    sampling_set(&d, SAMPLING_TOP_K, -1, SAMPLING_CONFIG);
    sampling_set(&d, SAMPLING_MIN_P, NAN, SAMPLING_CONFIG);
    sampling_fill(&d, &s);
    EXPECT(s.temperature == 0 && s.top_p > 0 && s.top_p < 1e-30f && s.top_k == 0 && s.min_p == 0);
    EXPECT(s.repetition_penalty == 1 && s.seed == 7);
    is_from(&d, SAMPLING_MIN_P, 0, SAMPLING_NEUTRAL);
}

static const test_case cases[] = {
    TEST(without_files_nothing_has_an_effect),
    TEST(the_folder_has_a_file),
    TEST(a_file_of_the_model_is_the_only_one),
    TEST(no_sampling_is_greedy),
    TEST(the_models_file_wins_over_the_one_beside_it),
    TEST(wrong_values_are_refused),
    TEST(a_request_is_filled),
};
TEST_MAIN(cases)
