/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of the HIP adapter, with fakehip.c or a real libamdhip64. Linked with the shim's
 * own files. */
#include <pthread.h>

#include "conform.h"

extern const struct gw_runtime gw_hip;

int hipStreamCreate(void **);
int hipStreamSynchronize(void *);
int hipLaunchHostFunc(void *, void *, void *);
int hipStreamBeginCapture(void *, int);
int hipStreamEndCapture(void *, void **);

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
  conform_must(hipLaunchHostFunc(stream, (void *)wait_for_token, NULL), "hipLaunchHostFunc");
}
static void release(void) {
  pthread_mutex_lock(&lock);
  tokens++;
  pthread_cond_signal(&moved);
  pthread_mutex_unlock(&lock);
}
static void finish(void) { conform_must(hipStreamSynchronize(stream), "hipStreamSynchronize"); }
static void capture(int on) {
  void *graph;
  if (on) conform_must(hipStreamBeginCapture(stream, 0), "hipStreamBeginCapture");
  else conform_must(hipStreamEndCapture(stream, &graph), "hipStreamEndCapture");
}

/* Tests a created stream and the legacy default stream, which cannot be captured. */
int main(void) {
  conform_must(hipStreamCreate(&stream), "hipStreamCreate");
  struct conform own = {&gw_hip, (void *)1, stream, block, release, finish, capture};
  if (conform(&own)) return 1;
  stream = NULL;
  struct conform legacy = {&gw_hip, (void *)1, NULL, block, release, finish, NULL};
  return conform(&legacy);
}
