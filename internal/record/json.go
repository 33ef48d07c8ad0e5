package record

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Entries are written as JSON by hand: with encoding/json a stream of 10,000 entries a
// second would take several percent of a core. TestJSON compares the result with api.Entry.

// Names in JSON, indexed by value.
var (
	whatNames   = [...]string{"device", "process", "queue"}
	changeNames = [...]string{"appeared", "gone", "attributes", "policy"}
	spanNames   = [...]string{"unknown", "held", "switch", "idle"}
	leftNames   = [...]string{"stays", "left", "preempted", "unknown"}
	levelNames  = [...]string{"", "hold", "deactivate", "interrupt"}
)

// object writes the fields of a JSON object.
type object struct {
	b     []byte
	comma bool
}

func (o *object) key(name string) {
	if o.comma {
		o.b = append(o.b, ',')
	}
	o.comma = true
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) int(name string, v int64) {
	o.key(name)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) uint(name string, v uint64) {
	o.key(name)
	o.b = strconv.AppendUint(o.b, v, 10)
}

// intIfSet writes a number unless it is zero.
func (o *object) intIfSet(name string, v int64) {
	if v != 0 {
		o.int(name, v)
	}
}

func (o *object) bool(name string, v bool) {
	o.key(name)
	o.b = strconv.AppendBool(o.b, v)
}

// boolIfTrue writes true, or nothing.
func (o *object) boolIfTrue(name string, v bool) {
	if v {
		o.bool(name, v)
	}
}

// word writes a text that needs no escapes.
func (o *object) word(name, v string) {
	o.key(name)
	o.b = append(o.b, '"')
	o.b = append(o.b, v...)
	o.b = append(o.b, '"')
}

// text writes any text unless it is empty.
func (o *object) text(name, v string) {
	if v == "" {
		return
	}
	o.key(name)
	o.b = appendText(o.b, v)
}

func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

func (o *object) open(name string) {
	o.key(name)
	o.b, o.comma = append(o.b, '{'), false
}

func (o *object) close() { o.b, o.comma = append(o.b, '}'), true }

// AppendJSON appends an entry as the JSON of an api.Entry. hide leaves out what only root and
// the affected user may see: most of an order, and the attributes of a process that are not
// public.
func (e *Entry) AppendJSON(b []byte, hide bool) []byte {
	o := object{b: append(b, '{')}
	o.uint("seq", e.Seq)
	o.word("kind", e.Kind.String())
	o.int("at_ns", int64(e.At))
	o.text("device", string(e.Device))
	o.intIfSet("pid", int64(e.PID))
	o.intIfSet("queue", int64(e.Queue))
	switch e.Kind {
	case Decision:
		o.decision(e)
	case Action:
		o.action(e)
	case State:
		o.state(e, hide)
	case Order:
		o.key(e.Kind.String())
		text, _ := json.Marshal(e.order(hide)) // there are few orders
		o.b = append(o.b, text...)
	case Note:
		o.open("note")
		o.key("name")
		o.b = appendText(o.b, e.Text)
		if e.Words != nil {
			o.text("text", e.Words.Note)
		}
		o.close()
	default:
		o.period(e)
	}
	return append(o.b, '}')
}

func (o *object) decision(e *Entry) {
	o.open("decision")
	o.uint("number", e.Number)
	o.key("policy")
	o.b = appendText(o.b, e.Text)
	o.bool("run", e.Run)
	o.word("reason", e.Reason.String())
	o.intIfSet("slice_ns", int64(e.Slice))
	o.intIfSet("bound", int64(e.Bound))
	o.close()
}

func appendText(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	quoted, _ := json.Marshal(s) // a string can always be marshalled
	return append(b, quoted...)
}

func (o *object) action(e *Entry) {
	o.open("action")
	o.uint("number", e.Number)
	o.word("verb", e.Verb.String())
	o.text("level", e.level())
	o.intIfSet("slice_ns", int64(e.Slice))
	o.intIfSet("bound", int64(e.Bound))
	o.intIfSet("decision", int64(e.Cause))
	o.int("ordered_ns", int64(e.Begin))
	o.int("completed_ns", int64(e.End))
	o.int("cost_ns", int64(e.Cost))
	o.word("outcome", e.Outcome.String())
	o.close()
}

// level returns the name of the level of a stop or a start.
func (e *Entry) level() string {
	if e.Verb != sched.Stop && e.Verb != sched.Start || int(e.Level) >= len(levelNames) {
		return ""
	}
	return levelNames[e.Level]
}

// period writes a span, a request or a wait.
func (o *object) period(e *Entry) {
	o.open(e.Kind.String())
	o.int("begin_ns", int64(e.Begin))
	o.int("end_ns", int64(e.End))
	switch e.Kind {
	case Span:
		o.word("what", spanNames[e.SpanKind%hal.SpanKind(len(spanNames))])
		if e.SpanKind == hal.SpanHeld {
			o.word("left", leftNames[e.Left%hal.Departure(len(leftNames))])
		}
	case Request:
		o.intIfSet("slo_ns", int64(e.Slice))
		o.boolIfTrue("late", e.Late)
		o.boolIfTrue("estimated", e.Estimated)
	case Wait:
		h := holder(e.Holder)
		o.open("holder")
		o.word("kind", h.Kind)
		o.intIfSet("pid", int64(h.PID))
		o.close()
		o.int("held_ns", int64(e.Cost))
		o.boolIfTrue("estimated", e.Estimated)
	}
	o.close()
}

func (o *object) state(e *Entry, hide bool) {
	o.open("state")
	o.word("what", whatNames[e.What])
	o.word("change", changeNames[e.Change])
	if e.What != Device && e.Change != Gone {
		o.word("class", e.Class.String())
		o.boolIfTrue("paused", e.Paused)
		if !hide {
			o.intIfSet("weight", int64(e.Bound))
			o.intIfSet("priority", int64(e.Holder))
			o.intIfSet("slo_ns", int64(e.Slice))
		}
	}
	o.text("policy", e.Text)
	o.close()
}

// order returns the order of an entry, or the part of it that every user may see.
func (e *Entry) order(hide bool) api.Order {
	all := e.Words.Order
	if hide {
		return api.Order{Name: all.Name, Refused: all.Refused}
	}
	return all
}

// The values of Entry.Holder that are no pid.
const (
	heldBySwitch  int32 = -1 - iota // context switches
	heldByNone                      // no context was on the device
	heldByOthers                    // processes that are not listed one by one
	heldByUnknown                   // a process that the daemon does not know; only of classes
)

// holder returns the holder with a pid or one of the values above.
func holder(pid int32) api.Holder {
	switch pid {
	case heldBySwitch:
		return api.Holder{Kind: "switch"}
	case heldByNone:
		return api.Holder{Kind: "idle"}
	case heldByOthers:
		return api.Holder{Kind: "others"}
	}
	return api.Holder{Kind: "process", PID: int(max(pid, 0))}
}

// AppendRecord appends the answer to a query as the JSON of an api.Record. hide reports
// whether the reader may see only a part of an entry.
func (r *Record) AppendRecord(b []byte, q Query, hide func(*Entry) bool) ([]byte, Result) {
	clock := r.Clock()
	o := object{b: append(b, '{')}
	o.int("version", api.RecordVersion)
	o.word("began", clock.Began.Format(time.RFC3339Nano))
	o.word("wall", clock.Wall.Format(time.RFC3339Nano))
	o.int("now_ns", int64(clock.Now))
	o.key("entries")
	o.b = append(o.b, '[')
	first := true
	res := r.Read(q, func(e *Entry) {
		if !first {
			o.b = append(o.b, ',')
		}
		first = false
		o.b = e.AppendJSON(o.b, hide(e))
	})
	o.b = append(o.b, ']')
	o.uint("lost", res.Lost)
	o.uint("next", res.Next)
	o.boolIfTrue("kept_lost", r.keptOf(q.Kinds).oldest() > 0 && r.all.oldest() > 0)
	o.boolIfTrue("more", res.More)
	return append(o.b, '}'), res
}
