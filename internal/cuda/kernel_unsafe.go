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

// Threads is the size of a block of spinning threads.
const Threads = 256

//go:embed kernels.ptx
var kernels string

// heads are the versions under which the text is tried. The first is as written;
// the others are for a driver that would no longer take targets that old.
var heads = []string{
	".version 6.0\n.target sm_50",
	".version 7.0\n.target sm_75",
	".version 7.8\n.target sm_90",
}

// Module is the kernels, compiled by the driver for the GPU that is there.
type Module struct {
	c    *Context
	spin uintptr
	park uintptr
	out  uintptr // where spin would write if it ever did
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

// compile returns the compiler's own words with its error.
func (c *Context) compile(ptx string) (uintptr, error) {
	const ( // CUjit_option
		errorLog     = 5 // CU_JIT_ERROR_LOG_BUFFER
		errorLogSize = 6 // CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
	)
	var module uintptr
	text := append([]byte(ptx), 0)
	log := make([]byte, 4096)
	options := [2]int32{errorLog, errorLogSize}
	values := struct { // void *[2], the second a number in a pointer's place
		log  unsafe.Pointer
		size uintptr
	}{unsafe.Pointer(&log[0]), uintptr(len(log))}
	err := c.d.call(
		cuModuleLoadDataEx, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&text[0])),
		uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values)),
	)
	if err != nil {
		if said := strings.TrimSpace(cString(log)); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
	}
	return module, err
}

// FullGrid is the number of blocks of spin that fill the GPU twice over.
func (m *Module) FullGrid() (int, error) {
	var each int32
	err := m.c.d.call(cuOccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(&each)), m.spin, Threads, 0)
	return 2 * m.c.Device.Multiprocessors * max(int(each), 1), err
}

// Kernel is a kernel with its arguments, ready to be launched many times.
type Kernel struct {
	m       *Module
	f       uintptr
	blocks  int
	threads int
	// The library reads the arguments through argv during the call. Both are in
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

// Spin is a kernel of that many blocks whose threads work, not wait, for that
// many iterations.
func (m *Module) Spin(blocks int, iterations uint32) *Kernel {
	return m.kernel(m.spin, blocks, Threads, uint64(m.out), uint64(iterations))
}

// Parked is a kernel of one thread that waits until the word is not 0, or for the
// timeout.
func (m *Module) Parked(w *Word, timeout time.Duration) *Kernel {
	// A read over the bus takes about a microsecond and never less than 100 ns.
	polls := min(uint64(timeout/(100*time.Nanosecond))+1, math.MaxUint32)
	return m.kernel(m.park, 1, 1, uint64(w.gpu), polls, uint64(timeout))
}

// Launch puts the kernel at the end of the stream. Arguments are little-endian, so
// a 32-bit parameter is the low half of its word.
func (k *Kernel) Launch(s *Stream) error {
	return k.m.c.d.call(
		cuLaunchKernel, k.f,
		uintptr(k.blocks), 1, 1, uintptr(k.threads), 1, 1,
		0, s.handle, uintptr(unsafe.Pointer(&k.argv[0])), 0,
	)
}
