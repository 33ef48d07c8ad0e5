/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives the library for amd_test.go: it reads one command per line from standard input and
 * answers each with one line. The first letter of a command selects the function; numbers
 * follow.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../giveway_amd.h"

static gw_amd_queue queues[2 * GW_AMD_MAX_QUEUES];
static char json[1 << 16];

/* Splits a line into numbers. */
static size_t numbers(char *line, long *out, size_t max) {
  size_t n = 0;
  for (char *word = strtok(line, " \n"); word && n < max; word = strtok(NULL, " \n")) out[n++] = atol(word);
  return n;
}

static void batch(gw_amd *amd, int unmap, long *arg, size_t n) { /* arg: pid gpu grace queue... */
  size_t count = n > 3 ? n - 3 : 0;
  for (size_t i = 0; i < count; i++)
    queues[i] = (gw_amd_queue){.gpu = (uint32_t)arg[1], .queue = (uint32_t)arg[3 + i], .status = 99};
  int result = unmap ? gw_amd_unmap(amd, (int)arg[0], queues, count, (uint32_t)arg[2])
                     : gw_amd_remap(amd, (int)arg[0], queues, count);
  printf("%d", result);
  for (size_t i = 0; i < count && count < 16; i++) printf(" %d", queues[i].status);
  printf("\n");
}

static void list(gw_amd *amd, size_t room) {
  int n = gw_amd_list(amd, room ? queues : NULL, room);
  printf("%d", n);
  for (gw_amd_queue *q = queues; q < queues + n && q < queues + room; q++)
    printf(" %d/%u/%u", q->pid, q->gpu, q->queue);
  printf("\n");
}

static void slots(gw_amd *amd, uint32_t gpu) {
  gw_amd_slot_use u = {0, 0, 0, 0};
  int result = gw_amd_slots(amd, gpu, &u);
  printf("%d %u %u %u %u\n", result, u.reserved, u.priority, u.total, u.active);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  gw_amd_options paths = {argv[1], argv[2], argv[3]};
  gw_amd *amd;
  if (gw_amd_init(&amd, &paths)) return 1;
  static char line[1 << 16];
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (fgets(line, sizeof line, stdin)) {
    long arg[2 * GW_AMD_MAX_QUEUES] = {0};
    char *rest = strchr(line, ' ');
    size_t n = rest ? numbers(rest, arg, sizeof arg / sizeof arg[0]) : 0;
    char command = line[0];
    if (command == 'l') list(amd, (size_t)arg[0]);
    if (command == 's') printf("%d\n", gw_amd_suspend(amd, (int)arg[0]));
    if (command == 'r') printf("%d\n", gw_amd_resume(amd, (int)arg[0]));
    if (command == 'u') batch(amd, 1, arg, n);
    if (command == 'm') batch(amd, 0, arg, n);
    if (command == 'a') printf("%d\n", gw_amd_remap_all(amd, (int)arg[0]));
    if (command == 'v')
      printf("%d\n", gw_amd_reserve(amd, (uint32_t)arg[0], (uint32_t)arg[1], (uint32_t)arg[2]));
    if (command == 'h') slots(amd, (uint32_t)arg[0]);
    if (command == 'p') {
      int length = gw_amd_processes(amd, json, (size_t)arg[0]);
      printf("%d %zu\n", length, arg[0] ? strlen(json) : 0);
    }
    if (command == 'd') printf("%d\n", gw_amd_status(amd, json, sizeof json));
    if (command == 'c') {
      gw_amd_statistics s;
      gw_amd_stats(amd, &s);
      printf("%llu %llu %llu %llu\n", (unsigned long long)s.unmap.calls, (unsigned long long)s.unmap.queues,
             (unsigned long long)s.unmap.failed, (unsigned long long)s.remap.queues);
    }
    if (command == 'f') { /* query the slots in a forked child */
      pid_t child = fork();
      if (!child) {
        slots(amd, (uint32_t)arg[0]);
        _exit(0);
      }
      waitpid(child, NULL, 0);
    }
    if (command == 'x') { /* replace the handle */
      gw_amd_cleanup(amd);
      if (gw_amd_init(&amd, &paths)) return 1;
      printf("0\n");
    }
  }
  gw_amd_cleanup(amd);
  return 0;
}
