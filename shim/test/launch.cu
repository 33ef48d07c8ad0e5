// SPDX-License-Identifier: Apache-2.0
// What a launch costs: a tiny kernel and a wait for it, and bursts of a thousand.
// Says "ready", then measures at each line it reads: JSON, microseconds. All on one CPU,
// which is the same for every process of this: some are nearer to the GPU than others.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sched.h>
#include <cuda_runtime.h>
#include <unistd.h>
#include <vector>

__global__ void tiny() {}

typedef std::chrono::steady_clock wall;

static double us(wall::time_point from, wall::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

int main() {
  cudaStream_t s;
  char line[64];
  if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess) return printf("no GPU\n"), 1;
  tiny<<<1, 1, 0, s>>>();
  cudaStreamSynchronize(s);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) > 2 ? 2 : 0, &one);
  sched_setaffinity(0, sizeof one, &one); // where it may not, it may be anywhere
  printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    std::vector<double> single, burst;
    for (int i = 0; i < 20000; i++) {
      auto from = wall::now();
      tiny<<<1, 1, 0, s>>>();
      cudaStreamSynchronize(s);
      single.push_back(us(from, wall::now()));
    }
    for (int i = 0; i < 60; i++) {
      auto from = wall::now();
      for (int j = 0; j < 1000; j++) tiny<<<1, 1, 0, s>>>();
      cudaStreamSynchronize(s);
      burst.push_back(us(from, wall::now()) / 1000);
    }
    std::sort(single.begin(), single.end());
    std::sort(burst.begin(), burst.end());
    printf("{\"answered\":{\"samples_us\":[%.4f,%.4f,%.4f,%.4f]}}\n", single[single.size() / 2], single[single.size() * 99 / 100],
           burst[burst.size() / 2], burst[burst.size() * 9 / 10]);
    fflush(stdout);
  }
  return cudaGetLastError() != cudaSuccess;
}
