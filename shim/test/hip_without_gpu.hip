// SPDX-License-Identifier: Apache-2.0
// A HIP program on a machine without an AMD GPU, with the real runtime. Prints the result of every
// call, and compiles a kernel with hiprtc. With and without the shim it must print the
// same, and exit with 7.
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <hip/hip_runtime.h>

#include <hip/hip_ext.h>
#include <hip/hiprtc.h>

#define SAY(call) printf("%d " #call "\n", (int)(call))

__global__ void empty(int *p) {
  if (p) *p = 1;
}

static void calls() {
  int a = 1, b = 2, count = -1;
  void *p = nullptr;
  hipStream_t s = nullptr;
  hipEvent_t e = nullptr;
  SAY(hipGetDeviceCount(&count));
  printf("%d devices\n", count);
  SAY(hipGetDevice(&count));
  SAY(hipMalloc(&p, 4));
  SAY(hipHostMalloc(&p, 4, 0));
  SAY(hipStreamCreate(&s));
  SAY(hipEventCreateWithFlags(&e, hipEventDisableTiming));
  empty<<<1, 1>>>(nullptr);
  SAY(hipGetLastError());
  SAY(hipModuleLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  SAY(hipExtModuleLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr, nullptr, nullptr, 0));
  SAY(hipMemcpy(&a, &b, sizeof a, hipMemcpyHostToHost));
  SAY(hipMemcpyAsync(&a, &b, sizeof a, hipMemcpyHostToHost, nullptr));
  SAY(hipMemset(&a, 0, sizeof a));
  SAY(hipDeviceSynchronize());
  SAY(hipStreamSynchronize(nullptr));
  SAY(hipStreamQuery(nullptr));
  SAY(hipFree(nullptr));
  SAY(hipHostFree(nullptr));
  fflush(stdout);
}

static void compile() {
  const char *source = "extern \"C\" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }";
  const char *options[] = {"--offload-arch=gfx90a"};
  hiprtcProgram program;
  SAY(hiprtcCreateProgram(&program, source, "twice.hip", 0, nullptr, nullptr));
  SAY(hiprtcCompileProgram(program, 1, options));
  size_t size = 0;
  SAY(hiprtcGetCodeSize(program, &size));
  std::vector<char> code(size);
  SAY(hiprtcGetCode(program, code.data()));
  unsigned long long sum = 14695981039346656037ull;
  for (char c : code) sum = (sum ^ (unsigned char)c) * 1099511628211ull;
  printf("%zu bytes of code, %016llx\n", size, sum);
  SAY(hiprtcDestroyProgram(&program));
}

int main() {
  int status = -1;
  calls();
  compile();
  std::thread(calls).join();
  if (fork() == 0) {
    calls();
    _exit(5);
  }
  wait(&status);
  printf("the child exited with %d\n", WEXITSTATUS(status));
  return 7;
}
