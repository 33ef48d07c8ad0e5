package policy

import "github.com/giveway/giveway/sched"

// perQueue keeps a value of type T for every queue of a view. The view and the
// values are both in order of ID, so one pass updates them: a new queue gets a
// zero value, and the value of a closed queue is dropped. Nothing is allocated
// while the queues stay the same.
type perQueue[T any] struct {
	ids         []sched.QueueID
	values      []T
	spareIDs    []sched.QueueID
	spareValues []T
}

// update returns the values: value i is that of queue i of the view.
func (p *perQueue[T]) update(queues []sched.Queue) []T {
	if p.current(queues) {
		return p.values
	}
	ids, values := p.spareIDs[:0], p.spareValues[:0]
	old := 0
	for i := range queues {
		id := queues[i].ID
		for old < len(p.ids) && p.ids[old] < id {
			old++
		}
		var value T
		if old < len(p.ids) && p.ids[old] == id {
			value = p.values[old]
		}
		ids, values = append(ids, id), append(values, value)
	}
	p.ids, p.values, p.spareIDs, p.spareValues = ids, values, p.ids, p.values
	return p.values
}

func (p *perQueue[T]) current(queues []sched.Queue) bool {
	if len(p.ids) != len(queues) {
		return false
	}
	for i := range queues {
		if p.ids[i] != queues[i].ID {
			return false
		}
	}
	return true
}
