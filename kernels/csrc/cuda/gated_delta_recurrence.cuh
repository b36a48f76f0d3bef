// Gated delta rule token by token (Yang, Kautz and Hatamizadeh, 2024): decoding, and prefill where a token's bits must
// not depend on the cut. A block has 32 or 16 columns of one value head of one sequence; columns do not depend on
// each other. Two of them lie over 8 or 16 threads, which share their rows; tiles of tokens are staged one ahead.
#include "device.cuh"

namespace hc {

struct GatedDeltaArgs {
  Rows q, k, v;          // [T, key_heads, key_dim], v [T, value_heads, value_dim]
  Rows log_decay, beta;  // [T, value_heads], float
  Rows out;              // as v
  Pool state;                          // [slots, value_heads, key_dim, value_dim]
  int64_t key_heads, value_heads, key_dim, value_dim;
  float scale;
  int64_t l2norm;
};

constexpr int kDeltaThreads = 128, kColumnsEach = 2;

// kK: key_dim rounded up to a power of two from 64; the rows behind key_dim stay 0.
template <int kK>
struct DeltaTile {
  static constexpr int kRowLanes = kK <= 128 ? 8 : 16;      // threads of a column
  static constexpr int kColumns = kDeltaThreads / kRowLanes * kColumnsEach;
  static constexpr int kWide = kK / 8;                      // vectors of 8 in a key, neighbouring threads
  static constexpr int kTokens = kDeltaThreads / kWide;     // a thread stages one vector of q and of k
  static constexpr int kFours = kK / (4 * kRowLanes);       // a thread's rows: fours, each 4 kRowLanes behind the last
  static constexpr int kValueItems = kTokens * kColumns / 8;
  static constexpr int kFloats = kTokens * (2 * kK + 2 * kColumns + 2);
  static_assert(kWide <= 32 && kValueItems <= kDeltaThreads, "a key is summed within a warp");
};

template <class T>
struct DeltaStaged {
  Vec<T, 8> q, k, v;
  float log_decay, beta;
};

template <class T, int kK>
__device__ __forceinline__ void stage(DeltaStaged<T>& to, const GatedDeltaArgs& p, int64_t head, int64_t column0, int64_t base,
                                      int64_t stop) {
  using Tl = DeltaTile<kK>;
  const int i = threadIdx.x;
  const int64_t t = base + i / Tl::kWide, r = i % Tl::kWide * 8, key_head = head / (p.value_heads / p.key_heads);
  const int valid = t < stop ? static_cast<int>(least(p.key_dim - r, 8)) : 0;
  to.q = load<T, 8>(row<T>(p.q, t) + key_head * p.key_dim + r, valid);
  to.k = load<T, 8>(row<T>(p.k, t) + key_head * p.key_dim + r, valid);
  if (i < Tl::kValueItems) {
    const int64_t tv = base + i / (Tl::kColumns / 8), column = column0 + i % (Tl::kColumns / 8) * 8;
    const int columns = tv < stop ? static_cast<int>(least(p.value_dim - column, 8)) : 0;
    to.v = load<T, 8>(row<T>(p.v, tv) + head * p.value_dim + column, columns);
  }
  if (i < Tl::kTokens) {
    to.log_decay = base + i < stop ? row<float>(p.log_decay, base + i)[head] : 0.f;
    to.beta = base + i < stop ? row<float>(p.beta, base + i)[head] : 0.f;
  }
}

// 8 elements of a q or k, divided by the norm of the whole if asked for; kWide neighbours have the rest.
template <class T, int kWide>
__device__ __forceinline__ void put_key(float* to, const Vec<T, 8>& from, bool l2norm, float scale) {
  float x[8], squares = 0.f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = from[j];
    squares = fmaf(x[j], x[j], squares);
  }
  squares = sum_lanes<kWide>(squares);
  const float factor = l2norm ? 1.f / sqrtf(squares + 1e-6f) : 1.f;
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = x[j] * factor * scale;
}

template <class T, int kK>
__global__ void __launch_bounds__(kDeltaThreads) gated_delta_recurrence(GatedDeltaArgs p, Batch batch) {
  using Tl = DeltaTile<kK>;
  HC_SHARED(shared);
  float* const qs = shared;                            // [tokens, kK]
  float* const ks = qs + Tl::kTokens * kK;
  float* const vs = ks + Tl::kTokens * kK;             // [tokens, columns]
  float* const ys = vs + Tl::kTokens * Tl::kColumns;
  float* const decays = ys + Tl::kTokens * Tl::kColumns;   // [tokens]
  float* const betas = decays + Tl::kTokens;
  const int i = threadIdx.x, lane = i % Tl::kRowLanes, mine = i / Tl::kRowLanes * kColumnsEach, s = blockIdx.y;
  const int blocks = static_cast<int>(ceil_div(p.value_dim, Tl::kColumns));
  const int64_t head = blockIdx.x / blocks, column0 = static_cast<int64_t>(blockIdx.x % blocks) * Tl::kColumns;
  const int64_t first = batch.first[s], stop = batch.first[s + 1], source = batch.source[s];

  float h[Tl::kFours][4][kColumnsEach];
  const int columns = static_cast<int>(least(p.value_dim - column0 - mine, kColumnsEach));
  const auto each_row = [&](auto run) {
#pragma unroll
    for (int f = 0; f < Tl::kFours; ++f)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t r = f * 4 * Tl::kRowLanes + lane * 4 + j;
        run(h[f][j], (head * p.key_dim + r) * p.value_dim + column0 + mine, r < p.key_dim && columns > 0);
      }
  };
  each_row([&](float(&at)[kColumnsEach], int64_t element, bool there) {
    at[0] = at[1] = 0.f;
    if (there && source >= 0) load_state(at, entry(p.state, source, element), p.state.dtype, columns);
  });
  Stores stores(batch, s);
  const auto store_all = [&](int64_t slot) {
    each_row([&](float(&at)[kColumnsEach], int64_t element, bool there) {
      if (there) store_state(entry(p.state, slot, element), at, p.state.dtype, columns);
    });
  };
  while (stores.count() == 0) store_all(stores.take());

  const int wide = i % (Tl::kColumns / 8) * 8, row_of = i / (Tl::kColumns / 8);
  const int out_columns = static_cast<int>(least(p.value_dim - column0 - wide, 8));
  DeltaStaged<T> next;
  if (first < stop) stage<T, kK>(next, p, head, column0, first, stop);
  for (int64_t base = first; base < stop; base += Tl::kTokens) {
    const int tokens = static_cast<int>(least(Tl::kTokens, stop - base));
    put_key<T, Tl::kWide>(qs + i * 8, next.q, p.l2norm, p.scale);
    put_key<T, Tl::kWide>(ks + i * 8, next.k, p.l2norm, 1.f);
    if (i < Tl::kValueItems) {
#pragma unroll
      for (int j = 0; j < 8; ++j) vs[i * 8 + j] = next.v[j];
    }
    if (i < Tl::kTokens) {
      decays[i] = exp2_approx(next.log_decay * kLog2e);
      betas[i] = next.beta;
    }
    __syncthreads();
    if (base + Tl::kTokens < stop) stage<T, kK>(next, p, head, column0, base + Tl::kTokens, stop);
    for (int t = 0; t < tokens; ++t) {
      const float decay = decays[t], beta = betas[t];
      const float *k = ks + t * kK + lane * 4, *q = qs + t * kK + lane * 4;
      float kv[kColumnsEach][2] = {}, y[kColumnsEach][2] = {}, delta[kColumnsEach];
#pragma unroll
      for (int f = 0; f < Tl::kFours; ++f) {
        float four[4];
        load_as<float>(four, reinterpret_cast<const char*>(k + f * 4 * Tl::kRowLanes), 4);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < kColumnsEach; ++c) {
            h[f][j][c] *= decay;
            kv[c][j % 2] = fmaf(h[f][j][c], four[j], kv[c][j % 2]);
          }
      }
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c)
        delta[c] = (vs[t * Tl::kColumns + mine + c] - sum_lanes<Tl::kRowLanes>(kv[c][0] + kv[c][1])) * beta;
#pragma unroll
      for (int f = 0; f < Tl::kFours; ++f) {
        float four[4], query[4];
        load_as<float>(four, reinterpret_cast<const char*>(k + f * 4 * Tl::kRowLanes), 4);
        load_as<float>(query, reinterpret_cast<const char*>(q + f * 4 * Tl::kRowLanes), 4);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < kColumnsEach; ++c) {
            h[f][j][c] = fmaf(delta[c], four[j], h[f][j][c]);
            y[c][j % 2] = fmaf(h[f][j][c], query[j], y[c][j % 2]);
          }
      }
#pragma unroll
      for (int c = 0; c < kColumnsEach; ++c) {
        const float sum = sum_lanes<Tl::kRowLanes>(y[c][0] + y[c][1]);
        if (lane == 0) ys[t * Tl::kColumns + mine + c] = sum;
      }
      while (stores.count() == base - first + t + 1) store_all(stores.take());
    }
    __syncthreads();
    if (i < Tl::kValueItems && row_of < tokens && out_columns > 0) {
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = ys[row_of * Tl::kColumns + wide + j];
      store(row<T>(p.out, base + row_of) + head * p.value_dim + column0 + wide, y, out_columns);
    }
  }
}

HC_SHAPE(kDeltaThreads, DeltaTile<kSize>::kFloats * 4, DeltaTile<kSize>::kColumns)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_gated_delta_recurrence(const hc::GatedDeltaArgs* p, const hc::Batch* batch, void* stream) {
  using namespace hc;
  const dim3 grid(p->value_heads * ceil_div(p->value_dim, hc_shape[2]), batch->num_sequences);
  return HC_LAUNCH((gated_delta_recurrence<Element, kSize>), grid, dim3(hc_shape[0]), hc_shape[1], stream, *p, *batch);
}
#endif
