package amd

import (
	"fmt"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
)

// Every method that interrupts a queue makes the driver unmap it. With CWSR (compute wave
// save/restore) the hardware saves the waves of the queue, inside their kernels. Without it
// the driver waits until the waves have finished, for 9 s by default, and then takes the GPU
// for hung and resets it (KFD_PREEMPT_TYPE_WAVEFRONT_DRAIN, queue_preemption_timeout_ms). So
// where CWSR is off no queue is interrupted.

// answer is the result of a probe.
type answer uint8

const (
	unknown answer = iota // it could not be found out
	yes
	no
)

// cwsr says whether a GPU saves and restores waves, and how that was found out.
type cwsr struct {
	is  answer
	why string
	try bool // queues may be interrupted
}

// probeCWSR finds out whether a GPU saves and restores waves. What cannot be read is no reason
// against it if the driver says that it suspends queues for debuggers.
func probeCWSR(n kfd.Node, enabled bool, enabledErr error) cwsr {
	const suspends = kfd.CapTrapDebug | kfd.CapTrapDebugFirmware
	sizes := fmt.Sprintf("a queue saves %d KiB (cwsr_size), of these %d KiB control stack", n.Save.Size>>10, n.Save.Stack>>10)
	var missing string
	switch {
	case enabledErr == nil && !enabled:
		return cwsr{is: no, why: "it is turned off: amdgpu.cwsr_enable is 0"}
	case n.GFX < 90000:
		return cwsr{is: no, why: fmt.Sprintf("%v is older than gfx9", n.GFX)}
	case n.Save.Known && (n.Save.Size == 0 || n.Save.Stack == 0):
		return cwsr{is: no, why: "the driver has no save area for this GPU (cwsr_size or ctl_stack_size is 0)"}
	case enabledErr == nil && n.Save.Known:
		return cwsr{is: yes, why: sizes, try: true}
	case enabledErr != nil:
		missing = fmt.Sprintf("amdgpu.cwsr_enable cannot be read (%v)", enabledErr)
	default:
		missing = "the driver does not report cwsr_size: it is older than Linux 6.12"
	}
	if n.Capability&suspends == suspends {
		return cwsr{why: missing + "; it is tried, because the driver says that it suspends queues for debuggers", try: true}
	}
	return cwsr{why: missing + "; it is not tried, because the driver does not say that it suspends queues for debuggers"}
}

// refusal says why queues are not interrupted, or returns nil.
func (c cwsr) refusal() error {
	if c.try {
		return nil
	}
	return fmt.Errorf("no CWSR: %s: %w", c.why, hal.ErrNotSupported)
}

// cwsrCheck is the line of giveway doctor.
func (g *gpu) cwsrCheck() hal.Check {
	c := hal.Check{Name: "AMD CWSR of " + string(g.info.Device.ID), OK: g.cwsr.try}
	switch g.cwsr.is {
	case yes:
		c.Detail = "kernels can be interrupted: " + g.cwsr.why
	case no:
		c.Detail = "kernels cannot be interrupted: " + g.cwsr.why
		c.Fix = "load amdgpu with cwsr_enable=1, its default, if the GPU is gfx9 or newer; until then the shim holds launches (giveway run)"
	default:
		c.Detail = "could not tell: " + g.cwsr.why
		c.Fix = "let the daemon read /sys/module/amdgpu/parameters, or use Linux 6.12; until then the shim holds launches (giveway run)"
	}
	return c
}
