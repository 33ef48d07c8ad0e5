/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OpenCL program that knows nothing of the shim.
 *
 *     openclwork chain KERNELS LOOPS [halfway]
 *     openclwork paced REQUESTS LOOPS PAUSE_US
 *     openclwork endless (requests until it reads a line)
 *     openclwork mixed ROUNDS
 *     openclwork user COMMANDS
 *     openclwork released COMMANDS (on a queue that it releases before they run)
 *     openclwork polled REQUESTS
 *     openclwork callback REQUESTS
 *     openclwork watched REQUESTS
 *     openclwork leave REQUESTS (exits, and forks, without waiting for the last ones)
 *     openclwork extension LAUNCHES
 *     openclwork beside REQUESTS (uses CUDA too, and gives its primary context back each time)
 *
 * With halfway it prints a line after half of the kernels and waits for one before it goes on.
 * It checks its results against its own calculation: a command that is lost, run twice or out
 * of order changes them. Built twice: with LINKED, against libOpenCL; without, it finds every
 * function through dlopen and dlsym.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAITS uint32_t, void *const *, void **

#define FUNCTIONS(F)                                                                                         \
  F(int32_t, clGetPlatformIDs, (uint32_t, void **, uint32_t *))                                              \
  F(int32_t, clGetDeviceIDs, (void *, uint64_t, uint32_t, void **, uint32_t *))                              \
  F(void *, clCreateContext, (const intptr_t *, uint32_t, void *const *, void *, void *, int32_t *))         \
  F(void *, clCreateCommandQueue, (void *, void *, uint64_t, int32_t *))                                     \
  F(int32_t, clRetainCommandQueue, (void *))                                                                 \
  F(int32_t, clReleaseCommandQueue, (void *))                                                                \
  F(void *, clCreateBuffer, (void *, uint64_t, size_t, void *, int32_t *))                                   \
  F(void *, clCreateProgramWithSource, (void *, uint32_t, const char **, const size_t *, int32_t *))         \
  F(int32_t, clBuildProgram, (void *, uint32_t, void *const *, const char *, void *, void *))                \
  F(void *, clCreateKernel, (void *, const char *, int32_t *))                                               \
  F(int32_t, clSetKernelArg, (void *, uint32_t, size_t, const void *))                                       \
  F(int32_t, clEnqueueNDRangeKernel,                                                                         \
    (void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, WAITS))                       \
  F(int32_t, clEnqueueReadBuffer, (void *, void *, uint32_t, size_t, size_t, void *, WAITS))                 \
  F(int32_t, clEnqueueWriteBuffer, (void *, void *, uint32_t, size_t, size_t, const void *, WAITS))          \
  F(int32_t, clEnqueueCopyBuffer, (void *, void *, void *, size_t, size_t, size_t, WAITS))                   \
  F(int32_t, clEnqueueFillBuffer, (void *, void *, const void *, size_t, size_t, size_t, WAITS))             \
  F(void *, clEnqueueMapBuffer, (void *, void *, uint32_t, uint64_t, size_t, size_t, WAITS, int32_t *))      \
  F(int32_t, clEnqueueUnmapMemObject, (void *, void *, void *, WAITS))                                       \
  F(void *, clCreateUserEvent, (void *, int32_t *))                                                          \
  F(int32_t, clSetUserEventStatus, (void *, int32_t))                                                        \
  F(int32_t, clWaitForEvents, (uint32_t, void *const *))                                                     \
  F(int32_t, clReleaseEvent, (void *))                                                                       \
  F(int32_t, clGetEventInfo, (void *, uint32_t, size_t, void *, size_t *))                                   \
  F(int32_t, clSetEventCallback, (void *, int32_t, void (*)(void *, int32_t, void *), void *))               \
  F(void *, clGetExtensionFunctionAddressForPlatform, (void *, const char *))                                \
  F(int32_t, clFlush, (void *))                                                                              \
  F(int32_t, clFinish, (void *))

#ifdef LINKED
#define F(result, name, parameters) extern result name parameters;
FUNCTIONS(F)
#undef F
static void find(void) {}
#else
#define F(result, name, parameters) static result(*name) parameters;
FUNCTIONS(F)
#undef F
static void find(void) {
  void *lib = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
#define F(result, name, parameters) *(void **)&name = dlsym(lib, #name);
  FUNCTIONS(F)
#undef F
}
#endif

enum { ITEMS = 1024, BYTES = ITEMS * 4 };

static const char *source =
    "kernel void advance(global uint *data, uint k, uint loops) {\n"
    "  size_t i = get_global_id(0);\n"
    "  uint x = data[i];\n"
    "  for (uint j = 0; j < loops; j++) x = x * 1664525u + 1013904223u;\n"
    "  data[i] = x ^ k;\n"
    "}\n";

static void *platform, *context, *device, *kernel;
static uint32_t want[ITEMS], got[ITEMS];

static void must(int32_t r, const char *what) {
  if (r == 0) return;
  fprintf(stderr, "%s: %d\n", what, r);
  exit(1);
}

static void begin(void) {
  void *program;
  int32_t r;
  find();
  must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
  must(clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL), "clGetDeviceIDs");
  context = clCreateContext(NULL, 1, &device, NULL, NULL, &r), must(r, "clCreateContext");
  program = clCreateProgramWithSource(context, 1, &source, NULL, &r), must(r, "clCreateProgramWithSource");
  must(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");
  kernel = clCreateKernel(program, "advance", &r), must(r, "clCreateKernel");
  for (uint32_t i = 0; i < ITEMS; i++) want[i] = i * 2654435761u;
}

static void *queue(uint64_t properties) {
  int32_t r;
  void *q = clCreateCommandQueue(context, device, properties, &r);
  must(r, "clCreateCommandQueue");
  return q;
}

static void *buffer(void) {
  int32_t r;
  void *b = clCreateBuffer(context, 1, BYTES, NULL, &r);
  must(r, "clCreateBuffer");
  return b;
}

static void arguments(void *data, uint32_t k, uint32_t loops) {
  must(clSetKernelArg(kernel, 0, sizeof data, &data), "clSetKernelArg");
  must(clSetKernelArg(kernel, 1, sizeof k, &k), "clSetKernelArg");
  must(clSetKernelArg(kernel, 2, sizeof loops, &loops), "clSetKernelArg");
}

/* Runs one kernel on the device; expect_step does the same on the host. */
static void step(void *q, void *data, uint32_t k, uint32_t loops, uint32_t waits, void **wait, void **event) {
  size_t items = ITEMS;
  arguments(data, k, loops);
  must(clEnqueueNDRangeKernel(q, kernel, 1, NULL, &items, NULL, waits, wait, event), "clEnqueueNDRange");
}

static void expect_step(uint32_t k, uint32_t loops) {
  for (int i = 0; i < ITEMS; i++) {
    uint32_t x = want[i];
    for (uint32_t j = 0; j < loops; j++) x = x * 1664525u + 1013904223u;
    want[i] = x ^ k;
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int report(const char *mode, double since) {
  uint32_t sum = 0;
  double took = now() - since;
  for (int i = 0; i < ITEMS; i++) {
    if (got[i] != want[i]) {
      printf("wrong %s item=%d got=%08x want=%08x\n", mode, i, got[i], want[i]);
      return 1;
    }
    sum = sum * 31 + got[i];
  }
  printf("ok %s sum=%08x ms=%.1f\n", mode, sum, took);
  return 0;
}

/* Kernels in order: each needs the result of the one before. */
static int chain(uint32_t kernels, uint32_t loops, int halfway) {
  void *q = queue(0), *data = buffer();
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  printf("ready\n");
  double since = now();
  for (uint32_t k = 0; k < kernels; k++) {
    step(q, data, k, loops, 0, NULL, NULL);
    if (halfway && k == kernels / 2) {
      printf("halfway\n");
      getchar();
    } else if (halfway && k > kernels / 2) {
      printf("at %u\n", k);
    }
  }
  must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
  since = now() - since; /* the rest is the host's own calculation */
  for (uint32_t k = 0; k < kernels; k++) expect_step(k, loops);
  must(clReleaseCommandQueue(q), "clReleaseCommandQueue");
  return report("chain", now() - since);
}

static int input(void) {
  struct pollfd p = {.fd = 0, .events = POLLIN};
  return poll(&p, 1, 0) > 0;
}

/* Requests: a few kernels, their result, and a pause. Without a number of requests it goes on
 * until there is input. */
static int paced(uint32_t requests, uint32_t loops, uint32_t pause_us) {
  void *q = queue(0), *data = buffer();
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  printf("ready\n");
  double since = now();
  for (uint32_t n = 0; requests ? n < requests : !input(); n++) {
    for (uint32_t k = 0; k < 4; k++) step(q, data, n + k, loops, 0, NULL, NULL), expect_step(n + k, loops);
    must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
    if (memcmp(got, want, BYTES) != 0) break;
    usleep(pause_us);
  }
  return report("paced", since);
}

/*
 * Two queues, one of them out of order, ordered by events: writes, fills, copies, kernels, maps
 * and reads. A queue is created and released in each round.
 */
static int mixed(uint32_t rounds) {
  void *a = buffer(), *b = buffer(), *free_order = queue(1);
  double since = now();
  printf("ready\n");
  for (uint32_t n = 0; n < rounds; n++) {
    void *q = queue(0), *wrote, *stepped, *copied, *again, *filled;
    int32_t r;
    must(clRetainCommandQueue(q), "clRetainCommandQueue");
    must(clEnqueueWriteBuffer(q, a, 0, 0, BYTES, want, 0, NULL, &wrote), "clEnqueueWriteBuffer");
    step(free_order, a, n, 50, 1, &wrote, &stepped);
    must(clEnqueueCopyBuffer(free_order, a, b, 0, 0, BYTES, 1, &stepped, &copied), "clEnqueueCopyBuffer");
    must(clEnqueueFillBuffer(q, a, &n, 4, 0, BYTES, 1, &copied, &filled), "clEnqueueFillBuffer");
    must(clReleaseCommandQueue(q), "clReleaseCommandQueue"); /* one of two references: the queue lives on */
    step(q, b, n + 1, 50, 0, NULL, &again);
    must(clFlush(q), "clFlush");
    must(clFlush(free_order), "clFlush");
    /* `want` must not be overwritten before its write is done. */
    must(clWaitForEvents(1, &again), "clWaitForEvents");
    expect_step(n, 50);
    expect_step(n + 1, 50);
    uint32_t *seen = clEnqueueMapBuffer(q, b, 1, 1, 0, BYTES, 0, NULL, NULL, &r);
    must(r, "clEnqueueMapBuffer");
    memcpy(got, seen, BYTES);
    must(clEnqueueUnmapMemObject(q, b, seen, 0, NULL, NULL), "clEnqueueUnmapMemObject");
    if (memcmp(got, want, BYTES) != 0) return report("mixed", since);
    must(clEnqueueReadBuffer(free_order, a, 1, 0, 4, got, 1, &filled, NULL), "clEnqueueReadBuffer");
    if (got[0] != n) return printf("wrong mixed fill: got %u want %u\n", got[0], n), 1;
    got[0] = want[0];
    void *events[] = {wrote, stepped, copied, again, filled};
    for (int i = 0; i < 5; i++) must(clReleaseEvent(events[i]), "clReleaseEvent");
    must(clReleaseCommandQueue(q), "clReleaseCommandQueue");
  }
  must(clFinish(free_order), "clFinish");
  return report("mixed", since);
}

/* Commands that begin only when this thread sets a user event, after it has queued them all. */
static int user(uint32_t commands) {
  void *q = queue(0), *data = buffer(), *go;
  int32_t r;
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  go = clCreateUserEvent(context, &r), must(r, "clCreateUserEvent");
  printf("ready\n");
  double since = now();
  for (uint32_t k = 0; k < commands; k++) {
    step(q, data, k, 10, k == 0 ? 1 : 0, k == 0 ? &go : NULL, NULL);
    expect_step(k, 10);
  }
  must(clSetUserEventStatus(go, 0), "clSetUserEventStatus");
  must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
  return report("user", since);
}

static void pause_here(const char *line) {
  printf("%s\n", line);
  getchar();
}
static int released(uint32_t commands) {
  void *q = queue(0), *other = queue(0), *data = buffer(), *more = buffer(), *go, *last;
  int32_t r;
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  go = clCreateUserEvent(context, &r), must(r, "clCreateUserEvent");
  double since = now();
  for (uint32_t k = 0; k < commands; k++) {
    step(q, data, k, 10, k == 0 ? 1 : 0, k == 0 ? &go : NULL, k + 1 == commands ? &last : NULL);
    expect_step(k, 10);
  }
  must(clReleaseCommandQueue(q), "clReleaseCommandQueue");
  pause_here("released");
  must(clSetUserEventStatus(go, 0), "clSetUserEventStatus");
  must(clWaitForEvents(1, &last), "clWaitForEvents");
  usleep(50000); /* the shim's own mark is behind that event */
  must(clWaitForEvents(1, &last), "clWaitForEvents");
  pause_here("the event is reached");
  must(clEnqueueWriteBuffer(other, more, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  pause_here("waited");
  must(clEnqueueReadBuffer(other, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
  return report("released", since);
}

/* A program that rests after it has asked until its last command was done. */
static int rests(uint32_t commands) {
  void *q = queue(0), *data = buffer(), *last;
  int32_t status = 1;
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  double since = now();
  for (uint32_t k = 0; k < commands; k++) step(q, data, k, 50, 0, NULL, k + 1 == commands ? &last : NULL), expect_step(k, 50);
  must(clFlush(q), "clFlush");
  for (; status; usleep(100)) must(clGetEventInfo(last, 0x11D3, sizeof status, &status, NULL), "clGetEventInfo");
  pause_here("rests");
  must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
  return report("rests", since);
}

static void set(void *event, int32_t status, void *done) {
  (void)event, (void)status;
  __atomic_store_n((int *)done, 1, __ATOMIC_RELEASE);
}

/* Requests whose end the program learns without a call that waits: it asks for the status of
 * their last event, or is called back. */
static int asked(uint32_t requests, int by_callback) {
  void *q = queue(0), *data = buffer();
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  printf("ready\n");
  double since = now();
  for (uint32_t n = 0; n < requests; n++) {
    void *last;
    int done = 0;
    for (uint32_t k = 0; k < 4; k++) step(q, data, n + k, 50, 0, NULL, k == 3 ? &last : NULL), expect_step(n + k, 50);
    must(clFlush(q), "clFlush");
    if (by_callback) must(clSetEventCallback(last, 0, set, &done), "clSetEventCallback");
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
      int32_t status = 0;
      if (!by_callback) must(clGetEventInfo(last, 0x11D3, sizeof status, &status, NULL), "clGetEventInfo");
      if (!by_callback && status == 0) break;
      usleep(10);
    }
    must(clReleaseEvent(last), "clReleaseEvent");
    must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
    if (memcmp(got, want, BYTES) != 0) break;
  }
  return report(by_callback ? "callback" : "polled", since);
}

/* Requests whose end the program learns without any call: it looks at memory that the device
 * shares with it, as PoCL's CPU does. */
static int watched(uint32_t requests) {
  static uint32_t shared[ITEMS] __attribute__((aligned(4096)));
  int32_t r;
  memcpy(shared, want, BYTES);
  void *q = queue(0), *data = clCreateBuffer(context, 1 | 8 /* CL_MEM_USE_HOST_PTR */, BYTES, shared, &r);
  must(r, "clCreateBuffer");
  printf("ready\n");
  double since = now();
  for (uint32_t n = 0; n < requests; n++) {
    for (uint32_t k = 0; k < 4; k++) step(q, data, n + k, 50, 0, NULL, NULL), expect_step(n + k, 50);
    must(clFlush(q), "clFlush");
    for (double begin = now(); __atomic_load_n(&shared[ITEMS - 1], __ATOMIC_ACQUIRE) != want[ITEMS - 1]; usleep(50)) {
      if (now() - begin > 20e3) return printf("wrong watched: request %u does not end\n", n), 1;
    }
    must(clFinish(q), "clFinish");
    memcpy(got, shared, BYTES);
    if (memcmp(got, want, BYTES) != 0) break;
  }
  return report("watched", since);
}

/* Forks and exits while commands are queued. */
static int leave(uint32_t requests) {
  void *q = queue(0), *data = buffer();
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  double since = now();
  for (uint32_t n = 0; n <= requests; n++) {
    for (uint32_t k = 0; k < 4; k++) step(q, data, n + k, 50, 0, NULL, NULL);
    must(clFlush(q), "clFlush");
    if (n == requests) break;
    for (uint32_t k = 0; k < 4; k++) expect_step(n + k, 50);
    pid_t child = fork();
    if (child == 0) _exit(7);
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return printf("wrong leave: child %d\n", status), 1;
    must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
    if (memcmp(got, want, BYTES) != 0) break;
  }
  return report("leave", since);
}

/* A kernel in a command buffer of cl_khr_command_buffer, launched repeatedly. */
static int extension(uint32_t launches) {
  void *q = queue(0), *data = buffer();
  size_t items = ITEMS;
  int32_t r;
#define ASK(name) clGetExtensionFunctionAddressForPlatform(platform, name)
  void *(*create)(uint32_t, void **, const void *, int32_t *) = ASK("clCreateCommandBufferKHR");
  int32_t (*finalize)(void *) = ASK("clFinalizeCommandBufferKHR");
  int32_t (*command)(void *, void *, const void *, void *, uint32_t, const size_t *, const size_t *,
                     const size_t *, uint32_t, const void *, void *, void *) =
      ASK("clCommandNDRangeKernelKHR");
  int32_t (*enqueue)(uint32_t, void **, void *, WAITS) = ASK("clEnqueueCommandBufferKHR");
#undef ASK
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  if (!create || !finalize || !command || !enqueue) return printf("ready: no cl_khr_command_buffer\n"), 0;
  void *commands = create(1, &q, NULL, &r);
  must(r, "clCreateCommandBufferKHR");
  arguments(data, 1, 20);
  r = command(commands, NULL, NULL, kernel, 1, NULL, &items, NULL, 0, NULL, NULL, NULL);
  must(r, "clCommandNDRangeKernelKHR");
  must(finalize(commands), "clFinalizeCommandBufferKHR");
  printf("ready\n");
  getchar();
  double since = now();
  for (uint32_t k = 0; k < launches; k++) {
    must(enqueue(1, &q, commands, 0, NULL, NULL), "clEnqueueCommandBufferKHR");
    must(clFinish(q), "clFinish"); /* one at a time, unless created for simultaneous use */
    expect_step(1, 20);
  }
  must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
  return report("extension", since);
}

/* How many threads the library has for late entry. */
static int count_threads(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/task");
  for (struct dirent *e; d && (e = readdir(d));) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    n += fgets(name, sizeof name, f) && strcmp(name, "giveway-late-cl\n") == 0;
    fclose(f);
  }
  if (d) closedir(d);
  return n;
}

static int beside(uint32_t requests) {
  void *q = queue(0), *data = buffer(), *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  int (*release)(int) = cuda ? (int (*)(int))dlsym(cuda, "cuDevicePrimaryCtxRelease_v2") : NULL;
  if (!release) return printf("wrong beside: no CUDA\n"), 1;
  must(clEnqueueWriteBuffer(q, data, 1, 0, BYTES, want, 0, NULL, NULL), "clEnqueueWriteBuffer");
  double since = now();
  for (uint32_t n = 0; n < requests; n++) {
    for (uint32_t k = 0; k < 4; k++) step(q, data, n + k, 50, 0, NULL, NULL), expect_step(n + k, 50);
    must(clEnqueueReadBuffer(q, data, 1, 0, BYTES, got, 0, NULL, NULL), "clEnqueueReadBuffer");
    if (memcmp(got, want, BYTES) != 0) break;
    must(release(0), "cuDevicePrimaryCtxRelease");
  }
  printf("threads=%d\n", count_threads());
  return report("beside", since);
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IONBF, 0);
  uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
  if (argc > 1 && strcmp(argv[1], "endless") == 0) return begin(), paced(0, 200, 0);
  if (n == 0) return fprintf(stderr, "openclwork chain|paced|mixed|user|released|rests|polled|callback|watched|leave|extension|beside N ...\n"), 2;
  begin();
  if (strcmp(argv[1], "chain") == 0 && argc > 3) {
    return chain(n, (uint32_t)strtoul(argv[3], NULL, 10), argc > 4);
  }
  if (strcmp(argv[1], "paced") == 0 && argc > 4) {
    return paced(n, (uint32_t)strtoul(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10));
  }
  if (strcmp(argv[1], "mixed") == 0) return mixed(n);
  if (strcmp(argv[1], "user") == 0) return user(n);
  if (strcmp(argv[1], "released") == 0) return released(n);
  if (strcmp(argv[1], "rests") == 0) return rests(n);
  if (strcmp(argv[1], "polled") == 0) return asked(n, 0);
  if (strcmp(argv[1], "callback") == 0) return asked(n, 1);
  if (strcmp(argv[1], "watched") == 0) return watched(n);
  if (strcmp(argv[1], "leave") == 0) return leave(n);
  if (strcmp(argv[1], "extension") == 0) return extension(n);
  if (strcmp(argv[1], "beside") == 0) return beside(n);
  return fprintf(stderr, "openclwork: no %s\n", argv[1]), 2;
}
