// Package metrics writes the state of a node in Prometheus' text format, version 0.0.4.
// docs/METRICS.md describes each metric.
//
// It keeps nothing between scrapes. The caller leaves out what a user may not see.
// Command lines are never written: they can hold secrets, and each would be a series of
// its own.
package metrics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
)

// ContentType is the Content-Type of the format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// states are the states of a queue.
var states = []string{"running", "stopping", "stopped", "starting"}

// Text returns the state of a node as metrics. Processes are in order of pid.
func Text(st api.Status, processes []api.Process) []byte {
	var p page
	p.gauge("giveway_build_info", "The daemon's version; always 1.")
	p.sample(1, "version", st.Version)
	p.gauge("giveway_uptime_seconds", "Time since the daemon was started.")
	p.sample(st.Uptime.Seconds())
	p.gauge("giveway_policy_info", "The policy in force; always 1.")
	p.sample(1, "policy", st.Policy.Name)
	p.gauge("giveway_policy_overruled", "1 while a policy is overruled because of a mistake and the vendor's own scheduling is in force.")
	overruled := func(p api.Policy) bool { return p.Overruled != "" }
	p.sample(truth(overruled(st.Policy) || slices.ContainsFunc(st.Policy.Devices, overruled)))
	p.counter("giveway_kernel_log_lines_total", "Wrong guesses at handles. Each may have left a line in the kernel's log.")
	p.sample(float64(st.KernelLogLines))
	p.devices(st.Devices)
	p.processes(processes)
	p.queues(processes)
	p.shims(processes)
	p.requests(processes)
	p.gauge("giveway_goroutines", "Goroutines of the daemon.")
	p.sample(float64(st.Goroutines))
	return p.text
}

func (p *page) devices(all []api.Device) {
	p.gauge("giveway_device_info", "A device that the daemon drives; always 1.")
	for _, d := range all {
		p.sample(1, "device", d.ID, "index", strconv.Itoa(d.Index), "model", d.Model, "backend", d.Backend)
	}
	p.gauge("giveway_device_trace", "1 if the hardware's context-switch trace is read.")
	for _, d := range all {
		p.sample(truth(d.Trace), "device", d.ID)
	}
	p.counter("giveway_device_switching_seconds_total", "Time lost in context switches.")
	for _, d := range all {
		if d.Switching != nil {
			p.sample(d.Switching.Lost.Seconds(), "device", d.ID)
		}
	}
	p.counter("giveway_device_switches_total", "Context switches.")
	for _, d := range all {
		if d.Switching != nil {
			p.sample(float64(d.Switching.Switches), "device", d.ID)
		}
	}
}

func (p *page) processes(all []api.Process) {
	count := map[string]int{}
	paused := 0
	for _, proc := range all {
		count[proc.Class()]++
		if proc.Attrs.Bool(attr.Paused) {
			paused++
		}
	}
	p.gauge("giveway_processes", "Processes on the devices, by class.")
	for _, class := range attr.ClassNames() {
		p.sample(float64(count[class]), "class", class)
	}
	p.gauge("giveway_processes_paused", "Processes that are paused.")
	p.sample(float64(paused))
}

// queues writes the metrics of each queue. A process may have many queues on one device,
// so the queue's id is among the labels.
func (p *page) queues(all []api.Process) {
	each := func(write func(proc *api.Process, q *api.Queue, names []string)) {
		for i := range all {
			for j := range all[i].Queues {
				proc, q := &all[i], &all[i].Queues[j]
				write(proc, q, []string{"device", q.Device, "pid", strconv.Itoa(proc.PID), "queue", strconv.FormatUint(q.ID, 10)})
			}
		}
	}
	p.counter("giveway_queue_served_seconds_total", "Device time.")
	each(func(proc *api.Process, q *api.Queue, names []string) {
		p.sample(q.Served.Seconds(), append(names, "class", proc.Class(), "user", proc.User)...)
	})
	p.gauge("giveway_queue_measured", "1 if the hardware measured the device time; 0 if it is estimated.")
	each(func(_ *api.Process, q *api.Queue, names []string) { p.sample(truth(q.Measured), names...) })
	p.gauge("giveway_queue_on_floor", "1 if the policy gives the queue less than the floor, which gives it the rest.")
	each(func(_ *api.Process, q *api.Queue, names []string) { p.sample(truth(q.OnFloor), names...) })
	p.gauge("giveway_queue_state", "1 for the state of the queue, 0 for the other states.")
	each(func(_ *api.Process, q *api.Queue, names []string) {
		for _, state := range states {
			p.sample(truth(q.State == state), append(names, "state", state)...)
		}
	})
}

// shims writes what the shims in processes report.
func (p *page) shims(all []api.Process) {
	for _, m := range []struct {
		name, help string
		value      func(*api.Shim) float64
	}{
		{"launched_total", "Commands launched.", func(s *api.Shim) float64 { return float64(s.Launched) }},
		{"completed_total", "Commands known to be completed.", func(s *api.Shim) float64 { return float64(s.Completed) }},
		{"holds_total", "Launches that waited at the gate.", func(s *api.Shim) float64 { return float64(s.Holds) }},
		{"held_seconds_total", "Time that threads waited at the gate.", func(s *api.Shim) float64 { return s.HeldFor.Seconds() }},
		{"overruns_total", "Times the bound was exceeded because nothing moved.", func(s *api.Shim) float64 { return float64(s.Overruns) }},
		{"parked_total", "Times the device was taken ahead of a request.", func(s *api.Shim) float64 { return float64(s.Parked) }},
		{"parked_hits_total", "Times a request arrived while the device was held for it.", func(s *api.Shim) float64 { return float64(s.Hits) }},
		{"parked_seconds_total", "Time that the device was held ahead of requests: the most that other processes lost.", func(s *api.Shim) float64 { return s.ParkedFor.Seconds() }},
		{"saved_seconds_total", "Time that requests did not wait because of it, by the shim's estimate.", func(s *api.Shim) float64 { return s.Saved.Seconds() }},
		{"late_requests_total", "Requests that entered the device late.", func(s *api.Shim) float64 { return float64(s.LateRequests) }},
		{"late_early_total", "Of those, requests that the program waited for before the planned moment: wrong guesses.", func(s *api.Shim) float64 { return float64(s.LateEarly) }},
		{"late_seconds_total", "Time for which late entry left the device to others.", func(s *api.Shim) float64 { return s.LateFor.Seconds() }},
	} {
		p.counter("giveway_shim_"+m.name, m.help)
		for _, proc := range all {
			if proc.Shim != nil {
				p.sample(m.value(proc.Shim), "pid", strconv.Itoa(proc.PID))
			}
		}
	}
}

// requests writes how long requests take.
func (p *page) requests(all []api.Process) {
	p.counter("giveway_requests_total", "Requests that finished.")
	for _, proc := range all {
		if proc.Requests != nil {
			p.sample(float64(proc.Requests.Count), "pid", strconv.Itoa(proc.PID))
		}
	}
	p.gauge("giveway_request_seconds", "Time that the last requests took.")
	for _, proc := range all {
		if r := proc.Requests; r != nil {
			p.sample(r.P50.Seconds(), "pid", strconv.Itoa(proc.PID), "quantile", "0.5")
			p.sample(r.P99.Seconds(), "pid", strconv.Itoa(proc.PID), "quantile", "0.99")
		}
	}
}

// truth returns 1 for true.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// page is the text so far. The samples of a metric follow its header.
type page struct {
	text []byte
	name string
}

func (p *page) gauge(name, help string)   { p.head(name, "gauge", help) }
func (p *page) counter(name, help string) { p.head(name, "counter", help) }

func (p *page) head(name, kind, help string) {
	p.name = name
	p.text = fmt.Appendf(p.text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample adds a sample of the last metric. Labels are names and values in turn.
func (p *page) sample(v float64, labels ...string) {
	p.text = append(p.text, p.name...)
	for i := 0; i < len(labels); i += 2 {
		p.text = append(p.text, "{,"[min(i, 1)])
		p.text = append(p.text, labels[i]+`="`+escape(labels[i+1])+`"`...)
	}
	if len(labels) > 0 {
		p.text = append(p.text, '}')
	}
	p.text = append(p.text, ' ')
	p.text = strconv.AppendFloat(p.text, v, 'g', -1, 64)
	p.text = append(p.text, '\n')
}

// escape returns text as the value of a label.
func escape(s string) string { return escapes.Replace(strings.ToValidUTF8(s, "\ufffd")) }

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
