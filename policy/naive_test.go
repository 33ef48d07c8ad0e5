package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// randomView returns a device with up to a dozen queues. Their attributes have few
// different values, so that ties are common.
func randomView(r *rand.Rand, dev sched.Device) *sched.View {
	v := &sched.View{Now: 1000 * sched.Time(ms), Devices: []sched.Device{dev}}
	id := sched.QueueID(0)
	few := func(n int) time.Duration { return time.Duration(r.IntN(n)) * ms }
	for range r.IntN(13) {
		id += sched.QueueID(1 + r.IntN(3))
		q := sched.Queue{
			ID: id, Process: sched.ProcessID(r.IntN(4)), Device: dev.ID,
			Can:        []sched.Ability{canAll, canAll, canStop, sched.CanSlice, 0}[r.IntN(5)],
			State:      sched.State(r.IntN(4)),
			ReadySince: v.Now.Add(-few(300)),
			Served:     few(50),
			Counters:   sched.Counters{Known: r.IntN(4) > 0, Submitted: uint64(r.IntN(3))},
			Measured:   r.IntN(2) == 0,
			Attr: sched.Attr{
				Priority: int32(r.IntN(3)), Weight: uint32(r.IntN(4)), Share: uint8(r.IntN(3) * 30),
				Nice: int8(r.IntN(5) - 2), RealTime: uint8(max(0, r.IntN(6)-3) * 33), Class: sched.Class(r.IntN(4)),
				Focus: r.IntN(6) == 0, Paused: r.IntN(8) == 0,
				Deadline: few(4) * 60, Work: few(3) * 10, Laxity: few(2) * time.Duration(r.IntN(2)) * 50,
			},
		}
		q.ServedAtReady = q.Served / 2
		v.Queues = append(v.Queues, q)
	}
	return v
}

// naivePolicies are the simplest implementations of the policies: for every ready
// queue they compare it with all others and return whether it may run. Idle queues
// always may.
var naivePolicies = map[string]func(v *sched.View, q sched.Queue) bool{
	"fifo": func(v *sched.View, q sched.Queue) bool {
		return goesFirst(v, q, func(a, b sched.Queue) bool { return a.ReadySince < b.ReadySince })
	},
	"hpf": func(v *sched.View, q sched.Queue) bool {
		for _, o := range v.Queues {
			if knownBusy(&o) && o.Attr.Priority > q.Attr.Priority {
				return false
			}
		}
		return true
	},
	"nice": func(v *sched.View, q sched.Queue) bool {
		for _, o := range v.Queues {
			a, b := o.Attr, q.Attr
			if knownBusy(&o) && (a.RealTime > b.RealTime || a.RealTime == 0 && b.RealTime == 0 && a.Nice < b.Nice) {
				return false
			}
		}
		return true
	},
	"edf":  func(v *sched.View, q sched.Queue) bool { return ahead(v, q, dueBefore(v.Now)) < 1 },
	"kedf": func(v *sched.View, q sched.Queue) bool { return ahead(v, q, dueBefore(v.Now)) < 2 },
	"llf":  func(v *sched.View, q sched.Queue) bool { return goesFirst(v, q, lessLaxThan(v.Now)) },
	"window": func(v *sched.View, q sched.Queue) bool {
		focus, busy := map[sched.ProcessID]bool{}, false
		for _, o := range v.Queues {
			focus[o.Process] = focus[o.Process] || o.Attr.Focus
		}
		for _, o := range v.Queues {
			busy = busy || knownBusy(&o) && focus[o.Process]
		}
		return focus[q.Process] || !busy
	},
}

// goesFirst reports whether no queue that is known to be runnable goes before q. Of
// equals the lower ID goes first, unless q is uncounted.
func goesFirst(v *sched.View, q sched.Queue, before func(a, b sched.Queue) bool) bool {
	for _, o := range v.Queues {
		if knownBusy(&o) && (before(o, q) || !uncounted(&q) && !before(q, o) && o.ID < q.ID) {
			return false
		}
	}
	return true
}

// ahead counts the queues known to be runnable that go before q. Of equals the lower ID
// goes first.
func ahead(v *sched.View, q sched.Queue, before func(a, b sched.Queue) bool) int {
	n := 0
	for _, o := range v.Queues {
		if knownBusy(&o) && (before(o, q) || !before(q, o) && o.ID < q.ID) {
			n++
		}
	}
	return n
}

func dueBefore(now sched.Time) func(a, b sched.Queue) bool {
	key := func(q sched.Queue) (int, sched.Time) {
		due := q.ReadySince + sched.Time(q.Attr.Deadline)
		switch {
		case q.Attr.Deadline == 0:
			return 3, q.ReadySince
		case now-due > sched.Time(100*ms):
			return 2, due
		}
		return 1, due
	}
	return func(a, b sched.Queue) bool {
		ah, ad := key(a)
		bh, bd := key(b)
		return ah < bh || ah == bh && ad < bd
	}
}

func lessLaxThan(now sched.Time) func(a, b sched.Queue) bool {
	key := func(q sched.Queue) (int, sched.Time) {
		left := sched.Time(q.Attr.Work - (q.Served - q.ServedAtReady))
		laxity := q.ReadySince + sched.Time(q.Attr.Deadline) - now - max(left, 0)
		if q.Attr.Laxity > 0 {
			had := q.Served - q.ServedAtReady
			if q.Attr.Work > 0 {
				had = min(had, q.Attr.Work)
			}
			laxity = q.ReadySince + sched.Time(q.Attr.Laxity+had) - now
		}
		switch {
		case q.Attr.Deadline == 0 && q.Attr.Laxity == 0:
			return 3, q.ReadySince
		case laxity < -sched.Time(100*ms):
			return 2, laxity
		}
		return 1, laxity
	}
	return func(a, b sched.Queue) bool {
		ah, al := key(a)
		bh, bl := key(b)
		return ah < bh || ah == bh && al < bl
	}
}

func TestPoliciesAgreeWithNaiveImplementations(t *testing.T) {
	for name, mayRun := range naivePolicies {
		t.Run(name, func(t *testing.T) {
			for seed := range few(3000) {
				v := randomView(rand.New(rand.NewPCG(seed, 1)), plainGPU)
				var want []sched.QueueID
				for _, q := range v.Queues {
					if !q.Ready() || !q.Attr.Paused && mayRun(v, q) {
						want = append(want, q.ID)
					}
				}
				// A paused ready queue may be granted: the scheduler stops it.
				got := slices.DeleteFunc(granted(fresh(t, name).Plan(v)), func(id sched.QueueID) bool {
					return slices.ContainsFunc(v.Queues, func(q sched.Queue) bool {
						return q.ID == id && q.Ready() && q.Attr.Paused
					})
				})
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: got grants %v, want %v, of\n%s", seed, got, want, describeView(v))
				}
			}
		})
	}
}

// fresh returns a new instance of a policy with its default parameters.
func fresh(t testing.TB, name string) sched.Policy {
	t.Helper()
	choice, err := Choose(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return choice.Make()
}

func granted(p sched.Plan) []sched.QueueID {
	var ids []sched.QueueID
	for _, g := range p.Grants {
		ids = append(ids, g.Queue)
	}
	return ids
}

func describeView(v *sched.View) (s string) {
	for i := range v.Queues {
		q := &v.Queues[i]
		s += fmt.Sprintf("%d: ready %v since %v, served %v, %+v\n", q.ID, q.Ready(), q.ReadySince.Sub(v.Now), q.Served, q.Attr)
	}
	return s
}
