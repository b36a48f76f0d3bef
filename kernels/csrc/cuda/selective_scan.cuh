// Mamba-1 over packed sequences. A block walks through one sequence for 8 to 32 channels, a tile of tokens after
// the other; a channel's states are spread over 4 to 16 threads. Each state's chain of multiply-adds has the
// order of its tokens, whatever the tiles, so that a cut changes no bit; what is parallel over the tokens of a
// tile is all the rest: loads, steps, sums over the states, gates. The next tile is on its way meanwhile.
#include "selective_step.cuh"

namespace hc {

constexpr int kScanThreads = 128;

template <int kN>
struct Tile {
  static constexpr int kLanes = Lanes<kN>::kCount, kChannels = kScanThreads / kLanes;
  static constexpr int kTokens = kN <= 32 ? 32 : 1024 / kN;
  static constexpr int kWide = kChannels / 8;                // vectors of 8 channels in a token
  static constexpr int kItems = kTokens * kWide;             // of those in a tile, one a thread
  static constexpr int kStateItems = kTokens * kN / 8;       // vectors of 8 of B, and of C
  static constexpr int kPitch = kChannels + 8;               // floats of a row of sums: free of bank conflicts
  static constexpr int kFloats = kTokens * (2 * kChannels + 2 * kN + kPitch);
  static_assert(kItems <= kScanThreads && kStateItems <= kScanThreads, "a thread stages one vector of each");
};

// One thread's share of a tile as it comes from memory.
template <class T>
struct Staged {
  Vec<T, 8> x, dt, b, c;
};

template <class T, int kN>
__device__ __forceinline__ void stage(Staged<T>& to, const SelectiveArgs& p, int64_t channel0, int64_t base, int64_t stop) {
  using Tl = Tile<kN>;
  const int i = threadIdx.x;
  if (i < Tl::kItems) {
    const int64_t t = base + i / Tl::kWide, channel = channel0 + i % Tl::kWide * 8;
    const int valid = t < stop ? static_cast<int>(least(p.channels - channel, 8)) : 0;
    to.x = load<T, 8>(row<T>(p.x, t) + channel, valid);
    to.dt = load<T, 8>(row<T>(p.dt, t) + channel, valid);
  }
  if (i < Tl::kStateItems) {
    const int64_t t = base + i / (kN / 8), n = i % (kN / 8) * 8;
    const int valid = t < stop ? static_cast<int>(least(p.d_state - n, 8)) : 0;
    to.b = load<T, 8>(row<T>(p.b, t) + n, valid);
    to.c = load<T, 8>(row<T>(p.c, t) + n, valid);
  }
}

// Tokens [from, to) of a tile in shared memory; adds their steps to `total`.
template <int kN>
__device__ __forceinline__ void chain(ChannelStates<kN>& states, float& total, int lane, int channel, int from,
                                      int to, const float2* steps, const float* b, const float* c, float* sums) {
  using Tl = Tile<kN>;
  constexpr int kStates = Lanes<kN>::kStates;
  for (int k = from; k < to; k += 4) {
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[j] = 0.f;
      if (k + j < to) {
        const float2 step = steps[(k + j) * Tl::kChannels + channel];
        float bs[kStates], cs[kStates];
        load_as<float>(bs, reinterpret_cast<const char*>(b + (k + j) * kN + lane * kStates), kStates);
        load_as<float>(cs, reinterpret_cast<const char*>(c + (k + j) * kN + lane * kStates), kStates);
        y[j] = states.step(step.x, step.y, bs, cs);
        total += step.x;
      }
    }
    const float sum = sum_lanes4<Tl::kLanes>(y, lane);
    if (lane < 4 && k + lane < to) sums[(k + lane) * Tl::kPitch + channel] = sum;
  }
}

template <class T, int kN>
__global__ void __launch_bounds__(kScanThreads) selective_scan(SelectiveArgs p, Batch batch) {
  using Tl = Tile<kN>;
  HC_SHARED(shared);
  float2* const steps = reinterpret_cast<float2*>(shared);  // [tokens, channels]: d, d x
  float* const bs = shared + 2 * Tl::kTokens * Tl::kChannels;
  float* const cs = bs + Tl::kTokens * kN;
  float* const sums = cs + Tl::kTokens * kN;
  const int i = threadIdx.x, lane = i % Tl::kLanes, mine = i / Tl::kLanes, s = blockIdx.y;
  const int64_t channel0 = static_cast<int64_t>(blockIdx.x) * Tl::kChannels;
  const int64_t first = batch.first[s], stop = batch.first[s + 1];
  ChannelStates<kN> states(p, channel0 + mine, lane, batch.source[s]);
  float total = 0.f;
  Stores stores(batch, s);
  while (stores.count() == 0) states.store_to(p, stores.take());

  // This thread's 8 channels where it stages and finishes tokens.
  const int64_t channel = channel0 + i % Tl::kWide * 8;
  const int channels = static_cast<int>(least(p.channels - channel, 8));
  Staged<T> next;
  if (first < stop) stage<T, kN>(next, p, channel0, first, stop);
  for (int64_t base = first; base < stop; base += Tl::kTokens) {
    const int tokens = static_cast<int>(least(Tl::kTokens, stop - base));
    const int row_of = i / Tl::kWide;
    const Vec<T, 8> x = next.x;
    if (i < Tl::kItems) {
      float2* const to = steps + row_of * Tl::kChannels + i % Tl::kWide * 8;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float bias = j < channels && p.dt_bias ? p.dt_bias[channel + j] : 0.f, d = softplus(next.dt[j] + bias);
        to[j].x = d;
        to[j].y = d * x[j];
      }
    }
    if (i < Tl::kStateItems) {
#pragma unroll
      for (int j = 0; j < 8; ++j) bs[i * 8 + j] = next.b[j], cs[i * 8 + j] = next.c[j];
    }
    __syncthreads();
    if (base + Tl::kTokens < stop) stage<T, kN>(next, p, channel0, base + Tl::kTokens, stop);
    const bool finishes = !p.totals && i < Tl::kItems && row_of < tokens && channels > 0;
    Vec<T, 8> z;
    if (finishes && p.z.data) z = load<T, 8>(row<T>(p.z, base + row_of) + channel, channels);
    for (int k = 0; k < tokens;) {
      const int until = static_cast<int>(least(tokens, stores.count() - (base - first)));
      chain<kN>(states, total, lane, mine, k, until, steps, bs, cs, sums);
      k = until;
      while (stores.count() == base - first + k) states.store_to(p, stores.take());
    }
    __syncthreads();
    if (finishes) {
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float skip = j < channels && p.d ? p.d[channel + j] : 0.f;
        y[j] = selective_output(sums[row_of * Tl::kPitch + i % Tl::kWide * 8 + j], skip, x[j], p.z.data, p.z.data ? z[j] : 0.f);
      }
      store(row<T>(p.out, base + row_of) + channel, y, channels);
    }
  }
  if (p.totals && lane == 0 && channel0 + mine < p.channels) p.totals[s * p.channels + channel0 + mine] = total;
}

HC_SHAPE(kScanThreads, Tile<kSize>::kFloats * 4, Tile<kSize>::kChannels)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_selective_scan(const hc::SelectiveArgs* p, const hc::Batch* batch, void* stream) {
  using namespace hc;
  const dim3 grid(ceil_div(p->channels, hc_shape[2]), batch->num_sequences);
  return HC_LAUNCH((selective_scan<Element, kSize>), grid, dim3(hc_shape[0]), hc_shape[1], stream, *p, *batch);
}
#endif
