package daemon

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/sched"
)

// TestExpectZeroClearsIt: an expected arrival of zero clears the earlier one, for policies
// and on the page.
func TestExpectZeroClearsIt(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	expected := func() (at sched.Time) {
		d.events.inLoop(func() {
			for _, q := range d.sched.Queues(nil) {
				at = q.Attr.Expect
			}
		})
		return at
	}
	for _, in := range []time.Duration{time.Minute, 0} {
		if _, err := d.Hint(ourselves, p.Process.Pid, api.Hint{Values: attr.Expect.Of(int64(in))}); err != nil {
			t.Fatal(err)
		}
		p.send("expects")
		if in > 0 {
			p.expect(t, "expects true")
		} else {
			p.expect(t, "expects false")
		}
		if at := expected(); (at != 0) != (in > 0) {
			t.Errorf("expected in %v: got %v in the scheduler", in, at)
		}
	}
}
