package e2e

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// shimOnly is a daemon that leaves the driver alone: what is left is the shim.
func (b *bed) shimOnly() {
	b.Helper()
	b.configured("nvidia: false\n")
}

func (b *bed) configured(text string) {
	b.Helper()
	file := filepath.Join(filepath.Dir(b.socket), "giveway.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	b.start("--config", file)
}

// under starts a giveway-bench by giveway run.
func (b *bed) under(flags, args string) *work {
	b.Helper()
	return b.program(flags, filepath.Join(b.bundle, "giveway-bench")+" "+args)
}

func (b *bed) program(flags, command string) *work {
	b.Helper()
	words := append([]string{"run"}, strings.Fields(flags)...)
	return b.workBy(b.command("giveway", append(append(words, "--"), strings.Fields(command)...)...))
}

func (b *bed) policy(name string) {
	b.Helper()
	if _, err := b.giveway("policy", name); err != nil {
		b.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
}

// built compiles a test program of shim/test, which the bundle has a copy of.
func (b *bed) built(name string, flags ...string) string {
	b.Helper()
	nvcc, err := exec.LookPath("nvcc")
	if err != nil {
		nvcc = "/usr/local/cuda/bin/nvcc"
	}
	if _, err := os.Stat(nvcc); err != nil {
		b.Skip("no nvcc here")
	}
	out := filepath.Join(filepath.Dir(b.socket), strings.TrimSuffix(name, ".cu")+strings.Join(flags, ""))
	args := append([]string{"-O2", "-std=c++17", "-arch=native", "-o", out, filepath.Join(b.bundle, "shim", "test", name)}, flags...)
	if text, err := exec.Command(nvcc, args...).CombinedOutput(); err != nil {
		b.Fatalf("nvcc %s: %v\n%s", name, err, text)
	}
	return out
}

// TestShimOrder: what a program may rely on, as it is and behind the gate: open,
// held every few milliseconds, and bounded.
func TestShimOrder(t *testing.T) {
	b := newBed(t)
	for _, cudart := range []string{"-cudart=static", "-cudart=shared"} {
		program := b.built("order.cu", cudart)
		native, err := exec.Command(program, "2").CombinedOutput()
		if err != nil {
			t.Fatalf("native: %v\n%s", err, native)
		}
		if cudart == "-cudart=static" {
			t.Logf("native\n%s", native)
			b.shimOnly()
		}
		for _, how := range []string{"", "--bound 1", "--bound 4", "--bound 16", "held"} {
			flags := []string{"run", "--class", "batch"}
			if how != "held" {
				flags = append(flags, strings.Fields(how)...)
			}
			cmd := b.command("giveway", append(flags, "--", program, "3")...)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			over := make(chan error, 1)
			go func() { over <- cmd.Wait() }()
			holds := 0
			if how == "held" {
				holds = b.holdNowAndThen(over)
			}
			select {
			case err = <-over:
			case <-time.After(60 * time.Second):
				_ = cmd.Process.Kill()
				t.Fatalf("%s %s: it hangs\n%s", cudart, how, out.String())
			}
			if err != nil || out.String() != string(native) {
				t.Errorf("%s %s: %v\n%s", cudart, how, err, out.String())
			}
			if how == "held" {
				t.Logf("%s: held %d times", cudart, holds)
			}
		}
	}
}

// holdNowAndThen pauses and resumes all that the daemon knows until the program is
// over, and returns how often.
func (b *bed) holdNowAndThen(over chan error) (n int) {
	for len(over) == 0 {
		for _, verb := range []string{"pause", "resume"} {
			for _, p := range b.ps() {
				if _, err := b.giveway(verb, strconv.Itoa(p.PID)); err == nil && verb == "pause" {
					n++
				}
			}
			time.Sleep(15 * time.Millisecond)
		}
	}
	return n
}

// TestShimCost measures what launches cost by the shim and by the driver, in one process
// and in several.
func TestShimCost(t *testing.T) {
	b := newBed(t)
	program := b.built("launch.cu")
	b.start()
	path, err := b.command("giveway", "run", "--class", "standard", "--", "printenv", "LD_PRELOAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, bound := range []string{"0", "16"} {
		var got [8][]float64
		var ratio [4][]float64
		for range 7 {
			cmd := exec.Command(program, strings.TrimSpace(string(path)))
			cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+b.socket)
			w := b.workBy(cmd)
			b.set(w.pid, "--class", "standard", "--bound", bound)
			us := w.raw()
			w.kill()
			for i, v := range us {
				got[i] = append(got[i], v)
			}
			for i := range ratio {
				ratio[i] = append(ratio[i], us[4+i]/us[i])
			}
		}
		for i, name := range []string{"launch+sync p50", "launch+sync p99", "burst, a launch, p50", "burst p90"} {
			t.Logf("bound %2s: %-20s driver %.3f us, shim %.3f us: %.3f x (%.3f to %.3f); medians of 7 processes", bound, name,
				median(got[i]), median(got[4+i]), median(ratio[i]), slices.Min(ratio[i]), slices.Max(ratio[i]))
		}
	}
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

// TestLevelOne: nothing but the shim, for bounds from 1 to 16.
func TestLevelOne(t *testing.T) {
	b := newBed(t)
	b.shimOnly()
	online := b.under("--class online", "lc --kernel 28us --after 5ms --wait --seconds 4 --ns-per-iteration "+b.nsPerTiny)
	t.Logf("online alone: %v", online.measure())
	batch := b.under("--class batch", "be --kernel 200us --depth 64 --ns-per-iteration "+b.nsPer)
	alone := batch.rate(3 * time.Second)
	for _, p := range []string{"native", "giveway:window=1", "giveway:window=2", "giveway:window=4", "giveway:window=8", "giveway:window=16"} {
		b.policy(p)
		var q quantiles
		kept := batch.during(func() { q = online.measure() }) / alone
		t.Logf("%-18s %v; batch %.3f of alone (%.0f/s)", p, q, kept, alone)
	}
	b.policy("giveway")
	if _, err := b.giveway("pause", strconv.Itoa(batch.pid)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if r := batch.rate(500 * time.Millisecond); r != 0 {
		t.Errorf("held, it does %.0f kernels a second", r)
	}
	b.kill()
	killed := time.Now()
	for from := batch.count(); batch.count() == from; time.Sleep(time.Millisecond) {
		if time.Since(killed) > 3*time.Second {
			t.Fatal("held for 3 s after the daemon was killed")
		}
	}
	t.Logf("the daemon killed while the gate was closed: the program was seen to go on after %v", time.Since(killed))
}

// TestAhead: arrivals announced 1.5 ms ahead, and arrivals that are only regular.
func TestAhead(t *testing.T) {
	b := newBed(t)
	lc := "lc --kernel 28us --awake --wait --seconds 5 --ns-per-iteration " + b.nsPerTiny
	own := b.work(lc + " --every 5ms --parked 2 --lead 300us")
	t.Logf("alone, kernels parked by the client itself: %v", own.measure())
	own.kill()
	b.start()
	same := b.under("--class online", lc+" --every 5ms --announce 1500us")
	b.await(same.pid)
	time.Sleep(500 * time.Millisecond)
	t.Logf("alone, announced: %v", same.measure())
	same.kill()
	batch := b.work(job + " --ns-per-iteration " + b.nsPer)
	alone := batch.rate(3 * time.Second)
	b.set(batch.pid, "--class", "batch")
	for _, how := range [][2]string{
		{"--class online", " --every 5ms"},
		{"--class online", " --every 5ms --announce 1500us"},
		{"--class online --predict", " --every 5ms"},
	} {
		w := b.under(how[0], lc+how[1])
		b.await(w.pid)
		time.Sleep(500 * time.Millisecond)
		w.measure()
		var q quantiles
		kept := batch.during(func() { q = w.measure() }) / alone
		out, _ := b.giveway("ps", "--json")
		_, shim, _ := strings.Cut(out, `"shim":`)
		shim, _, _ = strings.Cut(strings.Join(strings.Fields(shim), ""), "}")
		t.Logf("%s%s: %v; batch %.3f of alone\n      %s", how[0], how[1], q, kept, shim)
		w.kill()
	}
}

// torch starts a PyTorch client by giveway run.
func (b *bed) torch(flags, args string) *work {
	b.Helper()
	return b.program(flags, "python3 -u "+b.torchScript()+" "+args)
}

func (b *bed) torchScript() string {
	b.Helper()
	script := os.Getenv("GIVEWAY_TORCH")
	if script == "" {
		b.Skip("GIVEWAY_TORCH is not set: it names torch_client.py")
	}
	return script
}

// within measures an online client and a batch one side by side, and notes which slices
// the batch one had.
func (b *bed) within(online, batch *work, slo time.Duration) inTime {
	b.Helper()
	answers := make(chan []float64, 1)
	from, at := batch.progress()
	go func() { answers <- online.raw() }()
	m := inTime{slo: slo}
	for done := false; !done; {
		select {
		case m.us = <-answers:
			done = true
		case <-time.After(500 * time.Millisecond):
			m.had = append(m.had, b.slice(batch.pid)) // a trial may be over in between
		}
	}
	if len(m.us) == 0 {
		b.Fatal("no request was answered")
	}
	to, until := batch.progress()
	m.steps, m.took = to-from, until-at
	return m
}

// inTime is how many requests were, and what batch work did meanwhile.
type inTime struct {
	slo   time.Duration
	us    []float64
	had   []string
	steps int64
	took  time.Duration
}

func (m inTime) and(next inTime) inTime {
	return inTime{next.slo, append(m.us, next.us...), append(m.had, next.had...), m.steps + next.steps, m.took + next.took}
}

func (m inTime) String() string {
	met := 0
	for _, v := range m.us {
		if v <= float64(m.slo.Microseconds()) {
			met++
		}
	}
	return fmt.Sprintf("%5.1f %% within %v, %v; training %.2f/s; slices %s", 100*float64(met)/float64(len(m.us)), m.slo, summary(m.us),
		float64(m.steps)/m.took.Seconds(), strings.Join(slices.Compact(slices.Clone(m.had)), ", "))
}

// slice is that of a process, in words.
func (b *bed) slice(pid int) string {
	b.Helper()
	for _, p := range b.ps() {
		if p.PID == pid && len(p.Queues) > 0 {
			switch s := p.Queues[0].Slice; {
			case p.Queues[0].State == sched.Stopped.String():
				return "kept off"
			case s == 0:
				return "own"
			case s == sched.MinSlice:
				return "least"
			default:
				return s.String()
			}
		}
	}
	return "unknown"
}

// TestSLO: the same flag for two kinds of online work, the policy not told which. The
// target is what the least slice just about gives the slower of the two here.
func TestSLO(t *testing.T) {
	b := newBed(t)
	b.start()
	batch := b.torch("--class batch", "be")
	slo := time.Duration(0)
	for _, mode := range []string{"eager", "graph"} {
		online := b.torch("--class online", "lc --mode "+mode+" --every-ms 20 --wait --seconds 8")
		b.await(batch.pid, online.pid)
		if slo == 0 {
			b.policy("giveway")
			online.measure() // its first requests take longer than any later
			slo = time.Duration(online.measure().p99*1.2) * time.Microsecond
			slo = slo.Round(100 * time.Microsecond)
		}
		b.set(online.pid, "--slo", slo.String())
		for _, p := range []string{"native", "giveway"} {
			b.policy(p)
			t.Logf("%s, %-8s %v", mode, p, b.within(online, batch, slo))
		}
		b.policy("slo")
		b.loop(mode+", ", online, batch, slo)
		online.kill()
	}
}

// TestSLOWaits: a program that waits for each of its kernels, which no fixed slice
// helps.
func TestSLOWaits(t *testing.T) {
	b := newBed(t)
	b.start()
	batch := b.torch("--class batch", "be")
	online := b.under("--slo 10.5ms", "lc --kernel 28us --kernels 30 --gap 200us --each --tell --every 25ms --wait --seconds 8 --ns-per-iteration "+b.nsPerTiny)
	b.await(batch.pid, online.pid)
	const slo = 10500 * time.Microsecond
	b.policy("giveway")
	t.Logf("giveway  %v", b.within(online, batch, slo))
	b.policy("slo")
	b.loop("", online, batch, slo)
	b.policy("native")
	t.Logf("native   %v", b.within(online, batch, slo))
}

// loop measures the loop from its beginning on.
func (b *bed) loop(what string, online, batch *work, slo time.Duration) {
	b.Helper()
	var all inTime
	for range 3 {
		m := b.within(online, batch, slo)
		b.Logf("%s%-8s %v", what, "", m)
		all = all.and(m)
	}
	b.Logf("%s%-8s %v", what, "slo", all)
}

// TestGuard: level 2 in software.
func TestGuard(t *testing.T) {
	b := newBed(t)
	program := b.built("guard.cu")
	out, err := exec.Command(program).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	b.shimOnly()
	for _, how := range []string{"held", "twice"} {
		b.heldKernel(program, how)
	}
}

// heldKernel: a hold of giveway's stops a guarded kernel.
func (b *bed) heldKernel(program, how string) {
	b.Helper()
	w := b.program("--class batch", program+" "+how)
	defer w.kill()
	b.await(w.pid)
	stops := make(chan []float64, 1)
	go func() { stops <- w.raw() }()
	pid := strconv.Itoa(w.pid)
	for _, what := range []string{"pause", "resume", "pause", "resume"} {
		time.Sleep(300 * time.Millisecond)
		if out, err := b.giveway(what, pid); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	if n := <-stops; n[0] < 1 {
		b.Errorf("%s: giveway held it twice, and it was stopped %g times", how, n[0])
	} else {
		b.Logf("%s: held twice by giveway: stopped %g times", how, n[0])
	}
}

// TestTrainingBound: a training step without the shim, with it, and with a bound. The
// host's speed changes by more than they do, within seconds, and so does that of two
// processes: so in short turns, and many.
func TestTrainingBound(t *testing.T) {
	b := newBed(t)
	b.start()
	var native, open, ratio []float64
	for range 3 {
		plain := b.workBy(exec.Command("python3", "-u", b.torchScript(), "be"))
		plain.rate(2 * time.Second)
		native = append(native, plain.rate(8*time.Second))
		plain.kill()
		w := b.torch("--class standard", "be")
		b.await(w.pid)
		w.rate(2 * time.Second)
		rate := func(bound string) float64 {
			b.set(w.pid, "--bound", bound)
			time.Sleep(200 * time.Millisecond) // what it tells is a tenth of a second old
			return w.rate(600 * time.Millisecond)
		}
		for i := range 20 {
			var without, with float64
			if i%2 == 0 { // each is first as often as second
				without, with = rate("0"), rate("16")
			} else {
				with, without = rate("16"), rate("0")
			}
			open, ratio = append(open, without), append(ratio, with/without)
		}
		w.kill()
	}
	t.Logf("a bound of 16 leaves %.4f +- %.4f of the rate, median %.4f, in 60 pairs of turns; without the shim %.2f/s (%.1f), with it and no bound %.2f/s",
		mean(ratio), deviation(ratio)/math.Sqrt(float64(len(ratio))), median(ratio), mean(native), native, mean(open))
}

func deviation(of []float64) float64 {
	m, sum := mean(of), 0.0
	for _, v := range of {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum / float64(len(of)-1))
}

func mean(of []float64) (sum float64) {
	for _, v := range of {
		sum += v
	}
	return sum / float64(len(of))
}
