// Runs CUDA kernels on a CPU: the names of CUDA that kernels/csrc/cuda uses, one fiber per thread. Blocks run one
// after the other in a shuffled order, so do the threads of a block between two meetings; shared memory is
// filled with NaN before each block and ends exactly where the launch says, for the address sanitizer.
// Arithmetic is the CPU's: what a GPU approximates (exp2, division) is exact here.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace emulation {

enum class State { kReady, kAtBarrier, kAtExchange, kDone };
constexpr size_t kStackBytes = 256 << 10, kWarp = 32;

// A point to go on from. The first switch to a stack is ucontext's, which calls the system; later ones are jumps,
// except under the address sanitizer, which follows ucontext only.
struct Context {
  ucontext_t first;
  jmp_buf later;
  bool started;
};
inline void switch_to(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
  swapcontext(&from.first, &to.first);
#else
  if (_setjmp(from.later)) return;
  if (to.started) _longjmp(to.later, 1);
  to.started = true;
  setcontext(&to.first);
#endif
}

struct Fiber {
  Context context;
  dim3 thread;
  State state;
  int place;              // line of the meeting that it waits at
  uint64_t published[2];  // by turns: a neighbour may still read the last one
  unsigned exchanges;
  char* stack;
  void* sanitizer;
};

struct Machine {
  Fiber* fibers = nullptr;
  size_t count = 0;
  Context scheduler{};
  void* sanitizer = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_bytes = 0;
  Fiber* current = nullptr;
  dim3 block, grid, block_size;
  float* shared = nullptr;
  void (*run)(const void*) = nullptr;
  const void* body = nullptr;
  uint64_t random = 1;
  char error[128] = "";
};
inline Machine& machine() {
  static Machine m;
  return m;
}

// 0, 1 ... count - 1, shuffled.
inline void shuffle(size_t* order, size_t count) {
  uint64_t& r = machine().random;
  for (size_t i = 0; i < count; ++i) {
    r ^= r << 13, r ^= r >> 7, r ^= r << 17;
    const size_t j = r % (i + 1);
    order[i] = order[j];
    order[j] = i;
  }
}

inline void to_scheduler([[maybe_unused]] bool last) {
  Machine& m = machine();
  Fiber* me = m.current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &me->sanitizer, m.scheduler_stack, m.scheduler_bytes);
#endif
  switch_to(me->context, m.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(me->sanitizer, nullptr, nullptr);
#endif
}
inline void run_thread() {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_bytes);
#endif
  m.run(m.body);
  m.current->state = State::kDone;
  to_scheduler(true);
}
inline void resume(Fiber& fiber) {
  Machine& m = machine();
  m.current = &fiber;
  m.scheduler.started = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&m.sanitizer, fiber.stack, kStackBytes);
#endif
  switch_to(m.scheduler, fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(m.sanitizer, nullptr, nullptr);
#endif
}
inline void meet(State state, int place) {
  machine().current->state = state;
  machine().current->place = place;
  to_scheduler(false);
}

// Lets the threads [begin, end) go on when all of them wait in `state` at one place. On a GPU, threads that meet
// at different ones may hang or exchange nonsense; a warp's exchange with threads that have ended is as wrong.
inline bool release(size_t begin, size_t end, State state, const char* what) {
  Machine& m = machine();
  size_t waiting = 0, ended = 0;
  bool together = true;
  for (size_t i = begin; i < end; ++i) {
    waiting += m.fibers[i].state == state;
    ended += m.fibers[i].state == State::kDone;
    together &= m.fibers[i].place == m.fibers[begin].place;
  }
  if (!waiting || waiting + ended < end - begin) return false;
  if (ended || !together) {
    std::snprintf(m.error, sizeof m.error, "threads meet at different %s, or some have ended", what);
    return false;
  }
  for (size_t i = begin; i < end; ++i) m.fibers[i].state = State::kReady;
  return true;
}

// One warp runs as far ahead of the others as it can: that is how a missing barrier shows.
inline bool run_warp(size_t warp) {
  Machine& m = machine();
  const size_t begin = warp * kWarp, end = begin + kWarp < m.count ? begin + kWarp : m.count;
  size_t order[kWarp];
  bool moved = false;
  do {
    shuffle(order, end - begin);
    for (size_t i = 0; i < end - begin; ++i) {
      Fiber& fiber = m.fibers[begin + order[i]];
      if (fiber.state == State::kReady) resume(fiber), moved = true;
    }
  } while (release(begin, end, State::kAtExchange, "exchanges of a warp"));
  return moved;
}

inline void run_block() {
  Machine& m = machine();
  for (size_t i = 0; i < m.count; ++i) {
    Fiber& f = m.fibers[i];
    f.thread = dim3(i % m.block_size.x, i / m.block_size.x % m.block_size.y, i / m.block_size.x / m.block_size.y);
    f.state = State::kReady;
    f.exchanges = 0;
    f.sanitizer = nullptr;
    f.context.started = false;
    getcontext(&f.context.first);
    f.context.first.uc_stack.ss_sp = f.stack;
    f.context.first.uc_stack.ss_size = kStackBytes;
    f.context.first.uc_link = nullptr;
    makecontext(&f.context.first, run_thread, 0);
  }
  const size_t warps = (m.count + kWarp - 1) / kWarp;
  size_t order[1024 / kWarp];
  bool moved;
  do {
    shuffle(order, warps);
    moved = false;
    for (size_t i = 0; i < warps && !*m.error; ++i) moved |= run_warp(order[i]);
    if (!*m.error) moved |= release(0, m.count, State::kAtBarrier, "barriers");
  } while (moved && !*m.error);
  size_t ended = 0;
  for (size_t i = 0; i < m.count; ++i) ended += m.fibers[i].state == State::kDone;
  if (!*m.error && ended < m.count)
    std::snprintf(m.error, sizeof m.error, "%zu threads of %zu wait for ever", m.count - ended, m.count);
}

template <class Body>
int launch(dim3 grid, dim3 block, size_t shared_bytes, const Body& body) {
  Machine& m = machine();
  *m.error = 0;
  m.grid = grid;
  m.block_size = block;
  m.body = &body;
  m.run = [](const void* b) { (*static_cast<const Body*>(b))(); };
  m.count = block.x * block.y * block.z;
  m.fibers = static_cast<Fiber*>(std::calloc(m.count, sizeof(Fiber)));
  for (size_t i = 0; i < m.count; ++i) m.fibers[i].stack = static_cast<char*>(std::malloc(kStackBytes));
  size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
  // What a GPU refuses; more shared memory than that must be asked for first.
  if (!blocks || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 || shared_bytes > 48 << 10) {
    std::snprintf(m.error, sizeof m.error, "a grid of %u, %u, %u with %zu bytes", grid.x, grid.y, grid.z, shared_bytes);
    blocks = 0;
  }
  size_t* order = static_cast<size_t*>(std::malloc(blocks * sizeof(size_t)));
  shuffle(order, blocks);
  for (size_t i = 0; i < blocks && !*m.error; ++i) {
    const size_t b = order[i];
    m.block = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
    m.shared = static_cast<float*>(std::malloc(shared_bytes));
    std::memset(m.shared, 0xff, shared_bytes);
    run_block();
    std::free(m.shared);
  }
  std::free(order);
  for (size_t i = 0; i < m.count; ++i) std::free(m.fibers[i].stack);
  std::free(m.fibers);
  return *m.error != 0;
}

inline size_t me() { return static_cast<size_t>(machine().current - machine().fibers); }
template <class T>
T exchange(T value, size_t lane, int place) {
  static_assert(sizeof(T) <= 8, "one word a thread");
  Machine& m = machine();
  Fiber& mine = *m.current;
  const unsigned turn = mine.exchanges++ % 2;
  std::memcpy(&mine.published[turn], &value, sizeof(T));
  meet(State::kAtExchange, place);
  std::memcpy(&value, &m.fibers[me() / kWarp * kWarp + lane % kWarp].published[turn], sizeof(T));
  return value;
}

}  // namespace emulation

#define threadIdx (emulation::machine().current->thread)
#define blockIdx (emulation::machine().block)
#define blockDim (emulation::machine().block_size)
#define gridDim (emulation::machine().grid)
#define __syncthreads() emulation::meet(emulation::State::kAtBarrier, __LINE__)
#define __shfl_xor_sync(mask, value, apart) emulation::exchange((value), emulation::me() ^ (apart), __LINE__)
#define __shfl_sync(mask, value, lane) emulation::exchange((value), (lane), __LINE__)
#define HC_SHARED(name) float* const name = emulation::machine().shared
#define HC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  (static_cast<void>(stream), emulation::launch(grid, block, shared_bytes, [=] { kernel(__VA_ARGS__); }))

inline float exp2_approx(float x) { return std::exp2(x); }
inline float __fdividef(float a, float b) { return a / b; }

struct __nv_bfloat16 { uint16_t bits; };
inline float __bfloat162float(__nv_bfloat16 x) {
  const uint32_t u = static_cast<uint32_t>(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if (std::isnan(f)) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
using __half = _Float16;
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half __float2half_rn(float x) { return static_cast<__half>(x); }

extern "C" const char* hc_error(int) { return emulation::machine().error; }
extern "C" void hc_emulation_launched(unsigned* sizes) {  // [6]: the last grid and block
  const emulation::Machine& m = emulation::machine();
  const unsigned last[6] = {m.grid.x, m.grid.y, m.grid.z, m.block_size.x, m.block_size.y, m.block_size.z};
  std::memcpy(sizes, last, sizeof last);
}
extern "C" void hc_emulation_seed(unsigned seed) { emulation::machine().random = 2 * seed + 1; }
