// Package nvrm speaks to NVIDIA's resource manager (RM) through an open
// /dev/nvidiactl: our own, or a copy of another process's.
//
// RM checks that a call comes through the same open file as the one that made
// the client object, and not from which process (rmclientValidate_IMPL). So a
// descriptor copied with pidfd_getfd carries the right to control what its
// owner made, on a stock driver.
//
// The package knows numbers, layouts and status codes. It has no judgement: what
// to call, when and on whom is for others to know. Every number names the header
// of open-gpu-kernel-modules that it is from.
package nvrm
