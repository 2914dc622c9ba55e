/* arch.c - the architectures of this build, and the choice of one. */
#include "arch/arch.h"

#include <string.h>

static const arch *const archs[] = {
    &arch_llama, &arch_qwen2,    &arch_qwen3,   &arch_qwen3moe, &arch_gemma3,  &arch_gpt_oss,
    &arch_phi3,  &arch_mistral3, &arch_smollm3, &arch_olmo2,    &arch_granite, &arch_granitemoe,
};

/* When all layers have the window, or none has one, a pattern in the file must agree. */
static inferd_status check_pattern(const arch *a, const gguf *g, const decoder_spec *s,
                                   inferd_err *err) {
    char key[128];
    decoder_spec other = *s;
    uint32_t window = s->kinds[0].attn.window;
    bool computed = window != 0;
    if ((s->n_kinds == 2 && s->kinds[1].attn.window != 0) || // honoured
        !gguf_has(g, arch_key(a, "attention.sliding_window_pattern", key, sizeof key)))
        return INFERD_OK;
    inferd_status st = arch_read_pattern(a, g, 0, &other, err);
    for (uint32_t i = 0; st == INFERD_OK && i < s->n_layers; i++)
        if ((other.other_layers[i / 64] >> i % 64 & 1) != computed)
            return inferd_fail(err, INFERD_EUNSUPPORTED,
                               "%s: %s says that layer %u has %s; with this architecture and "
                               "attention.sliding_window %u, %s is supported",
                               gguf_path(g), key, i, computed ? "no window" : "a window", window,
                               computed ? "only a window of all layers" : "no window");
    return st;
}

static inferd_status refuse_unknown(const gguf *g, bytes name, inferd_err *err) {
    char known[256] = "";
    for (size_t i = 0; i < INFERD_COUNT(archs); i++) {
        if (i > 0) strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, archs[i]->name, sizeof known - strlen(known) - 1);
    }
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "%s: general.architecture is \"%.*s\"; known architectures: %s",
                       gguf_path(g), (int)size_min(name.n, 64), name.p, known);
}

static const arch *find(bytes name) {
    for (size_t i = 0; i < INFERD_COUNT(archs); i++)
        if (name.n == strlen(archs[i]->name) && memcmp(name.p, archs[i]->name, name.n) == 0)
            return archs[i];
    return NULL;
}

inferd_status decoder_spec_values(const gguf *g, uint32_t context, decoder_spec *out,
                                  inferd_err *err) {
    *out = (decoder_spec){0};
    bytes name;
    inferd_status st = gguf_str(g, "general.architecture", &name, err);
    if (st != INFERD_OK) return st;
    const arch *a = find(name);
    if (a == NULL) return refuse_unknown(g, name, err);
    out->architecture = a->name;
    st = a->read(a, g, context, out, err);
    if (st == INFERD_OK) st = check_pattern(a, g, out, err);
    if (st != INFERD_OK) decoder_spec_deinit(out);
    return st;
}

static const arch *arch_of(const decoder_spec *s) {
    return find((bytes){s->architecture, strlen(s->architecture)});
}

inferd_status decoder_spec_keys(const gguf *g, const decoder_spec *s, bool is_read, size_t *at,
                                inferd_err *err) {
    return arch_check_keys(arch_of(s), g, s, is_read, at, err);
}

inferd_status decoder_spec_read(const gguf *g, uint32_t context, decoder_spec *out,
                                inferd_err *err) {
    size_t at = 0;
    inferd_status st = decoder_spec_values(g, context, out, err);
    if (st != INFERD_OK) return st;
    st = decoder_spec_keys(g, out, true, &at, err);
    if (st != INFERD_OK) decoder_spec_deinit(out);
    return st;
}

void decoder_spec_deinit(decoder_spec *s) {
    for (size_t i = 0; i < INFERD_COUNT(s->kinds); i++) {
        free(s->kinds[i].rope_freq);
        s->kinds[i].rope_freq = NULL;
        s->kinds[i].rope.inv_freq = NULL;
    }
}

/* "blk.61.nextn.enorm.weight" of a model with 61 layers before. */
static bool is_of_mtp(const decoder_spec *s, const char *name) {
    char *end;
    if (s->n_mtp_layers == 0 || strncmp(name, "blk.", 4) != 0) return false;
    unsigned long layer = strtoul(name + 4, &end, 10);
    return *end == '.' && layer >= s->n_layers && layer < s->n_layers + s->n_mtp_layers;
}

bool decoder_tensor_is_harmless(const decoder_spec *s, const char *name) {
    static const char rotary[] = ".attn_rot_embd.weight"; // the usual frequencies once more
    size_t n = strlen(name);
    if (is_of_mtp(s, name)) return true;
    const arch *a = arch_of(s);
    for (size_t i = 0; a != NULL && i < INFERD_COUNT(a->encoder_tensors); i++) {
        const char *begin = a->encoder_tensors[i];
        if (begin != NULL && strncmp(name, begin, strlen(begin)) == 0) return true;
    }
    return n >= sizeof rotary && strcmp(name + n - (sizeof rotary - 1), rotary) == 0;
}
