// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's runtime that giveway_guard.h needs, on the host. A stream is a thread that
// runs one operation after another. Streams of the same priority share a channel: operations of
// one never run at the same time as operations of the other. Copies wait at a closed gate, as
// they do under the shim.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#define __device__
#define __shared__ static
#define __syncthreads()
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned nx, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};
static uint3 threadIdx;
inline unsigned atomicAdd(unsigned *p, unsigned n) { return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST); }

enum cudaError_t { cudaSuccess, cudaErrorNotReady, cudaErrorInvalidValue };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaStreamNonBlocking, cudaEventDisableTiming };

namespace fake {
inline std::atomic<int> closed{0}, repeatable{0};
inline thread_local int ungated = 0;
inline std::mutex channels[8];

struct stream {
  explicit stream(int p) : priority(p) {}
  const int priority;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, over = false;
  std::thread thread{[this] { run(); }};

  void run() {
    std::unique_lock<std::mutex> hold(mutex);
    while (!over || !work.empty()) {
      if (work.empty()) {
        changed.wait(hold);
        continue;
      }
      auto next = std::move(work.front());
      work.pop_front();
      busy = true;
      hold.unlock();
      channels[-priority].lock();
      next();
      channels[-priority].unlock();
      hold.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void put(std::function<void()> f) {
    while (closed && !ungated) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::lock_guard<std::mutex> hold(mutex);
    work.push_back(std::move(f));
    changed.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> hold(mutex);
    changed.wait(hold, [this] { return work.empty() && !busy; });
  }
  void end() {
    {
      std::lock_guard<std::mutex> hold(mutex);
      over = true;
      changed.notify_all();
    }
    thread.join();
    delete this;
  }
};
}  // namespace fake

using cudaStream_t = fake::stream *;
using cudaEvent_t = std::atomic<bool> *;

inline cudaError_t cudaMalloc(void **p, size_t n) { return *p = calloc(1, n), cudaSuccess; }
inline cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { return cudaMalloc(p, n); }
inline cudaError_t cudaFree(void *p) { return free(p), cudaSuccess; }
inline cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { return *least = 0, *most = -5, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int priority) {
  *s = new fake::stream(priority);
  return cudaSuccess;
}
inline cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { return *priority = s->priority, cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t s) { return s->end(), cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) { return s->wait(), cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = new std::atomic<bool>(false), cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t e) { return *e ? cudaSuccess : cudaErrorNotReady; }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  *e = false;
  s->put([e] { *e = true; });
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int, cudaStream_t s) {
  s->put([=] { memcpy(to, from, n); });
  return cudaSuccess;
}
