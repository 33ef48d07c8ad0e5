package trace

import (
	"encoding/binary"
	"strings"
	"unicode"
)

// Numbers of the fields that the writer uses, from protos/perfetto/trace of Perfetto. Their
// numbers and types are a stable interface: files of any age stay readable.
const (
	tracePacket = 1 // of Trace

	packetClockSnapshot   = 6 // of TracePacket
	packetTimestamp       = 8
	packetSequence        = 10 // trusted_packet_sequence_id
	packetTrackEvent      = 11
	packetInternedData    = 12
	packetSequenceFlags   = 13
	packetTrackDescriptor = 60

	snapshotClocks       = 1 // of ClockSnapshot
	snapshotPrimaryClock = 2
	clockID              = 1 // of ClockSnapshot.Clock
	clockTimestamp       = 2

	internedCategories = 1 // of InternedData
	internedEventNames = 2
	internedArgNames   = 3
	internedID         = 1 // of each of these
	internedText       = 2

	trackUUID          = 1 // of TrackDescriptor
	trackName          = 2
	trackProcess       = 3
	trackParent        = 5
	trackChildOrdering = 11
	trackSiblingRank   = 12
	processPID         = 1 // of ProcessDescriptor
	processName        = 6

	eventCategory  = 3 // of TrackEvent; a number of InternedData
	eventArg       = 4
	eventType      = 9
	eventName      = 10 // a number of InternedData
	eventTrack     = 11
	eventFlow      = 47
	argName        = 1 // of DebugAnnotation; a number of InternedData
	argUint        = 3
	argText        = 6
	orderExplicit  = 3 // of TrackDescriptor.ChildTracksOrdering
	clockRealtime  = 1 // of BuiltinClock
	clockBoottime  = 6 // the clock of timestamps without one of their own
	stateCleared   = 1 // of TracePacket.SequenceFlags: the sequence begins
	needsState     = 2 // the packet uses InternedData
	typeSliceBegin = 1 // of TrackEvent.Type
	typeSliceEnd   = 2
	typeInstant    = 3
)

// message is a message in the protobuf encoding, to which fields are appended.
type message []byte

// Wire types of the encoding.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

func (m *message) tag(field, wire uint64) { *m = binary.AppendUvarint(*m, field<<3|wire) }

func (m *message) uint(field, v uint64) {
	m.tag(field, wireVarint)
	*m = binary.AppendUvarint(*m, v)
}

func (m *message) fixed64(field, v uint64) {
	m.tag(field, wireFixed64)
	*m = binary.LittleEndian.AppendUint64(*m, v)
}

func (m *message) text(field uint64, s string) {
	m.tag(field, wireBytes)
	*m = binary.AppendUvarint(*m, uint64(len(s)))
	*m = append(*m, s...)
}

func (m *message) message(field uint64, of message) {
	m.tag(field, wireBytes)
	*m = binary.AppendUvarint(*m, uint64(len(of)))
	*m = append(*m, of...)
}

// maxText is how many characters of a name or another text the trace has.
const maxText = 120

// clean returns a text that any user may have chosen as one line of valid UTF-8 of bounded
// length.
func clean(s string) string {
	n := 0
	s = strings.Map(func(r rune) rune {
		n++
		switch {
		case n > maxText:
			return -1
		case r == unicode.ReplacementChar || !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s[:min(len(s), 4*maxText)])
	return s
}
