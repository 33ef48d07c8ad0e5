// SPDX-License-Identifier: Apache-2.0
// The device part of giveway_guard.h, emulated on the host one block at a time: whenever a stop
// comes, each block runs exactly once.
#define GIVEWAY_GUARD_EMULATED
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "../giveway_guard.h"

int main() {
  const dim3 grid = {5, 3, 2};
  const unsigned total = grid.x * grid.y * grid.z;
  for (unsigned every = 1; every <= total; every++) {
    std::vector<int> done(total);
    giveway_guard g = {};
    while (g.begun < total) {
      g.stop = 0;
      for (unsigned launched = total - g.begun, n = 0; launched > 0; launched--, n++) {
        uint3 b;
        if (n == every) g.stop = 1;
        if (!giveway_block(&g, grid, &b)) continue;
        if (b.x >= grid.x || b.y >= grid.y || b.z >= grid.z) return puts("a block outside of the grid"), 1;
        done[b.x + grid.x * (b.y + grid.y * b.z)]++;
      }
    }
    for (int n : done) {
      if (n != 1) return printf("a block was done %d times\n", n), 1;
    }
  }
  /* A grid of 2^32 blocks, whose number does not fit into 32 bits. */
  uint3 b = {0, 0, 0};
  giveway_guard large = {0, 65536 + 7, 0, 0};
  if (!giveway_block(&large, dim3(65536, 65536), &b) || b.x != 7 || b.y != 1) return puts("a block of a large grid does not run"), 1;
  giveway_guard g = {2, 0, 0, 0};
  if (!giveway_stopped(&g) || !g.left) return puts("a flush is not noticed"), 1;
  g = {1, 0, 0, 0};
  if (giveway_stopped(&g) || g.left) return puts("a stop is taken for a flush"), 1;
  return 0;
}
