// Work on rows: norms, activations, softmax, largest elements, rotary positions.
#include <cmath>

#include "kernels.h"

namespace {
using namespace hc;

template <class F>
void each_row(int64_t rows, int64_t threads, F run) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) run(r);
}

template <class F>
void map(const Rows& x, const Rows& factor, const Rows& out, int64_t rows, int64_t width, int64_t threads, F f) {
  each_row(rows, threads, [&](int64_t r) {
    for (int64_t i = 0; i < width; i += VL) {
      vf y = f(load_upto(x.row(r) + i, width - i));
      if (factor.data) y = y * load_upto(factor.row(r) + i, width - i);
      store_upto(out.row(r) + i, y, width - i);
    }
  });
}

}  // namespace

extern "C" void hc_map(const MapArgs* p, const Batch*, int64_t threads) {
  const auto run = [&](auto f) { map(p->x, p->factor, p->out, p->rows, p->width, threads, f); };
  switch (p->function) {
    case SILU: return run([](vf v) { return silu(v); });
    case SIGMOID: return run([](vf v) { return sigmoid(v); });
    case SOFTPLUS: return run([](vf v) { return softplus(v); });
    case GELU: return run([](vf v) { return gelu(v); });
    case GELU_TANH: return run([](vf v) { return gelu_tanh(v); });
    case RELU2: return run([](vf v) { return at_least(v, 0.f) * at_least(v, 0.f); });
  }
}

struct NormArgs {
  Rows x, gate, out;
  const float* weight;
  int64_t rows, width, groups, gate_first;
  float eps, offset;
};
extern "C" void hc_rms_norm(const NormArgs* args, const Batch*, int64_t threads) {
  const NormArgs& p = *args;
  const int64_t part = p.width / p.groups;
  each_row(p.rows, threads, [&](int64_t r) {
    for (int64_t g = 0; g < p.groups; ++g) {
      const float* x = p.x.row(r) + g * part;
      const float* gate = p.gate.data ? p.gate.row(r) + g * part : nullptr;
      float* out = p.out.row(r) + g * part;
      const auto value = [&](int64_t i) {
        const vf v = load_upto(x + i, part - i);
        return gate && p.gate_first ? v * silu(load_upto(gate + i, part - i)) : v;
      };
      vf sum{};
      for (int64_t i = 0; i < part; i += VL) {
        const vf v = value(i);
        sum = fma(v, v, sum);
        store_upto(out + i, v, part - i);
      }
      const float scale = 1.f / std::sqrt(sum_lanes(sum) / static_cast<float>(part) + p.eps);
      for (int64_t i = 0; i < part; i += VL) {
        vf v = load_upto(out + i, part - i) * scale;
        if (p.weight) v = v * (load_upto(p.weight + g * part + i, part - i) + p.offset);
        if (gate && !p.gate_first) v = v * silu(load_upto(gate + i, part - i));
        store_upto(out + i, v, part - i);
      }
    }
  });
}

struct AddArgs {
  Rows x, y, out;
  int64_t rows, width;
  float factor;
};
// out = x + factor y.
extern "C" void hc_add(const AddArgs* args, const Batch*, int64_t threads) {
  const AddArgs& p = *args;
  each_row(p.rows, threads, [&](int64_t r) {
    for (int64_t i = 0; i < p.width; i += VL) {
      const vf x = load_upto(p.x.row(r) + i, p.width - i), y = load_upto(p.y.row(r) + i, p.width - i);
      store_upto(p.out.row(r) + i, x + y * p.factor, p.width - i);
    }
  });
}

struct SoftmaxArgs {
  Rows x, out;
  int64_t rows, width;
};
extern "C" void hc_softmax(const SoftmaxArgs* args, const Batch*, int64_t threads) {
  const SoftmaxArgs& p = *args;
  each_row(p.rows, threads, [&](int64_t r) {
    const float* x = p.x.row(r);
    float* out = p.out.row(r);
    const float top = *std::max_element(x, x + p.width);
    vf sum{};
    for (int64_t i = 0; i < p.width; i += VL) {
      store_upto(out + i, exp(load_upto(x + i, p.width - i) - top), p.width - i);
      sum = sum + load_upto(out + i, p.width - i);
    }
    const float total = sum_lanes(sum);
    for (int64_t i = 0; i < p.width; i += VL)
      store_upto(out + i, load_upto(out + i, p.width - i) / total, p.width - i);
  });
}

struct TopKArgs {
  Rows x, values;
  int64_t* indices;  // [rows, k]
  int64_t rows, width, k;
};
// Descending; of equal elements the lower index first. NaN counts as the largest.
extern "C" void hc_top_k(const TopKArgs* args, const Batch*, int64_t threads) {
  const TopKArgs& p = *args;
  const auto before = [](float a, float b) { return a > b || (a != a && b == b); };
  each_row(p.rows, threads, [&](int64_t r) {
    const float* x = p.x.row(r);
    float* values = p.values.row(r);
    int64_t *indices = p.indices + r * p.k, n = 0;
    for (int64_t i = 0; i < p.width; ++i) {
      if (n == p.k && !before(x[i], values[n - 1])) continue;
      int64_t j = n < p.k ? n++ : n - 1;
      for (; j > 0 && before(x[i], values[j - 1]); --j) values[j] = values[j - 1], indices[j] = indices[j - 1];
      values[j] = x[i];
      indices[j] = i;
    }
  });
}

struct RopeTableArgs {
  const int64_t* positions;
  const float* inv_freq;
  float *cos, *sin;  // [rows, width]
  int64_t rows, width;
  float scaling;
};
extern "C" void hc_rope_table(const RopeTableArgs* args, const Batch*, int64_t threads) {
  const RopeTableArgs& p = *args;
  each_row(p.rows, threads, [&](int64_t r) {
    for (int64_t i = 0; i < p.width; ++i) {
      const double angle = static_cast<float>(p.positions[r]) * p.inv_freq[i];
      p.cos[r * p.width + i] = static_cast<float>(std::cos(angle)) * p.scaling;
      p.sin[r * p.width + i] = static_cast<float>(std::sin(angle)) * p.scaling;
    }
  });
}

struct RopeArgs {
  Rows x, out;
  const float *cos, *sin;  // [rows, pairs]
  int64_t rows, heads, head_dim, pairs;
};
extern "C" void hc_rope(const RopeArgs* args, const Batch*, int64_t threads) {
  const RopeArgs& p = *args;
  each_row(p.rows, threads, [&](int64_t r) {
    const float *cos = p.cos + r * p.pairs, *sin = p.sin + r * p.pairs;
    for (int64_t h = 0; h < p.heads; ++h) {
      const float *a = p.x.row(r) + h * p.head_dim, *b = a + p.pairs;
      float* out = p.out.row(r) + h * p.head_dim;
      for (int64_t i = 0; i < p.pairs; ++i) {
        out[i] = a[i] * cos[i] - b[i] * sin[i];
        out[i + p.pairs] = b[i] * cos[i] + a[i] * sin[i];
      }
      std::memcpy(out + 2 * p.pairs, a + 2 * p.pairs, (p.head_dim - 2 * p.pairs) * 4);
    }
  });
}
