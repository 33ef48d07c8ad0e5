package sim

import (
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// maxSpans is how many spans a device keeps between two readings of its trace. What follows
// is reported as one unknown span.
const maxSpans = 1 << 14

// span is a hal.Span of a queue.
type span struct {
	hal.Span
	q *queue // nil: none
}

// spanLog keeps the spans of a device since its trace was last read. A nil spanLog keeps none.
type spanLog struct {
	spans   []span
	end     sched.Time // of the last span
	full    bool       // spans were lost
	unknown bool       // the trace has failed: every span is unknown
}

// add adds a span from the end of the last one. A span that goes on is kept as one.
func (l *spanLog) add(kind hal.SpanKind, q *queue, end sched.Time, left hal.Departure) {
	if l == nil {
		return
	}
	if l.unknown {
		kind, q, left = hal.SpanUnknown, nil, hal.Stays
	}
	if end == l.end && left == hal.Stays && kind != hal.SpanSwitch {
		return
	}
	s := span{hal.Span{Begin: l.end, End: end, Kind: kind, Left: left}, q}
	l.end = end
	if n := len(l.spans); n > 0 {
		last := &l.spans[n-1]
		l.full = l.full || n == maxSpans
		switch {
		case l.full:
			last.Span, last.q = hal.Span{Begin: last.Begin, End: end}, nil
			return
		case last.Kind == kind && kind != hal.SpanSwitch && last.q == q && last.Left == hal.Stays:
			last.End, last.Left = end, left
			return
		}
	}
	l.spans = append(l.spans, s)
}

// Spans appends the spans of device i since the last call that returned some. It returns
// none until the context-switch trace is read, by DeviceTimes. The pids are those that
// SetPID has set.
func (n *Node) Spans(i int, buf []hal.Span) []hal.Span {
	d := n.w.devices[i]
	if d.spans == nil || d.traceReadAt != n.w.now {
		return buf
	}
	for _, s := range d.spans.spans {
		if s.q != nil {
			s.PID = s.q.pid
		}
		buf = append(buf, s.Span)
	}
	clear(d.spans.spans) // do not keep queues
	d.spans.spans, d.spans.full = d.spans.spans[:0], false
	return buf
}

// SetPID sets the pid that spans of the queue have.
func (q *NodeQueue) SetPID(pid int) { q.q.pid = pid }
