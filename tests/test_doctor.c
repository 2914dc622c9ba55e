/* test_doctor.c - the checks of `inferd doctor`, on machines that are folders. */
#include "doctor.h"
#include "host_arena.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "devices.h"
#include "test.h"

static char root[64], files[96]; // a machine, and a folder of files of a configuration
static doctor d;

static void make_folders(const char *path) {
    char part[PATH_MAX];
    for (const char *p = path + 1; (p = strchr(p, '/')) != NULL; p++) {
        snprintf(part, sizeof part, "%.*s", (int)(p - path), path);
        mkdir(part, 0755);
    }
}

static void put_at(const char *folder, const char *name, const char *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%s", folder, name);
    make_folders(path);
    FILE *f = fopen(path, "w");
    EXPECT(f != NULL && fputs(text, f) >= 0);
    if (f != NULL) fclose(f);
}

/* A file of the machine. */
static void put(const char *path, const char *text) {
    put_at(root, path, text);
}

/* The owner's bits, also for root. */
static bool can(const char *path, int mode) {
    struct stat st;
    return stat(path, &st) == 0 && (((unsigned)st.st_mode >> 6) & (unsigned)mode) == (unsigned)mode;
}

static inferd_status listen_answer, file_answer;
static bool healthy;
static int n_asked;

static inferd_status try_listen(const char *listen, inferd_err *err) {
    inferd_status s = strncmp(listen, "unix:", 5) == 0 ? file_answer : listen_answer;
    return s == INFERD_OK ? s : inferd_fail(err, s, "listen %s: no", listen);
}

static bool is_healthy(const char *listen) {
    (void)listen;
    n_asked++;
    return healthy;
}

static const char good_flags[] = "flags\t\t: fpu avx2 fma f16c avx512f avx512bw avx512vl avx512dq "
                                 "avx512_vnni avx512_bf16 amx_int8 amx_tile\n";

/* A machine without a fault. */
static void open_machine(void) {
    strcpy(root, "/tmp/inferd-doctor-XXXXXX");
    EXPECT(mkdtemp(root) != NULL && chmod(root, 0755) == 0);
    snprintf(files, sizeof files, "%.63s/files", root);
    d = (doctor){.root = root};
    d.facts = (doctor_facts){.n_cpus = 8,
                             .n_fds_max = 20000,
                             .memlock_max = UINT64_MAX,
                             .n_tasks_max = UINT64_MAX,
                             .now_s = INT64_C(1790000000),
                             .built_s = INT64_C(1780000000),
                             .can = can,
                             .try_listen = try_listen,
                             .is_healthy = is_healthy};
    listen_answer = file_answer = INFERD_OK;
    healthy = false;
    put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU\n");
    put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\n"
                         "SwapFree: 0 kB\nCommitLimit: 1048576 kB\nCommitted_AS: 0 kB\n");
    put("/proc/self/cgroup", "0::/box\n");
    put("/sys/devices/system/cpu/online", "0-7\n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static int open_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)at;
    return S_ISDIR(st->st_mode) || kind == FTW_DNR ? chmod(path, 0700) : 0;
}

static void close_machine(void) {
    enum { FDS = 8 };
    EXPECT_EQ(nftw(root, open_one, FDS, FTW_PHYS), 0);
    EXPECT_EQ(nftw(root, remove_one, FDS, FTW_DEPTH | FTW_PHYS), 0);
    config_destroy((inferd_config *)d.config);
    doctor_deinit(&d);
}

static void use_flags(const char *flags) {
    char text[1024];
    snprintf(text, sizeof text, "model name\t: Test CPU\n%s", flags);
    put("/proc/cpuinfo", text);
}

static void use_config(const char *text) {
    char path[PATH_MAX];
    inferd_config *c = NULL;
    inferd_err err = {0};
    buf problems = {0};
    put_at(files, "/inferd.json", text);
    snprintf(path, sizeof path, "%s/inferd.json", files);
    config_destroy((inferd_config *)d.config);
    EXPECT_EQ(config_load(path, &c, &problems, &err), INFERD_OK);
    EXPECT_STR(buf_cstr(&problems), "");
    buf_deinit(&problems);
    d.config = c;
}

/* The line of this subject with the worst level; fails the test if there is none. */
static const doctor_line *line_of(void (*check)(doctor *), const char *subject) {
    static const doctor_line none = {.subject = ""};
    const doctor_line *found = NULL;
    d.n_lines = 0;
    check(&d);
    for (uint32_t i = 0; i < d.n_lines; i++)
        if (strcmp(d.lines[i].subject, subject) == 0 &&
            (found == NULL || d.lines[i].level > found->level))
            found = &d.lines[i];
    if (found == NULL) {
        printf("no line of %s\n", subject);
        test_failures++;
        return &none;
    }
    for (uint32_t i = 0; i < d.n_lines; i++) // what to do, wherever something is to be done
        EXPECT_EQ(d.lines[i].advice[0] != 0, d.lines[i].level != DOCTOR_OK);
    return found;
}

#define EXPECT_LINE(check, subject, wanted, part)                                                  \
    do {                                                                                           \
        const doctor_line *l_ = line_of(check, subject);                                           \
        EXPECT_EQ(l_->level, wanted);                                                              \
        if (strstr(l_->figure, part) == NULL) {                                                    \
            printf("%s:%d: \"%s\" has no \"%s\"\n", __FILE__, __LINE__, l_->figure, part);         \
            test_failures++;                                                                       \
        }                                                                                          \
    } while (0)

/* ---- CPU ---- */

static void instructions_are_those_that_kernels_use(void) {
    const char *lacks;
    EXPECT_STR(doctor_cpu_level("fpu sse2", &lacks), "base");
    EXPECT_STR(doctor_cpu_level("avx2 fma f16c", &lacks), "avx2");
    EXPECT_STR(doctor_cpu_level("avx2 fma", &lacks), "base");
    EXPECT_STR(doctor_cpu_level("avx2 fma f16c avx_vnni", &lacks), "avxvnni");
    EXPECT_STR(doctor_cpu_level("avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni "
                                "avx512_bf16 amx_tile amx_int8",
                                &lacks),
               "avx512amx");
    EXPECT_STR(lacks, "");
    open_machine();
    use_flags(good_flags);
    EXPECT_LINE(doctor_check_cpu, "cpu.instructions", DOCTOR_OK, "Test CPU: avx512amx");
    d.facts.cpu_level_asked = "avx2";
    EXPECT_LINE(doctor_check_cpu, "cpu.instructions", DOCTOR_WARNING, "INFERD_CPU is \"avx2\"");
    use_flags("flags\t: fpu sse2 hypervisor\n");
    EXPECT_LINE(doctor_check_cpu, "cpu.instructions", DOCTOR_WARNING, "base; it lacks avx2");
    EXPECT(strstr(line_of(doctor_check_cpu, "cpu.instructions")->advice, "-cpu host") != NULL);
    close_machine();
}

/* The words of /proc/cpuinfo and the kernels' own test of this processor agree. */
static void this_machine_has_the_level_that_is_told(void) {
    backend_device_about found[BE_DEVICES_MAX];
    uint32_t n = 0;
    inferd_err err = {0};
    backend_options o = {.kind = "cpu"};
    doctor here = {.root = ""};
    const char *lacks;
    char flags[8192];
    if (getenv("INFERD_CPU") != NULL) SKIP("INFERD_CPU is set");
    if (!doctor_find(&here, "/proc/cpuinfo", "flags", flags, sizeof flags)) SKIP("no x86-64");
    EXPECT_EQ(backend_list_devices(&o, found, &n, &err), INFERD_OK);
    EXPECT_EQ(n, 1);
    EXPECT_STR(doctor_cpu_level(flags, &lacks), found[0].name + 4);
}

static void cores_are_bounded_by_mask_and_group(void) {
    open_machine();
    use_flags(good_flags);
    EXPECT_LINE(doctor_check_cpu, "cpu.cores", DOCTOR_OK, "8 may be used of 8 online");
    put("/sys/fs/cgroup/box/cpu.max", "300000 100000\n");
    EXPECT_LINE(doctor_check_cpu, "cpu.cores", DOCTOR_OK,
                "3 may be used of 8 online, control group's quota of 3");
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"threads\":4}],\"models\":[]}");
    EXPECT_LINE(doctor_check_cpu, "cpu.cores", DOCTOR_WARNING, "devices[].threads are 4");
    d.facts.n_cpus = 1;
    use_config("{\"models\":[]}");
    EXPECT_LINE(doctor_check_cpu, "cpu.cores", DOCTOR_WARNING, "affinity mask of 1");
    close_machine();
}

static void slow_governors_are_warned_of(void) {
#define FREQUENCY "/sys/devices/system/cpu/cpu0/cpufreq/"
    open_machine();
    EXPECT_LINE(doctor_check_cpu, "cpu.frequency", DOCTOR_OK, "not set by this system");
    put(FREQUENCY "scaling_governor", "performance\n");
    put(FREQUENCY "scaling_driver", "acpi-cpufreq\n");
    EXPECT_LINE(doctor_check_cpu, "cpu.frequency", DOCTOR_OK, "performance, driver acpi-cpufreq");
    put(FREQUENCY "scaling_governor", "powersave\n");
    EXPECT_LINE(doctor_check_cpu, "cpu.frequency", DOCTOR_WARNING, "powersave");
    put(FREQUENCY "scaling_driver", "intel_pstate\n"); // its usual governor
    EXPECT_LINE(doctor_check_cpu, "cpu.frequency", DOCTOR_OK, "powersave");
    put(FREQUENCY "energy_performance_preference", "power\n");
    EXPECT_LINE(doctor_check_cpu, "cpu.frequency", DOCTOR_WARNING, "preference power");
    EXPECT_LINE(doctor_check_cpu, "cpu.smt", DOCTOR_OK, "not told");
    put("/sys/devices/system/cpu/smt/active", "1\n");
    EXPECT_LINE(doctor_check_cpu, "cpu.smt", DOCTOR_OK, "on:");
    close_machine();
}

/* ---- clock and container ---- */

static void clocks_are_fast_set_and_synchronised(void) {
    open_machine();
    EXPECT_LINE(doctor_check_clock, "clock.source", DOCTOR_OK, "tsc");
    EXPECT_LINE(doctor_check_clock, "clock.sync", DOCTOR_OK, "synchronised");
    EXPECT_LINE(doctor_check_clock, "clock.time", DOCTOR_OK, "2026-09-21 14:13:20 UTC");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    EXPECT_LINE(doctor_check_clock, "clock.source", DOCTOR_WARNING, "hpet");
    d.facts.clock_unsynced = true;
    use_config("{\"state_dir\":\"state\",\"models\":[],\"tenants\":[{\"name\":\"t\",\"key\":"
               "\"sk-t-012345\",\"limits\":{\"tokens_per_day\":1}}]}");
    EXPECT_LINE(doctor_check_clock, "clock.sync", DOCTOR_WARNING, "limits per day or month");
    d.facts.clock_state = -1;
    EXPECT_LINE(doctor_check_clock, "clock.sync", DOCTOR_OK, "not told");
    d.facts.now_s = d.facts.built_s - 10 * 86400;
    EXPECT_LINE(doctor_check_clock, "clock.time", DOCTOR_PROBLEM, "before this program was made");
    d.facts.now_s = INT64_C(5000000000);
    EXPECT_LINE(doctor_check_clock, "clock.time", DOCTOR_PROBLEM, "2128");
    close_machine();
}

static void containers_and_guests_are_named(void) {
    open_machine();
    use_flags(good_flags);
    EXPECT_LINE(doctor_check_container, "machine.kind", DOCTOR_OK, "no virtual machine");
    put("/.dockerenv", "");
    use_flags("flags\t: fpu hypervisor\n");
    put("/sys/class/dmi/id/product_name", "KVM\n");
    EXPECT_LINE(doctor_check_container, "machine.kind", DOCTOR_OK,
                "virtual machine (KVM), in a Docker container");
    put("/proc/stat", "cpu 80 0 10 1000 0 0 0 10 0 0\n");
    EXPECT_LINE(doctor_check_container, "machine.steal", DOCTOR_WARNING, "10 % of the busy time");
    close_machine();
}

/* ---- memory ---- */

static void pools_must_fit_into_memory(void) {
    open_machine();
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_OK, "12.0 GiB available of 16.0 GiB");
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"8GiB\"}],\"host_arena\":\"1GiB\","
               "\"models\":[]}");
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_OK, "wanted 9.5 GiB");
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"12GiB\"}],\"host_arena\":\"1GiB\","
               "\"models\":[]}");
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_WARNING, "wanted 13.5 GiB");
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"16GiB\"}],\"host_arena\":0,"
               "\"models\":[]}");
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_PROBLEM, "wanted 16.5 GiB");
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"8GiB\"}],\"host_arena\":0,"
               "\"models\":[]}");
    put("/sys/fs/cgroup/box/memory.max", "4294967296\n");
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_PROBLEM,
                "control group's limit 4.0 GiB");
    EXPECT(strstr(line_of(doctor_check_memory, "memory.amount")->advice, "to 3.5 GiB") != NULL);
    close_machine();
}

static void a_daemon_that_runs_is_not_counted_against_itself(void) {
    open_machine();
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"12GiB\"}],\"host_arena\":\"1GiB\","
               "\"models\":[]}");
    put("/proc/sys/vm/overcommit_memory", "2\n");
    listen_answer = INFERD_EBUSY; // another program listens there
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_WARNING, "wanted 13.5 GiB");
    EXPECT_LINE(doctor_check_memory, "memory.overcommit", DOCTOR_WARNING, "about 13.5 GiB");
    healthy = true;
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_OK, "the inferd that runs has taken");
    EXPECT_LINE(doctor_check_memory, "memory.overcommit", DOCTOR_OK, "the inferd that runs has");
    listen_answer = INFERD_OK;
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_WARNING, "wanted 13.5 GiB");
    listen_answer = INFERD_EBUSY;
    use_config("{\"devices\":[{\"kind\":\"cpu\",\"memory\":\"16GiB\"}],\"host_arena\":0,"
               "\"models\":[]}");
    EXPECT_LINE(doctor_check_memory, "memory.amount", DOCTOR_PROBLEM, "wanted 16.5 GiB");
    close_machine();
}

static void swap_overcommit_and_huge_pages(void) {
    open_machine();
    EXPECT_LINE(doctor_check_memory, "memory.swap", DOCTOR_OK, "none");
    EXPECT_LINE(doctor_check_memory, "memory.overcommit", DOCTOR_OK, "mode 0");
    EXPECT_LINE(doctor_check_memory, "memory.huge_pages", DOCTOR_OK, "transparent: madvise");
    put("/proc/sys/vm/overcommit_memory", "2\n");
    EXPECT_LINE(doctor_check_memory, "memory.overcommit", DOCTOR_WARNING,
                "1.0 GiB may still be reserved, inferd reserves about 2.5 GiB");
    put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n"
                         "SwapTotal: 8388608 kB\nSwapFree: 4194304 kB\n");
    EXPECT_LINE(doctor_check_memory, "memory.swap", DOCTOR_WARNING, "4.0 GiB used of 8.0 GiB");
    put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n"
                         "SwapTotal: 8388608 kB\nSwapFree: 8388608 kB\n");
    EXPECT_LINE(doctor_check_memory, "memory.swap", DOCTOR_OK, "0.0 GiB used of 8.0 GiB");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    EXPECT_LINE(doctor_check_memory, "memory.huge_pages", DOCTOR_WARNING, "never");
    close_machine();
}

static void pinned_memory_matters_with_a_gpu(void) {
    open_machine();
    d.facts.memlock_max = 8 << 20;
    EXPECT_LINE(doctor_check_memory, "memory.locked", DOCTOR_OK, "8192 KiB");
    put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    EXPECT_LINE(doctor_check_memory, "memory.locked", DOCTOR_WARNING, "8192 KiB");
    d.facts.is_root = true;
    EXPECT_LINE(doctor_check_memory, "memory.locked", DOCTOR_OK, "8192 KiB");
    close_machine();
}

static void limits_are_those_of_the_daemon(void) {
    open_machine();
    EXPECT_LINE(doctor_check_limits, "limits.descriptors", DOCTOR_OK, "20000 allowed, 10624");
    d.facts.n_fds_max = 10623;
    EXPECT_LINE(doctor_check_limits, "limits.descriptors", DOCTOR_WARNING, "10623 allowed");
    d.facts.n_fds_max = 399;
    EXPECT_LINE(doctor_check_limits, "limits.descriptors", DOCTOR_PROBLEM, "399 allowed");
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_OK, "no limit");
    d.facts.n_tasks_max = 30;
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_PROBLEM, "30 allowed");
    d.facts.is_root = true; // for which that limit does not count
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_OK, "no limit");
    put("/sys/fs/cgroup/box/pids.max", "100\n");
    put("/sys/fs/cgroup/box/pids.current", "90\n");
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_PROBLEM, "10 allowed");
    put("/sys/fs/cgroup/box/pids.max", "max\n");
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_OK, "no limit");
    put("/proc/self/cgroup", "0::/llm.slice/inferd.service\n"); // that of a group above
    put("/sys/fs/cgroup/llm.slice/pids.max", "50\n");
    put("/sys/fs/cgroup/llm.slice/pids.current", "45\n");
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_PROBLEM, "5 allowed");
    put("/proc/self/cgroup", "5:pids:/docker/8f3a\n"); // not visible in the container
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_OK, "no limit");
    put("/sys/fs/cgroup/pids/pids.max", "20\n");
    EXPECT_LINE(doctor_check_limits, "limits.tasks", DOCTOR_PROBLEM, "20 allowed");
    close_machine();
}

/* ---- ports ---- */

/* Found by the port alone: the process of another address was named, with the advice to end it. */
static void a_used_port_is_that_of_its_address(void) {
    static const struct {
        const char *listen, *line;
    } tries[] = {{"127.0.0.1:8080", "(pid 77)"},
                 {"8080", "(pid 77)"},
                 {"127.0.0.2:8080", "(pid 78)"},
                 {"[::1]:8080", "(pid 79)"},
                 {"127.0.0.3:8080", "by another process"},
                 {"127.0.0.1:8081", "(pid 79)"},
                 {"127.0.0.9:8082", "(pid 78)"}};
    char link[PATH_MAX], text[256];
    open_machine();
    put("/proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4712 1\n"
        "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n"
        "   2: 00000000:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4712 1\n");
    put("/proc/net/tcp6",
        "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A "
        "00000000:00000000 00:00000000 00000000 0 0 4713 1\n"
        "   1: 0000000000000000FFFF00000100007F:1F91 00000000000000000000000000000000:0000 0A "
        "00000000:00000000 00:00000000 00000000 0 0 4713 1\n");
    for (int pid = 77; pid < 80; pid++) {
        snprintf(text, sizeof text, "/proc/%d/fd/none", pid);
        put(text, "");
        snprintf(link, sizeof link, "%s/proc/%d/fd/3", root, pid);
        snprintf(text, sizeof text, "socket:[%d]", pid - 77 + 4711);
        EXPECT_EQ(symlink(text, link), 0);
    }
    listen_answer = INFERD_EBUSY;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        snprintf(text, sizeof text, "{\"listen\":\"%s\",\"models\":[]}", tries[i].listen);
        use_config(text);
        EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_PROBLEM, tries[i].line);
    }
    close_machine();
}

static void a_used_port_names_its_process(void) {
    char link[PATH_MAX];
    open_machine();
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "127.0.0.1:8080 is free");
    put("/proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 11 1\n"
        "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n");
    put("/proc/77/comm", "nginx\n");
    put("/proc/77/fd/none", "");
    snprintf(link, sizeof link, "%s/proc/77/fd/3", root);
    EXPECT_EQ(symlink("socket:[4711]", link), 0);
    listen_answer = INFERD_EBUSY;
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_PROBLEM,
                "127.0.0.1:8080 is used by nginx (pid 77)");
    healthy = true;
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "an inferd that answers /health");
    listen_answer = INFERD_EIO;
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_PROBLEM, "listen 127.0.0.1:8080: no");
    close_machine();
}

static void put_socket(int pid, int inode) {
    char text[64], link[PATH_MAX];
    snprintf(text, sizeof text, "/proc/%d/fd/none", pid);
    put(text, "");
    snprintf(link, sizeof link, "%s/proc/%d/fd/3", root, pid);
    snprintf(text, sizeof text, "socket:[%d]", inode);
    EXPECT_EQ(symlink(text, link), 0);
}

/* A connection would start the service of the socket unit. */
static void what_systemd_holds_is_not_asked(void) {
    char text[PATH_MAX];
    open_machine();
    put("/proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n");
    put("/proc/1/comm", "systemd\n");
    put_socket(1, 4711);
    listen_answer = INFERD_EBUSY;
    n_asked = 0;
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "is held by systemd");
    put("/proc/77/comm", "inferd\n");
    put_socket(77, 4711); // it was given to the service, which runs
    healthy = true;
    EXPECT_EQ(n_asked, 0);
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "by inferd (pid 77): an inferd");
    EXPECT_EQ(n_asked, 1);

    snprintf(text, sizeof text, "%s/proc/1/fd/3", root); // of a user that sees neither
    EXPECT_EQ(unlink(text), 0);
    snprintf(text, sizeof text, "%s/proc/77/fd/3", root);
    EXPECT_EQ(unlink(text), 0);
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_WARNING, "used by a process of root");
    EXPECT_EQ(n_asked, 1);
    d.facts.is_root = true; // in another container
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "an inferd that answers");

    snprintf(text, sizeof text,
             "{\"listen\":\"unix:%s/web.sock\",\"admin\":{\"listen\":\"none\"},\"models\":[]}",
             files);
    put_at(files, "/web.sock", "");
    use_config(text);
    snprintf(text, sizeof text,
             "Num       RefCount Protocol Flags    Type St Inode Path\n"
             "0000000000000000: 00000003 00000000 00000000 0001 03 4713 %s/web.sock\n"
             "0000000000000000: 00000002 00000000 00010000 0001 01 4712 %s/web.sock\n",
             files, files);
    put("/proc/net/unix", text);
    put_socket(1, 4712);
    file_answer = INFERD_EBUSY;
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "is held by systemd");
    EXPECT_EQ(n_asked, 2);
    close_machine();
}

static void a_socket_file_needs_a_folder_that_is_there(void) {
    char text[PATH_MAX];
    open_machine();
    put_at(files, "/x", "");
    snprintf(text, sizeof text, "{\"listen\":\"unix:%s/web.sock\",\"models\":[]}", files);
    use_config(text);
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_OK, "is free");
    snprintf(text, sizeof text, "{\"listen\":\"unix:%s/none/web.sock\",\"models\":[]}", files);
    use_config(text);
    EXPECT_LINE(doctor_check_ports, "ports.listen", DOCTOR_PROBLEM, "its folder is missing");
    close_machine();
}

static void the_socket_of_administrators_needs_a_folder(void) {
    char text[256], folder[128];
    open_machine();
    put_at(files, "/x", "");
    snprintf(text, sizeof text, "{\"admin\":{\"listen\":\"unix:%s/run/admin.sock\"},\"models\":[]}",
             files);
    use_config(text);
    EXPECT_LINE(doctor_check_ports, "ports.admin", DOCTOR_OK, "can be made");
    snprintf(text, sizeof text,
             "{\"admin\":{\"listen\":\"unix:%s/run/deep/admin.sock\"},\"models\":[]}", files);
    use_config(text);
    EXPECT_LINE(doctor_check_ports, "ports.admin", DOCTOR_PROBLEM, "its folder is missing");
    snprintf(folder, sizeof folder, "%s/run/deep", files);
    make_folders(folder);
    snprintf(folder, sizeof folder, "%s/run", files);
    EXPECT_EQ(chmod(folder, 0500), 0);
    EXPECT_LINE(doctor_check_ports, "ports.admin", DOCTOR_PROBLEM, "cannot be written");
    use_config("{\"admin\":{\"listen\":\"none\"},\"models\":[]}");
    EXPECT_LINE(doctor_check_ports, "ports.admin", DOCTOR_OK, "none, as configured");
    put("/lib/systemd/system/inferd.service", "");
    use_config("{\"admin\":{\"listen\":\"unix:/run/inferd/x/y/admin.sock\"},\"models\":[]}");
    EXPECT_LINE(doctor_check_ports, "ports.admin", DOCTOR_OK, "inferd.service makes the folder");
    close_machine();
}

/* ---- files ---- */

static void chmod_file(const char *name, mode_t mode) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%s", files, name);
    EXPECT_EQ(chmod(path, mode), 0);
}

static void keys_are_for_their_owner(void) {
    open_machine();
    put_at(files, "/shop.keys", "sk-shop-012345\n");
    chmod_file("/shop.keys", 0600);
    use_config("{\"models\":[],\"tenants\":[{\"name\":\"t\",\"key_file\":\"shop.keys\"}]}");
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_OK, "shop.keys: mode 0600");
    EXPECT_EQ(d.lines[0].level, DOCTOR_OK); // the configuration itself holds none
    chmod_file("/shop.keys", 0644);
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_PROBLEM, "every user may read it");
    use_config("{\"models\":[],\"tenants\":[{\"name\":\"t\",\"key\":\"sk-t-012345\"}]}");
    chmod_file("/inferd.json", 0644);
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_PROBLEM, "the configuration, which holds");
    chmod_file("", 0750); // the folder: other users do not get to the file
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_OK, "mode 0644, but no other user may");
    chmod_file("", 0751);
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_PROBLEM, "the configuration, which holds");
    EXPECT_EQ(chmod(root, 0700), 0); // nor from further above
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_OK, root);
    EXPECT_EQ(chmod(root, 0755), 0);
    chmod_file("/inferd.json", 0640);
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_OK, "mode 0640");
    close_machine();
}

/* The configuration is read by root: that says nothing of the service. */
static void keys_must_be_readable_for_the_service(void) {
    open_machine();
    put_at(files, "/shop.keys", "sk-shop-012345\n");
    put_at(files, "/collector", "Authorization: Bearer 1\n");
    chmod_file("/shop.keys", 0200);
    chmod_file("/collector", 0600);
    use_config("{\"models\":[],\"tracing\":{\"endpoint\":\"http://127.0.0.1:4318/v1/traces\","
               "\"headers_file\":\"collector\"}}");
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_OK, "collector: mode 0600");
    EXPECT_LINE(doctor_check_files, "files.libcurl", DOCTOR_OK, "for traces");
    chmod_file("/collector", 0644);
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_PROBLEM, "a file of headers: every user");
    chmod_file("/collector", 0200);
    EXPECT_LINE(doctor_check_files, "files.keys", DOCTOR_PROBLEM, "may not be read by that user");
    close_machine();
}

static void every_part_of_a_model_must_be_there(void) {
    open_machine();
    use_config("{\"models\":[{\"name\":\"a\",\"path\":\"a-00002-of-00003.gguf\"}]}");
    put_at(files, "/a-00001-of-00003.gguf", "0123456789");
    put_at(files, "/a-00002-of-00003.gguf", "01234567890");
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_PROBLEM,
                "a-00003-of-00003.gguf: No such file");
    put_at(files, "/a-00003-of-00003.gguf", "012345678901");
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_OK, "1, 0.0 GiB, readable");
    EXPECT_EQ(doctor_model_bytes(d.config->models[0].path), 33);
    EXPECT_EQ(doctor_model_bytes("a-00001-of-00000.gguf"), 0); // one part, which is not there
    EXPECT_EQ(doctor_model_bytes("/00001-of-99999.gguf"), 0);
    chmod_file("/a-00001-of-00003.gguf", 0200);
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_PROBLEM,
                "a-00001-of-00003.gguf: may not be read");
    close_machine();
}

/* As the daemon: of several models a quarter of the memory, and no more than the pools leave. */
static void the_arena_keeps_to_the_limit_of_the_group(void) {
    static const uint64_t mib = 1 << 20;
    host_arena_room room = {
        .machine = 2048 * mib, .pools = 1024 * mib, .models = 5000 * mib, .n_devices = 1};
    EXPECT_EQ(host_arena_part(&room), 512 * mib);
    room.pools = 1800 * mib;
    EXPECT_EQ(host_arena_part(&room), 248 * mib);
    room.pools = 4096 * mib;
    EXPECT_EQ(host_arena_part(&room), 0);
    room.pools = 0, room.n_devices = 4;
    EXPECT_EQ(host_arena_part(&room), 128 * mib);
    room.models = 100 * mib;
    EXPECT_EQ(host_arena_part(&room), 100 * mib);
}

static void models_must_be_readable(void) {
    open_machine();
    put_at(files, "/a.gguf", "0123456789");
    use_config("{\"models\":[{\"name\":\"a\",\"path\":\"a.gguf\"}]}");
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_OK, "1, 0.0 GiB, readable");
    chmod_file("/a.gguf", 0200);
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_PROBLEM, "may not be read");
    use_config("{\"models\":[{\"name\":\"b\",\"path\":\"b.gguf\"}]}");
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_PROBLEM, "No such file");
    use_config("{\"models\":[{\"name\":\"b\",\"path\":\".\"}]}");
    EXPECT_LINE(doctor_check_files, "files.models", DOCTOR_PROBLEM, "not a file");
    close_machine();
}

/* GiB wanted of the disk, as the line says. */
static double disk_wanted(void) {
    double unused, wanted = -1;
    const char *figure = line_of(doctor_check_files, "files.disk")->figure;
    EXPECT_EQ(sscanf(figure, "%lf GiB free, %lf GiB more wanted", &unused, &wanted), 2);
    return wanted;
}

/* The files of a daemon that ran take from the free bytes, and are part of what it wants. */
static void kept_files_are_room_already_taken(void) {
    enum { MIB = 1 << 20, KEPT = 103 * MIB };
    char path[PATH_MAX];
    open_machine();
    use_config("{\"models\":[],\"state_dir\":\"state\",\"kv_disk\":\"1GiB\",\"limits\":"
               "{\"responses_bytes_max\":\"1GiB\"}}");
    put_at(files, "/state/x", "");
    EXPECT_NEAR(disk_wanted(), 2.0, 0.01);
    put_at(files, "/state/kv/a", "");
    put_at(files, "/state/responses/a", "");
    put_at(files, "/state/other/a", "");
    static const char *const NAMES[] = {"kv", "responses", "other"};
    for (size_t i = 0; i < INFERD_COUNT(NAMES); i++) {
        snprintf(path, sizeof path, "%s/state/%s/a", files, NAMES[i]);
        int fd = open(path, O_WRONLY);
        EXPECT(fd >= 0);
        int failed = posix_fallocate(fd, 0, KEPT);
        close(fd);
        if (failed != 0) {
            close_machine();
            SKIP("no room for files");
        }
    }
    EXPECT_NEAR(disk_wanted(), 1.8, 0.01);
    close_machine();
}

static void state_needs_a_folder_and_room(void) {
    char text[PATH_MAX];
    open_machine();
    use_config("{\"models\":[]}");
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_OK, "none");
    use_config(
        "{\"models\":[],\"state_dir\":\"state\",\"limits\":{\"responses_bytes_max\":\"1MiB\"}}");
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_OK, "will be made");
    put_at(files, "/state/x", "");
    chmod_file("/state", 0700);
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_OK, "mode 0700");
    EXPECT_LINE(doctor_check_files, "files.disk", DOCTOR_OK, "GiB free");
    chmod_file("/state", 0770);
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_WARNING, "mode 0770");
    chmod_file("/state", 0777);
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_PROBLEM, "mode 0777");
    chmod_file("/state", 0500);
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_PROBLEM, "may not be written");
    use_config("{\"models\":[],\"state_dir\":\"no/state\",\"kv_disk\":\"64TiB\"}");
    EXPECT_LINE(doctor_check_files, "files.state_dir", DOCTOR_PROBLEM, "cannot be made");
    use_config("{\"models\":[],\"state_dir\":\"state\",\"kv_disk\":\"64TiB\"}");
    EXPECT_LINE(doctor_check_files, "files.disk", DOCTOR_WARNING, "GiB more wanted");
    use_config("{\"models\":[],\"log\":{\"path\":\"log/inferd.log\"}}");
    EXPECT_LINE(doctor_check_files, "files.log", DOCTOR_PROBLEM, "may not be written");
    put_at(files, "/log/x", "");
    EXPECT_LINE(doctor_check_files, "files.log", DOCTOR_OK, "inferd.log");
    snprintf(text, sizeof text, "{\"log\":{\"path\":\"%s\"},\"models\":[]}", files);
    use_config(text);
    EXPECT_LINE(doctor_check_files, "files.log", DOCTOR_PROBLEM, "a folder, not a file");
    close_machine();
}

/* ---- GPU ---- */

static void drivers_and_nodes_are_checked(void) {
    open_machine();
    EXPECT_LINE(doctor_check_gpu, "gpu.device", DOCTOR_OK, "no GPU");
    use_config("{\"devices\":[{\"kind\":\"cuda\"}],\"models\":[]}");
    EXPECT_LINE(doctor_check_gpu, "gpu.device", DOCTOR_PROBLEM, "no GPU");
    put("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n"); // its sound
    EXPECT_LINE(doctor_check_gpu, "gpu.device", DOCTOR_PROBLEM, "no GPU");
    put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    EXPECT_LINE(doctor_check_gpu, "gpu.driver", DOCTOR_PROBLEM, "no driver is loaded");
    use_config("{\"devices\":[{\"kind\":\"cpu\"}],\"models\":[]}");
    EXPECT_LINE(doctor_check_gpu, "gpu.device", DOCTOR_OK, "the configuration uses none");
    use_config("{\"models\":[]}"); // "auto" serves from the CPU
    EXPECT_LINE(doctor_check_gpu, "gpu.driver", DOCTOR_WARNING, "no driver is loaded");
    put("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC 12.2.0\n");
    EXPECT_LINE(doctor_check_gpu, "gpu.driver", DOCTOR_WARNING, "570.86.15");
    put("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n");
    EXPECT_LINE(doctor_check_gpu, "gpu.driver", DOCTOR_OK, "580.65.06");
    EXPECT_LINE(doctor_check_gpu, "gpu.nodes", DOCTOR_WARNING, "/dev/nvidia-uvm is not there");
    put("/dev/nvidia0", "");
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
    EXPECT_LINE(doctor_check_gpu, "gpu.nodes", DOCTOR_OK, "1 of /dev/nvidia*");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/dev/nvidia0", root);
    EXPECT_EQ(chmod(path, 0400), 0);
    EXPECT_LINE(doctor_check_gpu, "gpu.nodes", DOCTOR_WARNING, "/dev/nvidia0 may not be opened");
    close_machine();
}

static void mig_and_mps_are_told(void) {
    open_machine();
    put("/proc/driver/nvidia/version", "Kernel Module  580.65.06\n");
    EXPECT_LINE(doctor_check_gpu, "gpu.mig", DOCTOR_OK, "no instances");
    EXPECT_LINE(doctor_check_gpu, "gpu.mps", DOCTOR_OK, "no server");
    put("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "");
    put("/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "");
    EXPECT_LINE(doctor_check_gpu, "gpu.mig", DOCTOR_OK, "2 instances");
    put("/tmp/nvidia-mps/control", "");
    EXPECT_LINE(doctor_check_gpu, "gpu.mps", DOCTOR_WARNING, "a server in /tmp/nvidia-mps");
    d.facts.mps_folder = "/elsewhere";
    EXPECT_LINE(doctor_check_gpu, "gpu.mps", DOCTOR_OK, "no server");
    close_machine();
}

/* ---- report ---- */

static void lines_become_text_and_json(void) {
    buf out = {0};
    d = (doctor){.root = ""};
    doctor_add(&d, DOCTOR_OK, "a.b", "fine");
    EXPECT_EQ(doctor_worst(&d), DOCTOR_OK);
    doctor_add(&d, DOCTOR_PROBLEM, "c.d", "\"x\"\033[1m");
    doctor_advise(&d, "do %d", 7);
    EXPECT_EQ(doctor_worst(&d), DOCTOR_PROBLEM);
    doctor_write_text(&d, &out);
    EXPECT_STR(buf_cstr(&out), "ok       a.b                fine\n"
                               "problem  c.d                \"x\" [1m\n"
                               "                          > do 7\n"
                               "1 ok, 0 warnings, 1 problem\n");
    buf_clear(&out);
    doctor_write_json(&d, &out);
    EXPECT_STR(
        buf_cstr(&out),
        "{\"status\":\"problem\",\"checks\":[{\"level\":\"ok\",\"subject\":\"a.b\",\"figure\":"
        "\"fine\",\"advice\":null},{\"level\":\"problem\",\"subject\":\"c.d\",\"figure\":"
        "\"\\\"x\\\" [1m\",\"advice\":\"do 7\"}],\"left_out\":0}\n");
    for (int i = 0; i < DOCTOR_LINES_MAX; i++) doctor_add(&d, DOCTOR_OK, "e", "f");
    EXPECT_EQ(d.n_lines, DOCTOR_LINES_MAX);
    EXPECT_EQ(d.n_left_out, 2);
    buf_deinit(&out);
    doctor_deinit(&d);
}

static const test_case cases[] = {TEST(instructions_are_those_that_kernels_use),
                                  TEST(this_machine_has_the_level_that_is_told),
                                  TEST(cores_are_bounded_by_mask_and_group),
                                  TEST(slow_governors_are_warned_of),
                                  TEST(clocks_are_fast_set_and_synchronised),
                                  TEST(containers_and_guests_are_named),
                                  TEST(pools_must_fit_into_memory),
                                  TEST(a_daemon_that_runs_is_not_counted_against_itself),
                                  TEST(swap_overcommit_and_huge_pages),
                                  TEST(pinned_memory_matters_with_a_gpu),
                                  TEST(limits_are_those_of_the_daemon),
                                  TEST(a_used_port_names_its_process),
                                  TEST(a_used_port_is_that_of_its_address),
                                  TEST(what_systemd_holds_is_not_asked),
                                  TEST(a_socket_file_needs_a_folder_that_is_there),
                                  TEST(the_socket_of_administrators_needs_a_folder),
                                  TEST(keys_are_for_their_owner),
                                  TEST(keys_must_be_readable_for_the_service),
                                  TEST(every_part_of_a_model_must_be_there),
                                  TEST(the_arena_keeps_to_the_limit_of_the_group),
                                  TEST(models_must_be_readable),
                                  TEST(state_needs_a_folder_and_room),
                                  TEST(kept_files_are_room_already_taken),
                                  TEST(drivers_and_nodes_are_checked),
                                  TEST(mig_and_mps_are_told),
                                  TEST(lines_become_text_and_json)};
TEST_MAIN(cases)
