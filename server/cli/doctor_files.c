/* doctor_files.c - checks of files and folders of a configuration; see doctor.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "config_options.h"
#include "curl_api.h"
#include "doctor.h"
#include "models/model.h"

#define GIB 1073741824.0

/* ---- keys ---- */

/* Does a value below have a member `key` or `keys` of its own? */
static bool has_keys(const json_t *v) {
    const char *name;
    json_t *inner;
    size_t i;
    if (json_is_array(v)) {
        json_array_foreach(v, i, inner) if (has_keys(inner)) return true;
        return false;
    }
    json_object_foreach((json_t *)v, name, inner) {
        if (strcmp(name, "key") == 0 || strcmp(name, "keys") == 0) return true;
        if (has_keys(inner)) return true;
    }
    return false;
}

/* A folder above the file that other users cannot enter, so that its mode does not count for them;
 * false: there is none. */
static bool find_closed_folder(const char *path, char out[PATH_MAX]) {
    struct stat st;
    if (realpath(path, out) == NULL) return false;
    for (char *slash; (slash = strrchr(out, '/')) != NULL && slash != out;) {
        *slash = 0;
        if (stat(out, &st) == 0 && (st.st_mode & S_IXOTH) == 0) return true;
    }
    strcpy(out, "/");
    return stat(out, &st) == 0 && (st.st_mode & S_IXOTH) == 0;
}

static void check_secret(doctor *d, const char *path, const char *what) {
    char closed[PATH_MAX];
    struct stat st;
    if (stat(path, &st) != 0) return; // the configuration was read, so a missing one is another's
    if (!d->facts.can(path, R_OK)) {
        doctor_add(d, DOCTOR_PROBLEM, "files.keys", "%.200s, %s: may not be read by that user",
                   path, what);
        doctor_advise(d, "chgrp it to the group of inferd, and chmod g+r");
        return;
    }
    bool open = (st.st_mode & (S_IROTH | S_IWOTH)) != 0;
    if (!open) {
        doctor_add(d, DOCTOR_OK, "files.keys", "%.200s: mode %04o", path,
                   (unsigned)st.st_mode & 07777);
        return;
    }
    if (find_closed_folder(path, closed)) {
        doctor_add(d, DOCTOR_OK, "files.keys",
                   "%.150s: mode %04o, but no other user may enter %.150s", path,
                   (unsigned)st.st_mode & 07777, closed);
        return;
    }
    doctor_add(d, DOCTOR_PROBLEM, "files.keys", "%.200s, %s: every user may %s it (mode %04o)",
               path, what, (st.st_mode & S_IROTH) != 0 ? "read" : "write",
               (unsigned)st.st_mode & 07777);
    doctor_advise(d, "chmod o-rwx '%.200s'", path);
}

static const char *secrets_of(const char *member) {
    if (strcmp(member, "key_file") == 0) return "a file of keys";
    return strcmp(member, "headers_file") == 0 ? "a file of headers" : NULL;
}

/* Key files, and the headers of traces, anywhere in the file; paths are relative to its folder. */
static void check_key_files(doctor *d, const json_t *v) {
    const char *name;
    json_t *inner;
    size_t i;
    if (json_is_array(v)) {
        json_array_foreach(v, i, inner) check_key_files(d, inner);
        return;
    }
    json_object_foreach((json_t *)v, name, inner) {
        const char *what = secrets_of(name);
        if (what == NULL || !json_is_string(inner)) {
            check_key_files(d, inner);
            continue;
        }
        char path[PATH_MAX];
        const char *slash = strrchr(d->config->source, '/'), *value = json_string_value(inner);
        bool relative = value[0] != '/' && slash != NULL;
        snprintf(path, sizeof path, "%.*s%s", relative ? (int)(slash - d->config->source) + 1 : 0,
                 d->config->source, value);
        check_secret(d, path, what);
    }
}

static void check_keys(doctor *d) {
    buf text;
    inferd_err err;
    if (d->config->source == NULL) return;
    buf_init(&text, 0);
    json_t *v = NULL;
    if (config_read_file(d->config->source, &text, &err) == INFERD_OK)
        v = json_loadb(text.p, text.n, 0, NULL);
    if (has_keys(v)) check_secret(d, d->config->source, "the configuration, which holds keys");
    check_key_files(d, v);
    json_decref(v);
    if (text.p != NULL) explicit_bzero(text.p, text.capacity);
    buf_deinit(&text);
}

/* ---- traces ---- */

static void check_libcurl(doctor *d) {
    inferd_err err = {0};
    if (d->config->tracing.endpoint == NULL) return;
    bool there = curl_api_get(&err) != NULL;
    doctor_add(d, there ? DOCTOR_OK : DOCTOR_PROBLEM, "files.libcurl", "%s",
               there ? "for traces, tracing.endpoint" : err.text);
    if (!there) doctor_advise(d, "apt install libcurl4, or leave tracing.endpoint out");
}

/* ---- models ---- */

uint64_t doctor_model_bytes(const char *path) {
    uint32_t n = model_n_files(path);
    char part[PATH_MAX];
    uint64_t sum = 0;
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part) return 0;
    for (uint32_t i = 0; i < n; i++) {
        struct stat st;
        if (n > 1) model_name_part(part, i, n);
        if (stat(part, &st) == 0) sum += (uint64_t)st.st_size;
    }
    return sum;
}

/* The first file of the model that cannot be read, in `path`, and why, NULL: all can be. */
static const char *find_unreadable(const doctor *d, char path[PATH_MAX], bool *there) {
    uint32_t n = model_n_files(path);
    for (uint32_t i = 0; i < n; i++) {
        struct stat st;
        if (n > 1) model_name_part(path, i, n);
        *there = stat(path, &st) == 0;
        if (!*there) return strerror(errno);
        if (!S_ISREG(st.st_mode)) return "not a file";
        if (!d->facts.can(path, R_OK)) return "may not be read by this user";
    }
    return NULL;
}

static void check_models(doctor *d) {
    enum { SHOWN = 8 };
    const inferd_config *c = d->config;
    uint64_t sum = 0;
    uint32_t n_bad = 0;
    for (uint32_t i = 0; i < c->n_models; i++) {
        char path[PATH_MAX];
        bool there = false;
        if (strncmp(c->models[i].path, "dummy:", 6) == 0) continue;
        snprintf(path, sizeof path, "%s", c->models[i].path);
        const char *why = find_unreadable(d, path, &there);
        sum += doctor_model_bytes(c->models[i].path);
        if (why == NULL || n_bad++ >= SHOWN) continue;
        doctor_add(d, DOCTOR_PROBLEM, "files.models", "models[%u] (%.60s): %.200s: %s", i,
                   c->models[i].name, path, why);
        doctor_advise(d, there ? "chmod or chown it for the user of inferd, and its folders (x)"
                               : "correct its path, or put it there; paths are relative to the "
                                 "configuration");
    }
    if (n_bad > SHOWN) doctor_add(d, DOCTOR_PROBLEM, "files.models", "and %u more", n_bad - SHOWN);
    if (n_bad == 0)
        doctor_add(d, DOCTOR_OK, "files.models", "%u, %.1f GiB, readable", c->n_models,
                   (double)sum / GIB);
}

/* ---- the folder of the state ---- */

/* Bytes of the disk that the files of a folder take, not of folders in it: the daemon makes none.
 * No folder: 0. */
static uint64_t folder_bytes(const char *state_dir, const char *name) {
    char path[PATH_MAX];
    enum { BLOCK = 512 };
    uint64_t sum = 0;
    struct stat st;
    if (snprintf(path, sizeof path, "%s/%s", state_dir, name) >= (int)sizeof path) return 0;
    DIR *all = opendir(path);
    for (struct dirent *e; all != NULL && (e = readdir(all)) != NULL;)
        if (fstatat(dirfd(all), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_blocks * BLOCK;
    if (all != NULL) closedir(all);
    return sum;
}

/* What kv_disk and kept responses may still grow by, and a little for the rest. */
static uint64_t disk_wanted(const inferd_config *c) {
    enum { LITTLE = 16 << 20 };
    return u64_less(c->kv_disk_bytes, folder_bytes(c->state_dir, "kv")) +
           u64_less(c->limits.responses_bytes_max, folder_bytes(c->state_dir, "responses")) +
           LITTLE;
}

static void check_disk(doctor *d, const char *folder, const char *subject, uint64_t wanted) {
    struct statvfs fs;
    if (statvfs(folder, &fs) != 0) return;
    uint64_t unused = (uint64_t)fs.f_bavail * fs.f_frsize;
    bool fits = unused >= wanted;
    doctor_add(d, fits ? DOCTOR_OK : DOCTOR_WARNING, subject,
               "%.1f GiB free, %.1f GiB more wanted: %s", (double)unused / GIB,
               (double)wanted / GIB, folder);
    if (!fits)
        doctor_advise(d, "make room, or set kv_disk and limits.responses_bytes_max lower: a full "
                         "disk fails no request, but nothing more is kept");
}

/* The folder above `path`; "." if there is none. */
static void folder_of(const char *path, char out[PATH_MAX]) {
    snprintf(out, PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        strcpy(out, ".");
    else
        slash[slash == out] = 0;
}

/* The daemon makes a missing folder, but not the one above. */
static void check_new_state(doctor *d, const char *path) {
    char above[PATH_MAX];
    folder_of(path, above);
    bool made = access(above, F_OK) == 0 && d->facts.can(above, W_OK | X_OK);
    doctor_add(d, made ? DOCTOR_OK : DOCTOR_PROBLEM, "files.state_dir",
               made ? "%.200s will be made" : "%.200s is not there and cannot be made", path);
    if (!made)
        doctor_advise(d,
                      "mkdir -m 750, owned by the user of inferd (StateDirectory= in a service)");
}

static void check_state_mode(doctor *d, const char *path, mode_t mode) {
    bool open = (mode & S_IWOTH) != 0, group = (mode & S_IWGRP) != 0;
    doctor_add(d,
               open    ? DOCTOR_PROBLEM
               : group ? DOCTOR_WARNING
                       : DOCTOR_OK,
               "files.state_dir", "%.200s: mode %04o", path, (unsigned)mode & 07777);
    if (open || group)
        doctor_advise(d, "%s may change used quotas and kept responses%s: chmod go-w '%.200s'",
                      open ? "every user" : "its group", open ? ", and inferd does not start" : "",
                      path);
}

static void check_state(doctor *d) {
    const inferd_config *c = d->config;
    char above[PATH_MAX];
    struct stat st;
    if (c->state_dir == NULL) {
        doctor_add(d, DOCTOR_OK, "files.state_dir", "none: nothing is kept over a restart");
        return;
    }
    bool there = stat(c->state_dir, &st) == 0;
    if (!there) {
        check_new_state(d, c->state_dir);
    } else if (!S_ISDIR(st.st_mode) || !d->facts.can(c->state_dir, R_OK | W_OK | X_OK)) {
        doctor_add(d, DOCTOR_PROBLEM, "files.state_dir", "%.200s: %s", c->state_dir,
                   S_ISDIR(st.st_mode) ? "may not be written by this user" : "not a folder");
        doctor_advise(d, "chown it to the user of inferd (StateDirectory= in a service)");
    } else {
        check_state_mode(d, c->state_dir, st.st_mode);
    }
    folder_of(c->state_dir, above);
    check_disk(d, there ? c->state_dir : above, "files.disk", disk_wanted(c));
}

static void check_log(doctor *d) {
    char folder[PATH_MAX];
    const char *path = d->config->log.path;
    if (path == NULL) return;
    folder_of(path, folder);
    struct stat st;
    bool there = stat(path, &st) == 0, is_folder = there && S_ISDIR(st.st_mode);
    bool fine = there ? !is_folder && d->facts.can(path, W_OK) : d->facts.can(folder, W_OK | X_OK);
    doctor_add(d, fine ? DOCTOR_OK : DOCTOR_PROBLEM, "files.log", "%.200s%s", path,
               fine        ? ""
               : is_folder ? ": a folder, not a file"
                           : ": may not be written by this user, or its folder is missing");
    if (!fine)
        doctor_advise(d, is_folder ? "name a file in it"
                                   : "make its folder for the user of inferd (LogsDirectory=)");
}

void doctor_check_files(doctor *d) {
    if (d->config == NULL) return;
    check_keys(d);
    check_libcurl(d);
    check_models(d);
    check_state(d);
    check_log(d);
}
