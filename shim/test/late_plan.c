/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated programs and what late_plan.c learns from them. A request has commands that the CPU
 * makes at intervals, each with some device time. A device that is entered late needs a context
 * switch and then does what is queued. Prints one line for each program.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../late_plan.h"

#define US 1000.0
#define MS 1000000.0

struct program {
  const char *name;
  int commands;
  double cpu_us, gpu_us; /* of one request, all commands */
  double noise;          /* of the CPU time, relative */
  double slow;           /* at times the CPU is slower by this part */
  double slow_for;       /* for so many requests; 0: for 100 */
  double tail_us;        /* from the end of the last command until the program goes on */
  double penalty;        /* of late entry itself, relative to the CPU time */
  int vary;              /* commands vary by so many */
  double gpu_later_us;   /* device time in the second half of the run; 0: the same */
  int key_changes;       /* every request begins with another kernel */
  double front;          /* part of the CPU time before the second command */
  int requests;
  double gap_ms;
  /* Wanted: part of the requests that enter late, part of the CPU time that is left to others in
   * these, relative to the best possible, and how much longer the P50 and P99 are. */
  double late_least, late_most, held_least, worse_most;
  double ratio_least, ratio_most; /* of the median of the pairs' ratios, where there must be pairs */
};

static unsigned long long seed = 1;
static double uniform(void) {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (double)(seed >> 11) / (double)(1ull << 53);
}
/* CPU times are skewed: rarely much longer. */
static double skewed(double noise) {
  double u = uniform(), x = (uniform() + uniform() + uniform() - 1.5) * noise;
  return 1 + x + (u > 0.98 ? 3 * noise * uniform() : 0);
}

/* The CPU becomes slow once in about 100 requests. */
static double speed(const struct program *p) {
  static int is_slow;
  if (p->slow && uniform() < (is_slow && p->slow_for ? 1 / p->slow_for : 0.01)) is_slow = !is_slow;
  return p->slow && is_slow ? 1 + p->slow : 1;
}

static const double switch_us = 200;

/* Simulates one request. release_at: after so many commands; negative: enters at once. Fills in the
 * sample. */
static void simulate(const struct program *p, double speed_now, int n, double gpu_us, int release_at, double limit_ns, struct gw_late_sample *q, uint32_t commands) {
  double cpu = p->cpu_us * speed_now * skewed(p->noise) * (release_at >= 0 ? 1 + p->penalty : 1), gpu_free = 0, released = release_at < 0 ? 0 : -1, at = 0;
  uint32_t point = 0;
  double *made = malloc(sizeof *made * (size_t)(n + 1));
  for (int i = 0; i <= n; i++) {
    made[i] = i == 0 ? 0 : cpu * (p->front + (1 - p->front) * (double)i / n);
  }
  for (int i = 0; i < n; i++) {
    at = made[i];
    if (released < 0 && i >= release_at) released = at;
    if (released < 0 && at * US > limit_ns) released = limit_ns / US;
    while (commands && point < GW_LATE_POINTS && (uint32_t)i >= commands * (point + 1) / GW_LATE_POINTS) q->point_ns[point++] = (uint64_t)(at * US) + 1;
  }
  at = cpu;
  if (released < 0) released = at;
  if (release_at >= 0) gpu_free = released + switch_us;
  for (int i = 0; i < n; i++) {
    /* A device that has done all that is queued goes to others, and has to come back. */
    double from = made[i] > gpu_free ? made[i] + (i ? switch_us : 0) : gpu_free;
    gpu_free = from + gpu_us / n;
  }
  double done = (gpu_free > at ? gpu_free : at) + p->tail_us;
  q->commands = (uint32_t)n;
  q->released_ns = (uint64_t)(released * US);
  q->waited_ns = (uint64_t)(at * US);
  q->done_ns = (uint64_t)(done * US);
  free(made);
}

static int by_size(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* The median of the pairs' ratios, from the middle of the entries, and the number of pairs. */
static double median_ratio(const struct gw_late_plan *plan, uint32_t *pairs) {
  uint32_t before = 0;
  *pairs = 0;
  for (int i = 0; i < (int)GW_RATIO_ENTRIES; i++) *pairs += plan->ratios[i];
  for (int i = 0; i < (int)GW_RATIO_ENTRIES; i++) {
    before += plan->ratios[i];
    if (2 * before >= *pairs) return (GW_RATIO_FIRST + (i + 0.5) * GW_RATIO_STEP) / 1000;
  }
  return 0;
}

static int run(const struct program *p) {
  static struct gw_late_plan plan;
  memset(&plan, 0, sizeof plan);
  seed = 7;
  int late = 0, skip = p->requests / 10, counted = 0;
  double held = 0, now = 1e9;
  uint64_t *with = calloc((size_t)p->requests, 8), *without = calloc((size_t)p->requests, 8);
  for (int i = 0; i < p->requests; i++) {
    struct gw_late_sample q = {0}, w = {0};
    double gpu = p->gpu_later_us && i >= p->requests / 2 ? p->gpu_later_us : p->gpu_us;
    int n = p->commands + (p->vary ? (int)(uniform() * p->vary) : 0);
    struct gw_late_choice c = gw_late_choose(&plan, p->key_changes ? (uint64_t)i : 1, (uint64_t)now, false);
    double speed_now = speed(p);
    unsigned long long again = seed;
    simulate(p, speed_now, n, gpu, -1, 0, &w, c.shape->commands);
    seed = again;
    simulate(p, speed_now, n, gpu, c.late ? (int)c.release_at : -1, (double)c.limit_ns, &q, c.shape->commands);
    gw_late_learn(&plan, &c, &q, (uint64_t)now);
    now += (double)q.done_ns + p->gap_ms * MS;
    if (i < skip) continue;
    with[counted] = q.done_ns;
    without[counted++] = w.done_ns;
    late += c.late;
    if (c.late) held += (double)q.released_ns;
  }
  qsort(with, (size_t)counted, 8, by_size);
  qsort(without, (size_t)counted, 8, by_size);
  double part = (double)late / counted, best = p->cpu_us - p->gpu_us - switch_us;
  double hold = late && best > 0 ? held / late / US / best : 0;
  double p50 = (double)with[counted / 2] / (double)without[counted / 2] - 1;
  double p99 = (double)with[counted * 99 / 100] / (double)without[counted * 99 / 100] - 1;
  int ok = part >= p->late_least && part <= p->late_most && (!late || hold >= p->held_least) && p50 <= p->worse_most && p99 <= p->worse_most;
  uint32_t pairs;
  double ratio = median_ratio(&plan, &pairs);
  /* One request in 32 enters at once in the long run, and many more do at first. */
  if (p->ratio_most) ok = ok && pairs >= (uint32_t)late / 40 && pairs <= (uint32_t)p->requests / 2 && ratio >= p->ratio_least && ratio <= p->ratio_most;
  else ok = ok && (late || !pairs);
  printf("%-28s late %.3f, held %.2f of the best, P50 %+.2f %%, P99 %+.2f %%, %u pairs %.3f, given up %llu%s\n", p->name, part, hold, 100 * p50, 100 * p99, pairs, ratio, (unsigned long long)plan.given_up, ok ? "" : "  WRONG");
  free(with);
  free(without);
  return !ok;
}

int main(void) {
  static const struct program programs[] = {
      {.name = "ResNet-50 eager", .commands = 160, .cpu_us = 7000, .gpu_us = 1200, .noise = 0.15, .tail_us = 30, .requests = 4000, .gap_ms = 13,
       .late_least = 0.9, .late_most = 1, .held_least = 0.85, .worse_most = 0.02},
      {.name = "a CPU of two speeds", .commands = 338, .cpu_us = 3900, .gpu_us = 1900, .noise = 0.05, .slow = 0.45, .tail_us = 30, .requests = 8000,
       .late_least = 0.9, .late_most = 1, .held_least = 0.8, .worse_most = 0.02, .ratio_least = 0.97, .ratio_most = 1.03},
      {.name = "a CPU that is slow at times", .commands = 338, .cpu_us = 3900, .gpu_us = 1900, .noise = 0.03, .slow = 0.8, .slow_for = 15, .tail_us = 30,
       .requests = 8000, .late_least = 0.95, .late_most = 1, .held_least = 0.8, .worse_most = 0.02, .ratio_least = 0.97, .ratio_most = 1.03},
      {.name = "ResNet-50 without noise", .commands = 160, .cpu_us = 7000, .gpu_us = 1200, .noise = 0.01, .tail_us = 30, .requests = 4000,
       .late_least = 0.9, .late_most = 1, .held_least = 0.93, .worse_most = 0.02, .ratio_least = 0.99, .ratio_most = 1.02},
      {.name = "decode loop", .commands = 400, .cpu_us = 12000, .gpu_us = 4000, .noise = 0.1, .tail_us = 20, .requests = 4000,
       .late_least = 0.9, .late_most = 1, .held_least = 0.85, .worse_most = 0.02},
      {.name = "more work later", .commands = 160, .cpu_us = 7000, .gpu_us = 1200, .gpu_later_us = 3500, .noise = 0.1, .tail_us = 30, .requests = 8000,
       .late_least = 0.9, .late_most = 1, .held_least = 0.6, .worse_most = 0.02},
      {.name = "less work later", .commands = 160, .cpu_us = 7000, .gpu_us = 3500, .gpu_later_us = 1200, .noise = 0.1, .tail_us = 30, .requests = 8000,
       .late_least = 0.9, .late_most = 1, .held_least = 1.05, .worse_most = 0.02},
      {.name = "a pause after the first", .commands = 100, .cpu_us = 6000, .gpu_us = 1000, .front = 0.5, .noise = 0.05, .tail_us = 30, .requests = 4000,
       .late_least = 0.9, .late_most = 1, .held_least = 0.8, .worse_most = 0.03},
      {.name = "commands vary a little", .commands = 150, .vary = 12, .cpu_us = 6000, .gpu_us = 1500, .noise = 0.1, .tail_us = 30, .requests = 4000,
       .late_least = 0.9, .late_most = 1, .held_least = 0.7, .worse_most = 0.02},
      {.name = "commands vary much", .commands = 20, .vary = 300, .cpu_us = 6000, .gpu_us = 1500, .noise = 0.1, .tail_us = 30, .requests = 4000,
       .late_least = 0, .late_most = 0.1, .worse_most = 0.02},
      {.name = "device-bound", .commands = 160, .cpu_us = 3000, .gpu_us = 9000, .noise = 0.1, .tail_us = 30, .requests = 4000,
       .late_least = 0, .late_most = 0.01, .worse_most = 0.02},
      {.name = "nearly device-bound", .commands = 160, .cpu_us = 7000, .gpu_us = 6800, .noise = 0.1, .tail_us = 30, .requests = 4000,
       .late_least = 0, .late_most = 0.05, .worse_most = 0.02},
      {.name = "few commands", .commands = 8, .cpu_us = 7000, .gpu_us = 1000, .noise = 0.1, .tail_us = 30, .requests = 4000,
       .late_least = 0, .late_most = 0, .worse_most = 0},
      {.name = "short requests", .commands = 30, .cpu_us = 600, .gpu_us = 200, .noise = 0.1, .tail_us = 20, .requests = 4000,
       .late_least = 0, .late_most = 0.02, .worse_most = 0.02},
      {.name = "never the same kernel", .commands = 160, .cpu_us = 7000, .gpu_us = 1200, .noise = 0.1, .tail_us = 30, .key_changes = 1, .requests = 4000,
       .late_least = 0, .late_most = 0, .worse_most = 0},
      {.name = "late entry costs 10 %", .commands = 160, .cpu_us = 7000, .gpu_us = 1200, .penalty = 0.1, .noise = 0.05, .tail_us = 30, .requests = 20000,
       .gap_ms = 1, .late_least = 0, .late_most = 0.05, .worse_most = 0.04, .ratio_least = 1.08, .ratio_most = 1.12},
  };
  int wrong = 0;
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) wrong += run(&programs[i]);
  return wrong != 0;
}
