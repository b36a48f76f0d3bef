// What the kernels share: element types, operands, packed batches, launches. No header of torch; outside nvcc the
// names that CUDA gives (threadIdx, __syncthreads, __nv_bfloat16 ...) must have been declared before.
// A file is compiled for one element type and size at a time, which HC_ELEMENT and HC_SIZE give.
#pragma once
#ifdef __CUDACC_RTC__  // NVRTC has no headers of the host's
using int64_t = long long;
using uintptr_t = unsigned long long;
#define INT64_MAX 0x7fffffffffffffffLL
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HC_GLOBAL __device__
#else
#include <stdint.h>
#define HC_GLOBAL
#endif
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// Every kernel's shared memory is one dynamic array, so that whoever runs the kernel knows its size.
#define HC_SHARED(name)                                          \
  extern __shared__ __align__(16) unsigned char hc_shared_raw[]; \
  float* const name = reinterpret_cast<float*>(hc_shared_raw)
#ifndef __CUDACC_RTC__
#define HC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  (kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__), static_cast<int>(cudaGetLastError()))
extern "C" const char* hc_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
#endif
// 2^x, relative error 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
// What a launch must know besides its arguments: threads of a block, bytes of shared memory, and how much a block takes
// of what the grid is spread over. NVRTC compiles no host code: kernels/cuda/nvrtc.py launches by it.
#define HC_SHAPE(threads, shared_bytes, span)                       \
  extern "C" {                                                      \
  HC_GLOBAL int hc_shape[3] = {threads, (shared_bytes), (span)};    \
  }

namespace hc {

template <bool kFirst, class A, class B>
struct Choice { using Type = A; };
template <class A, class B>
struct Choice<false, A, B> { using Type = B; };

using f32 = float;
using bf16 = __nv_bfloat16;
using f16 = __half;
using raw = unsigned char;  // for kernels that move bytes
using Element = HC_ELEMENT;  // of activations
constexpr int kSize = HC_SIZE;
enum Dtype : int64_t { F32 = 0, BF16 = 1, F16 = 2 };

constexpr float kLog2e = 1.44269504088896340736f;
constexpr unsigned kWholeWarp = 0xffffffffu;

__host__ __device__ constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of activations, all of one call of the same element type.
struct Rows {
  void* data;      // null: the operand was not given
  int64_t stride;  // elements from one token to the next; a row is contiguous
};
// A state tensor: entries of contiguous elements, any distance apart.
struct Pool {
  char* data;
  int64_t stride;  // bytes from one id to the next
  int64_t dtype;
};
// Packed sequences, on the device. Sequence s owns the rows [first[s], first[s + 1]) and starts from slot
// source[s] (-1: from zero). Its state after store_counts[i] of its tokens goes to store_slots[i], for i in
// [store_offsets[s], store_offsets[s + 1]), counts ascending; the last is its running slot, at its length.
struct Batch {
  int64_t num_sequences, num_tokens;
  const int64_t *first, *source, *store_offsets, *store_counts, *store_slots;
};

template <class T>
__device__ __forceinline__ T* row(const Rows& rows, int64_t t) {
  return static_cast<T*>(rows.data) + t * rows.stride;
}
__device__ __forceinline__ int64_t size_of(int64_t dtype) { return dtype == F32 ? 4 : 2; }
__device__ __forceinline__ char* entry(const Pool& pool, int64_t id, int64_t element) {
  return pool.data + id * pool.stride + element * size_of(pool.dtype);
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(signed char x) { return x; }
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) { return __float2half_rn(x); }

template <>  // to the nearest from -127 to 127; 0 for NaN
__device__ __forceinline__ signed char from_float<signed char>(float x) {
  return x == x ? static_cast<signed char>(rintf(fminf(fmaxf(x, -127.f), 127.f))) : 0;
}

// kCount consecutive elements in registers, moved in the widest words that their number allows.
template <class T, int kCount>
struct Vec {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  using Word = typename Choice<kBytes % 16 == 0, uint4, typename Choice<kBytes % 8 == 0, uint2, unsigned>::Type>::Type;
  static_assert(kBytes % sizeof(unsigned) == 0, "a vector is made of words");
  alignas(sizeof(Word)) T v[kCount];

  __device__ __forceinline__ float operator[](int i) const { return to_float(v[i]); }
  static __device__ __forceinline__ bool fits(const T* at, int valid) {
    return valid >= kCount && reinterpret_cast<uintptr_t>(at) % sizeof(Word) == 0;
  }
  static __device__ __forceinline__ void move(T* to, const T* from) {
#pragma unroll
    for (int i = 0; i < kBytes / static_cast<int>(sizeof(Word)); ++i)
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
};
// The first `valid` elements, zeros behind them.
template <class T, int kCount>
__device__ __forceinline__ Vec<T, kCount> load(const T* from, int valid) {
  Vec<T, kCount> r;
  if (r.fits(from, valid)) {
    r.move(r.v, from);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) r.v[i] = i < valid ? from[i] : from_float<T>(0.f);
  }
  return r;
}
template <class T, int kCount>
__device__ __forceinline__ void store(T* to, const float (&values)[kCount], int valid) {
  Vec<T, kCount> r;
#pragma unroll
  for (int i = 0; i < kCount; ++i) r.v[i] = from_float<T>(values[i]);
  if (r.fits(to, valid)) {
    r.move(to, r.v);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < valid) to[i] = r.v[i];
  }
}

template <class T, int kCount>
__device__ __forceinline__ void load_as(float (&to)[kCount], const char* from, int valid) {
  const Vec<T, kCount> r = load<T, kCount>(reinterpret_cast<const T*>(from), valid);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = r[i];
}
// Elements of a pool.
template <int kCount>
__device__ __forceinline__ void load_state(float (&to)[kCount], const char* from, int64_t dtype, int valid) {
  if (dtype == F32)
    load_as<float>(to, from, valid);
  else if (dtype == BF16)
    load_as<bf16>(to, from, valid);
  else
    load_as<f16>(to, from, valid);
}
template <int kCount>
__device__ __forceinline__ void store_state(char* to, const float (&from)[kCount], int64_t dtype, int valid) {
  if (dtype == F32)
    store(reinterpret_cast<float*>(to), from, valid);
  else if (dtype == BF16)
    store(reinterpret_cast<bf16*>(to), from, valid);
  else
    store(reinterpret_cast<f16*>(to), from, valid);
}

__device__ __forceinline__ float load_element(const char* from, int64_t dtype) {
  if (dtype == F32) return *reinterpret_cast<const float*>(from);
  return dtype == BF16 ? to_float(*reinterpret_cast<const bf16*>(from)) : to_float(*reinterpret_cast<const f16*>(from));
}
__device__ __forceinline__ void store_element(char* to, int64_t dtype, float x) {
  if (dtype == F32)
    *reinterpret_cast<float*>(to) = x;
  else if (dtype == BF16)
    *reinterpret_cast<bf16*>(to) = from_float<bf16>(x);
  else
    *reinterpret_cast<f16*>(to) = from_float<f16>(x);
}

__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.f + expf(-x)); }

// Sums over `kLanes` neighbouring threads, the pairs two apart first: every thread gets the same bits, since
// only the order of two operands differs.
template <int kLanes>
__device__ __forceinline__ float sum_lanes(float x) {
  if (kLanes >= 4) x += __shfl_xor_sync(kWholeWarp, x, 2);
  if (kLanes >= 2) x += __shfl_xor_sync(kWholeWarp, x, 1);
#pragma unroll
  for (int apart = 4; apart < kLanes; apart *= 2) x += __shfl_xor_sync(kWholeWarp, x, apart);
  return x;
}
// Four such sums with fewer exchanges: thread l gets the sum of the l % 4-th values, its bits those of sum_lanes.
template <int kLanes>
__device__ __forceinline__ float sum_lanes4(const float (&x)[4], int lane) {
  static_assert(kLanes >= 4, "four sums need four threads");
  const bool high = lane & 2, odd = lane & 1;
  const float a = (high ? x[2] : x[0]) + __shfl_xor_sync(kWholeWarp, high ? x[0] : x[2], 2);
  const float b = (high ? x[3] : x[1]) + __shfl_xor_sync(kWholeWarp, high ? x[1] : x[3], 2);
  float sum = (odd ? b : a) + __shfl_xor_sync(kWholeWarp, odd ? a : b, 1);
#pragma unroll
  for (int apart = 4; apart < kLanes; apart *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, apart);
  return sum;
}

// Walks over the token counts at which a sequence's state is stored.
struct Stores {
  const int64_t *counts, *slots;
  int64_t next, end;
  __device__ __forceinline__ Stores(const Batch& batch, int64_t s)
      : counts(batch.store_counts), slots(batch.store_slots), next(batch.store_offsets[s]), end(batch.store_offsets[s + 1]) {}
  // The count of the next one; beyond all tokens when there is none.
  __device__ __forceinline__ int64_t count() const { return next < end ? counts[next] : INT64_MAX; }
  __device__ __forceinline__ int64_t take() { return slots[next++]; }
};

}  // namespace hc
