package daemon

import (
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/server"
)

// closeOnly is a queue to which nothing can be done.
type closeOnly struct{}

func (closeOnly) Close() error { return nil }

// TestPauseOfASettlingQueue: a process whose queue cannot be stopped cannot be paused, unless the
// queue is settling. Then it is stopped as soon as it can be controlled.
func TestPauseOfASettlingQueue(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	early, err := b.host.QueueFound(hal.Offer{Process: p, Device: fakeDevice{}, Attach: func(hal.Queue) (hal.Queue, error) { return closeOnly{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	pause := func() error {
		_, err := d.Change(server.Caller{All: true}, p.PID, api.Change{Values: attr.Must("paused=true")})
		return err
	}
	if pause() == nil {
		t.Error("a process whose queue can never be stopped was paused")
	}
	early.SetDetail(hal.Detail{Settling: true})
	if err := pause(); err != nil {
		t.Errorf("a process whose queue is settling: %v", err)
	}
	b.mustOffer(t, p)
	<-early.Withdraw(false)
	eventually(t, "the queue is stopped", func() bool { return b.hardware(p.PID).stopped })
}
