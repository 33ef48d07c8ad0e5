// Package nvtrace reads the context-switch trace of an NVIDIA GPU: the hardware's own
// record of which process was on the compute engine, and when.
//
// The graphics engine's firmware (FECS) logs when the context of a process comes on the
// compute engine and when it goes off, with the GPU's clock. RM writes that log to an event
// buffer (class 90cd) that is bound to it. This needs no profiler and no library in the
// traced processes. Trace reads the buffer; Account turns it into spans, which account for
// each moment once, and into the usage of processes.
//
// Limits of the trace:
//   - Resident is not busy. A context that is alone stays on the GPU while it does nothing,
//     and makes no records.
//   - A stock driver reports START and END only. It does not report when a switch was
//     requested: END to START is the restore, not the whole preemption. The time before END,
//     in which the context is saved, counts for the process that leaves.
//   - Copy engines are not traced.
//
// The package changes nothing of other processes. Pids are those of the initial pid
// namespace.
package nvtrace
