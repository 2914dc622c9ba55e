/* act_fn.h - the functions of gated feed-forward networks; kernels include this, too. */
#ifndef INFERD_ACT_FN_H
#define INFERD_ACT_FN_H

/* The function of a gate a and its factor b:
 *
 *     SILU             a sigmoid(a) b
 *     GELU_TANH        gelu(a) b, the tanh form
 *     CLAMPED_SWIGLU   a' sigmoid(1.702 a') (b' + 1), a' = min(a, 7), b' = b within -7 .. 7
 * (gpt-oss) */
typedef enum act_fn { ACT_SILU, ACT_GELU_TANH, ACT_CLAMPED_SWIGLU } act_fn;
#define ACT_CLAMP       7.0f
#define ACT_CLAMP_SLOPE 1.702f

#endif
