/* gen.c - see scheduler/gen.h. */
#include "scheduler/gen.h"

const char *gen_rung_name(gen_rung rung) {
    static const char *const names[GEN_RUNGS] = {"pause", "park", "recompute", "model_out"};
    return (unsigned)rung < GEN_RUNGS ? names[rung] : "unknown";
}

void gen_request_destroy(gen_request *r) {
    if (r == NULL) return;
    free(r->prompt);
    free(r->stop_ids);
    free(r->sampling.bias);
    free(r);
}
