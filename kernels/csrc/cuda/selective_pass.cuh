// Mamba-1 by chunks, the middle of three passes: from what each chunk makes of a zero state to the state in front of it.
// The first pass is selective_scan over chunks with `totals`, the last selective_scan from the states found here.
#include "device.cuh"

namespace hc {

struct SelectivePassArgs {
  const float* a;       // [channels, d_state]
  const float* totals;  // [chunks, channels]: sums of the steps d
  float* states;        // [chunks, channels, d_state]: in, behind a chunk that starts from zero; out, in front of it
  Pool initial, state;  // as selective_scan's
  int64_t channels, d_state;
};

constexpr int kPassThreads = 256;

// One element of the state of one sequence; batch.first and the store counts are in chunks.
__global__ void __launch_bounds__(kPassThreads) selective_pass(SelectivePassArgs p, Batch batch) {
  const int64_t elements = p.channels * p.d_state, e = static_cast<int64_t>(blockIdx.x) * kPassThreads + threadIdx.x;
  const int s = blockIdx.y;
  if (e >= elements) return;
  const int64_t first = batch.first[s], stop = batch.first[s + 1], channel = e / p.d_state;
  const float a = p.a[e] * kLog2e;
  float h = 0.f;
  if (batch.source[s] >= 0) h = load_element(entry(p.initial, batch.source[s], e), p.initial.dtype);
  Stores stores(batch, s);
  float next = first < stop ? p.states[first * elements + e] : 0.f;
  for (int64_t chunk = first; chunk < stop; ++chunk) {
    const float made = next;
    if (chunk + 1 < stop) next = p.states[(chunk + 1) * elements + e];  // on its way while this one is used
    p.states[chunk * elements + e] = h;
    h = fmaf(exp2_approx(a * p.totals[chunk * p.channels + channel]), h, made);
    while (stores.count() == chunk - first + 1) store_element(entry(p.state, stores.take(), e), p.state.dtype, h);
  }
}

HC_SHAPE(kPassThreads, 0, kPassThreads)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_selective_pass(const hc::SelectivePassArgs* p, const hc::Batch* batch, void* stream) {
  using namespace hc;
  const dim3 grid(ceil_div(p->channels * p->d_state, hc_shape[2]), batch->num_sequences);
  return HC_LAUNCH(selective_pass, grid, dim3(hc_shape[0]), hc_shape[1], stream, *p, *batch);
}
#endif
