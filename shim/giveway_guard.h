/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level 2 in software, for kernels whose authors want it: a kernel that begins no
 * more blocks when it is told to stop, and later goes on with the first that has
 * not begun. CUDA and HIP.
 *
 *     __global__ void work(giveway_guard *g, dim3 grid, float *out) {
 *       uint3 block;
 *       if (!giveway_block(g, grid, &block)) return;   // first, by every thread
 *       ... block in place of blockIdx, grid in place of gridDim ...
 *     }
 *
 *     giveway::guarded kernel(dim3(4096));
 *     kernel.run(stream, [&](giveway_guard *g, dim3 grid, unsigned blocks) {
 *       work<<<blocks, 256, 0, stream>>>(g, grid, out);
 *     });
 *
 * A block that has begun finishes, so none is lost and none runs twice, and a stop
 * takes as long as the longest block. Blocks are numbered in the order in which
 * they begin: code that waits for a block with a lower number may go on doing so.
 *
 * run() returns when the last block is done. It stops the kernel while giveway
 * holds the program, and whenever another thread calls stop(). flush() is for work
 * that may be run twice: a kernel may then leave in the middle of a block, where
 * giveway_stopped() says so, and all of it is done again. That is also how giveway
 * stops, the first time, what was run where the program had said giveway_idempotent(1).
 */
#ifndef GIVEWAY_GUARD_H
#define GIVEWAY_GUARD_H

struct giveway_guard {
  unsigned stop;    /* 1: begin no more blocks; 2: leave those that have begun */
  unsigned begun;   /* blocks */
  unsigned left;    /* blocks that were left in the middle */
  unsigned reserved;
};

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(GIVEWAY_GUARD_EMULATED)

/* Whether this block is to be done, and which it is. */
static __device__ inline bool giveway_block(giveway_guard *g, dim3 grid, uint3 *block) {
  __shared__ unsigned taken;
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    taken = *(volatile unsigned *)&g->stop ? ~0u : atomicAdd(&g->begun, 1u);
  }
  __syncthreads();
  unsigned n = taken;
  __syncthreads(); /* or the next call would overwrite it under our feet */
  if (n >= grid.x * grid.y * grid.z) return false;
  block->x = n % grid.x;
  block->y = n / grid.x % grid.y;
  block->z = n / grid.x / grid.y;
  return true;
}

/* For work that may be run twice: whether to leave now, this block undone. */
static __device__ inline bool giveway_stopped(giveway_guard *g) {
  if (*(volatile unsigned *)&g->stop != 2u) return false;
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
#include <hip/hip_runtime.h>
#define GIVEWAY_RT(name) hip##name
#else
#include <cuda_runtime.h>
#define GIVEWAY_RT(name) cuda##name
#endif

/* 1 while giveway holds the program. There is none without the preloaded library. */
extern "C" int giveway_closed(void) __attribute__((weak));
/* 1 where what is launched now may be run twice. */
extern "C" int giveway_repeatable(void) __attribute__((weak));
/* While set, what this thread puts on the device is not held. */
extern "C" void giveway_ungated(int on) __attribute__((weak));

namespace giveway {

class guarded {
 public:
  using error = GIVEWAY_RT(Error_t);

  explicit guarded(dim3 grid) : grid_(grid), total_(grid.x * grid.y * grid.z) {}
  guarded(const guarded &) = delete;
  guarded &operator=(const guarded &) = delete;
  ~guarded() {
    if (guard_) (void)GIVEWAY_RT(Free)(guard_);
    if (said_) (void)GIVEWAY_RT(FreeHost)(said_);
    if (aside_) (void)GIVEWAY_RT(StreamDestroy)(aside_);
    if (ended_) (void)GIVEWAY_RT(EventDestroy)(ended_);
  }

  /* All blocks, each once, however often it is stopped. launch puts the kernel on
   * the stream with that many blocks. */
  template <class Launch>
  error run(GIVEWAY_RT(Stream_t) stream, Launch launch) {
    error e = prepare(stream);
    if (e != success) return e;
    for (unsigned begun = 0; begun < total_;) {
      wait_to_go_on();
      if ((e = tell({0, begun, 0, 0}, stream)) != success) return e;
      launch(guard_, grid_, total_ - begun);
      if ((e = GIVEWAY_RT(GetLastError)()) != success) return e;
      if ((e = GIVEWAY_RT(EventRecord)(ended_, stream)) != success) return e;
      if ((e = watch()) != success) return e;
      if ((e = ask(stream)) != success) return e;
      /* Work that was left in the middle is done again from the start: once, or it might
       * never come to its end. */
      begun = said_->left ? 0 : said_->begun;
      if (said_->left) held_ = 1;
      if (begun < total_) stops_++;
    }
    return success;
  }

  /* From any thread. Each twice equals once. */
  void stop() { want(1); }
  void flush() { want(2); }
  void resume() { want(0); }

  /* How often the kernel has been stopped before its end. */
  unsigned stops() const { return stops_; }

 private:
  static constexpr error success = GIVEWAY_RT(Success);

  error prepare(GIVEWAY_RT(Stream_t) stream) {
    error e = success;
    if (!guard_) e = GIVEWAY_RT(Malloc)((void **)&guard_, sizeof *guard_);
    if (e == success && !said_) e = GIVEWAY_RT(HostAlloc)((void **)&said_, 2 * sizeof *said_, 0);
    if (e == success) e = step_aside(stream);
    held_ = giveway_repeatable && giveway_repeatable() ? 2u : 1u;
    if (e == success && !ended_) e = GIVEWAY_RT(EventCreateWithFlags)(&ended_, GIVEWAY_RT(EventDisableTiming));
    return e;
  }

  /* Streams may share a channel, and what is on one then waits for the other: but never
   * those of different priority. */
  error step_aside(GIVEWAY_RT(Stream_t) stream) {
    int least = 0, most = 0, its = 0;
    error e = GIVEWAY_RT(DeviceGetStreamPriorityRange)(&least, &most);
    if (e == success) e = GIVEWAY_RT(StreamGetPriority)(stream, &its);
    int ours = its == most ? least : most;
    if (e != success || (aside_ && priority_ == ours)) return e;
    if (aside_) (void)GIVEWAY_RT(StreamDestroy)(aside_);
    aside_ = nullptr;
    priority_ = ours;
    return GIVEWAY_RT(StreamCreateWithPriority)(&aside_, GIVEWAY_RT(StreamNonBlocking), ours);
  }

  /* Writes the word to stop. It must not wait for what it is to bring about. */
  error say_stop(unsigned what) {
    said_[1].stop = what;
    if (giveway_ungated) giveway_ungated(1);
    error e = GIVEWAY_RT(MemcpyAsync)(&guard_->stop, &said_[1].stop, sizeof(unsigned), GIVEWAY_RT(MemcpyHostToDevice), aside_);
    if (giveway_ungated) giveway_ungated(0);
    return e == success ? GIVEWAY_RT(StreamSynchronize)(aside_) : e;
  }

  void want(unsigned what) {
    std::lock_guard<std::mutex> hold(mutex_);
    wanted_ = what;
    changed_.notify_all();
  }

  unsigned wanted() {
    std::lock_guard<std::mutex> hold(mutex_);
    return wanted_ ? wanted_ : giveway_closed && giveway_closed() ? held_ : 0u;
  }

  void wait_to_go_on() {
    while (wanted()) {
      std::unique_lock<std::mutex> hold(mutex_);
      changed_.wait_for(hold, std::chrono::microseconds(100));
    }
  }

  /* The device's copy is written behind what is on the stream. */
  error tell(giveway_guard what, GIVEWAY_RT(Stream_t) stream) {
    said_[0] = what;
    return GIVEWAY_RT(MemcpyAsync)(guard_, said_, sizeof what, GIVEWAY_RT(MemcpyHostToDevice), stream);
  }

  error ask(GIVEWAY_RT(Stream_t) stream) {
    error e = GIVEWAY_RT(MemcpyAsync)(said_, guard_, sizeof *said_, GIVEWAY_RT(MemcpyDeviceToHost), stream);
    return e == success ? GIVEWAY_RT(StreamSynchronize)(stream) : e;
  }

  /* Until the kernel has ended; the word to stop goes past it on a stream of its
   * own. It is one word, so nothing that the kernel writes is lost. */
  error watch() {
    unsigned told = 0;
    for (;;) {
      error e = GIVEWAY_RT(EventQuery)(ended_);
      if (e != GIVEWAY_RT(ErrorNotReady)) return e;
      unsigned now = wanted();
      if (now > told) {
        if ((e = say_stop(told = now)) != success) return e;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  dim3 grid_;
  unsigned total_;
  unsigned stops_ = 0;
  giveway_guard *guard_ = nullptr; /* the device's */
  giveway_guard *said_ = nullptr;  /* two of the host's: what was told and asked, and the word to stop */
  GIVEWAY_RT(Stream_t) aside_ = nullptr;
  int priority_ = 0; /* of aside_ */
  GIVEWAY_RT(Event_t) ended_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned wanted_ = 0;
  unsigned held_ = 1; /* what a hold of giveway's means to the kernel that runs */
};

}  // namespace giveway

#endif

#endif
