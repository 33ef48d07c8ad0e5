package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

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

// sharedDevice is a daemon on a simulated device, with metrics by process.
type sharedDevice struct {
	*Daemon
	t    *testing.T
	http http.Client
}

func runShared(t *testing.T, policy, model string, shim bool) *sharedDevice {
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
	socket, _ := serve(t, d)
	var dialer net.Dialer
	return &sharedDevice{d, t, http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}}
}

// scrape is the values of metrics by series.
type scrape map[string]float64

// scrape scrapes the daemon as Prometheus does.
func (d *sharedDevice) scrape() scrape {
	d.t.Helper()
	resp, err := d.http.Get("http://daemon/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	all := scrape{}
	for l := range strings.Lines(string(text)) {
		if i := strings.LastIndex(l, " "); !strings.HasPrefix(l, "#") {
			v, err := strconv.ParseFloat(strings.TrimSpace(l[i:]), 64)
			if err != nil {
				d.t.Fatal(err)
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
// unknown time are together the time that passed, within 1 %. If the machine is too slow for the
// simulation, or for a scrape, the two scrapes are repeated.
func TestDeviceTimeAddsUp(t *testing.T) {
	d := runShared(t, "giveway", "nvidia-h200", false)
	pidOf(t, d.Daemon, "sim: light")
	const states = "giveway_device_state_seconds_total"
	for began := time.Now(); ; {
		first := d.scrape()
		time.Sleep(2 * time.Second)
		last := d.scrape()
		more := func(name, text string) float64 { return last.sum(name, text) - first.sum(name, text) }
		wall, processes, held := more("giveway_uptime_seconds", ""), more("giveway_process_device_seconds_total", ""), more(states, `"held"`)
		switching, idle, unknown := more(states, `"switching"`), more(states, `"idle"`), more(states, `"unknown"`)
		t.Logf("wall %.3f s: processes %.3f, held %.3f, switching %.3f, idle %.3f, unknown %.3f", wall, processes, held, switching, idle, unknown)
		if byClass, byProcess := last.sum("giveway_class_device_seconds_total", ""), last.sum("giveway_process_device_seconds_total", ""); !closeTo(byClass, byProcess, 1e-6) {
			t.Errorf("classes have %v s, processes %v s", byClass, byProcess)
		}
		if held > 1 && switching > 0 && closeTo(processes+switching+idle+unknown, wall, 0.01) && closeTo(processes, held, 0.01) {
			return
		}
		switch {
		case time.Since(began) < time.Minute:
		case unknown > wall/20: // the simulation does not know what happened while it had no CPU
			t.Skip("for a minute the machine was too slow for the simulation")
		default:
			t.Fatal("the parts are not the time that passed")
		}
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
			heavy, light := fmt.Sprintf("pid=%q", fmt.Sprint(pidOf(t, d.Daemon, "sim: heavy"))), fmt.Sprintf("pid=%q", fmt.Sprint(pidOf(t, d.Daemon, "sim: light")))
			const promised, given = "giveway_process_share_promised_seconds_total", "giveway_process_share_given_seconds_total"
			var s scrape
			found := ""
			t.Cleanup(func() { t.Log(found) })
			eventually(t, "promised and given are as expected", func() bool {
				s = d.scrape()
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
