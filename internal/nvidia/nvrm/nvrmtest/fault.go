package nvrmtest

import (
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Call names a kind of call.
type Call struct {
	escape uint32
	code   uint32
}

// Control names the calls of one control.
func Control(cmd uint32) Call { return Call{nvgpu.NV_ESC_RM_CONTROL, cmd} }

// Alloc names the calls that make an object of a class.
func Alloc(class uint32) Call { return Call{nvgpu.NV_ESC_RM_ALLOC, class} }

// Free names the calls that give an object up.
func Free() Call { return Call{escape: nvgpu.NV_ESC_RM_FREE} }

// Share names the calls that share an object.
func Share() Call { return Call{escape: nvgpu.NV_ESC_RM_SHARE} }

// Fault is what befalls calls of a kind: first time passes, then the call may
// hang, then it may fail. One that fails has changed nothing.
type Fault struct {
	Latency time.Duration
	Hang    <-chan struct{} // the call goes on when this is closed
	Status  nvrm.Status     // RM's answer
	Errno   unix.Errno      // the kernel's
	Times   int             // how many calls it befalls; zero: all, until Inject again
}

// Inject has f befall the calls of a kind, in place of what did. The zero Fault
// takes it away.
func (rm *RM) Inject(c Call, f Fault) {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	if f == (Fault{}) {
		delete(rm.faults, c)
		return
	}
	rm.faults[c] = &f
}

// meet counts a call, and has happen to it what was injected.
func (rm *RM) meet(c Call) (nvrm.Status, unix.Errno) {
	f := rm.arrive(c)
	if f.Latency > 0 {
		rm.cfg.Sleep(f.Latency)
	}
	if f.Hang != nil {
		<-f.Hang
	}
	return f.Status, f.Errno
}

func (rm *RM) arrive(c Call) Fault {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	rm.calls[c]++
	f := rm.faults[c]
	if f == nil {
		return Fault{}
	}
	befalls := *f
	if f.Times > 0 {
		if f.Times--; f.Times == 0 {
			delete(rm.faults, c)
		}
	}
	return befalls
}

// Calls counts the calls of a kind that have come, those that failed included.
func (rm *RM) Calls(c Call) int {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	return rm.calls[c]
}

// Logged counts the lines in the kernel's log: one for each control that named a
// client that nobody has. Somebody else's is refused in silence.
func (rm *RM) Logged() int {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	return rm.logged
}

// Clients counts the clients there are.
func (rm *RM) Clients() int {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	return len(rm.clients)
}

// Disabled reports whether a channel is disabled.
func (rm *RM) Disabled(client, channel nvrm.Handle) bool {
	rm.mu.Lock()
	defer rm.mu.Unlock()
	c := rm.clients[client]
	return c != nil && c.objects[channel] != nil && c.objects[channel].disabled
}
