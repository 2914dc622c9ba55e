/* config_keys.c - API keys: reading, digests, look-up.
 *
 * Plain text exists only while a file is read.  A key is stored as a digest under a random pepper
 * of the process, and found in a flat table by the digest's first bytes; the probed slot depends on
 * the pepper and reveals nothing about a key, and the comparison always reads all bytes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_options.h"
#include "digest.h"
#include "log.h"

enum { KEY_FILE_BYTES_MAX = 16 * 1024 * 1024 };

#define ADMIN UINT32_MAX // in key_slot.owner
_Static_assert(CONFIG_TENANTS_MAX < ADMIN, "no tenant has the number that stands for admin");

typedef struct key_slot {
    const unsigned char *digest; // in its owner's keys; NULL: free
    uint32_t owner;              // a tenant, or ADMIN
} key_slot;

struct config_index {
    size_t mask; // slots - 1, a power of two less one; at most half are used
    key_slot slots[];
};

static unsigned char pepper[32];

static void draw_pepper(void) {
    size_t have = 0;
    while (have < sizeof pepper) {
        ssize_t n = getrandom(pepper + have, sizeof pepper - have, 0);
        if (n < 0 && errno == EINTR) continue;
        INFERD_CHECK(n > 0); // the kernel's pool is ready after boot
        have += (size_t)n;
    }
}

static void digest_key(unsigned char out[DIGEST_BYTES], bytes key) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, draw_pepper);
    digest_blake2s(out, pepper, sizeof pepper, key.p, key.n);
}

/* -- reading -- */

/* The characters of a bearer token: visible ASCII. */
static bool is_key(bytes key) {
    for (size_t i = 0; i < key.n; i++)
        if (key.p[i] <= 0x20 || key.p[i] >= 0x7f) return false;
    return true;
}

/* The capacity grows in powers of two and follows from the count alone. */
static bool has_room(uint32_t n_keys) {
    return n_keys > 0 && (n_keys & (n_keys - 1)) != 0;
}

void keys_add(key_list list, bytes key, config_report *r, const config_location *location) {
    if (key.n < KEY_BYTES_MIN || key.n > KEY_BYTES_MAX) {
        config_problem(r, location, "a key must have %d to %d bytes", KEY_BYTES_MIN, KEY_BYTES_MAX);
        return;
    }
    if (!is_key(key)) {
        config_problem(r, location, "a key must be printable ASCII without spaces");
        return;
    }
    if (!has_room(*list.n)) {
        size_t n = *list.n == 0 ? 1 : 2 * (size_t)*list.n;
        void *grown = realloc(*list.keys, n * DIGEST_BYTES);
        if (grown == NULL) {
            config_problem(r, location, "no memory for a key");
            return;
        }
        *list.keys = grown;
    }
    digest_key((*list.keys)[(*list.n)++], key);
}

void keys_wipe(key_list list) {
    if (*list.keys != NULL) explicit_bzero(*list.keys, *list.n * sizeof(*list.keys)[0]);
    free(*list.keys);
    *list.keys = NULL;
    *list.n = 0;
}

/* One key per line; empty lines and lines that begin with '#' are skipped. */
static void add_lines(key_list list, bytes text, config_report *r,
                      const config_location *location) {
    uint32_t before = *list.n;
    while (text.n > 0) {
        const char *newline = memchr(text.p, '\n', text.n);
        size_t n = newline == NULL ? text.n : (size_t)(newline - text.p);
        bytes line = {text.p, n};
        n += newline != NULL;
        text = (bytes){text.p + n, text.n - n};
        while (line.n > 0 && strchr(" \t\r", line.p[line.n - 1]) != NULL) line.n--;
        while (line.n > 0 && (line.p[0] == ' ' || line.p[0] == '\t')) line.p++, line.n--;
        if (line.n > 0 && line.p[0] != '#') keys_add(list, line, r, location);
    }
    if (*list.n == before) config_problem(r, location, "holds no key");
}

static bool is_safe_file(int fd, const char *path, size_t *n, config_report *r,
                         const config_location *location) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        config_problem(r, location, "%s is not a file", path);
        return false;
    }
    if (st.st_mode & S_IWOTH) {
        config_problem(r, location, "%s is writable by all users", path);
        return false;
    }
    if (st.st_size > KEY_FILE_BYTES_MAX) {
        config_problem(r, location, "%s has %lld bytes, at most %d are read", path,
                       (long long)st.st_size, KEY_FILE_BYTES_MAX);
        return false;
    }
    if (st.st_mode & S_IROTH) log_text(LOG_LEVEL_ERROR, "key_file_readable_by_all", "path", path);
    *n = (size_t)st.st_size;
    return true;
}

void keys_add_file(key_list list, const char *path, config_report *r,
                   const config_location *location) {
    size_t n = 0, have = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        config_problem(r, location, "%s: %s", path, strerror(errno));
        return;
    }
    char *text = is_safe_file(fd, path, &n, r, location) ? malloc(n + 1) : NULL;
    while (text != NULL && have < n) {
        ssize_t got = read(fd, text + have, n - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    if (text != NULL) {
        add_lines(list, (bytes){text, have}, r, location);
        explicit_bzero(text, n);
    }
    free(text);
    close(fd);
}

void keys_add_env(key_list list, const char *name, config_report *r,
                  const config_location *location) {
    const char *key = getenv(name);
    if (key == NULL || key[0] == 0)
        config_problem(r, location, "the environment variable %s is not set", name);
    else
        keys_add(list, (bytes){key, strlen(key)}, r, location);
}

/* -- looking up -- */

static size_t slot_of(const struct config_index *index, const unsigned char *digest) {
    uint64_t first;
    memcpy(&first, digest, sizeof first);
    return (size_t)first & index->mask;
}

/* The slot of a digest, or the free one for it. */
static size_t find(const struct config_index *index, const unsigned char *digest) {
    size_t i = slot_of(index, digest);
    while (index->slots[i].digest != NULL &&
           !digest_equal(index->slots[i].digest, digest, DIGEST_BYTES))
        i = (i + 1) & index->mask;
    return i;
}

void keys_index_destroy(inferd_config *c) {
    free(c->index);
    c->index = NULL;
}

static void index_keys(struct config_index *index, unsigned char (*keys)[DIGEST_BYTES], uint32_t n,
                       uint32_t owner, config_report *r, const config_location *location) {
    for (uint32_t k = 0; k < n; k++) {
        key_slot *slot = &index->slots[find(index, keys[k])];
        if (slot->digest == NULL)
            *slot = (key_slot){keys[k], owner};
        else if (slot->owner == ADMIN)
            config_problem(r, location, "one of its keys is also a key of admin");
        else
            config_problem(r, location, "one of its keys is also a key of tenants[%u]",
                           slot->owner);
    }
}

void keys_index(inferd_config *c, config_report *r) {
    config_location tenants = {.name = "tenants"}, admin = {.name = "admin"};
    size_t n_keys = c->admin.n_keys, n_slots = 4;
    for (uint32_t i = 0; i < c->n_tenants; i++) n_keys += c->tenants[i].n_keys;
    while (n_slots < 2 * n_keys) n_slots *= 2;
    keys_index_destroy(c);
    c->index = calloc(1, sizeof *c->index + n_slots * sizeof c->index->slots[0]);
    if (c->index == NULL) return;
    c->index->mask = n_slots - 1;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        config_location at = {.parent = &tenants, .index = i};
        index_keys(c->index, c->tenants[i].keys, c->tenants[i].n_keys, i, r, &at);
    }
    index_keys(c->index, c->admin.keys, c->admin.n_keys, ADMIN, r, &admin);
}

/* The owner of a key, as in key_slot.owner; false: an unknown key. */
static bool find_owner(const inferd_config *c, bytes key, uint32_t *out) {
    unsigned char digest[DIGEST_BYTES];
    digest_key(digest, key);
    const key_slot *slot = &c->index->slots[find(c->index, digest)];
    *out = slot->owner;
    return slot->digest != NULL;
}

int config_tenant_of_key(const inferd_config *c, bytes key) {
    uint32_t owner;
    return find_owner(c, key, &owner) && owner != ADMIN ? (int)owner : -1;
}

bool config_is_admin_key(const inferd_config *c, bytes key) {
    uint32_t owner;
    return find_owner(c, key, &owner) && owner == ADMIN;
}
