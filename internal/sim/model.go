package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Model is a kind of device: how it shares its time, how its queues can be stopped, and
// what that costs. One set of parameters serves every run.
type Model struct {
	Name string
	Doc  string

	// Exactly one of Runlist and Slots is set.
	Runlist *RunlistModel // one channel group at a time, round-robin, by slices
	Slots   *SlotsModel   // several queues side by side, in hardware slots

	Calls Calls // cost of control calls
	// TraceInterval is how often the daemon may read the context-switch trace; zero: the
	// device has none.
	TraceInterval time.Duration
	Gated         bool   // every process has the shim: its queue can be held, bounded and counted
	Bound         uint32 // default bound on commands in flight of a process with the shim
	// Grain limits what the bound admits if commands are longer: as many as take Bound times
	// Grain of device time, but at least two (shim/bound.c). Zero: no limit.
	Grain time.Duration
}

// maxCommand is the longest that a command counts for the bound: MAX_PACE_NS of shim/bound.c.
const maxCommand = 1600 * us

// Calls are the costs of control calls, from the call until it returns. A call takes
// effect when the fraction Effect of its time has passed. A call that saves contexts also
// waits until they are saved (SlotsModel.Context).
type Calls struct {
	Stop, Start, SetSlice Dist
	Gate                  Dist // hold, release, set bound: by the shim, without the driver
	Effect                float64

	PerQueue time.Duration // additional cost of each queue in the call
	// AfterStop is what a stop does after the queues are off the device, and CopyPerQueue
	// what it then does for each queue of the process, stopped or not. The caller waits
	// for both.
	AfterStop    Dist
	CopyPerQueue time.Duration
}

// RunlistModel shares time as an NVIDIA GPU does: round-robin among the channel groups
// that have work, each for its slice, with a context switch in between.
type RunlistModel struct {
	Slice time.Duration // default slice of a group
	// Switch is the time from stopping one group to running the next.
	Switch Dist
	// Refill is how long a group that was stopped inside a kernel makes no progress when
	// it runs again. In a shorter turn it makes none at all: two groups with such slices
	// livelock.
	Refill time.Duration
	// Fetch is how long such a group ends no command when it runs again. In a shorter turn
	// groups with short kernels make no progress either.
	Fetch time.Duration
	// Stay is how long such a group cannot be stopped again.
	Stay time.Duration
	// Notice is the time from a launch on an idle group until the host notices it, while
	// another group runs.
	Notice time.Duration
	// MinSharedSlice is the shortest slice with which two groups both make progress, as
	// told to the scheduler.
	MinSharedSlice time.Duration
}

// SlotsModel serves several queues side by side, as AMD GPUs and most NPUs do. With one
// slot it is a simple accelerator.
type SlotsModel struct {
	Slots int // queues served at a time
	// Quantum is how long one set of queues is served if there are more queues than
	// slots. Zero: a slot takes the command that was launched first and runs it to its end.
	Quantum time.Duration

	Interrupt  bool // level 3: a queue can be stopped inside a command
	RemapAll   bool // any change unmaps every queue and maps those that may run
	Batch      bool // one call changes several queues of one process
	Context    Context
	Deactivate DeactivateKind // level 2
	FlagCost   time.Duration  // FlagDeactivate: cost of a command that begins and sees the flag
	FlushCost  time.Duration  // FlushDeactivate: cost of dropping the commands, and of submitting them again
}

// DeactivateKind is a way of doing level 2.
type DeactivateKind uint8

const (
	NoDeactivate       DeactivateKind = iota
	FlagDeactivate                    // every command checks a flag and ends at once if it is set (XSched's guardian)
	HardwareDeactivate                // the hardware serves the queue no more
	FlushDeactivate                   // commands that have not begun are dropped, and submitted again later
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// models lists every device model. Those of NVIDIA are calibrated on measurements
// (calibration_test.go). Those of AMD (amd.go) and of levels 1 and 2 are built from driver
// source and published figures; they were never compared with hardware.
var models = []Model{
	nvidia("nvidia-h200", "NVIDIA H200, stock driver 580: measured", Around(165*us, 0.02)),
	nvidia("nvidia-a100", "NVIDIA A100: the H200's model with the switch that GPreempt published", Around(150*us, 0.05)),
	amdHWS,
	amdMES,
	oneSlot("level1-npu", "an accelerator that cannot be interrupted: only launches can be held back",
		SlotsModel{}, Dist{}),
	oneSlot("level2-guardian", "a GPU whose kernels check a flag before they begin",
		SlotsModel{Deactivate: FlagDeactivate, FlagCost: 3 * us}, Between(10*us, 25*us)),
	oneSlot("level2-hardware", "an accelerator whose queues can be switched off between commands",
		SlotsModel{Deactivate: HardwareDeactivate}, Between(20*us, 80*us)),
	oneSlot("level2-flush", "an accelerator whose queued commands can be dropped and submitted again",
		SlotsModel{Deactivate: FlushDeactivate, FlushCost: 40 * us}, Between(30*us, 60*us)),
}

// gateTime is how long it takes to hold, release or bound a queue by the shim.
var gateTime = Between(20*us, 60*us)

// oneSlot returns the model of a device that runs one command at a time. Stops and starts
// at level 2 take the same time.
func oneSlot(name, doc string, s SlotsModel, stop Dist) Model {
	s.Slots = 1
	grain := 200 * us // as the daemon sets it where only the gate can stop a process
	if s.Deactivate != NoDeactivate {
		grain = ms
	}
	return Model{
		Name: name, Doc: doc, Slots: &s, Calls: Calls{Stop: stop, Start: stop, Gate: gateTime, Effect: 0.5},
		Gated: true, Bound: 16, Grain: grain,
	}
}

// nvidia returns the model of the H200 with another switch time.
func nvidia(name, doc string, switchTime Dist) Model {
	return Model{
		Name: name, Doc: doc,
		Runlist: &RunlistModel{
			Slice: 2048 * us, Switch: switchTime, Refill: 40 * us, Fetch: 68 * us, Stay: 31 * us, Notice: 8 * us,
			MinSharedSlice: 200 * us,
		},
		Calls: Calls{
			Stop: Between(570*us, 850*us), Start: Between(270*us, 390*us), SetSlice: Between(350*us, 530*us),
			Gate: gateTime, Effect: 0.75,
		},
		TraceInterval: 5 * ms, Bound: 1024,
	}
}

// ModelNames lists the device models.
func ModelNames() []string {
	names := make([]string, 0, len(models))
	for i := range models {
		names = append(names, models[i].Name)
	}
	return names
}

// NewModel returns a copy of the named model. The caller may change its parameters.
func NewModel(name string) (Model, error) {
	i := slices.IndexFunc(models, func(m Model) bool { return m.Name == name })
	if i < 0 {
		return Model{}, fmt.Errorf("no device model %q: the models are %s", name, strings.Join(ModelNames(), ", "))
	}
	m := models[i]
	if m.Runlist != nil {
		r := *m.Runlist
		m.Runlist = &r
	}
	if m.Slots != nil {
		s := *m.Slots
		m.Slots = &s
	}
	return m, nil
}
