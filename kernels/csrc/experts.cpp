// Mixture of experts: each token's rows go through the experts it chose, and its parts are added in the order of
// the experts' numbers. An expert takes all of its tokens together, so that its weights are read once.
#include <vector>

#include "kernels.h"

namespace {
using namespace hc;

struct Args {
  Rows x, out;
  const float* shares;     // [tokens, top_k]
  const int64_t* chosen;   // [tokens, top_k]
  const Weight* const* experts;  // [num_experts, 2]: into, out
  int64_t tokens, top_k, num_experts, width, function, gated;
};

}  // namespace

extern "C" void hc_experts(const Args* args, const Batch*, int64_t threads) {
  const Args& p = *args;
  struct Place {
    int64_t token;
    float share;
  };
  std::vector<std::vector<Place>> places(static_cast<size_t>(p.num_experts));
  for (int64_t i = 0; i < p.tokens * p.top_k; ++i) places[p.chosen[i]].push_back({i / p.top_k, p.shares[i]});
  std::vector<float> x, inner, y;
  for (int64_t t = 0; t < p.tokens; ++t) std::fill_n(p.out.row(t), p.width, 0.f);
  for (int64_t e = 0; e < p.num_experts; ++e) {
    const std::vector<Place>& mine = places[e];
    const int64_t rows = static_cast<int64_t>(mine.size());
    if (!rows) continue;
    const Weight &into = *p.experts[2 * e], &out = *p.experts[2 * e + 1];
    x.resize(rows * p.width), inner.resize(rows * into.outs), y.resize(rows * p.width);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(&x[r * p.width], p.x.row(mine[r].token), p.width * 4);
    const LinearArgs first{&into, {x.data(), p.width}, {inner.data(), into.outs}, rows};
    hc_linear(&first, nullptr, threads);
    // The result of the activation takes the gate's place.
    const Rows gate{inner.data(), into.outs}, up{inner.data() + out.in, into.outs};
    const MapArgs map{gate, p.gated ? up : Rows{nullptr, 0}, gate, rows, out.in, p.function};
    hc_map(&map, nullptr, threads);
    const LinearArgs second{&out, gate, {y.data(), p.width}, rows};
    hc_linear(&second, nullptr, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {  // a token chooses an expert once
      float *to = p.out.row(mine[r].token), *part = &y[r * p.width];
      for (int64_t i = 0; i < p.width; i += VL) {
        const int64_t n = p.width - i;
        store_upto(to + i, load_upto(to + i, n) + load_upto(part + i, n) * mine[r].share, n);
      }
    }
  }
}
