// Package sched is the scheduler core: a deterministic state machine that turns
// events about device queues into actions that stop, start or slice them.
//
// It does no I/O, reads no clock, draws no random number and starts no
// goroutine. All input arrives through Step and all output is returned by Step.
// The same calls of Step return the same actions, so the simulator, recorded
// traces and tests run the code that runs on a node.
//
// A Policy decides which queues should run. The package itself is responsible
// for what no policy may get wrong:
//
//   - It issues the difference between the policy's plan and the state of the
//     device, with at most one pending action for each queue. Every outcome
//     comes back as an event (reconcile.go).
//   - It stops a queue at the best level the queue supports, and falls back to
//     the next lower level when that fails (reconcile.go).
//   - It orders actions so that two running queues never both have a slice too
//     short to make progress. On real hardware that is a livelock (reconcile.go).
//   - The floor: every ready queue gets a small share of its device (floor.go).
//   - The guard: a policy that makes a mistake is overruled. The device runs
//     with its own defaults until the policy behaves again (guard.go).
package sched
