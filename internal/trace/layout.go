package trace

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// process is one device in one run.
type process struct {
	name     string
	threads  []thread // in the order they are shown
	actions  []scenario.TimedAction
	parallel bool // queues run side by side
	segments []sim.Segment
	names    map[sched.QueueID]string // of the clients; queue 0 is a switch
}

// thread is a row of slices that do not overlap, by time.
type thread struct {
	name   string
	slices []sim.Segment
}

// layOut divides a run into processes, in the order in which the clients, and then
// the segments, name their devices.
func layOut(r *scenario.Run) []process {
	devices := devicesOf(r)
	index := make(map[sched.DeviceID]int, len(devices))
	all := make([]process, len(devices))
	for i, id := range devices {
		index[id] = i
		all[i] = process{name: r.Policy + ": " + string(id), names: map[sched.QueueID]string{0: "switch"}}
	}
	deviceOf := make(map[sched.QueueID]int)
	for _, c := range r.Result.Clients {
		if c.Queue != 0 {
			deviceOf[c.Queue] = index[c.Device]
			all[index[c.Device]].names[c.Queue] = c.Name
		}
	}
	for _, s := range r.Result.Segments {
		p := &all[index[s.Device]]
		p.segments = append(p.segments, s)
	}
	for _, a := range r.Actions {
		p := &all[deviceOf[a.Action.Queue]] // an unknown queue goes to the first device
		p.actions = append(p.actions, a)
	}
	for i := range all {
		all[i].arrange(r.Result.Clients, devices[i])
	}
	return all
}

// devicesOf lists the devices of a run, at least one if the run has actions.
func devicesOf(r *scenario.Run) []sched.DeviceID {
	var ids []sched.DeviceID
	add := func(id sched.DeviceID) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, c := range r.Result.Clients {
		add(c.Device)
	}
	for _, s := range r.Result.Segments {
		add(s.Device)
	}
	if len(ids) == 0 && len(r.Actions) > 0 {
		add("no device")
	}
	return ids
}

// arrange sorts the process's segments into threads.
func (p *process) arrange(clients []sim.ClientResult, device sched.DeviceID) {
	slices.SortStableFunc(p.actions, func(a, b scenario.TimedAction) int { return cmp.Compare(a.At, b.At) })
	p.parallel = scenario.SideBySide(p.segments)
	byQueue := make(map[sched.QueueID][]sim.Segment)
	for _, s := range p.segments {
		byQueue[s.Queue] = append(byQueue[s.Queue], s)
	}
	if p.parallel {
		p.add("switches of the device", byQueue[0])
	} else {
		p.add("device", p.segments)
	}
	for _, c := range clients {
		if c.Device == device && c.Queue != 0 {
			p.add(fmt.Sprintf("%s (%v)", c.Name, c.Class), byQueue[c.Queue])
			delete(byQueue, c.Queue)
		}
	}
	delete(byQueue, 0)
	for _, s := range p.segments { // queues that belong to no client
		if of := byQueue[s.Queue]; of != nil {
			p.add(p.nameOf(s.Queue), of)
			delete(byQueue, s.Queue)
		}
	}
}

// add makes a thread of segments, which are sorted by From. A segment that
// overlaps an earlier one goes to a further thread of the same name.
func (p *process) add(name string, segments []sim.Segment) {
	first := len(p.threads)
	p.threads = append(p.threads, thread{name: name})
	for _, s := range segments {
		i := first
		for i < len(p.threads) && !p.threads[i].free(s.From) {
			i++
		}
		if i == len(p.threads) {
			p.threads = append(p.threads, thread{name: fmt.Sprintf("%s [%d]", name, i-first+1)})
		}
		p.threads[i].slices = append(p.threads[i].slices, s)
	}
}

func (t *thread) free(at sched.Time) bool {
	return len(t.slices) == 0 || t.slices[len(t.slices)-1].To <= at
}

// nameOf returns the name of a queue's client.
func (p *process) nameOf(q sched.QueueID) string {
	if name, known := p.names[q]; known {
		return name
	}
	return fmt.Sprint("queue ", q)
}
