/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level 2 in software, for kernels that are written for it: on a stop the kernel begins no more
 * blocks, and later it continues with the first block that has not begun. For CUDA and HIP.
 *
 *     __global__ void work(giveway_guard *g, dim3 grid, float *out) {
 *       uint3 block;
 *       if (!giveway_block(g, grid, &block)) return;   // first, by every thread
 *       ... use block instead of blockIdx, grid instead of gridDim ...
 *     }
 *
 *     giveway::guarded kernel(dim3(4096));
 *     kernel.run(stream, [&](giveway_guard *g, dim3 grid, unsigned blocks) {
 *       work<<<blocks, 256, 0, stream>>>(g, grid, out);
 *     });
 *
 * A block that has begun finishes, so no block is lost and none runs twice, and a stop takes as
 * long as the longest block. Blocks are numbered in the order in which they begin, so code may
 * still wait for a block with a lower number.
 *
 * run() returns when the last block is done. It stops the kernel while Giveway holds the
 * process, and when another thread calls stop(). flush() is for work that may run twice: the
 * kernel may then return in the middle of a block, where giveway_stopped() says so, and all
 * blocks are run again. Giveway stops a kernel in this way too, once, if the program had called
 * giveway_idempotent(1) before run().
 */
#ifndef GIVEWAY_GUARD_H
#define GIVEWAY_GUARD_H

struct giveway_guard {
  unsigned stop;  /* 1: begin no more blocks; 2: also abandon those that have begun */
  unsigned begun; /* number of blocks that have begun */
  unsigned left;  /* nonzero: a block was abandoned */
  unsigned reserved;
};

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(GIVEWAY_GUARD_EMULATED)

/* The stop word, which another engine writes while the kernel runs. A plain read could be served
 * from a cache. */
static __device__ inline unsigned giveway_stop_word(giveway_guard *g) {
#if defined(__HIP_PLATFORM_AMD__)
  return __hip_atomic_load(&g->stop, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return *(volatile unsigned *)&g->stop;
#endif
}

/* Whether this block is to run, and which block it is. */
static __device__ inline bool giveway_block(giveway_guard *g, dim3 grid, uint3 *block) {
  __shared__ unsigned taken;
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    taken = giveway_stop_word(g) ? ~0u : atomicAdd(&g->begun, 1u);
  }
  __syncthreads();
  unsigned n = taken;
  __syncthreads(); /* or the next call could overwrite it before all threads have read it */
  if (n == ~0u || n >= (unsigned long long)grid.x * grid.y * grid.z) return false;
  block->x = n % grid.x;
  block->y = n / grid.x % grid.y;
  block->z = n / grid.x / grid.y;
  return true;
}

/* For work that may run twice: whether to return now and abandon this block. */
static __device__ inline bool giveway_stopped(giveway_guard *g) {
  if (giveway_stop_word(g) != 2u) return false;
  *(volatile unsigned *)&g->left = 1u;
  return true;
}

#endif

#if defined(__CUDACC__) || defined(__HIPCC__)

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__HIPCC__)
#define GIVEWAY_RT(name) hip##name
#else
#define GIVEWAY_RT(name) cuda##name
#endif

/* 1 while Giveway holds the process. Absent without the shim. */
extern "C" int giveway_closed(void) __attribute__((weak));
/* 1 if commands launched now may run twice. */
extern "C" int giveway_repeatable(void) __attribute__((weak));
/* While set, commands that this thread launches are not held. */
extern "C" void giveway_ungated(int on) __attribute__((weak));

namespace giveway {

class guarded {
 public:
  using error = GIVEWAY_RT(Error_t);

  explicit guarded(dim3 grid) : grid_(grid), total_(count(grid)) {}
  guarded(const guarded &) = delete;
  guarded &operator=(const guarded &) = delete;
  ~guarded() {
    if (guard_) (void)GIVEWAY_RT(Free)(guard_);
    if (host_) (void)free_host();
    if (stop_stream_) (void)GIVEWAY_RT(StreamDestroy)(stop_stream_);
    if (ended_) (void)GIVEWAY_RT(EventDestroy)(ended_);
  }

  /* Runs all blocks, each once, however often the kernel is stopped. launch puts the kernel on
   * the stream with that many blocks. A grid of more blocks than a launch can have in one dimension
   * is refused, with the error for an invalid value. */
  template <class Launch>
  error run(GIVEWAY_RT(Stream_t) stream, Launch launch) {
    if (total_ > max_blocks) return GIVEWAY_RT(ErrorInvalidValue);
    error e = prepare(stream);
    if (e != success) return e;
    for (unsigned begun = 0; begun < total_;) {
      wait_while_stopped();
      if ((e = write_guard({0, begun, 0, 0}, stream)) != success) return e;
      launch(guard_, grid_, total_ - begun);
      if ((e = GIVEWAY_RT(GetLastError)()) != success) return e;
      if ((e = GIVEWAY_RT(EventRecord)(ended_, stream)) != success) return e;
      if ((e = watch()) != success) return e;
      if ((e = read_guard(stream)) != success) return e;
      /* If a block was abandoned, all blocks run again. This happens once only, or the kernel
       * might never finish. */
      begun = host_->left ? 0 : host_->begun;
      if (host_->left) hold_stop_ = 1;
      if (begun < total_) stops_++;
    }
    return success;
  }

  /* From any thread. Calls do not nest. */
  void stop() { set_wanted(1); }
  void flush() { set_wanted(2); }
  void resume() { set_wanted(0); }

  /* How often the kernel was stopped before its end. */
  unsigned stops() const { return stops_; }

 private:
  static constexpr error success = GIVEWAY_RT(Success);
  static constexpr unsigned max_blocks = 0x7fffffff;

  /* The number of blocks, or more than max_blocks if there are more. */
  static unsigned count(dim3 grid) {
    unsigned long long n = (unsigned long long)grid.x * grid.y;
    if (n > max_blocks) return grid.z ? max_blocks + 1 : 0;
    n *= grid.z;
    return n > max_blocks ? max_blocks + 1 : (unsigned)n;
  }

  error prepare(GIVEWAY_RT(Stream_t) stream) {
    error e = success;
    if (!guard_) e = allocate_guard();
    if (e == success && !host_) e = allocate_host();
    if (e == success) e = create_stop_stream(stream);
    hold_stop_ = giveway_repeatable && giveway_repeatable() ? 2u : 1u;
    if (e == success && !ended_) e = GIVEWAY_RT(EventCreateWithFlags)(&ended_, GIVEWAY_RT(EventDisableTiming));
    return e;
  }

#if defined(__HIP_PLATFORM_AMD__)
  /* A running kernel need not see writes to ordinary device memory, only those to fine-grained
   * memory. A GPU without such memory may stop late. */
  error allocate_guard() {
    error e = hipExtMallocWithFlags((void **)&guard_, sizeof *guard_, hipDeviceMallocFinegrained);
    if (e == success) return e;
    (void)hipGetLastError(); /* run() must not take this for an error of the launch */
    return hipMalloc((void **)&guard_, sizeof *guard_);
  }
#else
  error allocate_guard() { return GIVEWAY_RT(Malloc)((void **)&guard_, sizeof *guard_); }
#endif

#if defined(__HIPCC__)
  error allocate_host() { return hipHostMalloc((void **)&host_, 2 * sizeof *host_, 0); }
  error free_host() { return hipHostFree(host_); }
#else
  error allocate_host() { return cudaHostAlloc((void **)&host_, 2 * sizeof *host_, 0); }
  error free_host() { return cudaFreeHost(host_); }
#endif

  /* Streams may share a channel, and then one waits for the other. Streams of different priority
   * never do. */
  error create_stop_stream(GIVEWAY_RT(Stream_t) stream) {
    int least = 0, most = 0, its = 0;
    error e = GIVEWAY_RT(DeviceGetStreamPriorityRange)(&least, &most);
    if (e == success) e = GIVEWAY_RT(StreamGetPriority)(stream, &its);
    int ours = its == most ? least : most;
    if (e != success || (stop_stream_ && priority_ == ours)) return e;
    if (stop_stream_) (void)GIVEWAY_RT(StreamDestroy)(stop_stream_);
    stop_stream_ = nullptr;
    priority_ = ours;
    return GIVEWAY_RT(StreamCreateWithPriority)(&stop_stream_, GIVEWAY_RT(StreamNonBlocking), ours);
  }

  /* Writes the stop word. This must not be held, because it is what makes the kernel stop. */
  error write_stop(unsigned what) {
    host_[1].stop = what;
    if (giveway_ungated) giveway_ungated(1);
    error e = GIVEWAY_RT(MemcpyAsync)(&guard_->stop, &host_[1].stop, sizeof(unsigned), GIVEWAY_RT(MemcpyHostToDevice), stop_stream_);
    if (giveway_ungated) giveway_ungated(0);
    return e == success ? GIVEWAY_RT(StreamSynchronize)(stop_stream_) : e;
  }

  void set_wanted(unsigned what) {
    std::lock_guard<std::mutex> hold(mutex_);
    wanted_ = what;
    changed_.notify_all();
  }

  unsigned wanted() {
    std::lock_guard<std::mutex> hold(mutex_);
    return wanted_ ? wanted_ : giveway_closed && giveway_closed() ? hold_stop_ : 0u;
  }

  void wait_while_stopped() {
    while (wanted()) {
      std::unique_lock<std::mutex> hold(mutex_);
      changed_.wait_for(hold, std::chrono::microseconds(100));
    }
  }

  /* Writes the device's guard, ordered with the stream. */
  error write_guard(giveway_guard what, GIVEWAY_RT(Stream_t) stream) {
    host_[0] = what;
    return GIVEWAY_RT(MemcpyAsync)(guard_, host_, sizeof what, GIVEWAY_RT(MemcpyHostToDevice), stream);
  }

  error read_guard(GIVEWAY_RT(Stream_t) stream) {
    error e = GIVEWAY_RT(MemcpyAsync)(host_, guard_, sizeof *host_, GIVEWAY_RT(MemcpyDeviceToHost), stream);
    return e == success ? GIVEWAY_RT(StreamSynchronize)(stream) : e;
  }

  /* Waits until the kernel has ended, and writes the stop word meanwhile, on another stream. It
   * is a single word, so it overwrites nothing that the kernel writes. */
  error watch() {
    unsigned written = 0;
    for (;;) {
      error e = GIVEWAY_RT(EventQuery)(ended_);
      if (e != GIVEWAY_RT(ErrorNotReady)) return e;
      unsigned now = wanted();
      if (now > written) {
        if ((e = write_stop(written = now)) != success) return e;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  dim3 grid_;
  unsigned total_;
  unsigned stops_ = 0;
  giveway_guard *guard_ = nullptr; /* on the device */
  giveway_guard *host_ = nullptr;  /* two on the host: a copy of the device's guard, and the stop word */
  GIVEWAY_RT(Stream_t) stop_stream_ = nullptr;
  int priority_ = 0; /* of stop_stream_ */
  GIVEWAY_RT(Event_t) ended_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned wanted_ = 0;
  unsigned hold_stop_ = 1; /* the stop word for a hold by Giveway during this run */
};

}  // namespace giveway

#endif

#endif
