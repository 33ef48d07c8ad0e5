package amd

// inversion is a priority inversion: a queue waits although queues of lower priority run.
type inversion struct {
	waiting queueState
	why     string
	lower   []queueState // the running queues of lower priority
}

const (
	whyStopped     = "it is stopped while lower priorities run"
	whySharesSlots = "it takes turns with lower priorities for too few slots"
)

// inversions finds the priority inversions among the queues of a GPU, in the order of the
// queues. A queue without work does not wait, but it takes up a slot.
func inversions(slots uint32, states []queueState) []inversion {
	running := uint32(0)
	for _, s := range states {
		if !s.stopped {
			running++
		}
	}
	var found []inversion
	for _, s := range states {
		if !s.ready || !s.stopped && running <= slots {
			continue
		}
		v := inversion{waiting: s, why: whySharesSlots}
		if s.stopped {
			v.why = whyStopped
		}
		for _, o := range states {
			// A stopped queue waits for queues that have work; a running one shares slots
			// with all.
			if o.priority < s.priority && !o.stopped && (o.ready || !s.stopped) {
				v.lower = append(v.lower, o)
			}
		}
		if len(v.lower) > 0 {
			found = append(found, v)
		}
	}
	return found
}
