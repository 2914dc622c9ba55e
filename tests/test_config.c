/* test_config.c - the configuration file: what is read, and how every problem is told. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "config_options.h"
#include "digest.h"
#include "inferd/clock.h"
#include "log.h"
#include "test.h"

static char folder[64], file[96]; // of the test's own, and the configuration in it
static inferd_config *c;
static buf problems;
static inferd_err err;

static void write_file(const char *path, const char *text, size_t n, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    fchmod(fd, mode);
    close(fd);
}

static void open_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/inferd-test-XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(file, sizeof file, "%s/inferd.json", folder);
    buf_init(&problems, 0);
    c = NULL;
}

static void close_folder(void) {
    config_destroy(c);
    c = NULL;
    buf_deinit(&problems);
    unlink(file);
    rmdir(folder);
}

/* Load `text`; its problems without the folder of the file are in `problems`. */
static inferd_status load(const char *text) {
    config_destroy(c);
    c = NULL;
    buf_clear(&problems);
    write_file(file, text, strlen(text), 0600);
    return config_load(file, &c, &problems, &err);
}

#define MODELS "\"models\":[{\"name\":\"m\",\"path\":\"m.gguf\"}]"

static void example_is_read(void) {
    open_folder();
    EXPECT_EQ(
        load("{\n"
             "  \"listen\": \"127.0.0.1:8080\",\n"
             "  \"devices\": [{\"kind\": \"cpu\", \"memory\": \"2GiB\", \"threads\": \"auto\"}],\n"
             "  \"models\": [{\"name\": \"smollm2\", \"path\": \"models/smollm2.gguf\",\n"
             "               \"aliases\": [\"small\"], \"max_context\": 8192}],\n"
             "  \"tenants\": [{\"name\": \"ops\", \"keys\": [\"sk-0123456789\"], \"max_class\": "
             "\"high\"}],\n"
             "  \"limits\": {\"running_max\": 16, \"queue_timeout_ms\": 1000, \"kv_type\": "
             "\"bf16\",\n"
             "             \"body_bytes_max\": \"1.5MiB\", \"no_prefix_cache\": true},\n"
             "  \"log\": {\"json\": true, \"path\": \"inferd.log\", \"level\": \"debug\"}\n"
             "}\n"),
        INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    if (c != NULL) {
        char path[128];
        EXPECT_STR(c->listen, "127.0.0.1:8080");
        EXPECT_STR(c->source, file);
        EXPECT_EQ(c->n_devices, 1);
        EXPECT_STR(c->devices[0].kind, "cpu");
        EXPECT_EQ(c->devices[0].memory_bytes, 2ull << 30);
        EXPECT_EQ(c->devices[0].threads, 0);
        EXPECT_EQ(c->n_models, 1);
        EXPECT_STR(c->models[0].name, "smollm2");
        snprintf(path, sizeof path, "%s/models/smollm2.gguf", folder);
        EXPECT_STR(c->models[0].path, path); // relative to the file
        EXPECT_EQ(c->models[0].max_context, 8192);
        EXPECT(!c->models[0].special_tokens_in_text);
        EXPECT_EQ(config_find_model(c, "smollm2", 7), 0);
        EXPECT_EQ(config_find_model(c, "small", 5), 0);
        EXPECT_EQ(config_find_model(c, "smal", 4), -1);
        EXPECT_EQ(config_find_model(c, "small\0x", 7), -1);
        EXPECT_EQ(c->n_tenants, 1);
        EXPECT_STR(c->tenants[0].name, "ops");
        EXPECT_EQ(c->tenants[0].max_class, GEN_HIGH);
        EXPECT_EQ(c->limits.engine.running_max, 16);
        EXPECT_EQ(c->limits.engine.kv, KV_BF16);
        EXPECT(c->limits.engine.no_prefix_cache);
        EXPECT_EQ(c->limits.queue_timeout_ms, 1000);
        EXPECT_EQ(c->limits.http.body_bytes_max, 1536 * 1024);
        EXPECT(c->log.json);
        EXPECT_EQ(c->log.level, 2);
        EXPECT(config_check(c, &problems));
    }
    close_folder();
}

static void defaults_are_those_of_the_headers(void) {
    open_folder();
    EXPECT_EQ(load("{" MODELS "}"), INFERD_OK);
    EXPECT(memcmp(&c->limits.http, &http_limits_default, sizeof http_limits_default) == 0);
    EXPECT_EQ(c->limits.json.depth_max, json_limits_default.depth_max);
    EXPECT_EQ(c->limits.json.structural_max, json_limits_default.structural_max);
    EXPECT_EQ(c->limits.json.memory_max, json_limits_default.memory_max);
    EXPECT_STR(c->listen, "127.0.0.1:8080");
    EXPECT_EQ(c->n_devices, 1);
    EXPECT_STR(c->devices[0].kind, "auto");
    EXPECT_STR(c->devices[0].activations, "bf16");
    EXPECT_STR(c->devices[0].cpu_math, "fast");
    EXPECT_EQ(c->devices[0].memory_bytes, 0); // the device says how much that is
    EXPECT_EQ(c->devices[0].index, 0);
    EXPECT(c->devices[0].uuid == NULL && c->devices[0].module == NULL);
    EXPECT_EQ(c->limits.step_hang_ms, 60000);
    EXPECT_EQ(c->n_tenants, 0);
    EXPECT_EQ(c->limits.engine.running_max, 32);
    EXPECT_EQ(c->limits.queue_timeout_ms, 60000);
    EXPECT_EQ(c->limits.choices_max, 128);
    EXPECT_EQ(c->log.level, 1);
    EXPECT(c->log.path == NULL);
    EXPECT_EQ(config_tenant_of_key(c, (bytes){"", 0}), -1);
    inferd_config *other = NULL;
    EXPECT_EQ(config_for_model("models/smollm2.gguf", &other, &err), INFERD_OK);
    EXPECT_STR(other->models[0].name, "smollm2");
    EXPECT_STR(other->models[0].path, "models/smollm2.gguf");
    EXPECT_STR(other->devices[0].kind, "auto");
    EXPECT(memcmp(&other->limits, &c->limits, sizeof c->limits) == 0);
    EXPECT(config_check(other, &problems));
    EXPECT_EQ(config_tenant_of_key(other, (bytes){"sk-0123456789", 13}), -1);
    config_destroy(other);
    EXPECT_EQ(config_for_model("/a/smollm2-hf/", &other, &err), INFERD_OK);
    EXPECT_STR(other->models[0].name, "smollm2-hf");
    config_destroy(other);
    close_folder();
}

static void sizes_have_units(void) {
    static const struct {
        const char *text;
        bool valid;
        uint64_t bytes;
    } rows[] = {
        {"0", true, 0},
        {"4096", true, 4096},
        {"4096B", true, 4096},
        {"1KiB", true, 1024},
        {"2 GiB", true, 2ull << 30},
        {"1.5GiB", true, 3ull << 29},
        {"0.25KiB", true, 256},
        {"1TiB", true, 1ull << 40},
        {"16777215TiB", true, 16777215ull << 40},
        {"16777216TiB", false, 0},
        {"18446744073709551615", true, UINT64_MAX},
        {"18446744073709551616", false, 0},
        {"0.3KiB", false, 0},
        {"1.KiB", false, 0},
        {".5KiB", false, 0},
        {"1.0000001MiB", false, 0},
        {"10MB", false, 0},
        {"10M", false, 0},
        {"10kib", false, 0},
        {"-1", false, 0},
        {"+1", false, 0},
        {"", false, 0},
        {"GiB", false, 0},
        {"1e3", false, 0},
        {"1GiB2", false, 0},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        uint64_t n = 0;
        EXPECT_EQ(config_read_size(rows[i].text, &n), rows[i].valid);
        if (rows[i].valid) EXPECT(n == rows[i].bytes);
    }
}

/* One problem: the whole line behind the folder. */
static void problem_is(const char *text, const char *line) {
    char wanted[1024];
    EXPECT_EQ(load(text), INFERD_EINVAL);
    EXPECT(c == NULL);
    snprintf(wanted, sizeof wanted, "%s%s\n", file, line);
    EXPECT_STR(buf_cstr(&problems), wanted);
}

static void each_problem_has_its_line_and_path(void) {
    open_folder();
    problem_is("", ":1: column 0: the JSON ends too early");
    problem_is("nonsense", ":1: column 8: this is not valid JSON");
    problem_is("{\n\"a\": // no\n}", ":2: column 6: this is not valid JSON");
    problem_is("\xef\xbb\xbf{}", ":1: column 1: this is not valid JSON");
    problem_is("[]", ":1: expected an object, found a list");
    problem_is("{\"a\":1,\"a\":2}", ":1: column 10: a key appears twice in one object");
    problem_is("{" MODELS ",\n\"listn\": 1}",
               ":2: listn: there is no such option; did you mean \"listen\"?");
    problem_is("{" MODELS ",\n\"zzz\": 1}", ":2: zzz: there is no such option");
    problem_is("{" MODELS ",\n\"limits\":{\n\"runing_max\": 1}}",
               ":3: limits.runing_max: there is no such option; did you mean \"running_max\"?");
    problem_is("{" MODELS ",\n\"a\\nb\\u001b\": 1}", ":1: a?b?: there is no such option");
    problem_is("{\n\"models\":[\n{\"name\":\"m\"}]}", ":3: models[0].path: is required");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":0}}",
               ":1: limits.running_max: must be between 1 and 4096");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":-1}}",
               ":1: limits.running_max: must be between 1 and 4096");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":9223372036854775807}}",
               ":1: limits.running_max: must be between 1 and 4096");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":\"8\"}}",
               ":1: limits.running_max: expected a whole number, found text");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":8.5}}",
               ":1: limits.running_max: expected a whole number, found a fraction");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":null}}",
               ":1: limits.running_max: expected a whole number, found null");
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":\"10MB\"}}",
               ":1: limits.body_bytes_max: is not a size: write bytes, or a number with KiB, MiB, "
               "GiB or TiB");
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":10}}",
               ":1: limits.body_bytes_max: must be between 1024 and 1073741824");
    problem_is("{" MODELS ",\"limits\":[]}", ":1: limits: expected an object, found a list");
    problem_is(
        "{" MODELS ",\"limits\":{\"kv_type\":\"q8\"}}",
        ":1: limits.kv_type: expected one of \"f16\", \"bf16\", \"f32\", \"int8\", \"auto\"");
    problem_is("{" MODELS ",\"limits\":{\"no_prefix_cache\":1}}",
               ":1: limits.no_prefix_cache: expected true or false, found a whole number");
    problem_is("{" MODELS ",\"log\":{\"path\":\"\"}}", ":1: log.path: must have 1 to 4095 bytes");
    problem_is("{" MODELS ",\"log\":{\"path\":\"a\\tb\"}}",
               ":1: log.path: holds a control character");
    problem_is("{" MODELS ",\"devices\":[{\"threads\":\"many\"}]}",
               ":1: devices[0].threads: expected a whole number or \"auto\", found text");
    problem_is("{\"models\":{}}", ":1: models: expected a list of objects, found an object");
    close_folder();
}

static void a_gpu_is_described(void) {
    char path[128];
    open_folder();
    EXPECT_EQ(load("{" MODELS ",\"devices\":[{\"kind\":\"cuda\",\"index\":3,\"uuid\":\"GPU-1\","
                   "\"memory\":\"80GiB\",\"reserve\":\"2GiB\",\"workspace\":\"1GiB\","
                   "\"activations\":\"f16\",\"module\":\"inferd_cuda.so\",\"cublaslt\":\"/opt/lt\","
                   "\"tune_cache\":\"tune.json\"}],\"limits\":{\"step_hang_ms\":1000}}"),
              INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    if (c != NULL) {
        const config_device *d = &c->devices[0];
        EXPECT_STR(d->kind, "cuda");
        EXPECT_EQ(d->index, 3);
        EXPECT_STR(d->uuid, "GPU-1");
        EXPECT_EQ(d->memory_bytes, 80ull << 30);
        EXPECT_EQ(d->reserve_bytes, 2ull << 30);
        EXPECT_EQ(d->workspace_bytes, 1ull << 30);
        EXPECT_STR(d->activations, "f16");
        EXPECT_STR(d->cublaslt, "/opt/lt");
        snprintf(path, sizeof path, "%s/inferd_cuda.so", folder);
        EXPECT_STR(d->module, path); // relative to the file
        snprintf(path, sizeof path, "%s/tune.json", folder);
        EXPECT_STR(d->tune_cache, path);
        EXPECT_EQ(c->limits.step_hang_ms, 1000);
    }
    close_folder();
}

/* One wrong value of a device, and the sentence. */
static void wrong_device(const char *members, const char *sentence) {
    char text[512], line[512];
    snprintf(text, sizeof text, "{" MODELS ",\n\"devices\":[{%s}]}", members);
    snprintf(line, sizeof line, ":2: devices[0].%s", sentence);
    problem_is(text, line);
}

static void wrong_values_of_a_device_are_told(void) {
    static const char kinds[] = "kind: expected one of \"auto\", \"cpu\", \"cuda\"";
    static const char memory[] = "memory: must be between 4194304 and 70368744177664";
    char text[256];
    open_folder();
    wrong_device("\"kind\":\"rocm\"", kinds);
    wrong_device("\"kind\":\"CUDA\"", kinds);
    wrong_device("\"kind\":1", kinds);
    wrong_device("\"memory\":\"1MiB\"", memory);
    wrong_device("\"memory\":0", memory);
    wrong_device("\"memory\":\"80GB\"",
                 "memory: is not a size: write bytes, or a number with KiB, MiB, GiB or TiB");
    wrong_device("\"index\":64", "index: must be between 0 and 63");
    wrong_device("\"index\":-1", "index: must be between 0 and 63");
    wrong_device("\"index\":\"0\"", "index: expected a whole number, found text");
    wrong_device("\"uuid\":\"\"", "uuid: must have 1 to 47 bytes");
    snprintf(text, sizeof text, "\"uuid\":\"GPU-%044d\"", 0);
    wrong_device(text, "uuid: must have 1 to 47 bytes");
    wrong_device("\"uuid\":0", "uuid: expected text, found a whole number");
    wrong_device("\"reserve\":\"65TiB\"", "reserve: must be between 0 and 70368744177664");
    wrong_device("\"reserve\":-1", "reserve: must be between 0 and 70368744177664");
    wrong_device("\"workspace\":\"65TiB\"", "workspace: must be between 0 and 70368744177664");
    wrong_device("\"cpu_math\":\"quick\"", "cpu_math: expected one of \"fast\", \"exact\"");
    wrong_device("\"activations\":\"f32\"", "activations: expected one of \"bf16\", \"f16\"");
    wrong_device("\"module\":\"\"", "module: must have 1 to 4095 bytes");
    wrong_device("\"cublaslt\":[]", "cublaslt: expected text, found a list");
    wrong_device("\"tune_cache\":\"a\\nb\"", "tune_cache: holds a control character");
    wrong_device("\"zzzz\":\"x\"", "zzzz: there is no such option");
    wrong_device("\"modul\":\"x\"", "modul: there is no such option; did you mean \"module\"?");
    problem_is("{" MODELS ",\"limits\":{\"step_hang_ms\":999}}",
               ":1: limits.step_hang_ms: must be between 1000 and 86400000");
    problem_is(
        "{" MODELS ",\"devices\":[{\"kind\":\"cuda\"}],\n\"limits\":{\"kv_type\":\"f32\"}}",
        ":2: limits.kv_type: \"f32\" cannot be stored on a GPU (devices[0].kind is \"cuda\"): "
        "\"f16\" or \"bf16\"");
    EXPECT_EQ(
        load("{" MODELS ",\"devices\":[{\"kind\":\"cpu\"}],\"limits\":{\"kv_type\":\"f32\"}}"),
        INFERD_OK);
    close_folder();
}

static void rules_of_the_whole_are_checked(void) {
    open_folder();
    problem_is("{" MODELS ",\"devices\":[{},{}]}",
               ":1: devices: this version computes on one device; 2 are configured");
    problem_is("{\n\"models\":[]}", ":2: models: this version serves one model; 0 are configured");
    problem_is("{" MODELS ",\n\"listen\":\"0.0.0.0:80\"}",
               ":2: listen: listen 0.0.0.0:80: reachable from other machines, which needs keys");
    problem_is("{" MODELS ",\n\"tenants\":[{\"name\":\"t\"}]}",
               ":2: tenants[0]: has no key: give keys, key_file or key_env");
    problem_is(
        "{" MODELS
        ",\n\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"],\"models\":[\"m\",\"n\"]}]}",
        ":2: tenants[0].models[1]: there is no model \"n\"");
    problem_is("{" MODELS ",\n\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]},\n"
               "{\"name\":\"t\",\"keys\":[\"sk-112345678\"]}]}",
               ":3: tenants[1]: the name \"t\" is taken by tenants[0]");
    problem_is("{" MODELS ",\n\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]},\n"
               "{\"name\":\"u\",\"keys\":[\"sk-112345678\",\"sk-012345678\"]}]}",
               ":3: tenants[1]: one of its keys is also a key of tenants[0]");
    problem_is("{\"models\":[{\"name\":\"m\",\"path\":\"m\",\"aliases\":[\"m\"]}]}",
               ":1: models[0]: the name \"m\" is taken by models[0]");
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":\"1GiB\",\"json_memory_max\":\"2GiB\"}}",
               ":1: limits.body_bytes_max: 1073741824 is more than bodies_bytes_max (268435456): "
               "such a body could never be held");
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":\"200MiB\"}}",
               ":1: limits.body_bytes_max: 209715200 is more than json_memory_max (134217728): "
               "such a body could never be parsed");
    problem_is("{" MODELS ",\"limits\":{\"stream_hard_bytes\":\"1KiB\"}}",
               ":1: limits.stream_soft_bytes: 65536 is more than stream_hard_bytes (1024): "
               "a stream would be cut before it is paused");
    problem_is("{" MODELS ",\"limits\":{\"running_max\":600}}",
               ":1: limits.running_max: 600 is more than step_tokens_max (512): "
               "each running sequence needs one token of a step");
    EXPECT_EQ(load("{" MODELS ",\"listen\":\"0.0.0.0:80\",\"tenants\":[{\"name\":\"t\",\"keys\":["
                   "\"sk-012345678\"]}]}"),
              INFERD_OK);
    close_folder();
}

static void all_problems_are_collected(void) {
    open_folder();
    EXPECT_EQ(
        load("{\n\"listen\": 5,\n\"models\": [{\"name\": \"\", \"pth\": \"x\"}, {\"name\": 3}],\n"
             "\"limits\": {\"running_max\": 0, \"queue_timeout_ms\": \"1s\"}\n}"),
        INFERD_EINVAL);
    int n_lines = 0;
    for (size_t i = 0; i < problems.n; i++) n_lines += problems.p[i] == '\n';
    EXPECT_EQ(n_lines, 9);
    EXPECT(strstr(err.text, "9 problems") != NULL);
    EXPECT(strstr(buf_cstr(&problems),
                  "models[0].pth: there is no such option; did you mean \"path\"?") != NULL);
    EXPECT(strstr(buf_cstr(&problems), "models: this version serves one model; 2 are configured") !=
           NULL);
    /* A file that is all problems does not fill the screen. */
    buf text;
    buf_init(&text, 0);
    buf_add_str(&text, "{" MODELS);
    for (int i = 0; i < 1000; i++) buf_add_format(&text, ",\"x%d\":1", i);
    buf_add_str(&text, "}");
    EXPECT_EQ(load(buf_cstr(&text)), INFERD_EINVAL);
    n_lines = 0;
    for (size_t i = 0; i < problems.n; i++) n_lines += problems.p[i] == '\n';
    EXPECT_EQ(n_lines, 101);
    EXPECT(strstr(err.text, "1000 problems") != NULL);
    buf_deinit(&text);
    close_folder();
}

static void unreadable_files_are_told(void) {
    open_folder();
    buf_clear(&problems);
    EXPECT_EQ(config_load(file, &c, &problems, &err), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "No such file") != NULL);
    EXPECT_EQ(config_load(folder, &c, &problems, &err), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "not a file") != NULL);
    buf_clear(&problems);
    EXPECT_EQ(mkfifo(file, 0600), 0); // and this does not wait for a writer
    EXPECT_EQ(config_load(file, &c, &problems, NULL), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "not a file") != NULL);
    unlink(file);
    buf_clear(&problems);
    write_file(file, "{" MODELS "}", strlen("{" MODELS "}"), 0602);
    EXPECT_EQ(config_load(file, &c, &problems, NULL), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "writable by everybody") != NULL);
    EXPECT(c == NULL);
    close_folder();
}

/* -- keys -- */

static int tenant_of(const char *key) {
    return config_tenant_of_key(c, (bytes){key, strlen(key)});
}

static void keys_come_from_file_and_environment_too(void) {
    char keys[128];
    open_folder();
    snprintf(keys, sizeof keys, "%s/keys", folder);
    write_file(keys, "# of the team\n\nsk-from-file-1\r\n  sk-from-file-2  \nsk-from-file-3",
               strlen("# of the team\n\nsk-from-file-1\r\n  sk-from-file-2  \nsk-from-file-3"),
               0600);
    setenv("INFERD_TEST_KEY", "sk-from-environment", 1);
    static const char text[] =
        "{" MODELS ",\"tenants\":["
        "{\"name\":\"a\",\"keys\":[\"sk-inline-0001\",\"sk-inline-0002\",\"sk-inline-0003\"]},"
        "{\"name\":\"b\",\"key_file\":\"keys\"},"
        "{\"name\":\"c\",\"key_env\":\"INFERD_TEST_KEY\",\"max_class\":\"batch\"}]}";
    EXPECT_EQ(load(text), INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    EXPECT_EQ(tenant_of("sk-inline-0001"), 0);
    EXPECT_EQ(tenant_of("sk-inline-0002"), 0);
    EXPECT_EQ(tenant_of("sk-inline-0003"), 0);
    EXPECT_EQ(tenant_of("sk-from-file-1"), 1);
    EXPECT_EQ(tenant_of("sk-from-file-2"), 1);
    EXPECT_EQ(tenant_of("sk-from-file-3"), 1);
    EXPECT_EQ(tenant_of("sk-from-environment"), 2);
    EXPECT_EQ(c->tenants[0].max_class, GEN_NORMAL);
    EXPECT_EQ(c->tenants[2].max_class, GEN_BATCH);
    static const char *const wrong[] = {"",
                                        "sk-inline-000",
                                        "sk-inline-00011",
                                        "SK-inline-0001",
                                        "# of the team",
                                        "sk-inline-0001 ",
                                        "INFERD_TEST_KEY"};
    for (size_t i = 0; i < INFERD_COUNT(wrong); i++) EXPECT_EQ(tenant_of(wrong[i]), -1);
    chmod(keys, 0602);
    EXPECT_EQ(load(text), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "tenants[1].key_file: ") != NULL);
    EXPECT(strstr(buf_cstr(&problems), "is writable by everybody") != NULL);
    write_file(keys, "# nothing\n", 10, 0600);
    EXPECT_EQ(load(text), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "tenants[1].key_file: holds no key") != NULL);
    unlink(keys);
    unsetenv("INFERD_TEST_KEY");
    EXPECT_EQ(load(text), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "No such file") != NULL);
    EXPECT(strstr(buf_cstr(&problems), "the environment variable INFERD_TEST_KEY is not set") !=
           NULL);
    close_folder();
}

static void problems_never_show_a_key(void) {
    open_folder();
    EXPECT_EQ(load("{" MODELS
                   ",\"tenants\":[{\"name\":\"a\",\"keys\":[\"sk 0123456789\",\"short\",5,"
                   "\"sk-0123456789-\\u00e9\",\"sk-0123456789\",\"sk-0123456789\"]}]}"),
              INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "0123456789") == NULL);
    EXPECT(strstr(buf_cstr(&problems), "short") == NULL);
    EXPECT(strstr(buf_cstr(&problems), "tenants[0].keys[0]: a key must be printable ASCII") !=
           NULL);
    EXPECT(strstr(buf_cstr(&problems), "tenants[0].keys[1]: a key must have 8 to 512 bytes") !=
           NULL);
    EXPECT(strstr(buf_cstr(&problems), "tenants[0].keys[2]: expected text") != NULL);
    EXPECT(strstr(buf_cstr(&problems), "one of its keys is also a key of tenants[0]") != NULL);
    close_folder();
}

static void many_tenants_start_quickly(void) {
    enum { N_TENANTS = 10000, N_KEYS = 10 };
    buf text;
    open_folder();
    buf_init(&text, 0);
    buf_add_str(&text, "{" MODELS ",\"tenants\":[");
    for (int i = 0; i < N_TENANTS; i++) {
        buf_add_format(&text, "%s{\"name\":\"t%d\",\"keys\":[", i > 0 ? ",\n" : "", i);
        for (int k = 0; k < N_KEYS; k++)
            buf_add_format(&text, "%s\"sk-key-%d-%d\"", k > 0 ? "," : "", i, k);
        buf_add_str(&text, "]}");
    }
    buf_add_str(&text, "]}");
    uint64_t begin_us = clock_now_us();
    EXPECT_EQ(load(buf_cstr(&text)), INFERD_OK);
    uint64_t load_us = clock_now_us() - begin_us;
    EXPECT(load_us < 1000000 * 4); // about 0.1 s; sanitizers and a busy machine are slower
    begin_us = clock_now_us();
    size_t n_wrong = 0;
    for (int i = 0; i < N_TENANTS; i++) {
        char key[64];
        snprintf(key, sizeof key, "sk-key-%d-%d", i, i % N_KEYS);
        n_wrong += tenant_of(key) != i;
        n_wrong += tenant_of("sk-unknown-key") != -1;
    }
    EXPECT_EQ(n_wrong, 0);
    printf("100000 keys: %.3f s to load, %.2f us per lookup\n", (double)load_us / 1e6,
           (double)(clock_now_us() - begin_us) / (2 * N_TENANTS));
    buf_deinit(&text);
    close_folder();
}

/* -- changes -- */

static void what_needs_a_restart_is_named(void) {
    static const struct {
        const char *text, *names;
    } rows[] = {
        {"{" MODELS "}", ""},
        {"{" MODELS ",\"limits\":{\"queue_timeout_ms\":5,\"choices_max\":1,\"logit_bias_max\":0}}",
         ""},
        {"{" MODELS ",\"listen\":\"127.0.0.1:8081\"}", "listen"},
        {"{" MODELS ",\"devices\":[{\"memory\":\"4GiB\",\"threads\":3}]}",
         "devices[0].memory, devices[0].threads"},
        {"{" MODELS ",\"devices\":[{}]}", ""},
        {"{" MODELS ",\"limits\":{\"step_hang_ms\":5000}}", ""},
        {"{" MODELS ",\"devices\":[{\"kind\":\"cuda\",\"index\":1,\"uuid\":\"GPU-1\",\"reserve\":1,"
         "\"workspace\":1,\"activations\":\"f16\",\"module\":\"m\",\"cublaslt\":\"l\","
         "\"tune_cache\":\"t\"}]}",
         "devices[0].kind, devices[0].index, devices[0].uuid, devices[0].reserve, "
         "devices[0].workspace, devices[0].activations, devices[0].module, devices[0].cublaslt, "
         "devices[0].tune_cache"},
        {"{\"models\":[{\"name\":\"m\",\"path\":\"n.gguf\",\"aliases\":[\"a\"],\"max_context\":5}]"
         "}",
         "models[0].path, models[0].aliases, models[0].max_context"},
        {"{" MODELS ",\"limits\":{\"running_max\":1,\"body_bytes_max\":4096,\"kv_type\":\"f32\","
         "\"no_prefix_cache\":true}}",
         "limits.body_bytes_max, limits.running_max, limits.kv_type, limits.no_prefix_cache"},
        {"{" MODELS ",\"log\":{\"level\":\"error\",\"path\":\"x\"}}", "log.path, log.level"},
        {"{" MODELS ",\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]}]}", "tenants"},
    };
    open_folder();
    buf names;
    buf_init(&names, 0);
    EXPECT_EQ(load("{" MODELS "}"), INFERD_OK);
    inferd_config *running = c;
    c = NULL;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        EXPECT_EQ(load(rows[i].text), INFERD_OK);
        buf_clear(&names);
        EXPECT_EQ(config_needs_restart(running, c, &names), rows[i].names[0] != 0);
        EXPECT_STR(buf_cstr(&names), rows[i].names);
    }
    /* Who may ask can change at any time, as long as there is somebody. */
    EXPECT_EQ(load("{" MODELS ",\"tenants\":[{\"name\":\"u\",\"keys\":[\"sk-x12345678\"]},"
                   "{\"name\":\"v\",\"keys\":[\"sk-y12345678\"]}]}"),
              INFERD_OK);
    config_destroy(running);
    running = c;
    c = NULL;
    EXPECT_EQ(load(rows[INFERD_COUNT(rows) - 1].text), INFERD_OK);
    buf_clear(&names);
    EXPECT(!config_needs_restart(running, c, &names));
    config_destroy(running);
    buf_deinit(&names);
    close_folder();
}

static void every_option_is_described(void) {
    buf out;
    buf_init(&out, 0);
    config_describe(&out);
    static const char *const some[] = {
        "| `listen` | text |",
        "## `devices[]`",
        "| `kind` | `\"auto\"`, `\"cpu\"`, `\"cuda\"` | `\"auto\"` |",
        "| `memory` | 4MiB to 64TiB |  |",
        "| `step_hang_ms` | 1000 to 86400000 | 60000 |",
        "| `threads` | 1 to 1024 | `\"auto\"` |",
        "## `limits`",
        "| `running_max` | 1 to 4096 | 32 |",
        "| `kv_type` | `\"f16\"`, `\"bf16\"`, `\"f32\"`, `\"int8\"`, `\"auto\"` | `\"auto\"` |",
        "| `path` | a path | required |",
    };
    for (size_t i = 0; i < INFERD_COUNT(some); i++) {
        EXPECT(strstr(buf_cstr(&out), some[i]) != NULL);
        if (strstr(buf_cstr(&out), some[i]) == NULL) printf("  %s\n", some[i]);
    }
    buf_deinit(&out);
}

/* Values of Python's hashlib.blake2s; the first two are also in RFC 7693 and the reference's list.
 */
static void digests_are_blake2s(void) {
    static const struct {
        size_t key_n, n;
        const char *hex;
    } rows[] = {
        {32, 0, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49"},
        {0, 0, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9"},
        {32, 1, "40d15fee7c328830166ac3f918650f807e7e01e177258cdc0a39b11f598066f1"},
        {32, 63, "c65382513f07460da39833cb666c5ed82e61b9e998f4b0c4287cee56c3cc9bcd"},
        {32, 64, "8975b0577fd35566d750b362b0897a26c399136df07bababbde6203ff2954ed4"},
        {32, 65, "21fe0ceb0052be7fb0f004187cacd7de67fa6eb0938d927677f2398c132317a8"},
        {32, 128, "0c311f38c35a4fb90d651c289d486856cd1413df9b0677f53ece2cd9e477c60a"},
        {32, 129, "46a73a8dd3e70f59d3942c01df599def783c9da82fd83222cd662b53dce7dbdf"},
        {32, 255, "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd"},
        {0, 64, "56f34e8b96557e90c1f24b52d0c89d51086acf1b00f634cf1dde9233b8eaaa3e"},
        {0, 65, "1b53ee94aaf34e4b159d48de352c7f0661d0a40edff95a0b1639b4090e974472"},
        {0, 128, "1fa877de67259d19863a2a34bcc6962a2b25fcbf5cbecd7ede8f1fa36688a796"},
        {7, 50, "f4ecbff29283ed1bd69bbf49104a010365b30d87dd03ad39e944381cb5522391"},
    };
    unsigned char key[32], text[256], out[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1];
    for (int i = 0; i < 32; i++) key[i] = (unsigned char)i;
    for (int i = 0; i < 256; i++) text[i] = (unsigned char)i;
    digest_blake2s(out, NULL, 0, "abc", 3);
    for (int i = 0; i < DIGEST_BYTES; i++) sprintf(hex + 2 * i, "%02x", out[i]);
    EXPECT_STR(hex, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
    for (size_t r = 0; r < INFERD_COUNT(rows); r++) {
        digest_blake2s(out, key, rows[r].key_n, text, rows[r].n);
        for (int i = 0; i < DIGEST_BYTES; i++) sprintf(hex + 2 * i, "%02x", out[i]);
        EXPECT_STR(hex, rows[r].hex);
    }
    EXPECT(digest_equal(key, text, 32));
    EXPECT(!digest_equal(key, text + 1, 32));
    text[31] ^= 0x80;
    EXPECT(!digest_equal(key, text, 32));
    EXPECT(digest_equal(key, text, 31));
}

static const test_case cases[] = {
    TEST(example_is_read),
    TEST(defaults_are_those_of_the_headers),
    TEST(sizes_have_units),
    TEST(each_problem_has_its_line_and_path),
    TEST(a_gpu_is_described),
    TEST(wrong_values_of_a_device_are_told),
    TEST(rules_of_the_whole_are_checked),
    TEST(all_problems_are_collected),
    TEST(unreadable_files_are_told),
    TEST(keys_come_from_file_and_environment_too),
    TEST(problems_never_show_a_key),
    TEST(many_tenants_start_quickly),
    TEST(what_needs_a_restart_is_named),
    TEST(every_option_is_described),
    TEST(digests_are_blake2s),
};
TEST_MAIN(cases)
