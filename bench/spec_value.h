/* spec_value.h - parses the values of settings.  The error text says what is wrong with the value;
 * the caller puts the name of the setting in front.  Thread: any. */
#ifndef BENCH_SPEC_VALUE_H
#define BENCH_SPEC_VALUE_H

#include "spec.h"

/* Copies the text; frees the previous value. */
inferd_status value_text(char **out, const char *value, inferd_err *err);
inferd_status value_bool(bool *out, const char *value, inferd_err *err); // on | off
inferd_status value_seconds(double *out, const char *value, inferd_err *err);
inferd_status value_number(double *out, const char *value, double min, double max, inferd_err *err);
inferd_status value_u64(uint64_t *out, const char *value, inferd_err *err);
inferd_status value_u32(uint32_t *out, const char *value, uint32_t min, uint32_t max,
                        inferd_err *err);
inferd_status value_range(length_spec *out, const char *value, uint32_t min, uint32_t max,
                          inferd_err *err);                                       // N | LO-HI
inferd_status value_length(length_spec *out, const char *value, inferd_err *err); // ... | trace
inferd_status value_times(double *lo_s, double *hi_s, const char *value,
                          inferd_err *err); // TIME | TIME-TIME

/* "a=3,b": a three times as often as b.  The weight is the text after the last '=', if that is a
 * number; otherwise the '=' belongs to the word.  Replaces the previous value. */
inferd_status value_choices(choices *out, const char *value, inferd_err *err);
inferd_status value_choice_add(choices *out, const char *text, size_t n, double weight,
                               inferd_err *err);
/* The same, and "@FILE" stands for the lines of a file. */
inferd_status value_keys(choices *out, const char *value, inferd_err *err);
void choices_deinit(choices *c);

/* `{"a": 1}` gives `"a": 1`; the text must be a JSON object with at least one member. */
inferd_status value_members(char **out, const char *value, inferd_err *err);

#endif
