// Mamba-2 token by token (Dao and Gu, 2024, section 7): decoding, and prefill where a token's bits must not depend on
// the cut. A block has 32 or 64 rows of one head of one sequence; a row's states lie over 4 to 32 threads and stay
// in registers, what comes in is staged by tiles of tokens, the next tile on its way meanwhile.
#include "device.cuh"

namespace hc {

struct Mamba2Args {
  Rows x, dt, b, c, out;         // [T, heads, head_dim], [T, heads], b and c [T, groups, d_state]
  const float *a, *d, *dt_bias;  // [heads]; the last two or null
  float dt_min, dt_max;
  Pool state;                    // [slots, heads, head_dim, d_state]
  int64_t heads, head_dim, groups, d_state;
};

constexpr int kHeadThreads = 256;

// kN: d_state rounded up to a power of two from 16; the states behind d_state stay 0.
template <int kN>
struct HeadTile {
  static constexpr int kLanes = kN <= 128 ? kN / 4 : 32, kStates = kN / kLanes;  // threads of a row, states of a thread
  static constexpr int kGroups = kHeadThreads / kLanes;                          // rows at a time
  static constexpr int kPer = kN <= 32 ? 1 : 4;                               // rows of a thread, kGroups apart
  static constexpr int kRows = kGroups * kPer;
  static constexpr int kTokens = kN <= 128 ? 16 : 8;
  static constexpr int kWide = kRows / 8, kItems = kTokens * kWide, kStateItems = kTokens * kN / 8;
  static constexpr int kFloats = kTokens * (2 * kN + 2 * kRows + 1);
  static_assert(kItems <= kHeadThreads && kStateItems <= kHeadThreads, "a thread stages one vector of each");
};

template <class T>
struct HeadStaged {
  Vec<T, 8> x, b, c;
  T dt;
};

template <class T, int kN>
__device__ __forceinline__ void stage(HeadStaged<T>& to, const Mamba2Args& p, int64_t head, int64_t row0, int64_t base,
                                      int64_t stop) {
  using Tl = HeadTile<kN>;
  const int i = threadIdx.x;
  if (i < Tl::kItems) {
    const int64_t t = base + i / Tl::kWide, r = row0 + i % Tl::kWide * 8;
    const int valid = t < stop ? static_cast<int>(least(p.head_dim - r, 8)) : 0;
    to.x = load<T, 8>(row<T>(p.x, t) + head * p.head_dim + r, valid);
    to.dt = t < stop ? row<T>(p.dt, t)[head] : from_float<T>(0.f);
  }
  if (i < Tl::kStateItems) {
    const int64_t t = base + i / (kN / 8), n = i % (kN / 8) * 8, group = head / (p.heads / p.groups);
    const int valid = t < stop ? static_cast<int>(least(p.d_state - n, 8)) : 0;
    to.b = load<T, 8>(row<T>(p.b, t) + group * p.d_state + n, valid);
    to.c = load<T, 8>(row<T>(p.c, t) + group * p.d_state + n, valid);
  }
}

template <class T, int kN>
__global__ void __launch_bounds__(kHeadThreads) mamba2_recurrence(Mamba2Args p, Batch batch) {
  using Tl = HeadTile<kN>;
  HC_SHARED(shared);
  float* const bs = shared;                                // [tokens, kN]
  float* const cs = bs + Tl::kTokens * kN;
  float* const inputs = cs + Tl::kTokens * kN;             // [tokens, rows]: d x
  float* const sums = inputs + Tl::kTokens * Tl::kRows;    // [tokens, rows]
  float* const decays = sums + Tl::kTokens * Tl::kRows;    // [tokens]
  const int i = threadIdx.x, lane = i % Tl::kLanes, mine = i / Tl::kLanes, s = blockIdx.y;
  const int blocks = static_cast<int>(ceil_div(p.head_dim, Tl::kRows));
  const int64_t head = blockIdx.x / blocks, row0 = static_cast<int64_t>(blockIdx.x % blocks) * Tl::kRows;
  const int64_t first = batch.first[s], stop = batch.first[s + 1], source = batch.source[s];

  float h[Tl::kPer][Tl::kStates];
  const int states = static_cast<int>(p.d_state) - lane * Tl::kStates;
  const auto element = [&](int j) { return (head * p.head_dim + row0 + mine + j * Tl::kGroups) * p.d_state + lane * Tl::kStates; };
  const auto valid = [&](int j) { return row0 + mine + j * Tl::kGroups < p.head_dim ? states : 0; };
#pragma unroll
  for (int j = 0; j < Tl::kPer; ++j) {
#pragma unroll
    for (int n = 0; n < Tl::kStates; ++n) h[j][n] = 0.f;
    if (source >= 0 && valid(j) > 0) load_state(h[j], entry(p.state, source, element(j)), p.state.dtype, valid(j));
  }
  Stores stores(batch, s);
  const auto store_all = [&](int64_t slot) {
#pragma unroll
    for (int j = 0; j < Tl::kPer; ++j)
      if (valid(j) > 0) store_state(entry(p.state, slot, element(j)), h[j], p.state.dtype, valid(j));
  };
  while (stores.count() == 0) store_all(stores.take());

  const float a = p.a[head] * kLog2e, skip = p.d ? p.d[head] : 0.f, bias = p.dt_bias ? p.dt_bias[head] : 0.f;
  const int row_of = i / Tl::kWide, wide = i % Tl::kWide * 8, rows = static_cast<int>(least(p.head_dim - row0 - wide, 8));
  HeadStaged<T> next;
  if (first < stop) stage<T, kN>(next, p, head, row0, first, stop);
  for (int64_t base = first; base < stop; base += Tl::kTokens) {
    const int tokens = static_cast<int>(least(Tl::kTokens, stop - base));
    const Vec<T, 8> x = next.x;
    if (i < Tl::kItems) {
      const float step = softplus(to_float(next.dt) + bias);
      const float d = step < p.dt_min ? p.dt_min : step > p.dt_max ? p.dt_max : step;  // NaN stays NaN
#pragma unroll
      for (int j = 0; j < 8; ++j) inputs[row_of * Tl::kRows + wide + j] = d * x[j];
      if (wide == 0) decays[row_of] = exp2_approx(d * a);
    }
    if (i < Tl::kStateItems) {
#pragma unroll
      for (int j = 0; j < 8; ++j) bs[i * 8 + j] = next.b[j], cs[i * 8 + j] = next.c[j];
    }
    __syncthreads();
    if (base + Tl::kTokens < stop) stage<T, kN>(next, p, head, row0, base + Tl::kTokens, stop);
    for (int k = 0; k < tokens; ++k) {
      const float decay = decays[k];
      float b[Tl::kStates], c[Tl::kStates], y[4] = {};
      load_as<float>(b, reinterpret_cast<const char*>(bs + k * kN + lane * Tl::kStates), Tl::kStates);
      load_as<float>(c, reinterpret_cast<const char*>(cs + k * kN + lane * Tl::kStates), Tl::kStates);
#pragma unroll
      for (int j = 0; j < Tl::kPer; ++j) {
        const float in = inputs[k * Tl::kRows + mine + j * Tl::kGroups];
#pragma unroll
        for (int n = 0; n < Tl::kStates; ++n) {
          h[j][n] = fmaf(in, b[n], decay * h[j][n]);
          y[j] = fmaf(h[j][n], c[n], y[j]);
        }
      }
      const float sum = sum_lanes4<Tl::kLanes>(y, lane);
      if (lane < Tl::kPer) sums[k * Tl::kRows + mine + lane * Tl::kGroups] = sum;
      while (stores.count() == base - first + k + 1) store_all(stores.take());
    }
    __syncthreads();
    if (i < Tl::kItems && row_of < tokens && rows > 0) {
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = fmaf(skip, x[j], sums[row_of * Tl::kRows + wide + j]);
      store(row<T>(p.out, base + row_of) + head * p.head_dim + row0 + wide, y, rows);
    }
  }
}

HC_SHAPE(kHeadThreads, HeadTile<kSize>::kFloats * 4, HeadTile<kSize>::kRows)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_mamba2_recurrence(const hc::Mamba2Args* p, const hc::Batch* batch, void* stream) {
  using namespace hc;
  const dim3 grid(p->heads * ceil_div(p->head_dim, hc_shape[2]), batch->num_sequences);
  return HC_LAUNCH((mamba2_recurrence<Element, kSize>), grid, dim3(hc_shape[0]), hc_shape[1], stream, *p, *batch);
}
#endif
