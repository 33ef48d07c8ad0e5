// Package hip calls the few functions of AMD's HIP runtime that a benchmark needs: a
// device, kernels that hiprtc compiles for it, streams, events, and a word that host and
// GPU share (gpuwork.GPU). It loads libamdhip64 and libhiprtc at run time, without cgo.
// Only giveway-bench uses this package; the daemon never loads the libraries.
//
// Names, numbers and struct offsets are those of hip_runtime_api.h and hiprtc.h of HIP 5.2
// and 6.3, which agree on all but hipDeviceProp_t; headers_test.go compares them with the
// headers of this machine. Nothing here has run on an AMD GPU.
package hip
