/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a process and the daemon share. This file is its only definition:
 * internal/shim/pageabi is the same in Go, and a test compares the two field by field.
 *
 * The daemon creates both pages, seals their size and sends them over its socket (see
 * "Hello" below). Neither side trusts what the other writes: the daemon never waits for
 * a process, and a process never waits longer than GW_MAX_LEASE_NS for the daemon. All
 * words are naturally aligned, in the machine's byte order, and are read and written
 * atomically, one at a time. All times are CLOCK_MONOTONIC in nanoseconds.
 *
 * Hello: the process connects to the daemon's unix socket and sends
 *
 *     POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n
 *     Giveway-Abi: 1\r\nGiveway-Abi-Max: 3\r\nGiveway-Runtime: cuda\r\n\r\n
 *
 * The first number is the lowest version of the page that the process understands, the
 * second the highest. Without the second they are the same. The daemon chooses the highest
 * version that both understand and refuses if there is none. It writes the version to the
 * page and into its answer. It answers in one message, "HTTP/1.1 101 ...", with a header
 * "Upgrade: giveway-shim/3" and with three descriptors: the
 * process's page (read-write), the status page (read-only) and the doorbell (an eventfd
 * with the flags GW_DOORBELL_FLAGS). Any other answer is a refusal: the process then runs
 * as if there were no daemon. The connection stays open and silent as long as both
 * processes live. When it closes, the page is no longer used.
 */
#ifndef GIVEWAY_ABI_H
#define GIVEWAY_ABI_H

#include <stdint.h>

/*
 * Versions of the page. A version only adds fields, in reserved space, to the one before it,
 * so a page of one version begins as a page of every earlier one, and a field that the other
 * side does not know is zero. The daemon of version 1 accepts only shims whose lowest version
 * is 1. The status page has a version too, which may be lower than that of the page.
 *
 * 1: the first release.
 * 2: late entry (late_entry, late_requests, late_ns, late_early, late_ratios, late_given_up), stream
 *    classes (stream_classes, class_holds, class_held_ns, class_let_go).
 * 3: a lease of the orders (orders_lease_ns), idled.
 */
#define GW_ABI_LOWEST 1u
#ifndef GW_ABI /* a test compiles shims of other versions */
#define GW_ABI 3u
#endif
#define GW_MAGIC 0x59575647u /* "GVWY" */
#define GW_PAGE_SIZE 4096u
#define GW_STATUS_SIZE 4096u

/* The doorbell's F_GETFL flags: O_RDWR, O_NONBLOCK and O_APPEND. O_APPEND has no effect on
 * an eventfd, and open() would add O_LARGEFILE, so no descriptor that the process itself
 * opens has exactly these flags. */
#define GW_DOORBELL_FLAGS 0x0c02

/* The longest lease. A lease that ends later than this is invalid and counts as expired. */
#define GW_MAX_LEASE_NS 1000000000ull

#define GW_REQUEST_ENTRIES 64u /* entries in the request log */
#define GW_HINT_ENTRIES 32u    /* entries in the hint ring */
#define GW_GPU_ENTRIES 64u     /* AMD GPUs on which a process can be asked to stop its own queues */

/* late_ratios: entry i counts ratios from GW_RATIO_FIRST + i * GW_RATIO_STEP to the next entry, in
 * thousandths. The first entry counts all lower ratios too, the last all higher ones. */
#define GW_RATIO_ENTRIES 64u
#define GW_RATIO_FIRST 840u
#define GW_RATIO_STEP 5u

/* Values of gate. Any other value means GW_GATE_OPEN. */
#define GW_GATE_OPEN 0u
#define GW_GATE_CLOSED 1u

/* Bits of watch. The first two are the events for which the process rings the doorbell. The
 * counters are always kept up to date, and a hint always rings. */
#define GW_WATCH_READY 1u    /* the process became ready or idle */
#define GW_WATCH_REQUESTS 2u /* a request ended */
/* Bits of watch that do not ring the doorbell. */
#define GW_PREDICT_ARRIVALS 4u   /* predict the next arrival from earlier ones */
#define GW_LOG_REQUESTS 8u       /* log requests; any bit above implies it */
#define GW_EXPLICIT_REQUESTS 16u /* requests are announced through the API: log no guessed ones, whatever the other bits */

/* Values of late_entry: whether to keep the first commands of a request from the device until
 * the process has launched enough to keep the device busy. Any other value means GW_LATE_OFF.
 * The daemon writes GW_LATE_OFF while no batch or idle work is on the process's devices. */
#define GW_LATE_OFF 0u  /* enter at once */
#define GW_LATE_AUTO 1u /* enter late where the shim has measured that it pays */
#define GW_LATE_ON 2u   /* enter late wherever it is possible */

/* Bits of flags. */
#define GW_READY 1u     /* there is work that is not known to be done */
#define GW_HELD 2u      /* a thread is waiting at the gate */
#define GW_CAPTURING 4u /* a graph is being captured: commands that go into it are not gated */
#define GW_WAITS_LATE 8u /* late entry keeps all commands in flight from the device; only with GW_WATCH_READY. Since version 2 */

/* Kinds of hints. The comment says what the value is. */
enum gw_hint_kind {
  GW_HINT_CLASS = 1,    /* 0 standard, 1 online, 2 batch, 3 idle: the numbers of sched.Class */
  GW_HINT_PRIORITY,     /* a higher priority runs first */
  GW_HINT_WEIGHT,       /* 1 to 10000 */
  GW_HINT_DEADLINE,     /* ns from ready to done; 0: none */
  GW_HINT_LAXITY,       /* ns that the work can wait; 0: unknown */
  GW_HINT_WORK,         /* ns of device time that a request needs; 0: unknown */
  GW_HINT_EXPECT,       /* time of the next arrival; 0: unknown */
  GW_HINT_SLO,          /* ns that a request may take; 0: no SLO */
  GW_HINT_BEGIN,        /* a request begins; the value is an id that the process chooses */
  GW_HINT_END,          /* the request with that id ends */
  GW_HINT_IDEMPOTENT,   /* 1: commands launched from now on may run twice; 0: they may not */
};

struct gw_request {
  uint64_t begin_ns;
  uint64_t end_ns;
};

struct gw_hint {
  uint32_t seq;  /* number of the hint, counted from 1, low 32 bits; written last */
  uint32_t kind; /* enum gw_hint_kind */
  int64_t value;
  uint64_t at_ns;
};

/* The process's compute queues on one AMD GPU, as far as the shim has seen them created. */
struct gw_gpu {
  uint32_t gpu;     /* KFD's id of the GPU; 0: the entry is free */
  uint32_t queues;  /* compute queues on it */
  uint32_t stopped; /* queues that the shim has stopped */
  uint32_t failed;  /* queues whose change the driver refused */
};

/* The page of one process. Each side writes its own 64-byte cache lines. */
struct gw_page {
  /* 0: written by the daemon before the process gets the page. */
  uint32_t magic;
  uint32_t abi;
  uint32_t size;
  uint32_t reserved0[13];

  /* 64: written by the daemon. bound, lead_us, late_entry and stream_classes are orders: since version 3
   * they hold until orders_lease_ns. */
  uint32_t gate;        /* a futex: GW_GATE_OPEN or GW_GATE_CLOSED */
  uint32_t bound;       /* most commands in flight, but see grain_us; 0: no bound, and the shim sets no marks */
  uint32_t batch;       /* most commands between two marks; 0: the shim chooses */
  uint32_t watch;       /* GW_WATCH_READY, ... */
  uint64_t lease_ns;    /* a closed gate counts as open from this time on; the daemon renews it */
  uint32_t lead_us;     /* how long before an expected arrival to take the device; 0: never */
  uint32_t max_park_us; /* how long to hold the device for an arrival that does not come */
  uint32_t grain_us;    /* a bound of n is n * grain_us of device time: more than n short commands, fewer long ones; 0: it is n commands */
  uint32_t idempotent;  /* 1: the owner says that the process's commands may run twice */
  uint64_t expect_ns;   /* time of the next arrival according to the owner; 0: unknown */
  uint32_t expect_seq;  /* a futex: changes whenever either side sets an expected arrival */
  uint32_t late_entry;  /* GW_LATE_OFF, ... Since version 2 */
  uint32_t stream_classes; /* 1: streams of lower priority give way to those of higher priority. Since version 2 */
  uint32_t reserved1;

  /* 128: written by the process. */
  uint64_t launched;  /* commands put on the device so far */
  uint64_t completed; /* of those, commands known to be done */
  uint64_t late_requests; /* requests that entered late; since version 2 */
  uint64_t held_ns;       /* total time that threads have waited at the gate */
  uint64_t holds;         /* how often a thread had to wait there */
  uint64_t overruns;      /* how often the bound was ignored because nothing completed, or a lease expired */
  uint32_t flags;         /* GW_READY, ... */
  uint32_t open_requests; /* requests begun and not ended */
  uint32_t doorbell;      /* counts rings: a new value means that there is something to read */
  uint32_t runtimes;      /* runtimes in use: bit 0 cuda, 1 hip, 2 opencl, 3 queue, 4 levelzero */

  /* 192 */
  uint64_t requests;  /* requests ended so far; request n is log[n % GW_REQUEST_ENTRIES] */
  uint64_t hints;     /* hints given so far; hint n is ring[n % GW_HINT_ENTRIES] */
  uint64_t parked;    /* how often the device was taken ahead of an arrival */
  uint64_t park_hits; /* of those, how often a kernel was launched while the device was held */
  uint64_t parked_ns; /* total time that the device was held ahead of arrivals */
  uint64_t saved_ns;  /* total context-switch time that this saved, estimated by the shim */
  uint64_t late_ns;    /* total time that late entry left the device to others; since version 2 */
  uint64_t late_early; /* requests whose program waited for them before the planned moment; since version 2 */

  /* 256 */
  struct gw_request log[GW_REQUEST_ENTRIES]; /* 1024 bytes */
  struct gw_hint ring[GW_HINT_ENTRIES];      /* 768 bytes */

  /* 2048: written by the daemon. Requests to change the process's own KFD queues, which no
   * other process may change. They hold until queue_lease_ns, by the rules of lease_ns. */
  uint64_t queue_lease_ns;
  uint32_t queue_seq;      /* a futex: changes after every change of these words */
  uint32_t queue_priority; /* KFD priority + 1; 0: the priority that the process chose */
  uint64_t orders_lease_ns; /* the orders count as zero from this time on; the daemon renews it. Since version 3 */
  uint32_t reserved3[10];
  uint32_t stop_gpus[GW_GPU_ENTRIES]; /* GPUs on which to stop the compute queues; 0: unused entry. 256 bytes */

  /* 2368: written by the process. */
  uint32_t queue_applied_seq; /* the last queue_seq that was applied; written last */
  uint32_t queue_errno;       /* errno of the last change that the driver refused; 0: none */
  uint32_t reserved4[14];
  struct gw_gpu gpus[GW_GPU_ENTRIES]; /* 1024 bytes */

  /* 3456: written by the process; since version 2. Pairs of alike requests of which the first
   * entered at once and the next one late, by the latency of the second over that of the first. */
  uint32_t late_ratios[GW_RATIO_ENTRIES]; /* 256 bytes */
  uint64_t late_given_up; /* how often late entry was given up for a while because pairs showed a cost */
  uint8_t reserved5[GW_PAGE_SIZE - 3456 - 264 - 64];

  /* 4032: written by the process. Launches on streams of lower priority that waited for streams of
   * higher priority, for how long, and how many were let go although those were busy. Since version 2 */
  uint64_t class_holds;
  uint64_t class_held_ns;
  uint64_t class_let_go;
  uint64_t idled; /* how often the process ran out of work, as far as it waits for its work. Since version 3 */
  uint64_t reserved6[4];
};

/* The status page: one for all processes, which can only read it. */
struct gw_status {
  uint32_t magic;
  uint32_t abi;
  uint32_t asleep; /* 1: the daemon sleeps, write to the doorbell; 0: it will read page.doorbell before it sleeps */
  uint32_t reserved[13];
};

#ifndef __cplusplus
_Static_assert(sizeof(struct gw_hint) == 24, "hint");
_Static_assert(sizeof(struct gw_gpu) == 16, "gpu");
_Static_assert(sizeof(struct gw_page) == GW_PAGE_SIZE, "page");
_Static_assert(sizeof(struct gw_status) == 64, "status");
#endif

#endif
