package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
)

// GPU is a GPU with the process's primary context on it, current on the thread that
// opened it, with the kernels. It is the primary context because its
// calls are the same in every CUDA version, and because most programs use it.
type GPU struct {
	driver
	info gpuwork.Info // CUDA is the newest version that the driver supports

	multiprocessors int
	spin, park      uintptr // kernels
	out             uintptr // result of spin, which it never writes
}

// Open loads the driver library and opens a GPU on the calling thread, to which the
// caller has locked its goroutine. Both stay open until the process ends.
func Open(index int, sync gpuwork.Sync) (*GPU, error) { return open(library, index, sync) }

func open(path string, index int, sync gpuwork.Sync) (*GPU, error) {
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
	return g, nil
}

// Info implements gpuwork.GPU.
func (g *GPU) Info() gpuwork.Info { return g.info }

// newContext makes the context current and describes the device.
func (g *GPU) newContext(index int, sync gpuwork.Sync) error {
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
	g.info.Name, g.multiprocessors = clib.String(name), int(multiprocessors)
	g.info.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
	g.info.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	return nil
}

// stream is a CUDA stream.
type stream struct {
	g      *GPU
	handle uintptr
}

// NewStream implements gpuwork.GPU.
func (g *GPU) NewStream() (gpuwork.Stream, error) {
	const nonBlocking = 1 // CU_STREAM_NON_BLOCKING: the stream does not wait for others
	s := &stream{g: g}
	return s, g.call(cuStreamCreate, uintptr(unsafe.Pointer(&s.handle)), nonBlocking)
}

// Synchronize implements gpuwork.Stream.
func (s *stream) Synchronize() error { return s.g.call(cuStreamSynchronize, s.handle) }

// event is a CUDA event.
type event struct {
	g      *GPU
	handle uintptr
}

// NewEvent implements gpuwork.GPU.
func (g *GPU) NewEvent(timing bool) (gpuwork.Event, error) {
	flags := uintptr(0x01 | 0x02) // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
	if timing {
		flags = 0
	}
	e := &event{g: g}
	return e, g.call(cuEventCreate, uintptr(unsafe.Pointer(&e.handle)), flags)
}

// Record implements gpuwork.Event.
func (e *event) Record(s gpuwork.Stream) error {
	return e.g.call(cuEventRecord, e.handle, s.(*stream).handle)
}

// Synchronize implements gpuwork.Event.
func (e *event) Synchronize() error { return e.g.call(cuEventSynchronize, e.handle) }

// Passed implements gpuwork.Event.
func (e *event) Passed() (bool, error) {
	err := e.g.call(cuEventQuery, e.handle)
	if code := (*gpuwork.Error)(nil); errors.As(err, &code) && code.Code == notReady {
		return false, nil
	}
	return err == nil, err
}

// MillisecondsSince implements gpuwork.Event.
func (e *event) MillisecondsSince(start gpuwork.Event) (float64, error) {
	var ms float32
	err := e.g.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), start.(*event).handle, e.handle)
	return float64(ms), err
}

// NewWord implements gpuwork.GPU.
func (g *GPU) NewWord() (*gpuwork.Word, error) {
	var host unsafe.Pointer
	const portableMapped = 0x01 | 0x02 // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
	if err := g.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&host)), 4096, portableMapped); err != nil {
		return nil, err
	}
	w := &gpuwork.Word{Host: (*atomic.Uint32)(host)}
	w.Set(0)
	return w, g.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&w.GPU)), uintptr(host), 0)
}
