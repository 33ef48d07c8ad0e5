package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// tally writes what was counted since the daemon was started.
func (p *page) tally(n *Node, t *counts) {
	p.counter("giveway_class_device_seconds_total", "Device time of the processes of a class.")
	for _, k := range slices.SortedFunc(maps.Keys(t.classes), seriesKey.compare) {
		p.sample(t.classes[k].Seconds(), "device", k.device, "class", k.class.String())
	}
	p.uses(t, n.Status.Devices)
	p.requestCounts(t, n.Everything)
	p.head("giveway_wait_before_run_seconds", "histogram", "Time that online processes with work waited for a device, each time that they waited.")
	for _, id := range slices.Sorted(maps.Keys(t.waits)) {
		p.histogram(t.waits[id], "device", string(id))
	}
	p.actions(t)
	p.perDevice("giveway_floor_turns_total", "Times a queue was let run to get its minimum share, the floor.", t.floors, n.Status.Devices)
	p.perDevice("giveway_policy_overrules_total", "Times the policy of the device was overruled.", t.overruled, n.Status.Devices)
	p.inversions(t, n.Status.Devices)
	p.counter("giveway_guardian_starts_total", "Guardians that were started: more than one means that one died.")
	p.sample(float64(t.guardians))
	p.counter("giveway_config_reloads_total", "Times the configuration was read again.")
	p.sample(float64(t.reloads[0]), "result", "accepted")
	p.sample(float64(t.reloads[1]), "result", "refused")
}

// requestCounts writes how long requests took, to readers that may see those of all users.
func (p *page) requestCounts(t *counts, everything bool) {
	p.head("giveway_request_seconds", "histogram", "Time that requests took, by the class of the process.")
	for class := range t.latency {
		if everything {
			p.histogram(&t.latency[class], "class", sched.Class(class).String())
		}
	}
	p.counter("giveway_slo_requests_total", "Requests of processes with an SLO that took no longer than it (met), or longer (missed).")
	for class := range t.met {
		if everything {
			p.sample(float64(t.met[class]), "class", sched.Class(class).String(), "result", "met")
			p.sample(float64(t.missed[class]), "class", sched.Class(class).String(), "result", "missed")
		}
	}
}

// actions writes what the scheduler ordered of the backends.
func (p *page) actions(t *counts) {
	keys := slices.SortedFunc(maps.Keys(t.actions), func(a, b actionKey) int {
		return cmp.Or(cmp.Compare(a.verb, b.verb), cmp.Compare(a.level, b.level))
	})
	labels := func(k actionKey) []string {
		return []string{"verb", k.verb.String(), "level", levelNames[min(int(k.level), levels-1)]}
	}
	p.counter("giveway_actions_total", "Actions of the scheduler by outcome: done, refused, unsupported, gone (the process has exited).")
	for _, k := range keys {
		for outcome, count := range t.actions[k].over {
			p.sample(float64(count), append(labels(k), "outcome", sched.Outcome(outcome).String())...)
		}
	}
	p.head("giveway_action_cost_seconds", "histogram", "Time that the calls to the driver took.")
	for _, k := range keys {
		p.histogram(&t.actions[k].cost, labels(k)...)
	}
	p.head("giveway_preemption_seconds", "histogram", "Time from the order to stop a queue until it was known to be stopped.")
	for level := range t.stops {
		if level > 0 {
			p.histogram(&t.stops[level], "level", levelNames[level])
		}
	}
}

// perDevice writes a count of each device, zero included.
func (p *page) perDevice(name, help string, counts map[sched.DeviceID]uint64, devices []api.Device) {
	p.counter(name, help)
	for _, d := range devices {
		p.sample(float64(counts[sched.DeviceID(d.ID)]), "device", d.ID)
	}
}

// ofProcesses writes the metrics that have labels of processes, if they are wanted.
func (p *page) ofProcesses(n *Node, t *counts) {
	l := t.labels
	if l.Any() {
		p.families(n, t)
	}
	if !l.PID {
		return
	}
	shown := n.Processes[:min(len(n.Processes), l.Series)]
	p.gauge("giveway_processes_left_out", "Processes whose queues and shims have no metrics, because there are too many.")
	p.sample(float64(len(n.Processes) - len(shown)))
	p.queues(n.Processes, shown, l.Series)
	p.shims(shown)
	p.latencies(shown)
}

// families writes the device time and the requests by the labels that are wanted. A reader
// that may not see everything sees the series of its own processes.
func (p *page) families(n *Node, t *counts) {
	labels := func(k seriesKey) []string {
		all := []string{"class", k.class.String()}
		for _, l := range []struct {
			wanted      bool
			name, value string
		}{{t.labels.PID, "pid", k.pid}, {t.labels.User, "user", k.user}, {t.labels.Container, "container", k.container}, {t.labels.Pod, "pod", k.pod}, {t.labels.Namespace, "namespace", k.namespace}} {
			if l.wanted {
				all = append(all, l.name, l.value)
			}
		}
		return all
	}
	each := func(f *family, write func(*series, []string)) {
		for _, k := range f.keys() {
			if s := f.of[k]; n.Everything || !s.shared && s.uid == n.UID {
				write(s, append([]string{"device", k.device}, labels(k)...))
			}
		}
	}
	p.counter("giveway_process_device_seconds_total", "Device time, by the labels that the configuration asks for.")
	each(&t.times, func(s *series, names []string) { p.sample(s.time.Seconds(), names...) })
	p.usesOfProcesses(func(classes []sched.Class, value func(*Use) time.Duration) {
		each(&t.times, func(s *series, names []string) {
			if slices.Contains(classes, s.class) {
				p.sample(value(&s.use).Seconds(), names...)
			}
		})
	})
	p.counter("giveway_process_requests_total", "Requests that are over, by the labels that the configuration asks for.")
	each(&t.requests, func(s *series, names []string) { p.sample(float64(s.requests), names[2:]...) })
	p.counter("giveway_process_slo_requests_total", "Requests of processes with an SLO, met or missed, by the labels that the configuration asks for.")
	each(&t.requests, func(s *series, names []string) {
		p.sample(float64(s.met), append(names[2:], "result", "met")...)
		p.sample(float64(s.missed), append(names[2:], "result", "missed")...)
	})
}

// queues writes the metrics of each queue of the processes that are shown, of at most so many
// series each. A process may have many queues on one device, so the queue's id is among the
// labels.
func (p *page) queues(all, shown []api.Process, most int) {
	count := func(of []api.Process) (n int) {
		for i := range of {
			n += len(of[i].Queues)
		}
		return n
	}
	p.gauge("giveway_queues_left_out", "Queues that have no metrics, because there are too many.")
	p.sample(float64(count(all) - min(count(shown), most)))
	each := func(most int, write func(q *api.Queue, names []string)) {
		for i := range shown {
			proc := &shown[i]
			for j := range proc.Queues[:min(len(proc.Queues), most)] {
				q := &proc.Queues[j]
				most--
				write(q, []string{"device", q.Device, "pid", strconv.Itoa(proc.PID), "queue", strconv.FormatUint(q.ID, 10)})
			}
		}
	}
	p.gauge("giveway_queue_measured", "1 if the hardware measured the device time; 0 if it is estimated.")
	each(most, func(q *api.Queue, names []string) { p.sample(truth(q.Measured), names...) })
	p.gauge("giveway_queue_on_floor", "1 if the policy gives the queue less than the floor, which gives it the rest.")
	each(most, func(q *api.Queue, names []string) { p.sample(truth(q.OnFloor), names...) })
	p.gauge("giveway_queue_state", "1 for the state of the queue, 0 for the other states.")
	each(most/len(states), func(q *api.Queue, names []string) {
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
		{"late_pairs_total", "Pairs of a request that entered at once and the next one, which entered late.", func(s *api.Shim) float64 { return float64(latePairs(s).Pairs) }},
		{"late_given_up_total", "Times late entry was given up for a while because it made requests slower.", func(s *api.Shim) float64 { return float64(latePairs(s).GivenUp) }},
		{"class_holds_total", "Launches that waited for streams of higher priority of the same process.", func(s *api.Shim) float64 { return float64(s.ClassHolds) }},
		{"class_held_seconds_total", "Time that launches waited for streams of higher priority of the same process.", func(s *api.Shim) float64 { return s.ClassHeldFor.Seconds() }},
		{"class_let_go_total", "Launches that did not wait any longer although streams of higher priority were busy.", func(s *api.Shim) float64 { return float64(s.ClassLetGo) }},
	} {
		p.counter("giveway_shim_"+m.name, m.help)
		for _, proc := range all {
			if proc.Shim != nil {
				p.sample(m.value(proc.Shim), "pid", strconv.Itoa(proc.PID))
			}
		}
	}
	p.gauge("giveway_shim_late_ratio", "Latency of requests that entered late over that of the one before, which entered at once: the median, and its 95 % confidence bounds.")
	for _, proc := range all {
		if proc.Shim == nil || latePairs(proc.Shim).Ratio == 0 {
			continue
		}
		pairs, pid := latePairs(proc.Shim), strconv.Itoa(proc.PID)
		p.sample(pairs.Low, "pid", pid, "value", "low")
		p.sample(pairs.Ratio, "pid", pid, "value", "median")
		p.sample(pairs.High, "pid", pid, "value", "high")
	}
}

// latePairs returns what pairs of requests show of late entry.
func latePairs(s *api.Shim) api.LateCompared {
	if s.LateCompared == nil {
		return api.LateCompared{}
	}
	return *s.LateCompared
}

// latencies writes how long the last requests of processes took.
func (p *page) latencies(all []api.Process) {
	for _, q := range []struct {
		name  string
		value func(*api.Requests) time.Duration
	}{
		{"p50", func(r *api.Requests) time.Duration { return r.P50 }},
		{"p99", func(r *api.Requests) time.Duration { return r.P99 }},
	} {
		p.gauge("giveway_process_request_"+q.name+"_seconds", "Time within which so many percent of the last requests of the process were answered; only if there were requests in the last minute.")
		for _, proc := range all {
			if proc.Requests != nil && q.value(proc.Requests) > 0 {
				p.sample(q.value(proc.Requests).Seconds(), "pid", strconv.Itoa(proc.PID))
			}
		}
	}
}
