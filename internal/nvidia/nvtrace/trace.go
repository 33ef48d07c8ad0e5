package nvtrace

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// Pids that name no process.
const (
	PIDHidden = 0          // a process of another user, hidden because we are no administrator
	PIDKernel = 0xffffffff // a context of the driver; its times are made imprecise
)

// maxTime is the largest GPU time that is accepted: 146 years.
const maxTime = 1 << 62

// Switch is one record of the trace: a context came on the GPU, or went off.
type Switch struct {
	PID     uint32 // in the initial pid namespace; or PIDHidden, PIDKernel
	On      bool   // true: its state is restored and it runs; false: its state is saved
	At      int64  // GPU time in ns; 0 when the driver hides it
	Seq     uint16 // sequence number; a gap means lost switches
	Context uint32 // number of a channel; may differ between on and off
	Cut     bool   // switches after this one were lost
}

// Config says which GPU to trace.
type Config struct {
	Control       string // the control file: nvrm.ControlPath but in tests
	DevicePattern string // the device files of the GPUs: nvrm.GPUPattern but in tests
	Index         int    // of the GPU's device file; -1: the first that opens
	UUID          string // of the GPU, as nvidia-smi writes it; empty: the driver's first
}

// Trace is an open context-switch trace. Its methods may be called from any goroutine.
type Trace struct {
	mu      sync.Mutex
	client  *client // nil when closed
	buffer  *buffer
	started int64

	noFlush bool
	haveSeq bool
	nextSeq uint16
	skipped uint16 // records that were no switches; subtracted from Seq
	gaps    uint64
	full    uint64

	out []Switch // reused
}

// Open starts tracing a GPU.
func Open(cfg Config) (*Trace, error) {
	return openWith(cfg, opener(cfg))
}

// opener returns a function that opens the control file.
func opener(cfg Config) func() (control, error) {
	return func() (control, error) {
		f, err := nvrm.Open(cfg.Control)
		if err != nil {
			return nil, err
		}
		return f, nil
	}
}

// openWith is Open with another function to open the control file.
func openWith(cfg Config, open func() (control, error)) (_ *Trace, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open context-switch trace: %w", asRefused(err))
		}
	}()
	c, err := newClient(cfg, open)
	if err != nil {
		return nil, err
	}
	b, err := newBuffer(c)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	t := &Trace{client: c, buffer: b}
	if t.started, err = c.clock(); err == nil {
		err = b.enable(true)
	}
	if err != nil {
		return nil, errors.Join(err, b.close(), c.close())
	}
	return t, nil
}

// Started returns the GPU time at which tracing began.
func (t *Trace) Started() int64 { return t.started }

// AllUsers reports whether the processes of other users are in the trace.
func (t *Trace) AllUsers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buffer.allUsers
}

// Read returns the switches since the last Read in order, valid until the next Read. It
// takes the locks of all GPUs for a moment. Switches that are returned with an error are
// valid.
func (t *Trace) Read() ([]Switch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return nil, fmt.Errorf("read context-switch trace: %w", os.ErrClosed)
	}
	flushed := t.flush()
	out := t.out[:0]
	dropped, err := t.buffer.drain(func(record []byte) {
		if s, ok := t.decode(record); ok {
			out = append(out, s)
		}
	})
	t.full += dropped
	if n := len(out); dropped > 0 && n > 0 {
		out[n-1].Cut = true // a full buffer keeps the oldest records
	}
	t.out = out
	if err = errors.Join(flushed, err); err != nil {
		return out, fmt.Errorf("read context-switch trace: %w", err)
	}
	return out, nil
}

// flush makes the driver fetch the hardware's records. If that is not permitted it is not
// tried again: the driver's timer does the same up to 33 ms later.
func (t *Trace) flush() error {
	if t.noFlush {
		return nil
	}
	err := t.buffer.flush()
	for _, never := range []error{nvrm.ErrNotSupported, nvrm.ErrInvalidCommand, nvrm.ErrInsufficientPermissions, unix.ENOTTY, unix.EPERM, unix.EACCES} {
		if errors.Is(err, never) {
			t.noFlush = true
			return nil
		}
	}
	return err
}

// decode decodes a record. It returns false for a record that is no switch.
func (t *Trace) decode(record []byte) (Switch, bool) {
	if kind := le.Uint16(record[recordType:]); kind != typeV2 && kind != typeV1 {
		return Switch{}, false // without a sequence number
	}
	seq := le.Uint16(record[recordSeq:])
	if t.haveSeq {
		t.gaps += uint64(seq - t.nextSeq)
	}
	t.haveSeq, t.nextSeq = true, seq+1
	s := Switch{
		PID:     le.Uint32(record[recordPID:]),
		Seq:     seq - t.skipped,
		Context: le.Uint32(record[recordContext:]),
	}
	if at := le.Uint64(record[recordTime:]); at <= maxTime {
		s.At = int64(at)
	}
	switch record[recordTag] {
	case tagSimpleStart, tagContextStart:
		s.On = true
	case tagSimpleEnd, tagSaveEnd:
	default:
		t.skipped++
		return Switch{}, false
	}
	return s, true
}

// Clock returns the GPU time, the clock of the switches. A Read that follows returns all
// switches up to that time.
func (t *Trace) Clock() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return 0, fmt.Errorf("read GPU clock: %w", os.ErrClosed)
	}
	return t.client.clock()
}

// Dropped returns how many switches were lost so far, at least. The driver's count and the
// gaps of the sequence numbers report the same losses, so the larger one is returned.
func (t *Trace) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.gaps, t.full)
}

// Close stops tracing and frees everything, even after an error. A second call does
// nothing.
func (t *Trace) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return nil
	}
	err := errors.Join(t.buffer.enable(false), t.buffer.close(), t.client.close())
	t.client = nil
	if err != nil {
		return fmt.Errorf("close context-switch trace: %w", err)
	}
	return nil
}
