/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of the OpenCL adapter, with any OpenCL implementation. Linked with the shim's own
 * files and libOpenCL. */
#include "conform.h"

extern const struct gw_runtime gw_opencl;

int clGetPlatformIDs(unsigned, void **, unsigned *);
int clGetDeviceIDs(void *, uint64_t, unsigned, void **, unsigned *);
void *clCreateContext(const void *, unsigned, void **, void *, void *, int *);
void *clCreateCommandQueue(void *, void *, uint64_t, int *);
void *clCreateBuffer(void *, uint64_t, size_t, void *, int *);
void *clCreateUserEvent(void *, int *);
int clSetUserEventStatus(void *, int);
int clEnqueueFillBuffer(void *, void *, const void *, size_t, size_t, size_t, unsigned, void **, void **);
int clFinish(void *);

static void *context, *queue, *buffer, *waiting[16];
static int blocked, released;

static void block(void) {
  int r, zero = 0;
  void *go = clCreateUserEvent(context, &r);
  conform_must(r, "clCreateUserEvent");
  conform_must(clEnqueueFillBuffer(queue, buffer, &zero, 4, 0, 4, 1, &go, NULL), "clEnqueueFillBuffer");
  waiting[blocked++] = go;
}
static void release(void) {
  conform_must(clSetUserEventStatus(waiting[released++], 0), "clSetUserEventStatus");
}
static void finish(void) { conform_must(clFinish(queue), "clFinish"); }

/* Tests an in-order and an out-of-order queue. */
int main(void) {
  void *platform, *device;
  int r = 0;
  conform_must(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
  conform_must(clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL), "clGetDeviceIDs");
  context = clCreateContext(NULL, 1, &device, NULL, NULL, &r), conform_must(r, "clCreateContext");
  buffer = clCreateBuffer(context, 1, 4, NULL, &r), conform_must(r, "clCreateBuffer");
  for (uint64_t out_of_order = 0; out_of_order < 2; out_of_order++) {
    queue = clCreateCommandQueue(context, device, out_of_order, &r), conform_must(r, "clCreateCommandQueue");
    struct conform c = {&gw_opencl, queue, queue, block, release, finish, NULL};
    if (conform(&c)) return 1;
  }
  return 0;
}
