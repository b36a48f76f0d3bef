// A recorded pass: its kernels in their order, for another batch of as many tokens.
#include "storage.h"

using namespace hc;

struct Call {
  void (*run)(const void* args, const Batch* batch, int64_t threads);
  const void* args;
  int64_t threads;
};
extern "C" void hc_replay(const Call* calls, int64_t count, const Batch* batch) {
  for (int64_t i = 0; i < count; ++i) calls[i].run(calls[i].args, batch, calls[i].threads);
}
