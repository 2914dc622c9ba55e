/* sources.c - grammars that are one automaton: a pattern, a list of choices. */
#include "ir.h"

/* Takes `d`; on a failure before it, *d is empty. */
static inferd_status of_automaton(dfa *d, const grammar_options *options, grammar **out,
                                  inferd_err *err) {
    ir *g = ir_create(options != NULL ? options->limits : NULL);
    if (g == NULL) {
        dfa_deinit(d);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a grammar");
    }
    return ir_finish(g, ir_term(g, d), options, out, err);
}

static const grammar_limits *limits_of(const grammar_options *options) {
    return options != NULL && options->limits != NULL ? options->limits : &grammar_limits_default;
}

static dfa_limits limits_for_dfa(const grammar_limits *l) {
    dfa_limits d = dfa_limits_default;
    d.states_max = l->dfa_states_max;
    d.pattern_bytes_max = l->pattern_bytes_max;
    d.nesting_max = l->pattern_nesting_max;
    return d;
}

inferd_status grammar_of_regex(bytes pattern, const grammar_options *options, grammar **out,
                               inferd_err *err) {
    dfa_limits limits = limits_for_dfa(limits_of(options));
    dfa d = {0};
    *out = NULL;
    inferd_status s = regex_compile(pattern, REGEX_TEXT, &limits, &d, err);
    return s == INFERD_OK ? of_automaton(&d, options, out, err) : s;
}

inferd_status grammar_of_choices(const bytes *texts, size_t n, const grammar_options *options,
                                 grammar **out, inferd_err *err) {
    const grammar_limits *l = limits_of(options);
    dfa_limits limits = limits_for_dfa(l);
    dfa d = {0};
    size_t n_bytes = 0;
    *out = NULL;
    for (size_t i = 0; i < n; i++) n_bytes += texts[i].n;
    if (n == 0) return inferd_fail(err, INFERD_EINVAL, "a choice of nothing");
    if (n > l->enum_max)
        return inferd_fail(err, INFERD_ETOOLONG, "%zu choices are more than enum_max = %u", n,
                           l->enum_max);
    if (n_bytes > l->enum_bytes_max)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "choices of %zu bytes are more than enum_bytes_max = %u", n_bytes,
                           l->enum_bytes_max);
    inferd_status s = dfa_of_literals(texts, NULL, n, &limits, &d, err);
    return s == INFERD_OK ? of_automaton(&d, options, out, err) : s;
}
