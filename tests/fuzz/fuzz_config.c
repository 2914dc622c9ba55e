/* fuzz_config.c - a configuration file: read, checked, compared with itself, freed.  Whatever it
 * says, a problem is a line of printable text. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char path[64];
    inferd_config *c = NULL;
    inferd_err err = {0};
    buf problems, names;
    int fd = memfd_create("config", MFD_CLOEXEC);
    INFERD_CHECK(fd >= 0 && write(fd, data, n) == (ssize_t)n && fchmod(fd, 0600) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    log_open("/dev/null", false, LOG_LEVEL_ERROR, NULL);
    buf_init(&problems, 0);
    buf_init(&names, 0);
    inferd_status s = config_load(path, &c, &problems, &err);
    INFERD_CHECK((s == INFERD_OK) == (c != NULL) && (s == INFERD_OK) == (problems.n == 0));
    for (size_t i = 0; i < problems.n; i++)
        INFERD_CHECK(problems.p[i] == '\n' || (unsigned char)problems.p[i] >= 0x20);
    if (c != NULL) {
        INFERD_CHECK(config_check(c, &problems));
        INFERD_CHECK(!config_needs_restart(c, c, &names));
        INFERD_CHECK(config_tenant_of_key(c, (bytes){"not a key", 9}) == -1);
        INFERD_CHECK(config_find_model(c, c->models[0].name, strlen(c->models[0].name)) == 0);
    }
    config_destroy(c);
    buf_deinit(&problems);
    buf_deinit(&names);
    close(fd);
    return 0;
}
