// Package nvrmtest is a double of NVIDIA's resource manager (RM), for tests on
// machines without a GPU.
//
// RM decodes the same bytes as the driver does, so what is tested against it are
// the layouts as well as the calls. A File of it is used in the same process;
// a Mount puts it behind a real path, and then descriptors, links in /proc and
// pidfd_getfd are the kernel's own. A Program is another process that has made
// there what a CUDA program makes. A Harness has a simulated GPU behind it all.
//
// The statuses that it answers with were compared with the real ones, by the
// contract that internal/nvidia/nvrm's tests run against both. It refuses to guess: a
// control or a class that it does not know is not supported.
package nvrmtest
