// Package kfd calls amdkfd, the compute driver of AMD GPUs on Linux: its ioctls on
// /dev/kfd, and the files below /sys/class/kfd that list GPUs, processes and queues.
//
// The package holds request numbers, struct layouts and error codes, and decides
// nothing. They are those of include/uapi/linux/kfd_ioctl.h in Linux 6.12, and of our
// patch to it (sched.go). Everything that is read from the driver or sysfs is checked,
// because other processes influence it.
//
// KFD identifies a request by its number alone, not by type or size. It treats an
// argument that is too short as if zeros followed. A descriptor of /dev/kfd works only in
// the process that opened it.
package kfd
