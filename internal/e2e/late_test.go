package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

var exactFor = flag.Duration("exact", 20*time.Second, "how long TestLateEntryIsExact compares results; 10m for a release")

// exactWork is a kind of work that a PyTorch process repeats with deterministic algorithms.
// Its requests enter late.
type exactWork struct {
	name   string
	want   string // the result of a process without the shim
	late   *client
	rounds int
}

// startExact starts a process for each kind of work.
func (b *testbed) startExact() (works []*exactWork) {
	b.Helper()
	var commands []*exec.Cmd
	for _, name := range []string{"inference", "decoding", "training"} {
		args := "equal --exact " + name
		commands = append(commands, b.torch(args), b.torchUnder("--class online --late-entry on", args))
		works = append(works, &exactWork{name: name})
	}
	clients := b.startCommands(commands)
	for i, w := range works {
		plain := clients[2*i]
		w.late = clients[2*i+1]
		first, err := plain.checksum()
		again, err2 := plain.checksum()
		if err != nil || err2 != nil || first != again {
			b.Fatalf("%s without the shim: got %q and %q, %v, %v; want the same twice", w.name, first, again, err, err2)
		}
		plain.kill()
		w.want = first
	}
	return works
}

// repeatWhile repeats the works at the same time. Every result must equal, bit for bit, that
// of the process without the shim. The function that it returns waits for the last results.
func (b *testbed) repeatWhile(works []*exactWork, wanted func() bool) (wait func()) {
	var all sync.WaitGroup
	for _, w := range works {
		all.Go(func() {
			for ; wanted(); w.rounds++ {
				if got, err := w.late.checksum(); err != nil || got != w.want {
					b.Errorf("%s, round %d: got %q, %v; want %q", w.name, w.rounds+1, got, err, w.want)
					return
				}
			}
		})
	}
	return all.Wait
}

// TestLateEntryIsExact repeats three kinds of work beside a batch job.
func TestLateEntryIsExact(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	batch := b.startJob()
	b.set(batch.pid, "--class", "batch")
	works := b.startExact()
	begun := time.Now()
	b.repeatWhile(works, func() bool { return time.Since(begun) < *exactFor })()
	b.record("all", nil, values{"compared_s": time.Since(begun).Seconds()})
	for _, w := range works {
		s := b.shim(w.late.pid)
		b.record(w.name, nil, values{"rounds": float64(w.rounds), "late_requests": float64(s.Late), "late_early": float64(s.Early), "late_s": s.LateFor.Seconds()})
		b.atLeast(w.name+": requests that entered late, by round", float64(s.Late)/float64(max(w.rounds, 1)), 1)
	}
}

// shim returns the counters of a process's shim, zero where it has none.
func (b *testbed) shim(pid int) (s shimCounters) {
	b.Helper()
	for _, p := range b.ps() {
		if p.PID == pid && p.Shim != nil {
			s = *p.Shim
		}
	}
	return s
}

// TestKilledWithLateEntryAndPool kills the daemon again and again at random instants while
// requests of an online process enter late and a pool runs. No process may hang or exit,
// and the next daemon must find every queue with the vendor's slice. With PyTorch, three
// processes that enter late compute all the while; their results must be exact.
func TestKilledWithLateEntryAndPool(t *testing.T) {
	b := newTestbed(t)
	b.needMPS()
	b.startDaemon()
	online := b.run("--class online --late-entry on", "lc --kernel 10us --kernels 40 --gap 40us --every 8ms --wait --seconds 0.1 --ns-per-iteration "+b.nsPerTiny)
	answers := serveOn(online)
	members := []*client{b.startMember(), b.startMember()}
	var works []*exactWork
	if os.Getenv(torchEnv) != "" {
		works = b.startExact()
	}
	var over atomic.Bool
	begun := time.Now()
	waitForWorks := b.repeatWhile(works, func() bool { return !over.Load() })
	defer waitForWorks()
	defer over.Store(true)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	var took []time.Duration // until every process made progress
	pending := 0             // rounds in which requests entered late
	for round := 0; round < *kills && b.hasTime(10*time.Second); round++ {
		b.await(online.pid, members[0].pid, members[1].pid)
		if round > 0 {
			b.checkFound()
		}
		if b.awaitLate(online.pid) {
			pending++
		}
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		b.killDaemon()
		killed := time.Now()
		for i, c := range members {
			if _, moved := c.awaitProgress(); !moved || !c.alive() {
				t.Fatalf("round %d: member %d: alive %v, and completed nothing for 3 s after the daemon was killed", round, i+1, c.alive())
			}
		}
		if !answers.awaitNext(3 * time.Second) {
			t.Fatalf("round %d: the online process, alive %v, answered nothing for 3 s after the daemon was killed", round, online.alive())
		}
		took = append(took, time.Since(killed))
		b.startDaemon()
	}
	over.Store(true)
	waitForWorks()
	if len(works) > 0 {
		b.record("all", nil, values{"compared_s": time.Since(begun).Seconds()})
	}
	for _, w := range works {
		b.record(w.name, nil, values{"rounds": float64(w.rounds)})
		b.atLeast(w.name+": rounds", float64(w.rounds), 1)
	}
	if len(took) < *kills {
		t.Logf("there was time for %d of %d kills", len(took), *kills)
	}
	if len(took) == 0 {
		t.Fatal("no time for a single kill")
	}
	recovery := stats.Summarize(slices.Clone(took))
	worst := answers.worst()
	b.record(fmt.Sprintf("%d kills", len(took)), &recovery, values{"rounds_with_late_entry": float64(pending), "slowest_request_ms": worst.Seconds() * 1e3}, fmt.Sprintf("seed %d", seed))
	b.atMost("seconds until every process makes progress", slices.Max(took).Seconds(), 1.5)
	b.atMost("milliseconds of the slowest request", worst.Seconds()*1e3, 1000)
	b.atLeast("share of the kills with late entry", float64(pending)/float64(len(took)), 0.5)
	b.await(online.pid, members[0].pid, members[1].pid)
	b.checkAsFound()
}

// hasTime reports whether the test may go on for that long. What was measured until then is recorded.
func (b *testbed) hasTime(d time.Duration) bool {
	deadline, limited := b.Deadline()
	return !limited || time.Until(deadline) > d
}

// awaitLate waits until another request of a process enters late, for at most 4 s.
func (b *testbed) awaitLate(pid int) bool {
	b.Helper()
	before := b.shim(pid).Late
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if b.shim(pid).Late > before {
			return true
		}
	}
	return false
}

// checkFound checks that the daemon found every queue with the vendor's slice.
func (b *testbed) checkFound() {
	b.Helper()
	for _, p := range b.ps() {
		for _, q := range p.Queues {
			if slices.Contains(q.Can, "slice") && q.Found < time.Millisecond {
				b.Errorf("process %d: the daemon found the slice %v, want the vendor's", p.PID, q.Found)
			}
		}
	}
}

// answers are those of an online client that is measured all the time.
type answers struct {
	next    chan struct{} // a run of the client has ended
	mu      sync.Mutex
	slowest time.Duration
}

// serveOn makes an online client serve until it exits.
func serveOn(c *client) *answers {
	a := &answers{next: make(chan struct{})}
	go func() {
		for {
			fmt.Fprintln(c.in, "start")
			select {
			case us := <-c.samples:
				a.mu.Lock()
				for _, v := range us {
					a.slowest = max(a.slowest, time.Duration(v*1e3))
				}
				a.mu.Unlock()
			case <-c.exited:
				return
			}
			select {
			case a.next <- struct{}{}:
			default: // the test does not wait
			}
		}
	}()
	return a
}

// awaitNext waits for the ends of two runs: the first may have been under way before.
func (a *answers) awaitNext(limit time.Duration) bool {
	timeout := time.After(limit)
	for range 2 {
		select {
		case <-a.next:
		case <-timeout:
			return false
		}
	}
	return true
}

func (a *answers) worst() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slowest
}
