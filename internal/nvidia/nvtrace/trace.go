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
	PIDHidden = 0          // another user's, and we are no administrator
	PIDKernel = 0xffffffff // the driver's own; its times are blurred
)

// maxTime is the latest time that is believed: 146 years.
const maxTime = 1 << 62

// Switch is one moment of the record: a context came on the GPU, or went off.
type Switch struct {
	PID     uint32 // in the initial pid namespace, or PIDHidden, or PIDKernel
	On      bool   // came on: its state is restored and it runs. Otherwise it is saved and off
	At      int64  // GPU time in ns; 0 when the driver hides it
	Seq     uint16 // running number: a gap is of switches that were lost
	Context uint32 // a channel's number; may differ between coming on and going off
}

// Config says which GPU, and where the driver is. Zero is the first GPU.
type Config struct {
	Control       string // "" is /dev/nvidiactl
	DevicePattern string // "" is /dev/nvidia%d
	// Index is the GPU's device file. -1 takes the first that opens, and the
	// driver's first GPU. The driver's numbers are almost always the same as the
	// files'; where there are several GPUs, UUID is certain.
	Index int
	UUID  string // as nvidia-smi writes it; "" goes by Index alone
}

// Trace is a record being made. Its methods may be called from anywhere.
type Trace struct {
	mu      sync.Mutex
	client  *client // nil when closed
	buffer  *buffer
	started int64

	noFlush bool
	haveSeq bool
	nextSeq uint16
	skipped uint16 // records that were no switches: taken out of Seq
	gaps    uint64
	full    uint64
}

// Open starts recording on a GPU. When it returns an error nothing is left
// behind; an ErrRefused says that it will not work here at all.
func Open(cfg Config) (*Trace, error) {
	if cfg.Control == "" {
		cfg.Control = "/dev/nvidiactl"
	}
	return start(cfg, func() (control, error) {
		f, err := nvrm.Open(cfg.Control)
		if err != nil {
			return nil, err
		}
		return f, nil
	})
}

// start is Open with the control file's opening to be had from elsewhere.
func start(cfg Config, open func() (control, error)) (*Trace, error) {
	if cfg.DevicePattern == "" {
		cfg.DevicePattern = "/dev/nvidia%d"
	}
	t, err := record(cfg, open)
	if err != nil {
		return nil, fmt.Errorf("record GPU switches: %w", refusal(err))
	}
	return t, nil
}

func record(cfg Config, open func() (control, error)) (*Trace, error) {
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

// Started returns the GPU's time when recording began.
func (t *Trace) Started() int64 { return t.started }

// AllUsers reports whether other users' processes are in the record.
func (t *Trace) AllUsers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buffer.allUsers
}

// Records returns how many switches there is room for between two Reads.
func (t *Trace) Records() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.buffer.count)
}

// Read returns the switches since the last Read, up to now, in order. It takes
// the locks of all GPUs for a moment: a few times a second is often enough.
// Switches that come with an error are good.
func (t *Trace) Read() ([]Switch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return nil, fmt.Errorf("read GPU switches: %w", os.ErrClosed)
	}
	flushed := t.flush()
	var out []Switch
	dropped, err := t.buffer.drain(func(record []byte) {
		if s, ok := t.take(record); ok {
			out = append(out, s)
		}
	})
	t.full += dropped
	if err = errors.Join(flushed, err); err != nil {
		return out, fmt.Errorf("read GPU switches: %w", err)
	}
	return out, nil
}

// flush asks for what the hardware has. Where that is not allowed it is not
// asked again: the driver's timer brings it all the same, 33 ms late.
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

// take reads one record, and says whether it is a switch.
func (t *Trace) take(record []byte) (Switch, bool) {
	if kind := le.Uint16(record[recordType:]); kind != typeV2 && kind != typeV1 {
		return Switch{}, false // it has no number either
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

// Clock returns the GPU's time, which is that of switches. Taken before a Read it
// is a time up to which that Read has everything.
func (t *Trace) Clock() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return 0, fmt.Errorf("read GPU clock: %w", os.ErrClosed)
	}
	return t.client.clock()
}

// Dropped returns how many switches were lost so far, at the least: the driver's
// own count and the gaps between numbers tell of the same losses.
func (t *Trace) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.gaps, t.full)
}

// Close stops recording and gives everything back, whatever fails on the way.
// Twice equals once.
func (t *Trace) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == nil {
		return nil
	}
	err := errors.Join(t.buffer.enable(false), t.buffer.close(), t.client.close())
	t.client = nil
	if err != nil {
		return fmt.Errorf("stop recording GPU switches: %w", err)
	}
	return nil
}
