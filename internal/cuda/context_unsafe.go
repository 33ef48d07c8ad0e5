package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Sync is how a thread waits for the GPU (CUctx_flags). Spinning has the lowest
// latency and uses a CPU; blocking uses none.
type Sync uint32

const (
	Spin  Sync = 0x01 // CU_CTX_SCHED_SPIN
	Block Sync = 0x04 // CU_CTX_SCHED_BLOCKING_SYNC
)

// Device describes the GPU of a context.
type Device struct {
	Name            string
	UUID            string // as nvidia-smi writes it
	Multiprocessors int
}

// Context is the process's primary context on one GPU, current on the thread that
// made it. It is the primary context because its calls are the same in every CUDA
// version, and because most programs use it.
type Context struct {
	d      *Driver
	Device Device
}

// NewContext makes the context of a device current on the calling thread. The
// caller has locked its goroutine to the thread. The context ends with the process.
func (d *Driver) NewContext(ordinal int, sync Sync) (*Context, error) {
	var count int32
	if err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= int(count) {
		return nil, fmt.Errorf("no GPU %d: the driver has %d", ordinal, count)
	}
	var dev int32
	if err := d.call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal)); err != nil {
		return nil, err
	}
	info, err := d.describeDevice(dev)
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
	return &Context{d: d, Device: info}, nil
}

func (d *Driver) describeDevice(dev int32) (Device, error) {
	name := make([]byte, 256)
	if err := d.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(dev)); err != nil {
		return Device{}, err
	}
	var id [16]byte
	if err := d.call(cuDeviceGetUuid, uintptr(unsafe.Pointer(&id[0])), uintptr(dev)); err != nil {
		return Device{}, err
	}
	const attrMultiprocessors = 16 // CUdevice_attribute
	var count int32
	err := d.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&count)), attrMultiprocessors, uintptr(dev))
	return Device{
		Name:            cString(name),
		UUID:            fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16]),
		Multiprocessors: int(count),
	}, err
}

// Stream is a sequence of work that runs in order.
type Stream struct {
	d      *Driver
	handle uintptr
}

// NewStream makes a stream that does not wait for other streams
// (CU_STREAM_NON_BLOCKING).
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{d: c.d}
	return s, c.d.call(cuStreamCreate, uintptr(unsafe.Pointer(&s.handle)), 1)
}

// Synchronize waits until all work in the stream is done.
func (s *Stream) Synchronize() error { return s.d.call(cuStreamSynchronize, s.handle) }

// Event marks a position in a stream.
type Event struct {
	d      *Driver
	handle uintptr
}

// NewEvent makes an event. An event with timing costs a little more to record;
// waiting for an event without timing uses no CPU.
func (c *Context) NewEvent(timing bool) (*Event, error) {
	flags := uintptr(0x01 | 0x02) // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
	if timing {
		flags = 0
	}
	e := &Event{d: c.d}
	return e, c.d.call(cuEventCreate, uintptr(unsafe.Pointer(&e.handle)), flags)
}

// Record moves the event to the end of the stream.
func (e *Event) Record(s *Stream) error { return e.d.call(cuEventRecord, e.handle, s.handle) }

// Synchronize waits until the stream has passed the event.
func (e *Event) Synchronize() error { return e.d.call(cuEventSynchronize, e.handle) }

// Passed reports whether the stream has passed the event.
func (e *Event) Passed() (bool, error) {
	err := e.d.call(cuEventQuery, e.handle)
	if code := (*Error)(nil); errors.As(err, &code) && code.Code == notReady {
		return false, nil
	}
	return err == nil, err
}

// MillisecondsSince returns the GPU's time between two events that have passed.
func (e *Event) MillisecondsSince(start *Event) (float64, error) {
	var ms float32
	err := e.d.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), start.handle, e.handle)
	return float64(ms), err
}

// Word is four bytes of host memory that the GPU can read.
type Word struct {
	host *atomic.Uint32
	gpu  uintptr
}

// NewWord makes a word with value 0.
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

// Set stores a value. The GPU sees it about a microsecond later.
func (w *Word) Set(v uint32) { w.host.Store(v) }
