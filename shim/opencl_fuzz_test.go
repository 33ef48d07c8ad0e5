package shim_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

var (
	lateFuzzFor  = flag.Duration("late-fuzz", 3*time.Second, "how long random OpenCL programs are compared with and without late entry; 10m for a release")
	lateFuzzSeed = flag.Uint64("late-fuzz-seed", 0, "compare only the program of this seed; 0: others each time")
)

// testOpenCLLateRandom compares results of random programs, with several threads, queues and events,
// bit for bit: without the shim, with late entry, and with late entry, gate and bound changed at
// random moments.
func testOpenCLLateRandom(b builder) {
	t := b.t
	b.compile("cl-fuzz", "test/openclfuzz.c", "-l:libOpenCL.so.1")
	late, programs := uint64(0), 0
	for begun := time.Now(); programs == 0 || time.Since(begun) < *lateFuzzFor; programs++ {
		seed := *lateFuzzSeed
		if seed == 0 {
			seed = rand.Uint64()>>1 + 1
		}
		r := rand.New(rand.NewPCG(seed, 0))
		args := []string{"cl-fuzz", fmt.Sprint(seed), "40", fmt.Sprint(1 + r.IntN(4))}
		native := checksum(start(t, noShim, b.dir, args...).expectOK())
		for _, changes := range []bool{false, true} {
			got, n := runRandom(t, b.dir, args, r, changes)
			late += n
			if got != native {
				t.Fatalf("seed %d, changes %v: sum %s, without the shim %s; repeat with -late-fuzz-seed", seed, changes, got, native)
			}
		}
		if *lateFuzzSeed != 0 {
			break
		}
	}
	if late < 10 {
		t.Errorf("%d requests of %d programs entered late, want at least 10", late, programs)
	}
	t.Logf("%d programs, %d requests entered late", programs, late)
}

// runRandom runs a program with late entry and returns its checksum and how many requests entered
// late.
func runRandom(t *testing.T, dir string, args []string, r *rand.Rand, changes bool) (sum string, late uint64) {
	t.Helper()
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, args...)
	page := d.Page()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for changes {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.Int64N(int64(3 * time.Millisecond)))):
			}
			changeAtRandom(page, r)
		}
	}()
	line := p.expectOK()
	close(stop)
	<-stopped
	return checksum(line), page.Counters().LateRequests
}

// changeAtRandom makes one of the changes that a daemon may make at any time.
func changeAtRandom(page *shimpage.Page, r *rand.Rand) {
	switch r.IntN(6) {
	case 0:
		page.SetLateEntry(shimpage.LateEntry(r.IntN(3)))
	case 1:
		page.Hold(lease)
	case 2:
		page.SetBound(uint32(r.IntN(3)), 1)
	case 3:
		page.SetLateEntry(shimpage.LateOn)
	default:
		page.Release()
	}
}
