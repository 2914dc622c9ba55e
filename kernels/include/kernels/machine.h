/* machine.h - how much of the machine this process may use.
 *
 * A process may rarely use all CPUs of the machine: a container has an affinity mask, and a
 * CPU quota that the mask does not show.  Threads that spin on CPUs of other processes are slower
 * than no threads at all, so both are read once, when the backend opens.
 *
 * Both versions of control groups are supported.  A limit may be set in any folder between the
 * process's own group and the root, so every folder on the way is read and the smallest limit
 * counts.
 *
 * Thread: any. */
#ifndef INFERD_MACHINE_H
#define INFERD_MACHINE_H

#include <sched.h>

#include "inferd/base.h"
#include "inferd/status.h"

/* CPUs this process may use at once: the affinity mask, cut by the quota rounded up; at least 1. */
uint32_t machine_cpus_allowed(void);

/* A list of CPUs like "0-3,8".  INFERD_EINVAL: no list, or a CPU that this process may not use. */
inferd_status machine_cpu_list(const char *text, cpu_set_t *out, inferd_err *err);

/* CPUs in the affinity mask alone; at least 1. */
uint32_t machine_cpus_in_mask(void);

/* Bytes of memory this process may use: physical memory, cut by the control group's limit. */
uint64_t machine_memory_bytes(void);

/* The two limits as control groups state them; 0 = none.  `groups_path` is /proc/self/cgroup and
 * `root` is /sys/fs/cgroup, except in tests. */
uint32_t machine_group_cpus(const char *groups_path, const char *root);
uint64_t machine_group_memory(const char *groups_path, const char *root);

#endif
