/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parking on a simulated device: the parking thread itself, beside a program whose requests come
 * at given times. Linked with the shim's own files, with a simulated clock, so a busy machine
 * gets the same numbers as an idle one.
 *
 *     parktime PERIOD JITTER MISSED BURST LAUNCH COPY WAITS SWITCH TOLD
 *
 * prints, for 100 seconds: the percentage of requests that found the device held, the percentage of
 * the time for which it was held, the times a second that it was held for nothing, the longest launch
 * while it was held in us, and after how many seconds an announced request found it held (-1: none).
 *
 * Requests come in bursts of BURST, 5 ms apart, every PERIOD us, each up to JITTER us earlier or
 * later, and MISSED percent of them not at all. If JITTER is larger than PERIOD they come at random.
 * The launch takes LAUNCH us. COPY: 1: a copy comes 60 us before it; 2: the program waits for the request,
 * and then copies its result and waits for the copy. WAITS: the launch waits for parked
 * kernels. A switch takes 165 us, and SWITCH us from the 20th second on. From second TOLD on, unless
 * it is 0, each request is announced.
 */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>

#include "../park.c"

#define US 1000ull
#define SECONDS 100
#define LOOK_NS 50
#define REQUEST_NS (1 * GW_MS_NS)
#define COPY_NS (60 * US)
#define ANNOUNCED_AHEAD_NS (5 * GW_MS_NS)
#define NEVER (~0ull)

static uint64_t time_ns = GW_SECOND_NS, end_ns = (SECONDS + 1) * GW_SECOND_NS;
static uint64_t launch_takes, switch_takes, told_from;
static int copies;
static bool waits;
static jmp_buf out;

/* 0 to 1. */
static double chance(void) {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (double)(state >> 11) / 9007199254740992.0;
}

/* The device: it switches to the parked kernels, and they end when they are released or in the end. */
static struct {
  bool parked, begun;
  uint32_t generation;
  uint64_t longest, begins;
} device;

static bool released(void) { return (int32_t)(*park.word - device.generation) >= 0; }

static void look_at_device(void) {
  if (!device.parked || time_ns < device.begins) return;
  device.begun = true;
  park.word[BEGUN_WORD] = device.generation;
  if (released() || time_ns - device.begins > device.longest) device.parked = false;
}

static int accept_launch(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **args, void **x) {
  (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)s, (void)x;
  time_ns += 3 * US;
  uint32_t generation = *(uint32_t *)args[1];
  if (device.parked && device.generation == generation) return 0; /* the second one */
  uint64_t takes = switch_takes && time_ns > 21 * GW_SECOND_NS ? switch_takes : 165 * US;
  takes += (uint64_t)(chance() * (chance() < 0.02 ? 200e3 : 10e3));
  device.parked = true, device.begun = false;
  device.generation = generation, device.longest = *(uint64_t *)args[2], device.begins = time_ns + takes;
  return 0;
}

static int succeed(void) { return 0; }
static int make(void **result) { return *result = &device, 0; }
static int link_kernel(void *linker, void **code) { return (void)linker, *code = &device, 0; }
static int make_linker(unsigned n, void *o, void *v, void **linker) { return (void)n, (void)o, (void)v, *linker = &device, 0; }
static int address_of(uint64_t *address, void *memory) { return *address = (uint64_t)memory, 0; }

void *__wrap_gw_library_symbol(struct gw_library *library, const char *name) {
  (void)library;
  if (!strcmp(name, "cuLaunchKernel")) return (void *)accept_launch;
  if (!strcmp(name, "cuLinkCreate_v2")) return (void *)make_linker;
  if (!strcmp(name, "cuLinkComplete")) return (void *)link_kernel;
  if (!strcmp(name, "cuMemHostGetDevicePointer_v2")) return (void *)address_of;
  if (!strcmp(name, "cuModuleLoadData") || !strcmp(name, "cuModuleGetFunction") || !strcmp(name, "cuStreamCreate")) return (void *)make;
  return (void *)succeed;
}

/* The program. */
static uint64_t *arrivals;
static int count, next_request, next_told;
static enum { IDLE, COPYING, LAUNCHING, BUSY, COPYING_BACK } state;
static uint64_t state_ends = NEVER, launch_begins;
static bool held_at_launch;
static uint64_t covered, answered, longest_launch, first_told_hit;

static void begin_launch(void) {
  launch_begins = time_ns;
  held_at_launch = device.parked;
  cuda_launching(true);
  state = LAUNCHING, state_ends = time_ns + launch_takes;
}

static void end_launch(void) {
  bool hit = device.parked && device.begun && !released();
  covered += hit, answered++;
  if (hit && told_from && launch_begins > told_from && !first_told_hit) first_told_hit = time_ns - told_from;
  if (held_at_launch && time_ns - launch_begins > longest_launch) longest_launch = time_ns - launch_begins;
  cuda_launched(&device, true);
  gw_shared.page.flags |= GW_READY;
  if (copies != 1) cuda_park_ready();
  state = BUSY, state_ends = time_ns + REQUEST_NS;
}

static void begin_copy(void) {
  cuda_launching(false);
  cuda_launched(&device, false);
  gw_shared.page.flags |= GW_READY;
  cuda_park_ready();
  state_ends = time_ns + COPY_NS;
}

/* What the program does when the time of its state is over. */
static void go_on(void) {
  switch (state) {
  case IDLE:
    next_request++;
    if (copies != 1) {
      begin_launch();
      break;
    }
    begin_copy();
    state = COPYING;
    break;
  case COPYING: begin_launch(); break;
  case LAUNCHING: end_launch(); break;
  case BUSY:
  case COPYING_BACK:
    gw_shared.page.flags &= ~GW_READY;
    gw_shared.page.idled++;
    if (copies == 2 && state == BUSY) {
      begin_copy();
      cuda_unpark(); /* before the wait for it */
      state = COPYING_BACK;
      break;
    }
    state = IDLE;
    while (next_request < count && arrivals[next_request] < time_ns) next_request++;
    break;
  }
  if (state == IDLE) state_ends = next_request < count ? arrivals[next_request] : NEVER;
}

static uint64_t told_at(void) {
  while (told_from && next_told < count && arrivals[next_told] < told_from) next_told++;
  return told_from && next_told < count ? arrivals[next_told] - ANNOUNCED_AHEAD_NS : NEVER;
}

/* Everything that happens until a time. */
static void pass_until(uint64_t until) {
  static bool inside; /* the program reads the clock as well */
  if (inside) return;
  inside = true;
  for (;;) {
    uint64_t at = state_ends < told_at() ? state_ends : told_at();
    if (state == LAUNCHING && waits && device.parked) at = told_at(); /* for as long as they are parked */
    if (device.parked && !device.begun && device.begins < at) at = device.begins;
    if (at > until) break;
    if (at > time_ns) time_ns = at;
    look_at_device();
    if (at == told_at()) cuda_park_expect(arrivals[next_told++]);
    else if (at == state_ends) go_on();
  }
  if (until > time_ns) time_ns = until;
  look_at_device();
  inside = false;
  if (time_ns > end_ns) longjmp(out, 1);
}

/* Replace the clock and sleeping (by the linker's --wrap). Sleeps end late, some of them very late. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
  pass_until(time_ns + LOOK_NS);
  *t = (struct timespec){(time_t)(time_ns / GW_SECOND_NS), (long)(time_ns % GW_SECOND_NS)};
  return (void)clock, 0;
}
void __wrap_gw_sleep(uint64_t ns) {
  for (uint64_t end = time_ns + ns + 3 * US; time_ns < end;) pass_until(time_ns + 2 * US < end ? time_ns + 2 * US : end);
}
long __wrap_gw_futex_wait(uint32_t *word, uint32_t value, uint64_t until, int shared) {
  until += (uint64_t)(chance() * (chance() < 0.03 ? 300e3 : 20e3));
  while (time_ns < until && __atomic_load_n(word, __ATOMIC_RELAXED) == value) pass_until(time_ns + 50 * US < until ? time_ns + 50 * US : until);
  return (void)shared, 0;
}

static int by_time(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void make_arrivals(double period, double jitter, double missed, int burst) {
  arrivals = malloc((size_t)((double)end_ns / period * burst * 2 + 1000) * sizeof *arrivals);
  for (double at = 2e9; at < (double)end_ns - 1e9; at += jitter > period ? -log(1 - chance()) * period : period) {
    for (int i = 0; i < burst; i++) {
      if (chance() >= missed) arrivals[count++] = (uint64_t)(at + i * 5e6 + (jitter > period ? 0 : (2 * chance() - 1) * jitter));
    }
  }
  qsort(arrivals, (size_t)count, sizeof *arrivals, by_time);
}

int main(int argc, char **argv) {
  if (argc != 10) return 2;
  make_arrivals(atof(argv[1]) * 1e3, atof(argv[2]) * 1e3, atof(argv[3]) / 100, atoi(argv[4]));
  launch_takes = strtoull(argv[5], NULL, 10) * US;
  copies = atoi(argv[6]), waits = atoi(argv[7]);
  switch_takes = strtoull(argv[8], NULL, 10) * US;
  told_from = strtoull(argv[9], NULL, 10) * GW_SECOND_NS;
  if (told_from) told_from += GW_SECOND_NS;
  gw_attached = 1;
  gw_shared.page = (struct gw_page){.magic = GW_MAGIC, .lead_us = 500, .max_park_us = 1000, .watch = GW_PREDICT_ARRIVALS};
  cuda_park_context = &device;
  started = 1;
  if (!find_driver()) return 1;
  state_ends = arrivals[0];
  if (!setjmp(out)) run(NULL);
  printf("%.1f %.2f %.2f %.0f %.2f\n", 100.0 * (double)covered / (double)answered, (double)learned.parked_ns / 1e7 / SECONDS,
         (double)(learned.parked - learned.hits) / SECONDS, (double)longest_launch / 1e3, first_told_hit ? (double)first_told_hit / 1e9 : -1);
  return 0;
}
