/* main.c - the program `inferd`: selects the command, prints help. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"serve", cli_serve, "serve models over HTTP"},
    {"ctl", cli_ctl, "show and change the state of a daemon"},
    {"devices", cli_devices, "list the devices of this machine"},
    {"pack", cli_pack, "write a model's prepared weights to a file that loads faster"},
    {"check", cli_check, "check a configuration file"},
    {"doctor", cli_doctor, "check this machine: what is wrong, and what to do"},
    {"inspect", cli_inspect, "tell what a model's file has, and why it cannot be served"},
    {"run", cli_run, "answer one prompt, or chat, in the terminal"},
    {"tokenize", cli_tokenize, "text to token ids"},
    {"render", cli_render, "run a chat template"},
};

static void print_usage(FILE *out) {
    fputs("usage: inferd COMMAND [options]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("  version    print the version\n\n`inferd COMMAND --help` says more.\n", out);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(name, "version") == 0 || strcmp(name, "--version") == 0) {
        if (argc > 2 && strcmp(argv[2], "--help") == 0)
            puts("usage: inferd version");
        else
            puts("inferd " INFERD_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "inferd: no command \"%s\"\n", name);
    print_usage(stderr);
    return 2;
}
