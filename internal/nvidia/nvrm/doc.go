// Package nvrm calls NVIDIA's resource manager (RM) through an open /dev/nvidiactl:
// a file of our own, or a copy of another process's descriptor.
//
// RM checks that a call comes through the same open file that made the client object.
// It does not check which process makes the call (rmclientValidate_IMPL). A descriptor
// that was copied with pidfd_getfd therefore allows us to control the objects of its
// owner, on a stock driver.
//
// The package knows numbers, layouts and status codes, and which drivers they were
// checked with (docs/DRIVERS.md). It does not decide what to call or when. Each number
// names the header of open-gpu-kernel-modules that it comes from.
package nvrm
