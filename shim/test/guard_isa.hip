// SPDX-License-Identifier: Apache-2.0
// Kernels whose instructions hip_real_test.go reads.
#include "../giveway_guard.h"

extern "C" __global__ void takeBlock(giveway_guard *g, dim3 grid, unsigned *out) {
  uint3 block;
  if (giveway_block(g, grid, &block)) out[block.x] = threadIdx.x;
}

extern "C" __global__ void mayStop(giveway_guard *g, unsigned *out) {
  if (giveway_stopped(g)) return;
  out[0] = 1;
  if (giveway_stopped(g)) return; // must be read again
  out[1] = 1;
}
