package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Model is a kind of device: how it shares its time, how it can be stopped, and
// what that costs. One set of parameters serves every run on it.
type Model struct {
	Name string
	Doc  string

	// A device shares its time in one of two ways.
	Runlist *RunlistModel // groups in a round, one at a time, by slices
	Slots   *SlotsModel   // queues in hardware slots, side by side

	Calls Calls // what it costs to control
	// Eyes is how often the daemon may fetch the hardware's own record of whose
	// context was on it; zero: there is no such record.
	TraceInterval time.Duration
	Gated         bool   // every program runs with the shim: its queue can be held and bounded, and counted
	Bound         uint32 // bound on commands in flight under the shim, unless the policy says otherwise
}

// Calls are the costs of control calls, from the call until it returns. The
// effect comes Effect of the way through. Where a call saves or restores contexts
// it also waits until those are off (SlotsModel.Context).
type Calls struct {
	Stop, Start, SetSlice Dist
	Gate                  Dist // hold, release, bound: the shim's, no driver involved
	Effect                float64

	PerQueue time.Duration // more for each queue in the call
	// After is what a stop does when the queues are off already, and Copy what
	// it then does for each queue of the program, stopped or not. The caller
	// waits for both; the queues do not.
	AfterStop    Dist
	CopyPerQueue time.Duration
}

// RunlistModel is the way of an NVIDIA GPU: a round of all groups that are
// ready, each for its slice, with a context switch in between.
type RunlistModel struct {
	Slice time.Duration // of a group by default
	// Switch is from leaving one group to the next one's running.
	Switch Dist
	// Refill is how long a group that was cut off inside a kernel makes no
	// progress when it is back. A turn shorter than that is for nothing: two
	// groups with such slices livelock.
	Refill time.Duration
	// Stay is how long it cannot be made to leave again.
	Stay time.Duration
	// Notice is from a launch on an idle group to the host's acting on it while
	// another group runs.
	Notice time.Duration
	// CallOff is how far into a switch away from a group that ran dry a launch
	// on it still calls the switch off. It is why a program that launches
	// kernels one by one keeps the GPU for as long as its request lasts.
	CallOff time.Duration
	// MinTurn is what the scheduler is told: the shortest slice that is safe
	// for two groups.
	MinSharedSlice time.Duration
}

// SlotsModel is the way of queues that the hardware takes commands from side by
// side: AMD's, most NPUs', and with one slot any simple accelerator.
type SlotsModel struct {
	Slots int // queues served at a time
	// Quantum is how long one set of queues is served when there are more than
	// slots; zero: a slot takes whichever command was launched first, and
	// keeps it to its end.
	Quantum time.Duration

	Interrupt  bool // level 3: a queue can be taken off inside a command
	RemapAll   bool // any change takes every queue off and puts back the rest
	Batch      bool // one call changes many queues of one program
	Context    Context
	Deactivate DeactivateKind // level 2
	FlagCost   time.Duration  // what a guarded command that must not begin costs
	FlushCost  time.Duration  // what dropping and submitting again costs
}

// DeactivateKind is how level 2 is done.
type DeactivateKind uint8

const (
	NoDeactivate       DeactivateKind = iota
	FlagDeactivate                    // every command checks a flag and ends at once if it is set
	HardwareDeactivate                // the queue is switched off
	FlushDeactivate                   // what has not begun is dropped, and submitted again later
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// models lists every device model. Those of NVIDIA are calibrated on
// measurements (calibration_test.go); those of AMD (amd.go) and the levels are
// built from what the drivers do and what was published, and have not met hardware.
var models = []Model{
	nvidia("nvidia-h200", "NVIDIA H200, stock driver 580: measured", Around(165*us, 0.02)),
	nvidia("nvidia-a100", "NVIDIA A100: the H200's model with the switch that GPreempt published", Around(150*us, 0.05)),
	amdHWS,
	amdMES,
	{
		Name: "level1-npu", Doc: "an accelerator that cannot be interrupted: only launches can be held back",
		Slots: &SlotsModel{Slots: 1},
		Calls: Calls{Gate: Between(20*us, 60*us), Effect: 0.5},
		Gated: true, Bound: 16,
	},
	{
		Name: "level2-guardian", Doc: "a GPU whose kernels check a flag before they begin",
		Slots: &SlotsModel{Slots: 1, Deactivate: FlagDeactivate, FlagCost: 3 * us},
		Calls: Calls{Stop: Between(10*us, 25*us), Start: Between(10*us, 25*us), Gate: Between(20*us, 60*us), Effect: 0.5},
		Gated: true, Bound: 16,
	},
	{
		Name: "level2-hardware", Doc: "an accelerator whose queues can be switched off between commands",
		Slots: &SlotsModel{Slots: 1, Deactivate: HardwareDeactivate},
		Calls: Calls{Stop: Between(20*us, 80*us), Start: Between(20*us, 80*us), Gate: Between(20*us, 60*us), Effect: 0.5},
		Gated: true, Bound: 16,
	},
	{
		Name: "level2-flush", Doc: "an accelerator whose queued commands can be dropped and submitted again",
		Slots: &SlotsModel{Slots: 1, Deactivate: FlushDeactivate, FlushCost: 40 * us},
		Calls: Calls{Stop: Between(30*us, 60*us), Start: Between(30*us, 60*us), Gate: Between(20*us, 60*us), Effect: 0.5},
		Gated: true, Bound: 16,
	},
}

// nvidia is the H200's model, with a switch of its own.
func nvidia(name, doc string, change Dist) Model {
	return Model{
		Name: name, Doc: doc,
		Runlist: &RunlistModel{
			Slice: 2048 * us, Switch: change, Refill: 40 * us, Stay: 31 * us, Notice: 8 * us, CallOff: 50 * us,
			MinSharedSlice: 200 * us,
		},
		Calls: Calls{
			Stop: Between(570*us, 850*us), Start: Between(270*us, 390*us), SetSlice: Between(350*us, 530*us),
			Gate: Between(20*us, 60*us), Effect: 0.75,
		},
		TraceInterval: 10 * ms, Bound: 1024,
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

// NewModel returns a copy of the named model, whose parameters may be changed.
func NewModel(name string) (Model, error) {
	i := slices.IndexFunc(models, func(m Model) bool { return m.Name == name })
	if i < 0 {
		return Model{}, fmt.Errorf("there is no device model %q; there are: %s", name, strings.Join(ModelNames(), ", "))
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
