// Package amd is the backend for AMD GPUs. It finds the compute queues of other processes
// through KFD, AMD's compute driver, and takes them off the GPU and puts them back,
// running waves included.
//
// There are three methods to stop queues. For each process the best one that works is
// used; when it fails, the next is tried.
//
//   - batch: the ioctls of our driver patch (internal/amd/kfd/sched.go). One call for any
//     number of queues of a process, without a debug session and without ptrace.
//   - debug: the debugger interface of a stock driver. It needs a debug session of the
//     process and ptrace, so no other debugger can be used meanwhile.
//   - own: the process stops its own queues, as the driver allows every process to do
//     (UPDATE_QUEUE), because the shim in it is asked to (shim/kfd.c). One call per queue.
//
// No guardian is needed: when the daemon dies, the driver undoes the first two methods,
// and the shim undoes the third when its lease ends.
//
// Under HWS, the hardware scheduler of all GPUs before gfx11, every change takes the
// queues of all processes off the GPU for a moment and puts the remaining ones back.
// Nothing in this package was measured on a GPU.
package amd
