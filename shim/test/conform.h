/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gate relies on of every runtime's adapter, as a test: the promises of
 * struct gw_runtime, one by one. A runtime brings a stream and four functions.
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
  void (*block)(void);     /* puts a command on the stream that ends only when released */
  void (*release)(void);   /* ends the first of those that has not been released */
  void (*finish)(void);    /* waits for the stream */
  void (*capture)(int on); /* begins and ends a capture of the stream. NULL: there are none */
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

/* Whether it stays unreached for as long as we care to look. */
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

  /* A mark is reached when the work before it is done, and not earlier. It does
   * not wait for work behind it, and once reached it stays so. */
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

  /* A mark can be given back before it is reached; the work goes on. */
  c->block();
  CONFORM(a = r->mark(c->ctx, c->stream));
  r->drop(a);
  c->release();
  c->finish();

  /* What is captured cannot be marked, and looking at older marks spoils nothing. */
  if (c->capture) {
    CONFORM(a = r->mark(c->ctx, c->stream));
    c->capture(1);
    CONFORM(!r->markable(c->ctx, c->stream));
    r->reached(a);
    c->capture(0); /* exits if the capture was spoilt */
    CONFORM(r->markable(c->ctx, c->stream));
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
