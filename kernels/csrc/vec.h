// Vectors of floats and the elementary functions on them.
//
// Everything is written so that a value's bits depend on its operands alone: a multiply-add is fused exactly
// where fma() is written (the library is compiled with -ffp-contract=off and without -ffast-math), sums have a
// fixed order, and a row's tail runs the same instructions on a padded vector.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hc {

#if defined(__AVX512F__)
constexpr int VL = 16;  // floats of a vector
#else
constexpr int VL = 8;
#endif
typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

inline vf splat(float x) {
#if defined(__AVX512F__)
  return (vf)_mm512_set1_ps(x);
#elif defined(__AVX__)
  return (vf)_mm256_set1_ps(x);
#else
  return x - vf{};
#endif
}
inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vf load_part(const float* p, int64_t n) {
  vf v{};
  std::memcpy(&v, p, static_cast<size_t>(n) * 4);
  return v;
}
inline void store_part(float* p, vf v, int64_t n) { std::memcpy(p, &v, static_cast<size_t>(n) * 4); }
// The whole vector or its first n elements, the rest zero.
inline vf load_upto(const float* p, int64_t n) { return n >= VL ? load(p) : load_part(p, n); }
inline void store_upto(float* p, vf v, int64_t n) { n >= VL ? store(p, v) : store_part(p, v, n); }

inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  vf r;
  for (int i = 0; i < VL; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}
inline float fma(float a, float b, float c) {  // as a lane of the vectors'
#if defined(__AVX512F__) || defined(__FMA__) || defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
// A NaN in x comes through.
inline vf at_least(vf x, float low) { return x < low ? splat(low) : x; }
inline vf at_most(vf x, float high) { return x > high ? splat(high) : x; }
inline vf larger(vf a, vf b) { return a > b ? a : b; }

// Sum of the lanes, neighbours first.
inline float sum_lanes(vf v) {
#if defined(__AVX__) && !defined(__AVX512F__)
  const __m256 pairs = _mm256_hadd_ps((__m256)v, (__m256)v), fours = _mm256_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
#else
  float a[VL];
  store(a, v);
  for (int n = VL / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) a[i] = a[2 * i] + a[2 * i + 1];
  return a[0];
#endif
}
inline float max_lanes(vf v) {
  float m = v[0];
  for (int i = 1; i < VL; ++i) m = v[i] > m ? v[i] : m;
  return m;
}
// out[i] = sum_lanes(v[i]) for four vectors.
inline void sum_lanes4(const vf* v, float* out) {
#if defined(__AVX__) && !defined(__AVX512F__)
  const __m256 ab = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]), cd = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
  const __m256 s = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
#else
  for (int i = 0; i < 4; ++i) out[i] = sum_lanes(v[i]);
#endif
}

// exp(x) to 2e-7 relative; beyond [-87.33, 88.37] it stays at the value there (1.2e-38, 2.4e38). exp(0) is 1.
inline vf exp(vf x) {
  x = at_most(at_least(x, -87.33f), 88.37f);
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const vf t = fma(x, splat(1.44269504f), magic), n = t - magic;
  vf r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = fma(splat(0.00139336521f), r, splat(0.00836318173f));
  p = fma(p, r, splat(0.0416664667f));
  p = fma(p, r, splat(0.166665763f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r * r, r) + 1.f;
  return p * (vf)(((vi)t << 23) + 0x3f800000);
}
// log(1 + u) for 0 <= u <= 1: 2 atanh(u / (2 + u)).
inline vf log1p01(vf u) {
  const vf s = u / (u + 2.f), s2 = s * s;
  vf p = fma(splat(0.122047015f), s2, splat(0.106971338f));
  p = fma(p, s2, splat(0.143103123f));
  p = fma(p, s2, splat(0.199993476f));
  p = fma(p, s2, splat(0.333333403f));
  p = fma(p, s2, splat(1.f));
  return 2.f * s * p;
}
inline vf magnitude(vf x) { return (vf)((vi)x & 0x7fffffff); }
inline vf softplus(vf x) { return at_least(x, 0.f) + log1p01(exp(-magnitude(x))); }
inline vf sigmoid(vf x) { return 1.f / (1.f + exp(-x)); }
inline vf silu(vf x) { return x / (1.f + exp(-x)); }
inline vf tanh(vf x) {
  const vf a = magnitude(x), x2 = x * x, e = exp(-2.f * a), far = (1.f - e) / (1.f + e);
  vf p = fma(splat(0.00227270485f), x2, splat(-0.00832640193f));
  p = fma(p, x2, splat(0.0217636339f));
  p = fma(p, x2, splat(-0.0539586246f));
  p = fma(p, x2, splat(0.133333012f));
  p = fma(p, x2, splat(-0.333333343f));
  const vf near = fma(p, x2 * x, x);
  return a < 0.6f ? near : (x < 0.f ? -far : far);
}
// x times the normal distribution function: from exp(y^2) erfc(y) = t q(t), t = 1 / (1 + 0.4 y), y = |x| / sqrt 2.
inline vf gelu(vf x) {
  const vf y = magnitude(x) * 0.707106781f, t = 1.f / (1.f + 0.4f * y);
  vf q = fma(splat(-0.0325844735f), t, splat(0.213839307f));
  q = fma(q, t, splat(-0.53497237f));
  q = fma(q, t, splat(0.594138443f));
  q = fma(q, t, splat(-0.321848214f));
  q = fma(q, t, splat(0.291403413f));
  q = fma(q, t, splat(0.12328095f));
  q = fma(q, t, splat(0.216226116f));
  q = fma(q, t, splat(0.224802673f));
  q = fma(q, t, splat(0.225714177f));
  const vf tail = 0.5f * t * q * exp(-y * y);
  return x * (x < 0.f ? tail : 1.f - tail);
}
inline vf gelu_tanh(vf x) {  // (1 + tanh y) / 2 = 1 / (1 + exp(-2 y))
  return x / (1.f + exp(-1.59576912f * fma(0.044715f * x, x * x, x)));
}

// VL x VL transpose: b[j * ldb + i] = a[i * lda + j]; only `rows` of a are read, the rest counts as zero.
inline void transpose(const float* a, int64_t lda, int64_t rows, float* b, int64_t ldb) {
#if defined(__AVX__) && !defined(__AVX512F__)
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = i < rows ? _mm256_loadu_ps(a + i * lda) : _mm256_setzero_ps();
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(b + i * ldb, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(b + (i + 4) * ldb, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
#else
  for (int i = 0; i < VL; ++i)
    for (int j = 0; j < VL; ++j) b[j * ldb + i] = i < rows ? a[i * lda + j] : 0.f;
#endif
}

}  // namespace hc
