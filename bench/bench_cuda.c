/* bench_cuda.c - the speed of the CUDA backend, part by part.
 *
 *     bench_cuda [--tiny] [--emulated] PART...
 *
 *     device     only the device's line
 *     limits     maximum rates of the device and the bus     sustain   products for half a minute
 *     vmm        cost of mapping memory                      load      weights over the bus, waking
 *     matmul     activations times weights                   attention decoding
 *     prefill    attention of prompts                        draw      sampling
 *     experts    mixtures of experts
 *     step MODEL BATCHES     whole steps of a model, e.g.
 *                            step 'dummy:llama-3.1-8b?dtype=bf16' 1,8,32
 *
 * Prints JSON, one object per line (gpu.h describes the timing).  inferd_cuda.so is found in the
 * same way as inferd finds it (INFERD_CUDA_MODULE names another).  --emulated runs on emulated
 * threads instead and measures nothing; it is for tests, which also give --tiny.  Run each part in
 * its own process: after a failed kernel no other part works. */
#include <string.h>

#include "gpu.h"

static void nothing(gpu *g) {
    (void)g;
}

static const struct {
    const char *name;
    void (*run)(gpu *g);
} parts[] = {
    {"device", nothing},        {"limits", bench_limits},       {"sustain", bench_sustain},
    {"vmm", bench_vmm},         {"load", bench_load},           {"matmul", bench_matmul},
    {"experts", bench_experts}, {"attention", bench_attention}, {"prefill", bench_prefill},
    {"draw", bench_draw},
};

static void usage(void) {
    fprintf(stderr, "usage: bench_cuda [--tiny] [--emulated] "
                    "(device|limits|sustain|vmm|load|matmul|experts|attention|prefill|draw)...\n"
                    "       bench_cuda [--tiny] [--emulated] step MODEL BATCHES\n");
    exit(2);
}

int main(int argc, char **argv) {
    gpu_options o = {0};
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--tiny") == 0)
            o.tiny = true;
        else if (strcmp(argv[at], "--emulated") == 0)
            o.emulated = true;
        else
            usage();
    }
    if (at == argc) usage();
    if (strcmp(argv[at], "step") == 0) {
        if (argc - at != 3) usage();
        bench_step(&o, argv[at + 1], argv[at + 2]);
        return 0;
    }
    for (int i = at; i < argc; i++) {
        size_t p = 0;
        while (p < INFERD_COUNT(parts) && strcmp(parts[p].name, argv[i]) != 0) p++;
        if (p == INFERD_COUNT(parts)) usage();
    }
    gpu g;
    gpu_open(&g, &o);
    for (int i = at; i < argc; i++)
        for (size_t p = 0; p < INFERD_COUNT(parts); p++)
            if (strcmp(parts[p].name, argv[i]) == 0) parts[p].run(&g);
    gpu_close(&g);
    return 0;
}
