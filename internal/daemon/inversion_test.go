package daemon

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// workingBackend reports that commands of two processes finish, whether they are stopped or
// not. The second one obeys while obeys is set.
type workingBackend struct {
	*fakeBackend
	queues atomic.Pointer[[2]hal.QueueHandle]
	done   [2]uint64
	obeys  atomic.Bool
}

func (b *workingBackend) Poll(_ sched.Time, f hal.Facts) {
	queues := b.queues.Load()
	if queues == nil {
		return
	}
	for i, q := range queues {
		if i == 0 || !b.obeys.Load() {
			b.done[i]++
		}
		f.Progress(q.Process(), hal.Progress{Launched: b.done[i] + 10, Completed: b.done[i], Waiting: true})
	}
}

// TestInversion checks that a process whose stop has no effect is found, stopped again,
// counted, noted, and shown by doctor and ps, until it obeys.
func TestInversion(t *testing.T) {
	b := &workingBackend{fakeBackend: newFakeBackend(t.TempDir())}
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	if c := checkOf(d, "priority inversions"); !c.OK {
		t.Errorf("nothing was inverted, and yet: %+v", c)
	}
	victim, _ := sleeper(t)
	holder, _ := sleeper(t)
	b.queues.Store(&[2]hal.QueueHandle{b.mustOffer(t, victim), b.mustOffer(t, holder)})
	behind := b.queues.Load()[1].ID()
	if _, err := d.Change(server.Caller{All: true}, holder.PID, api.Change{Values: attr.Must("paused=true")}); err != nil {
		t.Fatal(err)
	}
	waitsBehind := func() sched.QueueID {
		for _, p := range d.Processes() {
			if p.PID == victim.PID {
				return sched.QueueID(p.Queues[0].WaitsBehind)
			}
		}
		return 0
	}
	eventually(t, "the victim is shown behind the holder", func() bool { return waitsBehind() == behind })
	eventually(t, "the holder is stopped again", func() bool {
		starts, running := b.starts(holder.PID)
		return starts > 0 && !running
	})
	who := fmt.Sprintf("process %d waits behind process %d, which is to be stopped: its stop had no effect", victim.PID, holder.PID)
	eventually(t, "a note says so", func() bool { return notes(t, d, "inversion", who) == 1 })
	who = fmt.Sprintf("process %d waited behind process %d", victim.PID, holder.PID)
	if c := checkOf(d, "priority inversions"); c.OK || !strings.Contains(c.Detail, who) {
		t.Errorf("doctor shows %+v, want %q", c, who)
	}
	text := scraped(d)
	for _, name := range []string{`giveway_priority_inversions_total{device="fake0"} `, `giveway_priority_inversion_seconds_total{device="fake0"} `} {
		if !strings.Contains(text, name) || strings.Contains(text, name+"0\n") { // each stop without effect counts
			t.Errorf("%s is not counted:\n%s", name, text)
		}
	}
	b.obeys.Store(true)
	eventually(t, "it is over", func() bool { return waitsBehind() == 0 && notes(t, d, "inversion", "over after ") == 1 })
}

// TestNoInversionMonitor checks that the configuration turns the monitor off.
func TestNoInversionMonitor(t *testing.T) {
	cfg, err := config.Parse("x", []byte("inversion_limit: 0"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{File: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if c := d.inversionCheck(); !c.OK || !strings.Contains(c.Detail, "not looked for") {
		t.Errorf("got %+v, want that it is off", c)
	}
}
