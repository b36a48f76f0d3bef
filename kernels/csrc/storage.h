// Elements of states and KV as storage keeps them, and the packed batch.
#pragma once
#include "vec.h"

namespace hc {

enum Dtype : int64_t { F32 = 0, BF16 = 1, F16 = 2 };
inline int64_t size_of(int64_t dtype) { return dtype == F32 ? 4 : 2; }

inline float from_bf16(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t to_bf16(float f) {  // to the nearest, ties to even
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline float from_f16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, body = h & 0x7fffu;
  uint32_t u = body << 13;
  float f;
  if (body >= 0x7c00) {
    u += 0x70000000;  // infinity and NaN
    std::memcpy(&f, &u, 4);
  } else {
    std::memcpy(&f, &u, 4);
    f *= 0x1p112f;  // rebiases the exponent; right for subnormals too
  }
  std::memcpy(&u, &f, 4);
  u |= sign;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t to_f16(float f) {  // to the nearest, ties to even
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint32_t sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (u >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (u < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded value in the low bits
    std::memcpy(&f, &u, 4);
    f += 0.5f;
    std::memcpy(&u, &f, 4);
    return static_cast<uint16_t>(sign | (u - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((u + 0xfff + ((u >> 13) & 1) - 0x38000000) >> 13));
}

inline void read(float* to, const char* from, int64_t dtype, int64_t n) {
  if (dtype == F32) {
    std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  const uint16_t* p = reinterpret_cast<const uint16_t*>(from);
  if (dtype == BF16)
    for (int64_t i = 0; i < n; ++i) to[i] = from_bf16(p[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = from_f16(p[i]);
}
inline void write(char* to, const float* from, int64_t dtype, int64_t n) {
  if (dtype == F32) {
    std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  uint16_t* p = reinterpret_cast<uint16_t*>(to);
  if (dtype == BF16)
    for (int64_t i = 0; i < n; ++i) p[i] = to_bf16(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) p[i] = to_f16(from[i]);
}

// Rows of float activations.
struct Rows {
  float* data;     // null: the operand was not given
  int64_t stride;  // floats from one token to the next
  float* row(int64_t t) const { return data + t * stride; }
};
// A state tensor or a KV cache: entries of contiguous elements, any distance apart.
struct Pool {
  char* data;
  int64_t stride;  // bytes from one id to the next
  int64_t dtype;
  char* entry(int64_t id, int64_t element) const { return data + id * stride + element * size_of(dtype); }
};
struct Batch {
  int64_t num_sequences, num_tokens;
  const int64_t *cu_seqlens, *slots;
  const uint8_t* has_state;
  const int64_t *emit_offsets, *emit_counts, *emit_slots, *num_computed, *block_tables;
  int64_t max_blocks, block_size;
  const int64_t* slot_mapping;
};

// Calls run(begin, end) for the stretches of tokens between the counts at which sequence s emits its state,
// and emit(slot) where each ends; the running slot is the last one.
template <class Run, class Emit>
inline void stretches(const Batch& batch, int64_t s, Run run, Emit emit) {
  int64_t begin = batch.cu_seqlens[s];
  for (int64_t e = batch.emit_offsets[s]; e < batch.emit_offsets[s + 1]; ++e) {
    const int64_t end = batch.cu_seqlens[s] + batch.emit_counts[e];
    run(begin, end);
    emit(batch.emit_slots[e]);
    begin = end;
  }
  run(begin, batch.cu_seqlens[s + 1]);
  emit(batch.slots[s]);
}

// Asks for `elements` of a state: in decoding, a state comes from memory for one token.
inline void foresee(const Pool& pool, int64_t slot, int64_t first, int64_t elements) {
  const char* begin = pool.entry(slot, first);
  for (int64_t i = 0; i < elements * size_of(pool.dtype); i += 64) __builtin_prefetch(begin + i, 1);
}

}  // namespace hc
