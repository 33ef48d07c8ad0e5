// Package kfdtest is a double of amdkfd, for tests on machines without an AMD GPU,
// and the conformance table that the double and the real driver have to pass.
//
// KFD decodes the same bytes as the driver does, so what is tested against it are
// the layouts as well as the calls. A File of it is used in the same process, by
// processes of a World that are made up; a Mount puts it behind a real path, and
// then processes, users, ptrace and death are the kernel's own. A Harness has a
// simulated GPU behind it all.
//
// What it answers follows the source of Linux 6.12 (kfd_chardev.c, kfd_debug.c,
// kfd_device_queue_manager.c), and where no GPU is needed the same answers were
// seen from that driver. It refuses to guess: a request of the driver's that it
// does not know is ENOSYS.
package kfdtest
