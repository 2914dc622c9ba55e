/* doctor_memory.c - checks of memory and limits; see doctor.h. */
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "devices.h"
#include "doctor.h"
#include "host_arena.h"
#include "kernels/machine.h"

#define GIB 1073741824.0
typedef unsigned long long ull;

enum { MIB = 1 << 20 };
#define PROGRAM_BYTES ((uint64_t)512 * MIB) // beside the pools: the front, tokenizers, grammars

/* A daemon that runs has made its pools: what is left is not what it had. */
static const char TAKEN[] = "; the inferd that runs has taken its part";

static uint64_t group_bytes(const doctor *d) {
    char groups[PATH_MAX], root[PATH_MAX];
    snprintf(groups, sizeof groups, "%s/proc/self/cgroup", d->root);
    snprintf(root, sizeof root, "%s/sys/fs/cgroup", d->root);
    return machine_group_memory(groups, root);
}

/* What the daemon takes of the machine's memory. */
static uint64_t bytes_wanted(const doctor *d, uint64_t total, uint64_t *arena_bytes) {
    const inferd_config *c = d->config;
    uint64_t sum = 0;
    uint32_t n_cpu = doctor_n_devices(d, "cpu"), n = u32_max(c->n_devices, 1);
    for (uint32_t i = 0; i < c->n_devices; i++) {
        const config_device *v = &c->devices[i];
        bool gpu = v->kind != NULL && strcmp(v->kind, "cuda") == 0;
        bool maybe = v->kind == NULL || strcmp(v->kind, "auto") == 0;
        if (gpu || (maybe && n_cpu == 0)) continue;
        sum += v->memory_bytes != 0 ? v->memory_bytes : CPU_MEMORY_BYTES;
    }
    host_arena_room room = {.machine = total, .pools = sum, .n_devices = n};
    for (uint32_t i = 0; i < c->n_models; i++)
        room.models += host_arena_model_bytes(doctor_model_bytes(c->models[i].path));
    *arena_bytes =
        n_cpu * host_arena_of(c, &room, true) + (n - n_cpu) * host_arena_of(c, &room, false);
    return sum + *arena_bytes + PROGRAM_BYTES;
}

/* Without a configuration: room for the pool of a CPU device by default. */
static void check_amount(doctor *d) {
    uint64_t total = doctor_meminfo(d, "MemTotal"), available = doctor_meminfo(d, "MemAvailable");
    uint64_t group = group_bytes(d), arena = 0;
    uint64_t limit = group != 0 && group < total ? group : total;
    uint64_t wanted = d->config != NULL ? bytes_wanted(d, limit, &arena)
                                        : (uint64_t)CPU_MEMORY_BYTES + PROGRAM_BYTES;
    char text[320];
    if (total == 0) {
        doctor_add(d, DOCTOR_OK, "memory.amount", "not told by this machine");
        return;
    }
    int n = snprintf(text, sizeof text, "%.1f GiB available of %.1f GiB", (double)available / GIB,
                     (double)total / GIB);
    if (limit < total && n > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", control group's limit %.1f GiB",
                      (double)limit / GIB);
    if (d->config != NULL && n > 0)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "; wanted %.1f GiB: pools of CPU devices, host_arena (%.1f GiB) and 0.5 GiB",
                      (double)wanted / GIB, (double)arena / GIB);
    bool never = wanted > limit && d->config != NULL, now = wanted > u64_min(available, limit);
    if (now && !never && doctor_is_running(d)) {
        now = false;
        snprintf(text + n, sizeof text - (size_t)n, "%s", TAKEN);
    }
    doctor_add(d,
               never ? DOCTOR_PROBLEM
               : now ? DOCTOR_WARNING
                     : DOCTOR_OK,
               "memory.amount", "%s", text);
    if (never)
        doctor_advise(d,
                      "set devices[].memory and host_arena to %.1f GiB in all, or raise the "
                      "limit (MemoryMax, docker --memory)",
                      limit > PROGRAM_BYTES ? (double)(limit - PROGRAM_BYTES) / GIB : 0.0);
    else if (now)
        doctor_advise(d, d->config != NULL
                             ? "end other programs, or set devices[].memory and host_arena lower"
                             : "a CPU device has a pool of 2 GiB by default: end other programs, "
                               "or set devices[].memory lower");
}

static void check_swap(doctor *d) {
    uint64_t total = doctor_meminfo(d, "SwapTotal"), unused = doctor_meminfo(d, "SwapFree");
    uint64_t used = u64_less(total, unused);
    if (total == 0) {
        doctor_add(d, DOCTOR_OK, "memory.swap", "none");
        return;
    }
    bool much = used > doctor_meminfo(d, "MemTotal") / 16;
    doctor_add(d, much ? DOCTOR_WARNING : DOCTOR_OK, "memory.swap",
               "%.1f GiB used of %.1f GiB, swappiness %llu", (double)used / GIB,
               (double)total / GIB, (ull)doctor_read_number(d, "/proc/sys/vm/swappiness", 60));
    if (much)
        doctor_advise(d, "a step that reads a page from the swap waits for the disk: end other "
                         "programs, or set MemorySwapMax=0 for inferd's service");
}

static void check_overcommit(doctor *d) {
    uint64_t mode = doctor_read_number(d, "/proc/sys/vm/overcommit_memory", 0);
    if (mode != 2) {
        doctor_add(d, DOCTOR_OK, "memory.overcommit", "mode %llu", (ull)mode);
        return;
    }
    uint64_t limit = doctor_meminfo(d, "CommitLimit"), taken = doctor_meminfo(d, "Committed_AS");
    uint64_t arena, unused = u64_less(limit, taken);
    uint64_t wanted = d->config != NULL ? bytes_wanted(d, doctor_meminfo(d, "MemTotal"), &arena)
                                        : (uint64_t)CPU_MEMORY_BYTES + PROGRAM_BYTES;
    bool runs = wanted > unused && doctor_is_running(d), fits = runs || wanted <= unused;
    doctor_add(d, fits ? DOCTOR_OK : DOCTOR_WARNING, "memory.overcommit",
               "mode 2: %.1f GiB may still be reserved, inferd reserves about %.1f GiB%s",
               (double)unused / GIB, (double)wanted / GIB, runs ? TAKEN : "");
    if (!fits)
        doctor_advise(d, "reserving fails before memory is full: sysctl vm.overcommit_memory=0, or "
                         "a higher vm.overcommit_ratio");
}

static void check_huge_pages(doctor *d) {
    char text[128], mode[32] = "";
    if (!doctor_read(d, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text)) {
        doctor_add(d, DOCTOR_WARNING, "memory.huge_pages", "this kernel has no transparent ones");
        doctor_advise(d, "computing on a CPU is some percent slower with pages of 4 KiB: use a "
                         "kernel with CONFIG_TRANSPARENT_HUGEPAGE");
        return;
    }
    const char *open = strchr(text, '[');
    if (open != NULL) snprintf(mode, sizeof mode, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
    bool off = strcmp(mode, "never") == 0;
    doctor_add(d, off ? DOCTOR_WARNING : DOCTOR_OK, "memory.huge_pages", "transparent: %s", mode);
    if (off)
        doctor_advise(d, "pools on a CPU are made of pages of 4 KiB, which is slower: echo madvise "
                         "> /sys/kernel/mm/transparent_hugepage/enabled");
}

/* Host copies of weights are pinned for a GPU; the driver needs no memlock for that, except where
 * its pages count for the limit (containers and some kernels). */
static void check_memlock(doctor *d) {
    uint64_t most = d->facts.memlock_max;
    bool gpu = d->config != NULL ? doctor_n_devices(d, "cuda") > 0 : doctor_has_gpu(d);
    bool low = gpu && !d->facts.is_root && most < (uint64_t)64 * MIB;
    if (most == UINT64_MAX)
        doctor_add(d, DOCTOR_OK, "memory.locked", "no limit");
    else
        doctor_add(d, low ? DOCTOR_WARNING : DOCTOR_OK, "memory.locked", "limit %llu KiB%s",
                   (ull)(most / 1024), gpu ? "" : ", which a CPU device does not use");
    if (low)
        doctor_advise(d, "pinned host memory for a GPU may be refused, and copies are then slower: "
                         "LimitMEMLOCK=infinity, ulimit -l unlimited, docker --ulimit memlock=-1");
}

void doctor_check_memory(doctor *d) {
    check_amount(d);
    check_swap(d);
    check_overcommit(d);
    check_huge_pages(d);
    check_memlock(d);
}

/* ---- limits ---- */

/* As http_listen.c: FDS_OTHER beside those of connections, and FDS_LEAST in all. */
static void check_descriptors(doctor *d) {
    enum { FDS_OTHER = 384, FDS_LEAST = 400 };
    uint32_t connections = d->config != NULL ? d->config->limits.http.connections_max
                                             : http_limits_default.connections_max;
    uint64_t wanted = connections + (uint64_t)FDS_OTHER, most = d->facts.n_fds_max;
    bool starts = most >= FDS_LEAST, all = most >= wanted;
    doctor_add(d,
               !starts ? DOCTOR_PROBLEM
               : !all  ? DOCTOR_WARNING
                       : DOCTOR_OK,
               "limits.descriptors", "%llu allowed, %llu wanted for connections_max %u", (ull)most,
               (ull)wanted, connections);
    if (!starts)
        doctor_advise(d,
                      "inferd needs at least %d: LimitNOFILE=%llu in its service, ulimit -Hn, "
                      "docker --ulimit nofile=%llu",
                      FDS_LEAST, (ull)wanted, (ull)wanted);
    else if (!all)
        doctor_advise(d,
                      "only %llu connections are served: LimitNOFILE=%llu, or "
                      "limits.connections_max lower",
                      (ull)(most - FDS_OTHER), (ull)wanted);
}

/* Tasks that a group, the ones above it and the mount itself still allow.  In a container the named
 * folder is often not visible: the mount then is the container's own group. */
static uint64_t tasks_left(const doctor *d, const char *mount, const char *group) {
    char folder[PATH_MAX], path[PATH_MAX + 16];
    uint64_t left = UINT64_MAX;
    snprintf(folder, sizeof folder, "%s%s", mount, strcmp(group, "/") == 0 ? "" : group);
    for (;;) {
        snprintf(path, sizeof path, "%s/pids.max", folder);
        uint64_t most = doctor_read_number(d, path, UINT64_MAX); // "max": none
        snprintf(path, sizeof path, "%s/pids.current", folder);
        if (most != UINT64_MAX)
            left = u64_min(left, u64_less(most, doctor_read_number(d, path, 0)));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < strlen(mount)) return left;
        *slash = 0;
    }
}

/* Of the control groups; UINT64_MAX: no limit. */
static uint64_t group_tasks_left(const doctor *d) {
    char text[4096];
    uint64_t left = UINT64_MAX;
    if (!doctor_read(d, "/proc/self/cgroup", text, sizeof text)) return left;
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL) continue;
        bool v2 = group == controllers + 1;
        if (v2)
            left = u64_min(left, tasks_left(d, "/sys/fs/cgroup", group + 1));
        else if (strncmp(controllers + 1, "pids:", 5) == 0)
            left = u64_min(left, tasks_left(d, "/sys/fs/cgroup/pids", group + 1));
    }
    return left;
}

static void check_tasks(doctor *d) {
    enum { THREADS_OTHER = 48 }; // front, workers, loaders, a driver's
    uint64_t wanted = d->facts.n_cpus + (uint64_t)THREADS_OTHER, left = group_tasks_left(d);
    uint64_t own = d->facts.is_root ? UINT64_MAX : d->facts.n_tasks_max;
    bool fits = left >= wanted && own >= wanted;
    if (left == UINT64_MAX && own == UINT64_MAX)
        doctor_add(d, DOCTOR_OK, "limits.tasks", "no limit; about %llu wanted", (ull)wanted);
    else
        doctor_add(d, fits ? DOCTOR_OK : DOCTOR_PROBLEM, "limits.tasks",
                   "%llu allowed, about %llu wanted", (ull)u64_min(left, own), (ull)wanted);
    if (!fits)
        doctor_advise(d, "threads cannot be started: TasksMax=, ulimit -u, docker --pids-limit");
}

void doctor_check_limits(doctor *d) {
    check_descriptors(d);
    check_tasks(d);
}
