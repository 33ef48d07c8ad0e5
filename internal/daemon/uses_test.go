package daemon

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim/live"
)

const sharedScenario = `
name: shared
devices: [{model: %s}]
clients:
  - {name: serve, class: online, slo: 100ms, shim: %v, arrival: {periodic: 20ms}, kernels: {time: 1ms}}
  - {name: heavy, class: batch, weight: 3, shim: %v, arrival: {closed: 0, depth: 2}, kernels: {time: 3ms}}
  - {name: light, class: batch, weight: 1, shim: %v, arrival: {closed: 0, depth: 2}, kernels: {time: 3ms}}
`

// runShared runs a daemon on a simulated device, with metrics by process.
func runShared(t *testing.T, policy, model string, shim bool) *Daemon {
	t.Helper()
	s, err := scenario.Parse("shared.yaml", fmt.Appendf(nil, sharedScenario, model, shim, shim, shim), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := live.New(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{
		File:     config.Config{Policy: api.Policy{Name: policy}, Metrics: metrics.Labels{PID: true}},
		Guardian: []string{"/usr/bin/env", "DAEMON_TEST=guardian", os.Args[0]},
		Backends: []hal.Backend{b}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runDaemon(t, d))
	return d
}

// scrape is the values of the metrics of a daemon by series.
type scrape map[string]float64

func scrapeOf(t *testing.T, d *Daemon) scrape {
	t.Helper()
	all := scrape{}
	for l := range strings.Lines(scraped(d)) {
		if i := strings.LastIndex(l, " "); !strings.HasPrefix(l, "#") {
			v, err := strconv.ParseFloat(strings.TrimSpace(l[i:]), 64)
			if err != nil {
				t.Fatal(err)
			}
			all[l[:i]] = v
		}
	}
	return all
}

// sum returns the sum of the series of a metric that contain a text.
func (s scrape) sum(name, text string) (sum float64) {
	for series, v := range s {
		if strings.HasPrefix(series, name) && strings.Contains(series, text) {
			sum += v
		}
	}
	return sum
}

// closeTo reports whether a figure differs from another by at most a part of it.
func closeTo(got, want, part float64) bool { return math.Abs(got-want) <= part*want }

// TestDeviceTimeAddsUp: by two scrapes of a daemon, device time by process, switching, idle and
// unknown time are together the time that passed, within 1 %. The figures of a scrape may lag by
// a turn of the loop, so on a busy machine it takes a while until that is less than 1 %.
func TestDeviceTimeAddsUp(t *testing.T) {
	d := runShared(t, "giveway", "nvidia-h200", false)
	pidOf(t, d, "sim: light")
	first, last := scrapeOf(t, d), scrape{}
	more := func(name, text string) float64 { return last.sum(name, text) - first.sum(name, text) }
	const states = "giveway_device_state_seconds_total"
	found := ""
	t.Cleanup(func() { t.Log(found) })
	eventually(t, "the parts are the time that passed", func() bool {
		last = scrapeOf(t, d)
		wall := more("giveway_uptime_seconds", "")
		processes, held := more("giveway_process_device_seconds_total", ""), more(states, `"held"`)
		rest := more(states, `"switching"`) + more(states, `"idle"`) + more(states, `"unknown"`)
		found = fmt.Sprintf("wall %.3f s: processes %.3f, held %.3f, not held %.3f", wall, processes, held, rest)
		return wall > 2 && closeTo(processes+rest, wall, 0.01) && closeTo(processes, held, 0.01)
	})
	if more(states, `"switching"`) <= 0 || more(states, `"held"`) <= 0 {
		t.Errorf("nothing was measured: %v", last)
	}
	if byClass, byProcess := last.sum("giveway_class_device_seconds_total", ""), last.sum("giveway_process_device_seconds_total", ""); !closeTo(byClass, byProcess, 1e-6) {
		t.Errorf("classes have %v s, processes %v s", byClass, byProcess)
	}
}

// TestPromisedAndGiven: with weights 3 and 1 both jobs are promised 3/4 and 1/4 of what they have
// together. The policy giveway gives that. NVIDIA's own scheduling gives each a half.
func TestPromisedAndGiven(t *testing.T) {
	for _, tt := range []struct {
		policy, model string
		shim          bool
		heavy, light  float64 // given for each second promised
	}{
		{"giveway", "nvidia-h200", false, 1, 1},
		{"native", "nvidia-h200", false, 2. / 3, 2},
		{"giveway", "level1-npu", true, 1, 1}, // without a trace
	} {
		t.Run(tt.policy+" "+tt.model, func(t *testing.T) {
			d := runShared(t, tt.policy, tt.model, tt.shim)
			heavy, light := fmt.Sprintf("pid=%q", fmt.Sprint(pidOf(t, d, "sim: heavy"))), fmt.Sprintf("pid=%q", fmt.Sprint(pidOf(t, d, "sim: light")))
			const promised, given = "giveway_process_share_promised_seconds_total", "giveway_process_share_given_seconds_total"
			var s scrape
			found := ""
			t.Cleanup(func() { t.Log(found) })
			eventually(t, "promised and given are as expected", func() bool {
				s = scrapeOf(t, d)
				ph, pl, gh, gl := s.sum(promised, heavy), s.sum(promised, light), s.sum(given, heavy), s.sum(given, light)
				found = fmt.Sprintf("promised %.3f and %.3f s, given %.3f and %.3f s", ph, pl, gh, gl)
				return ph+pl > 1 && closeTo(ph, 3*pl, 0.1) && closeTo(gh, tt.heavy*ph, 0.15) && closeTo(gl, tt.light*pl, 0.15)
			})
			if p, g := s.sum(promised, ""), s.sum(given, ""); !closeTo(p, g, 1e-4) {
				t.Errorf("promised %v s, given %v s", p, g)
			}
			away, back := s.sum("giveway_given_away_seconds_total", ""), s.sum("giveway_taken_back_seconds_total", "")
			if batch, online := s.sum("giveway_class_device_seconds_total", `"batch"`), s.sum("giveway_class_device_seconds_total", `"online"`); away <= batch/2 || away > batch || back <= 0 || back > online*1.01 {
				t.Errorf("batch had %v s, of which %v s were given away; online had %v s, of which %v s were taken back", batch, away, online, back)
			}
			if got := s.sum("giveway_process_given_away_seconds_total", ""); !closeTo(got, away, 1e-6) {
				t.Errorf("processes have %v s of %v s", got, away)
			}
		})
	}
}
