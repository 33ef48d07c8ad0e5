package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// TestSLOIsGivewayForAQueueThatCannotBeSliced checks that slo and giveway do the same, on a device
// with slices, to a batch queue whose slice cannot be set, beside online work that must be served as
// fast as possible: it is bounded, and stopped while online work is ready.
func TestSLOIsGivewayForAQueueThatCannotBeSliced(t *testing.T) {
	for name, online := range map[string]func() func(*job, sched.Time){
		"busy":          func() func(*job, sched.Time) { return saturating },
		"with requests": func() func(*job, sched.Time) { return periodic(20*ms, 5*ms) },
	} {
		actions := func(policy string) []sched.Action {
			node := newNode(t, policy, nil, slicedGPU)
			stubborn := node.open(sched.Queue{Can: sched.CanInterrupt | sched.CanBound, Attr: sched.Attr{Class: sched.Batch}}, saturating)
			work := node.open(class(sched.Online), online())
			node.run(200*ms, func() {
				if busy := len(work.todo) > 0; busy && stubborn.running && node.now > work.todo[0].arrived.Add(tick) {
					t.Fatalf("%s, %s: the queue runs at %v beside online work", policy, name, time.Duration(node.now))
				}
			})
			return node.actions
		}
		if got, want := actions("slo"), actions("giveway"); !slices.Equal(got, want) {
			t.Errorf("online work %s: slo does\n%v, giveway\n%v", name, got, want)
		}
	}
}

// TestSLOAdaptsTheBoundOfAQueueThatCannotBeSliced checks that such a queue has no bound while requests
// have much time to spare, and is stopped while online work is ready where they have none.
func TestSLOAdaptsTheBoundOfAQueueThatCannotBeSliced(t *testing.T) {
	for took, want := range map[time.Duration]struct {
		bound uint32
		runs  bool
	}{5 * ms: {0, true}, 9900 * time.Microsecond: {batchBound, false}} {
		node := newNode(t, "slo", nil, slicedGPU)
		stubborn := node.open(sched.Queue{Can: sched.CanInterrupt | sched.CanBound, Attr: sched.Attr{Class: sched.Batch}}, saturating)
		online := node.open(sched.Queue{Attr: sched.Attr{Class: sched.Online, SLO: testSLO}}, idle)
		for range 500 {
			begin := node.now
			online.submit(node.now, 5*ms)
			node.events = append(node.events, sched.Event{Kind: sched.RequestStarted, Queue: online.ID})
			node.run(ms)
			takes := took
			if stubborn.running && took > 5*ms {
				takes = testSLO + ms
			}
			runs := stubborn.running
			node.run(takes - ms)
			node.events = append(node.events, sched.Event{Kind: sched.RequestFinished, Queue: online.ID, Duration: takes})
			node.run(begin.Add(20 * ms).Sub(node.now))
			if bound := node.sched.Queues(nil)[0].Bound; node.now > sched.Time(9*time.Second) && (bound != want.bound || runs != want.runs) {
				t.Fatalf("requests of %v: the queue has a bound of %d and runs beside online work %v, want %d, %v", took, bound, runs, want.bound, want.runs)
			}
		}
	}
}
