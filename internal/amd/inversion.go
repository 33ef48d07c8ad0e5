package amd

// Inversion is a queue that waits while queues of lower priority need not.
type Inversion struct {
	Waiting State
	Why     Cause
	Behind  []State // of lower priority
}

// Cause is why a queue waits.
type Cause uint8

// Causes.
const (
	HeldStopped Cause = iota + 1 // it is stopped, and they run
	SharesSlots                  // there are more queues than slots, and they take turns with it
)

func (c Cause) String() string {
	switch c {
	case HeldStopped:
		return "it is stopped while lower priorities run"
	case SharesSlots:
		return "it takes turns with lower priorities for too few slots"
	}
	return "?"
}

// Inversions finds priority inversions among the queues of a GPU with so many
// slots, in the order of the queues. A queue without work waits for nobody, but
// even one without work takes up a slot.
func Inversions(slots uint32, states []State) []Inversion {
	running := uint32(0)
	for _, s := range states {
		if !s.Stopped {
			running++
		}
	}
	var found []Inversion
	for _, s := range states {
		if !s.Ready || !s.Stopped && running <= slots {
			continue
		}
		i := Inversion{Waiting: s, Why: SharesSlots}
		if s.Stopped {
			i.Why = HeldStopped
		}
		for _, o := range states {
			// What is stopped stands behind one that has work, not one that only could.
			if o.Priority < s.Priority && !o.Stopped && (o.Ready || !s.Stopped) {
				i.Behind = append(i.Behind, o)
			}
		}
		if len(i.Behind) > 0 {
			found = append(found, i)
		}
	}
	return found
}
