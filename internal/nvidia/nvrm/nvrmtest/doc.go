// Package nvrmtest is a double of NVIDIA's resource manager (RM), for tests on machines
// without a GPU.
//
// RM decodes the same bytes as the driver, so tests cover the layouts as well as the
// calls. A File of it is used in the test's own process. A Mount puts it behind a real
// path, so that descriptors, links in /proc and pidfd_getfd are the kernel's own. A
// Program is another process that has made the objects of a CUDA process there. A Harness
// adds a simulated GPU.
//
// The statuses were compared with the real driver's: the tests of internal/nvidia/nvrm
// run the same contract against both. A control or class that the double does not know is
// answered with "not supported".
package nvrmtest
