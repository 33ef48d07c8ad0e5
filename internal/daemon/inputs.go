package daemon

import (
	"errors"
	"time"

	"github.com/giveway/giveway/internal/replay"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// Limits of a recording of the scheduler's inputs.
const (
	inputsPatience = 10 * time.Second // until it is read again
	maxInputs      = 16 << 20         // bytes that were not read
)

// inputs is the recording of the scheduler's inputs, from which the decisions can be
// replayed. It is used by the loop only.
type inputs struct {
	recording *replay.Recording // nil: there is none
	readAt    sched.Time
	ended     error // why there is none
}

// step records a Step.
func (in *inputs) step(now sched.Time, events []sched.Event, actions []sched.Action) {
	if in.recording == nil {
		return
	}
	err := in.recording.Step(now, events, actions)
	switch {
	case err != nil:
		in.end(server.Conflict("record inputs: %w", err))
	case now > in.readAt.Add(inputsPatience):
		in.end(server.Conflict("record inputs: the recording was not read for %v", inputsPatience))
	case in.recording.Len() > maxInputs:
		in.end(server.Conflict("record inputs: more than %d MB were not read", maxInputs>>20))
	}
}

func (in *inputs) end(why error) { in.recording, in.ended = nil, why }

var errLoopEnded = errors.New("record inputs: the daemon is ending")

// BeginInputs implements server.Node.
func (d *Daemon) BeginInputs() (part []byte, err error) {
	err = errLoopEnded
	d.events.inLoop(func() {
		in := &d.recorder.inputs
		if in.recording != nil && d.Now() <= in.readAt.Add(inputsPatience) {
			err = server.Conflict("record inputs: another recording is under way; wait until it is over")
			return
		}
		if in.recording, err = replay.Begin(d.sched, d.cfg.Version); err != nil {
			in.recording, err = nil, server.Conflict("%w", err)
			return
		}
		part, in.readAt = in.recording.Take(), d.Now()
	})
	return part, err
}

// NextInputs implements server.Node.
func (d *Daemon) NextInputs(end bool) (part []byte, err error) {
	err = errLoopEnded
	d.events.inLoop(func() {
		in := &d.recorder.inputs
		if err = in.ended; in.recording == nil {
			if err == nil {
				err = server.Conflict("record inputs: no recording was begun")
			}
			return
		}
		part, in.readAt, err = in.recording.Take(), d.Now(), nil
		if end {
			in.end(nil)
		}
	})
	return part, err
}
