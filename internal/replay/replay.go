// Package replay records what a scheduler receives, and replays it: the same inputs give the
// same decisions, so that a user's problem becomes a test case.
//
// A recording begins with the state of the scheduler and of its policies at one moment.
// After that it has, for each Step, the time, the events, and what the scheduler decided.
package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"

	"github.com/giveway/giveway/sched"
)

const magic = "giveway recording 1"

// step is one Step of the scheduler.
type step struct {
	Now       sched.Time
	Events    []sched.Event
	Actions   []sched.Action
	Decisions []sched.Decision
}

// Recording records the Steps of a scheduler. The caller takes what was written from time to
// time, so that memory stays bounded.
type Recording struct {
	sched *sched.Scheduler
	out   []byte
	buf   encoder // reused
	err   error
}

// Begin begins a recording with the state of the scheduler, between two Steps. version is
// that of the program.
func Begin(s *sched.Scheduler, version string) (*Recording, error) {
	r := &Recording{sched: s}
	var head encoder
	head.text(magic)
	head.text(version)
	head.text(typesID())
	r.add(head.out)
	state := encoder{pointers: map[pointerKey]uint64{}}
	state.value(reflect.ValueOf(s).Elem())
	if state.err != nil {
		return nil, fmt.Errorf("record the scheduler: %w", state.err)
	}
	r.add(state.out)
	return r, nil
}

// Step records a Step, after it. It returns an error if the recording cannot go on.
func (r *Recording) Step(now sched.Time, events []sched.Event, actions []sched.Action) error {
	if r.err != nil {
		return r.err
	}
	r.buf.out, r.buf.pointers = r.buf.out[:0], map[pointerKey]uint64{}
	s := step{now, events, actions, r.sched.Decisions()}
	r.buf.value(reflect.ValueOf(&s).Elem())
	if r.err = r.buf.err; r.err == nil {
		r.add(r.buf.out)
	}
	return r.err
}

// add adds a block: its length, a checksum, and its content.
func (r *Recording) add(content []byte) {
	r.out = binary.AppendUvarint(r.out, uint64(len(content)))
	r.out = binary.LittleEndian.AppendUint32(r.out, crc32.ChecksumIEEE(content))
	r.out = append(r.out, content...)
}

// Len returns how many bytes were written and not taken.
func (r *Recording) Len() int { return len(r.out) }

// Take returns what was written since the last call. It ends between two Steps.
func (r *Recording) Take() []byte {
	out := r.out
	r.out = nil
	return out
}

// Result is the result of a replay.
type Result struct {
	Version                           string // of the program that recorded
	Steps, Events, Actions, Decisions int
	First, Last                       sched.Time
	// Difference says where the replay decided differently for the first time; nil: nowhere.
	Difference *Difference
}

// Difference is a Step after which the replay differs.
type Difference struct {
	Step               int // from 1
	At                 sched.Time
	Events             []sched.Event
	Recorded, Replayed Output
}

// Output is what a Step gives.
type Output struct {
	Actions   []sched.Action
	Decisions []sched.Decision
}

// Run replays a recording. It stops at the first difference.
func Run(recording []byte) (res Result, err error) {
	// The state of a file that was made to do harm may be any: the scheduler relies on its own
	// state and does not check it.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: its state is not one of a scheduler (%v)", errDamaged, p)
		}
	}()
	s, rest, version, err := begin(recording)
	if err != nil {
		return res, err
	}
	res.Version = version
	for len(rest) > 0 && res.Difference == nil {
		var content []byte
		if content, rest, err = next(rest); err != nil {
			return res, fmt.Errorf("step %d: %w", res.Steps+1, err)
		}
		var st step
		d := decoder{rest: content}
		d.value(reflect.ValueOf(&st).Elem())
		if d.err != nil || len(d.rest) > 0 {
			return res, fmt.Errorf("step %d: %w", res.Steps+1, cmpErr(d.err))
		}
		res.add(s, &st)
	}
	if res.Steps == 0 {
		return res, errors.New("the recording has no steps")
	}
	return res, nil
}

func cmpErr(err error) error {
	if err == nil {
		return errDamaged
	}
	return err
}

// begin returns the scheduler as it was when the recording began.
func begin(recording []byte) (s *sched.Scheduler, rest []byte, version string, err error) {
	content, rest, err := next(recording)
	if err != nil {
		return nil, nil, "", err
	}
	head := decoder{rest: content}
	if head.text() != magic {
		return nil, nil, "", errors.New("it is not a recording of this program")
	}
	version = head.text()
	if types := head.text(); head.err != nil || types != typesID() {
		return nil, nil, version, fmt.Errorf("it was recorded by version %.40q, whose scheduler has another state; replay it with that version", version)
	}
	if content, rest, err = next(rest); err != nil {
		return nil, nil, version, err
	}
	state := decoder{rest: content}
	s = &sched.Scheduler{}
	state.value(reflect.ValueOf(s).Elem())
	if state.err != nil || len(state.rest) > 0 {
		return nil, nil, version, cmpErr(state.err)
	}
	return s, rest, version, nil
}

// next returns the content of the first block.
func next(b []byte) (content, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || len(b)-size < 4 || n > uint64(len(b)-size-4) {
		return nil, nil, fmt.Errorf("%w: a block is not complete", errDamaged)
	}
	sum := binary.LittleEndian.Uint32(b[size:])
	content, rest = b[size+4:][:n], b[size+4+int(n):]
	if crc32.ChecksumIEEE(content) != sum {
		return nil, nil, fmt.Errorf("%w: a checksum is wrong", errDamaged)
	}
	return content, rest, nil
}

// add replays a step and compares.
func (res *Result) add(s *sched.Scheduler, st *step) {
	actions, _ := s.Step(st.Now, st.Events)
	if res.Steps == 0 {
		res.First = st.Now
	}
	res.Steps++
	res.Last = st.Now
	res.Events += len(st.Events)
	res.Actions += len(st.Actions)
	res.Decisions += len(st.Decisions)
	if slices.Equal(actions, st.Actions) && slices.Equal(s.Decisions(), st.Decisions) {
		return
	}
	res.Difference = &Difference{
		Step: res.Steps, At: st.Now, Events: st.Events,
		Recorded: Output{st.Actions, st.Decisions}, Replayed: Output{slices.Clone(actions), slices.Clone(s.Decisions())},
	}
}
