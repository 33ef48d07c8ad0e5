package shim_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

const runtimeLevelZero = 16 // in gw_page.runtimes

var zeLoader = flag.String("ze-loader", "", "folder with libze_loader.so.1 and include/level_zero, to test another version than the installed one")

// testLevelZero uses the real loader, with a driver of ours that promises no more than Level Zero
// does and ends programs which do what Level Zero forbids. It has not been run on a GPU.
func testLevelZero(b builder) {
	t := b.t
	const loader = "-l:libze_loader.so.1"
	if *zeLoader != "" {
		t.Setenv("CPATH", filepath.Join(*zeLoader, "include"))
		if err := os.Symlink(filepath.Join(*zeLoader, "libze_loader.so.1"), b.path("libze_loader.so.1")); err != nil {
			t.Fatal(err)
		}
	}
	header, err := exec.Command("gcc", "-E", "-P", "-include", "level_zero/ze_api.h", "-xc", "/dev/null").Output()
	if err != nil {
		const why = "no Level Zero; install libze1 and libze-dev"
		if os.Getenv("GIVEWAY_TEST_LEVELZERO") != "" {
			t.Fatalf("%s: %v", why, err)
		}
		t.Skip(why)
	}
	driver := []string{"-fPIC", "-shared", "test/fakeze.c", "-Wl,-z,nodelete"}
	if strings.Contains(string(header), "zeCommandListHostSynchronize(") {
		driver = append(driver, "-DHOST_SYNCHRONIZE")
	}
	b.compile("libze_fake.so", driver...)
	b.compile("ze-dlsym", "test/zework.c")
	b.compile("ze-linked", "-DLINKED", "test/zework.c", loader)
	b.compile("ze-fuzz", "test/zefuzz.c", loader)
	b.compile("ze-conform", "test/ze_conform.c", b.path("shim.o"), loader)
	t.Setenv("ZE_ENABLE_ALT_DRIVERS", b.path("libze_fake.so"))

	t.Run("header", func(t *testing.T) { testLevelZeroHeader(builder{t, b.dir}, string(header)) })
	t.Run("conform", func(t *testing.T) { builder{t, b.dir}.conforms("ze-conform") })
	for _, how := range []struct {
		name, program, variable string
		bounds                  []uint32
	}{
		{"linked", "ze-linked", "", []uint32{0, 1, 4}},
		{"dlsym", "ze-dlsym", "", []uint32{1}},
		{"loader's own handles", "ze-linked", "ZE_ENABLE_LOADER_INTERCEPT", []uint32{1, 4}}, // as with several drivers
		{"validation layer", "ze-linked", "ZE_ENABLE_VALIDATION_LAYER", []uint32{1}},
	} {
		t.Run(how.name, func(t *testing.T) {
			if *zeLoader != "" && how.variable == "ZE_ENABLE_VALIDATION_LAYER" {
				t.Skip("the installed layer is of another version")
			}
			if how.variable != "" {
				t.Setenv(how.variable, "1")
				t.Setenv("ZE_ENABLE_PARAMETER_VALIDATION", "1")
			}
			testLevelZeroOrder(t, b.dir, how.program, how.variable, how.bounds)
		})
	}
	t.Run("held", func(t *testing.T) { testLevelZeroHeld(t, b.dir) })
	t.Run("recording is not held", func(t *testing.T) { testLevelZeroRecord(t, b.dir) })
	t.Run("what waits tell", func(t *testing.T) { testLevelZeroTold(t, b.dir) })
	t.Run("used again", func(t *testing.T) { testLevelZeroAgain(t, b.dir) })
	t.Run("overtaken", func(t *testing.T) { testLevelZeroOvertaken(t, b.dir) })
	t.Run("lost device", func(t *testing.T) { testLevelZeroLost(t, b.dir) })
	t.Run("drain", func(t *testing.T) { testLevelZeroDrain(t, b.dir) })
	t.Run("dead daemon", func(t *testing.T) { testLevelZeroDeadDaemon(t, b.dir) })
	t.Run("random programs", func(t *testing.T) { testLevelZeroRandom(t, b.dir) })
}

// testLevelZeroHeader compares the table of calls with the installed header.
func testLevelZeroHeader(b builder, header string) {
	t := b.t
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++, which ze_header.cpp needs")
	}
	table, err := os.ReadFile("levelzero_calls.h")
	if err != nil {
		t.Fatal(err)
	}
	var checks strings.Builder
	n := 0
	for _, row := range regexp.MustCompile(`CALL\((ze\w+),`).FindAllStringSubmatch(string(table), -1) {
		if strings.Contains(header, row[1]+"(") {
			fmt.Fprintf(&checks, "CHECK(%s)\n", row[1])
			n++
		}
	}
	if n < 15 {
		t.Fatalf("%d rows are in the header, want at least 15", n)
	}
	if err := os.WriteFile(b.path("in_header.h"), []byte(checks.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.compileCPP("ze_header.o", "-c", "-I"+b.dir, "test/ze_header.cpp")
	t.Logf("%d rows agree with the header", n)
}

// testLevelZeroOrder: results are right whatever the bound, all commands are counted, and the bound
// is kept.
func testLevelZeroOrder(t *testing.T, dir, program, variable string, bounds []uint32) {
	for _, work := range []struct {
		args     string
		commands uint64
		slack    uint64 // commands that may be in flight over the bound
		free     bool   // the bound does not apply: commands wait for later ones
	}{
		{args: "queue 30", commands: 30},
		{args: "events 30", commands: 30},
		{args: "barriers 30", commands: 30},
		{args: "together 8", commands: 8 * 4},
		{args: "sync 8", commands: 8 * 2},
		{args: "mixed 3", commands: 3 * 5, free: true},
		{args: "threads 20", commands: 3 * 20, slack: 2}, // three threads may pass at the same time
		{args: "later 5", commands: 2 + 2*5, free: true},
		{args: "word 10", commands: 1 + 10, free: true},
		{args: "asked 5", commands: 5},
	} {
		if work.args == "asked 5" && variable != "" {
			continue // the driver's function does not take the loader's handles
		}
		args := append([]string{program}, strings.Fields(work.args)...)
		native := checksum(start(t, noShim, dir, args...).expectOK())
		for _, bound := range bounds {
			t.Run(fmt.Sprintf("%s, bound %d", work.args, bound), func(t *testing.T) {
				d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
				p := start(t, d.Socket(), dir, args...)
				page := d.Page()
				line := p.expectOK()
				if got := checksum(line); got != native {
					t.Errorf("sum %s, without the shim %s", got, native)
				}
				c := page.Counters()
				if c.Launched != work.commands || c.Runtimes != runtimeLevelZero {
					t.Errorf("launched %d, runtimes %b; want %d, %b", c.Launched, c.Runtimes, work.commands, runtimeLevelZero)
				}
				if most := field(t, line, "most"); bound > 0 && !work.free && most > uint64(bound)+work.slack && !stalled(t, c) {
					t.Errorf("%d commands in flight, want at most %d", most, bound)
				}
				if bound == 1 && work.free && c.Overruns == 0 {
					t.Error("commands waited for a launch beyond the bound, but there was no overrun")
				}
			})
		}
	}
}

func testLevelZeroHeld(t *testing.T, dir string) {
	for _, how := range []string{"ze-linked steps 20", "ze-dlsym steps 20", "ze-linked asked 20"} {
		t.Run(how, func(t *testing.T) {
			d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
			p := start(t, d.Socket(), dir, strings.Fields(how)...)
			page := d.Page()
			waitUntilHeld(t, page)
			p.expectSilence(200 * time.Millisecond)
			if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
				t.Errorf("%d commands passed a closed gate, %d overruns; want 0, 0", c.Launched, c.Overruns)
			}
			page.Release()
			p.expectOK()
			if c := page.Counters(); c.Launched != 20 || c.Completed != 20 || c.Flags != 0 {
				t.Errorf("%d commands launched, %d done, flags %b; want 20, 20, 0", c.Launched, c.Completed, c.Flags)
			}
		})
	}
}

// testLevelZeroRecord: what is appended to regular lists passes a closed gate; their execution does
// not.
func testLevelZeroRecord(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
	p := start(t, d.Socket(), dir, "ze-linked", "record", "10")
	p.waitFor("recorded")
	page := d.Page()
	waitUntilHeld(t, page)
	p.expectSilence(100 * time.Millisecond)
	page.Release()
	p.expectOK()
	if c := page.Counters(); c.Launched != 10 {
		t.Errorf("%d commands launched, want 10", c.Launched)
	}
}

// testLevelZeroTold: after each kind of wait it is known that the process is idle, and only then.
func testLevelZeroTold(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "ze-linked", "told")
	page := d.Page()
	for i, what := range []struct {
		waited         string
		launched, done uint64
	}{
		{"a fence", 2, 2},
		{"a queue", 3, 3},
		{"an event of a regular list", 4, 4},
		{"the last event of a chain", 6, 6},
		{"the event of a barrier", 8, 8},
		{"two events", 10, 9}, // the first is known: the list was idle before
		{"an event that says nothing about the rest", 12, 10},
	} {
		got, want := p.waitFor("waited for "), "waited for "+what.waited
		if got == "waited for two events, and the runtime can be asked" {
			want, what.done = got, what.launched // since version 1.6 of the API
		}
		if got != want {
			t.Fatalf("step %d: got %q, want %q", i, got, want)
		}
		if c := page.Counters(); c.Launched != what.launched || c.Completed != what.done || c.Flags&shimpage.Ready != 0 != (what.launched > what.done) {
			t.Errorf("after the wait for %s: %d launched, %d done, flags %b; want %d, %d", what.waited, c.Launched, c.Completed, c.Flags, what.launched, what.done)
		}
		p.send("go on")
	}
	p.expectOK()
}

// testLevelZeroAgain: an event and a fence that are signalled already tell nothing about what is to
// signal them again.
func testLevelZeroAgain(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "ze-linked", "again")
	page := d.Page()
	p.waitFor("busy")
	if c := page.Counters(); c.Launched != 4 || c.Completed != 2 {
		t.Errorf("%d of %d commands count as done, want 2 of 4", c.Completed, c.Launched)
	}
	p.send("go on")
	p.expectOK()
	if c := page.Counters(); c.Completed != 4 {
		t.Errorf("%d of %d commands count as done at the end, want all", c.Completed, c.Launched)
	}
}

// testLevelZeroOvertaken: a fence says nothing about what another thread executes after it.
func testLevelZeroOvertaken(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "ze-linked", "overtaken")
	page := d.Page()
	p.waitFor("busy")
	if c := page.Counters(); c.Launched != 2 || c.Completed != 1 {
		t.Errorf("%d of %d commands count as done, want 1 of 2", c.Completed, c.Launched)
	}
	p.send("go on")
	p.expectOK()
	if c := page.Counters(); c.Completed != 2 {
		t.Errorf("%d of %d commands count as done at the end, want all", c.Completed, c.Launched)
	}
}

// testLevelZeroLost: after the loss of the device the end of a queue does not wait for its marks.
func testLevelZeroLost(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(4, 1) })
	p := start(t, d.Socket(), dir, "ze-linked", "lost")
	d.Page()
	if ms := field(t, p.waitFor("destroyed "), "ms"); ms >= 1000 {
		t.Errorf("the end of four queues took %d ms, want less than the 1000 for which one may wait", ms)
	}
	p.expectOK()
}

// testLevelZeroDrain: a process that is held reports when the commands that it launched before are
// done.
func testLevelZeroDrain(t *testing.T, dir string) {
	for _, how := range []string{"list", "queue"} {
		for _, bound := range []uint32{0, 3, 100} {
			t.Run(fmt.Sprintf("%s, bound %d", how, bound), func(t *testing.T) {
				d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(bound, 2) })
				p := start(t, d.Socket(), dir, "ze-linked", "halfway", "10", how)
				page := d.Page()
				p.waitFor("halfway")
				page.Hold(lease)
				page.AckDoorbell()
				p.send("go on")
				waitUntilHeld(t, page)
				pagetest.Until(t, "all launched commands are known to be done", func() bool {
					c := page.Counters()
					return c.Completed == c.Launched
				})
				pagetest.Until(t, "the doorbell rings", page.AckDoorbell)
				if c := page.Counters(); c.Launched != 10 || c.Flags&shimpage.Held == 0 || c.Overruns != 0 {
					t.Errorf("launched %d, flags %b, %d overruns; want 10 while held, 0 overruns", c.Launched, c.Flags, c.Overruns)
				}
				page.Release()
				p.expectOK()
			})
		}
	}
}

// testLevelZeroDeadDaemon: a process that is held goes on when the daemon dies.
func testLevelZeroDeadDaemon(t *testing.T, dir string) {
	for _, mode := range []string{"steps", "queue", "threads"} {
		d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
		p := start(t, d.Socket(), dir, "ze-dlsym", mode, "20")
		waitUntilHeld(t, d.Page())
		d.Die()
		p.expectOK()
	}
}

// testLevelZeroRandom compares results of random programs without the shim, and with the shim while
// gate and bound change at random moments.
func testLevelZeroRandom(t *testing.T, dir string) {
	programs, holds := 0, uint64(0)
	for begun := time.Now(); programs == 0 || time.Since(begun) < *lateFuzzFor; programs++ {
		seed := *lateFuzzSeed
		if seed == 0 {
			seed = rand.Uint64() >> 8
		}
		r := rand.New(rand.NewPCG(seed, 0))
		args := []string{"ze-fuzz", fmt.Sprint(seed), "15", fmt.Sprint(1 + r.IntN(4))}
		native := checksum(start(t, noShim, dir, args...).expectOK())
		got, n := runChanging(t, dir, args, r)
		if holds += n; got != native {
			t.Fatalf("seed %d: sum %s, without the shim %s; repeat with -late-fuzz-seed", seed, got, native)
		}
		if *lateFuzzSeed != 0 {
			break
		}
	}
	if holds == 0 && programs > 2 { // a gate may open before a program's first launch
		t.Errorf("no launch of %d programs was held", programs)
	}
	t.Logf("%d programs, held %d times", programs, holds)
}

// runChanging runs a program while its gate and bound change, and returns its checksum and how often
// it was held.
func runChanging(t *testing.T, dir string, args []string, r *rand.Rand) (sum string, holds uint64) {
	t.Helper()
	d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
	p := start(t, d.Socket(), dir, args...)
	page := d.Page()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.Int64N(int64(3 * time.Millisecond)))):
				changeAtRandom(page, r)
			}
		}
	}()
	line := p.expectOK()
	close(stop)
	<-stopped
	return checksum(line), page.Counters().Holds
}
