// Mamba-1 scan: one item is (sequence, one vector of channels). Lanes run along the channels, so that a token's
// x, dt, z and output are plain vectors and nothing is summed across lanes.
#include <vector>

#include "storage.h"

namespace {
using namespace hc;

constexpr int64_t kAhead = 4;        // items whose states are asked for before their turn
constexpr int64_t kTokensAhead = 6;  // likewise tokens, whose rows lie far apart

struct Args {
  Rows x, dt, z, b, c, out;
  const float *a, *d, *dt_bias;
  Pool state;
  int64_t channels, d_state;
};

struct Scratch {
  int64_t padded;
  std::vector<float> rows, a, state;  // rows [VL, padded] as stored; a and state [padded, VL] transposed
  explicit Scratch(int64_t d_state)
      : padded(round_up(d_state, VL)), rows(VL * padded), a(padded * VL), state(padded * VL) {}
  // The rows in memory order, to or from lanes along the channels.
  void spread(float* to, int64_t lanes) {
    for (int64_t n = 0; n < padded; n += VL) transpose(&rows[n], padded, lanes, to + n * VL, VL);
  }
  void gather() {
    for (int64_t n = 0; n < padded; n += VL) transpose(&state[n * VL], VL, VL, &rows[n], padded);
  }
};

void run(const Args& p, Scratch& w, int64_t channel, int64_t lanes, int64_t begin, int64_t end) {
  const vf bias = p.dt_bias ? load_upto(p.dt_bias + channel, lanes) : vf{};
  const vf skip = p.d ? load_upto(p.d + channel, lanes) : vf{};
  for (int64_t t = begin; t < end; ++t) {
    const int64_t later = std::min(t + kTokensAhead, end - 1);
    for (const Rows* rows : {&p.x, &p.dt, &p.z})
      if (rows->data) __builtin_prefetch(rows->row(later) + channel);
    const vf x = load_upto(p.x.row(t) + channel, lanes);
    const vf dt = softplus(load_upto(p.dt.row(t) + channel, lanes) + bias), dx = dt * x;
    const float *b = p.b.row(t), *c = p.c.row(t);
    vf even = skip * x, odd{};  // two sums over the state hide the latency of one
    int64_t n = 0;
    for (; n + 2 <= p.d_state; n += 2) {
      float *s0 = &w.state[n * VL], *s1 = s0 + VL;
      const vf h0 = fma(exp(dt * load(&w.a[n * VL])), load(s0), dx * b[n]);
      const vf h1 = fma(exp(dt * load(&w.a[n * VL + VL])), load(s1), dx * b[n + 1]);
      store(s0, h0);
      store(s1, h1);
      even = fma(h0, splat(c[n]), even);
      odd = fma(h1, splat(c[n + 1]), odd);
    }
    if (n < p.d_state) {
      float* s0 = &w.state[n * VL];
      const vf h0 = fma(exp(dt * load(&w.a[n * VL])), load(s0), dx * b[n]);
      store(s0, h0);
      even = fma(h0, splat(c[n]), even);
    }
    vf y = even + odd;
    if (p.z.data) y = y * silu(load_upto(p.z.row(t) + channel, lanes));
    store_upto(p.out.row(t) + channel, y, lanes);
  }
}

void item(const Args& p, const Batch& batch, Scratch& w, int64_t s, int64_t channel) {
  const int64_t lanes = std::min<int64_t>(VL, p.channels - channel);
  for (int64_t i = 0; i < lanes; ++i)
    std::memcpy(&w.rows[i * w.padded], p.a + (channel + i) * p.d_state, p.d_state * 4);
  w.spread(w.a.data(), lanes);
  if (batch.has_state[s]) {
    for (int64_t i = 0; i < lanes; ++i)
      read(&w.rows[i * w.padded], p.state.entry(batch.slots[s], (channel + i) * p.d_state), p.state.dtype,
           p.d_state);
    w.spread(w.state.data(), lanes);
  } else {
    std::fill(w.state.begin(), w.state.end(), 0.f);
  }
  stretches(
      batch, s, [&](int64_t begin, int64_t end) { run(p, w, channel, lanes, begin, end); },
      [&](int64_t slot) {
        w.gather();
        for (int64_t i = 0; i < lanes; ++i)
          write(p.state.entry(slot, (channel + i) * p.d_state), &w.rows[i * w.padded], p.state.dtype, p.d_state);
      });
}

}  // namespace

extern "C" void hc_mamba1_scan(const Args* args, const Batch* batch, int64_t threads) {
  const Args& p = *args;
  const int64_t blocks = (p.channels + VL - 1) / VL, items = batch->num_sequences * blocks;
#pragma omp parallel num_threads(threads)
  {
    Scratch w(p.d_state);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < items; ++i) {
      const int64_t next = std::min(i + kAhead, items - 1), s = next / blocks, channel = next % blocks * VL;
      if (batch->has_state[s])
        foresee(p.state, batch->slots[s], channel * p.d_state,
                std::min<int64_t>(VL, p.channels - channel) * p.d_state);
      item(p, *batch, w, i / blocks, i % blocks * VL);
    }
  }
}
