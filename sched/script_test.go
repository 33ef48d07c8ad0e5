package sched_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "write the output of the scripts in testdata into them")

// TestScripts runs the scenarios in testdata. A script is a list of commands, one
// a line, with the output of each command indented below it. See testdata/README
// for the commands.
func TestScripts(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) == 0 {
		t.Fatal("no scripts in testdata")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, file, string(want))
			switch {
			case bytes.Equal(got, want):
			case *rewrite:
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s has other output (go test -rewrite, then git diff, shows the difference); got:\n%s", file, got)
			}
		})
	}
}

// script is the state of a running script.
type script struct {
	cfg     sched.Config
	choice  sched.PolicyChoice
	plans   plans
	s       *sched.Scheduler // made by the first step
	now     sched.Time
	events  []sched.Event // for the next step
	pending []sched.Action
	out     bytes.Buffer
}

// plans is the policy `script`: it returns the plans that the script gives, by device.
type plans map[sched.DeviceID]sched.Plan

func (p plans) Plan(v *sched.View) sched.Plan {
	if plan, ok := p[v.Devices[0].ID]; ok {
		return plan
	}
	return p[""]
}

func runScript(t *testing.T, file, text string) []byte {
	x := &script{plans: plans{}}
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if strings.HasPrefix(line, "    ") {
			continue // output of an earlier run
		}
		x.out.WriteString(line + "\n")
		if words := strings.Fields(line); len(words) > 0 && words[0][0] != '#' {
			if err := x.command(words[0], parseArgs(words[1:])); err != nil {
				t.Fatalf("%s:%d: %s: %v", file, n+1, line, err)
			}
		}
	}
	return x.out.Bytes()
}

// args are the words after a command: plain ones, and key=value.
type args struct {
	plain []string
	keyed map[string]string
	err   error
}

func parseArgs(words []string) *args {
	a := &args{keyed: map[string]string{}}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			a.keyed[key] = value
		} else {
			a.plain = append(a.plain, w)
		}
	}
	return a
}

// word takes the next plain word, or "".
func (a *args) word() (w string) {
	if len(a.plain) > 0 {
		w, a.plain = a.plain[0], a.plain[1:]
	}
	return w
}

func (a *args) key(key string) (value string, ok bool) {
	value, ok = a.keyed[key]
	delete(a.keyed, key)
	return value, ok
}

func (a *args) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		a.err = err
	}
	return n
}

func (a *args) action() sched.ActionID {
	return sched.ActionID(a.number(strings.TrimPrefix(a.word(), "#")))
}

func (a *args) numberOf(key string) uint64 {
	if s, ok := a.key(key); ok {
		return a.number(s)
	}
	return 0
}

func (a *args) duration(s string) time.Duration {
	if s == "min" {
		return sched.MinSlice
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		a.err = err
	}
	return d
}

func (a *args) durationOf(key string) time.Duration {
	if s, ok := a.key(key); ok {
		return a.duration(s)
	}
	return 0
}

// done returns the error in the arguments, or an error if some are left.
func (a *args) done() error {
	if a.err == nil && len(a.plain)+len(a.keyed) > 0 {
		a.err = fmt.Errorf("unknown arguments %v %v", a.plain, a.keyed)
	}
	return a.err
}

func (x *script) command(name string, a *args) error {
	switch name {
	case "config":
		x.cfg.StallLimit, x.cfg.FloorTurn = a.durationOf("stall"), a.durationOf("turn")
		if s, ok := a.key("floor"); ok && s == "none" {
			x.cfg.Floor = -1
		} else if ok {
			x.cfg.Floor, a.err = strconv.ParseFloat(s, 64)
		}
	case "plan":
		x.plan(a)
	case "policy":
		x.policy(a)
	case "at":
		x.now = sched.Time(a.duration(a.word()))
	case "step":
		if w := a.word(); w != "" {
			x.now = sched.Time(a.duration(w))
		}
		x.step()
	case "show":
		x.show()
	case "done":
		if len(a.plain) == 0 {
			x.outcome(a, 0, sched.Done)
		}
		for len(a.plain) > 0 {
			x.outcome(a, a.action(), sched.Done)
		}
	case "fail":
		id := a.action()
		x.outcome(a, id, parseOutcome(a))
	default:
		x.event(name, a)
	}
	return a.done()
}

// parseOutcome reads the next word as an outcome other than done.
func parseOutcome(a *args) sched.Outcome {
	word := a.word()
	for _, o := range []sched.Outcome{sched.Refused, sched.Unsupported, sched.Gone, sched.Partial} {
		if o.String() == word {
			return o
		}
	}
	a.err = fmt.Errorf("%q is not refused, unsupported, gone or partial", word)
	return sched.Done
}

// parseAbility reads a list such as hold,slice.
func parseAbility(a *args, list string) (can sched.Ability) {
words:
	for _, word := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		for bit := sched.CanHold; bit <= sched.CanBound; bit <<= 1 {
			if bit.String() == word {
				can |= bit
				continue words
			}
		}
		a.err = fmt.Errorf("%q is not an ability", word)
	}
	return can
}

// event adds an event for the next step.
func (x *script) event(name string, a *args) {
	kind := sched.ShutdownStarted
	for kind > 0 && kind.String() != name {
		kind--
	}
	if kind == 0 {
		a.err = fmt.Errorf("unknown command %q", name)
		return
	}
	ev := sched.Event{Kind: kind}
	switch kind {
	case sched.DeviceOpened:
		ev.Device = sched.DeviceID(a.word())
		ev.About = sched.Device{Slice: a.durationOf("slice"), MinSharedSlice: a.durationOf("min-shared-slice"), StopTime: a.durationOf("stop-time")}
		_, ev.About.Serial = a.key("serial")
	case sched.DeviceClosed:
		ev.Device = sched.DeviceID(a.word())
	case sched.ShutdownStarted:
	default:
		ev.Queue = sched.QueueID(a.number(a.word()))
	}
	switch kind {
	case sched.QueueOpened:
		ev.Device, ev.Process = sched.DeviceID(a.word()), sched.ProcessID(a.numberOf("process"))
		can, _ := a.key("can")
		ev.Can, ev.Attr = parseAbility(a, can), attr(a)
	case sched.AttrsChanged:
		ev.Attr = attr(a)
	case sched.Progressed:
		ev.Counters = sched.Counters{Submitted: a.numberOf("submitted"), Launched: a.numberOf("launched"), Completed: a.numberOf("completed")}
	case sched.DeviceTimeMeasured, sched.RequestFinished:
		ev.Duration = a.duration(a.word())
	case sched.ActionDone: // for an action that need not exist
		ev.Action = a.action()
	}
	x.events = append(x.events, ev)
}

func attr(a *args) (at sched.Attr) {
	if s, ok := a.key("class"); ok {
		var err error
		if at.Class, err = sched.ParseClass(s); err != nil {
			a.err = err
		}
	}
	at.Weight, at.Expect, at.SLO = uint32(a.numberOf("weight")), sched.Time(a.durationOf("expect")), a.durationOf("slo")
	_, at.Paused = a.key("paused")
	return at
}

// outcome reports the outcome of a pending action, or of all if id is 0.
func (x *script) outcome(a *args, id sched.ActionID, o sched.Outcome) {
	var rest []sched.Action
	for _, act := range x.pending {
		if id != 0 && act.ID != id {
			rest = append(rest, act)
			continue
		}
		x.events = append(x.events, sched.Event{Kind: sched.ActionDone, Queue: act.Queue, Action: act.ID, Outcome: o})
	}
	if len(rest) == len(x.pending) {
		a.err = fmt.Errorf("no such action is pending")
	}
	x.pending = rest
}

// plan: `plan 1 2:min 3:500us wake=10ms`, `plan invalid`, `plan on=gpu1 4`.
func (x *script) plan(a *args) {
	var p sched.Plan
	on, _ := a.key("on")
	p.Wake = sched.Time(a.durationOf("wake"))
	for w := a.word(); w != ""; w = a.word() {
		if p.Invalid = w == "invalid"; p.Invalid {
			break
		}
		queue, slice, sliced := strings.Cut(w, ":")
		g := sched.Grant{Queue: sched.QueueID(a.number(queue))}
		if count, ok := strings.CutPrefix(slice, "bound-"); ok {
			g.Bound = uint32(a.number(count))
		} else if sliced {
			g.Slice = a.duration(slice)
		}
		p.Grants = append(p.Grants, g)
	}
	x.plans[sched.DeviceID(on)] = p
	x.events = append(x.events, sched.Event{Kind: sched.PlanOffered, Device: sched.DeviceID(on)})
}

// policy: `policy giveway turn=50ms`, `policy script all-devices`, `policy native on=gpu1`.
func (x *script) policy(a *args) {
	name, allDevices := a.word(), a.word() == "all-devices"
	on, _ := a.key("on")
	c := sched.PolicyChoice{Name: name, AllDevices: allDevices, Make: func() sched.Policy { return x.plans }}
	if name != "script" {
		c, a.err = policy.Choose(name, a.keyed)
		a.keyed = nil
	}
	if x.s == nil && on == "" {
		x.choice = c
		return
	}
	x.events = append(x.events, sched.Event{Kind: sched.PolicyChosen, Device: sched.DeviceID(on), Choice: c})
}

func (x *script) step() {
	if x.s == nil {
		x.s = sched.New(x.cfg, x.choice)
	}
	actions, wake := x.s.Step(x.now, x.events)
	x.events = x.events[:0]
	for _, act := range actions {
		x.print("%v", act)
		x.pending = append(x.pending, act)
	}
	if wake == sched.Never {
		x.print("wake never")
	} else {
		x.print("wake %v", time.Duration(wake))
	}
}

// show prints every device and queue.
func (x *script) show() {
	device := sched.DeviceID("")
	for _, q := range x.s.Queues(nil) {
		if q.Device != device {
			device = q.Device
			if mistake, since, yes := x.s.Overruled(device); yes {
				x.print("%s: overruled since %v: %v", device, time.Duration(since), mistake)
			} else {
				x.print("%s:", device)
			}
		}
		x.out.WriteString(fmt.Sprintf("      %d %v %v", q.ID, q.Attr.Class, q.State))
		if q.Slice != 0 {
			x.out.WriteString(fmt.Sprintf(" slice=%v", strings.Replace(q.Slice.String(), "1ns", "min", 1)))
		}
		if q.Bound != 0 {
			x.out.WriteString(fmt.Sprintf(" bound=%d", q.Bound))
		}
		if q.OpenRequests != 0 {
			x.out.WriteString(fmt.Sprintf(" open=%d", q.OpenRequests))
		}
		if q.Draining() {
			x.out.WriteString(" draining")
		}
		x.out.WriteString(fmt.Sprintf(" can=%v served=%v\n", q.Can, q.Served))
	}
	if x.s.Settled() {
		x.print("all queues run with the device defaults")
	}
}

func (x *script) print(format string, a ...any) {
	x.out.WriteString("    " + fmt.Sprintf(format, a...) + "\n")
}
