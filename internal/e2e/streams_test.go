package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// TestStreamClasses runs two streams of one process (streams.cu): bursts of ten 2 ms kernels on
// one of default priority, and short requests, of eight kernels that the program waits for one by
// one, on one of higher priority. It compares both with --stream-classes and without, and each alone.
// Without the setting the GPU itself lets blocks of the higher priority begin first.
//
// In "equal" both streams have the same bursts, one after another: the comparison of two queues of
// one process that the documents ask for (a ratio above 3).
func TestStreamClasses(t *testing.T) {
	b := newTestbed(t)
	program := b.nvcc("streams.cu")
	b.startDaemon()
	run := func(on bool, mode string, length int) map[string]streamFigures {
		t.Helper()
		flags := []string{"run", "--class", "standard"}
		if on {
			flags = append(flags, "--stream-classes")
		}
		out, err := b.command("giveway", append(flags, "--", program, mode, strconv.Itoa(length))...).CombinedOutput()
		if err != nil {
			t.Fatalf("streams %s: %v\n%s", mode, err, out)
		}
		figures := parseStreams(t, string(out))
		for name, f := range figures {
			if f.Count > 0 {
				b.record(fmt.Sprintf("%s, %s, %s", mode, name, map[bool]string{false: "off", true: "on"}[on]), &f.Summary, values{"per_s": f.rate})
			}
		}
		return figures
	}
	highAlone, lowAlone := run(false, "high", 2)["high"], run(false, "low", 2)["low"]
	off, on := run(false, "both", 5), run(true, "both", 5)
	equalOff, equalOn := run(false, "equal", 4), run(true, "equal", 4)

	us := func(d time.Duration) float64 { return float64(d.Microseconds()) }
	b.record("both", nil, values{
		"high_off_over_on_p50": us(off["high"].P50) / us(on["high"].P50), "high_off_over_on_p99": us(off["high"].P99) / us(on["high"].P99),
		"high_on_over_alone_p50": us(on["high"].P50) / us(highAlone.P50), "low_rate_on_over_off": on["low"].rate / off["low"].rate,
		"low_rate_on_over_alone": on["low"].rate / lowAlone.rate,
	})
	b.record("equal", nil, values{
		"ratio_off": us(equalOff["low"].P50) / us(equalOff["high"].P50), "ratio_on": us(equalOn["low"].P50) / us(equalOn["high"].P50),
	})
	b.atLeast("both: low / high P50 with the setting", us(on["low"].P50)/us(on["high"].P50), 3)
	b.atMost("both: high P50 with the setting / without", us(on["high"].P50)/us(off["high"].P50), 1.05)
	b.atLeast("both: low bursts/s with the setting / without", on["low"].rate/off["low"].rate, 0.5)
	b.atLeast("equal: low / high P50 with the setting", us(equalOn["low"].P50)/us(equalOn["high"].P50), 3)

	// No dependence between the streams makes the program hang. The longest is a hold of 20 ms.
	for _, setting := range []bool{false, true} {
		figures := run(setting, "depends", 10)
		for name, f := range figures {
			b.atMost("depends: "+name+", longest, us", us(f.Max), 1e6)
		}
	}
}

// streamFigures is a line of streams.cu.
type streamFigures struct {
	stats.Summary
	rate float64 // requests per second
}

// parseStreams reads the lines that streams.cu prints.
func parseStreams(t *testing.T, out string) map[string]streamFigures {
	t.Helper()
	figures := map[string]streamFigures{}
	for line := range strings.Lines(out) {
		name, rest, ok := strings.Cut(line, " samples=")
		perKs, samples, _ := strings.Cut(rest, ":")
		rate, err := strconv.Atoi(perKs)
		if !ok || err != nil {
			continue
		}
		var us []float64
		for text := range strings.FieldsSeq(samples) {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			us = append(us, v)
		}
		figures[name] = streamFigures{summarize(us), float64(rate) / 1000}
	}
	if len(figures) == 0 || !strings.Contains(out, "\nok ") {
		t.Fatalf("streams printed\n%s", out)
	}
	return figures
}
