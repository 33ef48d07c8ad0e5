package nvtrace

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// TestOnGPU traces a real GPU and prints the time of each process. It runs only on request,
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
		a.Usage(now)
	}
	tot := a.Totals(now)
	part := func(d time.Duration) string {
		return fmt.Sprintf("%6.2f %%", 100*float64(d)/float64(max(tot.Window, 1)))
	}
	t.Logf("%d switches in %v, %d dropped, %d back in time; slowest read %v; flush allowed %v", read, tot.Window, tr.Dropped(), back, slowest, !tr.noFlush)
	for _, u := range a.Usage(now) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", u.PID))
		t.Logf("pid %-10d %-16s resident %s  %v  switch-ins %d  on %v", u.PID, strings.TrimSpace(string(name)), part(u.Resident), u.Resident, u.SwitchIns, u.On)
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
