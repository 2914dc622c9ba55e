/* cli_doctor.c - `inferd doctor`: looks at the machine, and at a configuration on it.
 *
 * The checks are in doctor_*.c; here are the facts of this process, the options and the order. */
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#include "cli.h"
#include "ctl_client.h"
#include "doctor.h"
#include "http.h"
#include "kernels/machine.h"

static const char usage[] =
    "usage: inferd doctor [--config FILE.json] [--user NAME] [--json] [--strict] [--module FILE]\n"
    "\n"
    "Looks at this machine and, with --config, at everything that the configuration needs of it:\n"
    "CPU, memory, huge pages, limits, addresses, rights of files, GPU and driver, clock.  It\n"
    "changes nothing.  One line per check: ok, warning or problem, and what to do.\n"
    "\n"
    "  --config FILE  check files, addresses and sizes of this configuration, too\n"
    "  --user NAME    as root: check with the rights of this user; by default that of\n"
    "                 inferd.service, where it is installed\n"
    "  --json         one JSON object\n"
    "  --strict       status 1 also for warnings\n"
    "  --module FILE  inferd_cuda.so, when it is not beside the program\n"
    "\n"
    "Exit status: 0 no problem, 1 a problem (inferd would not run, or not keep what it promises),\n"
    "2 the command line or the configuration is wrong (the machine is checked all the same).\n";

/* ---- facts ---- */

/* The user of the service: its rights count when root asks. */
static struct service_user {
    bool set;
    uid_t uid;
    gid_t gid;
    gid_t groups[64], own_groups[64];
    int n_groups, n_own_groups;
} service;

static void enter_service(void) {
    if (!service.set) return;
    if (setgroups((size_t)service.n_groups, service.groups) != 0 || setegid(service.gid) != 0 ||
        seteuid(service.uid) != 0)
        service.set = false; // a container without these rights of root
}

static void leave_service(void) {
    if (!service.set) return;
    INFERD_CHECK(seteuid(0) == 0 && setegid(0) == 0 &&
                 setgroups((size_t)service.n_own_groups, service.own_groups) == 0);
}

static bool can(const char *path, int mode) {
    enter_service();
    bool may = eaccess(path, mode) == 0;
    leave_service();
    return may;
}

static inferd_status try_listen(const char *listen, inferd_err *err) {
    enter_service();
    inferd_status s = http_try_listen(listen, err);
    leave_service();
    return s;
}

/* False: there is no such user. */
static bool use_service_user(const char *name) {
    const struct passwd *user = getpwnam(name);
    if (user == NULL) return false;
    service.uid = user->pw_uid;
    service.gid = user->pw_gid;
    service.n_groups = INFERD_COUNT(service.groups);
    service.n_own_groups = getgroups(INFERD_COUNT(service.own_groups), service.own_groups);
    service.set = service.n_own_groups >= 0 && service.uid != 0 &&
                  getgrouplist(name, service.gid, service.groups, &service.n_groups) >= 0;
    return true;
}

/* Rights are those of the service, also when root asks. */
static void choose_user(doctor *d, const char *asked) {
    const char *name = asked != NULL ? asked : "inferd";
    if (geteuid() != 0) return;
    bool found = (asked != NULL || doctor_has_unit(d)) && use_service_user(name);
    if (found)
        doctor_add(d, DOCTOR_OK, "rights.user", "%s%s", name,
                   asked != NULL ? "" : ", of inferd.service");
    else
        doctor_add(d, DOCTOR_OK, "rights.user",
                   "root, for which every file is readable: --user NAME is another");
}

/* "0.0.0.0:8080" is asked at 127.0.0.1. */
static bool is_healthy(const char *listen) {
    enum { PATIENCE_S = 1 };
    char url[256];
    ctl_answer answer;
    inferd_err err;
    const char *colon = strrchr(listen, ':'), *port = colon == NULL ? listen : colon + 1;
    bool file = strncmp(listen, "unix:", 5) == 0;
    bool any = colon == NULL || colon == listen || strncmp(listen, "0.0.0.0:", 8) == 0 ||
               strncmp(listen, "[::]:", 5) == 0;
    snprintf(url, sizeof url, any ? "http://127.0.0.1:%.200s" : "http://%.200s",
             any ? port : listen);
    ctl_target t = {.socket_path = file ? listen + 5 : NULL, .url = url};
    if (ctl_ask(&t, "GET", "/health", (bytes){0}, PATIENCE_S, &answer, &err) != INFERD_OK)
        return false;
    const char *text = buf_cstr(&answer.body);
    bool ours = (answer.status == 200 && strcmp(text, "{\"status\":\"ok\"}") == 0) ||
                strcmp(text, "{\"status\":\"device_lost\"}") == 0;
    buf_deinit(&answer.body);
    return ours;
}

static uint64_t limit_of(rlim_t value) {
    return value == RLIM_INFINITY ? UINT64_MAX : (uint64_t)value;
}

void doctor_read_facts(doctor_facts *out) {
    struct rlimit limit;
    struct timex clock = {0};
    struct stat program;
    *out = (doctor_facts){.n_cpus = machine_cpus_in_mask(),
                          .n_fds_max = UINT64_MAX,
                          .memlock_max = UINT64_MAX,
                          .n_tasks_max = UINT64_MAX,
                          .is_root = geteuid() == 0,
                          .now_s = (int64_t)time(NULL),
                          .cpu_level_asked = getenv("INFERD_CPU"),
                          .mps_folder = getenv("CUDA_MPS_PIPE_DIRECTORY"),
                          .can = can,
                          .try_listen = try_listen,
                          .is_healthy = is_healthy};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) out->n_fds_max = limit_of(limit.rlim_max);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) out->memlock_max = limit_of(limit.rlim_cur);
    if (getrlimit(RLIMIT_NPROC, &limit) == 0) out->n_tasks_max = limit_of(limit.rlim_cur);
    out->clock_state = adjtimex(&clock);
    out->clock_unsynced = (clock.status & STA_UNSYNC) != 0;
    if (stat("/proc/self/exe", &program) == 0) out->built_s = (int64_t)program.st_mtime;
}

/* ---- the configuration ---- */

/* [n_models] owned; 0: a file that cannot be read.  NULL: no memory. */
static uint64_t *file_sizes(const inferd_config *c) {
    uint64_t *sizes = calloc((size_t)c->n_models + 1, sizeof *sizes);
    for (uint32_t i = 0; sizes != NULL && i < c->n_models; i++)
        sizes[i] = doctor_model_bytes(c->models[i].path);
    return sizes;
}

/* Adds its problems, or its warnings.  NULL: it has problems. */
static inferd_config *open_config(doctor *d, const char *path) {
    enum { SHOWN = 8 };
    inferd_config *c = NULL;
    inferd_err err = {0};
    buf text;
    buf_init(&text, 1 << 20);
    bool fine = config_load(path, &c, &text, &err) == INFERD_OK && config_check(c, &text);
    if (!fine && text.n == 0) buf_add_format(&text, "%s\n", err.text);
    uint32_t n = 0;
    char *lines = text.n > 0 ? (char *)buf_cstr(&text) : NULL, *rest = NULL;
    for (char *line = lines == NULL ? NULL : strtok_r(lines, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (fine || n++ >= SHOWN) continue;
        doctor_add(d, DOCTOR_PROBLEM, "configuration", "%s", line);
        doctor_advise(d, "correct it: `inferd check %.200s` says all of it", path);
    }
    buf_deinit(&text);
    if (!fine) {
        config_destroy(c);
        return NULL;
    }
    buf_init(&text, 1 << 20);
    uint64_t *sizes = file_sizes(c);
    uint32_t n_warnings = config_write_warnings(c, sizes, &text);
    free(sizes);
    doctor_add(d, n_warnings > 0 ? DOCTOR_WARNING : DOCTOR_OK, "configuration",
               "%u model%s, %u tenant%s, %u warning%s", c->n_models, c->n_models == 1 ? "" : "s",
               c->n_tenants, c->n_tenants == 1 ? "" : "s", n_warnings, n_warnings == 1 ? "" : "s");
    if (n_warnings > 0)
        doctor_advise(d, "%.*s", (int)strcspn(buf_cstr(&text), "\n"), buf_cstr(&text));
    buf_deinit(&text);
    if (!d->facts.can(path, R_OK)) {
        doctor_add(d, DOCTOR_PROBLEM, "configuration", "%.200s may not be read by that user", path);
        doctor_advise(d, "chgrp it to the group of inferd, and chmod g+r");
    }
    return c;
}

/* ---- the command ---- */

static void check_all(doctor *d) {
    doctor_check_container(d);
    doctor_check_cpu(d);
    doctor_check_memory(d);
    doctor_check_limits(d);
    doctor_check_clock(d);
    doctor_check_gpu(d);
    doctor_check_gpu_module(d);
    doctor_check_ports(d);
    doctor_check_files(d);
}

int cli_doctor(int argc, char **argv) {
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'},
                                          {"config", required_argument, NULL, 'c'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"strict", no_argument, NULL, 's'},
                                          {"module", required_argument, NULL, 'm'},
                                          {"user", required_argument, NULL, 'u'},
                                          {0}};
    const char *path = NULL, *user = NULL;
    bool json = false, strict = false;
    doctor d = {.root = ""};
    for (int c; (c = getopt_long(argc, argv, "hc:", longs, NULL)) != -1;) {
        if (c == 'h') return fputs(usage, stdout) < 0;
        if (c == 'c')
            path = optarg;
        else if (c == 'j')
            json = true;
        else if (c == 's')
            strict = true;
        else if (c == 'm')
            d.module = optarg;
        else if (c == 'u')
            user = optarg;
        else
            return fputs(usage, stderr), CLI_WRONG;
    }
    if (optind != argc) return fputs(usage, stderr), CLI_WRONG;
    json_in_init();
    doctor_read_facts(&d.facts);
    if (user != NULL && (geteuid() != 0 || getpwnam(user) == NULL)) {
        fprintf(stderr, "inferd: --user: %s\n",
                geteuid() != 0 ? "only root can ask for another user" : "no such user");
        return CLI_WRONG;
    }
    choose_user(&d, user);
    inferd_config *config = path != NULL ? open_config(&d, path) : NULL;
    d.config = config;
    check_all(&d);
    buf out = {0};
    if (json)
        doctor_write_json(&d, &out);
    else
        doctor_write_text(&d, &out);
    doctor_level worst = doctor_worst(&d);
    bool written = !out.failed && fputs(buf_cstr(&out), stdout) >= 0 && fflush(stdout) == 0;
    buf_deinit(&out);
    doctor_deinit(&d);
    config_destroy(config);
    if (path != NULL && config == NULL) return CLI_WRONG;
    return written && worst < (strict ? DOCTOR_WARNING : DOCTOR_PROBLEM) ? 0 : CLI_FAILED;
}
