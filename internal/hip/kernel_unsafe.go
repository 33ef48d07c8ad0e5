package hip

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
)

//go:embed kernels.hip
var kernels string

// loadKernels compiles the kernels for the GPU and loads them.
func (g *GPU) loadKernels() error {
	code, err := g.compileFor(kernels, g.info.Arch)
	if err != nil {
		return fmt.Errorf("compile kernels for %s: %w", g.info.Arch, err)
	}
	var module uintptr
	if err := g.call(hipModuleLoadData, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&code[0]))); err != nil {
		return err
	}
	for name, to := range map[string]*uintptr{"spin": &g.spin, "parked": &g.park} {
		symbol := append([]byte(name), 0)
		if err := g.call(hipModuleGetFunction, uintptr(unsafe.Pointer(to)), module, uintptr(unsafe.Pointer(&symbol[0]))); err != nil {
			return fmt.Errorf("kernel %s: %w", name, err)
		}
	}
	return g.call(hipMalloc, uintptr(unsafe.Pointer(&g.out)), 256)
}

// compileFor compiles a program for a target. The error includes the compiler's log.
func (r *loaded) compileFor(source, arch string) ([]byte, error) {
	var program uintptr
	text, name, option := append([]byte(source), 0), []byte("kernels.hip\x00"), []byte("--offload-arch="+arch+"\x00")
	if err := r.compile(hiprtcCreateProgram, uintptr(unsafe.Pointer(&program)), uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
		return nil, err
	}
	defer func() { _ = r.compile(hiprtcDestroyProgram, uintptr(unsafe.Pointer(&program))) }()
	options := [1]unsafe.Pointer{unsafe.Pointer(&option[0])}
	if err := r.compile(hiprtcCompileProgram, program, 1, uintptr(unsafe.Pointer(&options))); err != nil {
		return nil, fmt.Errorf("%w: %s", err, r.log(program))
	}
	var size uintptr
	if err := r.compile(hiprtcGetCodeSize, program, uintptr(unsafe.Pointer(&size))); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, fmt.Errorf("hiprtcGetCodeSize: no code")
	}
	code := make([]byte, size)
	return code, r.compile(hiprtcGetCode, program, uintptr(unsafe.Pointer(&code[0])))
}

func (r *loaded) log(program uintptr) string {
	var size uintptr
	if r.compile(hiprtcGetProgramLogSize, program, uintptr(unsafe.Pointer(&size))) != nil || size == 0 {
		return "no log"
	}
	log := make([]byte, size)
	if err := r.compile(hiprtcGetProgramLog, program, uintptr(unsafe.Pointer(&log[0]))); err != nil {
		return err.Error()
	}
	return cmp.Or(strings.TrimSpace(clib.String(log)), "empty log")
}

// FullGrid implements gpuwork.GPU.
func (g *GPU) FullGrid() (int, error) {
	var each int32
	err := g.call(hipOccupancyMaxActiveBlocks, uintptr(unsafe.Pointer(&each)), g.spin, gpuwork.BlockThreads, 0)
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

// tick is one tick of wall_clock64 on all GPUs since gfx9.
const tick = 10 * time.Nanosecond

// Parked implements gpuwork.GPU.
func (g *GPU) Parked(w *gpuwork.Word, timeout time.Duration) gpuwork.Kernel {
	// A read over the bus takes about 1 us, and at least 100 ns.
	polls := min(uint64(timeout/(100*time.Nanosecond))+1, math.MaxUint32)
	return g.newKernel(g.park, 1, 1, uint64(w.GPU), polls, uint64(timeout/tick))
}

// Launch implements gpuwork.Kernel. Arguments are little-endian, so a 32-bit parameter is
// the low half of its word.
func (k *kernel) Launch(s gpuwork.Stream) error {
	return k.g.call(
		hipModuleLaunchKernel, k.f,
		uintptr(k.blocks), 1, 1, uintptr(k.threads), 1, 1,
		0, s.(*stream).handle, uintptr(unsafe.Pointer(&k.argv[0])), 0,
	)
}
