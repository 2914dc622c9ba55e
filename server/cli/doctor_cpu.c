/* doctor_cpu.c - checks of the processor, the clock, and what the machine runs in; see doctor.h. */
#include <glob.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "kernels/machine.h"

/* ---- instructions ---- */

/* As kernels/cpu/level.c chooses, the best last. */
static const struct {
    const char *name, *needs;
} levels[] = {
    {"avx2", "avx2 fma f16c"},
    {"avxvnni", "avx2 fma f16c avx_vnni"},
    {"avx512", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq"},
    {"avx512vnni", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni"},
    {"avx512bf16", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16"},
    {"avx512amx", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 "
                  "amx_tile amx_int8"},
};

static bool has_all(const char *flags, const char *needs) {
    char word[32];
    for (size_t n; *needs != 0; needs += n, needs += *needs == ' ') {
        n = strcspn(needs, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, needs);
        if (!doctor_has_word(flags, word)) return false;
    }
    return true;
}

/* The last words of the list: what the level adds to those below. */
const char *doctor_cpu_level(const char *flags, const char **lacks) {
    static const char *const adds[] = {"avx2, fma and f16c", "avx_vnni, or AVX-512", "AVX-512",
                                       "avx512_vnni",        "avx512_bf16",          "AMX"};
    const char *name = "base";
    size_t best = 0;
    for (size_t i = 0; i < INFERD_COUNT(levels); i++)
        if (has_all(flags, levels[i].needs)) {
            name = levels[i].name;
            best = i + 1;
        }
    *lacks = best < INFERD_COUNT(adds) ? adds[best] : "";
    return name;
}

static void check_instructions(doctor *d) {
    static char flags[8192];
    char name[128] = "";
    const char *lacks, *asked = d->facts.cpu_level_asked;
    if (!doctor_find(d, "/proc/cpuinfo", "model name", name, sizeof name))
        snprintf(name, sizeof name, "processor");
    if (!doctor_find(d, "/proc/cpuinfo", "flags", flags, sizeof flags)) {
        doctor_add(d, DOCTOR_OK, "cpu.instructions", "%s: base (not x86-64)", name);
        return;
    }
    const char *level = doctor_cpu_level(flags, &lacks);
    if (strcmp(level, "base") == 0) {
        bool guest = doctor_has_word(flags, "hypervisor");
        doctor_add(d, DOCTOR_WARNING, "cpu.instructions", "%s: base; it lacks %s", name, lacks);
        doctor_advise(d, guest ? "the kernels compute many times slower without AVX2: give the "
                                 "virtual machine the host's CPU model (QEMU: -cpu host)"
                               : "the kernels compute many times slower without AVX2: use a "
                                 "processor that has it, or a GPU");
        return;
    }
    if (asked != NULL && asked[0] != 0 && strcmp(asked, level) != 0) {
        doctor_add(d, DOCTOR_WARNING, "cpu.instructions", "%s: %s, but INFERD_CPU is \"%.40s\"",
                   name, level, asked);
        doctor_advise(d, "unset INFERD_CPU: it is for tests");
        return;
    }
    doctor_add(d, DOCTOR_OK, "cpu.instructions", "%s: %s%s%s", name, level,
               lacks[0] != 0 ? ", without " : "", lacks);
}

/* ---- cores ---- */

/* CPUs of a list like "0-3,8". */
static uint32_t count_list(const char *text) {
    uint32_t n = 0;
    for (const char *p = text; *p != 0;) {
        char *end;
        unsigned long first = strtoul(p, &end, 10), last = first;
        if (end == p) break;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        if (last >= first) n += (uint32_t)(last - first + 1);
        p = end + (*end == ',');
        if (*end != ',') break;
    }
    return n;
}

static uint32_t quota_of(const doctor *d) {
    char groups[PATH_MAX], root[PATH_MAX];
    snprintf(groups, sizeof groups, "%s/proc/self/cgroup", d->root);
    snprintf(root, sizeof root, "%s/sys/fs/cgroup", d->root);
    return machine_group_cpus(groups, root);
}

/* Threads that the configuration gives to CPU devices; 0: as many as are allowed. */
static uint32_t threads_wanted(const doctor *d) {
    uint32_t n = 0;
    for (uint32_t i = 0; d->config != NULL && i < d->config->n_devices; i++) {
        const config_device *c = &d->config->devices[i];
        bool cpu = c->kind == NULL || strcmp(c->kind, "cuda") != 0;
        if (cpu) n += c->threads;
    }
    return n;
}

static void check_cores(doctor *d) {
    char text[1024];
    uint32_t online = doctor_read(d, "/sys/devices/system/cpu/online", text, sizeof text)
                          ? count_list(text)
                          : d->facts.n_cpus;
    uint32_t quota = quota_of(d), mask = d->facts.n_cpus;
    uint32_t allowed = quota != 0 && quota < mask ? quota : mask, wanted = threads_wanted(d);
    char limits[96] = "";
    if (mask < online) snprintf(limits, sizeof limits, ", affinity mask of %u", mask);
    if (quota != 0 && quota < mask) {
        size_t n = strlen(limits);
        snprintf(limits + n, sizeof limits - n, ", control group's quota of %u", quota);
    }
    if (wanted > allowed) {
        doctor_add(d, DOCTOR_WARNING, "cpu.cores",
                   "%u may be used of %u online%s; devices[].threads are %u", allowed, online,
                   limits, wanted);
        doctor_advise(d,
                      "threads that share a core wait for each other: leave devices[].threads "
                      "out, or set at most %u in all",
                      allowed);
        return;
    }
    doctor_add(d, allowed == 1 ? DOCTOR_WARNING : DOCTOR_OK, "cpu.cores",
               "%u may be used of %u online%s", allowed, online, limits);
    if (allowed == 1)
        doctor_advise(d, "HTTP and computing share one core: allow at least 2 (CPUQuota, "
                         "AllowedCPUs, docker --cpus)");
}

static void check_core_lists(doctor *d) {
    for (uint32_t i = 0; d->root[0] == 0 && d->config != NULL && i < d->config->n_devices; i++) {
        cpu_set_t set;
        inferd_err err = {0};
        const char *cores = d->config->devices[i].cores;
        if (cores == NULL || machine_cpu_list(cores, &set, &err) == INFERD_OK) continue;
        doctor_add(d, DOCTOR_PROBLEM, "cpu.cores", "devices[%u].%s", i, err.text);
        doctor_advise(d, "name CPUs of /sys/devices/system/cpu/online that this process may use");
    }
}

static void check_smt(doctor *d) {
    uint64_t active = doctor_read_number(d, "/sys/devices/system/cpu/smt/active", UINT64_MAX);
    if (active == UINT64_MAX)
        doctor_add(d, DOCTOR_OK, "cpu.smt", "not told by this machine");
    else
        doctor_add(d, DOCTOR_OK, "cpu.smt",
                   active == 1 ? "on: two threads share a core, and CPUs are counted as threads"
                               : "off: each CPU is a core");
}

/* ---- frequency ---- */

/* With these drivers the processor chooses the frequency itself, and "powersave" is its default. */
static bool is_own_choice(const char *driver) {
    return strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0;
}

static void check_governor(doctor *d) {
    char pattern[PATH_MAX], first[32] = "", driver[64] = "", preference[64] = "";
    glob_t found;
    uint32_t n_slow = 0, n = 0;
    snprintf(pattern, sizeof pattern,
             "%s/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor", d->root);
    doctor_read(d, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver, sizeof driver);
    doctor_read(d, "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", preference,
                sizeof preference);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            char governor[32];
            if (!doctor_read(d, found.gl_pathv[i] + strlen(d->root), governor, sizeof governor))
                continue;
            if (n++ == 0) snprintf(first, sizeof first, "%s", governor);
            bool saves = strcmp(governor, "powersave") == 0;
            n_slow += (saves && !is_own_choice(driver)) || strcmp(governor, "conservative") == 0 ||
                      (saves && strcmp(preference, "power") == 0);
        }
        globfree(&found);
    }
    if (n == 0) {
        doctor_add(d, DOCTOR_OK, "cpu.frequency",
                   "not set by this system (a virtual machine's "
                   "host or the firmware sets it)");
        return;
    }
    doctor_add(d, n_slow > 0 ? DOCTOR_WARNING : DOCTOR_OK, "cpu.frequency", "governor %s%s%s%s%s",
               first, driver[0] != 0 ? ", driver " : "", driver,
               preference[0] != 0 ? ", preference " : "", preference);
    if (n_slow > 0)
        doctor_advise(d, "%u of %u CPUs are kept slow: cpupower frequency-set -g performance",
                      n_slow, n);
}

void doctor_check_cpu(doctor *d) {
    check_instructions(d);
    check_cores(d);
    check_core_lists(d);
    check_smt(d);
    check_governor(d);
}

/* ---- clock ---- */

static void check_clock_source(doctor *d) {
    static const char *const fast[] = {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource",
                                       "xen"};
    char source[64];
    if (!doctor_read(d, "/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
                     sizeof source)) {
        doctor_add(d, DOCTOR_OK, "clock.source", "not told by this machine");
        return;
    }
    bool is_fast = false;
    for (size_t i = 0; i < INFERD_COUNT(fast); i++)
        is_fast = is_fast || strncmp(source, fast[i], strlen(fast[i])) == 0;
    doctor_add(d, is_fast ? DOCTOR_OK : DOCTOR_WARNING, "clock.source", "%s", source);
    if (!is_fast)
        doctor_advise(d, "each reading of the clock is a system call: see `dmesg | grep -i tsc` "
                         "for the reason why the TSC is not used");
}

static bool counts_days(const inferd_config *c) {
    for (uint32_t i = 0; c != NULL && i < c->n_tenants; i++) {
        const config_tenant_limits *l = &c->tenants[i].limits;
        if (l->tokens_per_day != CONFIG_NO_LIMIT || l->tokens_per_month != CONFIG_NO_LIMIT)
            return true;
    }
    return false;
}

static void check_clock_sync(doctor *d) {
    const doctor_facts *f = &d->facts;
    if (f->clock_state < 0) {
        doctor_add(d, DOCTOR_OK, "clock.sync", "not told by this machine");
        return;
    }
    if (!f->clock_unsynced) {
        doctor_add(d, DOCTOR_OK, "clock.sync", "synchronised");
        return;
    }
    doctor_add(d, DOCTOR_WARNING, "clock.sync", "not synchronised, as the kernel says%s",
               counts_days(d->config) ? "; tenants have limits per day or month of UTC" : "");
    doctor_advise(d, "run chrony or systemd-timesyncd (timedatectl set-ntp true); a virtual "
                     "machine may follow its host without it");
}

static void check_clock_time(doctor *d) {
    enum { SLACK_S = 86400 };
    const int64_t year_2025 = INT64_C(1735689600), year_2100 = INT64_C(4102444800);
    char text[32] = "";
    time_t now = (time_t)d->facts.now_s;
    struct tm tm;
    if (gmtime_r(&now, &tm) != NULL) strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm);
    bool early = d->facts.now_s < year_2025 || d->facts.now_s + SLACK_S < d->facts.built_s;
    bool sane = !early && d->facts.now_s < year_2100;
    doctor_add(d, sane ? DOCTOR_OK : DOCTOR_PROBLEM, "clock.time", "%s UTC%s", text,
               early ? ", before this program was made" : "");
    if (!sane)
        doctor_advise(d, "set the clock: days and months of limits, logs and answers follow it");
}

void doctor_check_clock(doctor *d) {
    check_clock_source(d);
    check_clock_sync(d);
    check_clock_time(d);
}

/* ---- container, virtual machine ---- */

static const char *container_of(const doctor *d) {
    static char text[4096];
    if (doctor_exists(d, "/.dockerenv")) return "a Docker container";
    if (doctor_exists(d, "/run/.containerenv")) return "a Podman container";
    if (doctor_exists(d, "/var/run/secrets/kubernetes.io")) return "a pod of Kubernetes";
    if (doctor_read(d, "/run/systemd/container", text, sizeof text)) return text;
    if (!doctor_read(d, "/proc/self/cgroup", text, sizeof text)) return NULL;
    if (strstr(text, "kubepods") != NULL) return "a pod of Kubernetes";
    if (strstr(text, "/docker/") != NULL) return "a Docker container";
    return strstr(text, "/lxc/") != NULL ? "an LXC container" : NULL;
}

static void check_steal(doctor *d) {
    unsigned long long user, nice, kernel, idle, wait, irq, soft, steal;
    char text[512];
    enum { MUCH_PERCENT = 5 };
    if (!doctor_read(d, "/proc/stat", text, sizeof text) ||
        sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &kernel, &idle,
               &wait, &irq, &soft, &steal) != 8)
        return;
    unsigned long long busy = user + nice + kernel + irq + soft + steal;
    double percent = busy > 0 ? 100.0 * (double)steal / (double)busy : 0;
    if (percent < MUCH_PERCENT) return;
    doctor_add(d, DOCTOR_WARNING, "machine.steal",
               "%.0f %% of the busy time since the boot went to other guests of the host", percent);
    doctor_advise(d, "all compute threads wait for the slowest one: give the virtual machine cores "
                     "of its own");
}

void doctor_check_container(doctor *d) {
    char flags[8192] = "", product[96] = "", release[128] = "";
    const char *in = container_of(d);
    doctor_find(d, "/proc/cpuinfo", "flags", flags, sizeof flags);
    doctor_read(d, "/sys/class/dmi/id/product_name", product, sizeof product);
    doctor_read(d, "/proc/sys/kernel/osrelease", release, sizeof release);
    bool guest = doctor_has_word(flags, "hypervisor");
    doctor_add(d, DOCTOR_OK, "machine.kind", "%s%s%s%s%s%s%s",
               guest ? "virtual machine" : "no virtual machine", product[0] != 0 ? " (" : "",
               product, product[0] != 0 ? ")" : "", in != NULL ? ", in " : "", in != NULL ? in : "",
               strstr(release, "microsoft") != NULL ? ", WSL" : "");
    check_steal(d);
}
