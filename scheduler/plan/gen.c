/* gen.c - see scheduler/gen.h. */
#include "scheduler/gen.h"

const char *gen_class_name(gen_class prio) {
    static const char *const names[GEN_CLASSES] = {"system", "high", "normal", "batch"};
    return (unsigned)prio < GEN_CLASSES ? names[prio] : "none";
}

const char *gen_preempt_name(gen_preempt preempt) {
    static const char *const names[GEN_PREEMPTS] = {"pause", "park", "recompute", "model_out"};
    return (unsigned)preempt < GEN_PREEMPTS ? names[preempt] : "unknown";
}

void gen_request_destroy(gen_request *r) {
    if (r == NULL) return;
    free(r->prompt);
    free(r->stop_ids);
    free(r->sampling.bias);
    grammar_machine_release(r->grammar);
    free(r);
}
