/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a program and the daemon share: the one definition of it.
 * internal/shim/shimpage checks its own against this file, field by field.
 *
 * The daemon makes both pages, seals their size and hands them out over its
 * socket (see hello below). Each side takes what the other writes for hostile:
 * the daemon never waits for a program, and a program never waits longer than
 * GW_LEASE_MOST_NS for the daemon. All words are naturally aligned, in the
 * machine's own byte order, and read and written atomically one by one. All
 * times are CLOCK_MONOTONIC in nanoseconds.
 *
 * Hello: the program connects to the daemon's unix socket and sends
 *
 *     POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n
 *     Giveway-Abi: 1\r\nGiveway-Runtime: cuda\r\n\r\n
 *
 * and gets, in one message, "HTTP/1.1 101 ..." with three descriptors: the
 * page (read-write), the board (read-only) and the bell (an eventfd whose flags
 * nothing has that was opened as a file: see GW_BELL_FLAGS). Any other
 * answer is a refusal: the program runs as if there were no daemon. The
 * connection stays open and silent for as long as either lives; its end is the
 * end of the page.
 */
#ifndef GIVEWAY_ABI_H
#define GIVEWAY_ABI_H

#include <stdint.h>

#define GW_ABI 1u
#define GW_MAGIC 0x59575647u /* "GVWY" */
#define GW_PAGE_SIZE 4096u
#define GW_BOARD_SIZE 4096u

/* What F_GETFL says of the bell: O_RDWR, O_NONBLOCK and O_APPEND, which means nothing
 * to an eventfd, and not the O_LARGEFILE that open sets. */
#define GW_BELL_FLAGS 0x0c02

#define GW_LEASE_MOST_NS 1000000000ull /* a closed gate that claims to be so for longer is nonsense, and open */

#define GW_REQUESTS 64u /* entries in the log of requests */
#define GW_HINTS 32u    /* entries in the ring of hints */
#define GW_GPUS 64u     /* AMD GPUs on which a program can be asked to stop its own queues */

/* Values of gate. Anything else is GW_OPEN. */
#define GW_OPEN 0u
#define GW_CLOSED 1u

/* Bits of watch: what the daemon wants to be woken for. Counters are kept in
 * any case, for whoever looks. Hints always ring. */
#define GW_WATCH_READY 1u    /* idle to ready, ready to idle */
#define GW_WATCH_REQUESTS 2u /* a request is over */
/* Not to ring for: */
#define GW_PREDICT 4u /* predict arrivals from those before */
#define GW_TIME 8u    /* log how long requests take, as any bit above has them logged */
#define GW_TOLD 16u   /* the owner says what a request is: log none that is guessed, whatever the other bits */

/* Bits of flags. */
#define GW_READY 1u     /* there is work that is not known to be done */
#define GW_HELD 2u      /* a thread waits at the gate now */
#define GW_CAPTURING 4u /* a graph is being captured: what goes into it is not gated */

/* Kinds of hints. value is what the comment says. */
enum gw_hint_kind {
  GW_HINT_CLASS = 1,    /* 0 standard, 1 online, 2 batch, 3 idle: as sched.Class counts */
  GW_HINT_PRIORITY,     /* higher runs first */
  GW_HINT_WEIGHT,       /* 1 to 10000 */
  GW_HINT_DEADLINE,     /* ns from ready to done; 0 none */
  GW_HINT_LAXITY,       /* ns its work can wait; 0 unknown */
  GW_HINT_WORK,         /* ns of device time a request needs; 0 unknown */
  GW_HINT_EXPECT,       /* time of the next arrival; 0 unknown */
  GW_HINT_SLO,          /* ns a request may take; 0 none */
  GW_HINT_BEGIN,        /* a request begins; value: a number of the program's choice */
  GW_HINT_END,          /* that request ends */
  GW_HINT_IDEMPOTENT,   /* 1: what is launched from now on may be run twice; 0: it may not */
};

struct gw_request {
  uint64_t begin_ns;
  uint64_t end_ns;
};

struct gw_hint {
  uint32_t seq;  /* of this entry, counted from 1, low 32 bits; written last */
  uint32_t kind; /* enum gw_hint_kind */
  int64_t value;
  uint64_t at_ns;
};

/* What the program has on one AMD GPU, as far as the shim has seen it made. */
struct gw_gpu {
  uint32_t gpu;    /* KFD's number for it; 0: nothing so far */
  uint32_t queues; /* compute queues there */
  uint32_t off;    /* of those, taken off by the shim */
  uint32_t failed; /* of those, not as the daemon wants them: the driver would not */
};

/* One program's page. 64-byte lines, so that the two sides do not fight. */
struct gw_page {
  /* 0: written by the daemon before anybody else sees the page. */
  uint32_t magic;
  uint32_t abi;
  uint32_t size;
  uint32_t reserved0[13];

  /* 64: the daemon's word to the program. */
  uint32_t gate;     /* a futex: GW_OPEN, GW_CLOSED */
  uint32_t bound;    /* most commands in flight, but see grain_us; 0: no bound, nothing is counted out */
  uint32_t batch;    /* commands from mark to mark, at most; 0: as many as seem right */
  uint32_t watch;    /* GW_WATCH_... */
  uint64_t lease_ns; /* a closed gate is open from then on, unless the daemon has put it off */
  uint32_t lead_us;  /* how long before an expected arrival to take the device; 0: do not */
  uint32_t park_us;  /* the longest to hold it so for an arrival that does not come */
  uint32_t grain_us; /* a bound of n lets through what takes the device n of these, if that is more; 0: it does not */
  uint32_t idempotent;  /* 1: what it launches may be run twice, says its owner */
  uint64_t expect_ns;   /* when its next work will come, says its owner; 0: not known */
  uint32_t expect_turn; /* a futex: another value whenever that is told, by either side */
  uint32_t reserved1[3];

  /* 128: the program's word to the daemon. */
  uint64_t launched;  /* commands put on the device so far */
  uint64_t completed; /* of those, known to be done */
  uint64_t spare;
  uint64_t held_ns;   /* time that threads have spent at the gate, all together */
  uint64_t holds;     /* how often one had to wait there */
  uint64_t overruns;  /* how often the bound was let go because nothing moved, or a gate whose lease ran out */
  uint32_t flags;     /* GW_READY, ... */
  uint32_t open;      /* requests begun and not ended */
  uint32_t bell;      /* counts what the daemon is to look at */
  uint32_t runtimes;  /* bit 0 cuda, 1 hip, 2 opencl, 3 queue: those in use */

  /* 192 */
  uint64_t requests;    /* that are over so far; request n is log[n % GW_REQUESTS] */
  uint64_t hints;       /* given so far; hint n is ring[n % GW_HINTS] */
  uint64_t parked;      /* times the device was taken ahead of an arrival */
  uint64_t hits;        /* of those, times the arrival came while it was held */
  uint64_t parked_ns;   /* time it was held so, all together */
  uint64_t saved_ns;    /* of the switch, by our own estimate, all together */
  uint64_t reserved2[2];

  /* 256 */
  struct gw_request log[GW_REQUESTS]; /* 1024 bytes */
  struct gw_hint ring[GW_HINTS];      /* 768 bytes */

  /* 2048: the daemon's word on the program's own KFD queues, which nobody else may
   * touch. It counts until queue_lease_ns, by the rules of lease_ns. */
  uint64_t queue_lease_ns;
  uint32_t queue_turn;     /* a futex: another value after each change of these words */
  uint32_t queue_priority; /* 0: as the program made them; else KFD's priority, and one more */
  uint32_t reserved3[12];
  uint32_t off[GW_GPUS]; /* GPUs on which its compute queues are to be off; 0: none. 256 bytes */

  /* 2368: the program's answer. */
  uint32_t queue_obeyed; /* the last queue_turn that was obeyed; written last */
  uint32_t queue_error;  /* errno of the last update that the driver refused; 0: none was */
  uint32_t reserved4[14];
  struct gw_gpu gpus[GW_GPUS]; /* 1024 bytes */
  uint8_t reserved5[GW_PAGE_SIZE - 2368 - 64 - 1024];
};

/* What the daemon tells everybody. Programs can only read it. */
struct gw_board {
  uint32_t magic;
  uint32_t abi;
  uint32_t asleep; /* 1: ring the bell; 0: it will look by itself before it sleeps */
  uint32_t reserved[13];
};

#ifndef __cplusplus
_Static_assert(sizeof(struct gw_hint) == 24, "hint");
_Static_assert(sizeof(struct gw_gpu) == 16, "gpu");
_Static_assert(sizeof(struct gw_page) == GW_PAGE_SIZE, "page");
_Static_assert(sizeof(struct gw_board) == 64, "board");
#endif

#endif
