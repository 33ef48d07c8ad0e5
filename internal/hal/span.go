package hal

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// Span is a period in which a device did one thing, as the hardware recorded it. The spans
// of a device follow each other without gap or overlap. So over any period the time that
// processes held the device, the time of switches, the idle time and the unknown time are
// together the time that passed.
type Span struct {
	Begin, End sched.Time // End is not before Begin
	// PID is the process whose context was on the device, or, of a switch, came onto it.
	// An MPS server stands for its clients. Zero: none, or its pid is hidden.
	PID  int
	Kind SpanKind
	Left Departure // of SpanHeld
}

// Length returns how long the span took.
func (s Span) Length() time.Duration { return s.End.Sub(s.Begin) }

// SpanKind says what a device did.
type SpanKind uint8

const (
	SpanUnknown SpanKind = iota // records were lost, or could not be read
	// SpanHeld is a visit or a part of one: Left of its last part is not Stays. A context
	// that is alone on the device stays there while it has no work.
	SpanHeld
	// SpanSwitch is a context switch. Its length is what the switch cost, as far as the
	// hardware records it: an NVIDIA GPU does not record the first part.
	SpanSwitch
	SpanIdle // no context was on the device
)

// Departure says how a visit ended.
type Departure uint8

const (
	Stays       Departure = iota // it goes on in the next span; it has ended if that is another process's, or unknown
	LeftItself                   // the process ran out of work before its slice was over
	Preempted                    // its slice was over, or it was stopped
	LeftUnknown                  // the process ran out of work or was preempted
)

// Ledger is the sum of the spans of a device.
type Ledger struct {
	Held, Switching, Idle, Unknown time.Duration

	Visits    uint64 // that have ended
	Preempted uint64 // of those, the visits that ended so
	Switches  uint64
}

// Add adds a span.
func (l *Ledger) Add(s Span) {
	switch s.Kind {
	case SpanHeld:
		l.Held += s.Length()
		if s.Left != Stays {
			l.Visits++
		}
		if s.Left == Preempted {
			l.Preempted++
		}
	case SpanSwitch:
		l.Switching += s.Length()
		l.Switches++
	case SpanIdle:
		l.Idle += s.Length()
	default:
		l.Unknown += s.Length()
	}
}

// Wall returns the time that the spans cover.
func (l *Ledger) Wall() time.Duration { return l.Held + l.Switching + l.Idle + l.Unknown }
