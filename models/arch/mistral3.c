/* mistral3.c - Mistral Small 3 and Ministral 3: the usual block; Ministral's queries grow with
 * their position beyond the first training's context (rope_spec.growth). */
#include "arch/arch.h"

static inferd_status read_mistral3(const arch *a, const gguf *g, uint32_t context, decoder_spec *s,
                                   inferd_err *err) {
    double growth;
    inferd_status st;
    if ((st = arch_read_base(a, g, context, s, err)) ||
        (st = arch_f64_or(a, g, "attention.temperature_scale", 0, 100, 0, &growth, err)))
        return st;
    s->kinds[0].rope.growth = (float)growth;
    s->kinds[0].rope.growth_length = s->rope_original;
    return INFERD_OK;
}

static const known_key keys[] = {
    {"attention.temperature_scale", KNOWN_READ, 0},
};

const arch arch_mistral3 = {.name = "mistral3",
                            .rope_interleaved = true,
                            .rope_base = 10000,
                            .keys = {keys, INFERD_COUNT(keys)},
                            .read = read_mistral3};
