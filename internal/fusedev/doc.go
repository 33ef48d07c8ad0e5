// Package fusedev puts a double of a driver behind a real path, for tests on machines
// without the device. It is a FUSE file system of one file whose ioctls the double answers.
// Descriptors, links in /proc, pidfd_getfd and the ids of the callers are the kernel's own.
//
// FUSE gives a regular file "restricted" ioctls: the kernel copies as many bytes of the
// argument as the request number states. The double reads what the argument points at from
// the memory of the caller. Device registers cannot be mapped.
package fusedev
