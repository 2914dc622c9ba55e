/* cuda_wait.c - how the host waits for a step: with a busy CPU, or asleep.
 *
 *     spinning   the engine's thread polls until the event has arrived: one busy CPU, no delay
 *     asleep     the driver's interrupt wakes the thread: no busy CPU, 10 to 50 microseconds late
 *
 *     CUDA_WAIT_BY_STEP   the host spins for a step that is expected to be short, where the delay
 *                         would matter.  The expected length is that of the step before
 *     CUDA_WAIT_ASLEEP    CPUs are few, or the process has a quota of CPU time, which a spinning
 *                         thread would use up for all others
 *     CUDA_WAIT_SPINNING  the part `blocking` is switched off
 *
 * The way of waiting is a property of the event, so there is an end event of each kind and the step
 * chooses one when it is launched.  The next step is launched meanwhile, so that the device has
 * work while the host wakes up.
 *
 * Thread: engine. */
#include "kernels/machine.h"
#include "cuda/cuda.h"

enum { SHORT_STEP_US = 3000, CPUS_EACH = 2 };

cuda_wait cuda_wait_choose(bool has_quota, uint32_t n_cpus, uint32_t n_devices) {
    bool few = n_cpus <= CPUS_EACH * u32_max(n_devices, 1);
    return has_quota || few ? CUDA_WAIT_ASLEEP : CUDA_WAIT_BY_STEP;
}

/* Counts of waiting engines, of this or another process, one for each visible device. */
inferd_status cuda_wait_open(cuda_backend *c, inferd_err *err) {
    uint32_t n_devices = 1;
    c->wait = CUDA_WAIT_SPINNING;
    if (!parts_is_on(&c->parts, PART_BLOCKING)) return INFERD_OK;
    bool has_quota = machine_group_cpus("/proc/self/cgroup", "/sys/fs/cgroup") != 0;
    cu_result r = c->api->device_count(&n_devices);
    if (r != CU_OK) return cu_fail(c->api, r, err, "counting the devices");
    c->wait = cuda_wait_choose(has_quota, machine_cpus_allowed(), n_devices);
    if (c->wait == CUDA_WAIT_ASLEEP) r = c->api->device_blocking();
    if (r == CU_ELOST) return cu_fail(c->api, r, err, "setting the device to blocking waits");
    if (r != CU_OK) parts_degrade(&c->parts, PART_BLOCKING, c->api->text()); // events still sleep
    return INFERD_OK;
}

const char *cuda_wait_name(const cuda_backend *c) {
    return c->wait == CUDA_WAIT_ASLEEP     ? ", waits asleep"
           : c->wait == CUDA_WAIT_SPINNING ? ", waits spinning"
                                           : "";
}

cuda_end cuda_wait_for_next(const cuda_backend *c) {
    if (c->wait == CUDA_WAIT_ASLEEP) return CUDA_END_ASLEEP;
    if (c->wait == CUDA_WAIT_SPINNING) return CUDA_END_SPINNING;
    return c->step_us > SHORT_STEP_US ? CUDA_END_ASLEEP : CUDA_END_SPINNING;
}
