// Products of few rows with a matrix in panels, each element one chain of multiply-adds.
#pragma once
#include "vec.h"

namespace hc {

constexpr int64_t kPanel = 2 * VL;  // columns of a panel: [depth, kPanel], panel after panel

// A matrix [depth, columns] whose columns lie in panels of kPanel; `row`: floats from one row to the next.
struct Panels {
  const float* data;
  int64_t row, panel;
};

// c[r, columns of P panels] += sum over i of a[r, i] b[i, columns], i ascending. Inlined into a larger function
// its sums would not stay in registers.
template <int R, int P>
[[gnu::noinline]] void micro(const float* a, int64_t lda, Panels b, int64_t depth, float* c, int64_t ldc) {
  vf sum[R][2 * P];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2 * P; ++v) sum[r][v] = load(c + r * ldc + v * VL);
  for (int64_t i = 0; i < depth; ++i) {
    vf w[2 * P];
    for (int v = 0; v < 2 * P; ++v) w[v] = load(b.data + v / 2 * b.panel + i * b.row + v % 2 * VL);
    for (int r = 0; r < R; ++r) {
      const vf x = splat(a[r * lda + i]);
      for (int v = 0; v < 2 * P; ++v) sum[r][v] = fma(x, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2 * P; ++v) store(c + r * ldc + v * VL, sum[r][v]);
}
inline void multiply(const float* a, int64_t lda, Panels b, int64_t depth, float* c, int64_t ldc, int64_t rows,
              int64_t columns) {
  const int64_t panels = columns / kPanel;
  const auto at = [&](int64_t j) { return Panels{b.data + j * b.panel, b.row, b.panel}; };
  int64_t r = rows - rows % 6;
  for (int64_t j = 0; j < panels; ++j)
    for (int64_t i = 0; i < r; i += 6) micro<6, 1>(a + i * lda, lda, at(j), depth, c + i * ldc + j * kPanel, ldc);
  for (; r + 2 <= rows; r += 2) {  // few rows: more columns at once hide the latency of a sum
    int64_t j = 0;
    for (; j + 2 <= panels; j += 2) micro<2, 2>(a + r * lda, lda, at(j), depth, c + r * ldc + j * kPanel, ldc);
    if (j < panels) micro<2, 1>(a + r * lda, lda, at(j), depth, c + r * ldc + j * kPanel, ldc);
  }
  if (r < rows) {
    int64_t j = 0;
    for (; j + 4 <= panels; j += 4) micro<1, 4>(a + r * lda, lda, at(j), depth, c + r * ldc + j * kPanel, ldc);
    for (; j < panels; ++j) micro<1, 1>(a + r * lda, lda, at(j), depth, c + r * ldc + j * kPanel, ldc);
  }
}

}  // namespace hc
