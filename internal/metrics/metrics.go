// Package metrics counts what happens in the daemon and writes it, and the state of the
// node, in Prometheus' text format, version 0.0.4. docs/METRICS.md describes each metric.
//
// The caller leaves out what a user may not see. Command lines are never written: they can
// hold secrets, and each would be a series of its own.
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

// Node is what metrics are made from, as far as the reader may see it.
type Node struct {
	Status    api.Status
	Processes []api.Process // in order of pid
	Delays    api.Delays
	Pressure  api.Pressure
	Tally     *Tally
	Record    uint64 // entries of the record so far
	// Everything: the reader may see the requests, containers and pods of all users.
	// Otherwise it sees those of UID.
	Everything bool
	UID        uint32
}

// Text returns the metrics of a node.
func Text(n *Node) []byte {
	var p page
	st, counted := &n.Status, n.Tally.snapshot()
	p.gauge("giveway_build_info", "The daemon's version; always 1.")
	p.sample(1, "version", st.Version)
	p.gauge("giveway_uptime_seconds", "Time since the daemon was started.")
	p.sample(st.Uptime.Seconds())
	p.policy(st)
	p.guardian(st)
	p.counter("giveway_kernel_log_lines_total", "Wrong guesses at handles. Each may have left a line in the kernel's log.")
	p.sample(float64(st.KernelLogLines))
	p.counter("giveway_record_entries_total", "Entries of the record: decisions, actions, context switches, requests, waits, states, orders and notes.")
	p.sample(float64(n.Record))
	p.devices(st.Devices)
	p.processes(n.Processes)
	p.delays(n.Delays.Classes)
	p.pressure(n.Pressure.Devices)
	p.tally(n, counted)
	p.ofProcesses(n, counted)
	p.gauge("giveway_goroutines", "Goroutines of the daemon.")
	p.sample(float64(st.Goroutines))
	return p.text
}

func (p *page) policy(st *api.Status) {
	p.gauge("giveway_policy_info", "The policy in force; always 1.")
	p.sample(1, "policy", st.Policy.Name)
	p.gauge("giveway_policy_overruled", "1 while a policy is overruled because of a mistake and the vendor's own scheduling is in force.")
	overruled := func(p api.Policy) bool { return p.Overruled != "" }
	p.sample(truth(overruled(st.Policy) || slices.ContainsFunc(st.Policy.Devices, overruled)))
}

// guardian writes whether the guardian and the configuration are as they should be.
func (p *page) guardian(st *api.Status) {
	for _, check := range []struct{ name, metric, help string }{
		{"guardian", "giveway_guardian_up", "1 if the guardian runs; without it nothing is changed."},
		{"configuration", "giveway_config_accepted", "1 if the configuration was accepted when it was last read; 0 if an older one is in force."},
	} {
		p.gauge(check.metric, check.help)
		for _, c := range st.Checks {
			if c.Name == check.name {
				p.sample(truth(c.OK))
				break
			}
		}
	}
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
	p.gauge("giveway_device_reserved_slots", "Hardware slots that are kept free of batch work for online processes.")
	for _, d := range all {
		if d.Slots != nil {
			p.sample(float64(d.Slots.Reserved), "device", d.ID)
		}
	}
	p.counter("giveway_device_state_seconds_total", "Time of a device by what it did: held by a process, switching, idle, unknown.")
	for _, d := range all {
		if l := d.Ledger; l != nil {
			p.sample(l.Held.Seconds(), "device", d.ID, "state", "held")
			p.sample(l.Switching.Seconds(), "device", d.ID, "state", "switching")
			p.sample(l.Idle.Seconds(), "device", d.ID, "state", "idle")
			p.sample(l.Unknown.Seconds(), "device", d.ID, "state", "unknown")
		}
	}
	p.counter("giveway_device_switches_total", "Context switches.")
	for _, d := range all {
		if d.Ledger != nil {
			p.sample(float64(d.Ledger.Switches), "device", d.ID)
		}
	}
	p.counter("giveway_device_preemptions_total", "Visits of a process to a device that the hardware ended although the process had more work.")
	for _, d := range all {
		if d.Ledger != nil {
			p.sample(float64(d.Ledger.Preempted), "device", d.ID)
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

// delays writes which classes waited for which.
func (p *page) delays(all []api.ClassDelay) {
	p.counter("giveway_wait_seconds_total", "Time in which processes of a class had work and were not on the device, by what held it.")
	for _, d := range all {
		p.sample(d.Total.Seconds(), "device", d.Device, "class", d.Class, "holder", d.Holder)
	}
}

// pressure writes the pressure of devices, with the names that node_exporter has for the
// kernel's.
func (p *page) pressure(all []api.DevicePressure) {
	p.counter("giveway_pressure_waiting_seconds_total", "Time in which at least one process waited for the device.")
	for _, d := range all {
		p.sample(d.Some.Total.Seconds(), "device", d.Device)
	}
	p.counter("giveway_pressure_stalled_seconds_total", "Time in which a process waited for the device and no process held it.")
	for _, d := range all {
		p.sample(d.Full.Total.Seconds(), "device", d.Device)
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
func (p *page) sample(v float64, labels ...string) { p.write("", v, labels) }

// write adds a sample with a suffix of the metric's name. A label without a name is left out.
func (p *page) write(suffix string, v float64, labels []string) {
	p.text = append(p.text, p.name...)
	p.text = append(p.text, suffix...)
	sep := byte('{')
	for i := 0; i < len(labels); i += 2 {
		if labels[i] != "" {
			p.text = append(p.text, sep)
			p.text = append(p.text, labels[i]+`="`+escape(labels[i+1])+`"`...)
			sep = ','
		}
	}
	if sep == ',' {
		p.text = append(p.text, '}')
	}
	p.text = append(p.text, ' ')
	p.text = strconv.AppendFloat(p.text, v, 'g', -1, 64)
	p.text = append(p.text, '\n')
}

// histogram adds the samples of a histogram.
func (p *page) histogram(h *histogram, labels ...string) {
	sum := uint64(0)
	for i, n := range h.counts {
		sum += n
		le := "+Inf"
		if i < len(bounds) {
			le = strconv.FormatFloat(bounds[i].Seconds(), 'g', -1, 64)
		}
		p.write("_bucket", float64(sum), append(slices.Clip(labels), "le", le))
	}
	p.write("_sum", h.sum.Seconds(), labels)
	p.write("_count", float64(sum), labels)
}

// escape returns text as the value of a label.
func escape(s string) string { return escapes.Replace(clean(s)) }

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
