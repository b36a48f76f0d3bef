// Depthwise causal convolution over packed sequences. A thread has 8 channels of 8 tokens in a row and slides its window
// over them; the taps are summed oldest first. All windows that are kept, the running one included, are written by
// the threads of a sequence's first tokens, which are also the only ones that read its initial window.
#include "device.cuh"

namespace hc {

struct ConvArgs {
  Rows x, out;                 // [T, channels]
  const float *weight, *bias;  // [channels, kSize], [channels] or null
  Pool state;                  // [slots, channels, kSize - 1]: oldest first
  const int64_t *tiles;        // [num_tiles, 2]: sequence, its first token there
  int64_t num_tiles, channels, silu;
  int64_t segments;            // of 8 tokens in a tile: 1, 2, 4 or 8
};

constexpr int kConvThreads = 128, kRun = 8;

// 8 channels of one token: -1, -2 ... lie in front of the sequence, in its initial window [8, kW - 1].
template <class T, int kW>
__device__ __forceinline__ void input(float (&to)[8], const ConvArgs& p, const float (&past)[8 * (kW - 1)], int64_t first,
                                      int64_t token, int64_t channel, int channels) {
  if (token >= 0) {
    const Vec<T, 8> x = load<T, 8>(row<T>(p.x, first + token) + channel, channels);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = x[j];
  } else {
#pragma unroll
    for (int back = 1; back < kW; ++back)
      if (token == -back) {
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = past[j * (kW - 1) + kW - 1 - back];
      }
  }
}

template <class T, int kW>
__global__ void __launch_bounds__(kConvThreads) causal_conv1d(ConvArgs p, Batch batch) {
  const int across = kConvThreads / static_cast<int>(p.segments);
  const int64_t s = p.tiles[2 * blockIdx.x], tile = p.tiles[2 * blockIdx.x + 1];
  const int64_t first = batch.first[s], tokens = batch.first[s + 1] - first;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * across + threadIdx.x % across) * 8;
  const int64_t begin = tile + threadIdx.x / across * kRun;
  const int channels = static_cast<int>(least(p.channels - channel, 8));
  if (channels <= 0) return;

  float past[8 * (kW - 1)];
#pragma unroll
  for (int j = 0; j < 8 * (kW - 1); ++j) past[j] = 0.f;
  const int64_t element = channel * (kW - 1);
  if (begin == 0 && batch.source[s] >= 0)
    load_state(past, entry(p.state, batch.source[s], element), p.state.dtype, channels * (kW - 1));

  if (begin < tokens) {
    float taps[8 * kW], bias[8], window[kW][8];
    load_as<float>(taps, reinterpret_cast<const char*>(p.weight + channel * kW), channels * kW);
#pragma unroll
    for (int j = 0; j < 8; ++j) bias[j] = j < channels && p.bias ? p.bias[channel + j] : 0.f;
#pragma unroll
    for (int k = 0; k + 1 < kW; ++k) input<T, kW>(window[k], p, past, first, begin + k - (kW - 1), channel, channels);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      if (begin + i < tokens) {
        // The window turns: its newest row takes the place of the oldest.
        input<T, kW>(window[(i + kW - 1) % kW], p, past, first, begin + i, channel, channels);
        float y[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          y[j] = bias[j];
#pragma unroll
          for (int k = 0; k < kW; ++k) y[j] = fmaf(taps[j * kW + k], window[(i + k) % kW][j], y[j]);
          if (p.silu) y[j] = silu(y[j]);
        }
        store(row<T>(p.out, first + begin + i) + channel, y, channels);
      }
    }
  }
  if (begin == 0) {
    for (Stores stores(batch, s); stores.next < stores.end;) {
      const int64_t count = stores.count();
      float kept[8 * (kW - 1)], x[8];
#pragma unroll
      for (int k = 0; k < kW - 1; ++k) {
        input<T, kW>(x, p, past, first, count + k - (kW - 1), channel, channels);
#pragma unroll
        for (int j = 0; j < 8; ++j) kept[j * (kW - 1) + k] = x[j];
      }
      store_state(entry(p.state, stores.take(), element), kept, p.state.dtype, channels * (kW - 1));
    }
  }
}

HC_SHAPE(kConvThreads, 0, 8 * kConvThreads)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_causal_conv1d(const hc::ConvArgs* p, const hc::Batch* batch, void* stream) {
  using namespace hc;
  const dim3 grid(p->num_tiles, ceil_div(p->channels, hc_shape[2] / p->segments));
  return HC_LAUNCH((causal_conv1d<Element, kSize>), grid, dim3(hc_shape[0]), hc_shape[1], stream, *p, *batch);
}
#endif
