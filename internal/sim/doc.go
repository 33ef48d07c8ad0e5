// Package sim is a whole node on a virtual clock: devices, programs, the daemon,
// and their faults. One seed gives one run, always the same.
//
// The scheduler and the loop that drive it are the daemon's own: a World is the
// loop's transport and executor, and its devices are hal devices that pass the
// same conformance suite as real ones. What is made up is named and can be set:
// the device models (model.go), the programs (client.go) and the faults
// (fault.go). The models of NVIDIA GPUs are calibrated on measurements.
package sim
