package cuda

import (
	"cmp"
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

// GPU is a GPU with the process's primary context on it, current on the thread that
// opened it, with the kernels and one stream. It is the primary context because its
// calls are the same in every CUDA version, and because most programs use it.
type GPU struct {
	driver
	Name   string
	UUID   string // as nvidia-smi writes it
	CUDA   string // newest version that the driver supports, such as 13.0
	stream uintptr

	multiprocessors int
	spin, park      uintptr // kernels
	out             uintptr // result of spin, which it never writes
}

// Open loads the driver library and opens a GPU on the calling thread, to which the
// caller has locked its goroutine. Both stay open until the process ends.
func Open(index int, sync Sync) (*GPU, error) { return open(library, index, sync) }

func open(path string, index int, sync Sync) (*GPU, error) {
	g := &GPU{}
	if err := g.load(path); err != nil {
		return nil, err
	}
	if err := g.newContext(index, sync); err != nil {
		return nil, fmt.Errorf("make a context on GPU %d: %w", index, err)
	}
	if err := g.loadKernels(); err != nil {
		return nil, err
	}
	const nonBlocking = 1 // CU_STREAM_NON_BLOCKING: the stream does not wait for others
	return g, g.call(cuStreamCreate, uintptr(unsafe.Pointer(&g.stream)), nonBlocking)
}

// newContext makes the context current and describes the device.
func (g *GPU) newContext(index int, sync Sync) error {
	var count, dev int32
	if err := g.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&count))); err != nil {
		return err
	}
	if index < 0 || index >= int(count) {
		return fmt.Errorf("no GPU %d: the driver has %d", index, count)
	}
	if err := g.call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(index)); err != nil {
		return err
	}
	if err := g.describe(dev); err != nil {
		return err
	}
	if err := g.call(cuDevicePrimaryCtxSetFlags, uintptr(dev), uintptr(sync)); err != nil {
		return err
	}
	var ctx uintptr
	if err := g.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&ctx)), uintptr(dev)); err != nil {
		return err
	}
	return g.call(cuCtxSetCurrent, ctx)
}

func (g *GPU) describe(dev int32) error {
	name := make([]byte, 256)
	var id [16]byte
	var version, multiprocessors int32
	const attrMultiprocessors = 16 // CUdevice_attribute
	if err := cmp.Or(
		g.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(dev)),
		g.call(cuDeviceGetUuid, uintptr(unsafe.Pointer(&id[0])), uintptr(dev)),
		g.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&multiprocessors)), attrMultiprocessors, uintptr(dev)),
		g.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&version))),
	); err != nil {
		return err
	}
	g.Name, g.multiprocessors = cString(name), int(multiprocessors)
	g.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
	g.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	return nil
}

// Synchronize waits until all work in the stream is done.
func (g *GPU) Synchronize() error { return g.call(cuStreamSynchronize, g.stream) }

// Event marks a position in the stream.
type Event struct {
	g      *GPU
	handle uintptr
}

// NewEvent makes an event. An event with timing costs a little more to record;
// waiting for an event without timing uses no CPU.
func (g *GPU) NewEvent(timing bool) (*Event, error) {
	flags := uintptr(0x01 | 0x02) // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
	if timing {
		flags = 0
	}
	e := &Event{g: g}
	return e, g.call(cuEventCreate, uintptr(unsafe.Pointer(&e.handle)), flags)
}

// Record moves the event to the end of the stream.
func (e *Event) Record() error { return e.g.call(cuEventRecord, e.handle, e.g.stream) }

// Synchronize waits until the stream has passed the event.
func (e *Event) Synchronize() error { return e.g.call(cuEventSynchronize, e.handle) }

// Passed reports whether the stream has passed the event.
func (e *Event) Passed() (bool, error) {
	err := e.g.call(cuEventQuery, e.handle)
	if code := (*Error)(nil); errors.As(err, &code) && code.Code == notReady {
		return false, nil
	}
	return err == nil, err
}

// MillisecondsSince returns the GPU's time between two events that have passed.
func (e *Event) MillisecondsSince(start *Event) (float64, error) {
	var ms float32
	err := e.g.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), start.handle, e.handle)
	return float64(ms), err
}

// Word is four bytes of host memory that the GPU can read.
type Word struct {
	host *atomic.Uint32
	gpu  uintptr
}

// NewWord makes a word with value 0.
func (g *GPU) NewWord() (*Word, error) {
	var host unsafe.Pointer
	const portableMapped = 0x01 | 0x02 // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
	if err := g.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&host)), 4096, portableMapped); err != nil {
		return nil, err
	}
	w := &Word{host: (*atomic.Uint32)(host)}
	w.host.Store(0)
	return w, g.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&w.gpu)), uintptr(host), 0)
}

// Set stores a value. The GPU sees it about a microsecond later.
func (w *Word) Set(v uint32) { w.host.Store(v) }
