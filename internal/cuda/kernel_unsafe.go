package cuda

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"
)

// blockThreads is the number of threads in a block of the spin kernel.
const blockThreads = 256

//go:embed kernels.ptx
var kernels string

// heads are the PTX versions and targets to try. The first is that of kernels.ptx;
// the others are for a driver that does not accept such an old target any more.
var heads = []string{
	".version 6.0\n.target sm_50",
	".version 7.0\n.target sm_75",
	".version 7.8\n.target sm_90",
}

// Module is the kernels, compiled by the driver for the GPU of its context.
type Module struct {
	c    *Context
	spin uintptr
	park uintptr
	out  uintptr // result of spin, which it never writes
}

// LoadKernels compiles the kernels.
func (c *Context) LoadKernels() (*Module, error) {
	m := &Module{c: c}
	mod, err := c.load()
	if err != nil {
		return nil, err
	}
	for name, to := range map[string]*uintptr{"spin": &m.spin, "parked": &m.park} {
		symbol := append([]byte(name), 0)
		if err := c.d.call(cuModuleGetFunction, uintptr(unsafe.Pointer(to)), mod, uintptr(unsafe.Pointer(&symbol[0]))); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
	}
	return m, c.d.call(cuMemAlloc, uintptr(unsafe.Pointer(&m.out)), 256)
}

func (c *Context) load() (module uintptr, err error) {
	var all []error
	for _, head := range heads {
		module, err = c.compile(strings.Replace(kernels, heads[0], head, 1))
		if err == nil {
			return module, nil
		}
		all = append(all, fmt.Errorf("as %s: %w", strings.ReplaceAll(head, "\n", " "), err))
	}
	return 0, fmt.Errorf("compile kernels: %w", errors.Join(all...))
}

// compile compiles PTX. The error includes the compiler's log.
func (c *Context) compile(ptx string) (uintptr, error) {
	const ( // CUjit_option
		errorLog     = 5 // CU_JIT_ERROR_LOG_BUFFER
		errorLogSize = 6 // CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
	)
	var module uintptr
	text := append([]byte(ptx), 0)
	log := make([]byte, 4096)
	options := [2]int32{errorLog, errorLogSize}
	values := struct { // void *[2]; the second is a number, not a pointer
		log  unsafe.Pointer
		size uintptr
	}{unsafe.Pointer(&log[0]), uintptr(len(log))}
	err := c.d.call(
		cuModuleLoadDataEx, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&text[0])),
		uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values)),
	)
	if text := strings.TrimSpace(cString(log)); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return module, err
}

// FullGrid returns the number of blocks of spin that fill the GPU twice.
func (m *Module) FullGrid() (int, error) {
	var each int32
	err := m.c.d.call(cuOccupancyMaxActiveBlocks, uintptr(unsafe.Pointer(&each)), m.spin, blockThreads, 0)
	return 2 * m.c.Device.Multiprocessors * max(int(each), 1), err
}

// Kernel is a kernel with its arguments. It can be launched any number of times.
type Kernel struct {
	m       *Module
	f       uintptr
	blocks  int
	threads int
	// The library reads the arguments through argv during the call. Both are part of
	// the Kernel, which is on the heap and does not move.
	args [3]uint64
	argv [3]unsafe.Pointer
}

func (m *Module) kernel(f uintptr, blocks, threads int, args ...uint64) *Kernel {
	k := &Kernel{m: m, f: f, blocks: blocks, threads: threads}
	copy(k.args[:], args)
	for i := range k.args {
		k.argv[i] = unsafe.Pointer(&k.args[i])
	}
	return k
}

// Spin returns a kernel whose threads compute for that many iterations.
func (m *Module) Spin(blocks int, iterations uint32) *Kernel {
	return m.kernel(m.spin, blocks, blockThreads, uint64(m.out), uint64(iterations))
}

// Parked returns a kernel of one thread that waits until the word is not 0, or until
// the timeout.
func (m *Module) Parked(w *Word, timeout time.Duration) *Kernel {
	// A read over the bus takes about 1 us, and at least 100 ns.
	polls := min(uint64(timeout/(100*time.Nanosecond))+1, math.MaxUint32)
	return m.kernel(m.park, 1, 1, uint64(w.gpu), polls, uint64(timeout))
}

// Launch appends the kernel to the stream. Arguments are little-endian, so a 32-bit
// parameter is the low half of its word.
func (k *Kernel) Launch(s *Stream) error {
	return k.m.c.d.call(
		cuLaunchKernel, k.f,
		uintptr(k.blocks), 1, 1, uintptr(k.threads), 1, 1,
		0, s.handle, uintptr(unsafe.Pointer(&k.argv[0])), 0,
	)
}
