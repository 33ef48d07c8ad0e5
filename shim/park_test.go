package shim_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// testPark: kernels are parked ahead of arrivals that are announced or periodic, released by calls
// that could wait for them, and not parked when arrivals repeatedly do not come.
func testPark(t *testing.T, dir string) {
	builder{t, dir}.compile("parkwork", "test/parkwork.c")
	slow := 1
	ahead := func(limit time.Duration, watch uint32) func(*shimpage.Page) {
		return func(p *shimpage.Page) {
			p.SetParking(time.Duration(slow)*5*time.Millisecond, limit)
			p.SetWatch(watch)
		}
	}
	begin := func(d *pagetest.Daemon, what string, n int) *process {
		t.Helper()
		return start(t, d.Socket(), dir, "parkwork", what, strconv.Itoa(n), strconv.Itoa(slow))
	}
	run := func(prepare func(*shimpage.Page), what string, n int) (c shimpage.Counters, line string) {
		t.Helper()
		d := newDaemon(t, prepare)
		p := begin(d, what, n)
		page := d.Page()
		line = p.expectOK()
		return page.Counters(), line
	}
	// On a busy machine a process is often not scheduled in time. Arrivals are then not periodic
	// and leads too short, so these tests make several attempts, with slower arrivals.
	attempts := func(name string, attempt func() error) {
		t.Run(name, func(t *testing.T) {
			for n := range 10 {
				slow = 1 << (n / 2)
				err := attempt()
				if err == nil {
					return
				}
				t.Logf("attempt %d: %v", n+1, err)
			}
			t.Error("all attempts failed")
		})
		slow = 1
	}
	attempts("announced", func() error {
		c, line := run(ahead(50*time.Millisecond, 0), "told", 20)
		ended, late := field(t, line, "ended"), field(t, line, "late")
		if c.Launched != 21 {
			t.Errorf("%d commands, want 21: parked kernels must not be counted", c.Launched)
		}
		if c.Saved > c.ParkedFor || ended > 2*c.Parked {
			t.Errorf("got %+v, but %d kernels ended", c, ended)
		}
		if c.Parked < 5 || c.Hits < c.Parked/2 || c.Saved == 0 || c.ParkedFor == 0 || ended < 2*c.Parked-2 || late > 2 {
			return fmt.Errorf("got %+v; %d kernels ended, %d by themselves", c, ended, late)
		}
		return nil
	})
	// If the kernels end while the launch of a large graph is still in progress, the device goes back
	// to others, and the request is later than without them.
	attempts("slow launches", func() error {
		c, line := run(ahead(50*time.Millisecond, 0), "slow", 20)
		if early := field(t, line, "early"); c.Hits < 5 || early > 2 {
			return fmt.Errorf("got %+v; %d kernels ended during a launch", c, early)
		}
		return nil
	})
	attempts("announced by the owner", func() error {
		d := newDaemon(t, ahead(50*time.Millisecond, shimpage.LogRequests))
		p := begin(d, "silent", 30)
		page := d.Page()
		ended := make(chan string, 1)
		go func() { ended <- p.expectOK() }()
		for {
			select {
			case <-ended:
				if c := page.Counters(); c.Parked < 3 || c.Hits == 0 {
					return fmt.Errorf("got %+v", c)
				}
				return nil
			case <-time.After(time.Duration(slow) * 15 * time.Millisecond):
				page.SetExpectedArrival(shimpage.Monotonic(time.Now().Add(time.Duration(slow) * 8 * time.Millisecond)))
			}
		}
	})
	attempts("periodic", func() error {
		if c, _ := run(ahead(50*time.Millisecond, shimpage.PredictArrivals), "silent", 30); c.Parked < 3 || c.Hits < c.Parked/2 {
			return fmt.Errorf("got %+v", c)
		}
		return nil
	})
	t.Run("not requested", func(t *testing.T) {
		if c, line := run(ahead(50*time.Millisecond, 0), "silent", 20); c.Parked != 0 || field(t, line, "ended") != 0 {
			t.Errorf("got %+v: %s", c, line)
		}
		if c, line := run(func(*shimpage.Page) {}, "told", 5); c.Parked != 0 || field(t, line, "ended") != 0 {
			t.Errorf("without a lead: got %+v: %s", c, line)
		}
	})
	// Compiling takes about 20 ms of CPU time, and is wasted if the process is not idle then.
	t.Run("compiles", func(t *testing.T) {
		compiled := func(args ...string) (compiled, loaded, ms uint64) {
			t.Helper()
			line := start(t, newDaemon(t, ahead(50*time.Millisecond, 0)).Socket(), dir, append([]string{"parkwork"}, args...)...).expectOK()
			return field(t, line, "compiled"), field(t, line, "loaded"), field(t, line, "ms")
		}
		if n, loaded, ms := compiled("busy", "500"); n == 0 || n > 1+ms/1000 || loaded != 0 {
			t.Errorf("compiled %d times in %d ms and loaded %d times, for a process that is never idle for long", n, ms, loaded)
		}
		if _, loaded, _ := compiled("ends"); loaded != 0 {
			t.Errorf("the kernel was loaded %d times at the program's exit, want 0", loaded)
		}
		d := newDaemon(t, ahead(50*time.Millisecond, 0))
		p := start(t, d.Socket(), dir, "parkwork", "unasked")
		p.waitFor("started")
		d.Page().SetParking(0, 0)
		fmt.Fprintln(p.in)
		if line := p.expectOK(); field(t, line, "compiled") != 0 {
			t.Errorf("without a lead: got %s, want nothing compiled", line)
		}
	})
	attempts("wrong", func() error {
		slow = 1 // with slower arrivals the pause would end, and parking would be tried again
		c, _ := run(ahead(time.Millisecond, 0), "wrong", 30)
		if c.Parked > 16 || c.Hits != 0 {
			t.Errorf("got %+v: want it to pause after eight", c)
		}
		if c.Parked < 4 {
			return fmt.Errorf("got %+v", c)
		}
		return nil
	})
	attempts("waits", func() error {
		c, line := run(ahead(90*time.Millisecond, 0), "waits", 1)
		if c.Hits != 0 {
			t.Errorf("got %+v", c)
		}
		if c.Parked == 0 || field(t, line, "waited") > 50 {
			return fmt.Errorf("got %+v: %s", c, line)
		}
		return nil
	})
	attempts("stopped process", func() error {
		d := newDaemon(t, ahead(90*time.Millisecond, 0))
		p := begin(d, "stopped", 3)
		stat := fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)
		for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
			text, _ := os.ReadFile(stat)
			if strings.Contains(string(text), ") T ") {
				break
			}
			// An exited process is a zombie until it is waited for.
			if len(text) == 0 || strings.Contains(string(text), ") Z ") || time.Now().After(end) {
				t.Fatalf("the process was never stopped: %q", p.tail())
			}
		}
		time.Sleep(40 * time.Millisecond) // the announced time has passed
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		line := p.expectOK()
		before, ended := field(t, line, "before"), field(t, line, "ended")
		if ended != before {
			return fmt.Errorf("%d kernels before the stop, %d after: kernels were parked for a past arrival", before, ended)
		}
		if before == 0 {
			return errors.New("no kernel was parked before the stop")
		}
		return nil
	})
}
