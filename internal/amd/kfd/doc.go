// Package kfd speaks to amdkfd, the compute half of AMD's Linux driver: its
// ioctls on /dev/kfd, and what sysfs tells of GPUs, processes and queues.
//
// The package knows numbers, layouts and answers. It has no judgement: what to
// call, when and on whom is for others to know. Numbers and structs are those of
// include/uapi/linux/kfd_ioctl.h in Linux 6.12, and of our own patch to it
// (sched.go). Everything that is read from the driver or from sysfs is checked:
// another process may be what it tells of.
//
// KFD looks at the number of a request and not at its type or size: a shorter
// argument is taken as if it were followed by zeros. A descriptor is of use to
// the process only that opened it.
package kfd
