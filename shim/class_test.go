package shim_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

func streamClasses(p *shimpage.Page) { p.SetStreamClasses(true) }

// testClasses runs programs in which streams of lower priority give way to those of higher
// priority.
func testClasses(t *testing.T, dir string) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++, which streams.cu needs")
	}
	builder{t, dir}.compileCPP("streams", "-x", "c++", "test/streams.cu")
	for _, test := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"programs", testClassesPrograms},
		{"latency", testClassesLatency},
		{"dependences", testClassesDependences},
		{"daemon killed", testClassesDaemonKilled},
		{"off and on", testClassesOffAndOn},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, dir) })
	}
}

// testClassesPrograms: programs get the same results, and all their commands pass the gate. Every
// other stream of theirs has a higher priority.
func testClassesPrograms(t *testing.T, dir string) {
	for _, c := range []struct {
		args  []string
		setup func(*shimpage.Page)
	}{
		{[]string{"linkedwork", "linked", "order", "3"}, noSetup},
		{[]string{"work", "12080", "order", "3"}, noSetup},
		{[]string{"work", "13020p", "order", "3"}, bound(2, 1)},
		{[]string{"work", "12080", "threads", "8"}, noSetup},
		{[]string{"work", "13020p", "crowd", "6"}, bound(4, 2)},
		{[]string{"work", "12080", "capture", "10"}, noSetup},
		{[]string{"work", "12080", "contexts", "4"}, noSetup},
		{[]string{"work", "12080", "waits", "40"}, noSetup},
		{[]string{"work", "12080", "requests", "40", "50000"}, lateEntry(shimpage.LateOn)},
		{[]string{"work", "12080", "fork"}, noSetup},
		{[]string{"work", "12080", "ends"}, noSetup},
	} {
		native := start(t, noShim, dir, c.args...).expectOK()
		d := newDaemon(t, func(p *shimpage.Page) { streamClasses(p); c.setup(p) })
		p := start(t, d.Socket(), dir, c.args...)
		page := d.Page()
		line := p.expectOK()
		if checksum(line) != checksum(native) {
			t.Errorf("%v: got %s, without the shim %s", c.args, line, native)
		}
		if slices.Contains(c.args, "fork") || slices.Contains(c.args, "ends") || slices.Contains(c.args, "contexts") {
			continue
		}
		if got, want := page.Counters().Launched, field(t, line, "commands"); got != want {
			t.Errorf("%v: %d of %d commands passed the gate", c.args, got, want)
		}
	}
}

// figures are the lines of streams.cu.
func figures(t *testing.T, dir string, prepare func(*shimpage.Page), mode, length string) (high, low string, c shimpage.Counters) {
	t.Helper()
	d := newDaemon(t, prepare)
	p := start(t, d.Socket(), dir, "streams", mode, length)
	page := d.Page()
	high, low = p.waitFor("high "), p.waitFor("low ")
	p.expectOK()
	return high, low, page.Counters()
}

// testClassesLatency: on a device that runs one kernel after another, short requests on the high
// stream wait for at most what is in flight of the low one, once. Bursts on both streams at the
// same time are like those of a process alone on the high stream, and the low one has its floor.
func testClassesLatency(t *testing.T, dir string) {
	for _, mode := range []string{"both", "equal"} {
		for attempt := 1; ; attempt++ { // other programs of the machine delay all threads now and then
			highOff, lowOff, _ := figures(t, dir, noSetup, mode, "1")
			high, low, c := figures(t, dir, streamClasses, mode, "1")
			t.Logf("%s, off\n%s\n%s\n%s, on\n%s\n%s\n%+v", mode, highOff, lowOff, mode, high, low, c)
			if c.ClassHolds == 0 || c.ClassHeldFor == 0 || field(t, low, "n") == 0 {
				t.Errorf("%s: got %+v and %s, want launches that waited, and progress", mode, c, low)
			}
			p50, off, of := field(t, high, "p50"), field(t, highOff, "p50"), field(t, low, "p50")
			if p50 <= off*3/4 && of > 3*p50 {
				break
			}
			if attempt == 5 {
				t.Fatalf("%s: %d us on the high stream, %d us without the setting, %d us on the low stream; want less than three quarters, and a ratio above 3", mode, p50, off, of)
			}
		}
	}
}

// testClassesDependences: streams that wait for each other are not held for long, and a thread
// that launches on both is not held at all.
func testClassesDependences(t *testing.T, dir string) {
	const rounds = 10
	d := newDaemon(t, streamClasses)
	p := start(t, d.Socket(), dir, "streams", "depends", "10")
	page := d.Page()
	began := time.Now()
	var lines []string
	for _, kind := range []string{"event", "kernel", "value", "host", "thread"} {
		lines = append(lines, p.waitFor(kind+" "))
	}
	line := p.expectOK()
	c := page.Counters()
	t.Logf("%v %+v", lines, c)
	if got := field(t, line, "rounds"); got != 50 {
		t.Errorf("got %q, want 50 rounds", line)
	}
	if c.ClassLetGo < rounds {
		t.Errorf("got %+v, want a launch let go in each round in which the high stream waits for the low one", c)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("50 rounds took %v", took)
	}
}

// testClassesDaemonKilled: launches that wait go on when the daemon is gone.
func testClassesDaemonKilled(t *testing.T, dir string) {
	d := newDaemon(t, streamClasses)
	p := start(t, d.Socket(), dir, "streams", "both", "3")
	page := d.Page()
	eventually(t, "launches wait", func() bool { return page.Counters().ClassHolds > 3 })
	d.Die()
	p.expectOK()
}

// testClassesOffAndOn: after the setting was off for a while, launches still do not wait for
// commands that are done.
func testClassesOffAndOn(t *testing.T, dir string) {
	d := newDaemon(t, streamClasses)
	p := start(t, d.Socket(), dir, "streams", "turns", "3")
	page := d.Page()
	for _, on := range []bool{true, false, true} {
		page.SetStreamClasses(on)
		from := page.Counters().Launched
		eventually(t, "the program launches", func() bool { return page.Counters().Launched >= from+40 })
	}
	p.expectOK()
	if c := page.Counters(); c.ClassHolds != 0 {
		t.Errorf("got %+v, want no launch that waited", c)
	}
}

// TestClassModel runs the rule by which launches wait in every interleaving of programs whose
// streams wait for each other, and shows that the test would notice mistakes.
func TestClassModel(t *testing.T) {
	b := newBuilder(t)
	scripts := []string{
		"0 hhH llL", "1 hhH llL", "0 ahH ll", "1 ahH lll", "0 hehH lllL", "1 hehHh lllL", "0 hvhH lllL", "1 hvhH lllL",
		"0 hlhlHL ll", "0 hhHj lll", "0 hhh bl", "1 hLaH lhl",
	}
	for mistake, want := range []string{
		"ok", "a thread that launches on the high stream is held", "held although the high stream waits for the low one",
		"held for too long", "held again although nothing was done", "let go although the high stream makes progress",
	} {
		program := fmt.Sprintf("class_model_%d", mistake)
		b.compile(program, "test/class_model.c", fmt.Sprintf("-DBROKEN=%d", mistake))
		found := false
		for _, script := range scripts {
			out, err := exec.Command(b.path(program), strings.Fields(script)...).CombinedOutput()
			if mistake == 0 {
				t.Logf("%s: %s", script, out)
			}
			if mistake == 0 && err != nil {
				t.Errorf("%s: %v: %s", script, err, out)
			}
			found = found || err != nil && strings.HasPrefix(string(out), want)
		}
		if mistake != 0 && !found {
			t.Errorf("mistake %d was not found", mistake)
		}
	}
}
