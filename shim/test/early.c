/* SPDX-License-Identifier: Apache-2.0 */
/* A library that launches in its constructor. The constructors of linked libraries run before those
 * of preloaded ones. */
#include <stddef.h>
#include <stdint.h>

typedef unsigned U;
int cuLaunchKernel(void *, U, U, U, U, U, U, U, void *, void **, void **);

static void nothing(uint64_t *words) { (void)words; }

__attribute__((constructor)) static void early(void) {
  uint64_t words = 0;
  void *params[] = {&words};
  cuLaunchKernel((void *)nothing, 1, 2, 3, 4, 5, 6, 7, NULL, params, NULL);
}
