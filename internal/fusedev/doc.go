// Package fusedev puts a double of a driver behind a real path, for tests on
// machines without the device: a FUSE file system of one file, whose ioctls the
// double answers. Descriptors, links in /proc, pidfd_getfd and the ids of those
// who call are then the kernel's own.
//
// FUSE gives a regular file "restricted" ioctls: the kernel copies as much of
// the argument as the request's number says, and what it points at is fetched
// from the caller's memory. There is no mmap of registers.
package fusedev
