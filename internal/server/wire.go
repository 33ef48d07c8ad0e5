package server

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// The messages between the daemon and a front end in a process of its own. A message is
// its length in four bytes and its content; numbers are little-endian.
//
//	front end to daemon: connection (8), operation (1), and for a request its fields, each
//	                     always present; operation 0: the connection is closed; operation
//	                     255: the reply, if it is larger than smallReply, was written
//	daemon to front end: connection (8), status (2), flags (1), body
//
// No connection has the number pingID. A message of the daemon with it is a ping, which the
// front end answers with operation 0 for the same number.
//
// The daemon takes nothing on trust: lengths and counts are bounded, values are checked as
// those of a caller, and a message that is not exactly like this ends the front end.

const (
	maxMessage = 96 << 10 // from a front end: a body of maxBody, and the other fields
	maxReply   = 64 << 20

	opClosed  operation = 0
	opWritten operation = 255
)

// Bits of the flags.
const (
	flagTree = 1 << iota
	flagBegin
	flagEnd
	flagLast
	flagPSI
)

const (
	flagText = 1 << iota
	flagClose
	flagHeld
)

// wireCleared is a bit of the number of an attribute that is cleared.
const wireCleared attr.ID = 0x80

// appendRequest appends a request of a connection to a message.
func appendRequest(b []byte, id uint64, r request) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, id)
	b = append(b, byte(r.op))
	if r.op == opClosed || r.op == opWritten {
		return b
	}
	b = le.AppendUint32(b, uint32(r.pid))
	b = append(b, r.token[:]...)
	ids := r.values.Changes()
	b = append(b, byte(len(ids)))
	for _, id := range ids {
		v, given := r.values.Get(id)
		if !given {
			id |= wireCleared
		}
		b = append(b, byte(id))
		b = le.AppendUint64(b, uint64(v))
	}
	var flags byte
	var begin, end int64
	if r.tree {
		flags |= flagTree
	}
	if r.record.last {
		flags |= flagLast
	}
	if r.psi {
		flags |= flagPSI
	}
	if r.begin != nil {
		flags, begin = flags|flagBegin, *r.begin
	}
	if r.end != nil {
		flags, end = flags|flagEnd, *r.end
	}
	b = append(b, flags)
	b = le.AppendUint64(b, uint64(begin))
	b = le.AppendUint64(b, uint64(end))
	b = appendText(b, r.policy.Name)
	b = appendText(b, r.policy.Device)
	b = append(b, byte(len(r.policy.Params)))
	for _, name := range slices.Sorted(maps.Keys(r.policy.Params)) {
		b = appendText(appendText(b, name), r.policy.Params[name])
	}
	b = le.AppendUint32(le.AppendUint32(b, r.shimVersions.Lowest), r.shimVersions.Highest)
	b = appendText(b, r.shimRuntime)
	b = le.AppendUint64(b, r.record.after)
	b = le.AppendUint16(b, uint16(r.record.kinds))
	b = le.AppendUint16(b, uint16(r.record.limit))
	b = appendText(b, r.device)
	for _, s := range []string{r.container.ID, r.container.PodUID, r.container.Name, r.container.Pod, r.container.Namespace} {
		b = appendText(b, s)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

// fields reads the fields of a message, in order. After the first mistake it returns zeros.
type fields struct {
	rest []byte
	bad  bool
}

var zeros [maxParam]byte

func (f *fields) bytes(n int) []byte {
	if f.bad || n > len(f.rest) {
		f.bad = true
		return zeros[:min(n, len(zeros))]
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) byte() byte     { return f.bytes(1)[0] }
func (f *fields) uint16() uint16 { return binary.LittleEndian.Uint16(f.bytes(2)) }
func (f *fields) uint32() uint32 { return binary.LittleEndian.Uint32(f.bytes(4)) }
func (f *fields) uint64() uint64 { return binary.LittleEndian.Uint64(f.bytes(8)) }

func (f *fields) text(most int) string {
	n := int(binary.LittleEndian.Uint16(f.bytes(2)))
	if n > most {
		f.bad = true
		return ""
	}
	b := f.bytes(n)
	f.bad = f.bad || !utf8.Valid(b)
	return string(b)
}

// values reads attributes, each at most once.
func (f *fields) values() (v attr.Values) {
	known := attr.IDs(0)
	for range f.byte() {
		id, value := attr.ID(f.byte()), int64(f.uint64())
		cleared := id&wireCleared != 0
		id &^= wireCleared
		if f.bad || !slices.Contains(known, id) || slices.Contains(v.Changes(), id) || cleared && value != 0 {
			f.bad = true
			return attr.Values{}
		}
		if v.Set(id, value); cleared {
			v.Clear(id)
		}
	}
	return v
}

func (f *fields) policy() (p api.Policy) {
	p.Name, p.Device = f.text(maxText), f.text(maxText)
	n := int(f.byte())
	if n > maxParams {
		f.bad = true
	}
	for range n {
		if f.bad {
			return p
		}
		if p.Params == nil {
			p.Params = map[string]string{}
		}
		name := f.text(maxText)
		p.Params[name] = f.text(maxParam)
	}
	return p
}

// parseRequest reads a message of a front end.
func parseRequest(message []byte) (id uint64, r request, err error) {
	f := fields{rest: message}
	id, r.op = f.uint64(), operation(f.byte())
	if r.op != opClosed && r.op != opWritten {
		f.request(&r)
	}
	if f.bad || len(f.rest) > 0 {
		return 0, request{}, errors.New("a message of the front end is malformed")
	}
	return id, r, nil
}

func (f *fields) request(r *request) {
	r.pid = int(int32(f.uint32()))
	r.token = sum(f.bytes(len(r.token)))
	r.values = f.values()
	flags := f.byte()
	begin, end := int64(f.uint64()), int64(f.uint64())
	r.tree = flags&flagTree != 0
	if flags&flagBegin != 0 {
		r.begin = &begin
	}
	if flags&flagEnd != 0 {
		r.end = &end
	}
	r.policy = f.policy()
	r.shimVersions = pageabi.Versions{Lowest: f.uint32(), Highest: f.uint32()}
	r.shimRuntime = f.text(maxText)
	r.record = recordQuery{after: f.uint64(), kinds: record.Set(f.uint16()), limit: int(f.uint16()), last: flags&flagLast != 0}
	r.device, r.psi = f.text(maxText), flags&flagPSI != 0
	r.container = api.Container{ID: f.text(maxText), PodUID: f.text(maxText)}
	r.container.ContainerNames = api.ContainerNames{Name: f.text(maxText), Pod: f.text(maxText), Namespace: f.text(maxText)}
	if r.op < opProcesses || r.op > opUnregister || r.pid < 0 || flags > flagTree|flagBegin|flagEnd|flagLast|flagPSI {
		f.bad = true
	}
}

// appendReply appends a reply for a connection to a message.
func appendReply(b []byte, id uint64, a reply) []byte {
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.LittleEndian.AppendUint16(b, uint16(a.status))
	var flags byte
	for bit, set := range map[byte]bool{flagText: a.text, flagClose: a.close, flagHeld: a.held} {
		if set {
			flags |= bit
		}
	}
	return append(append(b, flags), a.body...)
}

// parseReply reads a message of the daemon.
func parseReply(message []byte) (id uint64, a reply, err error) {
	f := fields{rest: message}
	id = f.uint64()
	a.status = int(binary.LittleEndian.Uint16(f.bytes(2)))
	flags := f.byte()
	a.text, a.close, a.held = flags&flagText != 0, flags&flagClose != 0, flags&flagHeld != 0
	if f.bad {
		return 0, reply{}, errors.New("a message of the daemon is malformed")
	}
	a.body = f.rest
	return id, a, nil
}

// readMessage reads one message of at most that many bytes.
func readMessage(r *bufio.Reader, most uint32) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > most {
		return nil, fmt.Errorf("a message has %d bytes, and %d are allowed", n, most)
	}
	message := make([]byte, n)
	_, err := io.ReadFull(r, message)
	return message, err
}

// frame returns a message with its length, as content appends it.
func frame(content func([]byte) []byte) []byte {
	b := content(make([]byte, 4, 256))
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}
