package cuda

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
)

//go:embed kernels.ptx
var kernels string

// heads are the PTX versions and targets to try. The first is that of kernels.ptx;
// the others are for a driver that does not accept such an old target any more.
var heads = []string{
	".version 6.0\n.target sm_50",
	".version 7.0\n.target sm_75",
	".version 7.8\n.target sm_90",
}

// loadKernels has the driver compile the kernels for the GPU.
func (g *GPU) loadKernels() error {
	mod, err := g.compileAny()
	if err != nil {
		return err
	}
	for name, to := range map[string]*uintptr{"spin": &g.spin, "parked": &g.park} {
		symbol := append([]byte(name), 0)
		if err := g.call(cuModuleGetFunction, uintptr(unsafe.Pointer(to)), mod, uintptr(unsafe.Pointer(&symbol[0]))); err != nil {
			return fmt.Errorf("kernel %s: %w", name, err)
		}
	}
	return g.call(cuMemAlloc, uintptr(unsafe.Pointer(&g.out)), 256)
}

// compileAny compiles the kernels with the first of heads that the driver accepts.
func (g *GPU) compileAny() (module uintptr, err error) {
	var all []error
	for _, head := range heads {
		module, err = g.compile(strings.Replace(kernels, heads[0], head, 1))
		if err == nil {
			return module, nil
		}
		all = append(all, fmt.Errorf("as %s: %w", strings.ReplaceAll(head, "\n", " "), err))
	}
	return 0, fmt.Errorf("compile kernels: %w", errors.Join(all...))
}

// compile compiles PTX. The error includes the compiler's log.
func (g *GPU) compile(ptx string) (uintptr, error) {
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
	err := g.call(
		cuModuleLoadDataEx, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&text[0])),
		uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values)),
	)
	if text := strings.TrimSpace(clib.String(log)); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return module, err
}

// FullGrid implements gpuwork.GPU.
func (g *GPU) FullGrid() (int, error) {
	var each int32
	err := g.call(cuOccupancyMaxActiveBlocks, uintptr(unsafe.Pointer(&each)), g.spin, gpuwork.BlockThreads, 0)
	return 2 * g.multiprocessors * max(int(each), 1), err
}

// kernel is a kernel with its arguments.
type kernel struct {
	g       *GPU
	f       uintptr
	blocks  int
	threads int
	// The library reads the arguments through argv during the call. Both are part of
	// the kernel, which is on the heap and does not move.
	args [3]uint64
	argv [3]unsafe.Pointer
}

func (g *GPU) newKernel(f uintptr, blocks, threads int, args ...uint64) *kernel {
	k := &kernel{g: g, f: f, blocks: blocks, threads: threads}
	copy(k.args[:], args)
	for i := range k.args {
		k.argv[i] = unsafe.Pointer(&k.args[i])
	}
	return k
}

// Spin implements gpuwork.GPU.
func (g *GPU) Spin(blocks int, iterations uint32) gpuwork.Kernel {
	return g.newKernel(g.spin, blocks, gpuwork.BlockThreads, uint64(g.out), uint64(iterations))
}

// Parked implements gpuwork.GPU.
func (g *GPU) Parked(w *gpuwork.Word, timeout time.Duration) gpuwork.Kernel {
	// A read over the bus takes about 1 us, and at least 100 ns.
	polls := min(uint64(timeout/(100*time.Nanosecond))+1, math.MaxUint32)
	return g.newKernel(g.park, 1, 1, uint64(w.GPU), polls, uint64(timeout))
}

// Launch implements gpuwork.Kernel. Arguments are little-endian, so a 32-bit parameter is
// the low half of its word.
func (k *kernel) Launch(s gpuwork.Stream) error {
	return k.g.call(
		cuLaunchKernel, k.f,
		uintptr(k.blocks), 1, 1, uintptr(k.threads), 1, 1,
		0, s.(*stream).handle, uintptr(unsafe.Pointer(&k.argv[0])), 0,
	)
}
