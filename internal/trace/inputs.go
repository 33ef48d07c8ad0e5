package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// packetInputs is the field of TracePacket with a part of the recording of the scheduler's
// inputs. Perfetto gives it no meaning: the number is one of those that it leaves to others,
// and its reader skips it.
const packetInputs = 1999

// maxFile is how much of a file ReadInputs reads.
const maxFile = 512 << 20

// Inputs adds a part of a recording of the scheduler's inputs, for ReadInputs. It reports
// whether there was room for it; after a part for which there was none, none is added.
func (t *Trace) Inputs(part []byte) bool {
	if len(part) == 0 {
		return true
	}
	if t.inputsFull = t.inputsFull || t.w.written+int64(len(part)) > t.limit; t.inputsFull {
		return false
	}
	t.w.packet, t.w.data = t.w.packet[:0], t.w.data[:0]
	t.w.packet.text(packetInputs, string(part))
	t.w.end()
	return true
}

var (
	errNoTrace  = errors.New("it is not a trace of 'giveway trace', or not all of one")
	errNoInputs = errors.New("it has no inputs of the scheduler; record it as root with 'giveway trace record'")
)

// ReadInputs returns the recording of the scheduler's inputs in a trace.
func ReadInputs(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("it is larger than %d MB", maxFile>>20)
	}
	var all []byte
	for len(b) > 0 {
		field, packet, rest, ok := readField(b)
		if !ok || field != tracePacket || packet == nil {
			return nil, errNoTrace
		}
		b = rest
		for len(packet) > 0 {
			field, value, rest, ok := readField(packet)
			if !ok {
				return nil, errNoTrace
			}
			if field == packetInputs {
				all = append(all, value...)
			}
			packet = rest
		}
	}
	if all == nil {
		return nil, errNoInputs
	}
	return all, nil
}

// readField returns the number and the value of the first field; the value is nil if it is
// a number.
func readField(b []byte) (field uint64, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, nil, false
	}
	b = b[n:]
	switch tag & 7 {
	case wireVarint:
		_, n := binary.Uvarint(b)
		return tag >> 3, nil, b[max(n, 0):], n > 0
	case wireFixed64:
		return tag >> 3, nil, b[min(8, len(b)):], len(b) >= 8
	case wireBytes:
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return 0, nil, nil, false
		}
		end := n + int(length)
		return tag >> 3, b[n:end:end], b[end:], true
	}
	return 0, nil, nil, false
}
