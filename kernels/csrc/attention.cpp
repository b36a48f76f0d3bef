// Causal attention over paged KV with an online softmax over blocks of 64 keys that start at multiples of 64.
//
// One item is (sequence, up to 96 rows of a KV head, some heads); a row is one query head at one token. An item
// takes all its heads of a block of keys before the next block, since they lie side by side. Scores and outputs are
// sums over the head's dimensions and over the keys in ascending order, one chain per element, so that a row does
// not depend on its tile.
#include <utility>
#include <vector>

#include "few_rows.h"
#include "panels.h"

namespace {
using namespace hc;
using namespace hc::attention;

constexpr int64_t kTileRows = 96;  // a multiple of the 6 rows of a micro-tile
constexpr int64_t kHeld = 32768;   // floats of all queries of an item: a second level cache holds them
constexpr float kMasked = -1e30f;

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

// Keys [first, first + count) transposed to panels [key / kPanel][d][kPanel]; keys that are not there are zero. Each
// square of VL keys asks for so many lines ahead.
void fetch_keys(const Past& past, Scratch& w, int64_t first, int64_t count, Ahead& ahead, int lines) {
  const Args& p = past.p;
  const bool plain = past.plain(p.keys);
  for (int64_t j = 0; j < kKeys; j += VL) {
    const int64_t there = std::clamp<int64_t>(count - j, 0, VL);
    const float* from = w.page.data();
    int64_t row = w.padded;
    if (plain && there)
      from = reinterpret_cast<const float*>(past.at(p.keys, first + j)), row = past.row();
    else
      for (int64_t i = 0; i < there; ++i)
        read(&w.page[i * w.padded], past.at(p.keys, first + j + i), p.keys.dtype, p.head_dim);
    for (int64_t d = 0; d < p.head_dim; d += VL) {
      ahead.lines(lines);
      transpose(from + d, row, there, &w.keys[j / kPanel * kPanel * w.padded + d * kPanel + j % kPanel], kPanel);
    }
  }
}

// Whether the values of the keys [first, first + count) are finite: 0 times one that is not is NaN.
bool finite(const Past& past, Scratch& w, int64_t first, int64_t count) {
  const Args& p = past.p;
  const bool plain = past.plain(p.values);
  vf sum{};
  for (int64_t j = 0; j < count; ++j) {
    const char* at = past.at(p.values, first + j);
    if (!plain) read(w.row.data(), at, p.values.dtype, p.head_dim);
    const float* value = plain ? reinterpret_cast<const float*>(at) : w.row.data();
    for (int64_t d = 0; d < w.padded; d += VL) sum = fma(load(value + d), vf{}, sum);
  }
  return sum_lanes(sum) == 0.f;
}

// sums[r, :] += weights[r, keys] values[keys, :] over the keys [first, first + count).
void add_values(const Past& past, Scratch& w, const float* weights, float* sums, int64_t rows, int64_t first,
                int64_t count, Ahead& ahead) {
  const Args& p = past.p;
  if (rows <= kFewForValues && past.plain(p.values)) {
    few_values(rows, past, weights, sums, w.padded, first, count, ahead);
    return;
  }
  const bool plain = past.plain(p.values);
  for (int64_t j = 0; j < count; ++j) {
    const char* at = past.at(p.values, first + j);
    if (!plain) read(w.row.data(), at, p.values.dtype, p.head_dim);
    const float* value = plain ? reinterpret_cast<const float*>(at) : w.row.data();
    for (int64_t d = 0; d < w.padded; d += kPanel)
      std::memcpy(&w.values[d * kKeys + j * kPanel], value + d, kPanel * 4);
  }
  multiply(weights, kKeys, {w.values.data(), kPanel, kKeys * kPanel}, count, sums, w.padded, rows, w.padded);
}

// Scores of one row to weights: keys [low, high) of the block are seen, or all where kAll says so. Scales the row's
// sums to the new maximum.
template <bool kAll>
void soften(const Args& p, float* scores, float* sums, int64_t padded, float& top, float& total, int64_t low,
            int64_t high) {
  vi lane;
  for (int i = 0; i < VL; ++i) lane[i] = i;
  vf best = splat(kMasked);
  for (int64_t j = 0; j < kKeys; j += VL) {
    vf x = load(scores + j);
    if (p.soft_cap > 0.f) x = p.soft_cap * tanh(x / p.soft_cap);
    const vi at = lane + static_cast<int32_t>(j);
    if (!kAll) x = (at >= static_cast<int32_t>(low)) & (at < static_cast<int32_t>(high)) ? x : splat(kMasked);
    if (!kAll || p.soft_cap > 0.f) store(scores + j, x);
    best = larger(x, best);
  }
  const float peak = max_lanes(best), new_top = peak > top ? peak : top;
  const vf keep = exp(splat(top - new_top));
  vf sum{};
  for (int64_t j = 0; j < kKeys; j += VL) {
    const vf x = load(scores + j), e = exp(x - new_top), seen = kAll ? e : x == kMasked ? vf{} : e;
    store(scores + j, seen);
    sum = sum + seen;
  }
  total = total * keep[0] + sum_lanes(sum);
  if (top != new_top)
    for (int64_t d = 0; d < padded; d += VL) store(sums + d, load(sums + d) * keep + 0.f);
  top = new_top;
}

// One key block of one head for rows [at, at + rows) of the scratch.
void block(const Past& past, Scratch& w, int64_t at, int64_t rows, int64_t position, int64_t first,
           Ahead& ahead) {
  const Args& p = past.p;
  const int64_t group = p.heads / p.kv_heads, count = std::min(kKeys, past.stop - first);
  const float* q = &w.q[at * w.padded];
  if (rows <= kFewForScores && past.plain(p.keys)) {
    few_scores(rows, past, q, w.padded, first, count, w.scores.data(), ahead);
  } else {
    fetch_keys(past, w, first, count, ahead, rows <= kFewForValues ? 2 : 4);
    std::fill_n(w.scores.begin(), rows * kKeys, 0.f);
    multiply(q, w.padded, {w.keys.data(), kPanel, w.padded * kPanel}, p.head_dim, w.scores.data(), kKeys, rows, kKeys);
  }
  const auto seen_by = [&](int64_t r) -> std::pair<int64_t, int64_t> {  // of the block's keys
    const int64_t own = position + r / group - first, oldest = p.window ? own - p.window + 1 : 0;
    return {std::clamp<int64_t>(oldest, 0, kKeys), std::clamp<int64_t>(own + 1, 0, kKeys)};
  };
  bool alike = true;
  for (int64_t r = 0; r < rows; ++r) {
    const auto [low, high] = seen_by(r);
    const int64_t row = at + r;
    const auto run = high - low == kKeys ? soften<true> : soften<false>;
    run(p, &w.scores[r * kKeys], &w.sums[row * w.padded], w.padded, w.top[row], w.total[row], low, high);
    alike &= high - low >= count;
  }
  float* sums = &w.sums[at * w.padded];
  if (alike || finite(past, w, first, count)) {
    add_values(past, w, w.scores.data(), sums, rows, first, count, ahead);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const auto [low, high] = seen_by(r);
    add_values(past, w, &w.scores[r * kKeys + low], sums + r * w.padded, 1, first + low, high - low, ahead);
  }
}

void item(const Args& p, const Batch& batch, Scratch& w, int64_t s, int64_t head, int64_t heads, int64_t t0,
          int64_t tokens) {
  const int64_t group = p.heads / p.kv_heads, rows = tokens * group, width = p.head_dim;
  const int64_t position = batch.num_computed[s] + t0 - batch.cu_seqlens[s];  // of the first token
  // Row r of head h of the item, and where its query and its output lie in a token's row.
  const auto each = [&](auto run) {
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < rows; ++r) run(h * rows + r, t0 + r / group, ((head + h) * group + r % group) * width);
  };
  each([&](int64_t row, int64_t t, int64_t column) {
    for (int64_t d = 0; d < width; ++d) w.q[row * w.padded + d] = p.q.row(t)[column + d] * p.scale;
    w.top[row] = kMasked;
    w.total[row] = 0.f;
  });
  std::fill_n(w.sums.begin(), heads * rows * w.padded, 0.f);
  const int64_t oldest = p.window ? std::max<int64_t>(0, position - p.window + 1) : 0, stop = position + tokens;
  const auto past = [&](int64_t h) {
    return Past{p, batch, batch.block_tables + s * batch.max_blocks, head + h, stop};
  };
  const Past head0 = past(0);
  Ahead ahead(head0, heads);
  for (int64_t first = oldest / kKeys * kKeys; first < stop; first += kKeys)
    for (int64_t h = 0; h < heads; ++h) {
      // A part of the next block of keys while a head is at this one.
      ahead.go(first + kKeys + kKeys * h / heads, first + kKeys + kKeys * (h + 1) / heads);
      block(past(h), w, h * rows, rows, position, first, ahead);
    }
  each([&](int64_t row, int64_t t, int64_t column) {
    for (int64_t d = 0; d < width; ++d)
      p.out.row(t)[column + d] = w.sums[row * w.padded + d] / w.total[row];
  });
}

}  // namespace

extern "C" void hc_paged_attention(const Args* args, const Batch* batch, int64_t threads) {
  const Args& p = *args;
  const int64_t group = p.heads / p.kv_heads, tokens = std::max<int64_t>(1, kTileRows / group);
  struct Tile {
    int64_t s, begin, count, head, heads;
  };
  int64_t spans = 0;
  for (int64_t s = 0; s < batch->num_sequences; ++s)
    spans += (batch->cu_seqlens[s + 1] - batch->cu_seqlens[s] + tokens - 1) / tokens;
  const int64_t most = std::max(std::max(kTileRows, tokens * group), kHeld / round_up(p.head_dim, kPanel));
  // As many heads at once as there are rows for, but enough items for all threads.
  const int64_t share = std::max<int64_t>(1, p.kv_heads * spans / threads);
  std::vector<Tile> tiles;
  for (int64_t s = 0; s < batch->num_sequences; ++s)
    for (int64_t t = batch->cu_seqlens[s]; t < batch->cu_seqlens[s + 1]; t += tokens) {
      const int64_t count = std::min(tokens, batch->cu_seqlens[s + 1] - t);
      const int64_t heads = std::clamp<int64_t>(most / (count * group), 1, std::min(share, p.kv_heads));
      for (int64_t h = 0; h < p.kv_heads; h += heads)
        tiles.push_back({s, t, count, h, std::min(heads, p.kv_heads - h)});
    }
  const int64_t count = static_cast<int64_t>(tiles.size());
#pragma omp parallel num_threads(threads)
  {
    Scratch w(p.head_dim, most);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
      const Tile& tile = tiles[static_cast<size_t>(count - 1 - i)];  // the longest first
      item(p, *batch, w, tile.s, tile.head, tile.heads, tile.begin, tile.count);
    }
  }
}
