// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a launch: a tiny kernel and a wait for it, and bursts of a thousand, with
// the driver's own functions and with those of the given library. It alternates between both in
// one process, because two processes of one program differ by more than the library costs.
// Prints "ready", then measures at each line it reads: JSON, in microseconds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>
#include <vector>

__global__ void tiny() {}

typedef std::chrono::steady_clock wall;

static double us(wall::time_point from, wall::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

static double at(std::vector<double> &v, double share) {
  std::sort(v.begin(), v.end());
  return v[(size_t)(share * v.size())];
}

static struct {
  decltype(&cuLaunchKernel) launch;
  decltype(&cuStreamSynchronize) wait;
} by[2];

int main(int argc, char **argv) {
  cudaStream_t s;
  cudaFunction_t f;
  char line[64];
  if (argc != 2) return printf("which library?\n"), 1;
  if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess) return printf("no GPU\n"), 1;
  if (cudaGetFuncBySymbol(&f, (const void *)tiny) != cudaSuccess) return printf("no kernel\n"), 1;
  const char *files[] = {"libcuda.so.1", argv[1]};
  for (int i = 0; i < 2; i++) {
    void *lib = dlopen(files[i], RTLD_NOW);
    if (!lib) return printf("%s\n", dlerror()), 1;
    by[i].launch = (decltype(&cuLaunchKernel))dlsym(lib, "cuLaunchKernel");
    by[i].wait = (decltype(&cuStreamSynchronize))dlsym(lib, "cuStreamSynchronize");
    if (!by[i].launch || !by[i].wait) return printf("%s has no CUDA\n", files[i]), 1;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) > 2 ? 2 : 0, &one);
  sched_setaffinity(0, sizeof one, &one); // if this is not permitted, the kernel chooses
  auto launch = [&](int i) { return by[i].launch((CUfunction)f, 1, 1, 1, 1, 1, 1, 0, (CUstream)s, nullptr, nullptr); };
  auto wait = [&](int i) { return by[i].wait((CUstream)s); };
  if (launch(0) || wait(0) || launch(1) || wait(1)) return printf("it cannot be launched\n"), 1;
  printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    std::vector<double> single[2], burst[2];
    for (int round = 0; round < 600; round++) {
      int i = (round ^ round >> 1) & 1; // each is first as often as second
      for (int j = 0; j < 50; j++) {
        auto from = wall::now();
        launch(i);
        wait(i);
        single[i].push_back(us(from, wall::now()));
      }
      auto from = wall::now();
      for (int j = 0; j < 1000; j++) launch(i);
      wait(i);
      burst[i].push_back(us(from, wall::now()) / 1000);
    }
    printf("{\"answered\":{\"samples_us\":[");
    for (int i = 0; i < 2; i++) {
      printf("%s%.4f,%.4f,%.4f,%.4f", i ? "," : "", at(single[i], 0.5), at(single[i], 0.99), at(burst[i], 0.5), at(burst[i], 0.9));
    }
    printf("]}}\n");
    fflush(stdout);
  }
  return cudaDeviceSynchronize() != cudaSuccess;
}
