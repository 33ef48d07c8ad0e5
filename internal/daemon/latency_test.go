package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
	preload "github.com/giveway/giveway/shim"
)

// pinTo keeps this thread on a CPU, so that sender and receiver are on two CPUs, as they
// are in testdata/wake.c.
func pinTo(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set) // not permitted everywhere; then any CPU is used
}

// stopwatch is a policy that records when Plan is called for each hint.
type stopwatch struct {
	pin  sync.Once
	mu   sync.Mutex
	last int32
	at   map[int32]uint64
}

func (s *stopwatch) Observe(_ sched.Time, ev *sched.Event) {
	if ev.Kind == sched.AttrsChanged {
		s.last = ev.Attr.Priority
	}
}

func (s *stopwatch) Plan(v *sched.View) (p sched.Plan) {
	s.pin.Do(func() { pinTo(1) }) // the loop has a thread of its own
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.at[s.last]; !known {
		s.at[s.last] = shimpage.Monotonic(time.Now())
	}
	for i := range v.Queues {
		p.Grants = append(p.Grants, sched.Grant{Queue: v.Queues[i].ID})
	}
	return p
}

// built compiles a program of testdata and returns its path.
func built(b *testing.B, name string) string {
	b.Helper()
	program := filepath.Join(b.TempDir(), name)
	if out, err := exec.Command("cc", "-O2", "-o", program, "testdata/"+name+".c", "-ldl").CombinedOutput(); err != nil {
		b.Skipf("no C compiler to measure with: %v %s", err, out)
	}
	return program
}

// preloaded writes the shim to a file and returns its path.
func preloaded(b *testing.B) string {
	b.Helper()
	library, err := preload.Library()
	if err != nil {
		b.Skip(err)
	}
	file := filepath.Join(b.TempDir(), "libgiveway.so")
	if err := os.WriteFile(file, library, 0o644); err != nil {
		b.Fatal(err)
	}
	return file
}

// BenchmarkHint measures the time from a hint of a process with the shim until the policy
// is called, with the daemon asleep. For comparison it measures how long it takes to wake a
// process that does nothing else.
func BenchmarkHint(b *testing.B) {
	const count, pause = "2000", "500" // us
	bare, giver, library := built(b, "wake"), built(b, "hints"), preloaded(b)
	watch := &stopwatch{at: map[int32]uint64{}}
	d := newShimDaemon()
	d.sched = sched.New(sched.Config{}, sched.PolicyChoice{Name: "stopwatch", Make: func() sched.Policy { return watch }})
	socket, _ := serve(b, d)
	var hints, wakes []float64
	for b.Loop() {
		clear(watch.at)
		out := linesOf(b, exec.Command(bare, count, pause))
		for _, ns := range out {
			wakes = append(wakes, float64(ns))
		}
		giver := exec.Command(giver, count, pause)
		giver.Env = append(os.Environ(), "LD_PRELOAD="+library, "GIVEWAY_SOCKET="+socket)
		for i, sent := range linesOf(b, giver) {
			watch.mu.Lock()
			at, decided := watch.at[int32(i+1)]
			watch.mu.Unlock()
			if !decided {
				continue // the loop read two hints at once: only the later one is timed
			}
			hints = append(hints, float64(at-sent))
		}
	}
	if len(hints) < len(wakes)/2 {
		b.Fatalf("got %d decisions for %d hints", len(hints), len(wakes))
	}
	for _, m := range []struct {
		name  string
		times []float64
	}{{"hint", hints}, {"bare", wakes}} {
		slices.Sort(m.times)
		for _, part := range []int{50, 90, 99} {
			b.ReportMetric(stats.Quantile(m.times, float64(part)/100)/1e3, fmt.Sprintf("us-%s-p%d", m.name, part))
		}
	}
	b.ReportMetric(stats.Quantile(hints, 0.5)/stats.Quantile(wakes, 0.5), "x-bare-p50")
	b.ReportMetric(0, "ns/op")
}

func linesOf(b *testing.B, cmd *exec.Cmd) (ns []uint64) {
	b.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		n, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ns = append(ns, n)
	}
	return ns
}
