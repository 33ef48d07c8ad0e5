/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program whose commands never end, on a runtime that has no device. Linked with the shim's own
 * files. It launches many commands and then gets a bound. Prints how long its next launch waits.
 */
#include <stdio.h>

#include "../activity.h"

static void *mark(void *ctx, void *stream) { return (void)ctx, (void)stream, (void *)1; }
static int reached(void *m) { return (void)m, 0; }
static void drop(void *m) { (void)m; }
static int markable(void *ctx, void *stream) { return (void)ctx, (void)stream, 1; }
static const struct gw_runtime runtime = {"none", 8, mark, reached, drop, markable, NULL, NULL};

static void launch(void) {
  static char ctx, stream[64];
  gw_pass pass;
  if (gw_enter(&pass, &runtime, &ctx, stream)) gw_leave(&pass, true);
}

int main(void) {
  for (int i = 0; i < 1000; i++) launch();
  GW_WRITE(bound, 1);
  uint64_t began = gw_now();
  launch();
  printf("ok ms=%lu\n", (unsigned long)((gw_now() - began) / GW_MS_NS));
  return 0;
}
