package sim

// fifo holds values in the order in which they were added. Adding and removing one
// takes constant time on average, however many there are.
type fifo[T any] struct {
	items []T
	first int // index in items of the oldest
}

func (f *fifo[T]) len() int { return len(f.items) - f.first }

// all returns the values, oldest first. They are valid until the next push.
func (f *fifo[T]) all() []T { return f.items[f.first:] }

// at returns the value that i older ones precede.
func (f *fifo[T]) at(i int) *T { return &f.items[f.first+i] }

func (f *fifo[T]) push(v T) {
	// At least half of items is free: moving the rest costs less than removing those did.
	if f.first > 64 && f.first > len(f.items)/2 {
		f.items = f.items[:copy(f.items, f.all())]
		f.first = 0
	}
	f.items = append(f.items, v)
}

// pop removes and returns the oldest value.
func (f *fifo[T]) pop() T {
	v := f.items[f.first]
	f.first++
	return v
}
