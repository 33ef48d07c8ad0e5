package daemon

import (
	"sync"
	"time"

	"github.com/giveway/giveway/internal/hal"
)

const (
	memoryEvery = 2 * time.Second        // the drivers are not asked more often
	memoryWait  = 100 * time.Millisecond // for how long a caller waits for their answer
	memoryKept  = 10 * time.Second       // after that an answer is no longer shown
)

// memoryUse is how many bytes of device memory processes have, by pid and device.
type memoryUse map[int]map[string]uint64

// memoryReader asks the drivers how much memory processes have, while the API is asked for
// processes. A driver may answer late or never, so callers get the last answer instead.
type memoryReader struct {
	mu      sync.Mutex
	last    memoryUse
	readAt  time.Time
	reading bool
}

// get returns the last answer, or nil if it is too old. It calls read if it is time to.
func (m *memoryReader) get(read func() memoryUse) memoryUse {
	m.mu.Lock()
	due := !m.reading && time.Since(m.readAt) >= memoryEvery
	if due {
		m.reading = true
		done := make(chan struct{})
		go func() {
			defer close(done)
			use := read()
			m.mu.Lock()
			defer m.mu.Unlock()
			m.last, m.readAt, m.reading = use, time.Now(), false
		}()
		m.mu.Unlock()
		select {
		case <-done:
		case <-time.After(memoryWait):
		}
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	if time.Since(m.readAt) > memoryKept {
		return nil
	}
	return m.last
}

// readMemory asks the drivers of all devices about processes. Without any it does not: to open a
// device that no process uses may initialise it, which takes seconds.
func (d *Daemon) readMemory(pids []int) memoryUse {
	if len(pids) == 0 {
		return nil
	}
	d.mu.Lock()
	readers := make(map[string]hal.MemoryReader)
	for id, dev := range d.devices {
		if r, ok := dev.Device.(hal.MemoryReader); ok {
			readers[string(id)] = r
		}
	}
	d.mu.Unlock()
	use := make(memoryUse)
	for id, r := range readers {
		found, err := r.Memory(pids)
		if err != nil {
			d.cfg.Log.Debug("memory of processes is not known", "device", id, "reason", err)
		}
		for pid, bytes := range found {
			if use[pid] == nil {
				use[pid] = make(map[string]uint64)
			}
			use[pid][id] = bytes
		}
	}
	return use
}
