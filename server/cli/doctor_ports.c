/* doctor_ports.c - checks of addresses and the socket of administrators; see doctor.h. */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin_socket.h"
#include "doctor.h"

/* ---- the process that listens ---- */

/* An address as the tables of /proc have it: words of the memory, in hexadecimal digits. */
typedef struct table_address {
    char text[33]; // "0100007F"; "": not numeric
    unsigned port;
} table_address;

static void add_words(char *out, const uint32_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) snprintf(out + 8 * i, 9, "%08X", words[i]);
}

/* "PORT", "ADDRESS:PORT", "[IPV6]:PORT", as http_listen.c reads them. */
static table_address read_listen(const char *listen) {
    table_address a = {0};
    char host[64] = "";
    const char *colon = strrchr(listen, ':');
    uint32_t words[4] = {0};
    a.port = (unsigned)strtoul(colon == NULL ? listen : colon + 1, NULL, 10);
    if (colon != NULL) snprintf(host, sizeof host, "%.*s", (int)(colon - listen), listen);
    if (host[0] == 0 || strcmp(host, "localhost") == 0) strcpy(host, "127.0.0.1");
    size_t n = strlen(host);
    if (host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = 0;
        if (inet_pton(AF_INET6, host + 1, words) == 1) add_words(a.text, words, 4);
    } else if (inet_pton(AF_INET, host, words) == 1) {
        add_words(a.text, words, 1);
    }
    return a;
}

static bool is_any(const char *address) {
    return strspn(address, "0") == strlen(address);
}

/* How a listening socket stands to an address with the same port. */
typedef enum overlap { APART, OVERLAPS, SAME } overlap;

static overlap compare(const char *its, const char *ours) {
    static const char mapped[] = "0000000000000000FFFF0000"; // ::ffff:0:0, an IPv4 address
    size_t n = sizeof mapped - 1;
    if (strlen(its) > n && strlen(ours) == 8 && strncmp(its, mapped, n) == 0) its += n;
    if (strcmp(its, ours) == 0) return SAME;
    return is_any(its) || is_any(ours) ? OVERLAPS : APART;
}

/* A listening socket.  inode 0: none was found. */
typedef struct listener {
    unsigned long inode;
    unsigned uid; // of its maker
} listener;

/* The one that listens there, of /proc/net/tcp and tcp6.  Two processes may listen on the same port
 * of different addresses. */
static listener find_listener(const doctor *d, const table_address *ours) {
    enum { LISTENING = 0x0A };
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    listener found = {0};
    overlap best = APART;
    for (size_t i = 0; i < INFERD_COUNT(tables); i++) {
        char path[PATH_MAX], line[512];
        snprintf(path, sizeof path, "%s%s", d->root, tables[i]);
        FILE *f = fopen(path, "re");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            char its[33];
            unsigned port = 0, state = 0;
            listener one = {0};
            if (sscanf(line, " %*u: %32[0-9A-F]:%x %*s %x %*s %*s %*s %u %*u %lu", its, &port,
                       &state, &one.uid, &one.inode) != 5 ||
                port != ours->port || state != LISTENING)
                continue;
            overlap now = compare(its, ours->text);
            if (now > best) found = one, best = now;
        }
        if (f != NULL) fclose(f);
    }
    return found;
}

/* The one with this file, of /proc/net/unix: "ADDRESS: REFS PROTOCOL FLAGS TYPE STATE INODE PATH",
 * where FLAGS 00010000 is a socket that listens. */
static listener find_unix_listener(const doctor *d, const char *socket_path) {
    char path[PATH_MAX], line[512], its[256];
    listener found = {0};
    struct stat st;
    snprintf(path, sizeof path, "%s/proc/net/unix", d->root);
    FILE *f = fopen(path, "re");
    while (f != NULL && found.inode == 0 && fgets(line, sizeof line, f) != NULL) {
        unsigned long inode = 0;
        if (sscanf(line, "%*x: %*x %*x 00010000 %*x %*x %lu %255[^\n]", &inode, its) == 2 &&
            strcmp(its, socket_path) == 0)
            found.inode = inode;
    }
    if (f != NULL) fclose(f);
    if (found.inode != 0 && stat(socket_path, &st) == 0) found.uid = st.st_uid;
    return found;
}

static bool has_socket(const char *folder, unsigned long inode) {
    char wanted[64], link[PATH_MAX + 300], to[64];
    bool found = false;
    DIR *fds = opendir(folder);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    for (struct dirent *e; fds != NULL && !found && (e = readdir(fds)) != NULL;) {
        snprintf(link, sizeof link, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(link, to, sizeof to - 1);
        if (n <= 0) continue;
        to[n] = 0;
        found = strcmp(to, wanted) == 0;
    }
    if (fds != NULL) closedir(fds);
    return found;
}

/* What holds a listening socket, and may it be asked for /health?  A connection to a socket that
 * only systemd holds would start the service of its socket unit, and a check changes nothing. */
typedef enum holder_kind {
    HOLDER_ANY,     // a process; or not known
    HOLDER_SYSTEMD, // for a socket unit with a service that does not run
    HOLDER_OF_ROOT, // a process of root, which this user cannot see: perhaps systemd
} holder_kind;
typedef struct holder {
    holder_kind kind;
    char text[128]; // " by NAME (pid N)"; "": other users' processes are not readable
} holder;

static bool is_systemd(const char *pid, const char *name) {
    return strcmp(pid, "1") == 0 && strcmp(name, "systemd") == 0;
}

static holder find_holder(const doctor *d, const char *listen) {
    char path[PATH_MAX], name[64];
    holder found = {0};
    bool by_systemd = false;
    table_address ours = read_listen(listen);
    listener l = strncmp(listen, "unix:", 5) == 0 ? find_unix_listener(d, listen + 5)
                                                  : find_listener(d, &ours);
    if (l.inode == 0) return found;
    snprintf(path, sizeof path, "%s/proc", d->root);
    DIR *all = opendir(path);
    for (struct dirent *e; all != NULL && found.text[0] == 0 && (e = readdir(all)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        snprintf(path, sizeof path, "%s/proc/%.20s/fd", d->root, e->d_name);
        if (!has_socket(path, l.inode)) continue;
        snprintf(path, sizeof path, "/proc/%.20s/comm", e->d_name);
        if (!doctor_read(d, path, name, sizeof name)) snprintf(name, sizeof name, "a process");
        if (is_systemd(e->d_name, name))
            by_systemd = true; // a service that runs holds it, too
        else
            snprintf(found.text, sizeof found.text, " by %s (pid %.20s)", name, e->d_name);
    }
    if (all != NULL) closedir(all);
    if (found.text[0] != 0) return found;
    if (by_systemd)
        found.kind = HOLDER_SYSTEMD;
    else if (l.uid == 0 && !d->facts.is_root)
        found.kind = HOLDER_OF_ROOT;
    return found;
}

/* Asks only where it changes nothing. */
static bool is_ours(const doctor *d, const char *listen, const holder *h) {
    return h->kind == HOLDER_ANY && d->facts.is_healthy(listen);
}

/* Adds the line of an address that could not be asked; false: it could. */
static bool tell_not_asked(doctor *d, const char *subject, const char *listen, const holder *h) {
    if (h->kind == HOLDER_ANY) return false;
    if (h->kind == HOLDER_SYSTEMD) {
        doctor_add(d, DOCTOR_OK, subject,
                   "%.200s is held by systemd for a socket unit; its service does not run", listen);
        return true;
    }
    doctor_add(d, DOCTOR_WARNING, subject, "%.200s is used by a process of root", listen);
    doctor_advise(d, "it was not asked, because that starts the service of a socket unit: as root, "
                     "inferd doctor can see which process it is");
    return true;
}

const char *doctor_listen(const doctor *d) {
    return d->config != NULL && d->config->listen != NULL ? d->config->listen : "127.0.0.1:8080";
}

/* The address is asked only where it is in use. */
bool doctor_is_running(const doctor *d) {
    inferd_err err;
    const char *listen = doctor_listen(d);
    if (d->facts.try_listen(listen, &err) != INFERD_EBUSY) return false;
    holder h = find_holder(d, listen);
    return is_ours(d, listen, &h);
}

/* Can a socket's file be made in its folder, which the daemon makes if `makes_folder`? */
static bool can_make(const doctor *d, const char *path, bool makes_folder) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (int depth = 0; depth < (makes_folder ? 2 : 1); depth++) {
        char *slash = strrchr(folder, '/');
        if (slash == NULL) return depth == 0 && d->facts.can(".", W_OK | X_OK);
        slash[slash == folder] = 0;
        if (access(folder, F_OK) == 0) return d->facts.can(folder, W_OK | X_OK);
    }
    return false;
}

static void check_listen(doctor *d, const char *listen) {
    inferd_err err = {0};
    bool file = strncmp(listen, "unix:", 5) == 0;
    inferd_status s = d->facts.try_listen(listen, &err);
    if (s == INFERD_OK && file && !can_make(d, listen + 5, false)) {
        doctor_add(d, DOCTOR_PROBLEM, "ports.listen",
                   "%.200s: its folder is missing or cannot be written", listen);
        doctor_advise(d, "make the folder, owned by the user of inferd");
        return;
    }
    if (s == INFERD_OK) {
        doctor_add(d, DOCTOR_OK, "ports.listen", "%.200s is free", listen);
        return;
    }
    if (s != INFERD_EBUSY) {
        doctor_add(d, DOCTOR_PROBLEM, "ports.listen", "%s", err.text);
        doctor_advise(d, "choose an address of this machine that inferd may use: \"listen\", "
                         "--listen");
        return;
    }
    holder h = find_holder(d, listen);
    if (tell_not_asked(d, "ports.listen", listen, &h)) return;
    if (is_ours(d, listen, &h)) {
        doctor_add(d, DOCTOR_OK, "ports.listen", "%.200s is used%s: an inferd that answers /health",
                   listen, h.text);
        return;
    }
    doctor_add(d, DOCTOR_PROBLEM, "ports.listen", "%.200s is used%s", listen,
               h.text[0] != 0 ? h.text : " by another process");
    doctor_advise(d, "end that process, or choose another address: \"listen\", --listen");
}

/* ---- the socket of administrators ---- */

/* True: there is a line about this place. */
static bool check_place(doctor *d, const char *path, bool configured) {
    inferd_err err = {0};
    char listen[PATH_MAX + 8];
    snprintf(listen, sizeof listen, "unix:%s", path);
    inferd_status s = d->facts.try_listen(listen, &err);
    if (s == INFERD_EBUSY) {
        holder h = find_holder(d, listen);
        if (tell_not_asked(d, "ports.admin", path, &h)) return true;
        bool healthy = is_ours(d, listen, &h);
        doctor_add(d, healthy || !configured ? DOCTOR_OK : DOCTOR_PROBLEM, "ports.admin", "%s: %s",
                   path, healthy ? "an inferd answers there" : "in use by another process");
        if (!healthy && configured) doctor_advise(d, "choose another admin.listen");
        return true;
    }
    if (s == INFERD_OK && can_make(d, path, true)) {
        doctor_add(d, DOCTOR_OK, "ports.admin", "%s can be made", path);
        return true;
    }
    if (strncmp(path, "/run/inferd/", 12) == 0 && doctor_has_unit(d)) {
        doctor_add(d, DOCTOR_OK, "ports.admin", "%s: inferd.service makes the folder", path);
        return true;
    }
    if (!configured) return false;
    doctor_add(d, DOCTOR_PROBLEM, "ports.admin", "%s: %s", path,
               s != INFERD_OK ? err.text : "its folder is missing or cannot be written");
    doctor_advise(d,
                  "make the folder, owned by the user of inferd, or set admin.listen to \"none\"");
    return true;
}

static void check_admin(doctor *d) {
    char places[ADMIN_SOCKET_PLACES][ADMIN_SOCKET_BYTES];
    const char *set = d->config != NULL ? d->config->admin.listen : NULL;
    if (set != NULL && strcmp(set, "none") == 0) {
        doctor_add(d, DOCTOR_OK, "ports.admin", "none, as configured");
        return;
    }
    if (set != NULL) {
        check_place(d, set + (strncmp(set, "unix:", 5) == 0 ? 5 : 0), true);
        return;
    }
    uint32_t n = admin_socket_places(places);
    for (uint32_t i = 0; i < n; i++)
        if (check_place(d, places[i], false)) return;
    doctor_add(d, DOCTOR_WARNING, "ports.admin", "no folder for it: %s", places[n - 1]);
    doctor_advise(d, "`inferd ctl` cannot reach the daemon: make the folder for the user of "
                     "inferd (RuntimeDirectory=inferd), or set admin.listen");
}

void doctor_check_ports(doctor *d) {
    check_listen(d, doctor_listen(d));
    check_admin(d);
}
