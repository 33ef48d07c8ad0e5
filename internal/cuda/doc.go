// Package cuda calls the few functions of NVIDIA's driver library that a
// benchmark needs: a context, kernels from text, streams, events, a word that host
// and GPU share. It loads libcuda.so.1 while running, without cgo, so that the same
// binary runs wherever a driver is and says so plainly where none is.
//
// It is no general binding. A context belongs to one thread: whoever makes one
// locks its goroutine to its thread first and calls everything from there. Only
// giveway-bench uses this package; the daemon never loads the library.
//
// Names and numbers are those of cuda.h (CUDA 12 and 13 agree on all of them).
package cuda
