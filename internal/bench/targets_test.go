package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// targetsOf returns the table of a folder, by what each row begins with, and whether all were met.
func targetsOf(t *testing.T, folder string) (rows []string, met bool) {
	t.Helper()
	var text strings.Builder
	met, err := WriteTargets(&text, folder)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| target") && !strings.HasPrefix(line, "| ---") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	return rows, met
}

// rowsBeginning returns the rows that begin with a target.
func rowsBeginning(rows []string, target string) []string {
	return slices.DeleteFunc(slices.Clone(rows), func(r string) bool { return !strings.HasPrefix(r, "| "+target) })
}

// TestTargetsAgreeWithResults makes the tables of runs on an H200 and compares them with what docs/RESULTS.md
// says of the same files.
func TestTargetsAgreeWithResults(t *testing.T) {
	doc, err := os.ReadFile("../../docs/RESULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	const e, f = "2026-11-16-h200-580.159.04-e", "2026-11-17-h200-580.159.04-f"
	tables := map[string][]string{}
	for _, folder := range []string{e, f} {
		rows, met := targetsOf(t, filepath.Join("../../results", folder))
		if met {
			t.Errorf("%s: all targets are met; want some that were not measured", folder)
		}
		tables[folder] = rows
	}
	for _, c := range []struct {
		folder, target string
		row            []string // parts of one row each
		doc            string
	}{
		{f, "micro-212us, giveway: p50 <= 265us", []string{"| 240us | it 240us / 259us / 276us / 342us, 572,"}, "| 240, 276 us; 0.98 |"},
		{f, "micro-212us, giveway: p99 <= 305us", []string{"| 276us | as above | bench.json | yes |"}, "| 240, 276 us; 0.98 |"},
		{f, "eight, giveway: p99", []string{"| 299us |"}, "| 237, 299 us; 1.04; 13.5 ms |"},
		{e, "eight, giveway: p99", []string{"| 280us |"}, "| 233, 280 us |"},
		{f, "poisson, giveway: p99", []string{"| 885us |"}, "| 433, 885 us; 1.03; 64 ms |"},
		{f, "priority, giveway: ratio of the batch rates >= 32", []string{"| 48.408 |"}, "| 36 to 1 | 48 to 1 |"},
		{e, "priority, giveway: ratio", []string{"| 36.0"}, "| 36 to 1 | 48 to 1 |"},
		{
			f, "many-small-online, giveway: batch/native >= 0.8",
			[]string{"| 1.004 | it 1.26ms / 1.67ms / 4.37ms / 4.38ms, 150", "| 0.898 | it 1.28ms / 1.36ms / 3.19ms / 3.32ms, 200", "| 0.783 | it 1.29ms / 1.62ms / 7.40ms / 15.0ms, 150"},
			"1.26 / 4.37; 467 (1.00). 1.28 / 3.19; 532 (0.90). 1.29 / 7.40; 453 (0.78)",
		},
		{
			f, "many-small-online, giveway: p99/native <= 0.6",
			[]string{"small-first.json | too few requests: 150 of 500 |", "small-second.json | too few requests: 200 of 500 |", "small-third.json | too few"},
			"1.95 / 4.54; 465. 2.42 / 4.17; 592. 2.20 / 3.90; 579",
		},
		{f, "heavy, giveway: batch/native >= 1 ", []string{"| 1.086 | it 1.34ms / 1.48ms / 3.36ms / 11.9ms, 150, batch 132/s; alone 1.27ms"}, "1.34 / 3.36; 132 (1.09)"},
		{f, "pool-small, pool, online idle: batch/native >= 1.25", []string{"| 1.028 | it, batch 551/s;"}, "551 (1.03). 1.24 / 2.25; 637 (1.19)"},
		{f, "pool-small, pool: batch/native", []string{"| 1.19 | it 1.24ms / 1.28ms / 2.25ms / 2.93ms, 150, batch 637/s;"}, "551 (1.03). 1.24 / 2.25; 637 (1.19)"},
		{e, "pool-small, pool: batch/native", []string{"pool.json | yes |"}, "1.20 / 1.26; 1036 (1.50)"},
		{f, "pool-mixed, pool: batch/native", []string{"| not measured: MPS with priority: start resnet50"}, ""},
		{f, "eager-loop-late, late entry auto: batch/native >= 0.75", []string{"| 0.923 | it 6.31ms / 8.74ms / 9.43ms"}, "6.31 / 9.43; 21.8 (0.92)"},
		{e, "decode-late, late entry auto: batch/native >= 0.75", []string{"| NO |"}, "4.64 / 10.1; 13.2 (0.72)"},
		{e, "loop-60us, SLO of 5 ms: batch/native", []string{"| 0.78 | it 896us"}, "0.90 / 2.50; 766, batch 3072 (0.78)"},
		{f, "loop-1us, giveway: p50/alone <= 1.15", []string{"| not measured | - | - | - |"}, ""},
		{f, "all orders of calls", []string{"| 5219 | - | TestShimOrder.json | yes |"}, "5,219 requests entered late"},
		{f, "daemon killed while", []string{"not measured: 38 in TestKilledWithLateEntryAndPool.json, which failed"}, "| 38 times: P50 0.50, max 0.67 s"},
		{f, "launch and wait with late entry", []string{"| 1.014 |"}, "| 1.014, 1.019 |"},
		{f, "burst with late entry", []string{"| 1.019 |"}, "| 1.014, 1.019 |"},
	} {
		got := rowsBeginning(tables[c.folder], c.target)
		if len(got) != len(c.row) {
			t.Errorf("%s, %s: got %d rows, want %d", c.folder, c.target, len(got), len(c.row))
			continue
		}
		for i, want := range c.row {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: got\n%s\nwant %q", c.folder, got[i], want)
			}
		}
		if !strings.Contains(string(doc), c.doc) {
			t.Errorf("docs/RESULTS.md does not say %q of %s", c.doc, c.target)
		}
	}
}

// writeJSONFile writes v to a file of a folder.
func writeJSONFile(t *testing.T, folder, name string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// inRounds returns a phase of five rounds of n requests each, of which the slowest part takes tail.
// Batch work is slower by factor in the last round.
func inRounds(name string, n int, p50, tail time.Duration, batch, factor float64) (p Phase) {
	for round := range rounds {
		a := &Answered{Took: time.Second}
		for i := range n {
			took := p50
			if i >= n-n/50 { // two of a hundred
				took = tail
			}
			a.SamplesUs = append(a.SamplesUs, us(took))
		}
		part := newPhase(name, "")
		part.Online = []OnlineResult{newOnlineResult("online", a)}
		if batch > 0 {
			rate := batch
			if round == rounds-1 {
				rate *= factor
			}
			part.Batch = []BatchResult{{Name: "batch", Rate: rate}}
		}
		part.sum()
		p.merge(part)
	}
	return p
}

// TestTargetsThatAreMissed makes a table of results that miss targets, or do not decide.
func TestTargetsThatAreMissed(t *testing.T) {
	for _, c := range []struct {
		what string
		n    int
		tail time.Duration
		want []string
		met  string
	}{
		{"met", 100, 1140 * time.Microsecond, []string{"| 1.14 (1.14 to 1.14 in 5 rounds) |", "| heavy.json | yes |"}, "yes"},
		{"at the limit", 100, 1150 * time.Microsecond, []string{"| 1.15 (", "| heavy.json | yes |"}, "yes"},
		{"missed", 100, 1160 * time.Microsecond, []string{"| 1.16 (", "| heavy.json | NO |"}, "NO"},
		{"too few", 99, 1140 * time.Microsecond, []string{"too few requests: 495 of 500 |"}, ""},
	} {
		dir := t.TempDir()
		writeJSONFile(t, dir, "heavy.json", &Result{Machine: Machine{GPU: "NVIDIA H200"}, Cases: []CaseResult{{Name: "heavy", Phases: []Phase{
			inRounds(alone, c.n, time.Millisecond, time.Millisecond, 0, 1),
			inRounds(native, c.n, 4*time.Millisecond, 8*time.Millisecond, 100, 1),
			inRounds(underGiveway, c.n, time.Millisecond, c.tail, 101, 0.9),
		}}}})
		rows, met := targetsOf(t, dir)
		if met {
			t.Errorf("%s: all targets are met, want many that were not measured", c.what)
		}
		got := rowsBeginning(rows, "heavy, giveway: p99/alone <= 1.15")
		for _, want := range c.want {
			if len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("%s: got %q, want %q", c.what, got, want)
			}
		}
		// The sum over all rounds is below native's, though four of five are above.
		if got := rowsBeginning(rows, "heavy, giveway: batch/native >= 1 "); len(got) != 1 || !strings.Contains(got[0], "| 0.99 (0.909 to 1.01 in 5 rounds) |") || !strings.HasSuffix(got[0], "| NO |") {
			t.Errorf("%s: got %q, want a sum of 0.99, missed", c.what, got)
		}
	}
}

// TestTargetsOfTests adds up the kills of several files, but not those of a test that failed.
func TestTargetsOfTests(t *testing.T) {
	const kills = "daemon killed while requests enter late, beside a pool: kills >= 200"
	dir := t.TempDir()
	write := func(name string, n int, longest time.Duration, passed bool) {
		writeJSONFile(t, dir, name, map[string]any{"test": killsTest, "passed": passed, "rows": []map[string]any{
			{"name": "all", "values": map[string]float64{"compared_s": 3.5 * float64(n)}},
			{"name": "some kills", "latency": stats.Summary{Count: n, Max: longest}},
		}})
	}
	check := func(target string, want ...string) {
		t.Helper()
		rows, _ := targetsOf(t, dir)
		got := rowsBeginning(rows, target)
		for _, w := range want {
			if len(got) != 1 || !strings.Contains(got[0], w) {
				t.Errorf("got %q, want %q", got, w)
			}
		}
	}
	check(kills, "| not measured | - | - | - |")
	write("a.json", 100, 600*time.Millisecond, true)
	check(kills, "| 100 |", "| NO |")
	write("b.json", 100, 900*time.Millisecond, true)
	check(kills, "| 200 |", "| a.json, b.json | yes |")
	check("the same: longest time until all make progress <= 1.00s", "| 900ms |", "| yes |")
	check("results with late entry equal bit for bit: time compared", "| 700s |", "| yes |")
	write("c.json", 100, 1100*time.Millisecond, true)
	check("the same: longest time", "| 1.10s |", "| NO |")
	write("d.json", 7, time.Millisecond, false)
	check(kills, "| 300 (7 in d.json, which failed) |", "| NO: a test failed |")
	if err := os.WriteFile(filepath.Join(dir, "e.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteTargets(&strings.Builder{}, dir); err == nil || !strings.Contains(err.Error(), "e.json") {
		t.Errorf("a broken file: got error %v, want one that names it", err)
	}
}

// TestCompareWithTheClosestPhase measures alone twice. A phase is compared with the last one before it.
func TestCompareWithTheClosestPhase(t *testing.T) {
	phase := func(name string, took time.Duration) Phase { return inRounds(name, 100, took, took, 0, 1) }
	c := CaseResult{Phases: []Phase{phase(alone, time.Millisecond), phase(native, 6*time.Millisecond), phase(alone, 2*time.Millisecond), phase(inPool, 3*time.Millisecond)}}
	c.compare()
	if got := c.Phases[1].VsAlone.P50; got != 6 {
		t.Errorf("native: got %g of alone, want 6, of the phase before it", got)
	}
	if p := c.Phases[3]; p.VsAlone.P50 != 1.5 || p.VsNative.P50 != 0.5 {
		t.Errorf("got %g of alone and %g of native, want 1.5 and 0.5, of the closest phases", p.VsAlone.P50, p.VsNative.P50)
	}
}

// TestForTargets measures what targets need and nothing else, and finds each target among it.
func TestForTargets(t *testing.T) {
	t.Setenv(fakePool, t.TempDir())
	config := Config{Python: fakePython(t), MPSControl: fakeMPSControl(t, 0), Length: 100 * ms}
	for name, want := range map[string][]string{
		"pool-mixed": {alone, native, alone, inPool, inPoolPredicted},
		"pool-small": {alone, "native, online idle", native, alone, "pool, online idle", inPool, inPoolPredicted},
		"heavy":      {alone, native, underGiveway},
		"many-small": {alone, native, underGiveway},
		"eager-late": {alone, native, lateAuto, "alone, batch on and off", "late entry auto, batch on and off"},
		"loop-60us":  {alone, native, underGiveway, underRun, sloOf5ms},
		"loop-1us":   {alone, native, underGiveway},
	} {
		c := named(t, name)[0].ForTargets()
		r, err := measureFake(t, config, &fakeDaemon{}, c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := phaseNames(r.Cases[0]); !slices.Equal(got, want) {
			t.Errorf("%s: got phases\n%q, want\n%q", name, got, want)
		}
		for _, target := range c.Targets {
			found := slices.ContainsFunc(r.Cases[0].Targets, func(r TargetResult) bool { return r.Phase == target.Phase && r.Figure == target.Figure })
			if !found && target.Figure != LostShare { // only a daemon tells
				t.Errorf("%s: target %v was not measured", name, target)
			}
		}
	}
}
