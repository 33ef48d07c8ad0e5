// Package amd drives AMD GPUs through KFD: it takes the compute queues of other
// people's processes off the GPU, waves and all, and puts them back. There are two
// ways, and of those that work here on a process the first is used; when it fails
// the next is tried.
//
//   - batch: a driver with our patch (internal/kfd/sched.go). One call for any
//     number of queues of a process, no session, no ptrace.
//   - debug: a stock driver's debugger interface, which suspends queues. It takes a
//     debug session, and ptrace: nobody else can debug the process meanwhile.
//
// A process could also stop its own queues (kfd.UpdateQueue), and a shim can hold
// its launches (internal/hal/shim); that is no business of this package, which is
// never in the process whose queues they are.
//
// If we die the driver puts everything back, in both ways: nobody need guard it.
//
// Under HWS, which is all but gfx11 and gfx12, any change takes every process's
// queues off for a moment and puts the rest back. Nothing here was measured on a
// GPU.
package amd
