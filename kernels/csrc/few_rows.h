// The keys and values that attention reads, and its products for a few rows, as in decoding: they come from memory
// once and go into registers as they lie, while the next ones are asked for at an even pace.
#pragma once
#include <utility>

#include "storage.h"

namespace hc::attention {

constexpr int64_t kKeys = 64;         // of a block
constexpr int64_t kFewForScores = 4;  // rows whose sums stay in registers beside a square of keys
constexpr int64_t kFewForValues = 8;  // rows for which values are not copied first

struct Args {
  Rows q, out;
  Pool keys, values;
  int64_t heads, kv_heads, head_dim;
  float scale, soft_cap;  // soft_cap 0: none
  int64_t window;         // 0: all keys
};

// The keys and values of one sequence and KV head.
struct Past {
  const Args& p;
  const Batch& batch;
  const int64_t* table;
  int64_t head, stop;  // stop: keys that there are

  struct Place {
    int64_t block, element;
  };
  Place place(int64_t key) const {  // in 32 bits: a division is what it costs
    const uint32_t k = static_cast<uint32_t>(key), size = static_cast<uint32_t>(batch.block_size);
    return {table[k / size], (k % size * p.kv_heads + head) * p.head_dim};
  }
  const char* at(const Pool& pool, int64_t key) const {
    const Place to = place(key);
    return pool.entry(to.block, to.element);
  }
  int64_t row() const { return p.kv_heads * p.head_dim; }  // elements from one key of a page to the next
  // Whether vectors of keys can be taken from their pages as they are.
  bool plain(const Pool& pool) const {
    return pool.dtype == F32 && batch.block_size % VL == 0 && p.head_dim % (2 * VL) == 0;
  }
};

// Asks for keys and values in the order in which they lie: of each key's heads [head, head + heads) all.
class Ahead {
 public:
  Ahead(const Past& first_head, int64_t heads)
      : past_(first_head),
        bytes_(heads * past_.p.head_dim * size_of(past_.p.keys.dtype)),
        whole_(heads == past_.p.kv_heads) {}
  // From here on those of the keys [from, to), as far as there are any.
  void go(int64_t from, int64_t to) { key_ = from, end_ = std::min(to, past_.stop), left_ = 0; }
  // The next `count` cache lines of keys, and as many of values.
  void lines(int count) {
    for (; count > 0; --count) {
      if (left_ <= 0 && !next_run()) return;
      __builtin_prefetch(keys_), __builtin_prefetch(values_);
      keys_ += 64, values_ += 64, left_ -= 64;
    }
  }

 private:
  bool next_run() {
    if (key_ >= end_) return false;
    const Past::Place to = past_.place(key_);
    keys_ = past_.p.keys.entry(to.block, to.element), values_ = past_.p.values.entry(to.block, to.element);
    const int64_t size = past_.batch.block_size, run = whole_ ? std::min(end_ - key_, size - key_ % size) : 1;
    key_ += run, left_ = run * bytes_;
    return true;
  }

  const Past& past_;
  int64_t bytes_;  // of a key, and as much of a value
  bool whole_;     // all heads: a page's keys lie one behind the other
  int64_t key_ = 0, end_ = 0, left_ = 0;
  const char *keys_ = nullptr, *values_ = nullptr;
};

// Calls run(an integral constant that is `rows`), 1 to kFewForScores.
template <class Run>
void with_rows(int64_t rows, Run run) {
  switch (rows) {
    case 1: return run(std::integral_constant<int, 1>{});
    case 2: return run(std::integral_constant<int, 2>{});
    case 3: return run(std::integral_constant<int, 3>{});
    default: return run(std::integral_constant<int, kFewForScores>{});
  }
}

template <int R>  // inlined into a larger function its sums would not stay in registers
[[gnu::noinline]] void scores_of(const Past& past, const float* q, int64_t ldq, int64_t first, int64_t count,
                                 float* scores, Ahead& ahead) {
  for (int64_t j = 0; j < kKeys; j += 2 * VL) {
    vf sum[R][2] = {};
    for (int64_t d = 0; d < past.p.head_dim; d += VL)
      for (int g = 0; g < 2; ++g) {
        const int64_t key = j + g * VL, there = std::clamp<int64_t>(count - key, 0, VL);
        const float* keys = reinterpret_cast<const float*>(past.at(past.p.keys, first + (there ? key : 0)));
        vf column[VL];
        transpose(keys + d, past.row(), there, reinterpret_cast<float*>(column), VL);
        for (int i = 0; i < VL; ++i)
          for (int r = 0; r < R; ++r) sum[r][g] = fma(splat(q[r * ldq + d + i]), column[i], sum[r][g]);
        ahead.lines(2);
      }
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < 2; ++g) store(scores + r * kKeys + j + g * VL, sum[r][g]);
  }
}

template <int R>
[[gnu::noinline]] void values_of(const Past& past, const float* weights, float* sums, int64_t lds, int64_t first,
                                 int64_t count, Ahead& ahead) {
  const int64_t size = past.batch.block_size;
  for (int64_t d = 0; d < past.p.head_dim; d += 2 * VL) {
    vf sum[R][2];
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < 2; ++i) sum[r][i] = load(sums + r * lds + d + i * VL);
    for (int64_t j = 0; j < count;) {
      const float* value = reinterpret_cast<const float*>(past.at(past.p.values, first + j)) + d;
      for (const int64_t end = j + std::min(count - j, size - (first + j) % size); j < end; ++j, value += past.row()) {
        const vf v0 = load(value), v1 = load(value + VL);
        for (int r = 0; r < R; ++r) {
          const vf weight = splat(weights[r * kKeys + j]);
          sum[r][0] = fma(weight, v0, sum[r][0]);
          sum[r][1] = fma(weight, v1, sum[r][1]);
        }
        if (j % 2 == 0) ahead.lines(1);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < 2; ++i) store(sums + r * lds + d + i * VL, sum[r][i]);
  }
}

// scores[r, key] = sum over d of q[r, d] keys[key, d] for the keys [first, first + count) of plain pages; behind
// them 0, up to kKeys.
inline void few_scores(int64_t rows, const Past& past, const float* q, int64_t ldq, int64_t first, int64_t count,
                       float* scores, Ahead& ahead) {
  with_rows(rows, [&](auto r) { scores_of<r>(past, q, ldq, first, count, scores, ahead); });
}
// sums[r, :] += weights[r, keys] values[keys, :] over them.
inline void few_values(int64_t rows, const Past& past, const float* weights, float* sums, int64_t lds,
                       int64_t first, int64_t count, Ahead& ahead) {
  for (int64_t at = 0; at < rows; at += kFewForScores)
    with_rows(rows - at, [&](auto r) {
      values_of<r>(past, weights + at * kKeys, sums + at * lds, lds, first, count, ahead);
    });
}

}  // namespace hc::attention
