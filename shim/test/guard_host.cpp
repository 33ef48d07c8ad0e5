// SPDX-License-Identifier: Apache-2.0
// The host part of giveway_guard.h, on a fake runtime. A kernel is stopped while giveway holds
// the process and on request, goes on later, and runs each block once, also on a stream with
// the priority that the stop word's stream would have.
#define __CUDACC__
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "../giveway_guard.h"

static const unsigned blocks = 400;
static std::atomic<unsigned> done;

static void kernel(giveway_guard *g, dim3 grid, unsigned launched, std::vector<int> &out) {
  for (; launched > 0; launched--) {
    uint3 b;
    if (!giveway_block(g, grid, &b)) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (giveway_stopped(g)) continue;
    out[b.x]++;
    done++;
  }
}

// Whether no block runs for a while.
static bool is_stopped(void) {
  for (int i = 0; i < 100; i++) {
    unsigned before = done;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (done == before) return true;
  }
  return false;
}

static const char *once(int priority, bool by_giveway, bool repeatable) {
  cudaStream_t s;
  cudaStreamCreateWithPriority(&s, 0, priority);
  std::vector<int> out(blocks);
  giveway::guarded k{dim3(blocks)};
  const char *wrong = nullptr;
  done = 0;
  fake::repeatable = repeatable;
  std::thread stopper([&] {
    while (done < blocks / 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    by_giveway ? (void)(fake::closed = 1) : k.stop();
    if (!is_stopped() || done == blocks) wrong = "the kernel was not stopped";
    by_giveway ? (void)(fake::closed = 0) : k.resume();
  });
  k.run(s, [&](giveway_guard *g, dim3 grid, unsigned left) { s->put([=, &out] { kernel(g, grid, left, out); }); });
  stopper.join();
  cudaStreamDestroy(s);
  bool again = by_giveway && repeatable;
  for (int n : out) {
    if (n < 1 || (n > 1 && !again)) wrong = "a block did not run exactly once";
  }
  if (again && out[0] != 2) wrong = "the kernel did not start again";
  return k.stops() ? wrong : "it counts no stop";
}

/* Grids with more blocks than a launch can have are refused; the largest that can be is launched. */
static const char *large(void) {
  cudaStream_t s;
  cudaStreamCreateWithPriority(&s, 0, 0);
  const char *wrong = nullptr;
  for (dim3 grid : {dim3(65536, 65536), dim3(65536, 32768), dim3(1u << 31), dim3(~0u, ~0u, ~0u)}) {
    giveway::guarded k{grid};
    auto none = [&](giveway_guard *g, dim3, unsigned n) { s->put([=] { g->begun += n; }); };
    if (k.run(s, none) != cudaErrorInvalidValue) wrong = "too large a grid was not refused";
  }
  unsigned launched = 0;
  giveway::guarded k{dim3((1u << 31) - 1)};
  auto all = [&](giveway_guard *g, dim3, unsigned n) { launched = n, s->put([=] { g->begun = n; }); };
  if (k.run(s, all) != cudaSuccess || launched != (1u << 31) - 1) wrong = "the largest grid was not launched";
  cudaStreamDestroy(s);
  return wrong;
}

int main() {
  if (const char *wrong = large()) return puts(wrong), 1;
  for (int priority : {0, -5}) {
    for (int how : {0, 1, 2, 3}) {
      bool by_giveway = how & 1, repeatable = how & 2;
      const char *wrong = nullptr;
      /* Rarely, the stop word comes between two blocks. */
      for (int i = 0; i < 3 && (i == 0 || wrong); i++) wrong = once(priority, by_giveway, repeatable);
      if (wrong) {
        return printf("priority %d, by giveway %d, repeatable %d: %s\n", priority, by_giveway, repeatable, wrong), 1;
      }
    }
  }
  return 0;
}

// Functions of the shim.
extern "C" int giveway_closed(void) { return fake::closed; }
extern "C" int giveway_repeatable(void) { return fake::repeatable; }
extern "C" void giveway_ungated(int on) { fake::ungated = on; }
