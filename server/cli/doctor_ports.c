/* doctor_ports.c - checks of addresses and the socket of administrators; see doctor.h. */
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <string.h>
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

/* The inode of a socket that listens there, of /proc/net/tcp and tcp6; 0: none.  Two processes may
 * listen on the same port of different addresses. */
static unsigned long find_inode(const doctor *d, const table_address *ours) {
    enum { LISTENING = 0x0A };
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    unsigned long inode = 0;
    overlap best = APART;
    for (size_t i = 0; i < INFERD_COUNT(tables); i++) {
        char path[PATH_MAX], line[512];
        snprintf(path, sizeof path, "%s%s", d->root, tables[i]);
        FILE *f = fopen(path, "re");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            char its[33];
            unsigned port = 0, state = 0;
            unsigned long its_inode = 0;
            if (sscanf(line, " %*u: %32[0-9A-F]:%x %*s %x %*s %*s %*s %*u %*u %lu", its, &port,
                       &state, &its_inode) != 4 ||
                port != ours->port || state != LISTENING)
                continue;
            overlap now = compare(its, ours->text);
            if (now > best) inode = its_inode, best = now;
        }
        if (f != NULL) fclose(f);
    }
    return inode;
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

/* " by NAME (pid N)", or "": other users' processes are not readable. */
static void say_owner(const doctor *d, const char *listen, char *out, size_t out_bytes) {
    char path[PATH_MAX], name[64];
    out[0] = 0;
    table_address ours = read_listen(listen);
    unsigned long inode = find_inode(d, &ours);
    if (inode == 0) return;
    snprintf(path, sizeof path, "%s/proc", d->root);
    DIR *all = opendir(path);
    for (struct dirent *e; all != NULL && (e = readdir(all)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        snprintf(path, sizeof path, "%s/proc/%.20s/fd", d->root, e->d_name);
        if (!has_socket(path, inode)) continue;
        snprintf(path, sizeof path, "/proc/%.20s/comm", e->d_name);
        if (!doctor_read(d, path, name, sizeof name)) snprintf(name, sizeof name, "a process");
        snprintf(out, out_bytes, " by %s (pid %.20s)", name, e->d_name);
        break;
    }
    if (all != NULL) closedir(all);
}

const char *doctor_listen(const doctor *d) {
    return d->config != NULL && d->config->listen != NULL ? d->config->listen : "127.0.0.1:8080";
}

/* The address is asked only where it is in use. */
bool doctor_is_running(const doctor *d) {
    inferd_err err;
    const char *listen = doctor_listen(d);
    return d->facts.try_listen(listen, &err) == INFERD_EBUSY && d->facts.is_healthy(listen);
}

static void check_listen(doctor *d, const char *listen) {
    inferd_err err = {0};
    char owner[128] = "";
    inferd_status s = d->facts.try_listen(listen, &err);
    if (s == INFERD_OK) {
        doctor_add(d, DOCTOR_OK, "ports.listen", "%.200s is free", listen);
        return;
    }
    if (strncmp(listen, "unix:", 5) != 0) say_owner(d, listen, owner, sizeof owner);
    if (s == INFERD_EBUSY && d->facts.is_healthy(listen)) {
        doctor_add(d, DOCTOR_OK, "ports.listen", "%.200s is used%s: an inferd that answers /health",
                   listen, owner);
        return;
    }
    if (s == INFERD_EBUSY)
        doctor_add(d, DOCTOR_PROBLEM, "ports.listen", "%.200s is used%s", listen,
                   owner[0] != 0 ? owner : " by another process");
    else
        doctor_add(d, DOCTOR_PROBLEM, "ports.listen", "%s", err.text);
    doctor_advise(d, s == INFERD_EBUSY
                         ? "end that process, or choose another address: \"listen\", --listen"
                         : "choose an address of this machine that inferd may use: \"listen\", "
                           "--listen");
}

/* ---- the socket of administrators ---- */

/* Is the folder of the socket there and writable, or can it be made? */
static bool can_make(const doctor *d, const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (int depth = 0; depth < 2; depth++) {
        char *slash = strrchr(folder, '/');
        if (slash == NULL || slash == folder) return false;
        *slash = 0;
        if (access(folder, F_OK) == 0) return d->facts.can(folder, W_OK | X_OK);
    }
    return false;
}

/* True: there is a line about this place. */
static bool check_place(doctor *d, const char *path, bool configured) {
    inferd_err err = {0};
    char listen[PATH_MAX + 8];
    snprintf(listen, sizeof listen, "unix:%s", path);
    inferd_status s = d->facts.try_listen(listen, &err);
    if (s == INFERD_EBUSY) {
        bool healthy = d->facts.is_healthy(listen);
        doctor_add(d, healthy || !configured ? DOCTOR_OK : DOCTOR_PROBLEM, "ports.admin", "%s: %s",
                   path, healthy ? "an inferd answers there" : "in use by another process");
        if (!healthy && configured) doctor_advise(d, "choose another admin.listen");
        return true;
    }
    if (s == INFERD_OK && can_make(d, path)) {
        doctor_add(d, DOCTOR_OK, "ports.admin", "%s can be made", path);
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
