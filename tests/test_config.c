/* test_config.c - the configuration file: what is read, and how every problem is told. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "config_edit.h"
#include "config_options.h"
#include "digest.h"
#include "inferd/clock.h"
#include "log.h"
#include "test.h"

static char folder[64], file[96]; // of the test's own, and the configuration in it
static inferd_config *c;
static buf problems;
static inferd_err err;

#define GIB (1ull << 30)

static void write_file(const char *path, const char *text, size_t n, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    fchmod(fd, mode);
    close(fd);
}

static char *read_whole(const char *path, size_t *n) {
    struct stat st = {0};
    int fd = open(path, O_RDONLY);
    EXPECT(fd >= 0 && fstat(fd, &st) == 0);
    char *text = calloc(1, (size_t)st.st_size + 1);
    *n = (size_t)st.st_size;
    EXPECT(fd >= 0 && read(fd, text, *n) == (ssize_t)*n);
    if (fd >= 0) close(fd);
    return text;
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
             "             \"body_bytes_max\": \"1.5MiB\"},\n"
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
        EXPECT_EQ(c->limits.queue_timeout_ms, 1000);
        EXPECT_EQ(c->limits.http.body_bytes_max, 1536 * 1024);
        EXPECT(c->log.json);
        EXPECT_EQ(c->log.level, 2);
        EXPECT(config_check(c, &problems));
    }
    close_folder();
}

static bool same_share(const share_spec *a, const share_spec *b) {
    return a->policy == b->policy && a->percent == b->percent && a->n_devices == b->n_devices;
}

static bool same_policy(const model_policy *a, const model_policy *b) {
    return a->min_bytes == b->min_bytes && a->max_bytes == b->max_bytes && a->prio == b->prio &&
           a->weight == b->weight && same_share(&a->share, &b->share) &&
           a->slo_ttft_ms == b->slo_ttft_ms && a->slo_tpot_ms == b->slo_tpot_ms &&
           a->pin == b->pin && a->keep_alive_us == b->keep_alive_us &&
           a->replicas_min == b->replicas_min && a->replicas_max == b->replicas_max;
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
    EXPECT_STR(c->devices[0].cpu_math, "fast");
    EXPECT_EQ(c->devices[0].memory_bytes, 0); // the device says how much that is
    EXPECT_EQ(c->devices[0].gpu.index, 0);
    EXPECT(c->devices[0].gpu.uuid == NULL);
    EXPECT_EQ(c->limits.step_hang_ms, 60000);
    EXPECT_EQ(c->limits.watchdog_s, 30);
    EXPECT_EQ(c->n_tenants, 0);
    EXPECT_EQ(c->limits.engine.running_max, 32);
    EXPECT_EQ(c->limits.queue_timeout_ms, 60000);
    EXPECT_EQ(c->log.level, 1);
    EXPECT(c->log.path == NULL);
    EXPECT(c->devices[0].name == NULL && c->devices[0].cores == NULL);
    EXPECT(c->host_arena_bytes == CONFIG_HOST_ARENA_AUTO);
    EXPECT(c->kv_disk_bytes == 0 && c->state_dir == NULL && c->admin.listen == NULL);
    EXPECT_EQ(c->admin.n_keys, 0);
    EXPECT_EQ(c->policy.urgent_percent, 5);
    EXPECT_EQ(c->policy.tpot_ms, 40);
    EXPECT(!c->policy.zero_on_tenant_change);
    const model_policy usual = {.prio = GEN_NORMAL,
                                .weight = 1,
                                .share = {SHARE_BESTEFFORT, 0, 1},
                                .keep_alive_us = POLICY_NEVER,
                                .replicas_min = 1,
                                .replicas_max = 1};
    EXPECT(same_policy(&c->models[0].policy, &usual));
    EXPECT_EQ(config_tenant_of_key(c, (bytes){"", 0}), -1);
    inferd_config *other = NULL;
    EXPECT_EQ(config_for_model("models/smollm2.gguf", &other, &err), INFERD_OK);
    EXPECT_STR(other->models[0].name, "smollm2");
    EXPECT_STR(other->models[0].path, "models/smollm2.gguf");
    EXPECT_STR(other->devices[0].kind, "auto");
    EXPECT(memcmp(&other->limits, &c->limits, sizeof c->limits) == 0);
    EXPECT(same_policy(&other->models[0].policy, &usual));
    EXPECT(other->host_arena_bytes == CONFIG_HOST_ARENA_AUTO);
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
        {"10MB", true, 10000000},
        {"1.5GB", true, 1500000000},
        {"2 gb", true, 2000000000},
        {"1Kb", true, 1000},
        {"64TB", true, 64000000000000},
        {"10kib", true, 10240},
        {"2Gi", true, 2ull << 30},
        {"2gi", true, 2ull << 30},
        {"10M", false, 0},
        {"10 k", false, 0},
        {"2GG", false, 0},
        {"2iB", false, 0},
        {"2GiBB", false, 0},
        {"0.0005KB", false, 0},
        {"18446745TB", false, 0},
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
    EXPECT_STR(config_write_size(24ull << 30).text, "24GiB");
    EXPECT_STR(config_write_size(24000000000).text, "24GB");
    EXPECT_STR(config_write_size(1500000000).text, "1500MB");
    EXPECT_STR(config_write_size(500 << 10).text, "500KiB"); // and not 512KB
    EXPECT_STR(config_write_size((2ull << 30) + 1).text, "2147483649");
    EXPECT_STR(config_write_size(1000).text, "1000");
    EXPECT_STR(config_write_size(0).text, "0");
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
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":\"10 megs\"}}",
               ":1: limits.body_bytes_max: is not a size: write bytes, or a number with KiB, MiB, "
               "GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000)");
    problem_is(
        "{" MODELS ",\"limits\":{\"body_bytes_max\":\"10M\"}}",
        ":1: limits.body_bytes_max: is ambiguous without \"B\": write GB for powers of 1000, "
        "GiB for powers of 1024");
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":\"2000.5B\"}}",
               ":1: limits.body_bytes_max: is not a whole number of bytes below 2^64");
    problem_is("{" MODELS ",\"limits\":{\"body_bytes_max\":10}}",
               ":1: limits.body_bytes_max: must be between 1024 and 1073741824");
    problem_is("{" MODELS ",\"limits\":[]}", ":1: limits: expected an object, found a list");
    problem_is("{" MODELS ",\"limits\":{\"kv_type\":\"q8\"}}",
               ":1: limits.kv_type: expected one of \"f16\", \"bf16\", \"f32\", \"int8\", "
               "\"int16\", \"auto\"");
    problem_is("{" MODELS ",\"log\":{\"json\":1}}",
               ":1: log.json: expected true or false, found a whole number");
    problem_is("{" MODELS ",\"log\":{\"path\":\"\"}}", ":1: log.path: must have 1 to 4095 bytes");
    problem_is("{" MODELS ",\"log\":{\"path\":\"a\\tb\"}}",
               ":1: log.path: holds a control character");
    problem_is("{" MODELS ",\"devices\":[{\"threads\":\"many\"}]}",
               ":1: devices[0].threads: expected a whole number or \"auto\", found text");
    problem_is("{\"models\":{}}", ":1: models: expected a list of objects, found an object");
    close_folder();
}

static void a_gpu_is_named_by_number_or_uuid(void) {
    open_folder();
    EXPECT_EQ(load("{" MODELS ",\"devices\":[{\"kind\":\"cuda\",\"gpu\":3,\"memory\":\"80GiB\"},"
                   "{\"kind\":\"cuda\",\"gpu\":\"gpu-1\"}]}"),
              INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    if (c != NULL) {
        const config_device *d = c->devices;
        EXPECT_STR(d[0].kind, "cuda");
        EXPECT_EQ(d[0].gpu.index, 3);
        EXPECT(d[0].gpu.uuid == NULL);
        EXPECT_EQ(d[0].memory_bytes, 80ull << 30);
        EXPECT_STR(d[1].gpu.uuid, "gpu-1");
    }
    close_folder();
}

/* Each was a setting once, with a default that is the same for the usual value of the other. */
static void limits_follow_from_others(void) {
    open_folder();
    EXPECT_EQ(load("{" MODELS ",\"limits\":{\"client_timeout_ms\":4000,\"watchdog_s\":7}}"),
              INFERD_OK);
    const config_limits *l = &c->limits;
    EXPECT_EQ(l->http.header_timeout_ms, 4000);
    EXPECT_EQ(l->http.body_timeout_ms, 4000);
    EXPECT_EQ(l->http.send_stall_ms, 4000);
    EXPECT_EQ(l->http.heartbeat_ms, 2000);
    EXPECT_EQ(l->step_hang_ms, 14000);
    EXPECT_EQ(load("{" MODELS ",\"limits\":{\"client_timeout_ms\":600000,\"watchdog_s\":0,"
                   "\"body_bytes_max\":\"1GiB\"}}"),
              INFERD_OK);
    l = &c->limits;
    EXPECT_EQ(l->http.header_timeout_ms, 10000); // headers are small
    EXPECT_EQ(l->http.body_timeout_ms, 600000);
    EXPECT_EQ(l->step_hang_ms, 60000);
    EXPECT_EQ(l->http.bodies_bytes_max, 2 * GIB);
    EXPECT_EQ(l->json.memory_max, 32 * GIB);
    EXPECT_EQ(l->json.structural_max, GIB / 4);
    EXPECT_EQ(load("{" MODELS ",\"limits\":{\"body_bytes_max\":1024}}"), INFERD_OK);
    EXPECT_EQ(c->limits.http.bodies_bytes_max, 256ull << 20);
    EXPECT_EQ(c->limits.json.memory_max, json_limits_default.memory_max);
    EXPECT_EQ(c->limits.json.structural_max, json_limits_default.structural_max);
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
    wrong_device(
        "\"memory\":\"80 gigs\"",
        "memory: is not a size: write bytes, or a number with KiB, MiB, GiB, TiB (powers of "
        "1024) or KB, MB, GB, TB (powers of 1000)");
    wrong_device("\"gpu\":64", "gpu: must be between 0 and 63");
    wrong_device("\"gpu\":-1", "gpu: must be between 0 and 63");
    wrong_device("\"gpu\":\"0\"", "gpu: \"0\" is neither a number nor a UUID: GPU-... or MIG-...");
    wrong_device("\"gpu\":\"\"", "gpu: must have 1 to 47 bytes");
    snprintf(text, sizeof text, "\"gpu\":\"GPU-%044d\"", 0);
    wrong_device(text, "gpu: must have 1 to 47 bytes");
    wrong_device("\"gpu\":true",
                 "gpu: expected a number or a UUID such as \"GPU-8f6a\", found true or false");
    wrong_device("\"cpu_math\":\"quick\"", "cpu_math: expected one of \"fast\", \"exact\"");
    wrong_device("\"zzzz\":\"x\"", "zzzz: there is no such option");
    wrong_device("\"thread\":2", "thread: there is no such option; did you mean \"threads\"?");
    problem_is("{" MODELS ",\"limits\":{\"client_timeout_ms\":9}}",
               ":1: limits.client_timeout_ms: must be between 10 and 86400000");
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
    problem_is("{" MODELS ",\n\"devices\":[]}",
               ":2: devices: must not be empty: leave it out for one device of kind auto");
    EXPECT_EQ(load("{\n\"models\":[]}"), INFERD_OK); // with a warning, below
    problem_is("{" MODELS ",\n\"listen\":\"0.0.0.0:80\"}",
               ":2: listen: 0.0.0.0:80: reachable from other machines, which needs keys: "
               "--api-key-file FILE, or tenants in the configuration");
    problem_is("{" MODELS ",\n\"tenants\":[{\"name\":\"t\"}]}",
               ":2: tenants[0]: has no key: give key, key_file or key_env");
    problem_is(
        "{" MODELS
        ",\n\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"],\"models\":[\"m\",\"n\"]}]}",
        ":2: tenants[0].models[1]: there is no model \"n\"");
    problem_is("{" MODELS ",\n\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]},\n"
               "{\"name\":\"t\",\"keys\":[\"sk-112345678\"]}]}",
               ":3: tenants[1]: the name \"t\" is already used by tenants[0]");
    problem_is("{" MODELS ",\n\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]},\n"
               "{\"name\":\"u\",\"keys\":[\"sk-112345678\",\"sk-012345678\"]}]}",
               ":3: tenants[1]: one of its keys is also a key of tenants[0]");
    problem_is("{\"models\":[{\"name\":\"m\",\"path\":\"m\",\"aliases\":[\"m\"]}]}",
               ":1: models[0]: the name \"m\" is already used by models[0]");
    EXPECT_EQ(load("{" MODELS ",\"limits\":{\"running_max\":600}}"), INFERD_OK);
    problem_is("{" MODELS ",\"limits\":{\"running_max\":600,\"step_tokens_max\":512}}",
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
    EXPECT_EQ(n_lines, 8);
    EXPECT(strstr(err.text, "8 problems") != NULL);
    EXPECT(strstr(buf_cstr(&problems),
                  "models[0].pth: there is no such option; did you mean \"path\"?") != NULL);
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
    EXPECT(strstr(buf_cstr(&problems), "writable by all users") != NULL);
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
    EXPECT(strstr(buf_cstr(&problems), "is writable by all users") != NULL);
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
    EXPECT(load_us < 60 * 1000000); // about 0.1 s; comparing each key with each takes minutes
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

/* -- models, tenants, devices: many of each -- */

/* Of the file's text: what is between the first ```json and ```. */
static char *documented_example(const char *path) {
    static const char opening[] = "```json\n";
    size_t n = 0;
    char *text = read_whole(path, &n);
    char *begin = strstr(text, opening), *end = begin == NULL ? NULL : strstr(begin + 4, "\n```");
    EXPECT(begin != NULL && end != NULL);
    if (end == NULL) {
        free(text);
        return strdup("");
    }
    *end = 0;
    char *example = strdup(begin + strlen(opening));
    free(text);
    return example;
}

static void check_documented_devices(void) {
    EXPECT_EQ(c->n_devices, 3);
    EXPECT_STR(c->devices[0].name, "gpu0");
    EXPECT_STR(c->devices[1].gpu.uuid, "GPU-93c0a7d4");
    EXPECT_STR(c->devices[2].cores, "0-7,16-23");
    EXPECT_EQ(c->host_arena_bytes, 64 * GIB);
    EXPECT_EQ(c->kv_disk_bytes, 32 * GIB);
    EXPECT_EQ(strncmp(c->state_dir, folder, strlen(folder)), 0); // relative to the file
    EXPECT_STR(c->state_dir + strlen(folder), "/state");
    EXPECT(c->policy.zero_on_tenant_change);
    EXPECT_STR(c->admin.listen, "unix:/run/inferd/admin.sock");
}

static void check_documented_owners(void) {
    const model_policy chat = {24 * GIB, 120 * GIB,    GEN_HIGH, 4, {SHARE_BURST, 120, 2}, 500, 40,
                               PIN_HOT,  POLICY_NEVER, 2,        3};
    const model_policy code = {0,        24 * GIB,      GEN_NORMAL, 1, {SHARE_FIXED, 30, 1}, 0, 0,
                               PIN_WARM, 5400000000ull, 1,          1};
    const model_policy night = {0,        0,        GEN_BATCH, 1, {SHARE_BESTEFFORT, 0, 1}, 0, 0,
                                PIN_NONE, 30000000, 1,         1};
    const config_tenant *shop = &c->tenants[0], *lab = &c->tenants[1];
    EXPECT_EQ(c->n_models, 3);
    EXPECT(same_policy(&c->models[0].policy, &chat));
    EXPECT(same_policy(&c->models[1].policy, &code));
    EXPECT(same_policy(&c->models[2].policy, &night));
    EXPECT_EQ(config_find_model(c, "default", 7), 0);
    EXPECT_EQ(c->n_tenants, 2);
    EXPECT(same_share(&shop->policy.share, &(share_spec){SHARE_BURST, 100, 1}));
    EXPECT_EQ(shop->policy.weight, 2);
    EXPECT_EQ(shop->policy.max_class, GEN_HIGH);
    EXPECT_EQ(shop->policy.min_bytes, 8 * GIB);
    EXPECT_EQ(shop->policy.max_bytes, 64 * GIB);
    EXPECT_EQ(shop->limits.requests_per_min, 600);
    EXPECT_EQ(shop->limits.tokens_per_min, 200000);
    EXPECT_EQ(shop->limits.concurrent, 64);
    EXPECT(shop->limits.tokens_per_day == CONFIG_NO_LIMIT);
    EXPECT(shop->limits.tokens_per_month == CONFIG_NO_LIMIT);
    EXPECT(lab->limits.requests_per_min == CONFIG_NO_LIMIT);
    EXPECT(same_share(&lab->policy.share, &(share_spec){SHARE_BURST, 25, 1}));
    EXPECT_EQ(lab->policy.max_class, GEN_NORMAL);
    EXPECT_EQ(lab->policy.weight, 1);
    EXPECT_EQ(lab->limits.tokens_per_day, 5000000);
    EXPECT_EQ(lab->limits.tokens_per_month, 50000000);
    EXPECT_EQ(tenant_of("sk-of-the-lab"), 1);
    EXPECT(config_is_admin_key(c, (bytes){"sk-of-the-admin", 15}));
}

/* An example must not show settings without effect. */
static void has_no_notes(void) {
    buf_clear(&problems);
    config_write_notes(c, &problems);
    EXPECT_STR(buf_cstr(&problems), "");
}

/* The files of keys that the examples name. */
static void write_documented_keys(void) {
    char shop[96], lab[96];
    snprintf(shop, sizeof shop, "%s/shop.keys", folder);
    snprintf(lab, sizeof lab, "%s/lab.keys", folder);
    write_file(shop, "sk-of-the-shop\n", 15, 0600);
    write_file(lab, "sk-of-the-lab\n", 14, 0600);
}

static void remove_documented_keys(void) {
    char shop[96], lab[96];
    snprintf(shop, sizeof shop, "%s/shop.keys", folder);
    snprintf(lab, sizeof lab, "%s/lab.keys", folder);
    unlink(shop);
    unlink(lab);
}

static void documented_example_is_read(void) {
    open_folder();
    write_documented_keys();
    setenv("INFERD_ADMIN_KEY", "sk-of-the-admin", 1);
    char *text = documented_example(INFERD_SOURCE_DIR "/docs/configuration.md");
    EXPECT_EQ(load(text), INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    if (c != NULL) {
        check_documented_devices();
        check_documented_owners();
        EXPECT(config_check(c, &problems));
        has_no_notes();
    }
    free(text);
    unsetenv("INFERD_ADMIN_KEY");
    remove_documented_keys();
    close_folder();
}

/* It once had a quota for a day and no place to keep it. */
static void the_readme_has_a_configuration_that_loads(void) {
    open_folder();
    write_documented_keys();
    char *text = documented_example(INFERD_SOURCE_DIR "/README.md");
    EXPECT_EQ(load(text), INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    if (c != NULL) {
        EXPECT_EQ(c->n_models, 3);
        EXPECT_EQ(c->n_tenants, 2);
        EXPECT(config_check(c, &problems));
        has_no_notes();
    }
    free(text);
    remove_documented_keys();
    close_folder();
}

/* Load a configuration in which `members` stand at one place; `where` says which. */
static inferd_status load_at(const char *where, const char *members) {
    char text[1024];
    if (strcmp(where, "models[0]") == 0)
        snprintf(text, sizeof text,
                 "{\"models\":[{\"name\":\"m\",\"path\":\"m.gguf\",\n%s}],\"devices\":["
                 "{\"kind\":\"cpu\",\"cores\":\"0\"},{\"kind\":\"cpu\",\"cores\":\"1\"}]}",
                 members);
    else if (strcmp(where, "tenants[0]") == 0)
        snprintf(text, sizeof text,
                 "{" MODELS ",\"state_dir\":\"s\",\"tenants\":[{\"name\":\"t\",\"keys\":"
                 "[\"sk-012345678\"],\n%s}]}",
                 members);
    else if (strcmp(where, "devices[0]") == 0)
        snprintf(text, sizeof text, "{" MODELS ",\"devices\":[{\n%s}]}", members);
    else if (where[0] == 0)
        snprintf(text, sizeof text, "{" MODELS ",\n%s}", members);
    else
        snprintf(text, sizeof text, "{" MODELS ",\"%s\":{\n%s}}", where, members);
    return load(text);
}

static void each_new_value_has_its_range(void) {
#define SIZE                                                                                       \
    "is not a size: write bytes, or a number with KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, " \
    "GB, TB (powers of 1000)"
#define WHOLE(x) "expected a whole number, found " x
#define CLASSES  "expected one of \"system\", \"high\", \"normal\", \"batch\""
#define MEMORY   "must be between 0 and 70368744177664"
#define U32      "must be between 0 and 4294967295"
#define DURATION                                                                                   \
    "is not a duration: write seconds, a text such as \"30s\", \"1h30m\" or \"250ms\" of at most " \
    "36500 days, or \"never\""
#define CORES "is not a list of CPUs: ascending numbers and ranges below 1024, such as \"0-3,8\""
    static const struct {
        const char *where, *members, *problem; // NULL: fine; "PATH: sentence" below `where`
    } rows[] = {
        {"models[0]", "\"min\":\"0\",\"max\":\"64TiB\"", NULL},
        {"models[0]", "\"min\":0,\"max\":0", NULL},
        {"models[0]", "\"min\":\"2 gigs\"", "min: " SIZE},
        {"models[0]", "\"min\":1.5", "min: expected a size such as \"2GiB\", found a fraction"},
        {"models[0]", "\"min\":-1", "min: " MEMORY},
        {"models[0]", "\"max\":70368744177665", "max: " MEMORY},
        {"models[0]", "\"class\":\"system\"", NULL},
        {"models[0]", "\"class\":\"urgent\"", "class: " CLASSES},
        {"models[0]", "\"class\":1", "class: " CLASSES},
        {"models[0]", "\"weight\":10000", NULL},
        {"models[0]", "\"weight\":0", NULL},
        {"models[0]", "\"weight\":10001", "weight: must be between 0 and 10000"},
        {"models[0]", "\"weight\":-1", "weight: must be between 0 and 10000"},
        {"models[0]", "\"weight\":0.5", "weight: " WHOLE("a fraction")},
        {"models[0]",
         "\"sampling\":{\"temperature\":2,\"top_p\":0.1,\"top_k\":-1,\"min_p\":0,"
         "\"repetition_penalty\":100,\"presence_penalty\":-2,\"frequency_penalty\":2}",
         NULL},
        {"models[0]", "\"sampling\":{\"temperature\":2.1}",
         "sampling.temperature: must be between 0 and 2"},
        {"models[0]", "\"sampling\":{\"top_p\":0}",
         "sampling.top_p: must be between 0 and 1, the first excluded"},
        {"models[0]", "\"sampling\":{\"top_k\":1.5}", "sampling.top_k: must be a whole number"},
        {"models[0]", "\"sampling\":{\"min_p\":\"0\"}",
         "sampling.min_p: expected a number, found text"},
        {"models[0]", "\"sampling\":{\"temprature\":1}",
         "sampling.temprature: there is no such option; did you mean \"temperature\"?"},
        {"models[0]", "\"slo\":{\"ttft_ms\":86400000,\"tpot_ms\":0}", NULL},
        {"models[0]", "\"slo\":{\"ttft_ms\":86400001}",
         "slo.ttft_ms: must be between 0 and 86400000"},
        {"models[0]", "\"slo\":{\"tpot_ms\":\"40\"}", "slo.tpot_ms: " WHOLE("text")},
        {"models[0]", "\"slo\":40", "slo: expected an object, found a whole number"},
        {"models[0]", "\"slo\":{\"tpt_ms\":4}",
         "slo.tpt_ms: there is no such option; did you mean \"tpot_ms\"?"},
        {"tracing", "\"endpoint\":\"http://127.0.0.1:4318/v1/traces\",\"sample_ratio\":0.5", NULL},
        {"tracing", "\"endpoint\":\"127.0.0.1:4318\"",
         "endpoint: expected a URL such as \"http://127.0.0.1:4318/v1/traces\""},
        {"tracing", "\"sample_ratio\":1.5", "sample_ratio: must be between 0 and 1"},
        {"tracing", "\"queue_spans_max\":255", "queue_spans_max: must be between 256 and 1000000"},
        {"tracing", "\"timeout_ms\":0", "timeout_ms: must be between 10 and 600000"},
        {"models[0]", "\"pin\":\"warm\"", NULL},
        {"models[0]", "\"pin\":true", NULL},
        {"models[0]", "\"pin\":\"cold\"",
         "pin: expected one of \"none\", \"warm\", \"hot\", true, false"},
        {"models[0]", "\"pin\":1", "pin: expected one of \"none\", \"warm\", \"hot\", true, false"},
        {"models[0]", "\"priority\":\"high\"",
         "priority: there is no such option; did you mean \"class\" (class of requests that name "
         "none)?"},
        {"tenants[0]", "\"priority\":\"high\"",
         "priority: there is no such option; did you mean \"max_class\" (the most urgent class it "
         "may ask for)?"},
        {"tenants[0]", "\"class\":\"high\"",
         "class: there is no such option; did you mean \"max_class\" (the most urgent class it may "
         "ask for)?"},
        {"tenants[0]", "\"key\":\"sk-another-one\"", NULL},
        {"tenants[0]", "\"key\":[\"sk-another-one\"]", NULL},
        {"tenants[0]", "\"key\":\"short\"", "key: a key must have 8 to 512 bytes"},
        {"models[0]", "\"keep_alive\":-1", NULL},
        {"models[0]", "\"keep_alive\":-2", "keep_alive: " DURATION},
        {"models[0]", "\"keep_alive\":\"soon\"", "keep_alive: " DURATION},
        {"models[0]", "\"keep_alive\":null",
         "keep_alive: expected a duration such as \"5m\", found null"},
        {"models[0]", "\"replicas\":{\"min\":0,\"max\":0}", NULL},
        {"models[0]", "\"replicas\":{\"max\":65}", "replicas.max: must be between 0 and 64"},
        {"models[0]", "\"replicas\":{\"min\":65}", "replicas.min: must be between 0 and 64"},
        {"models[0]", "\"replicas\":[1,2]",
         "replicas: expected an object or a whole number, found a list"},
        {"models[0]", "\"share\":\"fixed\"",
         "share: expected an object or a whole number, found text"},
        {"models[0]", "\"share\":{\"policy\":\"all\",\"percent\":5}",
         "share.policy: expected one of \"besteffort\", \"burst\", \"fixed\""},
        {"models[0]", "\"share\":{\"percent\":0}", "share.percent: must be between 1 and 6400"},
        {"models[0]", "\"share\":{\"percent\":6401}", "share.percent: must be between 1 and 6400"},
        {"models[0]", "\"share\":{\"percent\":\"40\"}", "share.percent: " WHOLE("text")},
        {"models[0]", "\"share\":{\"percent\":12.5}", "share.percent: " WHOLE("a fraction")},
        {"models[0]", "\"share\":{\"devices\":0}", "share.devices: must be between 1 and 64"},
        {"models[0]", "\"share\":{\"devices\":65}", "share.devices: must be between 1 and 64"},
        {"tenants[0]", "\"weight\":10000,\"min\":\"1GiB\",\"max\":\"1GiB\"", NULL},
        {"tenants[0]", "\"weight\":10001", "weight: must be between 0 and 10000"},
        {"tenants[0]", "\"min\":\"x\"", "min: " SIZE},
        {"tenants[0]", "\"max\":\"65TiB\"", "max: " MEMORY},
        {"tenants[0]", "\"share\":{\"devices\":-1}", "share.devices: must be between 1 and 64"},
        {"tenants[0]",
         "\"limits\":{\"requests_per_min\":4294967295,\"tokens_per_min\":4294967295,"
         "\"concurrent\":4294967295,\"tokens_per_day\":1000000000000000,"
         "\"tokens_per_month\":1000000000000000}",
         NULL},
        {"tenants[0]", "\"limits\":{\"requests_per_min\":4294967296}",
         "limits.requests_per_min: " U32},
        {"tenants[0]", "\"limits\":{\"tokens_per_min\":4294967296}", "limits.tokens_per_min: " U32},
        {"tenants[0]", "\"limits\":{\"concurrent\":-1}", "limits.concurrent: " U32},
        {"tenants[0]", "\"limits\":{\"tokens_per_day\":1000000000000001}",
         "limits.tokens_per_day: must be between 0 and 1000000000000000"},
        {"tenants[0]", "\"limits\":{\"tokens_per_month\":\"1M\"}",
         "limits.tokens_per_month: expected a whole number or null, found text"},
        {"tenants[0]", "\"limits\":null", "limits: expected an object, found null"},
        {"tenants[0]", "\"weight\":null", "weight: " WHOLE("null")},
        {"tenants[0]", "\"limits\":{\"requests\":1}", "limits.requests: there is no such option"},
        {"devices[0]", "\"name\":\"a\",\"cores\":\"0-3,8,1023\"", NULL},
        {"devices[0]", "\"name\":\"\"", "name: must have 1 to 64 bytes"},
        {"devices[0]", "\"name\":7", "name: expected text, found a whole number"},
        {"devices[0]", "\"cores\":\"3-0\"", "cores: " CORES},
        {"devices[0]", "\"cores\":\"1024\"", "cores: " CORES},
        {"devices[0]", "\"cores\":4", "cores: expected text, found a whole number"},
        {"", "\"host_arena\":0", NULL},
        {"", "\"host_arena\":\"64TiB\"", NULL},
        {"", "\"host_arena\":\"65TiB\"", "host_arena: " MEMORY},
        {"", "\"host_arena\":\"auto\"", "host_arena: " SIZE},
        {"", "\"state_dir\":5", "state_dir: expected text, found a whole number"},
        {"", "\"state_dir\":\"\"", "state_dir: must have 1 to 4095 bytes"},
        {"", "\"policy\":[]", "policy: expected an object, found a list"},
        {"policy", "\"urgent_percent\":51", "urgent_percent: must be between 0 and 50"},
        {"policy", "\"tpot_ms\":60000", NULL},
        {"policy", "\"tpot_ms\":0", "tpot_ms: must be between 1 and 60000"},
        {"policy", "\"zero_on_tenant_change\":1",
         "zero_on_tenant_change: expected true or false, found a whole number"},
        {"", "\"kv_disk\":\"1GiB\",\"state_dir\":\"s\"", NULL},
        {"", "\"kv_disk\":\"1GiB\"",
         "kv_disk: 1GiB need state_dir, the folder that has them in its folder kv"},
        {"", "\"kv_disk\":\"65TiB\"", "kv_disk: " MEMORY},
        {"", "\"kv_disk\":{}", "kv_disk: expected a size such as \"2GiB\", found an object"},
        {"admin", "\"listen\":\"unix:/run/a\"", NULL},
        {"admin", "\"listen\":\"127.0.0.1:1\"",
         "listen: must be unix:PATH or none: the permissions of that file control access"},
        {"admin", "\"listen\":\"unix:\"", "listen: unix: needs a path"},
        {"admin", "\"listen\":7", "listen: expected text, found a whole number"},
        {"admin", "\"keys\":\"sk-admin-0001\"", NULL},
        {"admin", "\"key\":[\"sk-admin-0001\",\"sk-admin-0002\"]", NULL},
        {"admin", "\"key\":7", "key: expected a key or a list of keys, found a whole number"},
        {"admin", "\"keys\":[\"short\"]", "keys[0]: a key must have 8 to 512 bytes"},
        {"admin", "\"key_env\":\"INFERD_TEST_NO\"",
         "key_env: the environment variable INFERD_TEST_NO is not set"},
    };
    open_folder();
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        char wanted[1024] = "";
        EXPECT_EQ(load_at(rows[i].where, rows[i].members),
                  rows[i].problem == NULL ? INFERD_OK : INFERD_EINVAL);
        if (rows[i].problem != NULL)
            snprintf(wanted, sizeof wanted, "%s:2: %s%s%s\n", file, rows[i].where,
                     rows[i].where[0] == 0 ? "" : ".", rows[i].problem);
        EXPECT_STR(buf_cstr(&problems), wanted);
    }
    close_folder();
}

static void values_arrive_where_they_belong(void) {
    open_folder();
    EXPECT_EQ(load_at("policy", "\"urgent_percent\":9,\"tpot_ms\":25"), INFERD_OK);
    EXPECT_EQ(c->policy.urgent_percent, 9);
    EXPECT_EQ(c->policy.tpot_ms, 25);
    EXPECT(!c->policy.zero_on_tenant_change);
    EXPECT_EQ(load_at("", "\"host_arena\":0"), INFERD_OK);
    EXPECT_EQ(c->host_arena_bytes, 0); // which is not the same as absent
    EXPECT_EQ(load_at("models[0]", "\"replicas\":{\"min\":2}"), INFERD_OK);
    EXPECT_EQ(c->models[0].policy.replicas_max, 2);
    EXPECT_EQ(load_at("models[0]", "\"replicas\":{\"min\":0}"), INFERD_OK);
    EXPECT_EQ(c->models[0].policy.replicas_min, 0);
    EXPECT_EQ(c->models[0].policy.replicas_max, 1);
    EXPECT_EQ(load_at("models[0]", "\"replicas\":{\"max\":2},\"keep_alive\":0.25,\"pin\":\"none\""),
              INFERD_OK);
    EXPECT_EQ(c->models[0].policy.replicas_min, 1);
    EXPECT_EQ(c->models[0].policy.replicas_max, 2);
    EXPECT_EQ(c->models[0].policy.keep_alive_us, 250000);
    EXPECT_EQ(c->models[0].policy.pin, PIN_NONE);
    close_folder();
}

static void shares_are_completed_and_checked(void) {
#define TAKE "which guarantees none: leave it out, or use \"burst\" or \"fixed\""
    static const struct {
        const char *members, *problem;
        share_spec share;
    } rows[] = {
        {"", NULL, {SHARE_BESTEFFORT, 0, 1}},
        {"\"policy\":\"besteffort\"", NULL, {SHARE_BESTEFFORT, 0, 1}},
        {"\"percent\":1", NULL, {SHARE_BURST, 1, 1}},
        {"\"percent\":100", NULL, {SHARE_BURST, 100, 1}},
        {"\"policy\":\"burst\",\"percent\":40,\"devices\":2", NULL, {SHARE_BURST, 40, 2}},
        {"\"policy\":\"fixed\",\"percent\":200,\"devices\":2", NULL, {SHARE_FIXED, 200, 2}},
        {"\"policy\":\"fixed\"", "is required for policy \"fixed\"", {0}},
        {"\"policy\":\"burst\"", "is required for policy \"burst\"", {0}},
        {"\"policy\":\"besteffort\",\"percent\":5", "5 percent for \"besteffort\", " TAKE, {0}},
        {"\"percent\":101", "101 percent on 1 device is 101 on each, a device has 100", {0}},
        {"\"percent\":240,\"devices\":2",
         "240 percent on 2 devices is 120 on each, a device has 100",
         {0}},
        {"\"percent\":100,\"devices\":3",
         "100 percent do not divide by 3 devices: 1 would be left over",
         {0}},
    };
    char members[256], wanted[512];
    open_folder();
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        const char *problem = rows[i].problem;
        snprintf(members, sizeof members, "\"share\":{%s}", rows[i].members);
        EXPECT_EQ(load_at("models[0]", members), problem == NULL ? INFERD_OK : INFERD_EINVAL);
        if (problem == NULL) {
            EXPECT(c != NULL && same_share(&c->models[0].policy.share, &rows[i].share));
            continue;
        }
        snprintf(wanted, sizeof wanted, "%s:2: models[0].share.percent: %s\n", file, problem);
        if (strstr(rows[i].members, "\"devices\":3") == NULL)
            EXPECT_STR(buf_cstr(&problems), wanted);
        else // two devices are configured, which is a problem of its own
            EXPECT_EQ(strncmp(buf_cstr(&problems), wanted, strlen(wanted)), 0);
    }
    EXPECT_EQ(load_at("models[0]", "\"share\":{\"percent\":205,\"devices\":2}"), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems),
                  "205 percent on 2 devices is 102.50 on each, a device has 100") != NULL);
    EXPECT(strstr(buf_cstr(&problems),
                  "205 percent do not divide by 2 devices: 1 would be left over") != NULL);
    EXPECT_EQ(load_at("tenants[0]", "\"share\":{\"policy\":\"fixed\"}"), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), ":2: tenants[0].share.percent: is required") != NULL);
    EXPECT_EQ(load_at("tenants[0]", "\"share\":{\"percent\":30}"), INFERD_OK);
    EXPECT(same_share(&c->tenants[0].policy.share, &(share_spec){SHARE_BURST, 30, 1}));
    close_folder();
}

static void durations_are_read(void) {
    static const struct {
        const char *text;
        bool valid;
        uint64_t us;
    } rows[] = {
        {"never", true, POLICY_NEVER},
        {"-1", true, POLICY_NEVER},
        {"0", true, 0},
        {"0s", true, 0},
        {"30", true, 30000000},
        {"1.5", true, 1500000},
        {"0.000001", true, 1},
        {"30s", true, 30000000},
        {"5m", true, 300000000},
        {"2h", true, 7200000000},
        {"1h30m", true, 5400000000},
        {"1h0m1s2ms3us", true, 3601002003},
        {"1.5h", true, 5400000000},
        {"0.25ms", true, 250},
        {"250ms", true, 250000},
        {"7us", true, 7},
        {"876000h", true, 3153600000000000},
        {"3153600000", true, 3153600000000000},
        {"876000h1us", false, 0},
        {"3153600000.000001", false, 0},
        {"99999999999999999999", false, 0},
        {"18446744073709551615h", false, 0},
        {"876000h18446744073709551615us", false, 0},
        {"0.0000001", false, 0},
        {"0.5us", false, 0},
        {"-1s", false, 0},
        {"-1.0", false, 0},
        {"-2", false, 0},
        {"", false, 0},
        {"s", false, 0},
        {"1d", false, 0},
        {"1hour", false, 0},
        {"1m1h", false, 0},
        {"1m1m", false, 0},
        {"1h30", false, 0},
        {"1 h", false, 0},
        {" 1h", false, 0},
        {"1h ", false, 0},
        {"1.h", false, 0},
        {"Never", false, 0},
        {"1e3", false, 0},
    };
    static const struct {
        const char *json;
        bool valid;
        uint64_t us;
    } values[] = {
        {"-1", true, POLICY_NEVER},
        {"-1.0", true, POLICY_NEVER},
        {"\"never\"", true, POLICY_NEVER},
        {"\"5m\"", true, 300000000},
        {"\"5\"", true, 5000000},
        {"0", true, 0},
        {"5", true, 5000000},
        {"0.1", true, 100000},
        {"3153599999.999999", true, 3153599999999999},
        {"3153600000", true, 3153600000000000},
        {"3153600001", false, 0},
        {"9223372036854775807", false, 0},
        {"1e300", false, 0},
        {"0.0000001", false, 0},
        {"-2", false, 0},
        {"-0.5", false, 0},
        {"true", false, 0},
        {"null", false, 0},
        {"[5]", false, 0},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        uint64_t us = 12345;
        if (config_read_duration(rows[i].text, &us) != rows[i].valid ||
            us != (rows[i].valid ? rows[i].us : 12345))
            printf("duration \"%s\" is %" PRIu64 "\n", rows[i].text, us), test_failures++;
    }
    for (size_t i = 0; i < INFERD_COUNT(values); i++) {
        uint64_t us = 12345;
        json_t *v = json_loads(values[i].json, JSON_DECODE_ANY, NULL);
        if (config_json_duration(v, &us) != values[i].valid ||
            us != (values[i].valid ? values[i].us : 12345))
            printf("duration %s is %" PRIu64 "\n", values[i].json, us), test_failures++;
        json_decref(v);
    }
}

static void decimals_and_sizes_are_exact(void) {
    static const struct {
        const char *json;
        bool valid;
        uint64_t micros;
    } rows[] = {
        {"0", true, 0},
        {"-0.0", true, 0},
        {"2.49", true, 2490000},
        {"0.1", true, 100000},
        {"8.2", true, 8200000}, // whose product with 10^6 is a little less
        {"123456789.123457", true, 123456789123457},
        {"\"123456789.123457\"", true, 123456789123457},
        {"\"0.000001\"", true, 1},
        {"0.0000015", false, 0},
        {"\"0.0000010\"", false, 0}, // seven decimals
        {"\"1.\"", false, 0},
        {"\"18446744073710\"", false, 0},
        {"18446744073710", false, 0},
        {"9007199254.740993", false, 0}, // 2^53 + 1 millionths are no double
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        uint64_t micros = 0;
        json_t *v = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
        EXPECT_EQ(config_json_duration(v, &micros), rows[i].valid);
        if (rows[i].valid) EXPECT_EQ(micros, rows[i].micros);
        json_decref(v);
    }
    EXPECT_STR(config_write_size(0).text, "0");
    EXPECT_STR(config_write_size(1023).text, "1023");
    EXPECT_STR(config_write_size(1024).text, "1KiB");
    EXPECT_STR(config_write_size(24 * GIB).text, "24GiB");
    EXPECT_STR(config_write_size(24 * GIB + 1).text, "25769803777");
    EXPECT_STR(config_write_size(3 * GIB / 2).text, "1536MiB");
    EXPECT_STR(config_write_size(2048ull << 40).text, "2048TiB");
    EXPECT_STR(config_write_size(UINT64_MAX).text, "18446744073709551615");
}

static void lists_of_cores_are_read(void) {
    static const char *const wrong[] = {"",   ",",  "0,",  ",0",    "0,,1",  "1,0",        "0,0",
                                        "0-", "-1", "3-1", "0-3,3", "0-3,2", "1024",       "0-1024",
                                        " 0", "0 ", "a",   "0-1-2", "0x1",   "99999999999"};
    uint64_t set[CONFIG_CORES_MAX / 64];
    EXPECT(config_read_cores("0-3,8", set));
    EXPECT_EQ(set[0], 0x10f);
    EXPECT_EQ(set[1], 0);
    EXPECT(config_read_cores("5-5,63-64,1023", set));
    EXPECT(set[0] == (1ull << 63 | 1ull << 5));
    EXPECT_EQ(set[1], 1);
    EXPECT(set[15] == 1ull << 63);
    EXPECT(config_read_cores("0-1023", set));
    for (size_t i = 0; i < INFERD_COUNT(set); i++) EXPECT(set[i] == UINT64_MAX);
    for (size_t i = 0; i < INFERD_COUNT(wrong); i++)
        if (config_read_cores(wrong[i], set)) printf("cores \"%s\"\n", wrong[i]), test_failures++;
}

/* A number for an object, a boolean for a choice, one key for a list. */
static void shorthands_are_read_as_what_they_stand_for(void) {
    open_folder();
    EXPECT_EQ(load_at("models[0]", "\"share\":50,\"pin\":true,\"replicas\":2"), INFERD_OK);
    if (c != NULL) {
        const model_policy *p = &c->models[0].policy;
        EXPECT(same_share(&p->share, &(share_spec){SHARE_BURST, 50, 1}));
        EXPECT_EQ(p->pin, PIN_HOT);
        EXPECT(p->replicas_min == 2 && p->replicas_max == 2);
    }
    EXPECT_EQ(load_at("models[0]", "\"pin\":false"), INFERD_OK);
    if (c != NULL) EXPECT_EQ(c->models[0].policy.pin, PIN_NONE);
    EXPECT_EQ(load_at("models[0]", "\"share\":101"), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), ":2: models[0].share.percent: 101 percent") != NULL);
    EXPECT_EQ(load_at("models[0]", "\"share\":12.5"), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), "share.percent: expected a whole number") != NULL);
    EXPECT_EQ(load_at("tenants[0]", "\"share\":30,\"key\":\"sk-another-one\""), INFERD_OK);
    if (c != NULL) {
        EXPECT(same_share(&c->tenants[0].policy.share, &(share_spec){SHARE_BURST, 30, 1}));
        EXPECT_EQ(c->tenants[0].n_keys, 2);
        EXPECT_EQ(tenant_of("sk-another-one"), 0);
        EXPECT_EQ(tenant_of("sk-012345678"), 0);
    }
    EXPECT_EQ(load("{" MODELS ",\"admin\":{\"key\":\"sk-of-the-admin\"},\"tenants\":"
                   "[{\"name\":\"t\",\"key\":\"sk-of-the-tenant\"}]}"),
              INFERD_OK);
    if (c != NULL) {
        EXPECT(config_is_admin_key(c, (bytes){"sk-of-the-admin", 15}));
        EXPECT_EQ(tenant_of("sk-of-the-tenant"), 0);
    }
    close_folder();
}

/* The element `name` of models after a patch, as compact text; "" and the sentence in err. */
static const char *patched(const char *root_text, const char *patch_text) {
    static char out[256];
    json_t *root = json_loads(root_text, 0, NULL), *patch = json_loads(patch_text, 0, NULL);
    out[0] = 0;
    if (edit_check_patch(EDIT_MODELS, patch, &err) == INFERD_OK &&
        edit_merge(root, EDIT_MODELS, "m", patch, &err) == INFERD_OK) {
        char *text = json_dumps(edit_find(root, EDIT_MODELS, "m"), JSON_COMPACT | JSON_SORT_KEYS);
        snprintf(out, sizeof out, "%s", text);
        free(text);
    }
    json_decref(root);
    json_decref(patch);
    return out;
}

/* In a patch, and in the file under it, a number is the object that it stands for. */
static void shorthands_are_merged_as_objects(void) {
#define ROOT(members) "{\"models\":[{\"name\":\"m\"," members "}]}"
    EXPECT_STR(patched(ROOT("\"share\":50"), "{\"share\":{\"policy\":\"fixed\"}}"),
               "{\"name\":\"m\",\"share\":{\"percent\":50,\"policy\":\"fixed\"}}");
    EXPECT_STR(patched(ROOT("\"share\":{\"policy\":\"fixed\",\"percent\":20}"), "{\"share\":30}"),
               "{\"name\":\"m\",\"share\":{\"percent\":30,\"policy\":\"fixed\"}}");
    EXPECT_STR(patched(ROOT("\"share\":50,\"replicas\":1"), "{\"replicas\":2}"),
               "{\"name\":\"m\",\"replicas\":{\"min\":2},\"share\":50}"); // the rest as written
    EXPECT_STR(patched(ROOT("\"share\":50"), "{\"share\":null}"), "{\"name\":\"m\"}");
    EXPECT_STR(patched(ROOT("\"share\":50"), "{\"priority\":\"high\"}"), "");
    EXPECT_STR(err.text, "priority: there is no such option; did you mean \"class\" (class of "
                         "requests that name none)?");
    EXPECT_STR(patched(ROOT("\"share\":50"), "{\"path\":\"x\"}"), "");
    EXPECT(strstr(err.text, "path cannot be changed here") != NULL);
#undef ROOT
}

/* GET /admin/config shows "key" as it shows "keys". */
static void one_key_is_masked_too(void) {
    json_t *root = json_loads("{\"admin\":{\"key\":\"sk-of-the-admin\"},\"tenants\":"
                              "[{\"name\":\"t\",\"key\":\"sk-of-the-tenant\"}]}",
                              0, NULL);
    json_t *masked = json_deep_copy(root);
    uint32_t n_masks = 0;
    EXPECT_EQ(edit_mask(masked, &err), INFERD_OK);
    char *text = json_dumps(masked, JSON_COMPACT);
    EXPECT_STR(text,
               "{\"admin\":{\"key\":\"****\"},\"tenants\":[{\"name\":\"t\",\"key\":\"****\"}]}");
    EXPECT_EQ(edit_unmask(masked, root, &n_masks, &err), INFERD_OK);
    EXPECT_EQ(n_masks, 2);
    EXPECT(json_equal(masked, root));
    EXPECT_EQ(edit_mask(masked, &err), INFERD_OK);
    EXPECT_EQ(edit_unmask(masked, NULL, &n_masks, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "key of admin is ****, but the file has no key there");
    free(text);
    json_decref(masked);
    json_decref(root);
}

/* One inequality: `fine` satisfies it with nothing to spare, `wrong` misses it by one. */
static void inequality(const char *fine, const char *wrong, const char *line) {
    EXPECT_EQ(load(fine), INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    problem_is(wrong, line);
}

#define CPU(name, memory, cores)                                                                   \
    "{\"name\":\"" name "\",\"kind\":\"cpu\",\"memory\":\"" memory "\",\"cores\":\"" cores "\"}"
#define TWO_CPUS             "\"devices\":[" CPU("a", "7GiB", "0") "," CPU("b", "4GiB", "1") "]"
#define MODEL(name, members) "{\"name\":\"" name "\",\"path\":\"" name ".gguf\",\n" members "}"
#define TENANT(name, members)                                                                      \
    "{\"name\":\"" name "\",\"keys\":[\"sk-" name "-012345\"],\n" members "}"

#define TWO_TENS        "\"devices\":[" CPU("a", "10GiB", "0") "," CPU("b", "10GiB", "1") "]"
#define MIN(name, size) MODEL(name, "\"min\":\"" size "\"")
#define SIX(two, four)                                                                             \
    MIN("a", two)                                                                                  \
    "," MIN("b", two) "," MIN("c", four) "," MIN("d", four) "," MIN("e", four) "," MIN("f", four)

static void guarantees_fit_the_devices(void) {
    open_folder();
    inequality("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"min\":\"7GiB\"") "," //
               MODEL("b", "\"min\":\"4GiB\"") "]}",
               "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"min\":\"7GiB\"") "," //
               MODEL("b", "\"min\":\"4097MiB\"") "]}",
               ":3: models[1].min: the models' min together are 11266MiB in pages of 2MiB, the "
               "devices have 11GiB");
    /* The sum fits, and no device has room for the second one. */
    inequality("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"min\":\"6GiB\"") "," //
               MODEL("b", "\"min\":\"4GiB\"") "]}",
               "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"min\":\"6GiB\"") "," //
               MODEL("b", "\"min\":\"4097MiB\"") "]}",
               ":3: models[1].min: 4098MiB of it in pages of 2MiB must fit on one device; beside "
               "larger guarantees one has at most 4GiB");
    inequality("{" TWO_CPUS ",\"models\":[" //
               MODEL("a", "\"min\":\"8GiB\",\"replicas\":{\"min\":2,\"max\":2}") "]}",
               "{" TWO_CPUS ",\"models\":[" //
               MODEL("a", "\"min\":\"9GiB\",\"replicas\":{\"min\":2,\"max\":2}") "]}",
               ":2: models[0].min: 4608MiB of it must fit on one device; beside larger guarantees "
               "one has at most 4GiB");
    /* 4 + 3 + 3 on each, though the tightest place for the second 4 is beside the first. */
    inequality("{" TWO_TENS ",\"models\":[" SIX("4GiB", "3GiB") "]}",
               "{" TWO_TENS ",\"models\":[" SIX("5GiB", "3GiB") "]}",
               ":7: models[5].min: the models' min together are 22GiB, the devices have 20GiB");
    inequality("{" TWO_TENS
               ",\"models\":[" MIN("a", "6GiB") "," MIN("b", "6GiB") "," MIN("c", "4GiB") "]}",
               "{" TWO_TENS
               ",\"models\":[" MIN("a", "6GiB") "," MIN("b", "6GiB") "," MIN("c", "5GiB") "]}",
               ":4: models[2].min: 5GiB of it must fit on one device; beside larger guarantees one "
               "has at most 4GiB");
    inequality("{" TWO_CPUS "," MODELS ",\"tenants\":[" TENANT("t", "\"min\":\"11GiB\"") "," //
               TENANT("u", "\"min\":0") "]}",
               "{" TWO_CPUS "," MODELS ",\"tenants\":[" TENANT("t", "\"min\":\"12GiB\"") "," //
               TENANT("u", "\"min\":1") "]}",
               ":2: tenants[0].min: the tenants' min together are 12884901889, the devices have "
               "11GiB");
    /* As long as one device does not say what it has, nobody knows. */
    EXPECT_EQ(load("{\"devices\":[{\"kind\":\"cuda\"},{\"kind\":\"cpu\",\"memory\":\"1GiB\"}],"
                   "\"models\":[" MODEL("a", "\"min\":\"64TiB\"") "]}"),
              INFERD_OK);
    inequality("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":{\"percent\":100}") "," //
               MODEL("b", "\"share\":{\"policy\":\"fixed\",\"percent\":100}") "]}",
               "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":{\"percent\":100}") "," //
               MODEL("b", "\"share\":{\"policy\":\"fixed\",\"percent\":100}") ","         //
               MODEL("c", "\"share\":{\"percent\":1}") "]}",
               ":4: models[2].share.percent: the models' shares together are 201 percent, 2 "
               "devices have 200");
    /* The sum fits, and no device has room for the third one. */
    inequality("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":{\"percent\":60}") "," //
               MODEL("b", "\"share\":{\"percent\":60}") ","                              //
               MODEL("c", "\"share\":{\"percent\":40}") "]}",
               "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":{\"percent\":60}") "," //
               MODEL("b", "\"share\":{\"percent\":60}") ","                              //
               MODEL("c", "\"share\":{\"percent\":41}") "]}",
               ":4: models[2].share.percent: 41 percent of it must fit on one device; beside "
               "larger shares one has at most 40 percent");
    inequality("{" MODELS ",\"tenants\":[" TENANT("t", "\"share\":{\"percent\":60}") "," //
               TENANT("u", "\"share\":{\"percent\":40}") "]}",
               "{" MODELS ",\"tenants\":[" TENANT("t", "\"share\":{\"percent\":60}") "," //
               TENANT("u", "\"share\":{\"percent\":41}") "]}",
               ":3: tenants[1].share.percent: the tenants' shares together are 101 percent, 1 "
               "device has 100");
    inequality(
        "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":{\"percent\":6,\"devices\":2}") "]}",
        "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":{\"percent\":6,\"devices\":3}") "]}",
        ":2: models[0].share.devices: a share on 3 devices, and 2 are configured");
    problem_is("{" MODELS
               ",\"tenants\":[" TENANT("t", "\"share\":{\"percent\":6,\"devices\":2}") "]}",
               ":2: tenants[0].share.devices: a share on 2 devices, and 1 is configured");
    problem_is("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"replicas\":{\"min\":3}") "]}",
               ":2: models[0].replicas.min: 3 replicas on different devices, and 2 are configured");
    inequality("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"replicas\":{\"min\":2,\"max\":2}") "]}",
               "{" TWO_CPUS ",\"models\":[" MODEL("a", "\"replicas\":{\"min\":2,\"max\":1}") "]}",
               ":2: models[0].replicas.min: 2 is more than max (1)");
    inequality("{\"models\":[" MODEL("a", "\"min\":\"2GiB\",\"max\":\"2GiB\"") "]}",
               "{\"models\":[" MODEL("a", "\"min\":\"2GiB\",\"max\":\"1GiB\"") "]}",
               ":2: models[0].min: 2GiB is more than max (1GiB)");
    inequality("{" MODELS ",\"tenants\":[" TENANT("t", "\"min\":2,\"max\":2") "]}",
               "{" MODELS ",\"tenants\":[" TENANT("t", "\"min\":2,\"max\":1") "]}",
               ":2: tenants[0].min: 2 is more than max (1)");
    /* What is no list says nothing about how much the devices can carry. */
    problem_is(
        "{\"devices\":2,\"models\":[" MODEL("a", "\"replicas\":{\"max\":3},\"min\":\"9TiB\","
                                                 "\"share\":{\"percent\":200,\"devices\":2}") "]}",
        ":1: devices: expected a list of objects, found a whole number");
    close_folder();
}

#define ONE_CPU(memory)  "\"devices\":[{\"kind\":\"cpu\"," memory "}]"
#define THREE_MINS(size) "\"models\":[" MIN("a", size) "," MIN("b", size) "," MIN("c", size) "]"

/* Guarantees are kept in pages: three of 1 MiB were fine on 5 MiB, and the third model failed. */
static void guarantees_are_counted_in_pages(void) {
    open_folder();
    inequality("{" ONE_CPU("\"memory\":\"6MiB\"") "," THREE_MINS("1MiB") "}",
               "{" ONE_CPU("\"memory\":\"5MiB\"") "," THREE_MINS("1MiB") "}",
               ":4: models[2].min: the models' min together are 6MiB in pages of 2MiB, the devices "
               "have 4MiB");
    /* What a CPU has when nothing was said is known, too. */
    inequality("{" ONE_CPU("\"threads\":1") ",\"models\":[" MIN("a", "2GiB") "]}",
               "{" ONE_CPU("\"threads\":1") ",\"models\":[" MIN("a", "2050MiB") "]}",
               ":2: models[0].min: the models' min together are 2050MiB, the devices have 2GiB");
    inequality("{" TWO_CPUS ",\"models\":[" MIN("a", "7GiB") "," MIN("b", "4095MiB") "]}",
               "{" TWO_CPUS ",\"models\":[" MIN("a", "6GiB") "," MIN("b", "4097MiB") "]}",
               ":3: models[1].min: 4098MiB of it in pages of 2MiB must fit on one device; beside "
               "larger guarantees one has at most 4GiB");
    close_folder();
}

static const char *notes_of(const char *text) {
    static buf notes;
    EXPECT_EQ(load(text), INFERD_OK);
    buf_clear(&notes);
    config_write_notes(c, &notes);
    return buf_cstr(&notes);
}

/* replicas.max is a bound: where there are fewer devices it was refused. */
static void more_replicas_than_devices_are_noted(void) {
    open_folder();
    EXPECT_STR(notes_of("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"replicas\":{\"max\":2}") "]}"),
               "");
    EXPECT_STR(notes_of("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"replicas\":{\"max\":3}") "]}"),
               "models[0].replicas.max: 3, and there are 2 devices: at most 2 replicas\n");
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"replicas\":{\"min\":1,\"max\":2}") "]}"),
               "models[0].replicas.max: 2, and there is 1 device: at most 1 replica\n");
    close_folder();
}

#define THREE(a, b, c)                                                                             \
    "{" MODELS ",\"tenants\":[" TENANT("a", a) "," TENANT("b", b) "," TENANT("c", c) "]}"
#define URGENT(tenants)                                                                            \
    "{\"models\":[" MODEL("a", "\"class\":\"high\"") "," MODEL(                                    \
        "b", "\"weight\":1") "],\"tenants\":[" tenants "]}"
#define ANY "\"weight\":1"

/* A class was capped by tenants without max_class, and check said that all was fine. */
static void capped_classes_are_noted(void) {
    open_folder();
    EXPECT_STR(notes_of(URGENT(TENANT("t", "\"max_class\":\"high\"") "," //
                               TENANT("u", ANY))),
               "models[0].class: \"high\" runs as \"normal\" for the tenants without a max_class: "
               "\"u\"\n");
    /* Said by the operator, or of no concern to the model. */
    EXPECT_STR(notes_of(URGENT(
                   TENANT("t", "\"max_class\":\"high\"") "," //
                   TENANT("u", "\"max_class\":\"normal\"") "," TENANT("v", "\"models\":[\"b\"]"))),
               "");
    EXPECT_STR(
        notes_of(URGENT(TENANT("t", "\"max_class\":\"batch\"") "," //
                        TENANT("u", "\"max_class\":\"normal\""))),
        "models[0].class: \"high\" runs as \"normal\" at most: by their max_class, no tenant "
        "that may use the model may ask for more (\"t\", \"u\")\n");
    EXPECT_STR(
        notes_of(URGENT(TENANT("t", "\"max_class\":\"high\"") "," TENANT("v", ANY) "," TENANT(
            "w", ANY) "," TENANT("x", ANY) "," TENANT("y", ANY) "," TENANT("z", ANY))),
        "models[0].class: \"high\" runs as \"normal\" for the tenants without a max_class: "
        "\"v\", \"w\", \"x\" and 2 more\n");
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"class\":\"high\"") "]}"), "");
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"class\":\"system\"") "]}"),
               "models[0].class: \"system\" runs as \"high\", the most urgent class without "
               "tenants\n");
    close_folder();
}

#define LEAVE "of the time that shares leave\n"

/* Weights of 1 and 3 gave 49 % and 49 %. */
static void weights_without_effect_are_noted(void) {
    open_folder();
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"weight\":4") "]}"),
               "models[0].weight: 4 has no effect: no other model gets a part " LEAVE);
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"weight\":0") "]}"), ""); // paused
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"weight\":4") "," MODEL("b", ANY) "]}"), "");
    EXPECT_STR(
        notes_of("{\"models\":[" MODEL("a", ANY) "," MODEL("b", ANY) "," //
                 MODEL("c", "\"weight\":4,\"share\":{\"policy\":\"fixed\",\"percent\":5}") "]}"),
        "models[2].weight: 4 has no effect, except on the order of eviction: a fixed share "
        "gets nothing of the time that shares leave\n");
    EXPECT_STR(notes_of(THREE("\"share\":{\"policy\":\"fixed\",\"percent\":5}",
                              "\"share\":{\"policy\":\"fixed\",\"percent\":5},\"weight\":2", //
                              "\"weight\":3")),
               "tenants[1].weight: 2 has no effect: a fixed share gets nothing of the time that "
               "shares leave\n"
               "tenants[2].weight: 3 has no effect: no other tenant gets a part " LEAVE);
    EXPECT_STR(notes_of(THREE("\"weight\":1", "\"weight\":3", "\"weight\":1")), "");
    /* Tenants without a common model divide device time. */
    EXPECT_STR(
        notes_of("{\"models\":[" MODEL("a", ANY) "," MODEL("b", ANY) "],\"tenants\":[" TENANT(
            "t", "\"models\":[\"a\"],\"weight\":2") "," TENANT("u", "\"models\":[\"b\"]") "]}"),
        "");
    close_folder();
}

/* Urgent requests of a tenant without a share once waited for 26 s. */
static void shares_that_leave_nothing_are_noted(void) {
    open_folder();
    EXPECT_STR(notes_of(THREE("\"share\":60", "\"share\":40", ANY)),
               "tenants[2].share: the shares of the other tenants are 100 of 100 percent and leave "
               "nothing: while they are busy, requests of \"c\" wait, except urgent ones within "
               "policy.urgent_percent (5)\n");
    EXPECT_STR(notes_of(THREE("\"share\":60", "\"share\":39", ANY)), "");
    EXPECT_STR(notes_of(THREE("\"share\":60", "\"share\":30", "\"share\":10")), "");
    EXPECT_STR(notes_of("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"share\":100") "," MODEL(
                   "b", "\"share\":100") "," MODEL("c", ANY) "," MODEL("d", ANY) "]}"),
               "models[2].share: the shares of the other models are 200 of 200 percent and leave "
               "nothing: while they are busy, requests of \"c\", \"d\" wait, except urgent ones "
               "within policy.urgent_percent (5)\n");
    /* The share of its model is enough for a tenant without one. */
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"share\":50") "],\"tenants\":[" TENANT(
                   "t", "\"share\":100") "," TENANT("u", ANY) "]}"),
               "");
    close_folder();
}

/* The text of `check` about shares: what they are in any case, and what they leave. */
static void shares_are_said_with_what_urgent_requests_take(void) {
    static buf out;
    open_folder();
    EXPECT_EQ(load(THREE("\"share\":50", "\"share\":{\"policy\":\"fixed\",\"percent\":30}", ANY)),
              INFERD_OK);
    config_write_shares(c, &out);
    EXPECT_STR(
        buf_cstr(&out),
        "shares of tenants, percent of a device (policy.urgent_percent is 5):\n"
        "  a: at least 50 %, beside urgent requests 47.50 %\n"
        "  b: exactly 30 %, beside urgent requests 28.50 %\n"
        "  left for tenants without a share: at least 20 %, beside urgent requests 19.00 %\n");
    buf_clear(&out);
    EXPECT_EQ(load(THREE(ANY, ANY, ANY)), INFERD_OK);
    config_write_shares(c, &out);
    EXPECT_STR(buf_cstr(&out), "");
    buf_deinit(&out);
    close_folder();
}

/* 5MiB were 4MiB, and nothing said so. */
static void rounding_is_noted(void) {
    open_folder();
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"max\":\"5MiB\"") "]}"),
               "models[0].max: 5MiB is rounded down to 4MiB, to whole pages of 2MiB\n");
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"min\":\"1MiB\",\"max\":\"1MiB\"") "]}"),
               "models[0].min: 1MiB is rounded up to 2MiB, to whole pages of 2MiB\n"
               "models[0].max: 1MiB is rounded up to 2MiB, to whole pages of 2MiB\n");
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"min\":\"4MiB\",\"max\":\"8MiB\"") "]}"), "");
    EXPECT_STR(notes_of("{\"models\":[" MODEL("a", "\"max\":\"24GB\"") "]}"), ""); // below 1 %
    /* Each replica has its part: three pages on the first, two on the second. */
    EXPECT_STR(
        notes_of("{" TWO_CPUS ",\"models\":[" MODEL("a", "\"max\":\"11MiB\",\"replicas\":2") "]}"),
        "models[0].max: 11MiB is rounded down to 10MiB, to whole pages of 2MiB\n");
    close_folder();
}

/* The text of `check`: with the line, and with the sizes of the models' files. */
static const char *warnings_of(const char *text, const uint64_t *file_bytes, uint32_t n) {
    static buf warnings;
    EXPECT_EQ(load(text), INFERD_OK);
    buf_clear(&warnings);
    EXPECT_EQ(config_write_warnings(c, file_bytes, &warnings), n);
    const char *line = buf_cstr(&warnings);
    return strncmp(line, file, strlen(file)) == 0 ? line + strlen(file) : line;
}

/* The configuration of a fresh installation. */
static void a_daemon_may_have_no_model_yet(void) {
    open_folder();
    EXPECT_STR(
        warnings_of("{\n\"models\":[]}", NULL, 1),
        ":2: warning: models: the list is empty: the daemon starts, and /ready is 503 until a "
        "reload or a restart brings a model\n");
    close_folder();
}

static void warnings_have_a_line_and_know_the_files(void) {
    const uint64_t file_bytes[] = {100 << 20, 700 << 20};
#define ARENA(kind, size)                                                                          \
    "{\"devices\":[{\"kind\":\"" kind "\"}],\n\"host_arena\":\"" size                              \
    "\",\"models\":[" MODEL("a", ANY) "," MODEL("b", ANY) "]}"
    open_folder();
    EXPECT_STR(
        warnings_of("{\"models\":[" MODEL("a", "\"max\":\"5MiB\"") "]}", NULL, 1),
        ":2: warning: models[0].max: 5MiB is rounded down to 4MiB, to whole pages of 2MiB\n");
    EXPECT_STR(warnings_of(ARENA("cuda", "600MiB"), file_bytes, 1),
               ":2: warning: host_arena: 600MiB hold no copy of models[1] (b), about 700MiB, and "
               "of 1 of 2 models: evicted from devices[0], a GPU, such a model is read from its "
               "file when it comes back, at the file's speed (the largest: 1.5 s at 500 MB/s) "
               "instead of the bus's\n");
    EXPECT_STR(warnings_of(ARENA("cuda", "700MiB"), file_bytes, 0), "");
    EXPECT_STR(warnings_of(ARENA("cuda", "600MiB"), NULL, 0), "");
    EXPECT_STR(warnings_of(ARENA("cpu", "0"), file_bytes, 0), "");
    EXPECT_STR(
        warnings_of("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"700MiB\"}],\n\"models\":[" MODEL(
                        "a", ANY) "," MODEL("b", ANY) "]}",
                    file_bytes, 0),
        "");
    EXPECT_STR(
        warnings_of("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"698MiB\"}],\n\"models\":[" MODEL(
                        "a", ANY) "," MODEL("b", ANY) "]}",
                    file_bytes, 1),
        ":3: warning: models[1].path: the file has 700MiB, and the device has 698MiB of "
        "memory: the model fails when it is brought up; set devices[].memory higher\n");
    unlink(file); // the lines are those of the file as it is
    buf out = {0};
    EXPECT_EQ(load("{\"models\":[" MODEL("a", "\"max\":\"5MiB\"") "]}"), INFERD_OK);
    unlink(file);
    EXPECT_EQ(config_write_warnings(c, NULL, &out), 1);
    EXPECT(strstr(buf_cstr(&out), "inferd.json: warning: models[0].max: 5MiB") != NULL);
    buf_deinit(&out);
#undef ARENA
    close_folder();
}

/* What the documents promise of one text: every member there is, of a shape others write. */
static void the_whole_shape_is_read(void) {
    open_folder();
    EXPECT_EQ(
        load("{\"devices\":[{\"name\":\"gpu0\",\"kind\":\"cuda\",\"gpu\":\"GPU-12345678\","
             "\"memory\":\"140GiB\"}],\"host_arena\":\"64GiB\","
             "\"policy\":{\"tpot_ms\":10},"
             "\"models\":[{\"name\":\"a\",\"path\":\"a.gguf\",\"min\":\"0\",\"max\":\"24GiB\","
             "\"class\":\"normal\",\"weight\":1,"
             "\"share\":{\"policy\":\"burst\",\"percent\":40,\"devices\":1},"
             "\"slo\":{\"ttft_ms\":500,\"tpot_ms\":40},\"pin\":\"warm\",\"keep_alive\":\"never\","
             "\"replicas\":{\"min\":1,\"max\":2}}],"
             "\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-t-012345\"],\"weight\":2,"
             "\"max_class\":\"high\",\"models\":[\"a\"],\"max\":\"8GiB\","
             "\"share\":{\"policy\":\"fixed\",\"percent\":25},"
             "\"limits\":{\"requests_per_min\":600,\"tokens_per_min\":200000,"
             "\"concurrent\":64}}]}"),
        INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    if (c == NULL) return;
    const model_policy a = {.max_bytes = 24 * GIB,
                            .prio = GEN_NORMAL,
                            .weight = 1,
                            .share = {SHARE_BURST, 40, 1},
                            .slo_ttft_ms = 500,
                            .slo_tpot_ms = 40,
                            .pin = PIN_WARM,
                            .keep_alive_us = POLICY_NEVER,
                            .replicas_min = 1,
                            .replicas_max = 2};
    EXPECT_EQ(c->n_devices, 1);
    EXPECT_STR(c->devices[0].gpu.uuid, "GPU-12345678");
    EXPECT_EQ(c->devices[0].memory_bytes, 140 * GIB);
    EXPECT_EQ(c->host_arena_bytes, 64 * GIB);
    EXPECT(same_policy(&c->models[0].policy, &a));
    const config_tenant *t = &c->tenants[0];
    EXPECT_EQ(t->policy.weight, 2);
    EXPECT_EQ(t->max_class, GEN_HIGH);
    EXPECT_STR(t->models[0], "a");
    EXPECT_EQ(t->policy.max_bytes, 8 * GIB);
    EXPECT_EQ(t->policy.share.policy, SHARE_FIXED);
    EXPECT_EQ(t->policy.share.percent, 25);
    EXPECT_EQ(t->limits.requests_per_min, 600);
    EXPECT_EQ(t->limits.tokens_per_min, 200000);
    EXPECT_EQ(t->limits.concurrent, 64);
    close_folder();
}

static void devices_are_told_apart(void) {
#define DEVICES(a, b) "{" MODELS ",\"devices\":[{" a "},\n{" b "}]}"
#define KIND          "must be \"cpu\" or \"cuda\" where there are 2 devices"
    open_folder();
    inequality(
        DEVICES("\"kind\":\"cpu\",\"cores\":\"0-3,6\"", "\"kind\":\"cpu\",\"cores\":\"4-5,7\""),
        DEVICES("\"kind\":\"cpu\",\"cores\":\"0-3,6\"", "\"kind\":\"cpu\",\"cores\":\"4-6\""),
        ":2: devices[1].cores: 4-6: CPU 6 is also in devices[0].cores (0-3,6)");
    problem_is(DEVICES("\"kind\":\"cpu\",\"cores\":\"0-3\"", "\"kind\":\"cpu\""),
               ":2: devices[1].cores: is required: devices[0] and devices[1] are both CPUs, and "
               "each needs its own");
    problem_is(DEVICES("\"kind\":\"cpu\"", "\"kind\":\"cpu\",\"cores\":\"0-3\""),
               ":1: devices[0].cores: is required: devices[0] and devices[1] are both CPUs, and "
               "each needs its own");
    inequality(DEVICES("\"kind\":\"cpu\"", "\"kind\":\"cuda\""),
               DEVICES("\"kind\":\"cpu\"", "\"kind\":\"cuda\",\"cores\":\"1\""),
               ":2: devices[1].cores: 1 are CPUs, and the kind is \"cuda\": leave it out");
    inequality(DEVICES("\"kind\":\"cuda\"", "\"kind\":\"cuda\",\"gpu\":1"),
               DEVICES("\"kind\":\"cuda\",\"gpu\":1", "\"kind\":\"cuda\",\"gpu\":1"),
               ":2: devices[1].gpu: 1 is also devices[0]: each GPU may appear once");
    inequality(
        DEVICES("\"kind\":\"cuda\",\"gpu\":\"GPU-a1\"", "\"kind\":\"cuda\",\"gpu\":\"GPU-a2\""),
        DEVICES("\"kind\":\"cuda\",\"gpu\":\"GPU-a1\"", "\"kind\":\"cuda\",\"gpu\":\"gpu-A\""),
        ":2: devices[1].gpu: \"gpu-A\" is also devices[0] (\"GPU-a1\"): each GPU may appear once");
    EXPECT_EQ(load(DEVICES("\"kind\":\"cuda\",\"gpu\":\"GPU-a1\"", "\"kind\":\"cuda\"")),
              INFERD_OK);
    inequality(DEVICES("\"kind\":\"cpu\",\"name\":\"a\"", "\"kind\":\"cuda\",\"name\":\"b\""),
               DEVICES("\"kind\":\"cpu\",\"name\":\"a\"", "\"kind\":\"cuda\",\"name\":\"a\""),
               ":2: devices[1]: the name \"a\" is already used by devices[0]");
    problem_is(DEVICES("\"kind\":\"cpu\"", "\"name\":\"b\""), ":2: devices[1].kind: " KIND);
    problem_is(DEVICES("\"kind\":\"cpu\"", "\"kind\":\"gpu\""),
               ":2: devices[1].kind: expected one of \"auto\", \"cpu\", \"cuda\"");
    EXPECT_EQ(load("{" MODELS ",\"devices\":[{\"kind\":\"cuda\"},{\"kind\":\"cuda\"},{\"kind\":"
                   "\"cuda\"}]}"),
              INFERD_EINVAL);
    EXPECT(strstr(err.text, "2 problems") != NULL); // each against the first
    close_folder();
}

static void counts_have_bounds(void) {
    buf text;
    open_folder();
    buf_init(&text, 0);
    for (int n = CONFIG_MODELS_MAX; n <= CONFIG_MODELS_MAX + 1; n++) {
        buf_clear(&text);
        buf_add_str(&text, "{\"models\":[");
        for (int i = 0; i < n; i++)
            buf_add_format(&text, "%s{\"name\":\"m%d\",\"path\":\"m\"}", i > 0 ? "," : "", i);
        buf_add_str(&text, "]}");
        EXPECT_EQ(load(buf_cstr(&text)), n == CONFIG_MODELS_MAX ? INFERD_OK : INFERD_EINVAL);
        if (c != NULL) EXPECT_EQ(config_find_model(c, "m1023", 5), 1023);
    }
    EXPECT(strstr(buf_cstr(&problems), "models: has 1025 elements, at most 1024 are possible") !=
           NULL);
    for (int n = CONFIG_DEVICES_MAX; n <= CONFIG_DEVICES_MAX + 1; n++) {
        buf_clear(&text);
        buf_add_str(&text, "{" MODELS ",\"devices\":[");
        for (int i = 0; i < n; i++)
            buf_add_format(&text, "%s{\"kind\":\"cuda\",\"gpu\":%d}", i > 0 ? "," : "", i % 64);
        buf_add_str(&text, "]}");
        EXPECT_EQ(load(buf_cstr(&text)), n == CONFIG_DEVICES_MAX ? INFERD_OK : INFERD_EINVAL);
    }
    EXPECT(strstr(buf_cstr(&problems), "devices: has 65 elements, at most 64 are possible") !=
           NULL);
    /* The largest sums: a hundred thousand tenants that want all there can be. */
    buf_clear(&text);
    buf_add_str(&text, "{" MODELS ",\"devices\":[{\"memory\":\"1GiB\"}],\n\"tenants\":[");
    for (int i = 0; i < CONFIG_TENANTS_MAX; i++)
        buf_add_format(&text, "%s{\"name\":\"t%d\",\"keys\":[\"sk-key-%d\"],\"min\":\"64TiB\"}",
                       i > 0 ? "," : "", i, i);
    buf_add_str(&text, "]}");
    EXPECT_EQ(load(buf_cstr(&text)), INFERD_EINVAL);
    EXPECT(strstr(buf_cstr(&problems), ":2: tenants[0].min: the tenants' min together are "
                                       "6400000TiB, the devices have 1GiB") != NULL);
    buf_deinit(&text);
    close_folder();
}

static void counted_tokens_need_a_state_dir(void) {
    open_folder();
    problem_is("{" MODELS ",\"tenants\":[" TENANT("t", "\"weight\":1") ","                 //
               TENANT("u", "\"limits\":{\"tokens_per_day\":7,\"tokens_per_month\":8}") "," //
               TENANT("v", "\"limits\":{\"tokens_per_month\":9}") "]}",
               ":3: tenants[1].limits.tokens_per_day: 7 tokens need state_dir, a folder that keeps "
               "the counts over restarts");
    problem_is("{" MODELS ",\"tenants\":[" TENANT("v", "\"limits\":{\"tokens_per_month\":9}") "]}",
               ":2: tenants[0].limits.tokens_per_month: 9 tokens need state_dir, a folder that "
               "keeps the counts over restarts");
    /* A wrong one is told as such, not as missing. */
    problem_is("{" MODELS ",\"state_dir\":7,\"tenants\":[" TENANT(
                   "v", "\"limits\":{\"tokens_per_month\":9}") "]}",
               ":1: state_dir: expected text, found a whole number");
    EXPECT_EQ(load("{" MODELS ",\"state_dir\":\"s\",\"tenants\":[" //
                   TENANT("v", "\"limits\":{\"tokens_per_month\":9}") "]}"),
              INFERD_OK);
    EXPECT_EQ(
        load("{" MODELS ",\"tenants\":[" TENANT("v", "\"limits\":{\"tokens_per_min\":9}") "]}"),
        INFERD_OK);
    close_folder();
}

/* 0 is a limit: nothing is let in.  Who means none says null, or nothing. */
static void a_limit_may_be_zero_and_may_be_null(void) {
#define ALL_LIMITS(is)                                                                             \
    "\"limits\":{\"requests_per_min\":" is ",\"tokens_per_min\":" is ",\"concurrent\":" is         \
    ",\"tokens_per_day\":" is ",\"tokens_per_month\":" is "}"
    open_folder();
    static const char text[] = "{" MODELS ",\"tenants\":[" TENANT("t", ALL_LIMITS("0")) "," //
        TENANT("u", ALL_LIMITS("null")) ","                                                 //
        TENANT("v", "\"limits\":{}") "," TENANT("w", "\"weight\":1") "]}";
    EXPECT_EQ(load(text), INFERD_OK); // without state_dir: nothing is counted
    for (uint32_t i = 0; i < 4; i++) {
        const config_tenant_limits *l = &c->tenants[i].limits;
        uint64_t wanted = i == 0 ? 0 : CONFIG_NO_LIMIT;
        EXPECT(l->requests_per_min == wanted && l->tokens_per_min == wanted);
        EXPECT(l->concurrent == wanted);
        EXPECT(l->tokens_per_day == wanted && l->tokens_per_month == wanted);
    }
    close_folder();
}

static void admin_keys_belong_to_no_tenant(void) {
#define ADMIN(keys)   "\"admin\":{\"listen\":\"unix:/run/a\",\"keys\":[" keys "]}"
#define ONE_TENANT    "\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]}]"
#define IS_ADMIN(key) config_is_admin_key(c, (bytes){key, sizeof key - 1})
    open_folder();
    EXPECT_EQ(load("{" MODELS "," ONE_TENANT
                   "," ADMIN("\"sk-admin-0001\",\"sk-admin-0002\",\"sk-admin-0003\"") "}"),
              INFERD_OK);
    EXPECT(IS_ADMIN("sk-admin-0001") && IS_ADMIN("sk-admin-0002") && IS_ADMIN("sk-admin-0003"));
    EXPECT(!IS_ADMIN("sk-012345678") && !IS_ADMIN("sk-admin-0004") && !IS_ADMIN(""));
    EXPECT_EQ(tenant_of("sk-admin-0001"), -1);
    EXPECT_EQ(tenant_of("sk-012345678"), 0);
    problem_is("{" MODELS "," ONE_TENANT ",\n" ADMIN("\"sk-admin-0001\",\"sk-012345678\"") "}",
               ":2: admin: one of its keys is also a key of tenants[0]");
    problem_is("{" MODELS ",\n" ADMIN("\"sk-admin-0001\",\"sk-admin-0001\"") "}",
               ":2: admin: one of its keys is also a key of admin");
    problem_is("{" MODELS ",\"listen\":\"unix:/run/a\",\n" ADMIN("") "}",
               ":2: admin.listen: is the same as listen");
    EXPECT_EQ(load("{" MODELS "}"), INFERD_OK);
    EXPECT(!IS_ADMIN("sk-admin-0001"));
    close_folder();
}

/* -- from memory, and back -- */

static void text_is_read_as_its_file_would_be(void) {
    static const char text[] = "{" MODELS ",\"state_dir\":\"s\"}";
    char expected[128];
    open_folder();
    EXPECT_EQ(config_load_text(file, text, strlen(text), &c, &problems, &err), INFERD_OK);
    EXPECT(access(file, F_OK) != 0); // it was never opened
    EXPECT_STR(c->source, file);
    snprintf(expected, sizeof expected, "%s/m.gguf", folder);
    EXPECT_STR(c->models[0].path, expected);
    snprintf(expected, sizeof expected, "%s/s", folder);
    EXPECT_STR(c->state_dir, expected);
    config_destroy(c);
    c = NULL;
    /* n counts, not a NUL; without a folder paths are those of the working directory. */
    EXPECT_EQ(config_load_text("f.json", "{" MODELS "}garbage", strlen("{" MODELS "}"), &c,
                               &problems, &err),
              INFERD_OK);
    EXPECT_STR(c->models[0].path, "m.gguf");
    config_destroy(c);
    c = NULL;
    EXPECT_STR(buf_cstr(&problems), "");
    EXPECT_EQ(config_load_text("/x/f.json", "{\n}", 3, &c, &problems, NULL), INFERD_EINVAL);
    EXPECT_STR(buf_cstr(&problems), "/x/f.json:1: models: is required\n");
    EXPECT(c == NULL);
    buf_clear(&problems);
    EXPECT_EQ(config_load_text("f", NULL, 0, &c, &problems, &err), INFERD_EINVAL);
    EXPECT_STR(buf_cstr(&problems), "f:1: column 0: the JSON ends too early\n");
    buf_clear(&problems);
    EXPECT_EQ(config_load_text("f", text, CONFIG_FILE_BYTES_MAX + 1, &c, &problems, &err),
              INFERD_EINVAL);
    EXPECT_STR(buf_cstr(&problems), "f: has 67108865 bytes, at most 67108864 are read\n");
    close_folder();
}

static int count_files(void) {
    int n = 0;
    DIR *d = opendir(folder);
    EXPECT(d != NULL);
    while (d != NULL && readdir(d) != NULL) n++;
    if (d != NULL) closedir(d);
    return n - 2; // "." and ".."
}

static void file_holds(const char *path, const char *text) {
    size_t n;
    char *is = read_whole(path, &n);
    EXPECT_STR(is, text);
    free(is);
}

/* In place of the C library's: what is on the disk when, and a disk that says no. */
static int n_synced, fail_sync; // fail_sync: the number of the call that fails, from 1
static int kill_at_sync;        // the same for a kill -9
static char synced[2][16];      // the file's text at each call

int fsync(int fd) {
    if (n_synced < 2) {
        int own = open(file, O_RDONLY);
        ssize_t n = own < 0 ? 0 : read(own, synced[n_synced], sizeof synced[0] - 1);
        synced[n_synced][n < 0 ? 0 : n] = 0;
        if (own >= 0) close(own);
    }
    if (n_synced == kill_at_sync - 1) raise(SIGKILL);
    if (++n_synced == fail_sync) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static void file_is_replaced_as_a_whole(void) {
    struct stat before, after;
    char link[96], path[96];
    open_folder();
    write_file(file, "old", 3, 0640);
    EXPECT_EQ(stat(file, &before), 0);
    n_synced = 0;
    EXPECT_EQ(config_write_file(file, "the new one", 11, &err), INFERD_OK);
    EXPECT_EQ(n_synced, 2); // the text before it has the name, the name after
    EXPECT_STR(synced[0], "old");
    EXPECT_STR(synced[1], "the new one");
    file_holds(file, "the new one");
    EXPECT_EQ(stat(file, &after), 0);
    EXPECT_EQ(after.st_mode, before.st_mode); // whatever the umask is
    EXPECT(after.st_ino != before.st_ino);    // who has the old one open goes on reading it
    EXPECT_EQ(count_files(), 1);
    chmod(file, 0606);
    EXPECT_EQ(config_write_file(file, "", 0, &err), INFERD_OK);
    EXPECT_EQ(stat(file, &after), 0);
    EXPECT_EQ(after.st_mode & 07777, 0606);
    EXPECT_EQ(after.st_size, 0);
    /* A link stays one, and what it names is replaced; also from elsewhere and by a relative one.
     */
    snprintf(link, sizeof link, "%s/link.json", folder);
    EXPECT_EQ(symlink("inferd.json", link), 0);
    EXPECT_EQ(config_write_file(link, "through", 7, &err), INFERD_OK);
    EXPECT(lstat(link, &after) == 0 && S_ISLNK(after.st_mode));
    file_holds(file, "through");
    EXPECT_EQ(count_files(), 2);
    unlink(link);
    /* A name that somebody has already taken for a temporary file is left alone. */
    snprintf(path, sizeof path, "%s/.inferd.json.inferd-%d-0", folder, (int)getpid());
    write_file(path, "mine", 4, 0600);
    EXPECT_EQ(config_write_file(file, "again", 5, &err), INFERD_OK);
    file_holds(path, "mine");
    file_holds(file, "again");
    EXPECT_EQ(count_files(), 2);
    unlink(path);
    if (geteuid() == 0) { // who may give files away keeps their owner
        EXPECT_EQ(chown(file, 1234, 4321), 0);
        chmod(file, 04711);
        EXPECT_EQ(config_write_file(file, "x", 1, &err), INFERD_OK);
        EXPECT_EQ(stat(file, &after), 0);
        EXPECT_EQ(after.st_uid, 1234);
        EXPECT_EQ(after.st_gid, 4321);
        EXPECT_EQ(after.st_mode & 07777, 04711);
    }
    /* One that is not there is made, for nobody else to read. */
    unlink(file);
    EXPECT_EQ(config_write_file(file, "first", 5, &err), INFERD_OK);
    file_holds(file, "first");
    EXPECT_EQ(stat(file, &after), 0);
    EXPECT_EQ(after.st_mode & 07777, 0600);
    EXPECT_EQ(count_files(), 1);
    close_folder();
}

/* Whatever goes wrong: the old text, and nothing beside it. */
static void write_fails(const char *path, const char *sentence) {
    int n = count_files();
    memset(&err, 0, sizeof err);
    EXPECT_EQ(config_write_file(path, "the new one", 11, &err), INFERD_EIO);
    EXPECT(strstr(err.text, sentence) != NULL);
    if (strstr(err.text, sentence) == NULL) printf("  %s\n", err.text);
    EXPECT_EQ(count_files(), n);
}

static void failed_writing_changes_nothing(void) {
    const uid_t no_user = 65534;
    struct rlimit limit, small;
    char path[96];
    bool root = geteuid() == 0;
    open_folder();
    write_fails(folder, "not a file");
    snprintf(path, sizeof path, "%s/none/inferd.json", folder);
    write_fails(path, "No such file");
    snprintf(path, sizeof path, "%s/dangling", folder);
    EXPECT_EQ(symlink("nowhere", path), 0);
    write_fails(path, "No such file");
    unlink(path);
    write_file(file, "old", 3, 0644);
    /* A full disk, played by a limit on the size of files. */
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 5;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    write_fails(file, "File too large");
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_DFL);
    file_holds(file, "old");
    /* A disk that fails: before the change, and after it. */
    n_synced = 0, fail_sync = 1;
    write_fails(file, "writing to the disk: Input/output error");
    file_holds(file, "old");
    n_synced = 0, fail_sync = 2;
    write_fails(file, "is replaced, but perhaps not on the disk: Input/output error");
    file_holds(file, "the new one");
    fail_sync = 0;
    write_file(file, "old", 3, 0644);
    /* All names for a temporary file are taken, and stay with who has them. */
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "%s/.inferd.json.inferd-%d-%d", folder, (int)getpid(), i);
        write_file(path, "mine", 4, 0600);
    }
    write_fails(file, "creating a temporary file: File exists");
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "%s/.inferd.json.inferd-%d-%d", folder, (int)getpid(), i);
        unlink(path);
    }
    file_holds(file, "old");
    /* A folder that cannot be written; root can, and so becomes somebody else. */
    chmod(folder, 0555);
    if (root) EXPECT_EQ(seteuid(no_user), 0);
    write_fails(file, "creating a temporary file: Permission denied: the daemon may not write "
                      "there; docs/install.md says how to allow it");
    if (root) EXPECT_EQ(seteuid(0), 0);
    file_holds(file, "old");
    chmod(folder, 0755);
    /* A folder of ours with a file that is somebody else's, whose owner it could not keep. */
    if (root) {
        EXPECT_EQ(chown(folder, no_user, (gid_t)-1), 0);
        EXPECT_EQ(seteuid(no_user), 0);
        write_fails(file, "setting the owner of the new file: Operation not permitted");
        EXPECT_EQ(seteuid(0), 0);
        file_holds(file, "old");
    }
    close_folder();
}

/* As docs/install.md says for the service: the folder is root's, its group may write there, and the
 * file is the daemon's own. */
static void a_file_of_ours_in_a_folder_of_our_group_is_replaced(void) {
    const uid_t no_user = 65534;
    const gid_t no_group = 65534;
    struct stat st;
    if (geteuid() != 0) SKIP("needs root");
    open_folder();
    write_file(file, "old", 3, 0640);
    EXPECT_EQ(chown(file, no_user, no_group), 0);
    EXPECT_EQ(chown(folder, 0, no_group), 0);
    EXPECT_EQ(chmod(folder, 0770), 0);
    EXPECT_EQ(setegid(no_group), 0);
    EXPECT_EQ(seteuid(no_user), 0);
    EXPECT_EQ(config_write_file(file, "the new one", 11, &err), INFERD_OK);
    EXPECT_EQ(seteuid(0), 0);
    EXPECT_EQ(setegid(0), 0);
    file_holds(file, "the new one");
    EXPECT(stat(file, &st) == 0 && st.st_uid == no_user && st.st_gid == no_group);
    EXPECT_EQ(st.st_mode & 07777, 0640);
    close_folder();
}

/* -- changes -- */

/* Once the copy, keys in it, had the mode of the file (644) before it was whole, and stayed. */
static void a_killed_writer_leaves_a_private_copy_that_is_swept(void) {
    static const char *const others[] = {".inferd.json.inferd-12-x",    ".inferd.json.inferd--1",
                                         ".inferd.json.inferd-1-2.bak", ".other.json.inferd-1-2",
                                         ".inferd.jsoninferd-1-2",      "inferd.json.inferd-1-2"};
    char path[128], name[128];
    struct stat st;
    int status = 0;
    open_folder();
    write_file(file, "old", 3, 0644);
    pid_t child = fork();
    if (child == 0) {
        n_synced = 0, kill_at_sync = 1;
        config_write_file(file, "the new one", 11, &err);
        _exit(0);
    }
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    file_holds(file, "old");
    EXPECT_EQ(count_files(), 2);
    snprintf(path, sizeof path, "%s/.inferd.json.inferd-%d-0", folder, (int)child);
    file_holds(path, "the new one");
    EXPECT(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
    /* One that is being written, by whatever process, has a lock. */
    snprintf(path, sizeof path, "%s/.inferd.json.inferd-1-0", folder);
    write_file(path, "live", 4, 0600);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
    for (size_t i = 0; i < INFERD_COUNT(others); i++) {
        snprintf(name, sizeof name, "%s/%s", folder, others[i]);
        write_file(name, "theirs", 6, 0600);
    }
    EXPECT_EQ(config_sweep(file), 1);
    EXPECT_EQ(count_files(), 2 + (int)INFERD_COUNT(others));
    file_holds(path, "live");
    close(fd);
    EXPECT_EQ(config_sweep(file), 1);
    EXPECT_EQ(config_sweep(file), 0);
    EXPECT_EQ(count_files(), 1 + (int)INFERD_COUNT(others));
    /* A link, and a file of another user, are not ours. */
    EXPECT_EQ(symlink("inferd.json", path), 0);
    EXPECT_EQ(config_sweep(file), 0);
    unlink(path);
    if (geteuid() == 0) {
        write_file(path, "theirs", 6, 0600);
        EXPECT_EQ(chown(path, 1234, 4321), 0);
        EXPECT_EQ(config_sweep(file), 0);
        unlink(path);
    }
    for (size_t i = 0; i < INFERD_COUNT(others); i++) {
        snprintf(name, sizeof name, "%s/%s", folder, others[i]);
        unlink(name);
    }
    EXPECT_EQ(config_sweep("/nowhere/inferd.json"), 0);
    close_folder();
}

static void what_needs_a_restart_is_named(void) {
    static const struct {
        const char *text, *names;
    } rows[] = {
        {"{" MODELS "}", ""},
        {"{" MODELS ",\"limits\":{\"queue_timeout_ms\":5,\"drain_timeout_s\":1}}", ""},
        {"{" MODELS ",\"limits\":{\"client_timeout_ms\":5000}}", "limits.client_timeout_ms"},
        {"{" MODELS ",\"listen\":\"127.0.0.1:8081\"}", "listen"},
        {"{" MODELS ",\"devices\":[{\"memory\":\"4GiB\",\"threads\":3}]}",
         "devices[0].memory, devices[0].threads"},
        {"{" MODELS ",\"devices\":[{}]}", ""},
        {"{" MODELS ",\"limits\":{\"watchdog_s\":0}}", ""},
        {"{" MODELS ",\"devices\":[{\"kind\":\"cuda\",\"gpu\":1}]}",
         "devices[0].kind, devices[0].gpu"},
        {"{" MODELS ",\"devices\":[{\"gpu\":\"GPU-1\"}]}", "devices[0].gpu"},
        {"{\"models\":[{\"name\":\"m\",\"path\":\"n.gguf\",\"aliases\":[\"a\"],\"max_context\":5}]"
         "}",
         ""},
        {"{" MODELS ",\"policy\":{\"urgent_percent\":3,\"tpot_ms\":20}}", ""},
        {"{" MODELS ",\"policy\":{\"zero_on_tenant_change\":true}}",
         "policy.zero_on_tenant_change"},
        {"{\"models\":[{\"name\":\"m\",\"path\":\"m.gguf\",\"weight\":0,\"keep_alive\":1},"
         "{\"name\":\"n\",\"path\":\"n.gguf\"}]}",
         ""},
        {"{" MODELS ",\"host_arena\":0,\"state_dir\":\"s\"}", "host_arena, state_dir"},
        {"{" MODELS ",\"kv_disk\":\"1GiB\",\"state_dir\":\"s\"}", "kv_disk, state_dir"},
        {"{" MODELS ",\"admin\":{\"listen\":\"unix:/run/a\",\"keys\":[\"sk-admin-0001\"]}}",
         "admin.listen"},
        {"{" MODELS ",\"admin\":{\"keys\":[\"sk-admin-0001\"]}}", ""},
        {"{" MODELS ",\"devices\":[{\"name\":\"a\",\"cores\":\"1\"}]}",
         "devices[0].name, devices[0].cores"},
        {"{" MODELS ",\"devices\":[{\"kind\":\"cuda\"},{\"kind\":\"cpu\"}]}", "devices"},
        {"{" MODELS ",\"limits\":{\"running_max\":1,\"body_bytes_max\":4096,\"kv_type\":\"f32\"}}",
         "limits.body_bytes_max, limits.running_max, limits.kv_type"},
        {"{" MODELS ",\"log\":{\"level\":\"error\",\"path\":\"x\"}}", "log.path, log.level"},
        {"{" MODELS ",\"tracing\":{\"endpoint\":\"http://h/v1/traces\",\"sample_ratio\":0.5}}",
         "tracing.endpoint"},
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
    EXPECT_EQ(load("{" MODELS ",\"tenants\":[{\"name\":\"t\",\"keys\":[\"sk-012345678\"]}]}"),
              INFERD_OK);
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
        "| `gpu` | 0 to 63, or text | 0 |",
        "| `threads` | 1 to 1024 | `\"auto\"` |",
        "## `limits`",
        "| `running_max` | 1 to 4096 | 32 |",
        "| `kv_type` | `\"f16\"`, `\"bf16\"`, `\"f32\"`, `\"int8\"`, `\"int16\"`, `\"auto\"` |",
        "| `path` | a path | required |",
        "| `host_arena` | 0 to 64TiB |  |",
        "| `key` | text, or a list of texts |  |",
        "| `json` | true, false | false |",
        "| `cores` | a list of CPUs, `\"0-3,8\"` |  |",
        "| `keep_alive` | a time up to 36500 days | `\"never\"` |",
        "## `models[].share` and `tenants[].share`",
        "| `policy` | `\"besteffort\"`, `\"burst\"`, `\"fixed\"` | `\"besteffort\"` |",
        "| `percent` | 1 to 6400 |  |",
        "## `models[].slo`",
        "## `models[].replicas`",
        "## `tenants[].limits`",
        "| `tokens_per_day` | 0 to 1000000000000000, null | null |",
    };
    for (size_t i = 0; i < INFERD_COUNT(some); i++) {
        EXPECT(strstr(buf_cstr(&out), some[i]) != NULL);
        if (strstr(buf_cstr(&out), some[i]) == NULL) printf("  %s\n", some[i]);
    }
    size_t n = 0;
    char *text = read_whole(INFERD_SOURCE_DIR "/docs/configuration.md", &n);
    EXPECT(n > out.n && memcmp(text + n - out.n, out.p, out.n) == 0);
    free(text);
    buf_deinit(&out);
}

/* There once were 128.  A table of several options has its rows once. */
static void there_are_at_most_93_settings(void) {
    size_t n = 0;
    buf out;
    buf_init(&out, 0);
    config_describe(&out);
    for (const char *p = buf_cstr(&out); (p = strstr(p, "\n| `")) != NULL; p++) n++;
    EXPECT(n > 0 && n <= 93);
    if (n > 93) printf("  %zu\n", n);
    buf_deinit(&out);
}

/* Writes {"a":{"b":0}} for "a.b" and {"a":[{"b":0}]} for "a[].b", beside the models. */
static void write_removed(const char *path, buf *out) {
    const char *dot = strchr(path, '.');
    size_t n = (size_t)(dot - path);
    bool list = n > 2 && dot[-1] == ']';
    buf_add_format(out, "{" MODELS ",\n\"%.*s\":%s{\n\"%s\":0}%s}", (int)(list ? n - 2 : n), path,
                   list ? "[" : "", dot + 1, list ? "]" : "");
}

/* As `ctl set model a policy.placement=spread` sends it. */
static void a_patch_with_a_removed_setting_is_refused(void) {
    static const struct {
        const char *patch, *sentence;
    } rows[] = {
        {"{\"policy\":{\"placement\":\"spread\"}}",
         "policy.placement: was removed in 0.1.0: it is \"balanced\""},
        {"{\"limits\":{\"json_depth_max\":9}}",
         "limits.json_depth_max: was removed in 0.1.0: it is 64"},
        {"{\"weight\":2,\"kv_disk\":{\"max\":1}}",
         "kv_disk.max: was removed in 0.1.0: use \"kv_disk\": SIZE"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        for (int section = EDIT_MODELS; section <= EDIT_TENANTS; section++) {
            json_t *patch = json_loads(rows[i].patch, 0, NULL);
            EXPECT_EQ(edit_check_patch((edit_section)section, patch, &err), INFERD_EINVAL);
            EXPECT_STR(err.text, rows[i].sentence);
            json_decref(patch);
        }
    json_t *fine = json_loads("{\"limits\":{\"concurrent\":3}}", 0, NULL);
    EXPECT_EQ(edit_check_patch(EDIT_TENANTS, fine, &err), INFERD_OK);
    json_decref(fine);
}

/* Each by its place and with what replaces it; the changelog has the same list. */
static void removed_settings_are_refused_with_their_replacement(void) {
    size_t n_bytes;
    char *text = read_whole(INFERD_SOURCE_DIR "/CHANGELOG.md", &n_bytes);
    open_folder();
    EXPECT(config_n_removed() >= 40);
    for (size_t i = 0; i < config_n_removed(); i++) {
        const config_removed *was = config_removed_at(i);
        char path[64], line[512], quoted[80];
        buf given;
        buf_init(&given, 0);
        write_removed(was->path, &given);
        const char *bracket = strstr(was->path, "[]");
        if (bracket == NULL)
            snprintf(path, sizeof path, "%s", was->path);
        else
            snprintf(path, sizeof path, "%.*s[0]%s", (int)(bracket - was->path), was->path,
                     bracket + 2);
        snprintf(line, sizeof line, ":3: %s: was removed in %s: %s", path, was->since,
                 was->sentence);
        problem_is(buf_cstr(&given), line);
        EXPECT(c == NULL);
        snprintf(quoted, sizeof quoted, "`%s`", was->path);
        EXPECT(strstr(text, quoted) != NULL);
        if (strstr(text, quoted) == NULL) printf("  CHANGELOG.md has no %s\n", quoted);
        buf_deinit(&given);
    }
    free(text);
    close_folder();
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
    TEST(a_gpu_is_named_by_number_or_uuid),
    TEST(limits_follow_from_others),
    TEST(wrong_values_of_a_device_are_told),
    TEST(rules_of_the_whole_are_checked),
    TEST(all_problems_are_collected),
    TEST(unreadable_files_are_told),
    TEST(keys_come_from_file_and_environment_too),
    TEST(problems_never_show_a_key),
    TEST(many_tenants_start_quickly),
    TEST(documented_example_is_read),
    TEST(the_readme_has_a_configuration_that_loads),
    TEST(each_new_value_has_its_range),
    TEST(values_arrive_where_they_belong),
    TEST(shares_are_completed_and_checked),
    TEST(durations_are_read),
    TEST(decimals_and_sizes_are_exact),
    TEST(lists_of_cores_are_read),
    TEST(shorthands_are_read_as_what_they_stand_for),
    TEST(shorthands_are_merged_as_objects),
    TEST(one_key_is_masked_too),
    TEST(guarantees_fit_the_devices),
    TEST(guarantees_are_counted_in_pages),
    TEST(more_replicas_than_devices_are_noted),
    TEST(capped_classes_are_noted),
    TEST(weights_without_effect_are_noted),
    TEST(shares_that_leave_nothing_are_noted),
    TEST(shares_are_said_with_what_urgent_requests_take),
    TEST(rounding_is_noted),
    TEST(a_daemon_may_have_no_model_yet),
    TEST(warnings_have_a_line_and_know_the_files),
    TEST(the_whole_shape_is_read),
    TEST(devices_are_told_apart),
    TEST(counts_have_bounds),
    TEST(counted_tokens_need_a_state_dir),
    TEST(a_limit_may_be_zero_and_may_be_null),
    TEST(admin_keys_belong_to_no_tenant),
    TEST(text_is_read_as_its_file_would_be),
    TEST(file_is_replaced_as_a_whole),
    TEST(failed_writing_changes_nothing),
    TEST(a_file_of_ours_in_a_folder_of_our_group_is_replaced),
    TEST(a_killed_writer_leaves_a_private_copy_that_is_swept),
    TEST(what_needs_a_restart_is_named),
    TEST(every_option_is_described),
    TEST(there_are_at_most_93_settings),
    TEST(removed_settings_are_refused_with_their_replacement),
    TEST(a_patch_with_a_removed_setting_is_refused),
    TEST(digests_are_blake2s),
};
TEST_MAIN(cases)
