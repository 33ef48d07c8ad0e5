// Package sim simulates accelerators and the processes that use them, on a virtual clock.
// The same seed always gives the same run.
//
//	World   devices, clients, a daemon and faults: Run returns latencies and broken invariants
//	Node    the same without a daemon and without an end; internal/sim/live runs it in real
//	        time under the real daemon
//	Bench   one device without clients and daemon, for doubles of drivers
//
// Modelled are the devices (model.go, runlist.go, slots.go), the control calls (call.go), the
// clients (client.go) and the faults (fault.go). The scheduler and the loop are the daemon's
// own code. The devices pass the conformance suite of real ones (haltest), and the NVIDIA
// models are calibrated on measurements (calibration_test.go).
package sim
