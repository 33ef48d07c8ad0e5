// Package amdbench asks the models of AMD's schedulers what it costs to take
// offline queues off a GPU for one online request, in the ways there are to do it,
// and what the online request feels.
//
// Everything it reports is modelled: it has met no hardware, and says so beside
// every figure. It refuses to repeat other people's figures as its own.
package amdbench

import (
	"fmt"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/internal/stats"
)

// Way is how offline queues are taken off and put back.
type Way string

const (
	// Native leaves everything to the hardware.
	Native Way = "native"
	// OneByOne suspends each queue in a call of its own, as people do it who have
	// a list of queues and a function for one.
	OneByOne Way = "one by one"
	// Stock is the unmodified driver's DBG_TRAP suspend with all queues of a
	// program: one update of the runlist, then a copy of every control stack.
	Stock Way = "stock suspend"
	// Batch is the patched driver's BATCH_UNMAP and FAST_REMAP: the same update,
	// without the copies.
	Batch Way = "batch"
)

// AllWays are in the order in which they are shown.
var AllWays = []Way{Native, OneByOne, Stock, Batch}

// Models are those of AMD's schedulers.
var Models = []string{"amd-hws", "amd-mes"}

// Limits of Config.
const (
	MostQueues   = 64
	MostPrograms = 8 // beyond the VMIDs of the KFD even few queues take turns, and the models do not
	MostRounds   = 100_000
)

// Config says what to ask. The zero value of a field stands for what New gives it.
type Config struct {
	Models   []string
	Ways     []Way
	Queues   []int // offline
	Programs int   // that the offline queues belong to: one call can change the queues of one program
	Rounds   int   // online requests for each number of queues
	Seed     uint64
}

// The work on the device. Offline queues never run out of work.
const (
	onlineWork = 2 * time.Millisecond
	// restLeast and restMost bound the time from the offline queues' being back
	// to the next request.
	restLeast, restMost = 20 * time.Millisecond, 60 * time.Millisecond
	// noticeLeast and noticeMost bound the time from a request to the first call.
	noticeLeast, noticeMost = 20 * time.Microsecond, 60 * time.Microsecond
)

func (c *Config) fill() error {
	if len(c.Models) == 0 {
		c.Models = Models
	}
	if len(c.Ways) == 0 {
		c.Ways = AllWays
	}
	if len(c.Queues) == 0 {
		c.Queues = []int{1, 2, 4, 8, 10, 16, 24, 32, 48, 64}
	}
	if c.Programs == 0 {
		c.Programs = 1
	}
	if c.Rounds == 0 {
		c.Rounds = 200
	}
	for i, n := range c.Queues {
		switch {
		case n < 1 || n > MostQueues:
			return fmt.Errorf("%d queues; from 1 to %d are modelled", n, MostQueues)
		case slices.Contains(c.Queues[:i], n):
			return fmt.Errorf("%d queues is there twice", n)
		}
	}
	for _, name := range c.Models {
		if !slices.Contains(Models, name) {
			return fmt.Errorf("there is no model %q of an AMD GPU; there are: %v", name, Models)
		}
	}
	switch {
	case c.Programs < 1 || c.Programs > MostPrograms:
		return fmt.Errorf("%d programs; from 1 to %d are modelled", c.Programs, MostPrograms)
	case c.Rounds < 1 || c.Rounds > MostRounds:
		return fmt.Errorf("%d rounds; from 1 to %d are possible", c.Rounds, MostRounds)
	}
	return nil
}

// Run asks everything. The same Config gives the same Result.
func Run(c Config) (*Result, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	r := &Result{
		Figures: "modelled", Seed: c.Seed, Rounds: c.Rounds, Programs: c.Programs, OnlineWork: onlineWork, Published: published,
	}
	for _, name := range c.Models {
		m, err := modelFor(name, c.Programs)
		if err != nil {
			return nil, err
		}
		mr := ModelResult{Name: name, Doc: m.Doc, Parameters: parameters(&m, c.Programs)}
		for _, n := range c.Queues {
			first := len(mr.Rows)
			for _, way := range c.Ways {
				row, err := measure(m, way, n, &c)
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %d queues: %w", name, way, n, err)
				}
				mr.Rows = append(mr.Rows, row)
			}
			compare(mr.Rows[first:])
		}
		r.Models = append(r.Models, mr)
	}
	return r, nil
}

// modelFor is the model for so many programs. Queues of one program take turns
// under MES faster than programs do.
func modelFor(name string, programs int) (sim.Model, error) {
	m, err := sim.NewModel(name)
	if err == nil && !m.Slots.RemapAll && programs == 1 {
		m.Slots.Quantum = sim.MESGangQuantum
	}
	return m, err
}

// apply makes a model, which is of the stock driver, one of a way.
func (w Way) apply(m *sim.Model) {
	switch w {
	case OneByOne:
		m.Slots.Batch = false
	case Batch:
		m.Calls.AfterStop, m.Calls.CopyPerQueue = sim.Dist{}, 0
	}
}

// measure makes Rounds online requests beside n offline queues.
func measure(m sim.Model, way Way, n int, c *Config) (Row, error) {
	slots := *m.Slots
	m.Slots = &slots
	way.apply(&m)
	b := newBed(m, n, c)
	for range c.Rounds {
		b.rest()
		if err := b.request(way); err != nil {
			return Row{}, err
		}
	}
	if v := b.Violations(); len(v) > 0 {
		return Row{}, fmt.Errorf("a rule of the simulator was broken: %s", v[0])
	}
	return b.row(way), nil
}

// stats of what a row is made of.
type samples struct{ own, answer, unmap, remap, hiccup []time.Duration }

func (b *bed) row(way Way) Row {
	o, rounds := b.Occupancy(), float64(b.rounds)
	var offline time.Duration
	for _, id := range b.offline {
		offline += b.DeviceTime(id)
	}
	row := Row{
		Queues: len(b.offline), Way: way, Answer: stats.Summarize(b.seen.answer),
		Calls: float64(b.calls) / rounds, Updates: round(float64(o.Updates-b.opened) / rounds),
		Utilisation: round(o.Utilisation()), Mapped: round(float64(o.Mapped) / (float64(o.Slots) * float64(o.Span))),
		Stalled: round(float64(o.Stalled) / float64(o.Span)), OfflineKept: round(float64(offline) / float64(o.Span)),
	}
	if way == Native {
		return row
	}
	for _, of := range []struct {
		to   **stats.Summary
		from []time.Duration
	}{{&row.Own, b.seen.own}, {&row.Unmap, b.seen.unmap}, {&row.Remap, b.seen.remap}, {&row.Hiccup, b.seen.hiccup}} {
		s := stats.Summarize(of.from)
		*of.to = &s
	}
	return row
}
