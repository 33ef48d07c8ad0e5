package hip

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
)

// GPU is a GPU that is the current device of the thread that opened it, with the kernels.
type GPU struct {
	loaded
	info gpuwork.Info

	multiprocessors int
	spin, park      uintptr // kernels
	out             uintptr // result of spin, which it never writes
}

// Open loads HIP's libraries and opens a GPU on the calling thread, to which the caller
// has locked its goroutine. Both stay open until the process ends. The error wraps
// clib.ErrNotFound if the machine has no HIP.
func Open(index int, sync gpuwork.Sync) (*GPU, error) { return open(libraries, index, sync) }

func open(files []string, index int, sync gpuwork.Sync) (*GPU, error) {
	g := &GPU{}
	if err := g.load(files); err != nil {
		return nil, err
	}
	var count int32
	if err := g.call(hipGetDeviceCount, uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	if index < 0 || index >= int(count) {
		return nil, fmt.Errorf("no GPU %d: the runtime has %d", index, count)
	}
	if err := cmp.Or(g.call(hipSetDevice, uintptr(index)), g.call(hipSetDeviceFlags, uintptr(sync)), g.describe(index)); err != nil {
		return nil, fmt.Errorf("open GPU %d: %w", index, err)
	}
	if err := g.loadKernels(); err != nil {
		return nil, err
	}
	return g, nil
}

// Info implements gpuwork.GPU.
func (g *GPU) Info() gpuwork.Info { return g.info }

func (g *GPU) describe(index int) error {
	name := make([]byte, 256)
	var id [16]byte
	var version, multiprocessors int32
	if err := cmp.Or(
		g.call(hipDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(index)),
		g.call(hipDeviceGetUUID, uintptr(unsafe.Pointer(&id[0])), uintptr(index)),
		g.call(hipDeviceGetAttribute, uintptr(unsafe.Pointer(&multiprocessors)), attrMultiprocessors, uintptr(index)),
		g.call(hipRuntimeGetVersion, uintptr(unsafe.Pointer(&version))),
	); err != nil {
		return err
	}
	arch, err := g.arch(index)
	g.multiprocessors = int(multiprocessors)
	g.info = gpuwork.Info{
		Name: clib.String(name), UUID: uuid(id), Arch: arch, HIP: fmt.Sprintf("%d.%d", version/10_000_000, version%10_000_000/100_000),
	}
	return err
}

// arch returns the target to compile for, such as gfx942:sramecc+:xnack-.
func (g *GPU) arch(index int) (string, error) {
	properties, at := make([]byte, 64<<10), archInR0600 // much larger than the struct of any version
	f := hipGetPropertiesR0600
	if !g.lib.Has(f) {
		f, at = hipGetProperties, archInR0000
	}
	if !g.lib.Has(f) {
		return "", fmt.Errorf("%s has no hipGetDeviceProperties", g.lib.Path)
	}
	if err := g.call(f, uintptr(unsafe.Pointer(&properties[0])), uintptr(index)); err != nil {
		return "", err
	}
	return clib.String(properties[at : at+archSize]), nil
}

// uuid formats a UUID as rocminfo does: AMD's are 16 characters of hexadecimal text. One
// that is not text is written in hexadecimal.
func uuid(id [16]byte) string {
	for _, c := range id {
		if c < ' ' || c > '~' {
			return fmt.Sprintf("GPU-%x", id)
		}
	}
	return "GPU-" + string(id[:])
}

// stream is a HIP stream.
type stream struct {
	g      *GPU
	handle uintptr
}

// NewStream implements gpuwork.GPU.
func (g *GPU) NewStream() (gpuwork.Stream, error) {
	s := &stream{g: g}
	return s, g.call(hipStreamCreateWithFlags, uintptr(unsafe.Pointer(&s.handle)), streamNonBlocking)
}

// Synchronize implements gpuwork.Stream.
func (s *stream) Synchronize() error { return s.g.call(hipStreamSynchronize, s.handle) }

// event is a HIP event.
type event struct {
	g      *GPU
	handle uintptr
}

// NewEvent implements gpuwork.GPU.
func (g *GPU) NewEvent(timing bool) (gpuwork.Event, error) {
	flags := uintptr(eventBlockingSync | eventDisableTiming)
	if timing {
		flags = 0
	}
	e := &event{g: g}
	return e, g.call(hipEventCreateWithFlags, uintptr(unsafe.Pointer(&e.handle)), flags)
}

// Record implements gpuwork.Event.
func (e *event) Record(s gpuwork.Stream) error {
	return e.g.call(hipEventRecord, e.handle, s.(*stream).handle)
}

// Synchronize implements gpuwork.Event.
func (e *event) Synchronize() error { return e.g.call(hipEventSynchronize, e.handle) }

// Passed implements gpuwork.Event.
func (e *event) Passed() (bool, error) {
	err := e.g.call(hipEventQuery, e.handle)
	if code := (*gpuwork.Error)(nil); errors.As(err, &code) && code.Code == notReady {
		return false, nil
	}
	return err == nil, err
}

// MillisecondsSince implements gpuwork.Event.
func (e *event) MillisecondsSince(start gpuwork.Event) (float64, error) {
	var ms float32
	err := e.g.call(hipEventElapsedTime, uintptr(unsafe.Pointer(&ms)), start.(*event).handle, e.handle)
	return float64(ms), err
}

// NewWord implements gpuwork.GPU.
func (g *GPU) NewWord() (*gpuwork.Word, error) {
	var host unsafe.Pointer
	if err := g.call(hipHostMalloc, uintptr(unsafe.Pointer(&host)), 4096, hostPortable|hostMapped|hostCoherent); err != nil {
		return nil, err
	}
	w := &gpuwork.Word{Host: (*atomic.Uint32)(host)}
	w.Set(0)
	return w, g.call(hipHostGetDevicePointer, uintptr(unsafe.Pointer(&w.GPU)), uintptr(host), 0)
}
