/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym must return what it returns without the shim, and a call must reach the function that it
 * reaches without it. Built four times: as two libraries (FIRST and SECOND), as a plugin (THIRD),
 * and as the program that uses them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if defined(FIRST)
const char *probe(void) { return "first"; }
const char *next_probe(void) { return ((const char *(*)(void))dlsym(RTLD_NEXT, "probe"))(); }
#elif defined(SECOND)
const char *probe(void) { return "second"; }
int cuLaunchKernel(void) { return 77; } /* in a library that is not the driver */
int cuOnlyHere(void) { return 78; }
#elif defined(THIRD)
int cuStreamQuery(void *stream) { return stream ? 79 : 0; } /* stands in for the driver, which is not loaded */
int ask(void *stream) { return cuStreamQuery(stream); }
#else
const char *probe(void);
const char *next_probe(void);

static void show(const char *what, void *found, void *in) {
  Dl_info info = {0};
  if (found) dladdr(found, &info);
  const char *file = info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
  const char *where = !found ? "none" : found == in ? "its own" : file ? file + 1 : "found";
  printf("%s: %s%s\n", what, where, dlerror() ? ", error" : "");
}

int main(int argc, char **argv) {
  (void)argc;
  printf("%s, then %s\n", probe(), next_probe());
  show("default cuMemcpyHtoD_v2", dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2"), NULL);
  show("default clEnqueueTask", dlsym(RTLD_DEFAULT, "clEnqueueTask"), NULL);
  show("program cuMemcpyHtoD_v2", dlsym(dlopen(NULL, RTLD_NOW), "cuMemcpyHtoD_v2"), NULL);
  show("next cuMemcpyHtoD_v2", dlsym(RTLD_NEXT, "cuMemcpyHtoD_v2"), NULL);
  void *lib = dlopen(argv[1], RTLD_NOW);
  show("library's cuLaunchKernel", dlsym(lib, "cuLaunchKernel"), NULL);
  show("library's cuOnlyHere", dlsym(lib, "cuOnlyHere"), NULL);
  show("version", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5"), dlsym(RTLD_DEFAULT, "nothing"));
  show("no version", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_9"), NULL);
  int (*ask)(void *) = (int (*)(void *))dlsym(dlopen(argv[2], RTLD_NOW), "ask");
  printf("plugin's cuStreamQuery: %d\n", ask(argv));
  show("default cuStreamQuery", dlsym(RTLD_DEFAULT, "cuStreamQuery"), NULL);
  printf("ok sum=0\n");
  return 0;
}
#endif
