// Matrix product with a fixed order of summation: out[m, n] = bias[n] + the sums over 256 k each, in ascending
// order, of x[m, k] weight[n, k], k ascending, whatever the number of rows. (One chain over all k would be less
// exact.) The weight is packed in panels [in, 2 VL] of outputs.
#include "storage.h"

namespace {
using namespace hc;

constexpr int64_t kPanel = 2 * VL, kRowTile = 48, kChain = 256;  // kRowTile: rows that share a panel in L2

struct Args {
  Rows x, out;
  const void* packed;
  const float* bias;  // [out padded to whole panels]
  int64_t rows, in, outs, dtype;
};

inline vf weights(const float* p) { return load(p); }
inline vf weights(const uint16_t* p) {  // bfloat16
  typedef uint16_t half_vector __attribute__((vector_size(VL * 2)));
  half_vector h;
  std::memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vi) << 16);
}

template <int R, class W>  // inlined into a larger function its sums would not stay in registers
[[gnu::noinline]] void micro(const Args& p, int64_t row, const W* panel, int64_t column) {
  const float* x[R];
  float total[R][kPanel];
  for (int r = 0; r < R; ++r) {
    x[r] = p.x.row(row + r);
    std::memcpy(total[r], p.bias + column, sizeof total[r]);
  }
  for (int64_t begin = 0; begin < p.in; begin += kChain) {
    const int64_t end = std::min(p.in, begin + kChain);
    vf sum[R][2] = {};
    for (int64_t k = begin; k < end; ++k) {
      const vf w0 = weights(panel + k * kPanel), w1 = weights(panel + k * kPanel + VL);
      for (int r = 0; r < R; ++r) {
        const vf a = splat(x[r][k]);
        sum[r][0] = fma(a, w0, sum[r][0]);
        sum[r][1] = fma(a, w1, sum[r][1]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < 2; ++i) store(total[r] + i * VL, load(total[r] + i * VL) + sum[r][i]);
  }
  for (int r = 0; r < R; ++r)
    std::memcpy(p.out.row(row + r) + column, total[r], std::min(kPanel, p.outs - column) * 4);
}

template <class W>
void run(const Args& p, int64_t threads) {
  const int64_t panels = (p.outs + kPanel - 1) / kPanel, tiles = (p.rows + kRowTile - 1) / kRowTile;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < panels * tiles; ++i) {
    const int64_t panel = i % panels, end = std::min(p.rows, (i / panels + 1) * kRowTile);
    const W* w = static_cast<const W*>(p.packed) + panel * p.in * kPanel;
    int64_t row = i / panels * kRowTile;
    for (; row + 6 <= end; row += 6) micro<6>(p, row, w, panel * kPanel);
    if (end - row >= 4) micro<4>(p, row, w, panel * kPanel), row += 4;
    if (end - row >= 2) micro<2>(p, row, w, panel * kPanel), row += 2;
    if (end - row >= 1) micro<1>(p, row, w, panel * kPanel);
  }
}

}  // namespace

extern "C" void hc_linear(const Args* p, int64_t threads) {
  p->dtype == F32 ? run<float>(*p, threads) : run<uint16_t>(*p, threads);
}
extern "C" int64_t hc_panel() { return kPanel; }
