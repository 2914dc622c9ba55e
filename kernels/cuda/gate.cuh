// gate.cuh - the gated activations, in float: act(gate) and its factor (act_fn.h).
#ifndef INFERD_GATE_CUH
#define INFERD_GATE_CUH

#include "cuda/gpu.cuh"

extern "C" {
#include "cuda/rows.h"
}

// All are gate * sigmoid(s) * factor.  gelu: s is twice the argument of its tanh, because
// (1 + tanh(u)) / 2 = sigmoid(2u).  Unlike 1 + tanh(u) that loses no digits where u is far below 0.
GPU_FN float gate_of(uint32_t kind, float gate, float up) {
    float s = gate;
    if (kind == GLU_GELU_TANH)
        s = 1.5957691216057308f * fma_f32(0.044715f * gate * gate, gate, gate); // 2 * (2 / pi)^1/2
    if (kind == GLU_CLAMPED_SWIGLU) { // comparisons: NaN stays
        gate = gate > ACT_CLAMP ? ACT_CLAMP : gate;
        up = (up > ACT_CLAMP ? ACT_CLAMP : up < -ACT_CLAMP ? -ACT_CLAMP : up) + 1.0f;
        s = ACT_CLAMP_SLOPE * gate;
    }
    return gate / (1.0f + exp_f32(-s)) * up;
}

#endif
