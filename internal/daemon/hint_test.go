package daemon

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/sched"
)

// TestExpectNothing: an arrival that is expected in no time at all is not known any more,
// to policies and to the program.
func TestExpectNothing(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "cuda")
	expected := func() (at sched.Time) {
		d.events.inLoop(func() {
			for _, q := range d.sched.Queues(nil) {
				at = q.Attr.Expect
			}
		})
		return at
	}
	for _, in := range []time.Duration{time.Minute, 0} {
		if _, err := d.Hint(p.Process.Pid, api.Hint{Values: attr.Expect.Of(int64(in))}); err != nil {
			t.Fatal(err)
		}
		p.do("expects")
		if in > 0 {
			p.hears(t, "expects true")
		} else {
			p.hears(t, "expects false")
		}
		if at := expected(); (at != 0) != (in > 0) {
			t.Errorf("expected in %v: the scheduler has %v", in, at)
		}
	}
}
