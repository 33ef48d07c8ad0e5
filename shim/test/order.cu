// SPDX-License-Identifier: Apache-2.0
// The order of CUDA calls that a program may rely on. Each probe prints a line with "ok" or
// "WRONG". It runs as it is and under the shim, with the gate open, held now and
// then, with a bound, with late entry and with stream classes: all runs must print the same. order [rounds]
#ifndef __HIPCC__ // order.hip
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#endif

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
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

// Every other stream has a higher priority, which changes no result.
static cudaError_t createStream(cudaStream_t *s, unsigned flags) {
  static std::atomic<unsigned> created{0};
  return created++ % 2 ? cudaStreamCreateWithFlags(s, flags) : cudaStreamCreateWithPriority(s, flags, -1);
}

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
  CHECK(createStream(&s, cudaStreamDefault));
  queueSlow(s, 2);
  CHECK(cudaMemcpy(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 2);
}

static bool syncMemsetAfterBlockingStream() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(createStream(&s, cudaStreamDefault));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&a, cudaStreamNonBlocking));
  CHECK(createStream(&b, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
      CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
  CHECK(createStream(&fork, cudaStreamNonBlocking));
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
  CHECK(createStream(&s, cudaStreamNonBlocking));
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
  CHECK(createStream(&a, cudaStreamNonBlocking));
  CHECK(createStream(&b, cudaStreamNonBlocking));
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

// A request of many launches on one stream, as programs make them that are bound by their CPU.
static void manyLaunches(cudaStream_t s, int *p, int n) {
  for (int i = 0; i < n; i++) addOne<<<64, 256, 0, s>>>(p, N);
}

static void clear(int *p) {
  CHECK(cudaMemset(p, 0, N * sizeof(int)));
  CHECK(cudaDeviceSynchronize());
}

static bool severalStreams() {
  cudaStream_t s[4];
  cudaEvent_t e[4];
  std::vector<int> got(N);
  for (int i = 0; i < 4; i++) {
    CHECK(createStream(&s[i], i % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
    CHECK(cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming));
  }
  bool ok = true;
  for (int round = 0; round < 10; round++) {
    clear(dev);
    for (int i = 0; i < 12; i++) { // every stream continues what another one has begun
      cudaStream_t to = s[i % 4];
      if (i) CHECK(cudaStreamWaitEvent(to, e[(i - 1) % 4], 0));
      manyLaunches(to, dev, 8);
      CHECK(cudaEventRecord(e[i % 4], to));
    }
    CHECK(cudaStreamWaitEvent(s[1], e[3], 0));
    CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s[1]));
    CHECK(cudaStreamSynchronize(s[1]));
    ok = ok && all(got.data(), 96);
  }
  for (int i = 0; i < 4; i++) {
    CHECK(cudaEventDestroy(e[i]));
    CHECK(cudaStreamDestroy(s[i]));
  }
  return ok;
}

// A program that only asks, and never waits, sees its work done.
static bool queriesSeeTheEnd() {
  cudaStream_t s;
  cudaEvent_t e;
  int *pinned;
  CHECK(createStream(&s, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  CHECK(cudaMallocHost(&pinned, N * sizeof(int)));
  bool ok = true;
  for (int round = 0; round < 20; round++) {
    clear(dev);
    manyLaunches(s, dev, 40);
    CHECK(cudaMemcpyAsync(pinned, dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaEventRecord(e, s));
    cudaError_t r;
    while ((r = round % 2 ? cudaStreamQuery(s) : cudaEventQuery(e)) == cudaErrorNotReady) {
    }
    CHECK(r);
    ok = ok && all(pinned, 40);
  }
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(s));
  return ok;
}

// A program that neither asks nor waits by a call, but looks at memory that the device writes.
static bool memorySeesTheEnd() {
  cudaStream_t s;
  volatile int *pinned;
  CHECK(createStream(&s, cudaStreamNonBlocking));
  CHECK(cudaMallocHost((void **)&pinned, sizeof(int)));
  for (int round = 1; round <= 20; round++) {
    *pinned = -1;
    clear(dev);
    manyLaunches(s, dev, 20 + round);
    CHECK(cudaMemcpyAsync((void *)pinned, dev, sizeof(int), cudaMemcpyDeviceToHost, s));
    while (*pinned != 20 + round) std::this_thread::yield();
    CHECK(cudaStreamSynchronize(s));
  }
  CHECK(cudaFreeHost((void *)pinned));
  CHECK(cudaStreamDestroy(s));
  return true;
}

// Memory that is allocated and freed in the order of streams is reused in that order.
static bool asyncAllocReused() {
  cudaStream_t s, t;
  cudaEvent_t e;
  std::vector<int> got(N);
  CHECK(createStream(&s, cudaStreamNonBlocking));
  CHECK(createStream(&t, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  bool ok = true;
  for (int round = 0; round < 20; round++) {
    int *p, *q;
    CHECK(cudaMallocAsync(&p, N * sizeof(int), s));
    slowSet<<<64, 256, 0, s>>>(p, N, 1, 1000);
    manyLaunches(s, p, 20);
    CHECK(cudaMemcpyAsync(dev, p, N * sizeof(int), cudaMemcpyDeviceToDevice, s));
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaEventRecord(e, s));
    CHECK(cudaStreamWaitEvent(t, e, 0));
    CHECK(cudaMallocAsync(&q, N * sizeof(int), t)); // may be what p was
    slowSet<<<64, 256, 0, t>>>(q, N, 7, 1000);
    CHECK(cudaFreeAsync(q, t));
    CHECK(cudaStreamSynchronize(t));
    CHECK(cudaMemcpy(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost));
    ok = ok && all(got.data(), 21);
  }
  CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(s));
  CHECK(cudaStreamDestroy(t));
  return ok;
}

// Threads that launch on the same stream and on streams of their own.
static bool threadsShareAStream() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(createStream(&s, cudaStreamNonBlocking));
  bool ok = true;
  for (int round = 0; round < 10; round++) {
    clear(dev);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
      threads.emplace_back([s, t] {
        cudaStream_t own;
        CHECK(createStream(&own, cudaStreamNonBlocking));
        manyLaunches(s, dev, 25);
        manyLaunches(own, dev2, 5);
        CHECK(cudaStreamSynchronize(t % 2 ? s : own));
        CHECK(cudaStreamDestroy(own));
      });
    }
    for (auto &t : threads) t.join();
    CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    ok = ok && all(got.data(), 100);
  }
  CHECK(cudaStreamDestroy(s));
  return ok;
}

// A child that does not use CUDA, forked in the middle of a request, changes nothing.
static bool forkWithinARequest() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(createStream(&s, cudaStreamNonBlocking));
  bool ok = true;
  for (int round = 0; round < 5; round++) {
    clear(dev);
    manyLaunches(s, dev, 20);
    pid_t child = fork();
    if (child == 0) _exit(0);
    manyLaunches(s, dev, 20);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    ok = ok && status == 0 && all(got.data(), 40);
  }
  CHECK(cudaStreamDestroy(s));
  return ok;
}

// Frees and allocations in the middle of a request wait for the device.
static bool freeWithinARequest() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(createStream(&s, cudaStreamNonBlocking));
  bool ok = true;
  for (int round = 0; round < 10; round++) {
    int *p;
    clear(dev);
    manyLaunches(s, dev, 10);
    CHECK(cudaMalloc(&p, N * sizeof(int)));
    manyLaunches(s, dev, 10);
    CHECK(cudaFree(p));
    manyLaunches(s, dev, 10);
    CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    ok = ok && all(got.data(), 30);
  }
  CHECK(cudaStreamDestroy(s));
  return ok;
}

// More launches than the device's queue takes.
static bool longRequest() {
  cudaStream_t s;
  std::vector<int> got(N);
  CHECK(createStream(&s, cudaStreamNonBlocking));
  clear(dev);
  manyLaunches(s, dev, 3000);
  CHECK(cudaMemcpyAsync(got.data(), dev, N * sizeof(int), cudaMemcpyDeviceToHost, s));
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaStreamDestroy(s));
  return all(got.data(), 3000);
}

// Another process waits for an event of this one. The last probe: from then on the library lets
// all requests enter at once.
static bool eventOfAnotherProcess() {
  int to[2], back[2], status = -1;
  if (pipe2(to, O_CLOEXEC) || pipe2(back, O_CLOEXEC)) return false; // or the child would keep its own open
  if (fflush(stdout)) return false;
  pid_t child = vfork();
  if (child == 0) {
    dup2(to[0], 0);
    dup2(back[1], 1);
    execl("/proc/self/exe", "order", "waiter", (char *)nullptr);
    _exit(9);
  }
  close(to[0]);
  close(back[1]);
  cudaStream_t s;
  cudaEvent_t e;
  cudaIpcEventHandle_t handle;
  char c;
  CHECK(createStream(&s, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventInterprocess));
  CHECK(cudaIpcGetEventHandle(&handle, e));
  bool ok = write(to[1], &handle, sizeof handle) == sizeof handle && read(back[0], &c, 1) == 1;
  for (int round = 0; ok && round < 10; round++) {
    manyLaunches(s, dev, 40);
    CHECK(cudaEventRecord(e, s));
    ok = write(to[1], "w", 1) == 1 && read(back[0], &c, 1) == 1; // it has waited
    ok = ok && cudaEventQuery(e) == cudaSuccess;
  }
  close(to[1]);
  waitpid(child, &status, 0);
  close(back[0]);
  CHECK(cudaStreamSynchronize(s));
  CHECK(cudaEventDestroy(e));
  CHECK(cudaStreamDestroy(s));
  return ok && status == 0;
}

static int waiter() {
  cudaIpcEventHandle_t handle;
  cudaEvent_t e;
  char c;
  if (read(0, &handle, sizeof handle) != sizeof handle) return 1;
  CHECK(cudaFree(nullptr));
  CHECK(cudaIpcOpenEventHandle(&e, handle));
  if (write(1, "r", 1) != 1) return 1;
  while (read(0, &c, 1) == 1) {
    CHECK(cudaEventSynchronize(e));
    if (write(1, "d", 1) != 1) return 1;
  }
  CHECK(cudaEventDestroy(e));
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "waiter") == 0) return waiter();
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
      {"several streams of one request", severalStreams},
      {"queries see the end", queriesSeeTheEnd},
      {"memory sees the end", memorySeesTheEnd},
      {"asynchronous allocation, reused", asyncAllocReused},
      {"threads that share a stream", threadsShareAStream},
      {"a fork within a request", forkWithinARequest},
      {"allocations and frees within a request", freeWithinARequest},
      {"a long request", longRequest},
      {"an event of another process", eventOfAnotherProcess},
  };
  for (int r = 0; r < rounds; r++) {
    for (auto &p : probes) {
      if (p.probe == eventOfAnotherProcess && r < rounds - 1) continue; // it ends late entry
      bool ok = p.probe();
      if (!ok) wrong++;
      if (r == rounds - 1 || !ok) printf("%-55s %s\n", p.name, ok ? "ok" : "WRONG");
    }
  }
  CHECK(cudaDeviceSynchronize());
  return wrong != 0;
}
