/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conformance test for runtime adapters: what the gate requires of a struct gw_runtime. A
 * runtime provides a stream and four functions.
 */
#ifndef GIVEWAY_CONFORM_H
#define GIVEWAY_CONFORM_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../gate.h"

struct conform {
  const struct gw_runtime *runtime;
  void *ctx, *stream;      /* as the adapter passes them to gw_enter */
  void (*block)(void);     /* puts a command on the stream that ends only when it is released */
  void (*release)(void);   /* ends the first command that has not been released */
  void (*finish)(void);    /* waits for the stream */
  void (*capture)(int on); /* begins or ends a capture of the stream; NULL: there are no captures */
};

#define CONFORM(what)                                                                                        \
  do {                                                                                                       \
    if (!(what)) return printf("%s:%d: %s does not keep: %s\n", __FILE__, __LINE__, r->name, #what), 1;      \
  } while (0)

static inline void conform_nap(void) {
  struct timespec ms = {0, 1000000};
  nanosleep(&ms, NULL);
}

/* Whether the mark is reached within ten seconds. */
static inline int conform_comes(const struct gw_runtime *r, void *mark) {
  for (int i = 0; i < 10000 && r->reached(mark) == 0; i++) conform_nap();
  return r->reached(mark) == 1;
}

/* Whether the mark stays unreached for a while. */
static inline int conform_stays(const struct gw_runtime *r, void *mark) {
  for (int i = 0; i < 50; i++) {
    if (r->reached(mark) != 0) return 0;
    conform_nap();
  }
  return 1;
}

static inline int conform(const struct conform *c) {
  const struct gw_runtime *r = c->runtime;
  void *a, *b;

  /* A stream without work can be marked, and the mark is reached. */
  CONFORM(r->name && r->bit && (r->bit & (r->bit - 1)) == 0);
  CONFORM(r->markable(c->ctx, c->stream));
  CONFORM(a = r->mark(c->ctx, c->stream));
  CONFORM(conform_comes(r, a));
  r->drop(a);

  /* A mark is reached when the work before it is done, and not earlier. It does not wait for
   * later work, and stays reached. */
  c->block();
  CONFORM(a = r->mark(c->ctx, c->stream));
  c->block();
  CONFORM(b = r->mark(c->ctx, c->stream));
  CONFORM(conform_stays(r, a));
  c->release();
  CONFORM(conform_comes(r, a));
  CONFORM(conform_stays(r, b));
  CONFORM(r->reached(a) == 1);
  r->drop(a);
  c->release();
  CONFORM(conform_comes(r, b));
  r->drop(b);

  /* A mark can be dropped before it is reached; the work goes on. */
  c->block();
  CONFORM(a = r->mark(c->ctx, c->stream));
  r->drop(a);
  c->release();
  c->finish();

  /* A captured stream cannot be marked, and querying older marks does not harm the capture. A mark
   * that is not reached does not count as reached either, even if it cannot be queried. */
  if (c->capture) {
    c->block();
    CONFORM(a = r->mark(c->ctx, c->stream));
    c->capture(1);
    CONFORM(!r->markable(c->ctx, c->stream));
    CONFORM(r->reached(a) == 0);
    c->capture(0); /* exits if the capture was invalidated */
    CONFORM(r->markable(c->ctx, c->stream));
    CONFORM(r->reached(a) == 0);
    c->release();
    CONFORM(conform_comes(r, a));
    r->drop(a);
  }
  printf("%s conforms\n", r->name);
  return 0;
}

static inline void conform_must(int result, const char *what) {
  if (result == 0) return;
  printf("%s: %d\n", what, result);
  exit(1);
}

#endif
