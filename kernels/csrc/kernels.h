// Kernels that others call, and their arguments. Every kernel takes its structure, the batch (null where it
// needs none) and the number of threads, so that a recording can hold any of them.
#pragma once
#include "storage.h"

namespace hc {

enum Function : int64_t { SILU, SIGMOID, SOFTPLUS, GELU, GELU_TANH, RELU2 };

// A packed weight.
struct Weight {
  void* packed;
  const float* bias;  // [outs padded to whole panels]
  int64_t in, outs, dtype;
};
struct LinearArgs {
  const Weight* weight;
  Rows x, out;
  int64_t rows;
};
struct MapArgs {
  Rows x, factor, out;
  int64_t rows, width, function;
};

}  // namespace hc

extern "C" void hc_linear(const hc::LinearArgs* args, const hc::Batch*, int64_t threads);
extern "C" void hc_map(const hc::MapArgs* args, const hc::Batch*, int64_t threads);
