package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/giveway/giveway/sched"
)

// writer writes one event per line and numbers processes and threads. The
// bufio.Writer keeps the first error.
type writer struct {
	*bufio.Writer
	// last is the last number used. Processes and threads share one sequence: the
	// importer takes a thread with its process's number for the main thread.
	last  int
	wrote bool
}

// event is one event of the trace. Each kind of event uses some of the fields.
type event struct {
	Phase    string      `json:"ph"`
	Name     string      `json:"name"`
	Category string      `json:"cat,omitempty"`
	Process  int         `json:"pid"`
	Thread   int         `json:"tid,omitempty"`
	At       json.Number `json:"ts,omitempty"`
	Length   json.Number `json:"dur,omitempty"`
	Scope    string      `json:"s,omitempty"`
	Args     any         `json:"args,omitempty"`
}

// Phases of events.
const (
	complete = "X"
	instant  = "i"
	counter  = "C"
	metadata = "M"
)

type args map[string]any

type actionArgs struct {
	ID    sched.ActionID `json:"action"`
	Queue sched.QueueID  `json:"queue"`
	Level *sched.Level   `json:"level,omitempty"`
	Slice string         `json:"slice,omitempty"`
	Bound *uint32        `json:"bound,omitempty"`
}

func (w *writer) event(e event) {
	if w.wrote {
		_ = w.WriteByte(',')
	}
	w.wrote = true
	_ = w.WriteByte('\n')
	line, _ := json.Marshal(e) // it has only strings and numbers
	_, _ = w.Write(line)
}

// openProcess names the next process and returns its number. Processes and threads
// are shown in the order in which they were opened.
func (w *writer) openProcess(name string) int {
	w.last++
	w.describe("process", name, w.last, 0)
	return w.last
}

// openThread names the next thread of a process and returns its number.
func (w *writer) openThread(name string, pid int) int {
	w.last++
	w.describe("thread", name, pid, w.last)
	return w.last
}

func (w *writer) describe(what, name string, pid, tid int) {
	w.event(event{Phase: metadata, Name: what + "_name", Process: pid, Thread: tid, Args: args{"name": name}})
	w.event(event{Phase: metadata, Name: what + "_sort_index", Process: pid, Thread: tid, Args: args{"sort_index": w.last}})
}

func (w *writer) process(p *process) {
	pid := w.openProcess(p.name)
	for i := range p.threads {
		if i == 1 {
			w.actions(p, pid) // between the device and the clients
		}
		w.thread(p, &p.threads[i], pid)
	}
	if len(p.threads) <= 1 {
		w.actions(p, pid)
	}
	if p.parallel {
		w.queues(p, pid)
	}
}

func (w *writer) thread(p *process, t *thread, pid int) {
	tid := w.openThread(t.name, pid)
	for _, s := range t.slices {
		category := "run"
		if s.Queue == 0 {
			category = "switch"
		}
		w.event(event{
			Phase: complete, Name: p.nameOf(s.Queue), Category: category, Process: pid, Thread: tid,
			At: micros(s.From), Length: micros(s.To - s.From), Args: args{"queue": s.Queue},
		})
	}
}

func (w *writer) actions(p *process, pid int) {
	if len(p.actions) == 0 {
		return
	}
	tid := w.openThread("scheduler", pid)
	for i, a := range p.actions {
		w.event(event{
			Phase: instant, Name: a.Action.Verb.String() + " " + p.nameOf(a.Action.Queue), Category: "action", Process: pid, Thread: tid,
			At: micros(a.At), Scope: "t", Args: argsOf(a.Action),
		})
		if i+1 == len(p.actions) || p.actions[i+1].At != a.At {
			w.count("actions", "issued", pid, a.At, i+1)
		}
	}
}

func argsOf(a sched.Action) actionArgs {
	args := actionArgs{ID: a.ID, Queue: a.Queue}
	switch a.Verb {
	case sched.Stop, sched.Start:
		args.Level = &a.Level
	case sched.SetSlice:
		switch a.Slice {
		case 0:
			args.Slice = "default"
		case sched.MinSlice:
			args.Slice = "min"
		default:
			args.Slice = a.Slice.String()
		}
	case sched.SetBound:
		args.Bound = &a.Bound
	}
	return args
}

// queues counts the queues that run at a time.
func (w *writer) queues(p *process, pid int) {
	type change struct {
		at sched.Time
		by int
	}
	var changes []change
	for _, s := range p.segments {
		if s.Queue != 0 && s.From < s.To {
			changes = append(changes, change{s.From, 1}, change{s.To, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	count := 0
	for i, c := range changes {
		count += c.by
		if i+1 == len(changes) || changes[i+1].at != c.at {
			w.count("queues", "running", pid, c.at, count)
		}
	}
}

// count sets a counter. Perfetto shows it as "name series".
func (w *writer) count(name, series string, pid int, at sched.Time, count int) {
	w.event(event{Phase: counter, Name: name, Process: pid, At: micros(at), Args: args{series: count}})
}

// micros returns a time in microseconds with nanosecond digits.
func micros(t sched.Time) json.Number {
	return json.Number(fmt.Sprintf("%d.%03d", t/1000, t%1000))
}
