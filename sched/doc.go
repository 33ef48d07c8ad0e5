// Package sched is the scheduler itself: a deterministic state machine that
// turns facts about device queues into orders to stop, start or slice them.
//
// It does no I/O, reads no clock, draws no random number and starts no
// goroutine. Everything it knows arrives in Step; everything it wants done is
// returned by Step. Given the same Steps it returns the same actions, which is
// what makes the simulator, the traces and the tests honest.
//
// The package decides who should run only by asking a Policy. It keeps for
// itself what no policy may get wrong:
//
//   - the difference between what a policy wants and what a device is doing,
//     with one action under way for each queue and every outcome an event;
//   - the levels at which a queue can be stopped, and the next lower one when
//     the best fails (steer.go);
//   - the order of orders: two running queues never both hold a slice too short
//     to make progress in, because on real hardware that is a livelock (steer.go);
//   - the floor: no queue with work to do is starved outright (floor.go);
//   - the guard: a policy that makes a mistake is overruled, and the device runs
//     as its vendor has it until the policy behaves (guard.go).
package sched
