/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of the CUDA adapter, with fakecuda.c or a real libcuda. Linked with the shim's
 * own files. */
#include <pthread.h>

#include "conform.h"

extern const struct gw_runtime cuda_runtime;
void *cuda_context(void);

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int) __attribute__((weak)); /* the fake has a context from the start */
int cuCtxSetCurrent(void *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuLaunchHostFunc(void *, void *, void *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int tokens;
static void *stream;

static void wait_for_token(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  while (tokens == 0) pthread_cond_wait(&moved, &lock);
  tokens--;
  pthread_mutex_unlock(&lock);
}

static void block(void) {
  conform_must(cuLaunchHostFunc(stream, (void *)wait_for_token, NULL), "cuLaunchHostFunc");
}
static void release(void) {
  pthread_mutex_lock(&lock);
  tokens++;
  pthread_cond_signal(&moved);
  pthread_mutex_unlock(&lock);
}
static void finish(void) { conform_must(cuStreamSynchronize(stream), "cuStreamSynchronize"); }
static void capture(int on) {
  void *graph;
  if (on) conform_must(cuStreamBeginCapture_v2(stream, 0), "cuStreamBeginCapture");
  else conform_must(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
}

/* Tests a created stream and the legacy default stream, which cannot be captured. */
int main(void) {
  void *ctx = NULL;
  conform_must(cuInit(0), "cuInit");
  if (cuDevicePrimaryCtxRetain && cuDevicePrimaryCtxRetain(&ctx, 0) == 0)
    conform_must(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
  ctx = cuda_context();
  conform_must(cuStreamCreate(&stream, 1), "cuStreamCreate");
  struct conform own = {&cuda_runtime, ctx, stream, block, release, finish, capture};
  if (conform(&own)) return 1;
  stream = (void *)1; /* CU_STREAM_LEGACY */
  struct conform legacy = {&cuda_runtime, ctx, stream, block, release, finish, NULL};
  return conform(&legacy);
}
