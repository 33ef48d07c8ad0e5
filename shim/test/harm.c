/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA programs, for fakecuda.c, that do unusual but permitted things. An earlier version of the
 * shim harmed each of them: it crashed, hung, was written to or lost resources.
 *
 *     harm context   launches on a stream while another context is current, which is then destroyed
 *     harm ids       sets its user and group id while kernels are parked
 *     harm stub      exports its own cuLaunchKernel (built with -DSTUB -rdynamic)
 *     harm legacy    a kernel in one blocking stream waits for a launch in another
 *     harm long      launches in many streams while a long kernel runs
 *     harm release   is one of two users of the primary context and releases it
 *     harm ahead     the same while kernels are parked
 *     harm files HOW closes all descriptors, one by one (close), at once (range, from), by
 *                    system calls (call; wait: while a kernel runs) or implicitly (dup2), and
 *                    opens its own files
 *     harm vfork     has a child that shares its memory and closes all descriptors
 *     harm contexts  has requests in two contexts alternately, each announced
 *     harm reload    loads and unloads the driver twice before it loads it for good
 *     harm message HOW  makes the shim write to stderr: which has no reader (pipe; pending: and has
 *                    a SIGPIPE of its own pending), or which it has closed and opened a file (file)
 *     harm environment  launches while its environment cannot be read: another thread replaces it
 *     harm forever   launches and prints what it does until it is killed
 *     harm plain     makes three launches
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../giveway.h"

typedef unsigned U;
typedef int launch_fn(void *, U, U, U, U, U, U, U, void *, void **, void **);
static int (*cuInit)(U), (*cuStreamCreate)(void **, U), (*cuStreamSynchronize)(void *);
static int (*cuCtxCreate)(void **, U, int), (*cuCtxDestroy)(void *);
static int (*cuCtxGetCurrent)(void **), (*cuCtxSetCurrent)(void *);
static int (*cuDevicePrimaryCtxRelease)(int), (*fakeEvents)(void);
static void (*fakeParks)(uint64_t *, uint64_t *);
static launch_fn *launch_kernel;
static uint64_t done;
static int over; /* the word that the long kernel waits for */

static void fail(const char *why) {
  printf("%s\n", why);
  fflush(stdout);
  _exit(1);
}

static void *load(void) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) fail("no driver");
#define FIND(name, symbol) \
  if (!(*(void **)&name = dlsym(lib, symbol))) fail(symbol)
  FIND(cuInit, "cuInit");
  FIND(cuStreamCreate, "cuStreamCreate");
  FIND(cuStreamSynchronize, "cuStreamSynchronize");
  FIND(cuCtxCreate, "cuCtxCreate_v2");
  FIND(cuCtxDestroy, "cuCtxDestroy_v2");
  FIND(cuCtxGetCurrent, "cuCtxGetCurrent");
  FIND(cuCtxSetCurrent, "cuCtxSetCurrent");
  FIND(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  FIND(fakeEvents, "fakeEvents");
  FIND(fakeParks, "fakeParks");
  FIND(launch_kernel, "cuLaunchKernel");
  cuInit(0);
  return lib;
}

#ifdef STUB
/* Programs have such a function if they load the driver when they first need it. */
int cuLaunchKernel(void *f, U a, U b, U c, U d, U e, U g, U m, void *s, void **params, void **extra) {
  return launch_kernel(f, a, b, c, d, e, g, m, s, params, extra);
}
#else
#define cuLaunchKernel launch_kernel
#endif

static void count(uint64_t *words) { __atomic_add_fetch((uint64_t *)words[0], 1, __ATOMIC_RELAXED); }
static void end(uint64_t *words) { count(words), __atomic_store_n(&over, 1, __ATOMIC_RELEASE); }
static void last(uint64_t *words) {
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) usleep(100);
  count(words);
}

static void launch(void *stream, void (*kernel)(uint64_t *), int n) {
  uint64_t words = 1, address = (uint64_t)&done;
  void *params[] = {&words, &address};
  for (int i = 0; i < n; i++) {
    if (cuLaunchKernel((void *)kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL)) fail("launch");
  }
}

static void finish(void *stream) {
  if (cuStreamSynchronize(stream)) fail("synchronize");
}

static void *new_stream(int blocking) {
  void *stream;
  if (cuStreamCreate(&stream, !blocking)) fail("create a stream");
  return stream;
}

/* Announces a launch and makes it. Returns how often kernels were parked so far. */
static uint64_t announced(void *stream) {
  struct timespec t;
  uint64_t ended, late;
  clock_gettime(CLOCK_MONOTONIC, &t);
  giveway_expect_ns(t.tv_sec * 1000000000ll + t.tv_nsec + 3000000);
  usleep(4000);
  launch(stream, count, 1);
  finish(stream);
  fakeParks(&ended, &late);
  return ended / 2; /* two kernels each time */
}

static void context(void) {
  void *first, *second, *stream = new_stream(0);
  cuCtxGetCurrent(&first);
  launch(stream, count, 3);
  cuCtxCreate(&second, 0, 0);
  launch(stream, count, 5);
  cuCtxSetCurrent(first);
  cuCtxDestroy(second);
  launch(stream, count, 40);
  finish(stream);
}

static void ids(void) {
  void *stream = new_stream(0);
  launch(stream, count, 1);
  while (announced(stream) == 0) {}
  if (setgid(getgid()) || setuid(getuid())) fail("set the same user and group id");
}

static void legacy(void) {
  void *first = new_stream(1), *second = new_stream(1), *other = new_stream(0), *another = new_stream(0);
  for (int i = 0; i < 4; i++) launch(other, count, 40), finish(other), usleep(1000); /* so that the shim learns that they are short */
  launch(NULL, count, 3);
  launch(first, last, 1);
  launch(other, count, 2);
  launch(another, count, 2);
  launch(second, end, 1); /* exceeds the bound of eight: a stream must be marked first */
  finish(first), finish(other), finish(another);
}

static void long_kernel(void) {
  void *stream = new_stream(0), *others[6];
  for (int i = 0; i < 6; i++) others[i] = new_stream(0);
  launch(stream, last, 1);
  launch(stream, count, 8);
  for (int i = 0; i < 600; i++) launch(others[i % 6], count, 1);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  finish(stream);
  for (int i = 0; i < 6; i++) finish(others[i]);
}

/* More often than the driver has streams: if one were lost each time, the program would end. */
#define OFTEN 80

static int release_primary(int ahead) {
  void *stream = new_stream(0);
  launch(stream, count, 1);
  int most = 0;
  for (uint64_t times = 0; times < OFTEN;) {
    launch(stream, count, 40);
    finish(stream);
    times = ahead ? announced(stream) : times + 1;
    if (cuDevicePrimaryCtxRelease(0)) fail("release");
    if (fakeEvents() > most) most = fakeEvents();
  }
  return most;
}

static void contexts(void) {
  void *ctx[2], *stream[2];
  cuCtxGetCurrent(&ctx[0]);
  stream[0] = new_stream(0);
  cuCtxCreate(&ctx[1], 0, 0);
  stream[1] = new_stream(0);
  launch(stream[1], count, 1);
  uint64_t parks = 0;
  for (int i = 0; parks < OFTEN; i++) {
    cuCtxSetCurrent(ctx[i % 2]);
    parks = announced(stream[i % 2]);
  }
}

#define LIMIT 1024 /* of descriptors */

/* Checks the files that the program has opened: number 2, or all from a number on. */
static void check_files(const char *when, int from) {
  for (int fd = from; fd < LIMIT; fd++) {
    struct stat s;
    if (from == 2 && fd > 2) break; /* only the file in place of stderr */
    const char *what = fstat(fd, &s) ? "closed" : s.st_size ? "written to" : NULL;
    if (!what) continue;
    printf("%s: descriptor %d of the program's was %s\n", when, fd, what);
    fail("a file was written, not by the program");
  }
}

static void close_all(const char *how) {
  if (strcmp(how, "range") == 0 && close_range(3, ~0u, 0)) fail("close_range");
  if (strcmp(how, "from") == 0) closefrom(3);
  for (int fd = 3; fd < LIMIT; fd++) {
    if (strcmp(how, "close") == 0) close(fd);
    if (strcmp(how, "call") == 0 || strcmp(how, "wait") == 0) syscall(SYS_close, fd);
  }
}

static void take_all(const char *how) {
  int one = strcmp(how, "dup2") == 0 ? memfd_create("its own", 0) : -1;
  for (int fd = 3; fd < LIMIT; fd++) {
    int got = one < 0 ? memfd_create("its own", 0) : dup2(one, fd);
    if (got != fd) fail("take a descriptor number");
  }
}

static void files(const char *how) {
  struct rlimit limit = {LIMIT, LIMIT}; /* so that all numbers can be used */
  if (setrlimit(RLIMIT_NOFILE, &limit)) fail("set the limit");
  void *stream = new_stream(0);
  launch(stream, count, 1);
  finish(stream);
  bool wait = strcmp(how, "wait") == 0;
  if (wait) launch(stream, count, 1);
  close_all(how);
  take_all(how);
  /* Otherwise at once, before the shim has checked its descriptors. */
  if (wait || strcmp(how, "call") == 0) usleep(1200000);
  if (!wait) launch(stream, count, 1);
  finish(stream);
  check_files("soon", 3);
  int status;
  pid_t child = fork();
  if (child == 0) check_files("in a child", 3), _exit(0);
  if (waitpid(child, &status, 0) != child || status) fail("the child failed");
  for (int fd = 3; fd < 8; fd++) close(fd); /* room for a new connection */
  usleep(1200000);
  launch(stream, count, 2);
  finish(stream);
  check_files("later", 8);
}

static void in_a_vfork(void) {
  void *stream = new_stream(0);
  launch(stream, count, 1);
  finish(stream);
  pid_t child = vfork();
  if (child == 0) close_range(3, ~0u, 0), _exit(0);
  int status;
  if (waitpid(child, &status, 0) != child || status) fail("the child failed");
  launch(stream, count, 1);
  finish(stream);
}

/* Reserves the addresses of an unloaded library, so that no other is mapped there. */
static void unload(void *lib) {
  uintptr_t place = (uintptr_t)fakeEvents & -4096ul;
  if (dlclose(lib)) fail("unload");
  mmap((void *)place, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

/* Makes a call as a program does that is linked with the driver. */
static void reload(void *lib) {
  for (int i = 0; i < 3; i++) {
    unload(lib);
    lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    *(void **)&launch_kernel = dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    *(void **)&cuStreamCreate = dlsym(lib, "cuStreamCreate");
    *(void **)&cuStreamSynchronize = dlsym(lib, "cuStreamSynchronize");
    *(void **)&fakeEvents = dlsym(lib, "fakeEvents");
    void *stream = new_stream(0);
    launch(stream, count, 5);
    finish(stream);
  }
}

static bool is_pending(void) {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE);
}

static void message(const char *how) {
  bool own = strcmp(how, "pending") == 0;
  sigset_t sigpipe, before, after;
  sigemptyset(&sigpipe);
  sigaddset(&sigpipe, SIGPIPE);
  if (own) sigprocmask(SIG_BLOCK, &sigpipe, NULL), raise(SIGPIPE);
  if (strcmp(how, "file") == 0) {
    close(2);
    if (memfd_create("its own", 0) != 2) fail("take the descriptor of stderr");
  }
  void *stream = new_stream(0);
  launch(stream, count, 3);
  finish(stream);
  sigprocmask(SIG_BLOCK, NULL, &before);
  errno = EDOM;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("prctl"); /* the shim says that it leaves */
  if (errno != EDOM) fail("errno was changed");
  sigprocmask(SIG_BLOCK, NULL, &after);
  if (sigismember(&before, SIGPIPE) != sigismember(&after, SIGPIPE)) fail("the signal mask was changed");
  if (is_pending() != own) fail(own ? "a signal of the program's was taken" : "a signal was left");
  if (strcmp(how, "file") == 0) check_files("soon", 2);
}

static void environment(void) {
  char **before = environ;
  environ = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void *stream = new_stream(0);
  launch(stream, count, 3);
  finish(stream);
  environ = before;
}

static void forever(void) {
  void *streams[] = {new_stream(0), new_stream(1)};
  for (int i = 0;; i++) {
    giveway_begin(i);
    giveway_priority(i % 5);
    launch(streams[i % 2], count, i % 7);
    if (i % 3 == 0) finish(streams[i % 2]);
    if (i % 4) giveway_end(i);
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  int most_events = 0;
  void *lib = load();
  if (strcmp(what, "context") == 0) context();
  else if (strcmp(what, "ids") == 0) ids();
  else if (strcmp(what, "legacy") == 0) legacy();
  else if (strcmp(what, "long") == 0) long_kernel();
  else if (strcmp(what, "release") == 0) most_events = release_primary(0);
  else if (strcmp(what, "ahead") == 0) most_events = release_primary(1);
  else if (strcmp(what, "contexts") == 0) contexts();
  else if (strcmp(what, "files") == 0) files(argc > 2 ? argv[2] : "");
  else if (strcmp(what, "environment") == 0) environment();
  else if (strcmp(what, "message") == 0) message(argc > 2 ? argv[2] : "");
  else if (strcmp(what, "vfork") == 0) in_a_vfork();
  else if (strcmp(what, "reload") == 0) reload(lib);
  else if (strcmp(what, "forever") == 0) forever();
  else if (strcmp(what, "plain") == 0 || strcmp(what, "stub") == 0) {
    void *stream = new_stream(0);
    launch(stream, count, 3);
    finish(stream);
  } else return 2;
  printf("ok done=%llu events=%d\n", (unsigned long long)done, most_events);
  return 0;
}
