// Gated delta rule in recurrent form: one item is (sequence, value head, 32 columns of its state [K, V]).
// Lanes run along the columns, which do not depend on each other.
#include <cmath>
#include <vector>

#include "storage.h"

namespace {
using namespace hc;

constexpr int64_t kVectors = 32 / VL, kColumns = kVectors * VL;

struct Args {
  Rows q, k, v, log_decay, beta, out;
  Pool state;
  int64_t key_heads, value_heads, key_dim, value_dim;
  float scale;
  int64_t l2norm;
};

struct Scratch {
  std::vector<float> state, q, k;
  explicit Scratch(int64_t key_dim)
      : state(round_up(key_dim, 2) * kColumns), q(round_up(key_dim, VL)), k(round_up(key_dim, VL)) {}
};

float inverse_norm(const float* x, int64_t padded) {
  vf sum{};
  for (int64_t i = 0; i < padded; i += VL) sum = fma(load(x + i), load(x + i), sum);
  return 1.f / std::sqrt(sum_lanes(sum) + 1e-6f);
}
void scale_by(float* x, int64_t padded, float factor) {
  for (int64_t i = 0; i < padded; i += VL) store(x + i, load(x + i) * factor);
}

// One token. Rows of the state are taken in pairs, with a sum for each: an odd key_dim has a zero row behind.
void token(const Args& p, Scratch& w, int64_t head, int64_t column, int64_t columns, int64_t t) {
  const int64_t key_head = head / (p.value_heads / p.key_heads), padded = static_cast<int64_t>(w.q.size());
  std::memcpy(w.q.data(), p.q.row(t) + key_head * p.key_dim, p.key_dim * 4);
  std::memcpy(w.k.data(), p.k.row(t) + key_head * p.key_dim, p.key_dim * 4);
  for (std::vector<float>* x : {&w.q, &w.k}) std::fill(x->begin() + p.key_dim, x->end(), 0.f);  // norms were NaN
  if (p.l2norm) {
    scale_by(w.q.data(), padded, inverse_norm(w.q.data(), padded));
    scale_by(w.k.data(), padded, inverse_norm(w.k.data(), padded));
  }
  scale_by(w.q.data(), padded, p.scale);
  const float decay = exp(splat(p.log_decay.row(t)[head]))[0], beta = p.beta.row(t)[head];
  vf sum[2][kVectors] = {};
  for (int64_t k = 0; k < p.key_dim; k += 2)
    for (int64_t j = 0; j < 2; ++j)
      for (int64_t i = 0; i < kVectors; ++i) {
        float* s = &w.state[(k + j) * kColumns + i * VL];
        const vf h = load(s) * decay;
        store(s, h);
        sum[j][i] = fma(h, splat(w.k[k + j]), sum[j][i]);
      }
  const float* v = p.v.row(t) + head * p.value_dim + column;
  vf delta[kVectors], y[2][kVectors] = {};
  for (int64_t i = 0; i < kVectors; ++i)
    delta[i] = columns > i * VL ? (load_upto(v + i * VL, columns - i * VL) - (sum[0][i] + sum[1][i])) * beta : vf{};
  for (int64_t k = 0; k < p.key_dim; k += 2)
    for (int64_t j = 0; j < 2; ++j)
      for (int64_t i = 0; i < kVectors; ++i) {
        float* s = &w.state[(k + j) * kColumns + i * VL];
        const vf h = fma(delta[i], splat(w.k[k + j]), load(s));
        store(s, h);
        y[j][i] = fma(h, splat(w.q[k + j]), y[j][i]);
      }
  float* out = p.out.row(t) + head * p.value_dim + column;
  for (int64_t i = 0; i < kVectors; ++i)
    if (columns > i * VL) store_upto(out + i * VL, y[0][i] + y[1][i], columns - i * VL);
}

void item(const Args& p, const Batch& batch, Scratch& w, int64_t s, int64_t head, int64_t column) {
  const int64_t columns = std::min(kColumns, p.value_dim - column);
  const int64_t first = head * p.key_dim * p.value_dim + column;
  std::fill(w.state.begin(), w.state.end(), 0.f);
  if (batch.has_state[s])
    for (int64_t k = 0; k < p.key_dim; ++k)
      read(&w.state[k * kColumns], p.state.entry(batch.slots[s], first + k * p.value_dim), p.state.dtype, columns);
  stretches(
      batch, s,
      [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) token(p, w, head, column, columns, t);
      },
      [&](int64_t slot) {
        for (int64_t k = 0; k < p.key_dim; ++k)
          write(p.state.entry(slot, first + k * p.value_dim), &w.state[k * kColumns], p.state.dtype, columns);
      });
}

}  // namespace

extern "C" void hc_gated_delta_scan(const Args* args, const Batch* batch, int64_t threads) {
  const Args& p = *args;
  const int64_t blocks = (p.value_dim + kColumns - 1) / kColumns, per_sequence = p.value_heads * blocks;
#pragma omp parallel num_threads(threads)
  {
    Scratch w(p.key_dim);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < batch->num_sequences * per_sequence; ++i)
      item(p, *batch, w, i / per_sequence, i % per_sequence / blocks, i % blocks * kColumns);
  }
}
