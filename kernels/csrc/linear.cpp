// Matrix product with a fixed order of summation: out[m, n] = bias[n] + the sums over 256 k each, in ascending
// order, of x[m, k] weight[n, k], k ascending, whatever the number of rows. (One chain over all k would be less
// exact.) The weight is packed in panels [in, 2 VL] of outputs.
#include "kernels.h"

namespace {
using namespace hc;

constexpr int64_t kPanel = 2 * VL, kChain = 256;
constexpr int64_t kFewRows = 16;
constexpr int64_t kRowTile = 192;  // rows that pass by while a panel's part of one chain (16 KiB) stays in L1

struct Args {
  Rows x, out;
  const void* packed;
  const float* bias;
  int64_t rows, in, outs;
};

inline vf weights(const float* p) { return load(p); }
inline vf weights(const uint16_t* p) {  // bfloat16
  typedef uint16_t half_vector __attribute__((vector_size(VL * 2)));
  half_vector h;
  std::memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vi) << 16);
}

// R rows of `out` become `start` (rows start_stride floats apart; 0: the same for all) plus their sums over `count`
// >= 1 k. With kFetch every step asks for what lies `step` bytes further on from `ahead`.
template <int R, bool kFetch, class W>  // inlined into a larger function its sums would not stay in registers
[[gnu::noinline]] void micro(const float* x, int64_t x_stride, const W* w, int64_t count, const float* start,
                             int64_t start_stride, float* out, int64_t stride, const char* ahead, int64_t step) {
  vf sum[R][2] = {};
  int64_t k = 0;
  do {  // at least one: else the compiler keeps sums of no steps in memory
    if (kFetch) __builtin_prefetch(ahead + k * step);
    const vf w0 = weights(w + k * kPanel), w1 = weights(w + k * kPanel + VL);
    for (int r = 0; r < R; ++r) {
      const vf a = splat(x[r * x_stride + k]);
      sum[r][0] = fma(a, w0, sum[r][0]);
      sum[r][1] = fma(a, w1, sum[r][1]);
    }
  } while (++k < count);
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < 2; ++i)
      store(out + r * stride + i * VL, load(start + r * start_stride + i * VL) + sum[r][i]);
}

// One panel of outputs for `rows` rows.
template <bool kFetch, class W>
void tile(const Args& p, const W* panel, int64_t column, int64_t row, int64_t rows) {
  float edge[kRowTile * kPanel];  // where the last panel reaches behind the outputs
  const bool whole = column + kPanel <= p.outs;
  float* out = whole ? p.out.row(row) + column : edge;
  const int64_t stride = whole ? p.out.stride : kPanel;
  for (int64_t k = 0; k < p.in; k += kChain) {
    const int64_t count = std::min(p.in - k, kChain);
    const float* x = p.x.row(row) + k;
    const W* w = panel + k * kPanel;
    // With few rows the weights come from memory: each call below asks for its share of the next chain's.
    const int64_t step = kFetch ? kPanel * static_cast<int64_t>(sizeof(W)) / ((rows + 3) / 4) : 0;
    const float* start = k ? out : p.bias + column;
    const int64_t start_stride = k ? stride : 0;
    const char* ahead = reinterpret_cast<const char*>(w + count * kPanel);
    const auto run = [&](auto kernel, int64_t r) {
      kernel(x + r * p.x.stride, p.x.stride, w, count, start + r * start_stride, start_stride, out + r * stride,
             stride, ahead, step);
      ahead += count * step;
    };
    int64_t r = 0;
    if (!kFetch)
      for (; rows - r >= 6; r += 6) run(micro<6, kFetch, W>, r);
    for (; rows - r >= 4; r += 4) run(micro<4, kFetch, W>, r);
    if (rows - r >= 2) run(micro<2, kFetch, W>, r), r += 2;
    if (rows - r >= 1) run(micro<1, kFetch, W>, r);
  }
  if (!whole)
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(p.out.row(row + r) + column, edge + r * kPanel, (p.outs - column) * 4);
}

template <class W>
void run(const Args& p, int64_t threads) {
  const int64_t panels = (p.outs + kPanel - 1) / kPanel, tiles = (p.rows + kRowTile - 1) / kRowTile;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < panels * tiles; ++i) {
    const int64_t panel = i % panels, row = i / panels * kRowTile;
    const W* w = static_cast<const W*>(p.packed) + panel * p.in * kPanel;
    const auto run = p.rows <= kFewRows ? tile<true, W> : tile<false, W>;
    run(p, w, panel * kPanel, row, std::min(kRowTile, p.rows - row));
  }
}

// weight [outs, in] to panels; outputs behind the last are zero.
template <class T>
void pack(const Weight& w, const T* from) {
  T* to = static_cast<T*>(w.packed);
  for (int64_t column = 0; column < w.outs; column += kPanel, to += w.in * kPanel)
    for (int64_t k = 0; k < w.in; k += VL)  // a square at a time stays in the cache
      for (int64_t part = 0; part < kPanel; part += VL) {
        const int64_t rows = std::clamp<int64_t>(w.outs - column - part, 0, VL);
        const T* square = from + (column + part) * w.in + k;
        if constexpr (sizeof(T) == 4) {
          if (k + VL <= w.in) {
            transpose(square, w.in, rows, to + k * kPanel + part, kPanel);
            continue;
          }
        }
        for (int64_t i = 0; i < std::min<int64_t>(VL, w.in - k); ++i)
          for (int64_t j = 0; j < VL; ++j) to[(k + i) * kPanel + part + j] = j < rows ? square[j * w.in + i] : T{};
      }
}

}  // namespace

extern "C" void hc_pack_linear(const Weight* w, const void* from) {
  w->dtype == F32 ? pack(*w, static_cast<const float*>(from)) : pack(*w, static_cast<const uint16_t*>(from));
}
// x [rows, in] to out [rows, outs].
extern "C" void hc_linear(const LinearArgs* args, const Batch*, int64_t threads) {
  const Weight& w = *args->weight;
  const Args p{args->x, args->out, w.packed, w.bias, args->rows, w.in, w.outs};
  w.dtype == F32 ? run<float>(p, threads) : run<uint16_t>(p, threads);
}
extern "C" int64_t hc_panel() { return kPanel; }
