// Package amd drives AMD GPUs through KFD: it takes the compute queues of other
// people's processes off the GPU, waves and all, and puts them back. There are three
// ways, and of those that work here on a process the first is used; when it fails
// the next is tried.
//
//   - batch: a driver with our patch (internal/amd/kfd/sched.go). One call for any
//     number of queues of a process, no session, no ptrace.
//   - debug: a stock driver's debugger interface, which suspends queues. It takes a
//     debug session, and ptrace: nobody else can debug the process meanwhile.
//   - own: the process stops its own queues, as any process may (kfd.UpdateQueue),
//     because our shim in it is told to (shim/kfd.c). One call for each queue.
//
// That a shim can hold launches as well (internal/shim) is no business of this
// package.
//
// If we die everything is put back, in all three: by the driver, or by the shim when
// nobody tells it any more to go on. Nobody need guard it.
//
// Under HWS, which is all but gfx11 and gfx12, any change takes every process's
// queues off for a moment and puts the rest back. Nothing here was measured on a
// GPU.
package amd
