package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Sync is how a thread waits for the GPU (CUctx_flags).
type Sync uint32

// Spinning answers soonest and takes a processor; blocking takes none.
const (
	Spin  Sync = 0x01 // CU_CTX_SCHED_SPIN
	Block Sync = 0x04 // CU_CTX_SCHED_BLOCKING_SYNC
)

// Attributes that are asked for (CUdevice_attribute).
const (
	attrMultiprocessors = 16
	attrMajor           = 75
	attrMinor           = 76
)

// Device says which GPU a context is on.
type Device struct {
	Name            string
	UUID            string // as nvidia-smi writes it
	Multiprocessors int
	Major, Minor    int // compute capability
}

// Context is the calling process's primary context on one GPU, current on the
// thread that made it. The primary one: its calls are the same in every version,
// and it is what programs use.
type Context struct {
	d      *Driver
	Device Device
}

// NewContext makes the context of a device, by its number, current on the calling
// thread, which the caller has locked. It ends with the process.
func (d *Driver) NewContext(ordinal int, sync Sync) (*Context, error) {
	var count int32
	if err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= int(count) {
		return nil, fmt.Errorf("there is no GPU %d: the driver shows %d", ordinal, count)
	}
	var dev int32
	if err := d.call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal)); err != nil {
		return nil, err
	}
	about, err := d.about(dev)
	if err != nil {
		return nil, err
	}
	if err := d.call(cuDevicePrimaryCtxSetFlags, uintptr(dev), uintptr(sync)); err != nil {
		return nil, err
	}
	var ctx uintptr
	if err := d.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&ctx)), uintptr(dev)); err != nil {
		return nil, err
	}
	if err := d.call(cuCtxSetCurrent, ctx); err != nil {
		return nil, err
	}
	return &Context{d: d, Device: about}, nil
}

func (d *Driver) about(dev int32) (Device, error) {
	name := make([]byte, 256)
	if err := d.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(dev)); err != nil {
		return Device{}, err
	}
	var id [16]byte
	if err := d.call(cuDeviceGetUuid, uintptr(unsafe.Pointer(&id[0])), uintptr(dev)); err != nil {
		return Device{}, err
	}
	about := Device{
		Name: cString(name),
		UUID: fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16]),
	}
	for attr, to := range map[uintptr]*int{
		attrMultiprocessors: &about.Multiprocessors,
		attrMajor:           &about.Major,
		attrMinor:           &about.Minor,
	} {
		var v int32
		if err := d.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), attr, uintptr(dev)); err != nil {
			return Device{}, fmt.Errorf("attribute %d: %w", attr, err)
		}
		*to = int(v)
	}
	return about, nil
}

// Synchronize waits for everything that was launched in the context.
func (c *Context) Synchronize() error { return c.d.call(cuCtxSynchronize) }

// Stream is a queue of work that runs in order.
type Stream struct {
	d      *Driver
	handle uintptr
}

// NewStream makes a stream that waits for no other (CU_STREAM_NON_BLOCKING).
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{d: c.d}
	return s, c.d.call(cuStreamCreate, uintptr(unsafe.Pointer(&s.handle)), 1)
}

// Synchronize waits until all that is in the stream has run.
func (s *Stream) Synchronize() error { return s.d.call(cuStreamSynchronize, s.handle) }

// Idle says whether all that is in the stream has run.
func (s *Stream) Idle() (bool, error) { return done(s.d.call(cuStreamQuery, s.handle)) }

// Event is a mark in a stream.
type Event struct {
	d      *Driver
	handle uintptr
}

// NewEvent makes an event. One that tells time costs a little more to record;
// waiting for one that does not never takes a processor.
func (c *Context) NewEvent(tellsTime bool) (*Event, error) {
	flags := uintptr(0x01 | 0x02) // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
	if tellsTime {
		flags = 0
	}
	e := &Event{d: c.d}
	return e, c.d.call(cuEventCreate, uintptr(unsafe.Pointer(&e.handle)), flags)
}

// Record puts the event at the end of the stream, and takes it from where it was.
func (e *Event) Record(s *Stream) error { return e.d.call(cuEventRecord, e.handle, s.handle) }

// Synchronize waits until the stream has come to the event.
func (e *Event) Synchronize() error { return e.d.call(cuEventSynchronize, e.handle) }

// Passed says whether the stream has come to the event.
func (e *Event) Passed() (bool, error) { return done(e.d.call(cuEventQuery, e.handle)) }

// MillisecondsSince is the GPU's time from one passed event to another.
func (e *Event) MillisecondsSince(start *Event) (float64, error) {
	var ms float32
	err := e.d.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), start.handle, e.handle)
	return float64(ms), err
}

// Word is four bytes of host memory that the GPU reads too.
type Word struct {
	host *atomic.Uint32
	gpu  uintptr
}

// NewWord makes a word that holds 0.
func (c *Context) NewWord() (*Word, error) {
	var host unsafe.Pointer
	const portableMapped = 0x01 | 0x02 // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
	if err := c.d.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&host)), 4096, portableMapped); err != nil {
		return nil, err
	}
	w := &Word{host: (*atomic.Uint32)(host)}
	w.host.Store(0)
	return w, c.d.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&w.gpu)), uintptr(host), 0)
}

// Set stores a value; the GPU sees it soon after.
func (w *Word) Set(v uint32) { w.host.Store(v) }
