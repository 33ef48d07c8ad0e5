package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// markTest is a daemon with one process whose requests are marked through the API.
type markTest struct {
	*testing.T
	d      *Daemon
	pid    int
	handle hal.QueueHandle
}

func newMarkTest(t *testing.T, attrs string) *markTest {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	d.markCheck = time.Hour // the test checks
	t.Cleanup(runDaemon(t, d))
	p, _ := sleeper(t)
	m := &markTest{t, d, p.PID, b.mustOffer(t, p)}
	if _, err := d.Change(ourselves, p.PID, given(attrs)); err != nil {
		t.Fatal(err)
	}
	return m
}

// mark begins or ends a request and returns the daemon's answer.
func (m *markTest) mark(h api.Hint) (api.Process, error) { return m.d.Hint(ourselves, m.pid, h) }

func (m *markTest) begin(number int64) {
	m.Helper()
	if _, err := m.mark(api.Hint{Begin: &number}); err != nil {
		m.Fatal(err)
	}
}

func (m *markTest) end(number int64) {
	m.Helper()
	if _, err := m.mark(api.Hint{End: &number}); err != nil {
		m.Fatal(err)
	}
}

// progress sets the counters of the process.
func (m *markTest) progress(launched, completed uint64) {
	p := m.handle.Process().(*process)
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	p.counters = sched.Counters{Submitted: launched, Launched: launched, Completed: completed, Known: true}
}

// check compares whether only marked requests count, and how many are open for the scheduler.
func (m *markTest) check(when string, marked bool, open uint32) {
	m.Helper()
	if got := m.handle.Process().Settings().RequestsReported; got != marked {
		m.Errorf("%s: only marked requests count: got %v, want %v", when, got, marked)
	}
	for _, q := range m.d.queueStates.get() {
		if q.OpenRequests != open {
			m.Errorf("%s: got %d open requests, want %d", when, q.OpenRequests, open)
		}
	}
}

// TestMarksExpire: after one marked request the process's own requests count again. A marked
// request that was not ended is closed.
func TestMarksExpire(t *testing.T) {
	for _, c := range []struct {
		name      string
		attrs     string
		works     bool // has work at each check
		uncounted bool
		end       bool
		open      time.Duration // how long the request is open; zero if it is ended
		expires   time.Duration // when the marking is over
	}{
		{name: "ended", attrs: "class=online", end: true, works: true, expires: markExpiry},
		{name: "forgotten, no work", attrs: "class=online", open: markExpiry, expires: markExpiry},
		{name: "forgotten, work", attrs: "class=online", works: true, open: maxMarkedTime, expires: maxMarkedTime},
		{name: "forgotten, not counted", attrs: "class=online", uncounted: true, open: maxMarkedTime, expires: maxMarkedTime},
		{name: "long SLO", attrs: "class=online slo=1m", works: true, open: 2 * time.Minute, expires: 2 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMarkTest(t, c.attrs)
			m.begin(1)
			if c.end {
				m.end(1)
			}
			start := m.d.Now()
			for after := time.Second; after <= c.expires+2*time.Second; after += time.Second {
				if !c.uncounted {
					n := uint64(1)
					if c.works {
						n = uint64(after / time.Second)
					}
					m.progress(n, n)
				}
				m.d.expireMarks(start.Add(after))
				open := uint32(0)
				if after < c.open {
					open = 1
				}
				// The first check sees that the process has launched something.
				if after < c.expires-time.Second || after > c.expires+time.Second {
					m.check(after.String(), after < c.expires, open)
				}
			}
		})
	}
}

// TestMarksThatComeStayInForce: a process whose requests are marked every few seconds keeps
// being marked.
func TestMarksThatComeStayInForce(t *testing.T) {
	m := newMarkTest(t, "class=online")
	for number := range int64(3) {
		m.begin(number)
		m.end(number)
		m.d.expireMarks(m.d.Now().Add(markExpiry - time.Second))
		m.check("between marks", true, 0)
	}
	p, err := m.mark(api.Hint{Begin: new(int64(9))})
	if err != nil || p.Requests == nil || *p.Requests != (api.Requests{Count: 3, Open: 1, Marked: true, P50: p.Requests.P50, P99: p.Requests.P99}) {
		t.Errorf("got %+v, %v, want 3 requests and one open, marked", p.Requests, err)
	}
}

// TestMarksAreChecked: a number that is open cannot begin, one that is not cannot end, and
// none is negative.
func TestMarksAreChecked(t *testing.T) {
	m := newMarkTest(t, "class=online")
	m.begin(1)
	for _, c := range []struct {
		hint api.Hint
		want string
	}{
		{api.Hint{Begin: new(int64(1))}, "begin request 1 of process"},
		{api.Hint{End: new(int64(2))}, "it is not open"},
		{api.Hint{Begin: new(int64(-1))}, "-1 is not the number of a request"},
		{api.Hint{End: new(int64(-1))}, "-1 is not the number of a request"},
	} {
		_, err := m.mark(c.hint)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.hint, err, c.want)
		}
	}
	m.check("after what was refused", true, 1)
}
