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

// kfdMachine has two AMD GPUs, played by a double of the driver, and a process with the shim. None of
// this has been run on a GPU.
type kfdMachine struct {
	*testing.T
	kfd     *kfdtest.KFD
	daemon  *pagetest.Daemon // nil: no daemon
	dir     string
	path    string
	process *process
	page    *shimpage.Page
}

const (
	firstGPU, secondGPU = 51545, 4711
	ringOf, ringSize    = 1 << 30, 8192
	anyErrno            = 77 // errno after a call that does not change it
)

func newKFDMachine(t *testing.T, dir string) *kfdMachine {
	t.Helper()
	second := kfdtest.MI300X
	second.Index, second.GPU, second.UniqueID = 2, secondGPU, 0x123
	m := &kfdMachine{T: t, dir: dir, kfd: kfdtest.New(kfdtest.Config{GPUs: []kfd.Node{kfdtest.MI300X, second}})}
	m.path = kfdtest.Mounted(t, m.kfd).Path
	return m
}

// run starts the process with a daemon, or without one if d is nil.
func (m *kfdMachine) run(d *pagetest.Daemon) {
	m.Helper()
	m.daemon = d
	socket := "/nowhere"
	if d != nil {
		socket = d.Socket()
	}
	m.process = start(m, socket, m.dir, "kfdwork", m.path)
	m.process.waitFor("ready")
}

// do sends a command to the process and expects an answer.
func (m *kfdMachine) do(line, want string) {
	m.Helper()
	m.process.send(line)
	if got := m.process.waitFor(strings.SplitN(want, " ", 2)[0]); got != want {
		m.Errorf("%s: got %s, want %s", line, got, want)
	}
}

func (m *kfdMachine) create(gpu, want uint32) kfdtest.QueueID {
	m.Helper()
	m.do(fmt.Sprintf("create %d 2 %d %d 100 7 96", gpu, ringOf+int(want)<<20, ringSize), fmt.Sprintf("created 0 %d %d", anyErrno, want))
	return m.id(want)
}

func (m *kfdMachine) id(queue uint32) kfdtest.QueueID {
	return kfdtest.QueueID{PID: m.process.cmd.Process.Pid, Queue: queue}
}

// expectQueue checks that a queue is as it was created except for percentage and priority.
func (m *kfdMachine) expectQueue(id kfdtest.QueueID, percent, priority uint32) {
	m.Helper()
	want := kfdtest.State{Ring: ringOf + uint64(id.Queue)<<20, RingSize: ringSize, Percent: percent, Priority: priority}
	if got, _ := m.kfd.State(id); got != want {
		m.Errorf("queue %d is %+v, want %+v", id.Queue, got, want)
	}
}

// waitForQueue waits until a queue has that percentage and priority.
func (m *kfdMachine) waitForQueue(id kfdtest.QueueID, percent, priority uint32) {
	m.Helper()
	pagetest.Until(m, fmt.Sprintf("queue %d at %d%%, priority %d", id.Queue, percent, priority), func() bool {
		s, there := m.kfd.State(id)
		return there && s.Percent == percent && s.Priority == priority
	})
	m.expectQueue(id, percent, priority)
}

// setStopped stops or starts the queues on a GPU and waits until that is applied.
func (m *kfdMachine) setStopped(gpu uint32, stopped bool) {
	m.Helper()
	seq, ok := m.page.SetQueuesStopped(gpu, stopped, lease)
	if !ok {
		m.Fatal("the page has no entry for the GPU")
	}
	pagetest.Until(m, "the request is applied", func() bool { return m.page.Applied(seq) })
}

// updates returns how often queues were updated so far.
func (m *kfdMachine) updates() int { return m.kfd.Calls(kfdtest.Request(kfd.ReqUpdateQueue)) }

// testKFD runs a process with its own queues on AMD GPUs.
func testKFD(b builder) {
	b.compile("kfdwork", "test/kfdwork.c")
	for _, test := range []struct {
		name string
		run  func(*kfdMachine)
	}{
		{"stop and start", testKFDOffOn},
		{"created and destroyed while stopped", testKFDChange},
		{"the program's own updates", testKFDUpdates},
		{"priority", testKFDPriority},
		{"two GPUs", testKFDTwoGPUs},
		{"refused by the driver", testKFDRefused},
		{"a destroy that waits", testKFDDestroyWaits},
		{"daemon dies", testKFDDaemonDies},
		{"daemon hangs", testKFDDaemonHangs},
		{"daemon restarts", testKFDDaemonRestarts},
		{"page replaced", testKFDAnotherPage},
		{"process exits", testKFDEnds},
		{"fork", testKFDFork},
		{"descriptor reused", testKFDAnotherFile},
		{"threads", testKFDThreads},
		{"hostile page", testKFDHostile},
		{"other ioctls", testKFDOther},
		{"cost", testKFDCost},
	} {
		b.t.Run(test.name, func(t *testing.T) { test.run(newKFDMachine(t, b.dir)) })
	}
}

// startWithQueue starts the process with a daemon and one queue.
func (m *kfdMachine) startWithQueue() kfdtest.QueueID {
	m.Helper()
	m.run(newDaemon(m, noSetup))
	id := m.create(firstGPU, 0)
	m.page = m.daemon.Page()
	pagetest.Until(m, "the page counts the queue", func() bool { return m.page.QueueCounts(firstGPU).Queues == 1 })
	return id
}

func testKFDOffOn(m *kfdMachine) {
	a := m.startWithQueue()
	b := m.create(firstGPU, 1)
	m.do(fmt.Sprintf("create %d 1 %d 4096 100 7 96", firstGPU, ringOf), "created 0 77 2") // a queue for copies, which the shim ignores
	for range 3 {
		m.setStopped(firstGPU, true)
		m.expectQueue(a, 0, 7)
		m.expectQueue(b, 0, 7)
		if s, _ := m.kfd.State(m.id(2)); s.Percent != 100 {
			m.Errorf("a queue for copies is %+v, want 100%%", s)
		}
		if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 2, Stopped: 2}) {
			m.Errorf("got %+v, want 2 queues, both stopped", o)
		}
		time.Sleep(2 * lease) // it stays so while the lease is renewed
		m.expectQueue(a, 0, 7)
		m.setStopped(firstGPU, false)
		m.expectQueue(a, 100, 7)
		m.expectQueue(b, 100, 7)
	}
	// The argument size before KFD 1.17.
	m.do(fmt.Sprintf("create %d 0 %d %d 100 7 88", firstGPU, ringOf+3<<20, ringSize), "created 0 77 3")
	m.setStopped(firstGPU, true)
	m.expectQueue(m.id(3), 0, 7)
	m.process.send("quit")
	m.process.expectOK()
}

func testKFDChange(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	b := m.create(firstGPU, 1)
	m.expectQueue(b, 0, 7) // before the ioctl returns
	m.do("destroy 0", "destroyed 0 77")
	if o := m.page.QueueCounts(firstGPU); o.Queues != 1 {
		m.Errorf("after a queue was destroyed: got %+v, want 1 queue", o)
	}
	// The next queue has the same number.
	m.do(fmt.Sprintf("create %d 2 %d %d 50 3 96", firstGPU, ringOf, ringSize), "created 0 77 0")
	m.expectQueue(a, 0, 3)
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 50, 3)
	m.expectQueue(b, 100, 7)
	// A reused number of a queue that the shim ignores is not confused with the old queue.
	m.do("destroy 1", "destroyed 0 77")
	m.do(fmt.Sprintf("create %d 1 %d %d 100 7 96", firstGPU, ringOf+1<<20, ringSize), "created 0 77 1")
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 3)
	m.expectQueue(b, 100, 7)
	// A queue that was destroyed without the shim is forgotten when its number is reused or refused.
	m.do("vanish 0", "destroyed 0 77")
	m.create(firstGPU, 0)
	m.expectQueue(a, 0, 7)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 1, Stopped: 1}) {
		m.Errorf("got %+v, want 1 queue, stopped", o)
	}
	m.do("vanish 0", "destroyed 0 77")
	m.setStopped(firstGPU, false)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{}) {
		m.Errorf("got %+v, want no queues", o)
	}
}

func testKFDUpdates(m *kfdMachine) {
	a := m.startWithQueue()
	update := func(percent, priority uint32) {
		m.Helper()
		m.do(fmt.Sprintf("update 0 %d %d %d %d", ringOf, ringSize, percent, priority), "updated 0 77")
	}
	update(60, 5)
	m.expectQueue(a, 60, 5)
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 5)
	update(70, 6) // while it is stopped
	m.expectQueue(a, 0, 6)
	m.do(fmt.Sprintf("update 0 %d %d 101 6", ringOf, ringSize), "updated -1 22") // as without the shim
	m.do("update 9 0 0 0 0", "updated -1 14")
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 70, 6)
	m.setStopped(firstGPU, true)
	update(0, 6) // the process stops it itself, which outlives the request
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 0, 6)
	update(100, 6)
	m.expectQueue(a, 100, 6)
}

func testKFDPriority(m *kfdMachine) {
	a := m.startWithQueue()
	m.page.SetQueuePriority(11, lease)
	m.waitForQueue(a, 100, 11)
	b := m.create(firstGPU, 1)
	m.expectQueue(b, 100, 11)
	m.do(fmt.Sprintf("update 0 %d %d 90 4", ringOf, ringSize), "updated 0 77")
	m.expectQueue(a, 90, 11)
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 11)
	m.page.SetQueuePriority(0, lease)
	m.waitForQueue(a, 0, 0)
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 90, 0)
	m.page.SetQueuePriority(-1, lease)
	m.waitForQueue(a, 90, 4)
	m.waitForQueue(b, 100, 7)
	m.page.SetQueuePriority(3, lease)
	m.waitForQueue(a, 90, 3)
	m.daemon.Die()
	m.waitForQueue(a, 90, 4)
}

func testKFDTwoGPUs(m *kfdMachine) {
	a := m.startWithQueue()
	b := m.create(secondGPU, 1)
	m.setStopped(secondGPU, true)
	m.expectQueue(a, 100, 7)
	m.expectQueue(b, 0, 7)
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	m.setStopped(secondGPU, false)
	m.expectQueue(a, 0, 7)
	m.expectQueue(b, 100, 7)
	if o := m.page.QueueCounts(secondGPU); o != (shimpage.QueueCounts{Queues: 1}) {
		m.Errorf("got %+v, want 1 queue, not stopped", o)
	}
}

// testKFDRefused: a change that the driver refuses is reported and tried again.
func testKFDRefused(m *kfdMachine) {
	a := m.startWithQueue()
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{Errno: syscall.EIO})
	m.setStopped(firstGPU, true)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 1, Failed: 1, Errno: uint32(syscall.EIO)}) {
		m.Errorf("got %+v, want 1 queue, failed with EIO", o)
	}
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{})
	m.waitForQueue(a, 0, 7)
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{Errno: syscall.ETIME, Times: 2})
	m.setStopped(firstGPU, false)
	m.waitForQueue(a, 100, 7)
	// An interrupted call is not a failure.
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{Errno: syscall.EINTR, Times: 3})
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	m.setStopped(firstGPU, false)
	// A failed destroy leaves the queue in the list.
	m.kfd.Inject(kfdtest.Request(kfd.ReqDestroyQueue), kfdtest.Fault{Errno: syscall.EBUSY, Times: 1})
	m.do("destroy 0", fmt.Sprintf("destroyed -1 %d", syscall.EBUSY))
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	m.do(fmt.Sprintf("create %d 2 0 4096 101 7 96", firstGPU), fmt.Sprintf("created -1 %d 0", syscall.EINVAL))
	if o := m.page.QueueCounts(firstGPU); o.Queues != 1 {
		m.Errorf("after a failed create: got %+v, want 1 queue", o)
	}
}

// testKFDDestroyWaits: a queue is not updated while it is being destroyed, and others are.
func testKFDDestroyWaits(m *kfdMachine) {
	m.startWithQueue()
	b := m.create(firstGPU, 1)
	wait := make(chan struct{})
	m.kfd.Inject(kfdtest.Request(kfd.ReqDestroyQueue), kfdtest.Fault{Hang: wait, Times: 1})
	m.process.send("destroy 0")
	pagetest.Until(m, "the destroy waits", func() bool { return m.kfd.Calls(kfdtest.Request(kfd.ReqDestroyQueue)) == 1 })
	before := m.updates()
	m.setStopped(firstGPU, true)
	m.expectQueue(b, 0, 7)
	if n := m.updates() - before; n != 1 {
		m.Errorf("%d updates, want 1: for the other queue", n)
	}
	close(wait)
	if line := m.process.waitFor("destroyed"); line != "destroyed 0 77" {
		m.Error(line)
	}
}

func testKFDDaemonDies(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	began := time.Now()
	m.daemon.Die()
	m.waitForQueue(a, 100, 7)
	// The lease is one second; nothing else takes long unless the machine is busy.
	if took := time.Since(began); took > 4*lease {
		m.Errorf("the queue was stopped for %v, want at most %v", took, 4*lease)
	}
}

func testKFDDaemonHangs(m *kfdMachine) {
	a := m.startWithQueue()
	m.daemon.HangWhile(func() {
		m.setStopped(firstGPU, true)
		began := time.Now()
		m.waitForQueue(a, 100, 7)
		if took := time.Since(began); took > 4*lease {
			m.Errorf("the queue was stopped for %v, want at most %v", took, 4*lease)
		}
	})
	m.waitForQueue(a, 0, 7) // the daemon was only slow
}

func testKFDDaemonRestarts(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	m.daemon.Die()
	m.waitForQueue(a, 100, 7)
	second := newDaemon(m, noSetup)
	if err := os.Rename(second.Socket(), m.daemon.Socket()); err != nil {
		m.Fatal(err)
	}
	m.page.SetQueuesStopped(firstGPU, true, lease) // the process does not use this page any more
	m.page = second.Page()
	pagetest.Until(m, "the new page counts the queue", func() bool { return m.page.QueueCounts(firstGPU).Queues == 1 })
	m.expectQueue(a, 100, 7)
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 100, 7)
}

// testKFDAnotherPage: if a thread that launches replaces the page, the shim's thread that waits on
// the old page notices it.
func testKFDAnotherPage(m *kfdMachine) {
	a := m.startWithQueue()
	m.do("launch", "done")
	m.setStopped(firstGPU, true)
	m.setStopped(firstGPU, false) // from now on it would check by itself after 5 s
	m.daemon.Die()
	second := newDaemon(m, noSetup)
	if err := os.Rename(second.Socket(), m.daemon.Socket()); err != nil {
		m.Fatal(err)
	}
	for end := time.Now().Add(timeout); second.Waiting() == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		m.do("launch", "done")
	}
	m.page = second.Page()
	began := time.Now()
	m.setStopped(firstGPU, true)
	if took := time.Since(began); took > 3*time.Second {
		m.Errorf("the request was applied after %v, want at most 3s", took)
	}
	m.expectQueue(a, 0, 7)
}

// testKFDEnds: when the process exits its queues are started, because it may still wait for them.
func testKFDEnds(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	hold := make(chan struct{})
	m.kfd.Inject(kfdtest.Request(kfd.ReqUpdateQueue), kfdtest.Fault{After: hold})
	m.process.send("quit")
	m.waitForQueue(a, 100, 7)
	close(hold)
	m.process.expectOK()
}

func testKFDFork(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	before := m.updates()
	m.do("fork", "forked 0")
	m.expectQueue(a, 0, 7)
	if n := m.updates() - before; n != 0 {
		m.Errorf("the child made %d updates, want 0", n)
	}
	if m.daemon.Waiting() != 0 {
		m.Error("the child asked for a page")
	}
	// Nor does the shim stop the queues of a child that was created without the C library.
	m.process.send(fmt.Sprintf("clone %d", firstGPU))
	child := kfdtest.QueueID{}
	if _, err := fmt.Sscanf(m.process.waitFor("cloned"), "cloned %d", &child.PID); err != nil {
		m.Fatal(err)
	}
	if s, _ := m.kfd.State(child); s.Percent != 100 {
		m.Errorf("the queue of the child is %+v, want 100%%", s)
	}
	m.process.send("")
	m.process.waitFor("forked 0")
	m.expectQueue(a, 0, 7)
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 100, 7)
}

// testKFDAnotherFile: a descriptor that was reused for another file is not used, and the queue is
// started all the same.
func testKFDAnotherFile(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	m.do("reopen", "done")
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 100, 7)
	m.do("dup", "done")
	m.do(fmt.Sprintf("update 0 %d %d 80 7", ringOf, ringSize), "updated 0 77")
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	m.do("close", "done")
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 80, 7)
}

// testKFDThreads: threads create and destroy queues while the daemon stops and starts them.
func testKFDThreads(m *kfdMachine) {
	a := m.startWithQueue()
	m.process.send(fmt.Sprintf("threads 8 %d", firstGPU))
	for over, i := false, 0; !over; i++ {
		m.setStopped(firstGPU, i%2 == 0)
		select {
		case line := <-m.process.lines:
			over = line == "done"
		default:
		}
	}
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
	if o := m.page.QueueCounts(firstGPU); o != (shimpage.QueueCounts{Queues: 1, Stopped: 1}) {
		m.Errorf("got %+v, want 1 queue, stopped", o)
	}
	m.setStopped(firstGPU, false)
	m.expectQueue(a, 100, 7)
}

// testKFDHostile: whatever the page contains, queues are started when the lease is over, and never
// get an invalid priority.
func testKFDHostile(m *kfdMachine) {
	a := m.startWithQueue()
	m.setStopped(firstGPU, true)
	fd, doorbell, err := m.page.Descriptors()
	if err != nil {
		m.Fatal(err)
	}
	defer syscall.Close(fd)
	defer syscall.Close(doorbell)
	junk := make([]byte, 320)
	m.daemon.HangWhile(func() {
		for _, fill := range []byte{0xff, 0x7f, 0x01, 0} {
			for i := range junk {
				junk[i] = fill
			}
			if _, err := syscall.Pwrite(fd, junk, 2048); err != nil {
				m.Fatal(err)
			}
			m.waitForQueue(a, 100, 7)
			time.Sleep(20 * time.Millisecond)
			m.expectQueue(a, 100, 7)
		}
		m.page.SetQueuePriority(16, lease) // 15 is the highest
		time.Sleep(20 * time.Millisecond)
		if s, _ := m.kfd.State(a); s.Priority != 7 {
			m.Errorf("got %+v, want priority 7", s)
		}
		m.page.SetQueuesStopped(0x7fffffff, true, lease)
	})
	m.page.SetQueuePriority(-1, lease)
	m.setStopped(firstGPU, true)
	m.expectQueue(a, 0, 7)
}

// testKFDOther: other ioctls have the same results with and without the shim.
func testKFDOther(m *kfdMachine) {
	cmd := exec.Command(filepath.Join(m.dir, "kfdwork"), m.path)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("other\ncreate %d 2 0 0 0 0 96\nother\nquit\n", firstGPU))
	native, err := cmd.Output()
	if err != nil {
		m.Fatal(err)
	}
	for _, d := range []*pagetest.Daemon{nil, newDaemon(m, noSetup)} {
		m.run(d)
		m.process.send("other")
		m.process.waitFor("other")
		m.process.send(fmt.Sprintf("create %d 2 0 0 0 0 96", firstGPU))
		m.process.send("other")
		m.process.send("quit")
		m.process.expectOK()
		if got := strings.Join(m.process.output, "\n") + "\n"; got != string(native) {
			m.Errorf("got with the shim:\n%swant:\n%s", got, native)
		}
		if d != nil && d.Page().QueueCounts(firstGPU).Queues != 1 {
			m.Error("the page does not count the queue")
		}
	}
}

// testKFDCost: without a request the shim's thread hardly ever wakes.
func testKFDCost(m *kfdMachine) {
	m.startWithQueue()
	m.setStopped(firstGPU, true)
	m.setStopped(firstGPU, false)
	var task string
	pagetest.Until(m, "the thread runs", func() bool {
		names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", m.process.cmd.Process.Pid))
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
		m.Errorf("the thread woke %d times in a second, want at most 1", n)
	}
	status, _ := os.ReadFile(filepath.Join(task, "status"))
	if !strings.Contains(string(status), "SigBlk:\tfffffff") {
		m.Errorf("the thread does not block signals:\n%s", status)
	}
}
