/* mask.h - the mask of a machine's state.  Thread: under the machine's lock. */
#ifndef INFERD_GRAMMAR_MASK_H
#define INFERD_GRAMMAR_MASK_H

#include "machine.h"

/* The caller owns a count.  NULL: the machine's failure is set. */
grammar_mask *machine_mask(grammar_machine *m, uint32_t s);

#endif
