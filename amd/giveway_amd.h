/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMD compute queues, for programs that drive them themselves. Nobody needs this to be
 * scheduled by giveway.
 *
 * Two ways, which need not both be there:
 *
 *   the daemon   gw_amd_suspend, gw_amd_resume, gw_amd_processes, gw_amd_status: whole
 *                processes, on any driver that the daemon can do something with. It stays
 *                as asked when the caller ends.
 *   the driver   gw_amd_unmap, gw_amd_remap, gw_amd_remap_all, gw_amd_reserve, gw_amd_slots:
 *                single queues, many in one call, on a driver with giveway's patch
 *                (kernel/amdkfd). It is undone by gw_amd_cleanup and when the caller ends.
 *                Do not use it on processes that the daemon controls: -EBUSY.
 *
 * gw_amd_list reads sysfs and needs neither.
 *
 * All functions return 0, or what they say, or -errno, and are safe from any thread.
 *   -EINVAL   an argument makes no sense
 *   -ESRCH    no such process, or it has no queues
 *   -EPERM    it is not yours to control
 *   -ENOENT, -ECONNREFUSED   there is no daemon, or no /dev/kfd
 *   -ENOTTY   the driver is without the patch
 *   -EPROTO   the daemon's answer makes no sense
 *   -ETIMEDOUT  it did not come within ten seconds
 * What else the driver may say stands in kernel/amdkfd/ABI.md. After a fork the child needs
 * a handle of its own: -EBADF.
 */
#ifndef GIVEWAY_AMD_H
#define GIVEWAY_AMD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gw_amd gw_amd;

/* Where things are. NULL is where they usually are. */
typedef struct {
  const char *socket; /* of the daemon; NULL: as the giveway command finds it */
  const char *device; /* NULL: /dev/kfd */
  const char *sysfs;  /* NULL: /sys */
} gw_amd_options;

/* A compute queue. */
typedef struct {
  int32_t pid;    /* as gw_amd_list has it; the other functions do not look */
  uint32_t gpu;   /* gpu_id */
  uint32_t queue; /* its process's number for it */
  int32_t status; /* of the last call: 0, or -errno */
} gw_amd_queue;

/* The most queues in one call. */
#define GW_AMD_MOST 1024

/* Waves may go on as long as the driver usually lets them. */
#define GW_AMD_DEFAULT_GRACE 0xffffffffu

/* The slots of a GPU. */
typedef struct {
  uint32_t reserved; /* slots that queues below priority leave free */
  uint32_t priority; /* 0 to 15 */
  uint32_t total;
  uint32_t active; /* queues that may run */
} gw_amd_slot_use;

/* What was done through a handle, of one kind of call. */
typedef struct {
  uint64_t calls;
  uint64_t queues;
  uint64_t failed; /* queues */
  uint64_t total_ns;
  uint64_t longest_ns;
} gw_amd_calls;

typedef struct {
  gw_amd_calls unmap, remap;
} gw_amd_statistics;

/* Makes a handle. Nothing is opened yet. options may be NULL. */
int gw_amd_init(gw_amd **handle, const gw_amd_options *options);

/* Undoes what was done to the driver, and ends the handle. NULL is nothing. */
void gw_amd_cleanup(gw_amd *handle);

/*
 * Fills in the compute queues of all processes, as far as there is room, by process, and
 * returns how many there are.
 */
int gw_amd_list(gw_amd *handle, gw_amd_queue *queues, size_t room);

/* Has the daemon keep a process off its GPUs, and let it have them again. */
int gw_amd_suspend(gw_amd *handle, int pid);
int gw_amd_resume(gw_amd *handle, int pid);

/*
 * What the daemon knows of the processes, and of itself and its devices, as JSON (as
 * `giveway ps --json` and `giveway doctor --json` have it). As snprintf: as much as there is
 * room for, with a zero at the end, and how long all of it is.
 */
int gw_amd_processes(gw_amd *handle, char *json, size_t room);
int gw_amd_status(gw_amd *handle, char *json, size_t room);

/*
 * Takes queues of a process off their GPUs, waves and all; puts them back. pid 0 is the
 * caller. They return how many are so then, and set status in each. grace is in units of
 * 1000 GPU clocks, up to 255, or GW_AMD_DEFAULT_GRACE.
 */
int gw_amd_unmap(gw_amd *handle, int pid, gw_amd_queue *queues, size_t count, uint32_t grace);
int gw_amd_remap(gw_amd *handle, int pid, gw_amd_queue *queues, size_t count);

/* Puts back all of a process, whatever is reserved, and returns how many that were. */
int gw_amd_remap_all(gw_amd *handle, int pid);

/*
 * Has gw_amd_remap leave slots of a GPU free of queues below a priority; 0 slots ends that.
 * It takes CAP_SYS_ADMIN. Nothing but gw_amd_remap is kept from them.
 */
int gw_amd_reserve(gw_amd *handle, uint32_t gpu, uint32_t slots, uint32_t priority);
int gw_amd_slots(gw_amd *handle, uint32_t gpu, gw_amd_slot_use *use);

/* What was done through this handle by gw_amd_unmap and gw_amd_remap. */
int gw_amd_stats(gw_amd *handle, gw_amd_statistics *statistics);

#ifdef __cplusplus
}
#endif
#endif
