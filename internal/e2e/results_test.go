package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/stats"
)

// resultsEnv names a folder for one JSON file per test. Without it the same JSON is
// only printed, on a line that starts with "RESULT ".
const resultsEnv = "GIVEWAY_RESULTS"

// results is what one test measured and checked; results/README.md describes it.
type results struct {
	Test    string        `json:"test"`
	Started time.Time     `json:"started"`
	Seconds float64       `json:"seconds"`
	Giveway string        `json:"giveway"` // version of the program
	Machine bench.Machine `json:"machine"`
	Rows    []row         `json:"rows"`
	Checks  []check       `json:"checks"`
	Passed  bool          `json:"passed"`
}

// row is one measurement.
type row struct {
	Name    string             `json:"name"`
	Latency *stats.Summary     `json:"latency,omitempty"` // of online requests
	Values  map[string]float64 `json:"values,omitempty"`  // everything else; the unit ends the name
	Note    string             `json:"note,omitempty"`
}

// check is one comparison that can fail the test.
type check struct {
	Name  string  `json:"name"`
	Got   float64 `json:"got"`
	Limit string  `json:"limit"` // "<= 1.4"
	OK    bool    `json:"ok"`
}

func (b *testbed) openResults() {
	version := struct{ Version string }{}
	if out, err := b.command("giveway", "version", "--json").Output(); err == nil {
		_ = json.Unmarshal(out, &version)
	}
	b.results = results{
		Test: b.Name(), Started: time.Now().UTC(), Giveway: version.Version,
		Machine: bench.Machine{
			GPU: calibration.GPU, UUID: calibration.UUID, CUDA: calibration.CUDA, HIP: calibration.HIP, Arch: calibration.Arch,
			Driver: firstLine("/proc/driver/nvidia/version"), Kernel: firstLine("/proc/sys/kernel/osrelease"), CPUs: runtime.NumCPU(),
		},
		Rows: []row{}, Checks: []check{},
	}
	b.Cleanup(b.writeResults)
}

func firstLine(path string) string {
	text, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// writeResults prints the results, and writes them to a file where one is asked for.
func (b *testbed) writeResults() {
	if b.Skipped() {
		return
	}
	b.results.Seconds = time.Since(b.results.Started).Seconds()
	b.results.Passed = !b.Failed()
	line, err := json.Marshal(b.results)
	if err != nil {
		b.Errorf("encode results: %v", err)
		return
	}
	fmt.Printf("RESULT %s\n", line)
	dir := os.Getenv(resultsEnv)
	if dir == "" {
		return
	}
	text, _ := json.MarshalIndent(b.results, "", "  ")
	err = os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, b.results.Test+".json"), append(text, '\n'), 0o644)
	}
	if err != nil {
		b.Errorf("write results: %v", err)
	}
}

// values are the figures of a row besides latencies.
type values = map[string]float64

// record logs one measurement and adds it to the results. latency may be nil.
func (b *testbed) record(name string, latency *stats.Summary, v values, note ...string) {
	b.Helper()
	r := row{Name: name, Latency: latency, Values: v, Note: strings.Join(note, "; ")}
	b.results.Rows = append(b.results.Rows, r)
	line := fmt.Sprintf("%-24s", name)
	if latency != nil {
		line += " " + describe(*latency)
	}
	for _, key := range slices.Sorted(maps.Keys(v)) {
		line += fmt.Sprintf("  %s %.4g", key, v[key])
	}
	b.Log(strings.TrimRight(line+"  "+r.Note, " "))
}

// atMost fails the test when got exceeds the limit.
func (b *testbed) atMost(name string, got, limit float64) {
	b.Helper()
	b.check(check{name, got, fmt.Sprintf("<= %g", limit), got <= limit})
}

// atLeast fails the test when got is below the limit.
func (b *testbed) atLeast(name string, got, limit float64) {
	b.Helper()
	b.check(check{name, got, fmt.Sprintf(">= %g", limit), got >= limit})
}

func (b *testbed) check(c check) {
	b.Helper()
	b.results.Checks = append(b.results.Checks, c)
	if c.OK {
		b.Logf("check %s: %.4g, want %s", c.Name, c.Got, c.Limit)
	} else {
		b.Errorf("check %s: got %.4g, want %s", c.Name, c.Got, c.Limit)
	}
}

func summarize(us []float64) stats.Summary {
	samples := make([]time.Duration, len(us))
	for i, v := range us {
		samples[i] = time.Duration(v * float64(time.Microsecond))
	}
	return stats.Summarize(samples)
}

func describe(s stats.Summary) string {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return fmt.Sprintf("n %d  p50 %.0f  p90 %.0f  p99 %.0f  max %.0f us", s.Count, us(s.P50), us(s.P90), us(s.P99), us(s.Max))
}

// runs are repeated measurements of one setting.
type runs struct {
	latencies []stats.Summary
	rates     []float64
}

func (r *runs) add(latency stats.Summary, rate float64) {
	r.latencies = append(r.latencies, latency)
	r.rates = append(r.rates, rate)
}

// p50, p90, p99 return the median over the runs of that quantile, in microseconds.
func (r *runs) p50() float64 {
	return r.quantile(func(s stats.Summary) time.Duration { return s.P50 })
}

func (r *runs) p90() float64 {
	return r.quantile(func(s stats.Summary) time.Duration { return s.P90 })
}

func (r *runs) p99() float64 {
	return r.quantile(func(s stats.Summary) time.Duration { return s.P99 })
}

func (r *runs) quantile(of func(stats.Summary) time.Duration) float64 {
	var all []float64
	for _, s := range r.latencies {
		all = append(all, float64(of(s))/float64(time.Microsecond))
	}
	return median(all)
}

// rate returns the median over the runs of the batch client's rate.
func (r *runs) rate() float64 { return median(r.rates) }

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return stats.Quantile(of, 0.5)
}
