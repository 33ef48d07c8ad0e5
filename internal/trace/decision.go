package trace

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// decision begins the slice of a decision, which ends with the next one about the queue.
func (t *Trace) decision(e *api.Entry, d *api.Decision) {
	q := t.queues[e.Queue]
	if q == nil {
		q = &queue{track: t.w.track(t.process(e.PID).in(t), "decisions", 3)}
		t.queues[e.Queue] = q
	}
	q.end(t.w, e.At)
	name := "waits: "
	if d.Run {
		name = "runs: "
	}
	if d.Reason == "" {
		name += "no reason given"
	}
	args := []arg{
		text("policy", d.Policy), text("reason", d.Reason), number("decision", d.Number),
		text("device", e.Device), number("queue", e.Queue),
	}
	if d.Run {
		args = append(args, text("slice", sliceName(d.Slice)), text("bound", boundName(d.Bound)))
	}
	flow := t.w.flow()
	q.decisions[q.next%len(q.decisions)] = decided{d.Number, flow}
	q.next++
	t.w.open(q.track, e.At, event{category: string(e.Kind), name: name + clean(d.Reason), flows: []uint64{flow}, args: args})
	q.open = true
}

// end ends the slice of the decision in force.
func (q *queue) end(w *writer, at time.Duration) {
	if q.open {
		w.close(q.track, at)
		q.open = false
	}
}

// flow returns the flow of a decision; zero if it is not known.
func (q *queue) flow(number uint64) uint64 {
	if q == nil || number == 0 {
		return 0
	}
	for _, d := range q.decisions {
		if d.number == number {
			return d.flow
		}
	}
	return 0
}

// action writes an action, and notes the effect that is expected of it.
func (t *Trace) action(e *api.Entry, a *api.Action) {
	p := t.process(e.PID)
	p.in(t)
	flow := t.queues[e.Queue].flow(a.Decision)
	if flow == 0 {
		flow = t.w.flow()
	}
	end := max(a.Ordered, a.Completed)
	name := actionName(a)
	if a.Outcome != "done" {
		name += ": " + clean(a.Outcome)
	}
	args := []arg{number("action", a.Number), number("decision", a.Decision), text("outcome", a.Outcome), text("device", e.Device), number("queue", e.Queue)}
	if a.Cost > 0 {
		args = append(args, text("the driver took", a.Cost.String()))
	}
	t.w.slice(p.actions.free(t.w, a.Ordered, end), a.Ordered, end, event{category: string(e.Kind), name: name, flows: []uint64{flow}, args: args})
	if a.Outcome == "done" && e.Device != "" {
		d := t.device(e.Device)
		d.effects = append(d.effects, effect{pid: e.PID, comes: a.Verb == "start", ordered: a.Ordered, flow: flow})
	}
}

func actionName(a *api.Action) string {
	switch a.Verb {
	case "stop", "start":
		return a.Verb + " (" + clean(a.Level) + ")"
	case "slice":
		return "slice " + sliceName(a.Slice)
	case "bound":
		return "bound " + boundName(a.Bound)
	}
	return clean(a.Verb)
}

func sliceName(d time.Duration) string {
	switch d {
	case 0:
		return "default"
	case sched.MinSlice:
		return "minimum"
	}
	return d.String()
}

func boundName(n uint32) string {
	if n == 0 {
		return "default"
	}
	return fmt.Sprint(n)
}

// state writes a change of a process, a queue or a device.
func (t *Trace) state(e *api.Entry, s *api.StateChange) {
	if e.PID == 0 {
		name := clean(s.What) + " " + clean(e.Device) + ": " + clean(s.Change)
		t.w.instant(t.track("devices"), e.At, event{category: string(e.Kind), name: name + " " + clean(s.Policy)})
		return
	}
	p := t.process(e.PID)
	if p.gone && s.Change == "appeared" { // another process with the same pid
		delete(t.processes, e.PID)
		p = t.process(e.PID)
	}
	if p.state == 0 {
		p.state = t.w.track(p.in(t), "state", 5)
	}
	name := clean(s.What) + ": " + clean(s.Change)
	var args []arg
	if s.Class != "" {
		args = append(args, text("class", s.Class), number("weight", uint64(s.Weight)), text("priority", fmt.Sprint(s.Priority)), text("SLO", s.SLO.String()))
		name += ", " + clean(s.Class)
	}
	if s.Paused {
		name += ", paused"
	}
	if e.Queue != 0 {
		args = append(args, number("queue", e.Queue), text("device", e.Device))
	}
	t.w.instant(p.state, e.At, event{category: string(e.Kind), name: name, args: args})
	if s.Change == "gone" {
		t.left(e, s, p)
	}
}

// left ends what belongs to a process or a queue that is gone.
func (t *Trace) left(e *api.Entry, s *api.StateChange, p *process) {
	switch s.What {
	case "process":
		p.gone = true
	case "queue":
		if q := t.queues[e.Queue]; q != nil {
			q.end(t.w, e.At)
			delete(t.queues, e.Queue)
		}
	}
}

// order writes an order of a user.
func (t *Trace) order(e *api.Entry, o *api.Order) {
	name := clean(o.Name)
	args := []arg{text("command", o.Command), number("pid of the caller", uint64(max(o.PID, 0))), text("from", o.From), text("to", o.To)}
	if o.UID != nil {
		args = append(args, text("uid of the caller", fmt.Sprint(*o.UID)))
	}
	if e.PID != 0 {
		args = append(args, text("process", t.process(e.PID).label), number("pid", uint64(e.PID)))
	}
	if o.Refused {
		name += ": refused"
		args = append(args, text("reason", o.Reason))
	}
	t.w.instant(t.track("orders"), e.At, event{category: string(e.Kind), name: name, args: args})
}

// note writes a note.
func (t *Trace) note(e *api.Entry, n *api.Note) {
	args := []arg{text("text", n.Text)}
	if e.Device != "" {
		args = append(args, text("device", e.Device))
	}
	if e.Queue != 0 {
		args = append(args, number("queue", e.Queue))
	}
	t.w.instant(t.track("notes"), e.At, event{category: string(e.Kind), name: clean(n.Name), args: args})
}

// track returns the track of a name that belongs to no process and no device.
func (t *Trace) track(name string) uint64 {
	name = t.group + "Giveway " + name
	if t.general[name] == 0 {
		t.general[name] = t.w.track(0, name, 0)
	}
	return t.general[name]
}
