// Package cuda calls the few functions of NVIDIA's driver library that a benchmark
// needs: a context, kernels from PTX, streams, events, and a word that host and GPU
// share (gpuwork.GPU). It loads libcuda.so.1 at run time, without cgo, so that the same
// binary runs on every machine and reports a missing driver. Only giveway-bench uses this
// package; the daemon never loads the library.
//
// Names and numbers are those of cuda.h (CUDA 12 and 13 agree on all of them).
package cuda
