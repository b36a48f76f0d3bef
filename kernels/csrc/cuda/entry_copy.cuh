// Copies within a pool: whole slots, or the first tokens of blocks. A batch of independent copies is one launch.
#include "device.cuh"

namespace hc {

// Copy c takes copies[c] = (source id, target id, units): the first units * unit_bytes bytes of each of the
// `num_segments` segments of an entry, which lie `segment_stride` bytes apart.
struct EntryCopyArgs {
  char* data;
  int64_t stride;  // bytes from one id to the next
  int64_t segment_stride, num_segments, unit_bytes, longest;  // bytes; longest: of a segment's part
  const int64_t* copies;                                      // [num_copies, 3]
  int64_t num_copies;
};

constexpr int kCopyThreads = 128, kWordsEach = 8;
constexpr int64_t kCopyBytes = 16 * kCopyThreads * kWordsEach;  // of a block, with words of 16 bytes

template <class Word>
__device__ __forceinline__ void copy_words(char* to, const char* from, int64_t begin, int64_t bytes) {
  const int64_t words = least(bytes - begin, kCopyBytes) / static_cast<int64_t>(sizeof(Word));
  Word* const t = reinterpret_cast<Word*>(to + begin);
  const Word* const f = reinterpret_cast<const Word*>(from + begin);
  for (int64_t base = threadIdx.x; base < words; base += kCopyThreads * kWordsEach) {
    Word held[kWordsEach];  // all on their way before the first is needed
#pragma unroll
    for (int i = 0; i < kWordsEach; ++i)
      if (base + i * kCopyThreads < words) held[i] = f[base + i * kCopyThreads];
#pragma unroll
    for (int i = 0; i < kWordsEach; ++i)
      if (base + i * kCopyThreads < words) t[base + i * kCopyThreads] = held[i];
  }
}

__global__ void __launch_bounds__(kCopyThreads) entry_copy(EntryCopyArgs p) {
  const int64_t* const copy = p.copies + 3 * blockIdx.z;
  const int64_t offset = blockIdx.y * p.segment_stride, bytes = copy[2] * p.unit_bytes, begin = blockIdx.x * kCopyBytes;
  const char* const from = p.data + copy[0] * p.stride + offset;
  char* const to = p.data + copy[1] * p.stride + offset;
  if (begin >= bytes) return;
  const uintptr_t all = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(bytes);
  if (all % 16 == 0)
    copy_words<uint4>(to, from, begin, bytes);
  else if (all % 4 == 0)
    copy_words<unsigned>(to, from, begin, bytes);
  else
    copy_words<unsigned char>(to, from, begin, bytes);
}

HC_SHAPE(kCopyThreads, 0, kCopyBytes)

}  // namespace hc

#ifndef __CUDACC_RTC__
extern "C" int hc_entry_copy(const hc::EntryCopyArgs* p, void* stream) {
  using namespace hc;
  const dim3 grid(ceil_div(p->longest, hc_shape[2]), p->num_segments, p->num_copies);
  return HC_LAUNCH(entry_copy, grid, dim3(hc_shape[0]), hc_shape[1], stream, *p);
}
#endif
