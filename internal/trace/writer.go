package trace

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"
)

// writer writes tracks and events in Perfetto's format. Each event is written at once. The
// reader sorts events by time; those of one track with the same time stay in the order in
// which they were written. The bufio.Writer keeps the first error.
type writer struct {
	out     *bufio.Writer
	written int64
	tracks  uint64 // number of the last track; zero is the reader's own
	flows   uint64 // number of the last flow

	categories, names, args interned

	packet, event, arg, data message // reused
}

// interned numbers texts, from 1. A text is written when it is first used.
type interned struct {
	field   uint64 // of InternedData
	numbers map[string]uint64
}

// arg is a named value of an event: a number or a text.
type arg struct {
	name   string
	text   string
	number uint64
	isText bool
}

func text(name, value string) arg          { return arg{name: name, text: clean(value), isText: true} }
func number(name string, value uint64) arg { return arg{name: name, number: value} }

func newWriter(w io.Writer) *writer {
	out := &writer{
		out:        bufio.NewWriterSize(w, 1<<16),
		categories: interned{internedCategories, map[string]uint64{}},
		names:      interned{internedEventNames, map[string]uint64{}},
		args:       interned{internedArgNames, map[string]uint64{}},
	}
	out.begin(stateCleared)
	out.end()
	return out
}

// begin begins a packet, and end writes it. All packets are of one sequence.
func (w *writer) begin(flags uint64) {
	w.packet, w.data = w.packet[:0], w.data[:0]
	w.packet.uint(packetSequence, 1)
	w.packet.uint(packetSequenceFlags, flags)
}

func (w *writer) end() {
	if len(w.data) > 0 {
		w.packet.message(packetInternedData, w.data)
	}
	w.arg = w.arg[:0] // the tag and the length of the packet
	w.arg.tag(tracePacket, wireBytes)
	w.arg = binary.AppendUvarint(w.arg, uint64(len(w.packet)))
	_, _ = w.out.Write(w.arg)
	_, _ = w.out.Write(w.packet)
	w.written += int64(len(w.arg) + len(w.packet))
}

// clock says which wall-clock time a time of the trace is.
func (w *writer) clock(at time.Duration, wall time.Time) {
	var snapshot message
	for _, c := range [][2]uint64{{clockBoottime, nanos(at)}, {clockRealtime, uint64(wall.UnixNano())}} {
		var m message
		m.uint(clockID, c[0])
		m.uint(clockTimestamp, c[1])
		snapshot.message(snapshotClocks, m)
	}
	snapshot.uint(snapshotPrimaryClock, clockBoottime)
	w.begin(0)
	w.packet.message(packetClockSnapshot, snapshot)
	w.end()
}

// process opens the track of a process, below which its other tracks are.
func (w *writer) process(pid int, name string) (track uint64) {
	var m, process message
	process.uint(processPID, uint64(pid))
	process.text(processName, name)
	w.tracks++
	m.uint(trackUUID, w.tracks)
	m.message(trackProcess, process)
	m.uint(trackChildOrdering, orderExplicit)
	w.describe(m)
	return w.tracks
}

// track opens a track below another one, or on its own if parent is zero. Tracks with the
// same name and parent are shown as one; rank is their place below the parent.
func (w *writer) track(parent uint64, name string, rank int) (track uint64) {
	var m message
	w.tracks++
	m.uint(trackUUID, w.tracks)
	m.text(trackName, name)
	if parent != 0 {
		m.uint(trackParent, parent)
		m.uint(trackSiblingRank, uint64(rank))
	}
	w.describe(m)
	return w.tracks
}

func (w *writer) describe(descriptor message) {
	w.begin(0)
	w.packet.message(packetTrackDescriptor, descriptor)
	w.end()
}

// flow returns the number of a new flow: an arrow through the events that have it, in order
// of time.
func (w *writer) flow() uint64 {
	w.flows++
	return w.flows
}

// slice writes a slice that is over.
func (w *writer) slice(track uint64, begin, end time.Duration, e event) {
	w.write(typeSliceBegin, track, begin, &e)
	w.close(track, end)
}

// open begins a slice, and close ends the last one of a track that is open.
func (w *writer) open(track uint64, at time.Duration, e event) {
	w.write(typeSliceBegin, track, at, &e)
}

func (w *writer) close(track uint64, at time.Duration) { w.write(typeSliceEnd, track, at, &event{}) }

func (w *writer) instant(track uint64, at time.Duration, e event) {
	w.write(typeInstant, track, at, &e)
}

// event is what is shown of an event.
type event struct {
	category, name string
	flows          []uint64 // zero: none
	args           []arg
}

func (w *writer) write(kind, track uint64, at time.Duration, e *event) {
	w.begin(needsState)
	w.packet.uint(packetTimestamp, nanos(at))
	w.event = w.event[:0]
	w.event.uint(eventType, kind)
	w.event.uint(eventTrack, track)
	if e.name != "" {
		w.event.uint(eventCategory, w.intern(&w.categories, e.category))
		w.event.uint(eventName, w.intern(&w.names, e.name))
	}
	for _, f := range e.flows {
		if f != 0 {
			w.event.fixed64(eventFlow, f)
		}
	}
	for i := range e.args {
		w.addArg(&e.args[i])
	}
	w.packet.message(packetTrackEvent, w.event)
	w.end()
}

func (w *writer) addArg(a *arg) {
	w.arg = w.arg[:0]
	w.arg.uint(argName, w.intern(&w.args, a.name))
	if a.isText {
		w.arg.text(argText, a.text)
	} else {
		w.arg.uint(argUint, a.number)
	}
	w.event.message(eventArg, w.arg)
}

// intern returns the number of a text, and adds a new one to the packet.
func (w *writer) intern(t *interned, s string) uint64 {
	n, known := t.numbers[s]
	if !known {
		n = uint64(len(t.numbers)) + 1
		t.numbers[s] = n
		var m message
		m.uint(internedID, n)
		m.text(internedText, s)
		w.data.message(t.field, m)
	}
	return n
}

// flush writes what is buffered.
func (w *writer) flush() error { return w.out.Flush() }

// nanos returns a time as the format has it: none is before zero.
func nanos(t time.Duration) uint64 { return uint64(max(t, 0)) }
