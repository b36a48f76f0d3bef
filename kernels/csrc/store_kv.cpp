// Writes new tokens' keys and values to their places in the pages.
#include "storage.h"

using namespace hc;

struct StoreArgs {
  Rows k, v;
  Pool keys, values;
  int64_t kv_heads, head_dim;
};

extern "C" void hc_store_kv(const StoreArgs* args, const Batch* batch, int64_t) {
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
