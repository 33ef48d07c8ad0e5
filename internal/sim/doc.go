// Package sim simulates a node on a virtual clock: devices, processes with queues, the
// daemon, and faults. The same seed always gives the same run.
//
// The scheduler and the loop are the daemon's own code: a World implements the loop's
// Transport and Executor, and its devices pass the same conformance suite as real ones
// (haltest). Modelled are the devices (model.go), the client processes (client.go) and
// the faults (fault.go). The NVIDIA models are calibrated on measurements
// (calibration_test.go).
//
// A Node is the same simulation without the simulated daemon; internal/sim/live runs one
// in real time under the real daemon.
package sim
