/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of the Level Zero adapter, with the driver of fakeze.c. Linked with the shim's own
 * files and libze_loader. */
#define LINKED
#include "conform.h"
#include "zeprogram.h"

extern const struct gw_runtime gw_levelzero;

static kernel_t wait_word;
static queue_t queue; /* NULL: the stream is the list */
static list_t list;
static uint32_t *words[16];
static int blocked, released;

static void block(void) {
  list_t l = queue ? new_list(COMPUTE) : list;
  words[blocked] = new_buffer();
  launch(l, wait_word, (uint64_t)words[blocked++], 0, 0, NULL, 0, NULL);
  if (queue) execute(queue, l, NULL);
}
static void release(void) { __atomic_store_n(words[released++], 1, __ATOMIC_RELEASE); }
static void finish(void) {
  event_t e = new_event(new_pool(1), 0);
  if (queue) MUST(ze.CommandQueueSynchronize(queue, UINT64_MAX));
  else MUST(ze.CommandListAppendBarrier(list, e, 0, NULL)), MUST(ze.EventHostSynchronize(e, UINT64_MAX));
}

/* Tests a queue, an immediate list, and an immediate list that is in order. */
int main(void) {
  begin();
  wait_word = new_kernel("wait");
  queue = new_queue(COMPUTE, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
  struct conform c = {&gw_levelzero, queue, queue, block, release, finish, NULL};
  if (conform(&c)) return 1;
  conform_must((int)ze.CommandQueueDestroy(queue), "zeCommandQueueDestroy"); /* no fence is left */
  queue = NULL;
  for (uint32_t in_order = 0; in_order < 2; in_order++) {
    ze_command_queue_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, .flags = in_order << 1};
    MUST(ze.CommandListCreateImmediate(context, device, &desc, &list));
    c.ctx = c.stream = list;
    if (conform(&c)) return 1;
    conform_must((int)ze.CommandListDestroy(list), "zeCommandListDestroy");
  }
  return 0;
}
