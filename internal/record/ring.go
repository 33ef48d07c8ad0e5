package record

import "sync/atomic"

// chunkLength is how many entries of a ring are overwritten at a time.
const chunkLength = 1024

// ring keeps the last entries in chunks. One goroutine writes at a time. Readers take no
// lock: they pin a chunk, read those of its entries that are written, and unpin it. The writer
// never waits: a chunk that is pinned when its turn to be overwritten comes is replaced by a
// new one, and left to the reader.
type ring struct {
	slots   []atomic.Pointer[chunk]
	current *chunk        // of the writer
	written atomic.Uint64 // number of entries so far; each has its index, from 0
}

type chunk struct {
	number  atomic.Uint64 // one more than the index of its first entry / chunkLength; zero: it is being replaced
	pins    atomic.Int64
	entries [chunkLength]Entry
}

func newRing(entries int) ring {
	return ring{slots: make([]atomic.Pointer[chunk], max(2, (entries+chunkLength-1)/chunkLength))}
}

// add appends an entry.
func (r *ring) add(e *Entry) {
	index := r.written.Load()
	at := index % chunkLength
	if at == 0 {
		r.begin(index / chunkLength)
	}
	r.current.entries[at] = *e
	r.written.Store(index + 1)
}

// begin makes a chunk the current one, in the place of the oldest.
//
// A reader pins first and then looks at the number; the writer changes the number first and
// then looks at the pins. So either the reader sees that the chunk is being replaced, or the
// writer sees that it is pinned.
func (r *ring) begin(number uint64) {
	slot := &r.slots[number%uint64(len(r.slots))]
	c := slot.Load()
	if c != nil {
		c.number.Store(0)
	}
	if c == nil || c.pins.Load() > 0 {
		c = &chunk{}
	}
	c.number.Store(number + 1)
	slot.Store(c)
	r.current = c
}

// pin returns a chunk, or nil if it is overwritten or not begun. The caller unpins it.
func (r *ring) pin(number uint64) *chunk {
	c := r.slots[number%uint64(len(r.slots))].Load()
	if c == nil {
		return nil
	}
	c.pins.Add(1)
	if c.number.Load() != number+1 {
		c.unpin()
		return nil
	}
	return c
}

func (c *chunk) unpin() { c.pins.Add(-1) }

// oldest returns the index of the first entry that may still be there.
func (r *ring) oldest() uint64 {
	begun := (r.written.Load() + chunkLength - 1) / chunkLength // chunks
	return (begun - min(begun, uint64(len(r.slots)))) * chunkLength
}

// read calls visit with the entries from an index on, in order, until it returns false. It
// returns the index of the first entry that it has not visited, and calls skip with each
// range of entries that are overwritten.
func (r *ring) read(from uint64, skip func(from, to uint64) bool, visit func(*Entry) bool) (next uint64) {
	for written := r.written.Load(); from < written; written = r.written.Load() {
		c := r.pin(from / chunkLength)
		if c == nil {
			to := max(r.oldest(), (from/chunkLength+1)*chunkLength)
			if !skip(from, to) {
				return to
			}
			from = to
			continue
		}
		first := from / chunkLength * chunkLength
		entries := c.entries[from-first : min(written-first, chunkLength)]
		for i := range entries {
			if !visit(&entries[i]) {
				c.unpin()
				return from
			}
			from++
		}
		c.unpin()
	}
	return from
}
