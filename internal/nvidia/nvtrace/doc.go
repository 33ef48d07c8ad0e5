// Package nvtrace reads the hardware's own record of who held an NVIDIA GPU.
//
// The graphics engine's firmware (FECS) logs each moment a process's context
// comes on the compute engine and goes off it, with the GPU's clock. RM hands
// that log to an event buffer (class 90cd) that we bind to it; no profiler, no
// library in anybody's process. Trace reads the buffer, Account turns it into
// time per process.
//
// What the record is not:
//   - Resident is not busy. A context that is alone stays on while it does
//     nothing, and makes no record.
//   - A stock driver gives a program START and END only. When a switch was asked
//     for is not in it: END to START is the restore, not the whole preemption.
//   - Copy engines are not in it.
//
// The package only looks. It stops and starts nobody, and it does not know what
// a pid means to the caller: it is one of the initial pid namespace.
package nvtrace
