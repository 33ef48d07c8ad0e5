package daemon

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// memoryDevice has memory in use.
type memoryDevice struct {
	id    sched.DeviceID
	bytes map[int]uint64
	err   error
}

func (m memoryDevice) Info() hal.Info { return hal.Info{Device: sched.Device{ID: m.id}} }

func (m memoryDevice) Memory([]int) (map[int]uint64, error) { return m.bytes, m.err }

func TestMemoryOfAllDevices(t *testing.T) {
	d := newTestDaemon()
	d.DeviceFound(fakeDevice{}) // knows nothing of memory
	d.DeviceFound(memoryDevice{id: "a", bytes: map[int]uint64{7: 100, 8: 200}})
	d.DeviceFound(memoryDevice{id: "b", bytes: map[int]uint64{8: 50}})
	d.DeviceFound(memoryDevice{id: "c", err: errors.New("does not answer")})
	if got := d.readMemory(nil); got != nil {
		t.Errorf("without processes the drivers were asked: got %v", got)
	}
	got := d.readMemory([]int{7, 8})
	if len(got) != 2 || !maps.Equal(got[7], map[string]uint64{"a": 100}) || !maps.Equal(got[8], map[string]uint64{"a": 200, "b": 50}) {
		t.Errorf("got %v, want 100 of process 7 on a, and 200 and 50 of process 8 on a and b", got)
	}
}

// TestMemoryOfADriverThatHangs: callers wait a moment once, and get the answer when it is there.
func TestMemoryOfADriverThatHangs(t *testing.T) {
	var m memoryReader
	answer := make(chan memoryUse)
	asked := make(chan struct{}, 10)
	read := func() memoryUse { asked <- struct{}{}; return <-answer }
	for range 3 {
		if got := m.get(read); got != nil {
			t.Errorf("got %v before the driver answered", got)
		}
	}
	if len(asked) != 1 {
		t.Errorf("the driver was asked %d times while it did not answer, want once", len(asked))
	}
	answer <- memoryUse{7: {"a": 100}}
	for end := time.Now().Add(10 * time.Second); m.get(read) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the answer is not there after 10 s")
		}
	}
	if len(asked) != 1 {
		t.Errorf("the driver was asked %d times within two seconds, want once", len(asked))
	}
	m.readAt = time.Now().Add(-memoryEvery)
	go func() { answer <- memoryUse{7: {"a": 300}} }()
	for end := time.Now().Add(10 * time.Second); m.get(read)[7]["a"] != 300; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the second answer is not there after 10 s")
		}
	}
	m.readAt, m.reading = time.Now().Add(-memoryKept-time.Second), true
	if got := m.get(read); got != nil {
		t.Errorf("got %v, which is too old", got)
	}
}
