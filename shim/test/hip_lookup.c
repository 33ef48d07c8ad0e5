/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up functions of the real libamdhip64, as Python programs do: hip_lookup LIBRARY NAME... A
 * launch without a device must return the same result with and without the shim. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

struct dim3 {
  uint32_t x, y, z;
};

int main(int argc, char **argv) {
  void *library = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW | RTLD_LOCAL);
  if (!library) return printf("%s\n", dlerror()), 1;
  for (int i = 2; i < argc; i++) {
    const char *missing = dlsym(library, argv[i]) ? NULL : dlerror();
    if (missing) printf("%s: %s\n", argv[i], missing);
  }
  int (*launch)(const void *, struct dim3, struct dim3, void **, size_t, void *) = NULL;
  *(void **)&launch = dlsym(library, "hipLaunchKernel");
  struct dim3 one = {1, 1, 1};
  if (launch) printf("%d\n", launch(NULL, one, one, NULL, 0, NULL));
  return 7;
}
