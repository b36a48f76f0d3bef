// States as 8-bit integers with one scale a head, and back: a checkpoint in a quarter of the bytes of floats.
#include "device.cuh"

namespace hc {

struct StateInt8Args {
  Pool state;           // [slots, heads, elements]
  signed char* packed;  // [packed slots, heads, elements]
  float* scales;        // [packed slots, heads]
  int64_t packed_stride, scales_stride;  // elements from one slot to the next
  const int64_t* copies;                 // [num_copies, 2]: slot of a state, slot of a packed one
  int64_t num_copies, heads, elements;
  int64_t restore;  // 0: pack states, 1: fill them from packed ones
};

constexpr int kInt8Threads = 256, kInt8Each = 8;
constexpr float kLeastMost = 127 * 1.17549435e-38f;  // scales are ordinary numbers: 1 over a smaller one is infinite

// The larger magnitude; NaN once there was one.
__device__ __forceinline__ float larger(float most, float x) { return fabsf(x) <= most || most != most ? most : fabsf(x); }

// One head of one state. Rounds to the nearest of 255 values; a head that is not finite comes back as NaN.
__global__ void __launch_bounds__(kInt8Threads) state_int8(StateInt8Args p) {
  using T = Element;
  HC_SHARED(most_of);  // [warps]
  const int64_t head = blockIdx.x, *copy = p.copies + 2 * blockIdx.y;
  T* const state = reinterpret_cast<T*>(p.state.data + copy[0] * p.state.stride) + head * p.elements;
  signed char* const packed = p.packed + copy[1] * p.packed_stride + head * p.elements;
  float* const scale_at = p.scales + copy[1] * p.scales_stride + head;
  constexpr int64_t kStep = kInt8Threads * kInt8Each;
  const int64_t begin = threadIdx.x * kInt8Each;
  if (p.restore) {
    const float scale = *scale_at;
    for (int64_t i = begin; i < p.elements; i += kStep) {
      const int valid = static_cast<int>(least(p.elements - i, kInt8Each));
      const Vec<signed char, kInt8Each> q = load<signed char, kInt8Each>(packed + i, valid);
      float x[kInt8Each];
#pragma unroll
      for (int j = 0; j < kInt8Each; ++j) x[j] = q[j] * scale;
      store(state + i, x, valid);
    }
    return;
  }
  float most = 0.f;
  for (int64_t i = begin; i < p.elements; i += kStep) {
    const Vec<T, kInt8Each> x = load<T, kInt8Each>(state + i, static_cast<int>(least(p.elements - i, kInt8Each)));
#pragma unroll
    for (int j = 0; j < kInt8Each; ++j) most = larger(most, x[j]);
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) most = larger(most, __shfl_xor_sync(kWholeWarp, most, apart));
  if (threadIdx.x % 32 == 0) most_of[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kInt8Threads / 32; ++w) most = larger(most, most_of[w]);
  if (most < kLeastMost) most = kLeastMost;
  const float factor = 127.f / most;
  if (threadIdx.x == 0) *scale_at = most < INFINITY ? most / 127.f : NAN;
  for (int64_t i = begin; i < p.elements; i += kStep) {
    const int valid = static_cast<int>(least(p.elements - i, kInt8Each));
    const Vec<T, kInt8Each> x = load<T, kInt8Each>(state + i, valid);
    float q[kInt8Each];
#pragma unroll
    for (int j = 0; j < kInt8Each; ++j) q[j] = x[j] * factor;
    store(packed + i, q, valid);
  }
}

HC_SHAPE(kInt8Threads, kInt8Threads / 32 * 4, 1)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_state_int8(const hc::StateInt8Args* p, void* stream) {
  using namespace hc;
  const dim3 grid(p->heads, p->num_copies);
  return HC_LAUNCH(state_int8, grid, dim3(hc_shape[0]), hc_shape[1], stream, *p);
}
#endif
