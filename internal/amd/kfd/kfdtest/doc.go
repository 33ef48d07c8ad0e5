// Package kfdtest is a test double of amdkfd for machines without an AMD GPU. It also holds
// the conformance table that the double and the real driver must both pass.
//
// KFD decodes the same bytes as the real driver, so tests check struct layouts as well as
// calls. It can be used in three ways:
//
//   - KFD.Open returns a file for use within the test, by processes of a World, which are
//     simulated.
//   - Machine puts the double behind a real path. Processes, users, ptrace and process
//     death are then those of the kernel.
//   - Harness adds a simulated GPU that runs the queues.
//
// The behaviour follows the source of Linux 6.12 (kfd_chardev.c, kfd_debug.c,
// kfd_device_queue_manager.c). Where no GPU is needed, the real driver was seen to give the
// same answers. A request of the real driver that the double does not implement returns
// ENOSYS.
package kfdtest
