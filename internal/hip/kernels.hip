// Kernels of giveway-bench. hiprtc compiles them at run time for the GPU of the machine.
//
// Work is a count of dependent multiply-adds, never a wait on a clock: a kernel that
// waited until some time would "finish" its work while it is preempted.

// Every thread does iterations x 16 dependent multiply-adds. out is written only if the
// result is 0, which it never is. It keeps the compiler from removing the work.
extern "C" __global__ void spin(float *out, unsigned iterations) {
  float x = 1.0f;
  for (; iterations > 0; iterations--) {
#pragma unroll
    for (int i = 0; i < 16; i++) x = __builtin_fmaf(x, 0.999f, 0.5f);
  }
  if (x == 0.0f) *out = x;
}

// One thread reads a word of mapped host memory until it is not zero. It gives up after
// that many reads or that many ticks of the constant clock, whichever is first, so that a
// dead host cannot hold the GPU.
extern "C" __global__ void parked(const volatile unsigned *flag, unsigned polls, unsigned long long ticks) {
  unsigned long long start = wall_clock64();
  for (; polls > 0 && *flag == 0; polls--) {
    if (wall_clock64() - start >= ticks) break;
  }
}
