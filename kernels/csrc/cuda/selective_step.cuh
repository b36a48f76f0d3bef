// Mamba-1: how a channel's states lie over threads, and one token of one thread (Gu and Dao, 2023, section 3).
// Scan and update share it, so that a token has the same bits in a prefill and in decoding.
#pragma once
#include "device.cuh"

namespace hc {

struct SelectiveArgs {
  Rows x, dt, z, b, c, out;       // [T, channels], b and c [T, d_state]
  const float *a, *d, *dt_bias;   // [channels, d_state], [channels] or null
  Pool initial, state;            // [slots, channels, d_state]: read at the start of a sequence; stored to
  float* totals;                  // null, or [sequences, channels]: sums of the steps d, instead of outputs
  int64_t channels, d_state;
};

// kN: d_state rounded up to a power of two. The states behind d_state have decay 1 and input 0: they stay 0.
template <int kN>
struct Lanes {
  static constexpr int kCount = kN <= 32 ? 4 : kN <= 64 ? 8 : 16;   // threads of a channel
  static constexpr int kStates = kN / kCount;                       // states of a thread
};

template <int kN>
struct ChannelStates {
  static constexpr int kStates = Lanes<kN>::kStates;
  float h[kStates], a[kStates];  // a: A times log2(e)
  int valid;                     // of them within d_state; 0 for a channel that does not exist
  int64_t first;                 // element of the first in an entry of the pool
  float bias;

  __device__ __forceinline__ ChannelStates(const SelectiveArgs& p, int64_t channel, int lane, int64_t source) {
    const bool there = channel < p.channels;
    valid = there ? static_cast<int>(p.d_state) - lane * kStates : 0;
    first = channel * p.d_state + lane * kStates;
    bias = there && p.dt_bias ? p.dt_bias[channel] : 0.f;
    // The state first: in decoding it comes from memory, the rest from the cache.
    if (source >= 0 && valid > 0) {
      load_state(h, entry(p.initial, source, first), p.initial.dtype, valid);
    } else {
#pragma unroll
      for (int i = 0; i < kStates; ++i) h[i] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < kStates; ++i) a[i] = 0.f;
    if (valid > 0) {
      load_state(a, reinterpret_cast<const char*>(p.a + first), F32, valid);
#pragma unroll
      for (int i = 0; i < kStates; ++i) a[i] *= kLog2e;
    }
  }

  // h = exp(d A) h + (d x) B; this thread's part of h C.
  __device__ __forceinline__ float step(float d, float dx, const float (&b)[kStates], const float (&c)[kStates]) {
    float y = 0.f;
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      h[i] = fmaf(exp2_approx(d * a[i]), h[i], dx * b[i]);
      y = fmaf(h[i], c[i], y);
    }
    return y;
  }

  __device__ __forceinline__ void store_to(const SelectiveArgs& p, int64_t slot) const {
    if (valid > 0) store_state(entry(p.state, slot, first), h, p.state.dtype, valid);
  }
};

// What the caller gets of a token: the sum over the states, the skip and the gate.
__device__ __forceinline__ float selective_output(float y, float skip, float x, bool gated, float z) {
  y = fmaf(skip, x, y);
  return gated ? y * silu(z) : y;
}

}  // namespace hc
