package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/gpuwork"
)

// tinyBlocks is the grid of an online kernel, a small share of any GPU.
const tinyBlocks = 8

// options are the flags of all clients.
type options struct {
	runtime string
	device  int
	kernel  time.Duration
	blocks  int
	nsPer   float64
	sync    string

	opened time.Time // set by open
}

func (o *options) register(set *flag.FlagSet, kernel time.Duration, sync string) {
	registerGPU(set, &o.runtime, &o.device)
	set.DurationVar(&o.kernel, "kernel", kernel, "`length` of a kernel on an idle GPU")
	set.IntVar(&o.blocks, "blocks", 0, "`number` of blocks of 256 threads; 0: be fills the GPU twice, lc uses 8")
	set.Float64Var(&o.nsPer, "ns-per-iteration", 0, "`time` of one iteration, from giveway-bench calibrate; 0: measure it, which needs an idle GPU")
	set.StringVar(&o.sync, "sync", sync, "`way` of waiting for the GPU: spin or block")
}

// open opens the GPU, after it has made the process exit with its parent. It locks the
// calling goroutine to its thread and never unlocks.
func (o *options) open() (gpuwork.GPU, error) {
	how, ok := map[string]gpuwork.Sync{"spin": gpuwork.Spin, "block": gpuwork.Block}[o.sync]
	if !ok {
		return nil, usageError{fmt.Errorf("--sync %q: want spin or block", o.sync)}
	}
	open, ok := runtimes[o.runtime]
	if !ok {
		return nil, usageError{fmt.Errorf("--runtime %q: want cuda, hip or auto", o.runtime)}
	}
	if err := dieWithParent(); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	g, err := open(o.device, how)
	o.opened = time.Now()
	return g, err
}

// ready returns the message that the client is ready.
func (o *options) ready(g gpuwork.GPU, c *bench.Calibration) bench.Message {
	i := g.Info()
	return bench.Message{Ready: true, PID: os.Getpid(), Opened: o.opened, Calibration: c, GPU: i.Name, UUID: i.UUID, CUDA: i.CUDA, HIP: i.HIP, Arch: i.Arch}
}

// newKernel makes the kernel of the options. Without --blocks it fills the GPU if fill
// is true, else it has tinyBlocks.
func (o *options) newKernel(g gpuwork.GPU, fill bool) (gpuwork.Kernel, *bench.Shape, error) {
	var err error
	blocks := o.blocks
	switch {
	case blocks > 0:
	case fill:
		if blocks, err = g.FullGrid(); err != nil {
			return nil, nil, err
		}
	default:
		blocks = tinyBlocks
	}
	fit := gpuwork.Fit{Blocks: blocks, NsPerIteration: o.nsPer}
	if o.nsPer <= 0 {
		if fit, err = gpuwork.Calibrate(g, blocks); err != nil {
			return nil, nil, err
		}
	}
	n, err := fit.Iterations(o.kernel)
	if err != nil {
		return nil, nil, err
	}
	shape := bench.Shape(fit)
	return g.Spin(blocks, n), &shape, nil
}

// quitAtEnd reads lines, sends them to lines if that is not nil, and exits at "quit"
// or the end of the input. It exits at once, without waiting for the GPU, so that a
// paused process can be stopped.
func quitAtEnd(in io.Reader, lines chan<- string) {
	for input := bufio.NewScanner(in); input.Scan() && input.Text() != "quit"; {
		if lines != nil {
			lines <- input.Text()
		}
	}
	os.Exit(0)
}

// calibrate measures the full and the tiny grid.
func calibrate(set *flag.FlagSet, args []string, _ io.Reader, out io.Writer) error {
	var o options
	o.register(set, time.Millisecond, "spin")
	if err := parse(set, args); err != nil {
		return err
	}
	g, err := o.open()
	if err != nil {
		return err
	}
	o.nsPer = 0
	_, full, err := o.newKernel(g, true)
	if err != nil {
		return fmt.Errorf("calibrate a full grid: %w", err)
	}
	_, tiny, err := o.newKernel(g, false)
	if err != nil {
		return fmt.Errorf("calibrate a tiny grid: %w", err)
	}
	return bench.NewWriter(out).Send(o.ready(g, &bench.Calibration{Full: full, Tiny: tiny}))
}
