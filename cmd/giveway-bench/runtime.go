package main

import (
	"errors"
	"flag"
	"fmt"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/cuda"
	"github.com/giveway/giveway/internal/gpuwork"
	"github.com/giveway/giveway/internal/hip"
)

// registerGPU registers the flags that choose the GPU.
func registerGPU(set *flag.FlagSet, runtime *string, device *int) {
	set.StringVar(runtime, "runtime", "auto", "`name` of the GPU's runtime: cuda, hip, or auto for the one that this machine has")
	set.IntVar(device, "device", 0, "the runtime's `index` of the GPU")
}

// runtimes are the values of --runtime. Each opens a GPU.
var runtimes = map[string]func(index int, sync gpuwork.Sync) (gpuwork.GPU, error){
	"cuda": openCUDA,
	"hip":  openHIP,
	"auto": openAny,
}

func openCUDA(index int, sync gpuwork.Sync) (gpuwork.GPU, error) {
	g, err := cuda.Open(index, sync)
	if err != nil {
		return nil, err
	}
	return g, nil
}

func openHIP(index int, sync gpuwork.Sync) (gpuwork.GPU, error) {
	g, err := hip.Open(index, sync)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// openAny opens a GPU with the first runtime that works. The error names both runtimes.
func openAny(index int, sync gpuwork.Sync) (gpuwork.GPU, error) {
	g, err := openCUDA(index, sync)
	if err == nil {
		return g, nil
	}
	g, err2 := openHIP(index, sync)
	switch noCUDA, noHIP := errors.Is(err, clib.ErrNotFound), errors.Is(err2, clib.ErrNotFound); {
	case err2 == nil:
		return g, nil
	case noCUDA && !noHIP:
		return nil, fmt.Errorf("no CUDA library was found, and HIP does not work: %w", err2)
	case noHIP && !noCUDA:
		return nil, fmt.Errorf("no HIP library was found, and CUDA does not work: %w", err)
	}
	return nil, fmt.Errorf("no GPU runtime works: CUDA: %w; HIP: %w", err, err2)
}
