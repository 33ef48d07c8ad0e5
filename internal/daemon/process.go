package daemon

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/sched"
)

// process is a program that holds compute groups.
type process struct {
	info   proc.Process
	id     sched.ProcessID
	attr   sched.Attr
	from   string // whence attr: default, rule, run, hint, set
	queues map[groupKey]*groupQueue

	run        *word       // that it belongs to, or did; nil: none
	said       api.Change  // what its owner and itself have said: the last counts, but see classed
	classed    bool        // its owner has set its class, so it cannot itself
	owned      bool        // its owner has set something
	bound      uint32      // on commands in flight, where a policy has no other
	bounded    bool        // somebody has said so
	batch      uint32      // of it; 0: as many as seem right
	idempotent bool        // its owner says that what it launches may be run twice
	repeats    *bool       // so it says itself, which counts before
	predict    bool        // arrivals that come in step are to be expected
	guest      *guest      // nil: it has no shim
	kfd        *kfdProcess // nil: it has no KFD queues
	seen       sched.Counters
	asked      asked
	ignored    uint64 // hints that made no sense
}

// groupKey names a group of a process. The zero one is what a process has behind its
// shim while no group of it is known.
type groupKey struct{ client, group nvrm.Handle }

// groupQueue is a group under control.
type groupQueue struct {
	id     sched.QueueID
	gpu    *gpu
	found  time.Duration
	shared string

	plain hal.Queue   // the group by itself; nil behind a shim alone
	gate  *shim.Queue // in front of the group; nil: none so far
	told  sched.Counters

	// What a process has on an AMD GPU: nil elsewhere.
	bundle *bundle
	native []uint32 // the ids of its KFD queues
	held   []uint32 // those that we took charge of
	way    string   // how those can be stopped
}

// stoppable reports whether there is a way to stop each queue of a process. The group
// of an MPS server has none.
func (p *process) stoppable() bool {
	for _, q := range p.queues {
		if q.bundle == nil && q.plain != nil && q.gate == nil && hal.Abilities(q.plain).Level() == sched.LevelNone {
			return false
		}
	}
	return true
}

// say is told what the owner of a process wants.
func (p *process) say(c api.Change) {
	p.said, p.owned = p.said.And(c), true
	if c.Class != nil {
		p.classed, p.from = true, "set"
	}
	p.apply(c)
}

// repeatable reports whether what it launches may be run twice.
func (p *process) repeatable() bool {
	if p.repeats != nil {
		return *p.repeats
	}
	return p.idempotent
}

// apply applies what makes sense.
func (p *process) apply(c api.Change) {
	if c.Class != nil {
		p.attr.Class, _ = sched.ParseClass(*c.Class)
	}
	set(&p.attr.Weight, c.Weight)
	set(&p.attr.Priority, c.Priority)
	set(&p.attr.Deadline, c.Deadline)
	set(&p.attr.SLO, c.SLO)
	set(&p.attr.Paused, c.Paused)
	if c.Bound != nil {
		p.bound, p.bounded = *c.Bound, true
	}
	set(&p.batch, c.Batch)
	set(&p.predict, c.Predict)
}

// usualBound is for batch and idle programs that nothing but their gate can stop. A
// gate does not stop what has been launched, and they would launch all they have.
const usualBound = 16

// standing is the bound for where a policy has none.
func (p *process) standing() shim.Bound {
	b := shim.Bound{Commands: p.bound, Batch: p.batch, Grain: shim.Tight}
	alone := p.queues[groupKey{}] != nil
	low := p.attr.Class == sched.Batch || p.attr.Class == sched.Idle
	switch {
	case !alone:
		b.Grain = shim.Loose
	case low && !p.bounded:
		b.Commands = usualBound
	}
	return b
}

// set sets what is asked for, if anything is.
func set[T any](to, what *T) {
	if what != nil {
		*to = *what
	}
}
