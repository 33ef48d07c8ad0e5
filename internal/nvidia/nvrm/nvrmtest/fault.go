package nvrmtest

import (
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Call is a kind of call.
type Call struct {
	escape uint32
	code   uint32
}

// Control returns the kind of calls that make one control.
func Control(cmd uint32) Call { return Call{nvgpu.NV_ESC_RM_CONTROL, cmd} }

// Alloc returns the kind of calls that make an object of a class.
func Alloc(class uint32) Call { return Call{nvgpu.NV_ESC_RM_ALLOC, class} }

// Free returns the kind of calls that free an object.
func Free() Call { return Call{escape: nvgpu.NV_ESC_RM_FREE} }

// Share returns the kind of calls that share an object.
func Share() Call { return Call{escape: nvgpu.NV_ESC_RM_SHARE} }

// Fault makes calls of one kind slow, hang or fail, in this order. A call that fails
// changes nothing.
type Fault struct {
	Latency time.Duration
	Hang    <-chan struct{} // the call continues when this is closed
	Status  nvrm.Status     // RM's answer
	Errno   unix.Errno      // the kernel's
	Times   int             // number of calls to affect; zero: all, until the next Inject
}

// Inject makes f affect the calls of a kind. It replaces an earlier fault of the kind; the
// zero Fault removes it.
func (rm *RM) Inject(c Call, f Fault) { rm.Set(c, f, 0, f.Times) }

// injectFault counts a call and applies the fault of its kind.
func (rm *RM) injectFault(c Call) (nvrm.Status, unix.Errno) {
	f := rm.Arrive(c)
	if f.Latency > 0 {
		rm.cfg.Sleep(f.Latency)
	}
	if f.Hang != nil {
		<-f.Hang
	}
	return f.Status, f.Errno
}

// Logged returns how many lines the kernel's log would have: one for each control that
// named an unknown client. A client of another file is refused without a line.
func (rm *RM) Logged() int {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	return rm.logged
}

// Clients returns the number of clients.
func (rm *RM) Clients() int {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	return len(rm.clients)
}

// Slice returns the slice of a channel group; zero if there is none.
func (rm *RM) Slice(client, group nvrm.Handle) time.Duration {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	c := rm.clients[client]
	if c == nil || c.objects[group] == nil || c.objects[group].group == nil {
		return 0
	}
	return time.Duration(c.objects[group].group.slice) * time.Microsecond
}

// Disabled reports whether a channel is disabled.
func (rm *RM) Disabled(client, channel nvrm.Handle) bool {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	c := rm.clients[client]
	return c != nil && c.objects[channel] != nil && c.objects[channel].disabled
}
