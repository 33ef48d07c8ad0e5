package policy

import (
	"slices"

	"github.com/giveway/giveway/sched"
)

// perQueue keeps a value of type T for every queue of a view. A new queue gets a
// zero value, and the value of a closed queue is dropped. Nothing is allocated
// while the queues stay the same.
type perQueue[T any] struct {
	ids    []sched.QueueID // in order, as the queues of a view are
	values []T
}

// update returns the values: value i is that of queue i of the view.
func (p *perQueue[T]) update(queues []sched.Queue) []T {
	for i := range queues {
		id := queues[i].ID
		if i < len(p.ids) && p.ids[i] == id {
			continue
		}
		next, known := slices.BinarySearch(p.ids, id)
		p.ids, p.values = slices.Delete(p.ids, i, next), slices.Delete(p.values, i, next)
		if !known {
			var zero T
			p.ids, p.values = slices.Insert(p.ids, i, id), slices.Insert(p.values, i, zero)
		}
	}
	p.ids, p.values = p.ids[:len(queues)], p.values[:len(queues)]
	return p.values
}
