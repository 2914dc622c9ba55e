/* machine.c - affinity masks and control groups, see machine.h.
 *
 * A line of /proc/self/cgroup names one hierarchy and the group of this process in it:
 *
 *     0::/system.slice/inferd.service       version 2, one hierarchy for everything
 *     4:cpu,cpuacct:/docker/8f3a            version 1, mounted at <root>/cpu or <root>/cpu,cpuacct
 *
 * Inside a container the named folder is often not visible; the walk towards the root then ends at
 * the mount itself, which is the container's own group. */
#include "kernels/machine.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

/* The limit that one group folder sets; 0 = none. */
typedef uint64_t read_limit(const char *folder);

static bool read_text(const char *folder, const char *name, char *text, size_t text_bytes) {
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    size_t n = fread(text, 1, text_bytes - 1, f);
    text[n] = 0;
    fclose(f);
    return n > 0;
}

/* Quota / period, rounded up. */
static uint64_t cpus_of(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return 0;
    return (uint64_t)quota / (uint64_t)period + ((uint64_t)quota % (uint64_t)period != 0);
}

static uint64_t cpus_v2(const char *folder) {
    char text[64];
    long long quota, period;
    if (!read_text(folder, "cpu.max", text, sizeof text)) return 0;
    return sscanf(text, "%lld %lld", &quota, &period) == 2 ? cpus_of(quota, period) : 0; // "max"
}

static uint64_t cpus_v1(const char *folder) {
    char quota[64], period[64];
    if (!read_text(folder, "cpu.cfs_quota_us", quota, sizeof quota)) return 0;
    if (!read_text(folder, "cpu.cfs_period_us", period, sizeof period)) return 0;
    return cpus_of(strtoll(quota, NULL, 10), strtoll(period, NULL, 10));
}

static uint64_t memory_v2(const char *folder) {
    char text[64];
    if (!read_text(folder, "memory.max", text, sizeof text) || strncmp(text, "max", 3) == 0)
        return 0;
    return strtoull(text, NULL, 10);
}

static uint64_t memory_v1(const char *folder) {
    char text[64];
    if (!read_text(folder, "memory.limit_in_bytes", text, sizeof text)) return 0;
    return strtoull(text, NULL, 10); // "no limit" is a huge number
}

static void tighten(uint64_t *limit, uint64_t found) {
    if (found != 0 && (*limit == 0 || found < *limit)) *limit = found;
}

/* The tightest limit of mount/group, its parents, and the mount itself. */
static void walk(const char *mount, const char *group, read_limit *read, uint64_t *limit) {
    char folder[PATH_BYTES];
    int n = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof folder) return;
    for (;;) {
        tighten(limit, read(folder));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < strlen(mount)) return;
        *slash = 0;
    }
}

static bool lists(const char *controllers, const char *name) {
    size_t n = strlen(name);
    for (const char *at = controllers; *at != 0;) {
        size_t len = strcspn(at, ",");
        if (len == n && memcmp(at, name, n) == 0) return true;
        at += len + (at[len] == ',');
    }
    return false;
}

static uint64_t group_limit(const char *groups_path, const char *root, const char *controller,
                            read_limit *v1, read_limit *v2) {
    char line[PATH_BYTES];
    uint64_t limit = 0;
    FILE *f = fopen(groups_path, "re");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        if (controllers == NULL) continue;
        char *group = strchr(++controllers, ':');
        if (group == NULL) continue;
        *group++ = 0;
        if (strcmp(group, "/") == 0) group = (char *)"";
        char mount[PATH_BYTES];
        if (controllers[0] == 0) { // version 2; beside version 1 it is mounted at "unified"
            walk(root, group, v2, &limit);
            snprintf(mount, sizeof mount, "%s/unified", root);
            walk(mount, group, v2, &limit);
        } else if (lists(controllers, controller)) {
            snprintf(mount, sizeof mount, "%s/%s", root, controller);
            walk(mount, group, v1, &limit);
            snprintf(mount, sizeof mount, "%s/%s", root, controllers);
            walk(mount, group, v1, &limit);
        }
    }
    fclose(f);
    return limit;
}

uint32_t machine_group_cpus(const char *groups_path, const char *root) {
    uint64_t cpus = group_limit(groups_path, root, "cpu", cpus_v1, cpus_v2);
    return cpus > UINT32_MAX ? UINT32_MAX : (uint32_t)cpus;
}

uint64_t machine_group_memory(const char *groups_path, const char *root) {
    return group_limit(groups_path, root, "memory", memory_v1, memory_v2);
}

uint32_t machine_cpus_in_mask(void) {
    /* The mask of a machine with more than CPU_SETSIZE CPUs does not fit; grow until it does. */
    for (int n_cpus = CPU_SETSIZE; n_cpus <= 1 << 20; n_cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(n_cpus);
        if (set == NULL) return 1;
        size_t n_bytes = CPU_ALLOC_SIZE(n_cpus);
        bool fits = sched_getaffinity(0, n_bytes, set) == 0;
        int n = fits ? CPU_COUNT_S(n_bytes, set) : 0;
        CPU_FREE(set);
        if (fits) return n > 0 ? (uint32_t)n : 1;
    }
    return 1;
}

uint32_t machine_cpus_allowed(void) {
    uint32_t n = machine_cpus_in_mask();
    uint32_t quota = machine_group_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota != 0 && quota < n ? quota : n;
}

/* Read the number of a CPU; false: there is no number, or it is too large for any CPU. */
static bool read_cpu(const char **at, int *cpu) {
    const char *p = *at;
    *cpu = 0;
    for (; isdigit((unsigned char)*p) && *cpu < CPU_SETSIZE; p++) *cpu = *cpu * 10 + (*p - '0');
    bool fine = p > *at && *cpu < CPU_SETSIZE;
    *at = p;
    return fine;
}

inferd_status machine_cpu_list(const char *text, cpu_set_t *out, inferd_err *err) {
    cpu_set_t allowed;
    CPU_ZERO(out);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "cores: this machine has more CPUs than a list of %d can name",
                           CPU_SETSIZE);
    for (const char *p = text;; p++) {
        int first, last;
        bool fine = read_cpu(&p, &first);
        last = first;
        if (fine && *p == '-') {
            p++;
            fine = read_cpu(&p, &last) && first <= last;
        }
        if (!fine || (*p != 0 && *p != ','))
            return inferd_fail(err, INFERD_EINVAL,
                               "cores is \"%.64s\", expected CPUs and ranges from 0 to %d, like "
                               "\"0-3,8\"",
                               text, CPU_SETSIZE - 1);
        for (int cpu = first; cpu <= last; cpu++) {
            if (!CPU_ISSET(cpu, &allowed))
                return inferd_fail(err, INFERD_EINVAL,
                                   "cores is \"%.64s\": CPU %d does not exist, or this process may "
                                   "not use it; it may use %u CPUs",
                                   text, cpu, machine_cpus_in_mask());
            CPU_SET(cpu, out);
        }
        if (*p == 0) return INFERD_OK;
    }
}

uint64_t machine_memory_bytes(void) {
    long n_pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t physical =
        n_pages > 0 && page_bytes > 0 ? (uint64_t)n_pages * (uint64_t)page_bytes : 0;
    uint64_t group = machine_group_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    return group != 0 && (physical == 0 || group < physical) ? group : physical;
}
