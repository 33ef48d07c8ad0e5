package nvidia

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// TestExitClosesDescriptorAtOnce checks that our copy of the descriptor of a killed process
// is closed without another call: it would keep the process's memory on the GPU.
func TestExitClosesDescriptorAtOnce(t *testing.T) {
	rm, m := newDouble(t)
	p := m.Start(t)
	_, h, stop := start(t, testConfig(m.Path))
	defer stop()
	drivertest.Eventually(t, "the group can be controlled", func() bool {
		return len(h.open()) == 1 && !h.open()[0].detail.Load().Settling
	})
	hang := make(chan struct{})
	defer close(hang)
	for _, c := range []uint32{nvrmtest.SetTimeslice, nvrmtest.DisableChannels} {
		rm.Inject(nvrmtest.Control(c), nvrmtest.Fault{Hang: hang})
	}
	p.Kill()
	drivertest.Eventually(t, "the clients of the killed process are freed", func() bool { return rm.Clients() == 0 })
}

// TestGroupIsControlledWhenItHasSettled checks that a group is offered at once, without a
// call of the driver, and can be controlled settleTime after its last change.
func TestGroupIsControlledWhenItHasSettled(t *testing.T) {
	b, h, made, rm := newOnDouble(t, &fakeHost{})
	now, before := time.Now(), writes(rm)
	early, late := made.group(t, 7), made.group(t, 8)
	b.arrived(early, now)
	b.arrived(late, now.Add(settleTime/2))
	if !isClosed(early.File) {
		t.Error("the descriptor of the first report is open")
	}
	b.offerDue(now.Add(settleTime))
	if n := len(h.open()); n != 1 {
		t.Fatalf("queues before it has settled: got %d, want 1", n)
	}
	q := h.open()[0]
	if q.id != 1 || hal.Abilities(q.queue) != 0 || q.offer.Handoff != nil || !q.detail.Load().Settling || writes(rm) != before {
		t.Errorf("settling queue %d: got %+v, abilities %v, %d writes; want nothing that can be done", q.id, *q.detail.Load(), hal.Abilities(q.queue), writes(rm)-before)
	}
	if due, any := b.nextDue(); !any || !due.Equal(now.Add(3*settleTime/2)) {
		t.Errorf("due: got %v, %v; want %v after the start", due.Sub(now), any, 3*settleTime/2)
	}
	b.offerDue(now.Add(2 * settleTime))
	if open := h.open(); len(open) != 1 || open[0] == q || open[0].detail.Load().Settling {
		t.Fatalf("queues: got %d, want another one", len(open))
	}
	if q.exited || q.queue.Close() != nil {
		t.Error("the settling queue was withdrawn as if the process had exited, or does not close")
	}
	if _, any := b.nextDue(); any {
		t.Error("an arrival is left")
	}
}

// TestChangedGroupIsOfferedAgain checks that a group whose channels change is withdrawn and
// offered again: the new queue waits until the old one is restored, and has the slice that
// was found first, not the one that we set.
func TestChangedGroupIsOfferedAgain(t *testing.T) {
	b, h, made, rm := newOnDouble(t, &fakeHost{slow: true})
	now := time.Now()
	b.arrived(made.group(t, 8), now)
	b.offerDue(now.Add(settleTime))
	old := h.open()[0]
	if err := old.queue.(hal.Slicer).SetSlice(sched.MinSlice); err != nil {
		t.Fatal(err)
	}
	b.arrived(made.group(t, 7), now)
	b.offerDue(now.Add(settleTime))
	if old.withdrawn == nil || old.exited {
		t.Fatalf("old queue: withdrawn %v, exited %v; want it withdrawn, not exited", old.withdrawn != nil, old.exited)
	}
	q := h.open()[0]
	if q.offer.After != (<-chan struct{})(old.withdrawn) {
		t.Error("the new offer does not wait for the old queue's restoration")
	}
	if got := q.detail.Load().FoundSlice; got != defaultSlice {
		t.Errorf("found slice: got %v, want %v", got, defaultSlice)
	}
	old.close()
	if err := q.queue.(hal.Slicer).SetSlice(0); err != nil || made.slice(t) != defaultSlice {
		t.Errorf("slice after zero was set: got %v, %v; want %v", made.slice(t), err, defaultSlice)
	}
	if err := q.queue.(hal.Interrupter).Interrupt(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		if got := rm.Disabled(made.Client, made.Compute.Channels[6+i]); got != want {
			t.Errorf("channel %d disabled: got %v, want %v", 6+i, got, want)
		}
	}
	if b.restorationOf(made.group(t, 7).Key).done != nil {
		t.Error("a restoration that is done is still listed")
	}
}

// TestGoneGroupIsRestored checks that a group which a process gives up, but another may
// hold, is restored and not abandoned.
func TestGoneGroupIsRestored(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	now := time.Now()
	b.arrived(made.group(t, 8), now)
	b.offerDue(now.Add(settleTime))
	q := h.open()[0]
	if err := q.queue.(hal.Slicer).SetSlice(sched.MinSlice); err != nil {
		t.Fatal(err)
	}
	waiting := made.group(t, 8)
	b.arrived(waiting, now)
	b.gone(&discover.Gone{PID: made.process.PID, Start: made.process.Start + 1}, time.Now())
	if len(h.open()) != 1 {
		t.Error("the queue of an earlier process with the same pid was withdrawn")
	}
	b.gone(&discover.Gone{PID: made.process.PID, Start: made.process.Start, Key: discover.Key{Client: made.Client, Handle: made.Compute.Group}}, time.Now())
	if len(h.open()) != 0 || q.exited || made.slice(t) != defaultSlice {
		t.Errorf("%d queues, exited %v, slice %v; want 0, false, %v", len(h.open()), q.exited, made.slice(t), defaultSlice)
	}
	if !isClosed(waiting.File) {
		t.Error("the descriptor of the pending report is open")
	}
}

// TestRefusedGroupIsNotKept checks that the descriptor of a group which cannot be attached
// is closed.
func TestRefusedGroupIsNotKept(t *testing.T) {
	b, h, made, rm := newOnDouble(t, &fakeHost{})
	rm.Inject(nvrmtest.Control(nvrmtest.GetTimeslice), nvrmtest.Fault{Status: nvrm.ErrInsufficientPermissions})
	g := made.group(t, 8)
	b.arrived(g, time.Time{})
	b.offerDue(time.Now())
	if len(h.open()) != 0 || !isClosed(g.File) {
		t.Errorf("queues: got %d, want 0 and the descriptor closed", len(h.open()))
	}
}

// TestGroupThatNeverSettlesIsControlled: the channels of a group change more often than every
// settleTime. It is controlled all the same, maxSettleTime after it was found and after each
// time that it was offered.
func TestGroupThatNeverSettlesIsControlled(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	const interval = 200 * time.Millisecond
	now, controlled := time.Now(), 0
	var last *fakeQueue
	for i := range 3 * int(maxSettleTime/interval) {
		b.arrived(made.group(t, 7+i%2), now)
		now = now.Add(interval)
		b.offerDue(now)
		if q := h.open()[0]; q != last && hal.Abilities(q.queue) != 0 {
			last = q
			controlled++
		}
	}
	if controlled != 3 {
		t.Errorf("in %v it was attached %d times, want 3", 3*maxSettleTime, controlled)
	}
}

// TestBusyDriverIsAskedAgain: the driver is busy while a group is attached. The group stays a
// settling queue, that is logged once, and the attempts are made less and less often.
func TestBusyDriverIsAskedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		cmd    uint32
		status nvrm.Status
	}{
		"set slice": {nvrmtest.SetTimeslice, nvrm.ErrBusyRetry},
		"enable":    {nvrmtest.DisableChannels, nvrm.ErrTimeout},
		"get slice": {nvrmtest.GetTimeslice, nvrm.ErrBusyRetry},
		"look up":   {nvrmtest.GetHandleInfo, nvrm.ErrNoMemory},
	} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, known %v", name, known), func(t *testing.T) {
				b, h, made, rm := newOnDouble(t, &fakeHost{})
				var log strings.Builder
				b.log = slog.New(slog.NewTextHandler(&log, nil))
				now := time.Now()
				if b.arrived(made.group(t, 8), now); known { // it is controlled, and then changes
					b.offerDue(now.Add(settleTime))
					b.arrived(made.group(t, 7), now)
				}
				rm.Inject(nvrmtest.Control(c.cmd), nvrmtest.Fault{Status: c.status})
				log.Reset()
				var waits []time.Duration
				for range 10 {
					due, any := b.nextDue()
					if !any {
						t.Fatal("it is not tried again")
					}
					waits = append(waits, due.Sub(now))
					now = due
					b.offerDue(now)
					if open := h.open(); len(open) != 1 || !open[0].detail.Load().Settling {
						t.Fatalf("got %d queues, want one that is settling", len(open))
					}
				}
				if waits[1] != settleTime || waits[2] != 2*settleTime || waits[9] != 30*time.Second {
					t.Errorf("waits: got %v", waits)
				}
				if n := strings.Count(log.String(), "\n"); n != 1 {
					t.Errorf("got %d lines in the log, want 1:\n%s", n, log.String())
				}
				rm.Inject(nvrmtest.Control(c.cmd), nvrmtest.Fault{})
				b.offerDue(now.Add(time.Minute))
				if open := h.open(); len(open) != 1 || hal.Abilities(open[0].queue) != sched.CanSlice|sched.CanInterrupt {
					t.Errorf("got %d queues, want one that can be sliced and interrupted", len(open))
				}
				if _, any := b.nextDue(); any || len(b.queues) != 1 {
					t.Errorf("an arrival is left, or %d queues are listed", len(b.queues))
				}
			})
		}
	}
}

// TestForgedFreesDoNotDelayControl: a process forges frees of its group, so that discovery reports it
// as gone and found more often than every settleTime. It is controlled after maxSettleTime, and at
// once after each later report. If there are no such reports for a while, or for another process,
// a group has its time to settle again.
func TestForgedFreesDoNotDelayControl(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	const interval = 200 * time.Millisecond
	now := time.Now()
	key := discover.Key{Client: made.Client, Handle: made.Compute.Group}
	isControlled := func() bool {
		t.Helper()
		b.offerDue(now)
		open := h.open()
		if len(open) != 1 {
			t.Fatalf("got %d queues, want 1", len(open))
		}
		return hal.Abilities(open[0].queue) != 0
	}
	forge := func() {
		b.gone(&discover.Gone{PID: made.process.PID, Start: made.process.Start, Key: key}, now)
		b.arrived(made.group(t, 8), now)
	}
	found := now
	b.arrived(made.group(t, 8), now)
	for now.Sub(found) < settlePeriod-interval {
		now = now.Add(interval)
		if got, want := isControlled(), now.Sub(found) >= maxSettleTime; got != want {
			t.Fatalf("after %v: controlled %v, want %v", now.Sub(found), got, want)
		}
		forge()
		if got, want := isControlled(), now.Sub(found) >= maxSettleTime; got != want {
			t.Fatalf("after %v, found again: controlled %v, want %v", now.Sub(found), got, want)
		}
	}
	now = now.Add(3 * settlePeriod)
	b.arrived(made.group(t, 7), now) // its channels change
	now = now.Add(settleTime)
	if !isControlled() {
		t.Error("not controlled after its channels have changed")
	}
	for _, again := range []func(){forge, func() {
		b.gone(&discover.Gone{PID: made.process.PID, Start: made.process.Start}, now)
		if len(b.settled) != 0 {
			t.Errorf("kept of a process that has exited: %v", b.settled)
		}
		b.arrived(made.group(t, 8), now)
	}} {
		if again(); isControlled() {
			t.Error("controlled before it has settled")
		}
		if now = now.Add(settleTime); !isControlled() {
			t.Error("not controlled after it has settled")
		}
	}
}

// TestDriverThatRefusesForEver: the driver always gives the same answer to a trial, which is no clear
// refusal. After some attempts the group is controlled as far as the driver permits. It can be
// restored, by the guardian too, and is not without control as long when it changes.
func TestDriverThatRefusesForEver(t *testing.T) {
	const full = sched.CanSlice | sched.CanInterrupt
	for _, tt := range []struct {
		name   string
		cmd    uint32
		fault  nvrmtest.Fault
		want   sched.Ability
		within time.Duration
	}{
		{"channels, invalid state", nvrmtest.DisableChannels, nvrmtest.Fault{Status: nvrm.ErrInvalidState}, sched.CanSlice, 5 * time.Second},
		{"channels, unknown status", nvrmtest.DisableChannels, nvrmtest.Fault{Status: 0x7e}, sched.CanSlice, 5 * time.Second},
		{"channels, timeout", nvrmtest.DisableChannels, nvrmtest.Fault{Status: nvrm.ErrTimeout}, sched.CanSlice, 4 * time.Minute},
		{"slice, invalid state", nvrmtest.SetTimeslice, nvrmtest.Fault{Status: nvrm.ErrInvalidState}, sched.CanInterrupt, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, h, made, rm := newOnDouble(t, &fakeHost{})
			rm.Inject(nvrmtest.Control(tt.cmd), tt.fault)
			now := time.Now()
			found := now
			attach := func() hal.Queue {
				t.Helper()
				for {
					due, any := b.nextDue()
					if !any {
						return h.open()[0].queue
					}
					if now = due; now.Sub(found) > tt.within {
						t.Fatalf("not controlled after %v", now.Sub(found))
					}
					b.offerDue(now)
				}
			}
			b.arrived(made.group(t, 8), now)
			if got := hal.Abilities(attach()); got != tt.want {
				t.Fatalf("abilities: got %v, want %v", got, tt.want)
			}
			if err := made.adopt(t, b, h.open()[0]).Close(); err != nil {
				t.Errorf("restore by the guardian: %v", err)
			}
			b.arrived(made.group(t, 7), now)
			b.offerDue(now.Add(settleTime))
			if got := hal.Abilities(h.open()[0].queue); got != tt.want {
				t.Errorf("abilities after a change: got %v, want %v", got, tt.want)
			}
			if err := h.open()[0].queue.Close(); err != nil {
				t.Errorf("restore: %v", err)
			}
			rm.Inject(nvrmtest.Control(tt.cmd), nvrmtest.Fault{})
			b.arrived(made.group(t, 8), now)
			b.offerDue(now.Add(settleTime))
			if got := hal.Abilities(h.open()[0].queue); got != full {
				t.Errorf("abilities when the driver permits it, after a change: got %v, want %v", got, full)
			}
		})
	}
}

// TestPollDoesNotWaitForAClose checks that the lock that Poll takes is free while the descriptor
// of an exited process is closed, in which the driver may free a context.
func TestPollDoesNotWaitForAClose(t *testing.T) {
	b := New(Config{Only: proc.Everyone})
	g := &discover.Group{Process: proc.Process{PID: 5, Start: 7}, File: nvrm.NewFile(slowToClose(t))}
	b.arrivals[nameOf(g)] = &arrival{group: g, due: time.Now().Add(settleTime)}
	closed := make(chan struct{})
	go func() {
		b.gone(&discover.Gone{PID: 5, Start: 7}, time.Now())
		close(closed)
	}()
	drivertest.Eventually(t, "the arrival is dropped", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.arrivals) == 0
	})
	select {
	case <-closed:
		t.Error("the lock was free only when the descriptor was closed")
	default:
	}
	<-closed
}

// slowToClose returns a descriptor whose close takes two seconds: a socket that waits for its
// peer to take what was sent.
func slowToClose(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := &syscall.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	err = errors.Join(syscall.Connect(fd, to), syscall.SetNonblock(fd, true))
	for err == nil {
		_, err = syscall.Write(fd, make([]byte, 1<<20))
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.SetNonblock(fd, false), syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 2})); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestRemadeGroupIsOfferedAgain checks, without eBPF, that a controlled group which its process
// frees and makes again with the same handles is withdrawn and offered anew: it runs with
// CUDA's slice, whatever was set for the old one.
func TestRemadeGroupIsOfferedAgain(t *testing.T) {
	_, m := newDouble(t)
	p := m.Start(t)
	_, h, stop := start(t, testConfig(m.Path))
	defer stop()
	settled := func() bool { return len(h.open()) == 1 && !h.open()[0].detail.Load().Settling }
	drivertest.Eventually(t, "the group can be controlled", settled)
	old := h.open()[0]
	if err := old.queue.(hal.Slicer).SetSlice(sched.MinSlice); err != nil {
		t.Fatal(err)
	}
	if err := old.queue.(hal.Interrupter).Interrupt(); err != nil {
		t.Fatal(err)
	}
	p.Remake(t)
	drivertest.Eventually(t, "the new group can be controlled", func() bool { return settled() && h.open()[0] != old })
	if got := h.open()[0].detail.Load().FoundSlice; got != defaultSlice {
		t.Errorf("found slice: got %v, want %v", got, defaultSlice)
	}
}
