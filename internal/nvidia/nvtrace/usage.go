package nvtrace

import (
	"errors"
	"fmt"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// DeviceMemory returns how many bytes of a GPU's memory processes have, those of each that has any.
// It opens the GPU anew each time, so that a call which hangs in the driver delays no trace.
func DeviceMemory(cfg Config, pids []int) (map[int]uint64, error) {
	return deviceMemory(cfg, pids, opener(cfg))
}

func deviceMemory(cfg Config, pids []int, open func() (control, error)) (map[int]uint64, error) {
	c, err := newClient(cfg, open)
	if err != nil {
		return nil, fmt.Errorf("read memory of processes: %w", asRefused(err))
	}
	found, err := nvrm.DeviceMemory(c.file, c.handle, c.subdevice, pids)
	if err = errors.Join(err, c.close()); err != nil {
		return found, fmt.Errorf("read memory of processes: %w", err)
	}
	return found, nil
}
