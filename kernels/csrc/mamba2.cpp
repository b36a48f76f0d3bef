// Mamba-2 scan: one item is (sequence, head, 32 rows of the head); its state stays in L1 over all tokens.
// Lanes run along the state dimension; four tokens at a time share one pass over a row of the state.
#include <vector>

#include "storage.h"

namespace {
using namespace hc;

constexpr int64_t kRows = 32, kTile = 32;  // rows of a head per item, tokens per tile

struct Args {
  Rows x, dt, b, c, out;
  const float *a, *d, *dt_bias;
  float dt_min, dt_max;
  Pool state;
  int64_t heads, head_dim, groups, d_state, padded;
};

struct Scratch {
  std::vector<float> state, b, c;
  float dt[kTile], decay[kTile], x[kRows][kTile], y[kRows][kTile];
  explicit Scratch(int64_t padded) : state(kRows * padded), b(kTile * padded), c(kTile * padded) {}
};

// K tokens of one row of the state: s = decay s + dx b, y = s c.
template <int K>
inline void step(float* s, const float* b, const float* c, int64_t padded, const float* decay, const float* dx,
                 float* y) {
  vf sum[K], da[K], in[K];
  for (int k = 0; k < K; ++k) sum[k] = vf{}, da[k] = splat(decay[k]), in[k] = splat(dx[k]);
  for (int64_t n = 0; n < padded; n += VL) {
    vf h = load(s + n);
    for (int k = 0; k < K; ++k) {
      h = fma(da[k], h, in[k] * load(b + k * padded + n));
      sum[k] = fma(h, load(c + k * padded + n), sum[k]);
    }
    store(s + n, h);
  }
  if (K == 4)
    sum_lanes4(sum, y);
  else
    for (int k = 0; k < K; ++k) y[k] = sum_lanes(sum[k]);
}

void tile(const Args& p, Scratch& w, int64_t h, int64_t row, int64_t rows, int64_t t0, int64_t n,
          int64_t end) {
  const int64_t group = h / (p.heads / p.groups);
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(&w.b[i * p.padded], p.b.row(t0 + i) + group * p.d_state, p.d_state * 4);
    std::memcpy(&w.c[i * p.padded], p.c.row(t0 + i) + group * p.d_state, p.d_state * 4);
    w.dt[i] = p.dt.row(t0 + i)[h] + (p.dt_bias ? p.dt_bias[h] : 0.f);
  }
  for (int64_t i = 0; i < n; i += VL) {
    const vf dt = at_most(at_least(softplus(load_upto(w.dt + i, n - i)), p.dt_min), p.dt_max);
    store_upto(w.dt + i, dt, n - i);
    store_upto(w.decay + i, exp(dt * p.a[h]), n - i);
  }
  // Tokens may lie whole pages apart, where they evict each other from L1: each row of x is touched once.
  const int64_t first = h * p.head_dim + row;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t r = 0; r < rows; ++r) w.x[r][i] = p.x.row(t0 + i)[first + r];
  // The next tile's rows lie far apart, which the processor does not foresee.
  for (int64_t t = t0 + n; t < std::min(t0 + n + kTile, end); ++t) {
    for (int64_t r = 0; r < rows; r += 16) __builtin_prefetch(p.x.row(t) + first + r);
    for (int64_t i = 0; i < p.d_state; i += 16) {
      __builtin_prefetch(p.b.row(t) + group * p.d_state + i);
      __builtin_prefetch(p.c.row(t) + group * p.d_state + i);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* s = &w.state[r * p.padded];
    for (int64_t i = 0; i < n;) {
      const int64_t k = n - i >= 4 ? 4 : 1;
      float dx[4], *y = &w.y[r][i];
      for (int64_t j = 0; j < k; ++j) dx[j] = w.dt[i + j] * w.x[r][i + j];
      const float *b = &w.b[i * p.padded], *c = &w.c[i * p.padded];
      if (k == 4)
        step<4>(s, b, c, p.padded, w.decay + i, dx, y);
      else
        step<1>(s, b, c, p.padded, w.decay + i, dx, y);
      i += k;
    }
  }
  const float skip = p.d ? p.d[h] : 0.f;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t r = 0; r < rows; ++r) p.out.row(t0 + i)[first + r] = w.y[r][i] + skip * w.x[r][i];
}

void item(const Args& p, const Batch& batch, Scratch& w, int64_t s, int64_t h, int64_t row) {
  const int64_t rows = std::min(kRows, p.head_dim - row), first = (h * p.head_dim + row) * p.d_state;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = &w.state[r * p.padded];
    std::fill(to + p.d_state, to + p.padded, 0.f);  // NaN times the zeros there has left NaN
    if (batch.has_state[s])
      read(to, p.state.entry(batch.slots[s], first + r * p.d_state), p.state.dtype, p.d_state);
    else
      std::memset(to, 0, p.d_state * 4);
  }
  stretches(
      batch, s,
      [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t += kTile) tile(p, w, h, row, rows, t, std::min(kTile, end - t), end);
      },
      [&](int64_t slot) {
        for (int64_t r = 0; r < rows; ++r)
          write(p.state.entry(slot, first + r * p.d_state), &w.state[r * p.padded], p.state.dtype, p.d_state);
      });
}

}  // namespace

extern "C" void hc_mamba2_scan(const Args* args, const Batch* batch, int64_t threads) {
  Args p = *args;
  p.padded = round_up(p.d_state, VL);
  const int64_t blocks = (p.head_dim + kRows - 1) / kRows, items = batch->num_sequences * p.heads * blocks;
#pragma omp parallel num_threads(threads)
  {
    Scratch w(p.padded);  // b and c are zero behind d_state, and stay so
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < items; ++i) {
      const auto at = [&](int64_t n, auto run) {
        run(n / (p.heads * blocks), n / blocks % p.heads, n % blocks * kRows);
      };
      at(std::min(i + 1, items - 1), [&](int64_t s, int64_t h, int64_t row) {
        if (batch->has_state[s])
          foresee(p.state, batch->slots[s], (h * p.head_dim + row) * p.d_state,
                  std::min(kRows, p.head_dim - row) * p.d_state);
      });
      at(i, [&](int64_t s, int64_t h, int64_t row) { item(p, *batch, w, s, h, row); });
    }
  }
}
