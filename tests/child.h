/* child.h - a test in a process of its own, for what a process does once. */
#ifndef INFERD_TEST_CHILD_H
#define INFERD_TEST_CHILD_H

#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static inline void in_child(void (*f)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        test_failures = 0;
        f();
        fflush(stdout);
        _exit(test_failures > 0);
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
}

#endif
