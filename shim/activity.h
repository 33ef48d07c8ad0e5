/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's commands on the device: for each stream, how many were launched and how many
 * are known to be done. These counters are the source of those on the page. The page is
 * read back only where that saves taking the lock and a wrong value does no harm.
 *
 * All fields are guarded by gw_act.lock. It is held for a few dozen instructions, never while
 * the runtime is called and never while a thread waits.
 */
#ifndef GIVEWAY_ACTIVITY_H
#define GIVEWAY_ACTIVITY_H

#include "bias.h"
#include "capture.h"
#include "class_rule.h"
#include "gate.h"
#include "sys.h"

/* The table of streams. Nearly all programs have few busy streams, which are in its first part. A
 * stream is in the second part while it is busy and its set in the first part is full. */
#define GW_SETS 64
#define GW_WAYS 4
#define GW_FEW (GW_SETS * GW_WAYS)
#define GW_MORE_SETS 256
#define GW_MORE_WAYS 16
#define GW_STREAMS (GW_FEW + GW_MORE_SETS * GW_MORE_WAYS)
#define GW_MARKS 64
#define GW_RESTS 16

#pragma GCC visibility push(hidden)

struct gw_stream {
  const struct gw_runtime *runtime; /* NULL: the slot is free */
  void *ctx, *stream;
  uint64_t launched, done; /* on this stream */
  uint64_t last_launch;    /* value of gw_act.launched after its last command */
  uint64_t exempt;         /* commands in flight that the bound does not count: see bound.c */
  uint64_t waits_until;    /* see class.c: the stream waits for others until so many commands are done */
  uint32_t unmarked;       /* commands since the last mark */
  bool high;               /* see class.c: its priority is above the default */
  bool destroyed;          /* the program has destroyed it: see destroyed.h */
  bool dying;              /* a call that waits for its commands is destroying it: see gw_suspend */
  uint32_t generation;     /* of the slot: a mark of an earlier generation is void */
  uint32_t ask_after;      /* see unwaited.c: waits of the program between two queries of the stream */
  uint64_t ask_at;         /* at this value of gw_act.waits the runtime is asked about the stream */
  uint64_t seen_launched;  /* value of launched at the last wait of the program */
};

enum gw_mark_state { GW_MARK_FREE, GW_MARK_SET, GW_MARK_BUSY };

struct gw_mark {
  enum gw_mark_state state; /* busy: a thread is calling the runtime about it */
  const struct gw_runtime *runtime;
  void *ctx, *stream, *mark;
  uint32_t slot, generation;
  uint64_t seq; /* the value of the stream's launched that it is behind */
  uint64_t age;
};

/* The commands in flight of one context on all its streams without a slot. */
struct gw_rest {
  const struct gw_runtime *runtime;
  void *ctx;
  uint64_t count;       /* 0: the entry is free */
  uint64_t last_launch; /* value of gw_act.launched after the last of them */
};

struct gw_activity {
  /* All that a launch needs, in one cache line. */
  gw_bias_t lock __attribute__((aligned(64)));
  uint64_t launched, completed; /* on all streams */
  uint32_t entering;            /* threads that wait at the gate, or have passed it and not launched yet */
  uint32_t held;                /* threads that wait at the gate */
  uint32_t started;             /* commands of queue.c that are running: the daemon sees them in flight */
  uint32_t runtimes;
  bool ready;    /* there is work that is not known to be done: GW_READY */
  bool draining; /* a thread is held and commands are in flight */
  bool explicit_requests; /* the program says itself when a request begins and ends */
  uint32_t destroyed;     /* streams in the table that are destroyed; read without the lock too */
  uint64_t changed_ns;    /* when ready last changed; 0: the daemon was not interested then */

  uint64_t untracked; /* commands in flight on streams without a slot: not bounded */
  uint64_t exempt; /* on all streams */
  uint64_t holds, held_ns, overruns;
  uint64_t idled; /* how often ready became false */
  uint64_t requests, hints;
  uint32_t open_requests;
  uint32_t doorbell;

  uint32_t more;                  /* slots of the second part that are not free */
  uint64_t used[GW_STREAMS / 64]; /* slots that are not free */
  uint32_t generations;        /* given to slots so far: no two streams with one handle have the same */
  uint64_t pace_ns;            /* recent device time per command: see bound.c; 0: unknown */
  uint64_t pace_at, pace_done; /* when it was last measured, and the value of completed then */
  struct gw_class_state classes; /* of the high streams: see class.c */
  uint64_t low_pace_ns;          /* recent device time per low command; 0: unknown */
  uint64_t low_let_go;           /* completed + 1 when a launch passed the bound on low commands; 0: none did */
  uint64_t class_holds, class_held_ns, class_let_go;
  uint64_t waits;              /* of the program, for a stream or a context */
  uint32_t marks_set;          /* marks that are not free */
  uint64_t marks_made;
  struct gw_mark marks[GW_MARKS];
  struct gw_rest rests[GW_RESTS];
  struct gw_stream streams[GW_STREAMS] __attribute__((aligned(64))); /* the last: memory of the second part is seldom used */
};
extern struct gw_activity gw_act;

/* The library's destructor has run: do nothing any more. */
extern uint32_t gw_ended;

static inline uint64_t gw_in_flight(void) { return gw_act.launched - gw_act.completed; }

/* The functions below are called with the lock held. */

/* How many words of gw_act.used may have bits. */
static inline int gw_stream_words(void) { return __builtin_expect(gw_act.more != 0, 0) ? GW_STREAMS / 64 : GW_FEW / 64; }

/* The slot of a stream that is not dying, or -1. gw_stream_get takes a slot if the stream has none and one is
 * free. */
int gw_stream_find(const struct gw_runtime *rt, void *ctx, void *stream);
int gw_stream_get(const struct gw_runtime *rt, void *ctx, void *stream);

/* All commands of the stream up to seq are done. When all are, a slot of the second part or of a
 * destroyed stream is free. */
void gw_stream_done(struct gw_stream *s, uint64_t seq);

/* Counts all commands of the stream as done and frees its slot. */
void gw_stream_free(int slot);

/* A command was launched on a stream without a slot. If there are too many contexts with such
 * streams, it stays in flight: the process may count as ready for too long, but never as idle. */
void gw_untracked_add(const struct gw_runtime *rt, void *ctx);

/* All such commands of the context, or with GW_ALL of the runtime, are done if none of them was
 * launched after `launched`. */
void gw_untracked_done(const struct gw_runtime *rt, void *ctx, uint64_t launched);

/* One of them is done. */
void gw_untracked_one_done(const struct gw_runtime *rt, void *ctx);

/* In the child of a fork: forgets everything. */
void gw_activity_forked(void);

/* Derives ready from the counters and writes the page. Returns whether the daemon is to be
 * woken: the caller then calls gw_page_ring after releasing the lock. */
bool gw_update(void);

/* Adds a request to the log. Returns whether the daemon wants to be woken for it. */
bool gw_log_request(uint64_t begin_ns, uint64_t end_ns);

/* Writes page.flags and returns what is in force. */
uint32_t gw_write_flags(void);

/* Removes GW_WAITS_LATE from page.flags. The lock need not be held. */
void gw_write_entered(void);

/* Increments page.doorbell. The lock need not be held. */
void gw_count_ring(void);

#pragma GCC visibility pop

/* Access to one word of the page, which the daemon may access at any time. */
#define GW_WRITE(field, value) __atomic_store_n(&gw_shared.page.field, value, __ATOMIC_RELAXED)
#define GW_READ(field) __atomic_load_n(&gw_shared.page.field, __ATOMIC_RELAXED)

#endif
