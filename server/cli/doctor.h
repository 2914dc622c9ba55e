/* doctor.h - `inferd doctor`: is this machine fit for inferd, and for one configuration?
 *
 * A check reads files of /proc, /sys, /dev and /run below `root`, and the facts that are no files
 * (doctor_facts), so that a test can show it a machine that does not exist.  It adds lines and
 * changes nothing.
 *
 *   ok       as it should be, or without effect on inferd
 *   warning  inferd runs, but slower, or less safe, or not under every load
 *   problem  inferd does not run, or breaks a guarantee of its configuration
 *
 * Every line but "ok" has advice: what to do.
 * Thread: main. */
#ifndef INFERD_DOCTOR_H
#define INFERD_DOCTOR_H

#include <sys/types.h>

#include "config.h"
#include "inferd/base.h"
#include "inferd/buf.h"

typedef enum doctor_level { DOCTOR_OK, DOCTOR_WARNING, DOCTOR_PROBLEM } doctor_level;

enum { DOCTOR_LINES_MAX = 256, DOCTOR_FIGURE_BYTES = 400, DOCTOR_ADVICE_BYTES = 600 };

typedef struct doctor_line {
    doctor_level level;
    const char *subject; // "memory.swap", static
    char figure[DOCTOR_FIGURE_BYTES];
    char advice[DOCTOR_ADVICE_BYTES]; // "": none
} doctor_line;

/* Facts about this process and the kernel that are not in files. */
typedef struct doctor_facts {
    uint32_t n_cpus;             // in the affinity mask
    uint64_t n_fds_max;          // hard limit of RLIMIT_NOFILE: the daemon raises the soft one
    uint64_t memlock_max;        // soft limit of RLIMIT_MEMLOCK, bytes; UINT64_MAX: none
    uint64_t n_tasks_max;        // soft limit of RLIMIT_NPROC; UINT64_MAX: none
    bool is_root;                // limits of tasks and pinned memory do not count
    int clock_state;             // of adjtimex: TIME_OK...; -1: it cannot be read
    bool clock_unsynced;         // STA_UNSYNC
    int64_t now_s, built_s;      // Unix time; the change time of the program, 0: unknown
    const char *cpu_level_asked; // INFERD_CPU; NULL: not set
    const char *mps_folder;      // CUDA_MPS_PIPE_DIRECTORY; NULL: not set
    const char *runtime_folder;  // XDG_RUNTIME_DIR; NULL: not set
    bool (*can)(const char *path, int mode); // access() with the effective user
    /* Tries the address as the daemon would, without keeping it (http_try_listen). */
    inferd_status (*try_listen)(const char *listen, inferd_err *err);
    bool (*is_healthy)(const char *listen); // GET /health is answered as inferd does
} doctor_facts;
void doctor_read_facts(doctor_facts *out);

typedef struct doctor {
    const char *root; // "": this machine
    doctor_facts facts;
    const inferd_config *config; // NULL: only the machine
    const char *module;          // inferd_cuda.so; NULL: as the daemon finds it
    doctor_line *lines;          // [n_lines] owned
    uint32_t n_lines;
    uint32_t n_left_out; // beyond DOCTOR_LINES_MAX, or without memory
} doctor;
void doctor_deinit(doctor *d);

/* -- checks -- */
void doctor_check_cpu(doctor *d);
void doctor_check_memory(doctor *d);
void doctor_check_limits(doctor *d);
void doctor_check_clock(doctor *d);
void doctor_check_container(doctor *d);
void doctor_check_ports(doctor *d);
void doctor_check_files(doctor *d);
void doctor_check_gpu(doctor *d);        // driver, nodes, MPS: from files
void doctor_check_gpu_module(doctor *d); // what the module and NVML say; not below `root`

/* -- report -- */
/* The worst level of all lines. */
doctor_level doctor_worst(const doctor *d);
const char *doctor_level_name(doctor_level level);
void doctor_write_text(const doctor *d, buf *out);
void doctor_write_json(const doctor *d, buf *out);

/* -- internal; for checks -- */
__attribute__((format(printf, 4, 5))) void doctor_add(doctor *d, doctor_level level,
                                                      const char *subject, const char *format, ...);
/* What to do about the line that was added last. */
__attribute__((format(printf, 2, 3))) void doctor_advise(doctor *d, const char *format, ...);
/* The first bytes of a file below root, without the newline at the end; false: none. */
bool doctor_read(const doctor *d, const char *path, char *out, size_t out_bytes);
/* The same for a number; `fallback` if there is none. */
uint64_t doctor_read_number(const doctor *d, const char *path, uint64_t fallback);
bool doctor_exists(const doctor *d, const char *path);
/* "MemTotal:  123 kB" of /proc/meminfo, bytes; 0: no such line. */
uint64_t doctor_meminfo(const doctor *d, const char *name);
/* The value of the first line of a file of "name : value" lines; false: no such line. */
bool doctor_find(const doctor *d, const char *path, const char *name, char *out, size_t out_bytes);
/* Does a list of words have this one? */
bool doctor_has_word(const char *words, const char *word);
/* Devices of the configuration that are, or with "auto" may be, of this kind. */
uint32_t doctor_n_devices(const doctor *d, const char *kind);
/* Where the daemon of this configuration listens, and does an inferd answer there? */
const char *doctor_listen(const doctor *d);
bool doctor_is_running(const doctor *d);
/* Bytes of a model's file, or of all parts of a split one; those that cannot be read count 0. */
uint64_t doctor_model_bytes(const char *path);
bool doctor_has_gpu(const doctor *d);  // a GPU of NVIDIA on PCI, or that of WSL
bool doctor_uses_gpu(const doctor *d); // the configuration may use one; or there is none
bool doctor_has_unit(const doctor *d); // inferd.service is installed
/* The best instruction set of these flags of /proc/cpuinfo, as kernels/cpu/level.c chooses;
 * `lacks`: what the next one needs, "" for the best. */
const char *doctor_cpu_level(const char *flags, const char **lacks);

#endif
