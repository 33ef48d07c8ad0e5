package shim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// kfdMachine has two AMD GPUs, behind a driver's double, and a program of the usual kind
// with the shim before it. No GPU has seen any of this.
type kfdMachine struct {
	*testing.T
	kfd  *kfdtest.KFD
	keep *keeper // nil: no daemon
	dir  string
	path string
	prog *program
	page *shimpage.Page
}

const (
	firstGPU, secondGPU = 51545, 4711
	ringOf, ringSize    = 1 << 30, 8192
	anyErrno            = 77 // errno of a call that leaves it alone
)

func newKFDMachine(t *testing.T, dir string) *kfdMachine {
	t.Helper()
	second := kfdtest.MI300X
	second.Index, second.GPU, second.UniqueID = 2, secondGPU, 0x123
	m := &kfdMachine{T: t, dir: dir, kfd: kfdtest.New(kfdtest.Config{GPUs: []kfd.Node{kfdtest.MI300X, second}})}
	m.path = kfdtest.Mounted(t, m.kfd).Path
	return m
}

// run starts the program at a daemon; nil: at none.
func (m *kfdMachine) run(k *keeper) {
	m.Helper()
	m.keep = k
	if k == nil {
		k = &keeper{socket: "/nowhere"}
	}
	m.prog = start(m, k, m.dir, "kfdwork", m.path)
	m.prog.until("ready")
}

// ask has the program do something, and wants that to come of it.
func (m *kfdMachine) ask(line, want string) {
	m.Helper()
	m.prog.tell(line)
	if got := m.prog.until(strings.SplitN(want, " ", 2)[0]); got != want {
		m.Errorf("%s: %s, want %s", line, got, want)
	}
}

func (m *kfdMachine) create(gpu, want uint32) kfdtest.QueueID {
	m.Helper()
	m.ask(fmt.Sprintf("create %d 2 %d %d 100 7 96", gpu, ringOf+int(want)<<20, ringSize), fmt.Sprintf("created 0 %d %d", anyErrno, want))
	return m.id(want)
}

func (m *kfdMachine) id(queue uint32) kfdtest.QueueID {
	return kfdtest.QueueID{PID: m.prog.cmd.Process.Pid, Queue: queue}
}

// is wants a queue to be as it was made but for percentage and priority.
func (m *kfdMachine) is(id kfdtest.QueueID, percent, priority uint32) {
	m.Helper()
	want := kfdtest.State{Ring: ringOf + uint64(id.Queue)<<20, RingSize: ringSize, Percent: percent, Priority: priority}
	if got, _ := m.kfd.State(id); got != want {
		m.Errorf("queue %d is %+v, want %+v", id.Queue, got, want)
	}
}

// comesTo waits until it is so.
func (m *kfdMachine) comesTo(id kfdtest.QueueID, percent, priority uint32) {
	m.Helper()
	pagetest.Until(m, fmt.Sprintf("queue %d at %d%%, priority %d", id.Queue, percent, priority), func() bool {
		s, there := m.kfd.State(id)
		return there && s.Percent == percent && s.Priority == priority
	})
	m.is(id, percent, priority)
}

// off has queues on a GPU taken off, or put back, and waits for the answer.
func (m *kfdMachine) off(gpu uint32, off bool) {
	m.Helper()
	turn, ok := m.page.SetQueuesStopped(gpu, off, lease)
	if !ok {
		m.Fatal("there is no room for it")
	}
	pagetest.Until(m, "the program answers", func() bool { return m.page.Applied(turn) })
}

// updates is how often queues were updated so far.
func (m *kfdMachine) updates() int { return m.kfd.Calls(kfdtest.Request(kfd.ReqUpdateQueue)) }

// testKFD runs a program with queues of its own on AMD GPUs.
func testKFD(b bench) {
	b.compile("kfdwork", "test/kfdwork.c")
	for _, test := range []struct {
		name string
		run  func(*kfdMachine)
	}{
		{"off and on", testKFDOffOn},
		{"made and destroyed while off", testKFDChange},
		{"the program's own updates", testKFDUpdates},
		{"priority", testKFDPriority},
		{"two GPUs", testKFDTwoGPUs},
		{"what the driver refuses", testKFDRefused},
		{"a destroy that waits", testKFDDestroyWaits},
		{"daemon dies", testKFDDaemonDies},
		{"daemon hangs", testKFDDaemonHangs},
		{"daemon restarts", testKFDDaemonRestarts},
		{"another page", testKFDAnotherPage},
		{"the program ends", testKFDEnds},
		{"fork", testKFDFork},
		{"another file", testKFDAnotherFile},
		{"threads", testKFDThreads},
		{"hostile page", testKFDHostile},
		{"other calls", testKFDOther},
		{"cost", testKFDCost},
	} {
		b.t.Run(test.name, func(t *testing.T) { test.run(newKFDMachine(t, b.dir)) })
	}
}

// begin starts the program with one queue, at a daemon.
func (m *kfdMachine) begin() kfdtest.QueueID {
	m.Helper()
	m.run(keep(m, open))
	id := m.create(firstGPU, 0)
	m.page = m.keep.page()
	pagetest.Until(m, "its queue is told of", func() bool { return m.page.QueueCounts(firstGPU).Queues == 1 })
	return id
}

func testKFDOffOn(m *kfdMachine) {
	a := m.begin()
	b := m.create(firstGPU, 1)
	m.ask(fmt.Sprintf("create %d 1 %d 4096 100 7 96", firstGPU, ringOf), "created 0 77 2") // copies: not ours
	for range 3 {
		m.off(firstGPU, true)
		m.is(a, 0, 7)
		m.is(b, 0, 7)
		if s, _ := m.kfd.State(m.id(2)); s.Percent != 100 {
			m.Errorf("a queue for copies is %+v", s)
		}
		if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 2, Stopped: 2}) {
			m.Errorf("the program tells %+v", o)
		}
		time.Sleep(2 * lease) // it stays so while the lease is kept up
		m.is(a, 0, 7)
		m.off(firstGPU, false)
		m.is(a, 100, 7)
		m.is(b, 100, 7)
	}
	// A size of before KFD 1.17.
	m.ask(fmt.Sprintf("create %d 0 %d %d 100 7 88", firstGPU, ringOf+3<<20, ringSize), "created 0 77 3")
	m.off(firstGPU, true)
	m.is(m.id(3), 0, 7)
	m.prog.tell("quit")
	m.prog.ok()
}

func testKFDChange(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	b := m.create(firstGPU, 1)
	m.is(b, 0, 7) // before the program hears of it
	m.ask("destroy 0", "destroyed 0 77")
	if o := m.page.QueueCounts(firstGPU); o.Queues != 1 {
		m.Errorf("one is destroyed: %+v", o)
	}
	// The next has its number, and is another.
	m.ask(fmt.Sprintf("create %d 2 %d %d 50 3 96", firstGPU, ringOf, ringSize), "created 0 77 0")
	m.is(a, 0, 3)
	m.off(firstGPU, false)
	m.is(a, 50, 3)
	m.is(b, 100, 7)
	// A number that has come back is not taken for what it was: nothing is done to it.
	m.ask("destroy 1", "destroyed 0 77")
	m.ask(fmt.Sprintf("create %d 1 %d %d 100 7 96", firstGPU, ringOf+1<<20, ringSize), "created 0 77 1")
	m.off(firstGPU, true)
	m.is(a, 0, 3)
	m.is(b, 100, 7)
	// What is destroyed unseen is forgotten: when its number comes again, or is refused.
	m.ask("vanish 0", "destroyed 0 77")
	m.create(firstGPU, 0)
	m.is(a, 0, 7)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 1, Stopped: 1}) {
		m.Errorf("%+v", o)
	}
	m.ask("vanish 0", "destroyed 0 77")
	m.off(firstGPU, false)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{}) {
		m.Errorf("%+v", o)
	}
}

func testKFDUpdates(m *kfdMachine) {
	a := m.begin()
	update := func(percent, priority uint32) {
		m.Helper()
		m.ask(fmt.Sprintf("update 0 %d %d %d %d", ringOf, ringSize, percent, priority), "updated 0 77")
	}
	update(60, 5)
	m.is(a, 60, 5)
	m.off(firstGPU, true)
	m.is(a, 0, 5)
	update(70, 6) // while it is off
	m.is(a, 0, 6)
	m.ask(fmt.Sprintf("update 0 %d %d 101 6", ringOf, ringSize), "updated -1 22") // as without us
	m.ask("update 9 0 0 0 0", "updated -1 14")
	m.off(firstGPU, false)
	m.is(a, 70, 6)
	m.off(firstGPU, true)
	update(0, 6) // its own wish to be off outlives ours
	m.off(firstGPU, false)
	m.is(a, 0, 6)
	update(100, 6)
	m.is(a, 100, 6)
}

func testKFDPriority(m *kfdMachine) {
	a := m.begin()
	m.page.SetQueuePriority(11, lease)
	m.comesTo(a, 100, 11)
	b := m.create(firstGPU, 1)
	m.is(b, 100, 11)
	m.ask(fmt.Sprintf("update 0 %d %d 90 4", ringOf, ringSize), "updated 0 77")
	m.is(a, 90, 11)
	m.off(firstGPU, true)
	m.is(a, 0, 11)
	m.page.SetQueuePriority(0, lease)
	m.comesTo(a, 0, 0)
	m.off(firstGPU, false)
	m.is(a, 90, 0)
	m.page.SetQueuePriority(-1, lease)
	m.comesTo(a, 90, 4)
	m.comesTo(b, 100, 7)
	m.page.SetQueuePriority(3, lease)
	m.comesTo(a, 90, 3)
	m.keep.Die()
	m.comesTo(a, 90, 4)
}

func testKFDTwoGPUs(m *kfdMachine) {
	a := m.begin()
	b := m.create(secondGPU, 1)
	m.off(secondGPU, true)
	m.is(a, 100, 7)
	m.is(b, 0, 7)
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	m.off(secondGPU, false)
	m.is(a, 0, 7)
	m.is(b, 100, 7)
	if o := m.page.QueueCounts(secondGPU); o != (shimpage.QueueCounts{Queues: 1}) {
		m.Errorf("%+v", o)
	}
}

// What the driver will not do is told, and what it would not undo is tried again.
func testKFDRefused(m *kfdMachine) {
	a := m.begin()
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{Errno: syscall.EIO})
	m.off(firstGPU, true)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 1, Failed: 1, Errno: uint32(syscall.EIO)}) {
		m.Errorf("%+v", o)
	}
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{})
	m.comesTo(a, 0, 7)
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{Errno: syscall.ETIME, Times: 2})
	m.off(firstGPU, false)
	m.comesTo(a, 100, 7)
	// Signals are nobody's failure.
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{Errno: syscall.EINTR, Times: 3})
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	m.off(firstGPU, false)
	// A destroy that fails leaves the queue as it was, under control.
	m.kfd.Inject(kfdtest.Request(kfd.ReqDestroyQueue), kfdtest.Fault{Errno: syscall.EBUSY, Times: 1})
	m.ask("destroy 0", fmt.Sprintf("destroyed -1 %d", syscall.EBUSY))
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	m.ask(fmt.Sprintf("create %d 2 0 4096 101 7 96", firstGPU), fmt.Sprintf("created -1 %d 0", syscall.EINVAL))
	if o := m.page.QueueCounts(firstGPU); o.Queues != 1 {
		m.Errorf("a queue that was not made: %+v", o)
	}
}

// While a queue is being destroyed, for however long, it is not touched, and others are.
func testKFDDestroyWaits(m *kfdMachine) {
	m.begin()
	b := m.create(firstGPU, 1)
	wait := make(chan struct{})
	m.kfd.Inject(kfdtest.Request(kfd.ReqDestroyQueue), kfdtest.Fault{Hang: wait, Times: 1})
	m.prog.tell("destroy 0")
	pagetest.Until(m, "it waits", func() bool { return m.kfd.Calls(kfdtest.Request(kfd.ReqDestroyQueue)) == 1 })
	before := m.updates()
	m.off(firstGPU, true)
	m.is(b, 0, 7)
	if n := m.updates() - before; n != 1 {
		m.Errorf("%d updates for the queue that is left", n)
	}
	close(wait)
	if line := m.prog.until("destroyed"); line != "destroyed 0 77" {
		m.Error(line)
	}
}

func testKFDDaemonDies(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	began := time.Now()
	m.keep.Die()
	m.comesTo(a, 100, 7)
	// Its lease is that of the tests; nothing else takes time, on a machine that has it.
	if took := time.Since(began); took > 4*lease {
		m.Errorf("it was off for %v", took)
	}
}

func testKFDDaemonHangs(m *kfdMachine) {
	a := m.begin()
	m.keep.HangWhile(func() {
		m.off(firstGPU, true)
		began := time.Now()
		m.comesTo(a, 100, 7)
		if took := time.Since(began); took > 4*lease {
			m.Errorf("it was off for %v", took)
		}
	})
	m.comesTo(a, 0, 7) // it was only slow
}

func testKFDDaemonRestarts(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	m.keep.Die()
	m.comesTo(a, 100, 7)
	second := keep(m, open)
	if err := os.Rename(second.socket, m.keep.socket); err != nil {
		m.Fatal(err)
	}
	m.page.SetQueuesStopped(firstGPU, true, lease) // nobody looks at this one any more
	m.page = second.page()
	pagetest.Until(m, "the new one is told", func() bool { return m.page.QueueCounts(firstGPU).Queues == 1 })
	m.is(a, 100, 7)
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	m.off(firstGPU, false)
	m.is(a, 100, 7)
}

// A thread that launches has the page changed under the one that waits there, which
// then waits on the new one.
func testKFDAnotherPage(m *kfdMachine) {
	a := m.begin()
	m.ask("launch", "done")
	m.off(firstGPU, true)
	m.off(firstGPU, false) // from now on it looks by itself in 5 s
	m.keep.Die()
	second := keep(m, open)
	if err := os.Rename(second.socket, m.keep.socket); err != nil {
		m.Fatal(err)
	}
	for end := time.Now().Add(hang); second.Waiting() == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		m.ask("launch", "done")
	}
	m.page = second.page()
	began := time.Now()
	m.off(firstGPU, true)
	if took := time.Since(began); took > 3*time.Second {
		m.Errorf("it was heard after %v", took)
	}
	m.is(a, 0, 7)
}

// At its end a program's queues run: what it may still wait for comes to an end.
func testKFDEnds(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	hold := make(chan struct{})
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{After: hold})
	m.prog.tell("quit")
	m.comesTo(a, 100, 7)
	close(hold)
	m.prog.ok()
}

func testKFDFork(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	before := m.updates()
	m.ask("fork", "forked 0")
	m.is(a, 0, 7)
	if n := m.updates() - before; n != 0 {
		m.Errorf("%d updates of the child's came to the driver", n)
	}
	if m.keep.Waiting() != 0 {
		m.Error("the child has asked for a page")
	}
	// Nor is one stopped that came into being behind the C library's back.
	m.prog.tell(fmt.Sprintf("clone %d", firstGPU))
	child := kfdtest.QueueID{}
	if _, err := fmt.Sscanf(m.prog.until("cloned"), "cloned %d", &child.PID); err != nil {
		m.Fatal(err)
	}
	if s, _ := m.kfd.State(child); s.Percent != 100 {
		m.Errorf("the queue of the child is %+v", s)
	}
	m.prog.tell("")
	m.prog.until("forked 0")
	m.is(a, 0, 7)
	m.off(firstGPU, false)
	m.is(a, 100, 7)
}

// A descriptor that has become another file is not used, and the queue is put back all
// the same.
func testKFDAnotherFile(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	m.ask("reopen", "done")
	m.off(firstGPU, false)
	m.is(a, 100, 7)
	m.ask("dup", "done")
	m.ask(fmt.Sprintf("update 0 %d %d 80 7", ringOf, ringSize), "updated 0 77")
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	m.ask("close", "done")
	m.off(firstGPU, false)
	m.is(a, 80, 7)
}

// Many threads make and destroy queues while the daemon changes its mind.
func testKFDThreads(m *kfdMachine) {
	a := m.begin()
	m.prog.tell(fmt.Sprintf("threads 8 %d", firstGPU))
	for over, i := false, 0; !over; i++ {
		m.off(firstGPU, i%2 == 0)
		select {
		case line := <-m.prog.lines:
			over = line == "done"
		default:
		}
	}
	m.off(firstGPU, true)
	m.is(a, 0, 7)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 1, Stopped: 1}) {
		m.Errorf("%+v", o)
	}
	m.off(firstGPU, false)
	m.is(a, 100, 7)
}

// Whatever stands on the page, queues run again when the lease is over, and never with
// a priority that there is not.
func testKFDHostile(m *kfdMachine) {
	a := m.begin()
	m.off(firstGPU, true)
	fd, bell, err := m.page.Descriptors()
	if err != nil {
		m.Fatal(err)
	}
	defer syscall.Close(fd)
	defer syscall.Close(bell)
	junk := make([]byte, 320)
	m.keep.HangWhile(func() {
		for _, fill := range []byte{0xff, 0x7f, 0x01, 0} {
			for i := range junk {
				junk[i] = fill
			}
			if _, err := syscall.Pwrite(fd, junk, 2048); err != nil {
				m.Fatal(err)
			}
			m.comesTo(a, 100, 7)
			time.Sleep(20 * time.Millisecond)
			m.is(a, 100, 7)
		}
		m.page.SetQueuePriority(16, lease) // 15 is the highest
		time.Sleep(20 * time.Millisecond)
		if s, _ := m.kfd.State(a); s.Priority != 7 {
			m.Errorf("%+v", s)
		}
		m.page.SetQueuesStopped(0x7fffffff, true, lease)
	})
	m.page.SetQueuePriority(-1, lease)
	m.off(firstGPU, true)
	m.is(a, 0, 7)
}

// With the shim and without, other calls come out the same, with queues and without.
func testKFDOther(m *kfdMachine) {
	cmd := exec.Command(filepath.Join(m.dir, "kfdwork"), m.path)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("other\ncreate %d 2 0 0 0 0 96\nother\nquit\n", firstGPU))
	native, err := cmd.Output()
	if err != nil {
		m.Fatal(err)
	}
	for _, k := range []*keeper{nil, keep(m, open)} {
		m.run(k)
		m.prog.tell("other")
		m.prog.until("other")
		m.prog.tell(fmt.Sprintf("create %d 2 0 0 0 0 96", firstGPU))
		m.prog.tell("other")
		m.prog.tell("quit")
		m.prog.ok()
		if got := strings.Join(m.prog.said, "\n") + "\n"; got != string(native) {
			m.Errorf("with the shim:\n%swithout:\n%s", got, native)
		}
		if k != nil && k.page().QueueCounts(firstGPU).Queues != 1 {
			m.Error("the queue was not seen")
		}
	}
}

// While nothing is wanted nobody wakes; while something is, twice a second.
func testKFDCost(m *kfdMachine) {
	m.begin()
	m.off(firstGPU, true)
	m.off(firstGPU, false)
	var task string
	pagetest.Until(m, "there is a thread", func() bool {
		names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", m.prog.cmd.Process.Pid))
		for _, name := range names {
			if text, _ := os.ReadFile(name); string(text) == "giveway-kfd\n" {
				task = filepath.Dir(name)
			}
		}
		return task != ""
	})
	wakes := func() (n int) {
		text, err := os.ReadFile(filepath.Join(task, "status"))
		if err != nil {
			m.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		fmt.Sscan(rest, &n)
		return n
	}
	time.Sleep(50 * time.Millisecond)
	before := wakes()
	time.Sleep(time.Second)
	if n := wakes() - before; n > 1 {
		m.Errorf("idle it woke %d times in a second", n)
	}
	status, _ := os.ReadFile(filepath.Join(task, "status"))
	if !strings.Contains(string(status), "SigBlk:\tfffffff") {
		m.Errorf("signals are not blocked in our thread:\n%s", status)
	}
}
