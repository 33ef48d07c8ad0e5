// SPDX-License-Identifier: Apache-2.0
// giveway_guard.h on a GPU: a kernel is stopped and resumed at random, and every block runs
// once. Measures how long a stop takes and what the guard costs.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <string>
#include <vector>
#include <algorithm>
#include <atomic>

#include "../giveway.h"
#include "../giveway_guard.h"

static const unsigned blocks = 40000;

__device__ void spin(unsigned n, float *sink) {
  float x = threadIdx.x;
  for (unsigned i = 0; i < n; i++) x = x * 0.999f + 0.5f;
  if (x == 0.0f) *sink = x;
}

__global__ void plain(unsigned *out, unsigned n, float *sink) {
  spin(n, sink);
  if (threadIdx.x == 0) atomicAdd(&out[blockIdx.x], 1u);
}

__global__ void guardedKernel(giveway_guard *g, dim3 grid, unsigned *out, unsigned n, float *sink) {
  uint3 block;
  if (!giveway_block(g, grid, &block)) return;
  spin(n, sink);
  if (threadIdx.x == 0) atomicAdd(&out[block.x], 1u);
}

__global__ void idempotent(giveway_guard *g, dim3 grid, unsigned *out, unsigned n, float *sink) {
  uint3 block;
  if (!giveway_block(g, grid, &block)) return;
  for (unsigned i = 0; i < 16; i++) {
    spin(n / 16, sink);
    if (giveway_stopped(g)) return;
  }
  if (threadIdx.x == 0) out[block.x] = 1u;
}

#define CHECK(call)                                                                   \
  do {                                                                                \
    cudaError_t e_ = (call);                                                          \
    if (e_ != cudaSuccess) {                                                          \
      printf("%s: %s\n", #call, cudaGetErrorString(e_));                              \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

typedef std::chrono::steady_clock wall;
static double ms(wall::time_point from) { return std::chrono::duration<double, std::milli>(wall::now() - from).count(); }

static void expectOnes(const unsigned *device, const char *what) {
  std::vector<unsigned> got(blocks);
  CHECK(cudaMemcpy(got.data(), device, blocks * sizeof(unsigned), cudaMemcpyDeviceToHost));
  for (unsigned n : got) {
    if (n != 1) {
      printf("%s: a block was done %u times\n", what, n);
      exit(1);
    }
  }
}

// Runs guarded kernels for two seconds after each line that is read, and prints how often they
// were stopped by giveway. With `twice` the program first says that they may run twice.
static int held(cudaStream_t s, unsigned *out, float *sink, bool twice) {
  char line[64];
  CHECK(cudaMemset(out, 0, blocks * sizeof *out)); // so that giveway knows this process
  if (twice && giveway_idempotent(1)) return printf("the hint was not taken\n"), 1;
  printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    unsigned stops = 0;
    for (auto from = wall::now(); ms(from) < 2000;) {
      giveway::guarded k{dim3(blocks)};
      CHECK(cudaMemset(out, 0, blocks * sizeof *out));
      CHECK(k.run(s, [&](giveway_guard *g, dim3 grid, unsigned left) { 
        if (twice) idempotent<<<left, 256, 0, s>>>(g, grid, out, 40000, sink);
        else guardedKernel<<<left, 256, 0, s>>>(g, grid, out, 40000, sink);
      }));
      stops += k.stops();
      expectOnes(out, "held");
    }
    printf("{\"answered\":{\"samples_us\":[%u]}}\n", stops);
    fflush(stdout);
  }
  return 0;
}

int main(int argc, char **argv) {
  unsigned *out;
  float *sink;
  cudaStream_t s;
  CHECK(cudaMalloc(&out, blocks * sizeof *out));
  CHECK(cudaMalloc(&sink, sizeof *sink));
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  if (argc > 1) return held(s, out, sink, std::string(argv[1]) == "twice");
  const unsigned n = 40000; // about 200 us per block
  double best[2] = {1e9, 1e9};
  for (int round = 0; round < 4; round++) {
    CHECK(cudaMemset(out, 0, blocks * sizeof *out));
    CHECK(cudaDeviceSynchronize());
    auto from = wall::now();
    plain<<<blocks, 256, 0, s>>>(out, n, sink);
    CHECK(cudaStreamSynchronize(s));
    best[0] = std::min(best[0], ms(from));
    CHECK(cudaMemset(out, 0, blocks * sizeof *out));
    CHECK(cudaDeviceSynchronize());
    giveway::guarded k{dim3(blocks)};
    from = wall::now();
    CHECK(k.run(s, [&](giveway_guard *g, dim3 grid, unsigned left) { guardedKernel<<<left, 256, 0, s>>>(g, grid, out, n, sink); }));
    best[1] = std::min(best[1], ms(from));
    expectOnes(out, "guarded");
  }
  printf("kernel of %u blocks: %.2f ms, guarded %.2f ms (%.3f x)\n", blocks, best[0], best[1], best[1] / best[0]);

  /* On a GPU that others use, a stop and its end may both pass while the kernel is off the GPU. */
  unsigned stops = 0;
  for (int round = 0; round < 10 && stops == 0; round++) {
    CHECK(cudaMemset(out, 0, blocks * sizeof *out));
    CHECK(cudaDeviceSynchronize());
    giveway::guarded k{dim3(blocks)};
    std::atomic<bool> over{false};
    std::thread stopper([&] {
      srand(1);
      while (!over) {
        std::this_thread::sleep_for(std::chrono::microseconds(rand() % 8000));
        k.stop();
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        k.resume();
      }
    });
    auto from = wall::now();
    CHECK(k.run(s, [&](giveway_guard *g, dim3 grid, unsigned left) { guardedKernel<<<left, 256, 0, s>>>(g, grid, out, n, sink); }));
    over = true;
    stopper.join();
    stops = k.stops();
    printf("stopped %u times and resumed, all in %.1f ms\n", stops, ms(from));
    expectOnes(out, "stopped and resumed");
  }
  if (stops == 0) return printf("it was never stopped\n"), 1;

  /* How long a stop takes: from the call to the end of the kernel. */
  std::vector<double> took;
  for (int round = 0; round < 200; round++) {
    giveway::guarded j{dim3(blocks)};
    wall::time_point asked, ended;
    std::thread asker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
      asked = wall::now();
      j.stop();
      std::this_thread::sleep_for(std::chrono::milliseconds(6));
      j.resume();
    });
    bool first = true;
    CHECK(cudaMemset(out, 0, blocks * sizeof *out));
    CHECK(j.run(s, [&](giveway_guard *g, dim3 grid, unsigned left) {
      guardedKernel<<<left, 256, 0, s>>>(g, grid, out, n, sink);
      if (first) CHECK(cudaLaunchHostFunc(s, [](void *at) { *(wall::time_point *)at = wall::now(); }, &ended));
      first = false;
    }));
    asker.join();
    if (j.stops()) took.push_back(std::chrono::duration<double, std::micro>(ended - asked).count());
  }
  std::sort(took.begin(), took.end());
  if (took.empty()) return printf("no stop came before the end\n"), 1;
  double p99 = took[std::min(took.size() - 1, took.size() * 99 / 100)];
  printf("a stop takes p50 %.0f us, p99 %.0f us, max %.0f us, of %zu\n", took[took.size() / 2], p99, took.back(), took.size());

  CHECK(cudaMemset(out, 0, blocks * sizeof *out));
  CHECK(cudaDeviceSynchronize());
  giveway::guarded f{dim3(blocks)};
  std::thread flusher([&] {
    for (int i = 0; i < 3; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      f.flush();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      f.resume();
    }
  });
  CHECK(f.run(s, [&](giveway_guard *g, dim3 grid, unsigned left) { idempotent<<<left, 256, 0, s>>>(g, grid, out, n, sink); }));
  flusher.join();
  expectOnes(out, "flushed");
  printf("flushed %u times, and done\n", f.stops());
  return 0;
}
