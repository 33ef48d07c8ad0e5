// Package amdbench computes, with the simulator's models of AMD's schedulers, what it
// costs to unmap offline queues from a GPU for one online request, by each of the ways
// that exist, and how long the request takes.
//
// Every figure is modelled and labelled so: no AMD GPU was measured.
package amdbench

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/sim"
)

// Way is how offline queues are unmapped and mapped again.
type Way string

const (
	Native   Way = "native"     // no queue is unmapped
	OneByOne Way = "one by one" // each queue is suspended in a call of its own
	// Stock is the unmodified driver's DBG_TRAP suspend with all queues of a
	// process: one update of the runlist, then a copy of every control stack.
	Stock Way = "stock suspend"
	// Batch is the patched driver's BATCH_UNMAP and FAST_REMAP: the same update,
	// without the copies.
	Batch Way = "batch"
)

// AllWays are in the order in which they are shown.
var AllWays = []Way{Native, OneByOne, Stock, Batch}

// Models are the simulator's models of AMD's schedulers.
var Models = []string{"amd-hws", "amd-mes"}

const (
	maxQueues    = 64
	maxProcesses = 8 // with more processes than KFD has VMIDs even few queues take turns, which the models do not do
	maxRounds    = 100_000
)

// Config configures a run. A field that is zero has a default.
type Config struct {
	Models    []string // default Models
	Ways      []Way    // default AllWays
	Queues    []int    // numbers of offline queues; default from 1 to 64
	Processes int      // that have the offline queues: a call changes the queues of one process; default 1
	Rounds    int      // online requests for each number of queues; default 200
	Seed      uint64
	// Progress, if not nil, is called with the share of the figures that are computed.
	Progress func(part float64)
}

// The work on the device. Offline queues always have work.
const (
	onlineWork         = 2 * time.Millisecond
	minRest, maxRest   = 20 * time.Millisecond, 60 * time.Millisecond // from mapping the offline queues to the next request
	minDelay, maxDelay = 20 * time.Microsecond, 60 * time.Microsecond // from a request to the first call
)

func (c *Config) check() error {
	for i, n := range c.Queues {
		switch {
		case n < 1 || n > maxQueues:
			return fmt.Errorf("%d queues; from 1 to %d are modelled", n, maxQueues)
		case slices.Contains(c.Queues[:i], n):
			return fmt.Errorf("%d queues is listed twice", n)
		}
	}
	for _, name := range c.Models {
		if !slices.Contains(Models, name) {
			return fmt.Errorf("there is no model %q of an AMD GPU; there are: %v", name, Models)
		}
	}
	switch {
	case c.Processes < 1 || c.Processes > maxProcesses:
		return fmt.Errorf("%d processes; from 1 to %d are modelled", c.Processes, maxProcesses)
	case c.Rounds < 1 || c.Rounds > maxRounds:
		return fmt.Errorf("%d rounds; from 1 to %d are possible", c.Rounds, maxRounds)
	}
	return nil
}

// Run computes all figures. The same Config gives the same Result.
func Run(c Config) (*Result, error) {
	if len(c.Models) == 0 {
		c.Models = Models
	}
	if len(c.Ways) == 0 {
		c.Ways = AllWays
	}
	if len(c.Queues) == 0 {
		c.Queues = []int{1, 2, 4, 8, 10, 16, 24, 32, 48, 64}
	}
	c.Processes, c.Rounds = cmp.Or(c.Processes, 1), cmp.Or(c.Rounds, 200)
	if err := c.check(); err != nil {
		return nil, err
	}
	r := &Result{
		Figures: "modelled", Seed: c.Seed, Rounds: c.Rounds, Processes: c.Processes, OnlineWork: onlineWork, Published: published,
	}
	done := 0
	for _, name := range c.Models {
		m, err := modelFor(name, c.Processes)
		if err != nil {
			return nil, err
		}
		mr := ModelResult{Name: name, Doc: m.Doc, Parameters: parameters(&m, c.Processes)}
		for _, n := range c.Queues {
			first := len(mr.Rows)
			for _, way := range c.Ways {
				row, err := measure(m, way, n, &c)
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %d queues: %w", name, way, n, err)
				}
				mr.Rows = append(mr.Rows, row)
				done++
				if c.Progress != nil {
					c.Progress(float64(done) / float64(len(c.Models)*len(c.Queues)*len(c.Ways)))
				}
			}
			compare(mr.Rows[first:])
		}
		r.Models = append(r.Models, mr)
	}
	return r, nil
}

// modelFor returns the model for a number of processes. Under MES, queues of one
// process take shorter turns than processes do.
func modelFor(name string, processes int) (sim.Model, error) {
	m, err := sim.NewModel(name)
	if err == nil && !m.Slots.RemapAll && processes == 1 {
		m.Slots.Quantum = sim.MESGangQuantum
	}
	return m, err
}

// measure makes c.Rounds online requests beside n offline queues. m is a model of the
// stock driver.
func measure(m sim.Model, way Way, n int, c *Config) (Row, error) {
	slots := *m.Slots
	m.Slots = &slots
	switch way {
	case OneByOne:
		m.Slots.Batch = false
	case Batch:
		m.Calls.AfterStop, m.Calls.CopyPerQueue = sim.Dist{}, 0
	}
	e := newExperiment(m, n, c)
	for range c.Rounds {
		e.Advance(e.between(minRest, maxRest))
		if err := e.request(way); err != nil {
			return Row{}, err
		}
	}
	if v := e.Violations(); len(v) > 0 {
		return Row{}, fmt.Errorf("a rule of the simulator was broken: %s", v[0])
	}
	return e.row(way), nil
}
