/* gen.c - see scheduler/gen.h. */
#include "scheduler/gen.h"

void gen_request_destroy(gen_request *r) {
    if (r == NULL) return;
    free(r->prompt);
    free(r->stop_ids);
    free(r->sampling.bias);
    free(r);
}
