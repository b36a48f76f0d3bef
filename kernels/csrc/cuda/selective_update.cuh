// Mamba-1 for sequences of one token at most: decoding. A thread has a few states of one channel; nothing is shared
// and nothing waits, so that many states are on their way from memory at once.
#include "selective_step.cuh"

namespace hc {

constexpr int kUpdateThreads = 128;

template <class T, int kN>
__global__ void __launch_bounds__(kUpdateThreads) selective_update(SelectiveArgs p, Batch batch) {
  constexpr int kLanes = Lanes<kN>::kCount, kStates = Lanes<kN>::kStates;
  const int lane = threadIdx.x % kLanes, s = blockIdx.y;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * (kUpdateThreads / kLanes) + threadIdx.x / kLanes;
  const int64_t t = batch.first[s];
  ChannelStates<kN> states(p, channel, lane, batch.source[s]);
  if (t < batch.first[s + 1]) {
    const bool there = channel < p.channels;
    const float x = there ? to_float(row<T>(p.x, t)[channel]) : 0.f;
    const float d = softplus(there ? to_float(row<T>(p.dt, t)[channel]) + states.bias : 0.f);
    const int n = lane * kStates, valid = static_cast<int>(p.d_state) - n;
    float b[kStates], c[kStates];
    load_as<T>(b, reinterpret_cast<const char*>(row<T>(p.b, t) + n), valid);
    load_as<T>(c, reinterpret_cast<const char*>(row<T>(p.c, t) + n), valid);
    const float sum = sum_lanes<kLanes>(states.step(d, d * x, b, c));
    if (there && lane == 0) {
      const float skip = p.d ? p.d[channel] : 0.f, z = p.z.data ? to_float(row<T>(p.z, t)[channel]) : 0.f;
      row<T>(p.out, t)[channel] = from_float<T>(selective_output(sum, skip, x, p.z.data, z));
    }
  }
  // The one count is 1, or 0 for a sequence without tokens.
  for (Stores stores(batch, s); stores.next < stores.end;) states.store_to(p, stores.take());
}

HC_SHAPE(kUpdateThreads, 0, kUpdateThreads / Lanes<kSize>::kCount)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_selective_update(const hc::SelectiveArgs* p, const hc::Batch* batch, void* stream) {
  using namespace hc;
  const dim3 grid(ceil_div(p->channels, hc_shape[2]), batch->num_sequences);
  return HC_LAUNCH((selective_update<Element, kSize>), grid, dim3(hc_shape[0]), hc_shape[1], stream, *p, *batch);
}
#endif
