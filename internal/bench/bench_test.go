package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// measureFake runs cases with fake clients.
func measureFake(t *testing.T, config Config, daemon *fakeDaemon, cases ...Case) (*Result, error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv(fakeFolder, dir)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise the race detector delays each exit by a second
	config.Client = []string{os.Args[0]}
	config.Settle, config.Adapt = 30*ms, ms
	config.Length = cmp.Or(config.Length, 600*ms) // a busy machine may stall for half of that
	if daemon != nil {
		daemon.dir = dir
		config.Giveway = daemon.order
		config.RunWith = []string{os.Args[0], "run"}
	}
	return Run(context.Background(), config, cases)
}

func named(t *testing.T, names ...string) []Case {
	t.Helper()
	cases, err := Select(names)
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

func TestPhasesOfSharing(t *testing.T) {
	daemon := &fakeDaemon{}
	var log bytes.Buffer
	saved := 0
	config := Config{Log: &log, Save: func(*Result) { saved++ }}
	r, err := measureFake(t, config, daemon, named(t, "micro-40ms", "weights-3-1")...)
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	if r.Machine.GPU != "Fake GPU" || saved != 2 || len(r.Cases) != 2 {
		t.Errorf("got GPU %q, %d saves, %d cases; want Fake GPU, 2, 2", r.Machine.GPU, saved, len(r.Cases))
	}
	c := r.Cases[0]
	for name, p50 := range map[string]time.Duration{alone: 48900, native: 1504900, underGiveway: 214900} {
		p := c.phase(name)
		if p == nil || p.Latency.P50 != p50 || p.Latency.Count != 100 {
			t.Fatalf("%s: got %+v, want P50 %v of 100 requests", name, p, p50)
		}
		if math.Abs(p.BatchRate-1000) > 100 {
			t.Errorf("%s: got batch rate %g, want 1000", name, p.BatchRate)
		}
	}
	g := c.phase(underGiveway)
	if math.Abs(g.VsAlone.P50-214.9/48.9) > 1e-6 || math.Abs(g.VsNative.P99-219.8/1509.8) > 1e-6 || math.Abs(*g.Kept-1) > 0.1 {
		t.Errorf("got ratios %+v and %+v, kept %v", g.VsAlone, g.VsNative, *g.Kept)
	}
	if want := []string{"set --class online --weight 1", "set --class batch --weight 1", "set --class batch --weight 3", "set --class batch --weight 1"}; !slices.Equal(daemon.orders, want) {
		t.Errorf("got orders %q, want %q", daemon.orders, want)
	}
	var file bytes.Buffer
	if err := r.WriteJSON(&file); err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(file.Bytes(), &back); err != nil || len(back.Cases[0].Phases[0].Online[0].SamplesUs) != 100 {
		t.Errorf("the JSON does not read back: %v", err)
	}
}

func TestTracesOfPhases(t *testing.T) {
	var dumps []string
	dir := t.TempDir()
	config := Config{Length: 100 * ms, Traces: dir, Ask: func(args ...string) []byte {
		if args[0] == "trace" {
			dumps = append(dumps, strings.Join(args, " "))
			if len(dumps) > 1 { // the first fails
				_ = os.WriteFile(args[3], nil, 0o600)
			}
		}
		return nil
	}}
	r, err := measureFake(t, config, &fakeDaemon{}, named(t, "eight")...)
	if err != nil {
		t.Fatal(err)
	}
	if want := "trace dump -o " + dir + "/eight-giveway-online-idle.pftrace"; len(dumps) != 5 || !slices.Contains(dumps, want) {
		t.Errorf("got %q, want a trace of each of the five phases, one of them by %q", dumps, want)
	}
	if notes := r.Cases[0].Notes; len(notes) != 1 || !strings.Contains(notes[0], "alone: no trace was written to "+dir) {
		t.Errorf("got notes %q, want one of the trace that could not be written", notes)
	}
}

func TestManyClients(t *testing.T) {
	r, err := measureFake(t, Config{}, nil, named(t, "poisson")...)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range r.Cases[0].Phases {
		names = append(names, p.Name)
	}
	if want := []string{alone, onlineOnly, "native, online idle", native}; !slices.Equal(names, want) {
		t.Errorf("without a daemon: got phases %q, want %q", names, want)
	}
	p := r.Cases[0].phase(native)
	if p.Latency.Count != 500 || len(p.Batch) != 5 || math.Abs(p.BatchRate-5000) > 500 {
		t.Errorf("got %d requests, %d batch clients at %g/s; want 500, 5, 5000", p.Latency.Count, len(p.Batch), p.BatchRate)
	}
}

func TestPause(t *testing.T) {
	daemon := &fakeDaemon{}
	r, err := measureFake(t, Config{}, daemon, named(t, "pause")...)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Cases[0]
	if p := c.phase(pausedPhase); p.BatchRate != 0 {
		t.Errorf("got %g/s while paused, want 0", p.BatchRate)
	}
	if p := c.phase(resumedPhase); math.Abs(*p.Kept-1) > 0.1 {
		t.Errorf("got %g of the rate after resuming, want 1", *p.Kept)
	}
	if math.Abs(c.Pause.StoppedAfterUs) > 300e3 {
		t.Errorf("got the last completion %g us after the pause, want within 300 ms", c.Pause.StoppedAfterUs)
	}
	if r, _ := measureFake(t, Config{}, nil, named(t, "pause")...); r.Cases[0].Skipped == "" {
		t.Error("without a daemon: want the case skipped")
	}
}

// TestFailedCaseReportsItsError also checks that the next case is measured.
func TestFailedCaseReportsItsError(t *testing.T) {
	good := named(t, "micro-212us")[0]
	wants := map[string]string{
		"at-start": "start batch: batch: ended before it was ready: cuInit: CUDA_ERROR_NO_DEVICE (100): none",
		"json":     `ended before it was ready: sent a line that is not JSON: "Segmentation fault\n"`,
		"soon":     "batch: ended during the measurement: core dumped",
	}
	var cases []Case
	for breaks := range wants {
		bad := good
		bad.Name, bad.Batch = breaks, load("batch", "batch", 1, "--breaks "+breaks)
		cases = append(cases, bad)
	}
	daemon := &fakeDaemon{err: errors.New("no such process")}
	r, err := measureFake(t, Config{}, daemon, append(cases, good)...)
	for _, c := range r.Cases[:3] {
		if want := wants[c.Name]; !strings.Contains(c.Error, want) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %q, want %q", c.Name, c.Error, want)
		}
	}
	if c := r.Cases[3]; !strings.HasPrefix(c.Error, "set online (pid ") || c.phase(native) == nil {
		t.Errorf("the next case: got error %q, phases %v; want an error after phase native", c.Error, c.Phases)
	}
}

func TestMissingClientProgram(t *testing.T) {
	_, err := Run(context.Background(), Config{Client: []string{"/nowhere/giveway-bench"}}, Cases())
	if err == nil || !strings.Contains(err.Error(), "calibrate: /nowhere/giveway-bench") {
		t.Error(err)
	}
}

func TestSkippedTorchCaseHasTheReason(t *testing.T) {
	python := filepath.Join(t.TempDir(), "python3")
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho Traceback >&2\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := measureFake(t, Config{Python: python}, nil, named(t, "torch")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		if !strings.HasSuffix(c.Skipped, "ModuleNotFoundError: No module named 'torch'") {
			t.Errorf("got reason %q, want the last line of the error", c.Skipped)
		}
	}
}

func TestSelect(t *testing.T) {
	if c := named(t, "weights", "micro-40ms"); len(c) != 3 || c[0].Name != "micro-40ms" {
		t.Errorf("got %v, want micro-40ms and the weights", c)
	}
	if _, err := Select([]string{"macro"}); err == nil {
		t.Error("unknown case: got no error, want one")
	}
	seen := map[string]bool{}
	for _, c := range Cases() {
		if seen[c.Name] || c.About == "" || len(c.Batch) == 0 {
			t.Errorf("case %q: its name is not unique, or it has no description or batch load", c.Name)
		}
		seen[c.Name] = true
	}
	if p := named(t, "poisson")[0]; p.Online[4].Args[5] != "5" || p.Online[0].Args[5] != "1" {
		t.Errorf("got %v, want seeds 1 to 5", p.Online)
	}
}

func TestRateOf(t *testing.T) {
	start := time.Unix(0, 0)
	var progress []timedProgress
	for i := range 10 {
		progress = append(progress, timedProgress{Progress{At: time.Duration(i) * time.Second, Done: int64(i * i)}, start.Add(time.Duration(i) * time.Second)})
	}
	if r, ok := rateOf(progress, start.Add(2*time.Second), start.Add(5500*ms)); !ok || r != 7 { // 4 to 25 in 3 s
		t.Errorf("got rate %g, %v; want 7", r, ok)
	}
	if _, ok := rateOf(progress, start.Add(2*time.Second), start.Add(2500*ms)); ok {
		t.Error("one progress message: got a rate, want none")
	}
}

// sample is a result with every kind of case.
func sample() *Result {
	phase := func(name string, base float64, rates ...float64) Phase {
		p := Phase{Name: name}
		if base > 0 {
			a := &Answered{}
			for i := range 200 {
				a.SamplesUs = append(a.SamplesUs, base+float64(i*i)/1000)
			}
			p.Online = []OnlineResult{newOnlineResult("online", a)}
		}
		for i, r := range rates {
			p.Batch = append(p.Batch, BatchResult{Name: []string{"heavy", "light"}[i], Rate: r})
		}
		p.sum()
		return p
	}
	r := &Result{
		Seconds: 5, Machine: Machine{GPU: "NVIDIA H200", Driver: "NVIDIA UNIX Open Kernel Module 580", Kernel: "6.18"},
		Cases: []CaseResult{
			{Name: "micro-40ms", About: "one against one", Phases: []Phase{phase(alone, 44, 24.9), phase(native, 1521, 24.4), phase(underGiveway, 210, 23.9)}},
			{Name: "weights-3-1", About: "two weights", Phases: []Phase{phase(alone, 0, 4977), phase(native, 0, 2234, 2229), phase(underGiveway, 0, 3578, 1144)}},
			{Name: "pause", About: "paused", Phases: []Phase{phase(alone, 0, 4977), phase(pausedPhase, 0, 0)}, Pause: &PauseResult{700, 900, 350}, Error: "resume 1: gone"},
			{Name: "torch-eager", About: "PyTorch", Skipped: "no PyTorch"},
		},
	}
	for i := range r.Cases {
		c := &r.Cases[i]
		for j := range c.Phases {
			for k := range c.Phases[j].Batch {
				c.Phases[j].Batch[k].AloneRate = c.Phases[0].BatchRate
			}
		}
		c.compare()
	}
	return r
}

func TestTableAndPage(t *testing.T) {
	for file, write := range map[string]func(*Result, *bytes.Buffer) error{
		"table.txt": func(r *Result, b *bytes.Buffer) error { return r.WriteTable(b) },
		"page.html": func(r *Result, b *bytes.Buffer) error { return r.WriteHTML(b) },
	} {
		var got bytes.Buffer
		if err := write(sample(), &got); err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", file)
		if *rewrite {
			if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s differs (check it, then run with -rewrite); got\n%s", golden, &got)
		}
	}
}

func TestRatiosWithoutRequests(t *testing.T) {
	if newRatios(nil, &stats.Summary{Count: 1}) != nil || newRatios(&stats.Summary{}, &stats.Summary{Count: 1}) != nil {
		t.Error("no requests: got ratios, want nil")
	}
}

func TestProgramReturnsItsError(t *testing.T) {
	if err := Program("/bin/echo")("set", 1, "--class", "batch"); err != nil {
		t.Error(err)
	}
	script := filepath.Join(t.TempDir(), "giveway")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho giveway: no daemon >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Program(script)("pause", 1); err == nil || !strings.HasSuffix(err.Error(), "pause: giveway: no daemon") {
		t.Error(err)
	}
}
