package nvtrace

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// TestOnGPU traces a real GPU, prints the time of each process and checks that all time is
// accounted for. It runs only on request,
// while two processes keep the GPU busy (one alone makes no switches):
//
//	CGO_ENABLED=0 go test -c -o nvtrace.test ./internal/nvidia/nvtrace
//	NVTRACE_GPU=1 ./nvtrace.test -test.run TestOnGPU -test.v
//
// NVTRACE_SECONDS is how long it runs (2), NVTRACE_UUID the GPU (the driver's first),
// NVTRACE_EVERY_MS the time between reads (100).
func TestOnGPU(t *testing.T) {
	if os.Getenv("NVTRACE_GPU") != "1" {
		t.Skip("set NVTRACE_GPU=1 to trace a GPU")
	}
	tr, err := Open(Config{Control: nvrm.ControlPath, DevicePattern: nvrm.GPUPattern, Index: -1, UUID: os.Getenv("NVTRACE_UUID")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	t.Logf("all users %v, room for %d records; GPU clock minus wall clock %v", tr.AllUsers(), tr.buffer.count,
		time.Duration(tr.Started()-time.Now().UnixNano()))
	a := NewAccount(tr.Started())
	var ledger hal.Ledger
	held := map[uint32]time.Duration{}
	a.Spent = func(s Span) {
		ledger.Add(hal.Span{Begin: sched.Time(s.Begin), End: sched.Time(s.End), Kind: s.Kind, Left: s.Left})
		if s.Kind == hal.SpanHeld {
			held[s.PID] += time.Duration(s.End - s.Begin)
		}
	}
	end := time.Now().Add(time.Duration(number(t, "NVTRACE_SECONDS", 2) * float64(time.Second)))
	every := time.Duration(number(t, "NVTRACE_EVERY_MS", 100) * float64(time.Millisecond))
	read, back, slowest := 0, 0, time.Duration(0)
	var now, last int64
	for time.Now().Before(end) {
		time.Sleep(every)
		if now, err = tr.Clock(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		switches, err := tr.Read()
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(began))
		for _, s := range switches {
			if read < 6 {
				t.Logf("  %+v", s)
			}
			if s.At < last {
				back++
			}
			read, last = read+1, s.At
		}
		a.Add(switches)
		a.Advance(now)
	}
	tot := a.Totals()
	part := func(d time.Duration) string {
		return fmt.Sprintf("%6.2f %%", 100*float64(d)/float64(max(tot.Window, 1)))
	}
	t.Logf("%d switches in %v, %d dropped, %d back in time; slowest read %v; flush allowed %v", read, tot.Window, tr.Dropped(), back, slowest, !tr.noFlush)
	var sum time.Duration
	for pid, d := range held {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		t.Logf("pid %-10d %-16s held %s  %v", pid, strings.TrimSpace(string(name)), part(d), d)
		sum += d
	}
	rest := time.Duration(a.now - a.since) // of a switch under way
	if wall := time.Duration(now - tr.Started()); sum != ledger.Held || ledger.Wall()+rest != wall {
		t.Errorf("ledger: %v held by processes, %+v, %v open; want %v together", sum, ledger, rest, wall)
	}
	t.Logf("switching %s  idle %s  unknown %s", part(tot.Switching), part(tot.Idle), part(tot.Unknown))
	t.Logf("END to START: %d, P50 %v  P99 %v", tot.Switches, tot.P50, tot.P99)
	t.Logf("lost %d, unpaired %d, bad %d", tot.Lost, tot.Unpaired, tot.Bad)
	if read == 0 {
		t.Error("no switches: two processes must be busy on this GPU, without MPS")
	}
}

func number(t *testing.T, name string, otherwise float64) float64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}
