// Depthwise causal convolution: one item is 256 channels of all sequences; lanes run along the channels.
#include <vector>

#include "storage.h"

namespace {
using namespace hc;

constexpr int64_t kChannels = 256, kAhead = 4;  // channels, tokens

struct Args {
  Rows x, out;
  const float *weight, *bias;  // [channels, width], [channels] or null
  Pool state;
  int64_t channels, width, silu;
};

struct Scratch {
  std::vector<float> taps, past;  // [width, kChannels], [width - 1, kChannels]: oldest first
  std::vector<const float*> window;
  explicit Scratch(int64_t width)
      : taps(width * kChannels), past(width * kChannels), window(static_cast<size_t>(width)) {}
};

// Inputs behind token t of sequence s (t == begin - 1: before the first), i steps back.
const float* input(const Args& p, const Scratch& w, int64_t begin, int64_t t, int64_t channel) {
  return t >= begin ? p.x.row(t) + channel : &w.past[(t - begin + p.width - 1) * kChannels];
}

template <int W>  // 0: any width
void run(const Args& p, Scratch& w, int64_t channel, int64_t count, int64_t begin, int64_t t0, int64_t t1) {
  const int64_t width = W ? W : p.width;
  for (int64_t t = t0; t < t1; ++t) {
    for (int64_t k = 0; k < width; ++k) w.window[k] = input(p, w, begin, t - width + 1 + k, channel);
    // Rows lie far apart, which the processor does not foresee.
    const float* later = p.x.row(std::min(t + kAhead, t1 - 1)) + channel;
    for (int64_t i = 0; i < count; i += VL) {
      __builtin_prefetch(later + i);
      vf y = p.bias ? load_upto(p.bias + channel + i, count - i) : vf{};
      for (int64_t k = 0; k < width; ++k)
        y = fma(load(&w.taps[k * kChannels + i]), load_upto(w.window[k] + i, count - i), y);
      store_upto(p.out.row(t) + channel + i, p.silu ? silu(y) : y, count - i);
    }
  }
}

// One token and no more, on the state where it lies: what decoding is made of.
template <int W>
void single(const Args& p, int64_t channel, int64_t count, int64_t t, const float* past, float* state) {
  const float* x = p.x.row(t) + channel;
  float y[kChannels] = {};
  for (int64_t i = 0; i < count; ++i) {
    const float *taps = p.weight + (channel + i) * W, *from = past ? past + i * (W - 1) : nullptr;
    float sum = p.bias ? p.bias[channel + i] : 0.f, window[W];
    for (int k = 0; k < W; ++k) {
      window[k] = k == W - 1 ? x[i] : from ? from[k] : 0.f;
      sum = fma(taps[k], window[k], sum);
    }
    std::memcpy(state + i * (W - 1), window + 1, (W - 1) * 4);
    y[i] = sum;
  }
  for (int64_t i = 0; i < count; i += VL)
    store_upto(p.out.row(t) + channel + i, p.silu ? silu(load(y + i)) : load(y + i), count - i);
}

void item(const Args& p, const Batch& batch, Scratch& w, int64_t channel) {
  const int64_t count = std::min(kChannels, p.channels - channel), stored = p.width - 1;
  std::vector<float> row(static_cast<size_t>(stored * kChannels));
  bool spread = false;  // whether the taps are
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const int64_t begin = batch.cu_seqlens[s], first = channel * stored;
    const bool one = batch.cu_seqlens[s + 1] == begin + 1 && batch.emit_offsets[s] == batch.emit_offsets[s + 1];
    if (one && p.width == 4 && p.state.dtype == F32) {
      float* state = reinterpret_cast<float*>(p.state.entry(batch.slots[s], first));
      single<4>(p, channel, count, begin, batch.has_state[s] ? state : nullptr, state);
      continue;
    }
    for (int64_t i = 0; i < count && !spread; ++i)
      for (int64_t k = 0; k < p.width; ++k) w.taps[k * kChannels + i] = p.weight[(channel + i) * p.width + k];
    spread = true;
    std::fill(w.past.begin(), w.past.end(), 0.f);
    if (batch.has_state[s]) {
      read(row.data(), p.state.entry(batch.slots[s], first), p.state.dtype, count * stored);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < stored; ++k) w.past[k * kChannels + i] = row[i * stored + k];
    }
    int64_t done = begin;
    stretches(
        batch, s,
        [&](int64_t t0, int64_t t1) {
          done = t1;
          switch (p.width) {
            case 2: return run<2>(p, w, channel, count, begin, t0, t1);
            case 3: return run<3>(p, w, channel, count, begin, t0, t1);
            case 4: return run<4>(p, w, channel, count, begin, t0, t1);
            default: return run<0>(p, w, channel, count, begin, t0, t1);
          }
        },
        [&](int64_t slot) {
          for (int64_t k = 0; k < stored; ++k) {
            const float* from = input(p, w, begin, done - stored + k, channel);
            for (int64_t i = 0; i < count; ++i) row[i * stored + k] = from[i];
          }
          write(p.state.entry(slot, first), row.data(), p.state.dtype, count * stored);
        });
  }
}

}  // namespace

extern "C" void hc_causal_conv1d(const Args* args, const Batch* batch, int64_t threads) {
  const Args& p = *args;
#pragma omp parallel num_threads(threads)
  {
    Scratch w(p.width);
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < p.channels; c += kChannels) item(p, *batch, w, c);
  }
}
