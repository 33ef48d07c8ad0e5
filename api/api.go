// Package api is the control interface of the daemon: the types that go over its
// socket as JSON. The CLI, the dashboard and other programs of ours use them
// through package client, and know nothing else of the daemon.
//
//	GET  /v1/processes            -> []Process
//	POST /v1/processes/{pid}      Change -> Process
//	POST /v1/processes/{pid}/hint Hint -> Process
//	POST /v1/runs                 Run    -> (held open while the program runs)
//	GET  /v1/policy               -> Policy
//	POST /v1/policy               Policy -> Policy
//	GET  /v1/status               -> Status
//	POST /v1/restore              -> Status
//	POST /v1/shim                 -> (101, with memory to share: shim/abi.h)
//	GET  /metrics                 -> (text for Prometheus: docs/METRICS.md)
//
// A request that is refused is answered with an Error and a status of 400 (it
// makes no sense), 403 (not yours), 404 (no such process) or 409 (not possible
// here).
package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Classes are the classes there are, the most urgent first.
var Classes = []string{"online", "standard", "batch", "idle"}

// These bound what a Change or a Hint may ask for.
const (
	MostWeight   = 10_000
	MostDeadline = time.Hour // and the longest of all other times
	MostBound    = 1 << 16
)

// Process is a program that uses an accelerator.
type Process struct {
	PID       int     `json:"pid"`
	Command   string  `json:"command"` // empty where the caller may not see it
	User      string  `json:"user"`
	UID       uint32  `json:"uid"`
	Container string  `json:"container,omitempty"`
	Pod       string  `json:"pod,omitempty"`
	Class     string  `json:"class"`
	From      string  `json:"class_from"` // default, rule, run, hint, set
	Weight    uint32  `json:"weight,omitempty"`
	Priority  int32   `json:"priority,omitempty"`
	Paused    bool    `json:"paused,omitempty"`
	Queues    []Queue `json:"queues"`

	Deadline   time.Duration `json:"deadline_ns,omitempty"` // from ready to done
	Laxity     time.Duration `json:"laxity_ns,omitempty"`   // its work can wait
	Work       time.Duration `json:"work_ns,omitempty"`     // device time that a request needs
	Expect     time.Duration `json:"expect_ns,omitempty"`   // from now to the next request
	Idempotent bool          `json:"idempotent,omitempty"`  // what it launches may be run twice
	Predict    bool          `json:"predict,omitempty"`     // the device is taken ahead of arrivals that come in step

	SLO      time.Duration `json:"slo_ns,omitempty"`      // how long a request may take
	Bound    uint32        `json:"bound,omitempty"`       // commands in flight, where a policy has no other
	Batch    uint32        `json:"bound_batch,omitempty"` // of those; 0: as many as seem right
	Requests *Requests     `json:"requests,omitempty"`    // where it tells
	Shim     *Shim         `json:"shim,omitempty"`        // where it has one
}

// Requests is how a program does what it is asked for.
type Requests struct {
	Count uint64        `json:"count"` // that are over
	Open  uint32        `json:"open"`
	P50   time.Duration `json:"p50_ns"` // of the last ones
	P99   time.Duration `json:"p99_ns"`
}

// Shim is what the library in a program tells of it.
type Shim struct {
	Runtime   string        `json:"runtime"` // cuda, hip, opencl, queue; empty: not known yet
	Launched  uint64        `json:"launched"`
	Completed uint64        `json:"completed"`
	Holds     uint64        `json:"holds"` // how often a launch had to wait
	HeldFor   time.Duration `json:"held_ns"`
	Overruns  uint64        `json:"overruns"` // how often the bound was let go
	Parked    uint64        `json:"parked"`   // times the device was taken ahead of an arrival
	Hits      uint64        `json:"hits"`     // of those, times the arrival came
	ParkedFor time.Duration `json:"parked_ns"`
	Saved     time.Duration `json:"saved_ns"` // by its own estimate
	Ignored   uint64        `json:"ignored"`  // hints and requests that made no sense
}

// Queue is a thing of a process that the hardware schedules.
type Queue struct {
	ID       uint64        `json:"id"`
	Device   string        `json:"device"`               // GPU-...
	Index    int           `json:"index"`                // of the device, as nvidia-smi counts
	State    string        `json:"state"`                // running, stopping, stopped, starting
	Can      []string      `json:"can"`                  // hold, deactivate, interrupt, slice, bound
	Slice    time.Duration `json:"slice_ns,omitempty"`   // as set by us; 0: as found
	Found    time.Duration `json:"found_ns,omitempty"`   // the slice it was found with
	Served   time.Duration `json:"served_ns"`            // time on the device
	Measured bool          `json:"measured,omitempty"`   // the hardware says so; otherwise it is a guess
	Shared   string        `json:"shared_by,omitempty"`  // mps: one queue for all clients of an MPS server
	Native   int           `json:"kfd_queues,omitempty"` // how many of AMD's queues it stands for
	Way      string        `json:"way,omitempty"`        // in which those are interrupted: batch, debug, own
}

// Change asks for something else for a process. What is nil stays.
type Change struct {
	Class    *string        `json:"class,omitempty"`
	Weight   *uint32        `json:"weight,omitempty"`
	Priority *int32         `json:"priority,omitempty"`
	Deadline *time.Duration `json:"deadline_ns,omitempty"`
	SLO      *time.Duration `json:"slo_ns,omitempty"`
	Bound    *uint32        `json:"bound,omitempty"`       // 0: none
	Batch    *uint32        `json:"bound_batch,omitempty"` // commands after which it is looked how many are done; 0: as many as seem right
	Predict  *bool          `json:"predict,omitempty"`     // take the device ahead of arrivals that come in step
	Paused   *bool          `json:"paused,omitempty"`
	Tree     bool           `json:"tree,omitempty"` // its children as well, now and to come
}

// And is what was asked for by c, and after it by next.
func (c Change) And(next Change) Change {
	also(&c.Class, next.Class)
	also(&c.Weight, next.Weight)
	also(&c.Priority, next.Priority)
	also(&c.Deadline, next.Deadline)
	also(&c.SLO, next.SLO)
	also(&c.Bound, next.Bound)
	also(&c.Batch, next.Batch)
	also(&c.Predict, next.Predict)
	also(&c.Paused, next.Paused)
	c.Tree = next.Tree
	return c
}

func also[T any](to **T, next *T) {
	if next != nil {
		*to = next
	}
}

// Check says what is wrong with c, if anything, whoever it is for.
func (c Change) Check() error {
	switch {
	case c.Class != nil && !slices.Contains(Classes, *c.Class):
		return fmt.Errorf("there is no class %q; there are: %s", clip(*c.Class), strings.Join(Classes, ", "))
	case c.Weight != nil && (*c.Weight < 1 || *c.Weight > MostWeight):
		return fmt.Errorf("weight %d is not from 1 to %d", *c.Weight, MostWeight)
	case c.Deadline != nil && (*c.Deadline < 0 || *c.Deadline > MostDeadline):
		return fmt.Errorf("deadline %v is not from 0, for none, to %v", *c.Deadline, MostDeadline)
	case c.Bound != nil && *c.Bound > MostBound:
		return fmt.Errorf("bound %d is not from 0, for none, to %d", *c.Bound, MostBound)
	case c.Batch != nil && *c.Batch > MostBound:
		return fmt.Errorf("bound-batch %d is not from 0, for as many as seem right, to %d", *c.Batch, MostBound)
	case c.Batch != nil && c.Bound != nil && *c.Bound > 0 && *c.Batch > *c.Bound:
		return fmt.Errorf("batches of %d are more than the bound of %d", *c.Batch, *c.Bound)
	}
	if c.Predict != nil && *c.Predict && c.Class != nil && *c.Class != "online" {
		return fmt.Errorf("predict is for class online only, not for %s: choose that class, or leave predict out", *c.Class)
	}
	return checkTime("slo", c.SLO)
}

func checkTime(name string, d *time.Duration) error {
	if d != nil && (*d < 0 || *d > MostDeadline) {
		return fmt.Errorf("%s %v is not from 0, for none, to %v", name, *d, MostDeadline)
	}
	return nil
}

// Hint is what a program, or somebody on its behalf, says of what it is about to do.
// What is nil stays.
type Hint struct {
	Priority *int32         `json:"priority,omitempty"`
	Deadline *time.Duration `json:"deadline_ns,omitempty"` // from ready to done; 0: none
	Laxity   *time.Duration `json:"laxity_ns,omitempty"`   // its work can wait; 0: unknown
	Work     *time.Duration `json:"work_ns,omitempty"`     // device time a request needs; 0: unknown
	Expect   *time.Duration `json:"expect_ns,omitempty"`   // from now to the next request; 0: unknown
	// What it launches from now on may be run twice.
	Idempotent *bool  `json:"idempotent,omitempty"`
	Begin      *int64 `json:"begin,omitempty"` // a request begins, by a number of the program's choice
	End        *int64 `json:"end,omitempty"`   // that request ends
}

// Check says what is wrong with h, if anything.
func (h Hint) Check() error {
	for _, t := range []struct {
		name  string
		value *time.Duration
	}{{"deadline", h.Deadline}, {"laxity", h.Laxity}, {"work", h.Work}, {"expect", h.Expect}} {
		if err := checkTime(t.name, t.value); err != nil {
			return err
		}
	}
	if h.Begin != nil && h.End != nil {
		return errors.New("a request either begins or ends")
	}
	return nil
}

// Empty reports whether h says nothing.
func (h Hint) Empty() bool { return h == Hint{} }

func clip(s string) string {
	if len(s) > 40 {
		return s[:37] + "..."
	}
	return s
}

// Empty reports whether c asks for nothing.
func (c Change) Empty() bool {
	return c.Class == nil && c.Weight == nil && c.Priority == nil && c.Deadline == nil && c.SLO == nil && c.Bound == nil && c.Batch == nil && c.Predict == nil && c.Paused == nil
}

// Run announces that the caller is about to become a program, whose whole tree
// of processes is to have these attributes for as long as the request is open.
type Run struct {
	Change
}

// Policy is the policy in charge, or one to put in charge.
type Policy struct {
	Name      string            `json:"name"`
	Params    map[string]string `json:"params,omitempty"`
	Device    string            `json:"device,omitempty"` // empty: all
	Overruled string            `json:"overruled,omitempty"`
}

// Status is how the daemon and its devices are.
type Status struct {
	Version string        `json:"version"`
	PID     int           `json:"pid"`
	Uptime  time.Duration `json:"uptime_ns"`
	Policy  Policy        `json:"policy"`
	Devices []Device      `json:"devices"`
	Checks  []Check       `json:"checks"`
	// KernelLogLines is how many lines in the kernel's log were caused at most, by
	// wrong guesses at handles of programs that were there before the daemon.
	KernelLogLines uint64 `json:"kernel_log_lines"`
	Goroutines     int    `json:"goroutines"` // of the daemon
}

// Device is an accelerator that the daemon drives.
type Device struct {
	ID      string `json:"id"`
	Index   int    `json:"index"`
	Model   string `json:"model"`
	Backend string `json:"backend"`
	Eyes    bool   `json:"eyes"` // the hardware's own record of who ran is read
}

// Check is one thing that works here or does not, with why and what to do.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// Error is the answer to a request that was refused.
type Error struct {
	Message string `json:"error"`
}
