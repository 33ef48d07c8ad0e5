package amd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// The tests in this file use the double behind a real path, with real processes: ptrace,
// signals and process death are those of the kernel.

// testMachine is a Machine with an open driver.
type testMachine struct {
	*kfdtest.Machine
	*testing.T
	driver *driver
}

func newTestMachine(t *testing.T, patched bool) *testMachine {
	t.Helper()
	m := kfdtest.NewMachine(t, kfdtest.Config{Patched: patched})
	d, err := open(Config{Dev: m.Path, Sys: kfd.Sysfs(m.Sys)})
	check(t, err)
	t.Cleanup(func() { _ = d.close() })
	return &testMachine{m, t, d}
}

// attachAll attaches queues.
func attachAll(d *driver, ids []kfdtest.QueueID) (queues []*queue, err error) {
	for _, id := range ids {
		q, err := d.gpus[0].attach(target{pid: id.PID, queue: id.Queue})
		if err != nil {
			return nil, err
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// stopped starts a process with one queue and stops the queue.
func (m *testMachine) stopped() (*kfdtest.Process, *queue) {
	m.Helper()
	p := m.StartProcess(1)
	queues, err := attachAll(m.driver, p.Queues)
	check(m, err)
	check(m, m.stop(queues[0]))
	if p.Running() != 0 {
		m.Fatal("the stopped queue runs")
	}
	return p, queues[0]
}

func (m *testMachine) stop(q *queue) error  { return m.driver.stop([]*queue{q})[0] }
func (m *testMachine) start(q *queue) error { return m.driver.start([]*queue{q})[0] }

// status returns the value of a line of /proc/PID/status.
func status(pid int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func traced(pid int) bool { return status(pid, "TracerPid") != "0" }

// within fails the test if do hangs or fails.
func (m *testMachine) within(what string, do func() error) {
	m.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			m.Fatalf("%s: %v", what, err)
		}
	case <-time.After(20 * time.Second):
		m.Fatalf("%s: hangs", what)
	}
}

// update makes a process change its first queue, which works only if the process runs.
func update(p *kfdtest.Process) error { return kfdtest.UpdateQueue(p, 0, 1<<30, 4096, 100, 8) }

// TestProcessIsTracedDuringSession checks that a process is traced only between the first
// stop and the close of its last queue.
func TestProcessIsTracedDuringSession(t *testing.T) {
	m := newTestMachine(t, false)
	p := m.StartProcess(2)
	queues, err := attachAll(m.driver, p.Queues)
	check(t, err)
	if traced(p.PID) {
		t.Error("the process is traced after attaching")
	}
	for range 3 {
		check(t, m.stop(queues[0]))
		if m.Active(p.Queues[0]) || !m.Active(p.Queues[1]) || !traced(p.PID) {
			t.Errorf("stopped: got active %v and %v, traced %v; want false, true, true", m.Active(p.Queues[0]), m.Active(p.Queues[1]), traced(p.PID))
		}
		check(t, m.start(queues[0]))
		if p.Running() != 2 {
			t.Errorf("started: got %d running queues, want 2", p.Running())
		}
	}
	check(t, m.stop(queues[1]))
	check(t, queues[0].close())
	if m.Active(p.Queues[1]) {
		t.Error("closing the first queue started the second")
	}
	check(t, queues[1].close())
	if left := m.Left(); left != "" || traced(p.PID) {
		t.Errorf("closed: got %q, traced %v; want nothing left", left, traced(p.PID))
	}
	if got := m.Calls(kfdtest.Trap(kfd.OpEnable)); got != 3 {
		t.Errorf("got %d sessions, want 3: two for proofs and one for the stops", got)
	}
}

// TestBatchMethodDoesNotTrace checks that the patched driver needs no tracing.
func TestBatchMethodDoesNotTrace(t *testing.T) {
	m := newTestMachine(t, true)
	p, q := m.stopped()
	if traced(p.PID) {
		t.Error("the process is traced")
	}
	check(t, q.close())
	if p.Running() != 1 || m.Left() != "" {
		t.Errorf("closed: got %d running queues, %q; want 1 and nothing left", p.Running(), m.Left())
	}
}

// TestSignals checks that signals reach a process in a session.
func TestSignals(t *testing.T) {
	m := newTestMachine(t, false)
	p, _ := m.stopped()
	isStopped := func() bool {
		s := status(p.PID, "State")
		return strings.HasPrefix(s, "t") || strings.HasPrefix(s, "T")
	}
	check(t, unix.Kill(p.PID, unix.SIGSTOP))
	drivertest.Eventually(t, "stopped by SIGSTOP", isStopped)
	time.Sleep(10 * time.Millisecond)
	if !isStopped() {
		t.Errorf("10 ms after SIGSTOP: got state %s, want stopped", status(p.PID, "State"))
	}
	check(t, unix.Kill(p.PID, unix.SIGCONT))
	m.within("update after SIGCONT", func() error { return update(p) })
	check(t, unix.Kill(p.PID, unix.SIGTERM))
	drivertest.Eventually(t, "ended by SIGTERM", func() bool { return status(p.PID, "VmSize") == "" && m.Left() == "" })
}

// TestProcessEndsInSession checks that a process whose queue is stopped can end.
func TestProcessEndsInSession(t *testing.T) {
	for name, end := range map[string]func(*testMachine, *kfdtest.Process){
		"Killed": func(_ *testMachine, p *kfdtest.Process) { p.Kill() },
		"RuntimeEnds": func(m *testMachine, p *kfdtest.Process) {
			m.within("end of the runtime", func() error { return kfdtest.SetRuntime(p, false) })
			p.Kill()
		},
		"KilledWhileDestroying": func(m *testMachine, p *kfdtest.Process) {
			go func() { _ = kfdtest.DestroyQueue(p, p.Queues[0].Queue) }() // waits for the queue
			drivertest.Eventually(m, "destroying", func() bool { return m.Calls(kfdtest.Request(kfd.ReqDestroyQueue)) == 1 })
			m.within("kill", func() error { p.Kill(); return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTestMachine(t, false)
			p, q := m.stopped()
			end(m, p)
			drivertest.Eventually(t, "all undone", func() bool { return m.Left() == "" })
			m.within("start", func() error { return ignoreGone(m.start(q)) })
			m.within("stop", func() error {
				if err := m.stop(q); hal.Outcome(err) != sched.Gone {
					return fmt.Errorf("got %v, want %v", err, hal.ErrGone)
				}
				return nil
			})
			m.within("close", q.close)
		})
	}
}

// TestDestroyStoppedQueue checks that a process which destroys a suspended queue waits
// until it is resumed, and does not wait for an unmapped one.
func TestDestroyStoppedQueue(t *testing.T) {
	for _, patched := range []bool{false, true} {
		m := newTestMachine(t, patched)
		p, q := m.stopped()
		done := make(chan error, 1)
		go func() { done <- kfdtest.DestroyQueue(p, p.Queues[0].Queue) }()
		if !patched {
			drivertest.Eventually(t, "destroying", func() bool { return m.Calls(kfdtest.Request(kfd.ReqDestroyQueue)) == 1 })
			select {
			case err := <-done:
				t.Errorf("destroy did not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			check(t, m.start(q))
		}
		m.within("destroy", func() error { return <-done })
		check(t, q.close())
		if left := m.Left(); left != "" {
			t.Errorf("patched %v: got %q, want nothing left", patched, left)
		}
	}
}

// controllerEnv makes the test binary a controller, which attaches, stops, starts and
// closes queues step by step.
const controllerEnv = "AMD_TEST_CONTROLLER"

type controllerConfig struct {
	Dev, Sys string
	Queues   []kfdtest.QueueID
}

func init() {
	if text := os.Getenv(controllerEnv); text != "" {
		if err := runController(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// runController prints each step when it is done, and waits for a line of input before
// the next.
func runController(text string) error {
	var c controllerConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	var d *driver
	var queues []*queue
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"opened", func() (err error) { d, err = open(Config{Dev: c.Dev, Sys: kfd.Sysfs(c.Sys)}); return err }},
		{"attached", func() (err error) { queues, err = attachAll(d, c.Queues); return err }},
		{"stopped", func() error { return errors.Join(d.stop(queues)...) }},
		{"started", func() error { return errors.Join(d.start(queues)...) }},
		{"closed", func() error { return d.close() }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		fmt.Println(step.name)
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
	}
	return nil
}

type controller struct {
	*drivertest.Child
	t   *testing.T
	out *bufio.Reader
}

func startController(t *testing.T, m *kfdtest.Machine, queues []kfdtest.QueueID) *controller {
	t.Helper()
	text, err := json.Marshal(controllerConfig{m.Path, m.Sys, queues})
	check(t, err)
	c := drivertest.Start(t, drivertest.Self(controllerEnv+"="+string(text)))
	return &controller{c, t, bufio.NewReader(c.Out)}
}

// runTo lets the controller run until it has done a step.
func (c *controller) runTo(step string) {
	c.t.Helper()
	for {
		line, err := c.out.ReadString('\n')
		if err != nil {
			c.t.Fatalf("the controller did not reach %q: %v", step, err)
		}
		if strings.TrimSpace(line) == step {
			return
		}
		c.next()
	}
}

// next lets the controller begin its next step.
func (c *controller) next() { _, _ = io.WriteString(c.In, "\n") }

// TestControllerKilled kills a controller during and between its calls, and checks that no
// queue stays stopped and no process stays traced or claimed.
func TestControllerKilled(t *testing.T) {
	enable, snap := kfdtest.Trap(kfd.OpEnable), kfdtest.Trap(kfd.OpQueueSnapshot)
	suspend, resume, disable := kfdtest.Trap(kfd.OpSuspendQueues), kfdtest.Trap(kfd.OpResumeQueues), kfdtest.Trap(kfd.OpDisable)
	unmap, remap := kfdtest.Request(kfd.ReqBatchUnmap), kfdtest.Request(kfd.ReqFastRemap)
	none := kfdtest.Call{}
	for _, tt := range []struct {
		name    string
		patched bool
		after   string       // the last step that it has done
		in      kfdtest.Call // the call during which it dies; none: between calls
		skip    int          // of those calls
	}{
		{"proving, before the session", false, "opened", enable, 0},
		{"proving, in the session", false, "opened", snap, 0},
		{"proving, at the end of the session", false, "opened", disable, 1},
		{"between seize and suspend", false, "attached", enable, 0},
		{"suspending", false, "attached", suspend, 0},
		{"suspending the second process", false, "attached", suspend, 1},
		{"stopped", false, "stopped", none, 0},
		{"resuming", false, "stopped", resume, 0},
		{"resuming the second process", false, "stopped", resume, 1},
		{"closing", false, "started", disable, 1},
		{"proving on a patched driver", true, "opened", unmap, 1},
		{"unmapping", true, "attached", unmap, 0},
		{"unmapping the second process", true, "attached", unmap, 1},
		{"unmapped", true, "stopped", none, 0},
		{"remapping", true, "stopped", remap, 0},
		{"remapping the second process", true, "stopped", remap, 1},
		{"closing on a patched driver", true, "started", remap, 0},
	} {
		for _, effect := range []bool{false, true} {
			if tt.in == none && effect || testing.Short() && !effect && tt.in != none {
				continue // once is enough for the race detector
			}
			t.Run(fmt.Sprintf("%s/effect=%v", tt.name, effect), func(t *testing.T) {
				m := newTestMachine(t, tt.patched)
				processes := []*kfdtest.Process{m.StartProcess(2), m.StartProcess(2)}
				c := startController(t, m.Machine, append(processes[0].Queues[:2:2], processes[1].Queues...))
				c.runTo(tt.after)
				hang := make(chan struct{})
				before := m.Calls(tt.in)
				if tt.in != none {
					f := kfdtest.Fault{Skip: tt.skip, Hang: hang}
					if effect {
						f = kfdtest.Fault{Skip: tt.skip, After: hang}
					}
					m.Inject(tt.in, f)
					c.next()
					drivertest.Eventually(t, "in the call", func() bool { return m.Calls(tt.in) == before+tt.skip+1 })
				}
				check(t, unix.Kill(c.PID, unix.SIGKILL))
				m.Inject(tt.in, kfdtest.Fault{})
				close(hang) // a killed process ends when its call returns
				c.Kill()
				drivertest.Eventually(t, "all undone", func() bool { return m.Left() == "" })
				for _, p := range processes {
					if p.Running() != 2 || traced(p.PID) {
						t.Errorf("process %d: got %d running queues, traced %v; want 2, not traced", p.PID, p.Running(), traced(p.PID))
					}
					m.within("update", func() error { return update(p) })
				}
			})
		}
	}
}
