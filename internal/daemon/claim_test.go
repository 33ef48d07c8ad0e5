package daemon

import (
	"context"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// beside starts what a process does on its page until the test ends.
func beside(t *testing.T, do func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// every calls f at intervals until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
			f()
		}
	}
}

// TestOnlineWithoutCompletionsStopsNoBatch: on a device that only the shim controls, a process
// that makes itself online by a hint and counts launches stops the batch work of others for
// about two seconds if it completes nothing, and for a part of the time if it completes a
// command each second.
func TestOnlineWithoutCompletionsStopsNoBatch(t *testing.T) {
	for _, c := range []struct {
		name, policy string
		after        time.Duration
		claim        func(t *testing.T, page *pagetest.Process)
	}{
		{"one launch", "giveway", 3 * time.Second, func(_ *testing.T, page *pagetest.Process) { page.AddLaunched(1) }},
		{"one launch, priority", "hpf", 3 * time.Second, func(_ *testing.T, page *pagetest.Process) {
			page.Hint(shimpage.HintPriority, 1<<31-1)
			page.AddLaunched(1)
		}},
		{"launches for ever", "giveway", 3 * time.Second, func(t *testing.T, page *pagetest.Process) {
			beside(t, func(ctx context.Context) { every(ctx, time.Millisecond, func() { page.AddLaunched(1) }) })
		}},
		{"launches for ever, completes one each second", "giveway", 9 * time.Second, func(t *testing.T, page *pagetest.Process) {
			beside(t, func(ctx context.Context) { every(ctx, time.Millisecond, func() { page.AddLaunched(1) }) })
			beside(t, func(ctx context.Context) { every(ctx, time.Second, func() { page.AddCompleted(1) }) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, gates, work := besideBatchWork(t, c.policy)
			hostile, page := admit(t, gates, "opencl")
			page.Hint(shimpage.HintClass, int64(sched.Online))
			eventually(t, "the hint is taken in", func() bool { return classOf(d, hostile) == "online" })
			c.claim(t, page)
			eventually(t, "the gate of batch work is closed", func() bool { return closedFor(work) > 0.7 })
			time.Sleep(c.after)
			if part := closedFor(work); part > 0.3 {
				t.Errorf("the gate of batch work was closed for %.0f %% of the time, want almost never", 100*part)
			}
			if got := classOf(d, hostile); got != "standard" {
				t.Errorf("got class %s, want standard, which the process has without its hint", got)
			}
		})
	}
}

// TestOnlineWithLongCommandsIsBelieved: a process that makes itself online by a hint and has
// commands of 500 ms, one after the other, keeps its class, also beside another such process.
func TestOnlineWithLongCommandsIsBelieved(t *testing.T) {
	const command = 500 * time.Millisecond
	for _, c := range []struct {
		name      string
		processes int
	}{{"one", 1}, {"two share the device", 2}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, gates, work := besideBatchWork(t, "giveway")
			var online []int
			for range c.processes {
				pid, page := admit(t, gates, "opencl")
				online = append(online, pid)
				page.Hint(shimpage.HintClass, int64(sched.Online))
				page.AddLaunched(1)
				beside(t, func(ctx context.Context) {
					every(ctx, time.Duration(c.processes)*command, func() {
						page.AddLaunched(1)
						page.AddCompleted(1)
					})
				})
			}
			eventually(t, "the gate of batch work is closed", func() bool { return closedFor(work) > 0.7 })
			for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				for _, pid := range online {
					if got := classOf(d, pid); got != "online" {
						t.Fatalf("got class %s, want online", got)
					}
				}
			}
			if part := closedFor(work); part < 0.7 {
				t.Errorf("the gate of batch work was closed for %.0f %% of the time, want nearly always", 100*part)
			}
		})
	}
}

// TestClaim checks for which part of an hour the hints of a process that always has work, and
// for which others wait, are believed, by how often it completes a command.
func TestClaim(t *testing.T) {
	for _, c := range []struct {
		name           string
		command        time.Duration // zero: none completes
		share          int           // the process has one part in share of the device
		atLeast, below float64
	}{
		{"completes nothing", 0, 1, 0, 0.001},
		{"10 ms", 10 * time.Millisecond, 1, 1, 1.1},
		{"500 ms", 500 * time.Millisecond, 1, 1, 1.1},
		{"700 ms", 700 * time.Millisecond, 1, 1, 1.1},
		{"1 s", time.Second, 1, 0.05, 0.25},
		{"1 s, on half of the device", time.Second, 2, 1, 1.1},
		{"5 s", 5 * time.Second, 1, 0.01, 0.15},
	} {
		var k claim
		believed, completed := 0, uint64(0)
		const turns = int(time.Hour / claimCheck)
		for i := range turns {
			if c.command > 0 {
				completed = uint64(time.Duration(i) * claimCheck / c.command)
			}
			k.update(completed, claimCheck, func() time.Duration { return claimCheck / time.Duration(c.share) })
			if !k.doubted {
				believed++
			}
		}
		if part := float64(believed) / float64(turns); part < c.atLeast || part >= c.below {
			t.Errorf("%s: believed for %.4f of the time, want from %g to %g", c.name, part, c.atLeast, c.below)
		}
	}
}

// TestClaimIsBelievedAgain: after a kernel that took 10 s the hints are believed again once the
// process completes commands and has waited for what it took.
func TestClaimIsBelievedAgain(t *testing.T) {
	var k claim
	take := func() time.Duration { return claimCheck }
	for range 100 {
		k.update(0, claimCheck, take)
	}
	if !k.doubted {
		t.Fatal("the hints are believed after 10 s without a completed command")
	}
	turns := 0
	for ; k.doubted && turns < 1000; turns++ {
		k.update(uint64(turns+1), claimCheck, take)
	}
	if after := time.Duration(turns) * claimCheck; after > claimRefund*maxClaim*11/10 {
		t.Errorf("believed again after %v, want about %v", after, claimRefund*maxClaim)
	}
}
