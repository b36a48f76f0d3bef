// Causal attention over paged KV with an online softmax over blocks of 64 keys that start at multiples of 64.
//
// One item is (sequence, KV head, up to 96 rows); a row is one query head at one token. The keys of a block are
// copied out of their pages, transposed, once per item. Scores and outputs are sums over the head's dimensions
// and over the keys in ascending order, one chain per element, so that a row does not depend on its tile.
#include <vector>

#include "storage.h"

namespace {
using namespace hc;

constexpr int64_t kKeys = 64, kTileRows = 96;  // a multiple of the 6 rows of a micro-tile
constexpr int64_t kPanel = 2 * VL;             // columns of a panel: [depth, kPanel], panel after panel
constexpr int64_t kAhead = 6;                  // keys fetched ahead
constexpr float kMasked = -1e30f;

struct Args {
  Rows q, out;
  Pool keys, values;
  int64_t heads, kv_heads, head_dim;
  float scale, soft_cap;  // soft_cap 0: none
  int64_t window;         // 0: all keys
};

struct Scratch {
  int64_t padded;  // head_dim in whole panels
  std::vector<float> q, keys, values, scores, sums, page, row, top, total;
  Scratch(int64_t head_dim, int64_t rows)
      : padded(round_up(head_dim, kPanel)),
        q(rows * padded),
        keys(padded * kKeys),
        values(kKeys * padded),
        scores(rows * kKeys),
        sums(rows * padded),
        page(kKeys * padded),
        row(padded),
        top(rows),
        total(rows) {}
};

// c[r, columns of P panels] += sum over i of a[r, i] b[i, columns], i ascending. Inlined into a larger function
// its sums would not stay in registers.
template <int R, int P>
[[gnu::noinline]] void micro(const float* a, int64_t lda, const float* b, int64_t depth, int64_t panel, float* c,
                  int64_t ldc) {
  vf sum[R][2 * P];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2 * P; ++v) sum[r][v] = load(c + r * ldc + v * VL);
  for (int64_t i = 0; i < depth; ++i) {
    vf w[2 * P];
    for (int v = 0; v < 2 * P; ++v) w[v] = load(b + v / 2 * panel + i * kPanel + v % 2 * VL);
    for (int r = 0; r < R; ++r) {
      const vf x = splat(a[r * lda + i]);
      for (int v = 0; v < 2 * P; ++v) sum[r][v] = fma(x, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2 * P; ++v) store(c + r * ldc + v * VL, sum[r][v]);
}
// `panel`: floats from one panel of b to the next; depth rows of each are used.
void multiply(const float* a, int64_t lda, const float* b, int64_t depth, int64_t panel, float* c, int64_t ldc,
              int64_t rows, int64_t columns) {
  const int64_t panels = columns / kPanel;
  int64_t r = rows - rows % 6;
  for (int64_t j = 0; j < panels; ++j)
    for (int64_t i = 0; i < r; i += 6)
      micro<6, 1>(a + i * lda, lda, b + j * panel, depth, panel, c + i * ldc + j * kPanel, ldc);
  for (; r + 2 <= rows; r += 2) {  // few rows: more columns at once hide the latency of a sum
    int64_t j = 0;
    for (; j + 2 <= panels; j += 2)
      micro<2, 2>(a + r * lda, lda, b + j * panel, depth, panel, c + r * ldc + j * kPanel, ldc);
    if (j < panels) micro<2, 1>(a + r * lda, lda, b + j * panel, depth, panel, c + r * ldc + j * kPanel, ldc);
  }
  if (r < rows) {
    int64_t j = 0;
    for (; j + 4 <= panels; j += 4)
      micro<1, 4>(a + r * lda, lda, b + j * panel, depth, panel, c + r * ldc + j * kPanel, ldc);
    for (; j < panels; ++j)
      micro<1, 1>(a + r * lda, lda, b + j * panel, depth, panel, c + r * ldc + j * kPanel, ldc);
  }
}

// Keys [first, first + count) of a sequence as panels: values [d / kPanel][key][kPanel], keys, transposed,
// [key / kPanel][d][kPanel]. Keys that are not there are zero; values that are not there are not read.
void fetch(const Args& p, const Batch& batch, Scratch& w, int64_t s, int64_t head, int64_t first, int64_t count) {
  const int64_t* table = batch.block_tables + s * batch.max_blocks;
  const auto place = [&](const Pool& pool, int64_t j) {
    const int64_t block = table[(first + j) / batch.block_size], offset = (first + j) % batch.block_size;
    return pool.entry(block, (offset * p.kv_heads + head) * p.head_dim);
  };
  // A head's keys lie one row of all heads apart, which the processor does not foresee.
  const auto foresee = [&](const Pool& pool, int64_t j) {
    const char* at = place(pool, j);
    for (int64_t i = 0; i < p.head_dim * size_of(pool.dtype); i += 64) __builtin_prefetch(at + i);
  };
  for (int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count) foresee(p.keys, j + kAhead), foresee(p.values, j + kAhead);
    float *row = &w.page[j * w.padded], *value = w.row.data();
    read(row, place(p.keys, j), p.keys.dtype, p.head_dim);
    read(value, place(p.values, j), p.values.dtype, p.head_dim);
    for (int64_t d = 0; d < w.padded; d += kPanel) std::memcpy(&w.values[d * kKeys + j * kPanel], value + d, kPanel * 4);
  }
  for (int64_t j = 0; j < kKeys; j += VL)
    for (int64_t d = 0; d < p.head_dim; d += VL)
      transpose(&w.page[j * w.padded + d], w.padded, std::clamp<int64_t>(count - j, 0, VL),
                &w.keys[j / kPanel * kPanel * w.padded + d * kPanel + j % kPanel], kPanel);
}

// Scores of one row to weights: keys [low, high) of the block are seen. Scales the row's sums to the new maximum.
void soften(const Args& p, float* scores, float* sums, int64_t padded, float& top, float& total, int64_t low,
            int64_t high) {
  vi lane;
  for (int i = 0; i < VL; ++i) lane[i] = i;
  vf best = splat(kMasked);
  for (int64_t j = 0; j < kKeys; j += VL) {
    vf x = load(scores + j);
    if (p.soft_cap > 0.f) x = p.soft_cap * tanh(x / p.soft_cap);
    const vi at = lane + static_cast<int32_t>(j);
    x = (at >= static_cast<int32_t>(low)) & (at < static_cast<int32_t>(high)) ? x : splat(kMasked);
    store(scores + j, x);
    best = larger(x, best);
  }
  const float peak = max_lanes(best), new_top = peak > top ? peak : top;
  const vf keep = exp(splat(top - new_top));
  vf sum{};
  for (int64_t j = 0; j < kKeys; j += VL) {
    const vf x = load(scores + j), e = x == kMasked ? vf{} : exp(x - new_top);
    store(scores + j, e);
    sum = sum + e;
  }
  total = total * keep[0] + sum_lanes(sum);
  if (top != new_top)
    for (int64_t d = 0; d < padded; d += VL) store(sums + d, load(sums + d) * keep + 0.f);
  top = new_top;
}

void item(const Args& p, const Batch& batch, Scratch& w, int64_t s, int64_t head, int64_t t0, int64_t tokens) {
  const int64_t group = p.heads / p.kv_heads, rows = tokens * group, width = p.head_dim;
  const int64_t position = batch.num_computed[s] + t0 - batch.cu_seqlens[s];  // of the first token
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = p.q.row(t0 + r / group) + (head * group + r % group) * width;
    for (int64_t d = 0; d < width; ++d) w.q[r * w.padded + d] = from[d] * p.scale;
    w.top[r] = kMasked;
    w.total[r] = 0.f;
  }
  std::fill_n(w.sums.begin(), rows * w.padded, 0.f);
  const int64_t oldest = p.window ? std::max<int64_t>(0, position - p.window + 1) : 0, stop = position + tokens;
  for (int64_t first = oldest / kKeys * kKeys; first < stop; first += kKeys) {
    const int64_t count = std::min(kKeys, stop - first);
    fetch(p, batch, w, s, head, first, count);
    std::fill_n(w.scores.begin(), rows * kKeys, 0.f);
    multiply(w.q.data(), w.padded, w.keys.data(), width, w.padded * kPanel, w.scores.data(), kKeys, rows, kKeys);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t own = position + r / group;
      const int64_t low = p.window ? std::clamp<int64_t>(own - p.window + 1 - first, 0, kKeys) : 0;
      const int64_t high = std::clamp<int64_t>(own + 1 - first, 0, kKeys);
      soften(p, &w.scores[r * kKeys], &w.sums[r * w.padded], w.padded, w.top[r], w.total[r], low, high);
    }
    multiply(w.scores.data(), kKeys, w.values.data(), count, kKeys * kPanel, w.sums.data(), w.padded, rows,
             w.padded);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* to = p.out.row(t0 + r / group) + (head * group + r % group) * width;
    for (int64_t d = 0; d < width; ++d) to[d] = w.sums[r * w.padded + d] / w.total[r];
  }
}

}  // namespace

extern "C" void hc_paged_attention(const Args* args, const Batch* batch, int64_t threads) {
  const Args& p = *args;
  const int64_t group = p.heads / p.kv_heads, tokens = std::max<int64_t>(1, kTileRows / group);
  struct Tile {
    int64_t s, begin, count;
  };
  std::vector<Tile> tiles;
  for (int64_t s = 0; s < batch->num_sequences; ++s)
    for (int64_t t = batch->cu_seqlens[s]; t < batch->cu_seqlens[s + 1]; t += tokens)
      tiles.push_back({s, t, std::min(tokens, batch->cu_seqlens[s + 1] - t)});
  const int64_t count = static_cast<int64_t>(tiles.size());
#pragma omp parallel num_threads(threads)
  {
    Scratch w(p.head_dim, tokens * group);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count * p.kv_heads; ++i) {
      const Tile& tile = tiles[static_cast<size_t>(count - 1 - i / p.kv_heads)];  // the longest first
      item(p, *batch, w, tile.s, i % p.kv_heads, tile.begin, tile.count);
    }
  }
}

struct StoreArgs {
  Rows k, v;
  Pool keys, values;
  int64_t kv_heads, head_dim;
};

extern "C" void hc_store_kv(const StoreArgs* args, const Batch* batch) {
  const StoreArgs& p = *args;
  const int64_t width = p.kv_heads * p.head_dim;
  for (int64_t t = 0; t < batch->num_tokens; ++t) {
    const int64_t place = batch->slot_mapping[t];
    if (place < 0) continue;
    const int64_t block = place / batch->block_size, element = place % batch->block_size * width;
    write(p.keys.entry(block, element), p.k.row(t), p.keys.dtype, width);
    write(p.values.entry(block, element), p.v.row(t), p.values.dtype, width);
  }
}
