/* main.c - `check` alone, without the rest of the simulator: what scripts/sim-mutants runs. */
#include <string.h>

#include "../check.h"

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "check") != 0) {
        fprintf(stderr, "expected the word check\n");
        return 2;
    }
    return check_main(argc - 2, argv + 2);
}
