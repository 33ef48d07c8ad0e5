package amd_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// node is a driver's double behind a real path, with real programs: ptrace, users
// and death are the kernel's own.
type node struct {
	*testing.T
	kfd  *kfdtest.KFD
	path string
	sys  string
}

func newNode(t *testing.T, patched bool) *node {
	t.Helper()
	n := &node{T: t, sys: t.TempDir()}
	n.kfd = kfdtest.New(kfdtest.Config{Patched: patched, Sys: n.sys})
	n.path = kfdtest.Mounted(t, n.kfd).Path
	return n
}

// program starts a program with queues.
func (n *node) program(queues int) (*kfdtest.Program, []kfdtest.QueueID) {
	n.Helper()
	p := kfdtest.Start(n, os.Getuid())
	n.check(p.Open(n.path))
	n.check(kfd.SetRuntime(p, true))
	var ids []kfdtest.QueueID
	for range queues {
		ids = append(ids, n.addQueue(p))
	}
	return p, ids
}

func (n *node) addQueue(p *kfdtest.Program) kfdtest.QueueID {
	n.Helper()
	id, err := kfd.CreateQueue(p, kfd.NewQueue{GPU: kfdtest.MI300X.GPU, Type: kfd.TypeComputeAQL, Ring: 1 << 30, RingSize: 4096})
	n.check(err)
	return kfdtest.QueueID{PID: p.PID, Queue: id}
}

func (n *node) check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) open() (*amd.Driver, *amd.Device) {
	n.Helper()
	d, err := amd.Open(amd.Config{Dev: n.path, Sys: kfd.Sysfs(n.sys)})
	n.check(err)
	n.Cleanup(func() { _ = d.Close() })
	return d, d.Devices()[0]
}

func attach(d *amd.Device, ids []kfdtest.QueueID) ([]hal.Queue, error) {
	var queues []hal.Queue
	for i, id := range ids {
		at := sched.QueueID(i + 1)
		d.Offer(at, amd.Target{PID: id.PID, Queue: id.Queue, Priority: 7})
		q, err := d.Attach(hal.Spec{Queue: at})
		if err != nil {
			return nil, err
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// status is a line of /proc/PID/status.
func status(pid int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// within fails the test if something hangs.
func (n *node) within(what string, do func() error) {
	n.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			n.Fatalf("%s: %v", what, err)
		}
	case <-time.After(20 * time.Second):
		n.Fatalf("%s: it hangs", what)
	}
}

// stopped starts a program with one queue and stops that.
func (n *node) stopped() (*kfdtest.Program, kfdtest.QueueID, hal.Queue) {
	n.Helper()
	p, ids := n.program(1)
	_, d := n.open()
	queues, err := attach(d, ids)
	n.check(err)
	n.check(hal.Stop(queues[0], sched.LevelInterrupt))
	if n.kfd.Active(ids[0]) {
		n.Fatal("it runs")
	}
	return p, ids[0], queues[0]
}

// TestTraced: a process is traced while its queues are in a session, not before
// and not after, and is not stopped by that.
func TestTraced(t *testing.T) {
	n := newNode(t, false)
	p, ids := n.program(2)
	_, d := n.open()
	queues, err := attach(d, ids)
	n.check(err)
	if by := status(p.PID, "TracerPid"); by != "0" {
		t.Errorf("attached, it is traced by %s", by)
	}
	for range 3 {
		n.check(hal.Stop(queues[0], sched.LevelInterrupt))
		if n.kfd.Active(ids[0]) || !n.kfd.Active(ids[1]) || status(p.PID, "TracerPid") == "0" {
			t.Errorf("stopped: %v %v, traced by %s", n.kfd.Active(ids[0]), n.kfd.Active(ids[1]), status(p.PID, "TracerPid"))
		}
		n.check(hal.Start(queues[0], sched.LevelInterrupt))
		if !n.kfd.Active(ids[0]) {
			t.Error("it does not run")
		}
	}
	n.check(hal.Stop(queues[1], sched.LevelInterrupt))
	n.check(queues[0].Close())
	if n.kfd.Active(ids[1]) {
		t.Error("with the first the second was given up")
	}
	n.check(queues[1].Close())
	if left := n.kfd.Left(); left != "" || status(p.PID, "TracerPid") != "0" {
		t.Errorf("closed: %s; traced by %s", left, status(p.PID, "TracerPid"))
	}
	if n := n.kfd.Calls(kfdtest.Trap(kfd.OpEnable)); n != 3 {
		t.Errorf("%d sessions for two proofs and the stops", n)
	}
}

// TestBatchIsNotTraced: with the patch no process is traced at all.
func TestBatchIsNotTraced(t *testing.T) {
	n := newNode(t, true)
	p, id, q := n.stopped()
	if status(p.PID, "TracerPid") != "0" {
		t.Error("it is traced")
	}
	n.check(q.Close())
	if !n.kfd.Active(id) || n.kfd.Left() != "" {
		t.Error(n.kfd.Left())
	}
}

// TestSignals: what is sent to a process in a session reaches it.
func TestSignals(t *testing.T) {
	n := newNode(t, false)
	p, _, _ := n.stopped()
	n.check(unix.Kill(p.PID, unix.SIGSTOP))
	eventually(t, func() bool {
		return strings.HasPrefix(status(p.PID, "State"), "t") || strings.HasPrefix(status(p.PID, "State"), "T")
	})
	time.Sleep(10 * time.Millisecond)
	if s := status(p.PID, "State"); s[0] != 't' && s[0] != 'T' {
		t.Errorf("a process that was stopped: %s", s)
	}
	n.check(unix.Kill(p.PID, unix.SIGCONT))
	n.within("an order after SIGCONT", func() error {
		return kfd.UpdateQueue(p, 0, 1<<30, 4096, 100, 8)
	})
	n.check(unix.Kill(p.PID, unix.SIGTERM))
	eventually(t, func() bool { return status(p.PID, "VmSize") == "" })
	eventually(t, func() bool { return n.kfd.Left() == "" })
}

// TestEnd: a process in a session whose queue is stopped can end in any way.
func TestEnd(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*node, *kfdtest.Program, kfdtest.QueueID)
	}{
		{"Killed", func(n *node, p *kfdtest.Program, _ kfdtest.QueueID) { p.Kill() }},
		{"RuntimeEnds", func(n *node, p *kfdtest.Program, _ kfdtest.QueueID) {
			n.within("the end of the runtime", func() error { return kfd.SetRuntime(p, false) })
			p.Kill()
		}},
		{"KilledDestroying", func(n *node, p *kfdtest.Program, id kfdtest.QueueID) {
			go func() { _ = kfd.DestroyQueue(p, id.Queue) }() // it waits for the queue
			eventually(n.T, func() bool { return n.kfd.Calls(kfdtest.Request(kfd.ReqDestroyQueue)) == 1 })
			n.within("the end of a process that waits", func() error { p.Kill(); return nil })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, false)
			p, id, q := n.stopped()
			tt.do(n, p, id)
			eventually(t, func() bool { return n.kfd.Left() == "" })
			n.within("restore", func() error {
				if err := hal.Start(q, sched.LevelInterrupt); err != nil && hal.Outcome(err) != sched.Gone {
					return err
				}
				return nil
			})
			n.within("stop of what is no more", func() error {
				if err := hal.Stop(q, sched.LevelInterrupt); hal.Outcome(err) != sched.Gone {
					return fmt.Errorf("it came out as %v: %w", hal.Outcome(err), err)
				}
				return nil
			})
			n.within("close", q.Close)
		})
	}
}

// TestDestroyWaits: a queue that is suspended is destroyed when it is put back, as
// the driver has it; one that is unmapped by the patch, at once.
func TestDestroyWaits(t *testing.T) {
	for _, patched := range []bool{false, true} {
		n := newNode(t, patched)
		p, id, q := n.stopped()
		done := make(chan error, 1)
		go func() { done <- kfd.DestroyQueue(p, id.Queue) }()
		if !patched {
			eventually(t, func() bool { return n.kfd.Calls(kfdtest.Request(kfd.ReqDestroyQueue)) == 1 })
			select {
			case err := <-done:
				t.Errorf("it did not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			n.check(hal.Start(q, sched.LevelInterrupt))
		}
		n.within("destroy", func() error { return <-done })
		n.check(q.Close())
		if left := n.kfd.Left(); left != "" {
			t.Error(left)
		}
	}
}

// controllerEnv has the test's binary be a controller that dies in the midst.
const controllerEnv = "AMD_TEST_CONTROLLER"

type controllerOrders struct {
	Dev, Sys string
	Queues   []kfdtest.QueueID
}

func TestMain(m *testing.M) {
	runMode()
	if text := os.Getenv(controllerEnv); text != "" {
		if err := control(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// control attaches queues, stops them, starts them and gives them up, each when it
// is told to.
func control(text string) error {
	var o controllerOrders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	pause := func(done string) error {
		fmt.Println(done)
		_, err := in.ReadString('\n')
		return err
	}
	d, err := amd.Open(amd.Config{Dev: o.Dev, Sys: kfd.Sysfs(o.Sys)})
	if err != nil {
		return err
	}
	if err := pause("opened"); err != nil {
		return err
	}
	queues, err := attach(d.Devices()[0], o.Queues)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func() []error
	}{
		{"attached", func() []error { return d.Devices()[0].Switch(queues, nil) }},
		{"stopped", func() []error { return d.Devices()[0].Switch(nil, queues) }},
		{"started", func() []error { return []error{d.Close()} }},
	} {
		if err := pause(step.name); err != nil {
			return err
		}
		for _, err := range step.do() {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// TestControllerKilled: whatever the controller was doing when it is killed,
// nothing stays stopped, traced or claimed.
func TestControllerKilled(t *testing.T) {
	enable, snap := kfdtest.Trap(kfd.OpEnable), kfdtest.Trap(kfd.OpQueueSnapshot)
	suspend, resume, disable := kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Trap(kfd.OpResumeQueues), kfdtest.Trap(kfd.OpDisable)
	unmap, remap := kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Request(kfd.ReqFastRemap)
	none := kfdtest.Call{}
	for _, tt := range []struct {
		name    string
		patched bool
		after   string       // that it says it has done
		in      kfdtest.Call // the call that it dies in; none: between calls
		skip    int          // of those calls
	}{
		{"proving, before the session", false, "opened", enable, 0},
		{"proving, in the session", false, "opened", snap, 0},
		{"proving, ending it", false, "opened", disable, 1},
		{"between seize and suspend", false, "attached", enable, 0},
		{"suspending", false, "attached", suspend, 0},
		{"suspending the second process", false, "attached", suspend, 1},
		{"stopped", false, "stopped", none, 0},
		{"resuming", false, "stopped", resume, 0},
		{"resuming the second process", false, "stopped", resume, 1},
		{"ending", false, "started", disable, 1},
		{"proving by the patch", true, "opened", unmap, 1},
		{"unmapping", true, "attached", unmap, 0},
		{"mid-batch", true, "attached", unmap, 1},
		{"unmapped", true, "stopped", none, 0},
		{"remapping", true, "stopped", remap, 0},
		{"remapping the second process", true, "stopped", remap, 1},
		{"letting go", true, "started", remap, 0},
	} {
		for _, effect := range []bool{false, true} {
			if tt.in == none && effect || testing.Short() && !effect && tt.in != none {
				continue // once is enough for the race detector
			}
			t.Run(fmt.Sprintf("%s/effect=%v", tt.name, effect), func(t *testing.T) {
				n := newNode(t, tt.patched)
				a, queues := n.program(2)
				b, more := n.program(2)
				queues = append(queues, more...)
				c := n.controller(queues)
				c.until(tt.after)
				hang := make(chan struct{})
				before := n.kfd.Calls(tt.in)
				if tt.in != none {
					f := kfdtest.Fault{Skip: tt.skip, Hang: hang}
					if effect {
						f = kfdtest.Fault{Skip: tt.skip, After: hang}
					}
					n.kfd.Inject(tt.in, f)
					c.goOn()
					eventually(t, func() bool { return n.kfd.Calls(tt.in) == before+tt.skip+1 })
				}
				n.check(c.cmd.Process.Kill())
				n.kfd.Inject(tt.in, kfdtest.Fault{})
				close(hang) // until its call is over not even a killed process ends
				_ = c.cmd.Wait()
				eventually(t, func() bool { return n.kfd.Left() == "" })
				for _, id := range queues {
					if !n.kfd.Active(id) {
						t.Errorf("queue %v does not run", id)
					}
				}
				for _, p := range []*kfdtest.Program{a, b} {
					if status(p.PID, "TracerPid") != "0" {
						t.Errorf("process %d is traced", p.PID)
					}
					n.within("an order", func() error { return kfd.UpdateQueue(p, 0, 1<<30, 4096, 100, 8) })
				}
			})
		}
	}
}

type controller struct {
	n   *node
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func (n *node) controller(queues []kfdtest.QueueID) *controller {
	n.Helper()
	text, err := json.Marshal(controllerOrders{n.path, n.sys, queues})
	n.check(err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), controllerEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	n.check(err)
	out, err := cmd.StdoutPipe()
	n.check(err)
	n.check(cmd.Start())
	n.Cleanup(func() { _ = cmd.Process.Kill() })
	return &controller{n, cmd, in, bufio.NewReader(out)}
}

// until has it go on until it says that something is done.
func (c *controller) until(done string) {
	c.n.Helper()
	for {
		line, err := c.out.ReadString('\n')
		if err != nil {
			c.n.Fatalf("the controller has not %s: %v", done, err)
		}
		if strings.TrimSpace(line) == done {
			return
		}
		c.goOn()
	}
}

func (c *controller) goOn() { _, _ = io.WriteString(c.in, "\n") }
