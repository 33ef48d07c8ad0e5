// SPDX-License-Identifier: Apache-2.0
// The order of CUDA calls that a program may rely on. Each probe prints a line with "ok" or
// "WRONG". It runs as it is and under the preload library, with the gate open, held now and
// then, and with a bound: all runs must print the same. order [rounds]
#include <atomic>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

#define CHECK(call)                                                        \
  do {                                                                     \
    cudaError_t e_ = (call);                                               \
    if (e_ != cudaSuccess) {                                               \
      printf("%s:%d %s: %s\n", __func__, __LINE__, #call, cudaGetErrorString(e_)); \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

static const int N = 1 << 18;

__global__ void slowSet(int *p, int n, int value, long long cycles) {
  long long from = clock64();
  while (clock64() - from < cycles) {
  }
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = value;
}

__global__ void addOne(int *p, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] += 1;
}

__global__ void gridWide(int *p, int n) {
  cooperative_groups::grid_group g = cooperative_groups::this_grid();
  for (int i = g.thread_rank(); i < n; i += g.size()) p[i] += 1;
  g.sync();
  for (int i = g.thread_rank(); i < n; i += g.size()) p[i] += p[(i + 1) % n] > 0 ? 1 : 0;
}

static const long long slow = 3000000; // cycles: about 2 ms
static int *dev, *dev2;

static bool all(const int *host, int value) {
  for (int i = 0; i < N; i++) {
    if (host[i] != value) return false;
  }
  return true;
}

static void queueSlow(cudaStream_t s, int value) { slowSet<<<64, 256, 0, s>>>(dev, N, value, slow); }

static bool syncCopyAfterLegacy() {
  std::vector<int> got(N);
  queueSlow(0, 1);
  CHECK(cudaMemcpy(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost));
  return all(got.data(), 1);
}

static bool syncCopyAfterBlockingStream() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(cudaStreamCreate(&s));
  queueSlow(s, 2);
  CHECK(cudaMemcpy(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 2);
}

static bool syncMemsetAfterBlockingStream() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(cudaStreamCreate(&s));
  queueSlow(s, 3);
  CHECK(cudaMemset(dev, 0, N * sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 0);
}

static bool asyncDefaultKind() {
  cudaStream_t s;
  int *pinned;
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaMallocHost(&pinned, N * sizeof(int)));
  memset(pinned, 0, N * sizeof(int));
  queueSlow(s, 4);
  CHECK(cudaMemcpyAsync(pinned, dev, N * sizeof(int), cudaMemcpyDefault, s));
  CHECK(cudaStreamSynchronize(s));
  bool ok = all(pinned, 4);
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaStreamDestroy(s));
  return ok;
}

static bool asyncPageable() {
  cudaStream_t s;
  std::vector<int> got(N, 0);
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  queueSlow(s, 5);
  CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
  CHECK(cudaStreamSynchronize(s));
  bool ok = all(got.data(), 5);
  // To the device: the host's memory may be overwritten when the call returns.
  std::vector<int> from(N, 6);
  CHECK(cudaMemcpyAsync(dev, from.data(), N * sizeof(int), cudaMemcpyHostToDevice, s));
  std::fill(from.begin(), from.end(), -1);
  CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaStreamDestroy(s));
  return ok && all(got.data(), 6);
}

static bool peerCopy() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  queueSlow(s, 7);
  CHECK(cudaMemcpyPeerAsync(dev2, 0, dev, 0, N * sizeof(int), s));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaMemcpy(got.data(), dev2, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 7);
}

static bool cooperative() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  queueSlow(s, 8);
  int n = N;
  void *args[] = {&dev, &n};
  CHECK(cudaLaunchCooperativeKernel((void *)gridWide, dim3(64), dim3(256), args, 0, s));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaMemcpy(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 10);
}

static bool asyncAlloc() {
  cudaStream_t s;
  int *p = (int *)-1;
  std::vector<int> got(N);
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  queueSlow(s, 9);
  CHECK(cudaMallocAsync(&p, N * sizeof(int), s));
  if (p == (int *)-1 || !p) return false;
  slowSet<<<64, 256, 0, s>>>(p, N, 11, 0);
  CHECK(cudaMemcpyAsync(got.data(), p, N * sizeof(int), cudaMemcpyDeviceToHost, s));
  CHECK(cudaFreeAsync(p, s));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 11);
}

static bool perThreadStreams() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([t, &wrong] {
      int *p;
      std::vector<int> got(N);
      CHECK(cudaMalloc(&p, N * sizeof(int)));
      for (int round = 0; round < 5; round++) {
        slowSet<<<16, 256, 0, cudaStreamPerThread>>>(p, N, 20 + t, slow / 8);
        addOne<<<16, 256, 0, cudaStreamPerThread>>>(p, N);
        CHECK(cudaMemcpyAsync(got.data(), p, N * sizeof(int), cudaMemcpyDeviceToHost, cudaStreamPerThread));
        CHECK(cudaStreamSynchronize(cudaStreamPerThread));
        if (!all(got.data(), 21 + t)) wrong++;
      }
      CHECK(cudaFree(p));
    });
  }
  for (auto &t : threads) t.join();
  return wrong == 0;
}

static bool eventsAcrossStreams() {
  cudaStream_t a, b;
  cudaEvent_t e;
  std::vector<int> got(N);
  CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  for (int round = 0; round < 10; round++) {
    queueSlow(a, 30);
    CHECK(cudaEventRecord(e, a));
    CHECK(cudaStreamWaitEvent(b, e, 0));
    addOne<<<64, 256, 0, b>>>(dev, N);
    CHECK(cudaEventRecord(e, b));
    CHECK(cudaStreamWaitEvent(a, e, 0));
  }
  CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, a));
  CHECK(cudaStreamSynchronize(a));
  CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(a));
  CHECK(cudaStreamDestroy(b));
  return all(got.data(), 31);
}

static bool eventQueryTells() {
  cudaStream_t s;
  cudaEvent_t e;
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  slowSet<<<64, 256, 0, s>>>(dev, N, 1, 20 * slow);
  CHECK(cudaEventRecord(e, s));
  bool before = cudaEventQuery(e) == cudaErrorNotReady;
  CHECK(cudaEventSynchronize(e));
  bool after = cudaEventQuery(e) == cudaSuccess;
  CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(s));
  return before && after;
}

// Captures while other threads launch, and wait where the capture's mode permits that.
static bool captureBesideThreads(cudaStreamCaptureMode mode) {
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; t++) {
    threads.emplace_back([&over, &wrong, mode] {
      cudaStream_t s;
      int *p, *host, n = 0;
      CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
      CHECK(cudaMallocAsync(&p, sizeof(int), s));
      CHECK(cudaHostAlloc(&host, sizeof(int), cudaHostAllocMapped));
      CHECK(cudaStreamSynchronize(s));
      for (; !over; n++) {
        slowSet<<<1, 1, 0, s>>>(p, 1, n, 1000);
        CHECK(cudaMemcpyAsync(host, p, sizeof(int), cudaMemcpyDeviceToHost, s));
        if (mode == cudaStreamCaptureModeGlobal) { // no thread may wait by a call now
          while (*(volatile int *)host != n) std::this_thread::yield();
          continue;
        }
        CHECK(cudaStreamSynchronize(s));
        if (*host != n) wrong++;
      }
      CHECK(cudaStreamSynchronize(s));
      if (*host != n - 1) wrong++;
      CHECK(cudaStreamDestroy(s));
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cudaStream_t s, fork;
  cudaEvent_t e;
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&fork, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  std::vector<int> got(N), got2(N);
  for (int round = 0; round < 10; round++) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s, mode));
    for (int i = 0; i < 40; i++) { // more than any bound
      if (i == 0) slowSet<<<64, 256, 0, s>>>(dev, N, 0, 1000);
      else addOne<<<64, 256, 0, s>>>(dev, N);
    }
    CHECK(cudaEventRecord(e, s));
    CHECK(cudaStreamWaitEvent(fork, e, 0));
    slowSet<<<64, 256, 0, fork>>>(dev2, N, 5, 1000);
    CHECK(cudaEventRecord(e, fork));
    CHECK(cudaStreamWaitEvent(s, e, 0));
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaMemsetAsync(dev, 0xff, N * sizeof(int), s));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaMemcpyAsync(got2.data(), dev2, N * sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    if (!all(got.data(), 39) || !all(got2.data(), 5)) wrong++;
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
  }
  over = true;
  for (auto &t : threads) t.join();
  CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(fork));
  CHECK(cudaStreamDestroy(s));
  return wrong == 0;
}

static bool captureGlobal() { return captureBesideThreads(cudaStreamCaptureModeGlobal); }
static bool captureThreadLocal() { return captureBesideThreads(cudaStreamCaptureModeThreadLocal); }
static bool captureRelaxed() { return captureBesideThreads(cudaStreamCaptureModeRelaxed); }

static bool hostFunctionInOrder() {
  cudaStream_t s;
  int seen = 0, *pinned;
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaMallocHost(&pinned, N * sizeof(int)));
  struct both {
    int *pinned, *seen;
  } b = {pinned, &seen};
  queueSlow(s, 13);
  CHECK(cudaMemcpyAsync(pinned, dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
  CHECK(cudaLaunchHostFunc(s, [](void *p) { *((both *)p)->seen = ((both *)p)->pinned[N - 1]; }, &b));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaStreamDestroy(s));
  return seen == 13;
}

// A kernel that waits for one launched after it on another stream.
__global__ void waitFor(volatile int *flag, int value) {
  while (*flag != value) {
  }
}

static bool waitsForALaterLaunch() {
  cudaStream_t a, b;
  int *flag;
  CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&flag, sizeof(int)));
  CHECK(cudaMemset(flag, 0, sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  waitFor<<<1, 1, 0, a>>>(flag, 30);
  for (int i = 0; i < 30; i++) addOne<<<1, 32, 0, b>>>(flag, 1); // more than any bound
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(flag));
  CHECK(cudaStreamDestroy(a));
  CHECK(cudaStreamDestroy(b));
  return true;
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 1, wrong = 0;
  CHECK(cudaMalloc(&dev, N * sizeof(int)));
  CHECK(cudaMalloc(&dev2, N * sizeof(int)));
  static const struct {
    const char *name;
    bool (*probe)();
  } probes[] = {
      {"synchronous copy after work on the legacy stream", syncCopyAfterLegacy},
      {"synchronous copy after work on a blocking stream", syncCopyAfterBlockingStream},
      {"synchronous memset after work on a blocking stream", syncMemsetAfterBlockingStream},
      {"asynchronous copy of kind default", asyncDefaultKind},
      {"asynchronous copies of pageable memory", asyncPageable},
      {"peer copy", peerCopy},
      {"cooperative launch", cooperative},
      {"asynchronous allocation", asyncAlloc},
      {"per-thread default streams", perThreadStreams},
      {"events across streams", eventsAcrossStreams},
      {"event query", eventQueryTells},
      {"graphs, captured beside threads that launch", captureGlobal},
      {"graphs, captured beside threads that wait", captureThreadLocal},
      {"graphs, captured as one likes", captureRelaxed},
      {"host function", hostFunctionInOrder},
      {"a kernel that waits for a later launch", waitsForALaterLaunch},
  };
  for (int r = 0; r < rounds; r++) {
    for (auto &p : probes) {
      bool ok = p.probe();
      if (!ok) wrong++;
      if (r == rounds - 1 || !ok) printf("%-55s %s\n", p.name, ok ? "ok" : "WRONG");
    }
  }
  CHECK(cudaDeviceSynchronize());
  return wrong != 0;
}
