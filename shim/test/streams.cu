// SPDX-License-Identifier: Apache-2.0
// Two streams of one process, of which one has a higher priority. It knows nothing of the shim. It
// uses the driver's calls and brings its kernels as PTX, so that the same program runs on a GPU and
// on fakecuda.c, where kernels are C functions that have the device one after another.
//
//   streams both|high|low|equal SECONDS   prints the latencies of requests in us, for each stream:
//                                         quantiles, then requests per 1000 s and all samples
//   streams turns SECONDS                 the streams take turns: nothing is in flight when a stream gets a command
//   streams depends ROUNDS                the streams wait for each other in all kinds of ways
//
// In "both", "high" and "low" a request on the low stream is a burst of long kernels, and one on the
// high stream is a few short kernels, each of which the program waits for. In "equal" both streams
// have the same bursts, one after another.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

using word = unsigned long long;
using stream = void *;
using steady = std::chrono::steady_clock;

static const int burst = 10, shortKernels = 8;
static const word longNs = 2000000, shortNs = 50000;

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry busy_kernel(.param .u64 ns) {\n"
    " .reg .u64 %t<4>; .reg .pred %p;\n"
    " ld.param.u64 %t0, [ns]; mov.u64 %t1, %globaltimer;\n"
    "again: mov.u64 %t2, %globaltimer; sub.u64 %t3, %t2, %t1; setp.lt.u64 %p, %t3, %t0; @%p bra again;\n"
    " ret;\n}\n"
    ".visible .entry set_kernel(.param .u64 at, .param .u64 value) {\n"
    " .reg .u64 %a<2>;\n"
    " ld.param.u64 %a0, [at]; ld.param.u64 %a1, [value]; cvta.to.global.u64 %a0, %a0; st.volatile.global.u64 [%a0], %a1; membar.sys;\n"
    " ret;\n}\n"
    ".visible .entry await_kernel(.param .u64 at, .param .u64 value) {\n"
    " .reg .u64 %a<3>; .reg .pred %p;\n"
    " ld.param.u64 %a0, [at]; ld.param.u64 %a1, [value]; cvta.to.global.u64 %a0, %a0;\n"
    "again: ld.volatile.global.u64 %a2, [%a0]; setp.lt.u64 %p, %a2, %a1; @%p bra again;\n"
    " ret;\n}\n";

#define MUST(what)                                                                          \
  do {                                                                                      \
    int r_ = (what);                                                                        \
    if (r_) printf("line %d: %s: %d\n", __LINE__, #what, r_), fflush(stdout), _exit(1);     \
  } while (0)

#define CALLS(F)                                                                            \
  F(cuInit, unsigned)                                                                       \
  F(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream, void **, void **) \
  F(cuLaunchHostFunc, stream, void (*)(void *), void *)                                     \
  F(cuStreamCreateWithPriority, stream *, unsigned, int)                                    \
  F(cuStreamSynchronize, stream)                                                            \
  F(cuStreamWaitEvent, stream, void *, unsigned)                                            \
  F(cuStreamWaitValue32_v2, stream, word, uint32_t, unsigned)                               \
  F(cuEventCreate, void **, unsigned)                                                       \
  F(cuEventRecord, void *, stream)                                                          \
  F(cuMemHostRegister_v2, void *, size_t, unsigned)                                         \
  F(cuMemHostGetDevicePointer_v2, word *, void *, unsigned)                                 \
  F(cuMemcpyDtoH_v2, void *, word, size_t)
// Only a GPU has these.
#define GPU_CALLS(F)                                                                        \
  F(cuDeviceGet, int *, int)                                                                \
  F(cuDeviceGetAttribute, int *, int, int)                                                  \
  F(cuDevicePrimaryCtxRetain, void **, int)                                                 \
  F(cuCtxSetCurrent, void *)                                                                \
  F(cuModuleLoadData, void **, const void *)                                                \
  F(cuModuleGetFunction, void **, void *, const char *)
#define DECLARE(name, ...) static int (*name)(__VA_ARGS__);
CALLS(DECLARE)
GPU_CALLS(DECLARE)

static bool fake;
static unsigned fullGrid = 1; // blocks of 1024 threads that fill the device
static void *context, *busy, *set, *await;

// The fake device: one kernel at a time, in the order of arrival.
static std::atomic<unsigned> ticket{0}, serving{0};
static void fakeBusy(word *words) {
  for (unsigned mine = ticket++; serving != mine;) usleep(20);
  usleep((unsigned)(words[0] / 1000));
  serving++;
}
static void fakeSet(word *words) { __atomic_store_n((word *)words[0], words[1], __ATOMIC_RELEASE); }
static void fakeAwait(word *words) {
  while (__atomic_load_n((word *)words[0], __ATOMIC_ACQUIRE) < words[1]) usleep(100);
}

static void find() {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) printf("%s\n", dlerror()), exit(1);
  fake = dlsym(lib, "fakeCounts") != nullptr;
#define LOOK(name, ...)                                                                     \
  if (!(name = (int (*)(__VA_ARGS__))dlsym(lib, #name))) printf("no %s\n", #name), exit(1);
  CALLS(LOOK)
  MUST(cuInit(0));
  if (fake) {
    busy = (void *)fakeBusy, set = (void *)fakeSet, await = (void *)fakeAwait;
    return;
  }
  GPU_CALLS(LOOK)
  int device, processors = 0;
  void *module;
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDeviceGetAttribute(&processors, 16 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */, device));
  fullGrid = 2 * (unsigned)processors;
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, ptx));
  MUST(cuModuleGetFunction(&busy, module, "busy_kernel"));
  MUST(cuModuleGetFunction(&set, module, "set_kernel"));
  MUST(cuModuleGetFunction(&await, module, "await_kernel"));
}

static void useContext() {
  if (!fake) MUST(cuCtxSetCurrent(context));
}

static void launch(void *kernel, unsigned grid, unsigned block, word a, word b, stream s) {
  word count = 2;
  void *fakeParams[] = {&count, &a, &b}, *params[] = {&a, &b};
  if (fake) MUST(cuLaunchKernel(kernel, 1, 2, 3, 4, 5, 6, 7, s, fakeParams, nullptr));
  else MUST(cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, 0, s, params, nullptr));
}
static void launchLong(stream s) { launch(busy, fullGrid, 1024, longNs, 0, s); }
static void launchShort(stream s) { launch(busy, 8, 256, shortNs, 0, s); }

static stream create(int priority) {
  stream s;
  MUST(cuStreamCreateWithPriority(&s, 1 /* non-blocking */, priority));
  return s;
}

static double since(steady::time_point from) {
  return std::chrono::duration<double, std::micro>(steady::now() - from).count();
}

static double quantile(std::vector<double> &v, double q) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[std::min(v.size() - 1, (size_t)(q * (double)v.size()))];
}

static void print(const char *name, std::vector<double> &us, double seconds) {
  double p50 = quantile(us, 0.5), p99 = quantile(us, 0.99), most = quantile(us, 1);
  printf("%s n=%zu p50=%.0f p99=%.0f max=%.0f\n", name, us.size(), p50, p99, most);
  printf("%s samples=%.0f:", name, 1000 * (double)us.size() / seconds);
  for (double v : us) printf(" %.0f", v);
  printf("\n");
}

static std::atomic<bool> over{false};

static void bursts(stream s, std::vector<double> *us) {
  useContext();
  while (!over) {
    auto from = steady::now();
    for (int i = 0; i < burst; i++) launchLong(s);
    MUST(cuStreamSynchronize(s));
    us->push_back(since(from));
  }
}

static void requests(stream s, std::vector<double> *us) {
  useContext();
  unsigned seed = 1;
  while (!over) {
    usleep(5000 + ((seed = seed * 1103515245 + 12345) >> 16) % 5000);
    auto from = steady::now();
    for (int i = 0; i < shortKernels; i++) {
      launchShort(s);
      MUST(cuStreamSynchronize(s));
    }
    us->push_back(since(from));
  }
}

static void measure(const char *mode, double seconds) {
  stream high = create(-1), low = create(0);
  std::vector<double> highUs, lowUs;
  std::vector<std::thread> threads;
  bool equal = !strcmp(mode, "equal"), both = equal || !strcmp(mode, "both");
  if (both || !strcmp(mode, "high")) threads.emplace_back(equal ? bursts : requests, high, &highUs);
  if (both || !strcmp(mode, "low")) threads.emplace_back(bursts, low, &lowUs);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  over = true;
  for (auto &t : threads) t.join();
  print("high", highUs, seconds);
  print("low", lowUs, seconds);
}

// Threads in lockstep: a step of one begins when that of the other is over.
struct steps {
  std::atomic<int> at{0};
  void wait(int n) {
    while (at < n) std::this_thread::yield();
  }
  void pass(int n) { at = n; }
};

static void turns(double seconds) {
  stream high = create(-1), low = create(0);
  steps turn;
  std::thread t([&] {
    useContext();
    for (int n = 1; turn.wait(n), !over; n += 2) {
      launchShort(low);
      MUST(cuStreamSynchronize(low));
      turn.pass(n + 1);
    }
  });
  auto from = steady::now();
  for (int n = 0; !over; n += 2) {
    turn.wait(n);
    launchShort(high);
    MUST(cuStreamSynchronize(high));
    usleep(5000);
    over = since(from) > seconds * 1e6;
    turn.pass(n + 1);
  }
  t.join();
}

static word *shared, sharedOnDevice; // memory of the host that the device sees
static steps step;
static std::atomic<int> lowLaunched{0};

static void untilLowLaunched(void *round) {
  while (lowLaunched < (int)(intptr_t)round) usleep(100);
}

static const int kinds = 5;

// What the high thread does in a round. It must end although the low thread launches at the same
// time.
static void highRound(int kind, int round, stream high, stream low, void *event) {
  launchShort(high);
  switch (kind) {
  case 0: // an event that the low thread has recorded
    step.wait(2 * round + 1);
    MUST(cuStreamWaitEvent(high, event, 0));
    launchShort(high);
    break;
  case 1: // a kernel that waits for one that is launched later on the low stream
    launch(await, 1, 1, sharedOnDevice, (word)round + 1, high);
    break;
  case 2: // the stream itself waits for a word that such a kernel writes
    MUST(cuStreamWaitValue32_v2(high, fake ? (word)shared | 1ull << 62 : sharedOnDevice, (uint32_t)round + 1, 0));
    launchShort(high);
    break;
  case 3: // a host function waits until the low thread has launched
    MUST(cuLaunchHostFunc(high, untilLowLaunched, (void *)(intptr_t)(round + 1)));
    break;
  case 4: // the thread launches on both streams and waits for the low one first
    launchLong(low);
    launchShort(high);
    launchLong(low);
    MUST(cuStreamSynchronize(low));
    break;
  }
  step.wait(2 * round + 1);
  MUST(cuStreamSynchronize(high));
}

static void depends(int rounds) {
  stream high = create(-1), low = create(0);
  void *event;
  void *m = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  shared = (word *)m;
  MUST(cuMemHostRegister_v2(m, 4096, 3));
  MUST(cuMemHostGetDevicePointer_v2(&sharedOnDevice, m, 0));
  if (fake) sharedOnDevice = (word)m;
  MUST(cuEventCreate(&event, 2));
  std::vector<double> us[kinds];
  std::thread t([=] {
    useContext();
    for (int round = 0; round < rounds * kinds; round++) {
      step.wait(2 * round);
      for (int i = 0; i < 3; i++) launchShort(low);
      MUST(cuEventRecord(event, low));
      launch(set, 1, 1, sharedOnDevice, (word)round + 1, low);
      lowLaunched = round + 1;
      step.pass(2 * round + 1);
      launchShort(low);
      MUST(cuStreamSynchronize(low));
    }
  });
  for (int round = 0; round < rounds * kinds; round++) {
    auto from = steady::now();
    step.pass(2 * round);
    highRound(round % kinds, round, high, low, event);
    us[round % kinds].push_back(since(from));
  }
  t.join();
  static const char *const names[kinds] = {"event", "kernel", "value", "host", "thread"};
  for (int k = 0; k < kinds; k++) print(names[k], us[k], 1);
  printf("ok rounds=%llu\n", shared[0]);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  find();
  if (!strcmp(argv[1], "depends")) depends(atoi(argv[2]));
  else if (!strcmp(argv[1], "turns")) turns(atof(argv[2])), printf("ok streams\n");
  else measure(argv[1], atof(argv[2])), printf("ok streams\n");
  fflush(stdout);
  _exit(0); // no driver's thread may run during exit
}
