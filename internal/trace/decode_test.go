package trace_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
	"unicode/utf8"
)

// field is a field of a message as Perfetto's .proto files define it.
type field struct {
	name string
	wire uint64 // 0 varint, 1 fixed64, 2 bytes
	of   string // the message that it has; empty: a text or a number
}

// schema has the fields that a trace of ours may have, by message. The numbers are copied
// by hand from protos/perfetto/trace/*.proto and not from the writer: a writer that confuses
// two of them fails.
var schema = map[string]map[uint64]field{
	"Trace": {1: {"packet", 2, "TracePacket"}},
	"TracePacket": {
		6: {"clock_snapshot", 2, "ClockSnapshot"}, 8: {"timestamp", 0, ""}, 10: {"trusted_packet_sequence_id", 0, ""},
		11: {"track_event", 2, "TrackEvent"}, 12: {"interned_data", 2, "InternedData"}, 13: {"sequence_flags", 0, ""},
		60: {"track_descriptor", 2, "TrackDescriptor"}, 1999: {"inputs", 2, ""}, // ours
	},
	"ClockSnapshot": {1: {"clocks", 2, "Clock"}, 2: {"primary_trace_clock", 0, ""}},
	"Clock":         {1: {"clock_id", 0, ""}, 2: {"timestamp", 0, ""}},
	"InternedData": {
		1: {"event_categories", 2, "Interned"}, 2: {"event_names", 2, "Interned"}, 3: {"debug_annotation_names", 2, "Interned"},
	},
	"Interned": {1: {"iid", 0, ""}, 2: {"name", 2, ""}},
	"TrackDescriptor": {
		1: {"uuid", 0, ""}, 2: {"name", 2, ""}, 3: {"process", 2, "ProcessDescriptor"}, 5: {"parent_uuid", 0, ""},
		11: {"child_ordering", 0, ""}, 12: {"sibling_order_rank", 0, ""},
	},
	"ProcessDescriptor": {1: {"pid", 0, ""}, 6: {"process_name", 2, ""}},
	"TrackEvent": {
		3: {"category_iids", 0, ""}, 4: {"debug_annotations", 2, "DebugAnnotation"}, 9: {"type", 0, ""}, 10: {"name_iid", 0, ""},
		11: {"track_uuid", 0, ""}, 47: {"flow_ids", 1, ""},
	},
	"DebugAnnotation": {1: {"name_iid", 0, ""}, 3: {"uint_value", 0, ""}, 6: {"string_value", 2, ""}},
}

// node is a message that was read.
type node struct {
	numbers  map[string][]uint64
	texts    map[string][]string
	messages map[string][]node
}

func (n *node) number(name string) uint64 {
	if v := n.numbers[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return 0
}

func (n *node) text(name string) string {
	if v := n.texts[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

func (n *node) message(name string) *node {
	if v := n.messages[name]; len(v) > 0 {
		return &v[len(v)-1]
	}
	return nil
}

// decode reads a message and fails on a field that it must not have.
func decode(t *testing.T, b []byte, message string) node {
	t.Helper()
	n := node{map[string][]uint64{}, map[string][]string{}, map[string][]node{}}
	for len(b) > 0 {
		var f field
		var wire uint64
		f, wire, b = readTag(t, b, message)
		switch wire {
		case 0:
			v, size := binary.Uvarint(b)
			if size <= 0 {
				t.Fatalf("%s.%s: not a varint", message, f.name)
			}
			n.numbers[f.name] = append(n.numbers[f.name], v)
			b = b[size:]
		case 1:
			n.numbers[f.name] = append(n.numbers[f.name], binary.LittleEndian.Uint64(b))
			b = b[8:]
		case 2:
			length, size := binary.Uvarint(b)
			if size <= 0 || length > uint64(len(b)-size) {
				t.Fatalf("%s.%s: %d bytes are too long", message, f.name, length)
			}
			value := b[size : size+int(length)]
			b = b[size+int(length):]
			if f.of != "" {
				n.messages[f.name] = append(n.messages[f.name], decode(t, value, f.of))
			} else if n.texts[f.name] = append(n.texts[f.name], string(value)); !utf8.Valid(value) {
				t.Fatalf("%s.%s: %q is not valid UTF-8", message, f.name, value)
			}
		}
	}
	return n
}

func readTag(t *testing.T, b []byte, message string) (field, uint64, []byte) {
	t.Helper()
	tag, size := binary.Uvarint(b)
	f, known := schema[message][tag>>3]
	if size <= 0 || !known || f.wire != tag&7 {
		t.Fatalf("%s has field %d of wire type %d (%q), which it must not have", message, tag>>3, tag&7, f.name)
	}
	return f, tag & 7, b[size:]
}

// shown is an event that was read: a slice, or an instant with End equal to Begin.
type shown struct {
	Track    string // the names of the process, if it has one, and of the track
	Category string
	Name     string
	Begin    time.Duration
	End      time.Duration
	Flows    []uint64
	Args     map[string]any
	track    uint64
	instant  bool
}

// reader reads a trace as Perfetto's importer does, and fails where that would drop
// something.
type reader struct {
	t        *testing.T
	names    map[uint64]string
	interned map[string]map[uint64]string
	open     map[uint64][]int // indices of the slices that are open, by track
	events   []shown
}

type timed struct {
	at    uint64
	event *node
	shown shown
}

// read returns the events of a trace.
func read(t *testing.T, trace []byte) []shown {
	t.Helper()
	r := &reader{t: t, names: map[uint64]string{}, interned: map[string]map[uint64]string{}, open: map[uint64][]int{}}
	root := decode(t, trace, "Trace")
	var all []timed
	for i, p := range root.messages["packet"] {
		if p.texts["inputs"] != nil {
			continue
		}
		if i == 0 != (p.number("sequence_flags") == 1) || p.number("trusted_packet_sequence_id") != 1 {
			t.Fatalf("packet %d has flags %d of sequence %d", i, p.number("sequence_flags"), p.number("trusted_packet_sequence_id"))
		}
		if d := p.message("interned_data"); d != nil {
			r.intern(d)
		}
		if d := p.message("track_descriptor"); d != nil {
			r.track(d)
		}
		if e := p.message("track_event"); e != nil {
			if len(p.numbers["timestamp"]) != 1 || p.number("sequence_flags") != 2 {
				t.Fatalf("an event has timestamps %v and flags %d, want one and 2", p.numbers["timestamp"], p.number("sequence_flags"))
			}
			all = append(all, timed{p.number("timestamp"), e, r.event(e)})
		}
	}
	slices.SortStableFunc(all, func(a, b timed) int { return int(int64(a.at) - int64(b.at)) })
	for _, e := range all {
		r.place(e)
	}
	for track, open := range r.open {
		if len(open) > 0 {
			t.Fatalf("%d slices on track %q do not end", len(open), r.names[track])
		}
	}
	return r.events
}

func (r *reader) intern(d *node) {
	for kind, list := range d.messages {
		if r.interned[kind] == nil {
			r.interned[kind] = map[uint64]string{}
		}
		for _, i := range list {
			if _, known := r.interned[kind][i.number("iid")]; known || i.number("iid") == 0 {
				r.t.Fatalf("%s %d is defined twice, or zero", kind, i.number("iid"))
			}
			r.interned[kind][i.number("iid")] = i.text("name")
		}
	}
}

func (r *reader) track(d *node) {
	id := d.number("uuid")
	if _, known := r.names[id]; known || id == 0 {
		r.t.Fatalf("track %d is described twice, or zero", id)
	}
	r.names[id] = d.text("name")
	if p := d.message("process"); p != nil {
		if p.number("pid") == 0 && p.text("process_name") == "" {
			r.t.Fatalf("process %+v has no pid and no name", p)
		}
		r.names[id] = p.text("process_name")
	}
	if parent := d.number("parent_uuid"); parent != 0 {
		name, known := r.names[parent]
		if !known {
			r.t.Fatalf("the parent %d of track %q is not described", parent, r.names[id])
		}
		r.names[id] = name + "/" + r.names[id]
	}
}

// lookUp returns the text with a number.
func (r *reader) lookUp(kind string, id uint64) string {
	s, known := r.interned[kind][id]
	if !known {
		r.t.Fatalf("%s %d is not defined", kind, id)
	}
	return s
}

func (r *reader) event(e *node) shown {
	s := shown{track: e.number("track_uuid"), Flows: e.numbers["flow_ids"], Args: map[string]any{}}
	var known bool
	if s.Track, known = r.names[s.track]; !known {
		r.t.Fatalf("an event is on track %d, which is not described", s.track)
	}
	if e.number("type") == 2 {
		return s
	}
	s.Name, s.Category = r.lookUp("event_names", e.number("name_iid")), r.lookUp("event_categories", e.number("category_iids"))
	for _, a := range e.messages["debug_annotations"] {
		name := r.lookUp("debug_annotation_names", a.number("name_iid"))
		if text, ok := a.texts["string_value"]; ok {
			s.Args[name] = text[0]
		} else {
			s.Args[name] = a.number("uint_value")
		}
	}
	return s
}

func (r *reader) place(e timed) {
	s, at := e.shown, time.Duration(e.at)
	open := r.open[s.track]
	switch e.event.number("type") {
	case 1:
		if len(open) > 0 {
			r.t.Fatalf("slice %q at %v is inside %q on track %q", s.Name, at, r.events[open[0]].Name, s.Track)
		}
		s.Begin = at
		r.open[s.track] = append(open, len(r.events))
		r.events = append(r.events, s)
	case 2:
		if len(open) == 0 {
			r.t.Fatalf("the end at %v on track %q ends no slice", at, s.Track)
		}
		r.events[open[len(open)-1]].End = at
		r.open[s.track] = open[:len(open)-1]
	case 3:
		s.Begin, s.End, s.instant = at, at, true
		r.events = append(r.events, s)
	default:
		r.t.Fatalf("event type %d is not known", e.event.number("type"))
	}
}
