package daemon

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
)

var hostileFor = flag.Duration("hostile", 0, "how long TestHostileUser attacks; zero: 3 s")

// The users of TestHostileUser: no process of the machine has these uids. Those from
// subordinate on are the hostile user's by /etc/subuid, those from accomplices on are other users.
const (
	hostileUID  = 65201
	victimUID   = 65202
	accomplices = 65210
	subordinate = 3_000_000
)

// hostileConfig is how the documentation says to run where users do not trust each other.
const hostileConfig = `policy: {name: giveway, turn: 20ms}
rules: [{match: {}, class: batch}]
limits: [{match: {}, class: batch, weight: 1, priority: 0}]
`

// TestHostileUser lets one user attack the daemon in many ways at once, also with its
// subordinate uids, and other users in the ways that this one has no requests left for. Meanwhile root and a third user call the API, the third user's batch job
// shares a device with a job of the hostile user, and a lease is watched.
func TestHostileUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs root, to run processes as other users")
	}
	if testing.Short() && *hostileFor == 0 {
		t.Skip("-short: it keeps the machine busy for 10 s")
	}
	h := newHostile(t)
	h.jobs = []*child{h.start(t, "job", victimUID, 0, h.socket), h.start(t, "job", hostileUID, 0, h.socket, "greedy")}
	eventually(t, "both jobs run", func() bool { return steps(h.jobs[0]) > 0 && steps(h.jobs[1]) > 0 })
	length := cmp.Or(*hostileFor, 3*time.Second)
	before := h.measure(t, length/2)
	t.Logf("calls before the attack: root %v; user %v", &before.root, &before.user)
	attackers := h.attack(t)
	time.Sleep(length / 3) // until all are under way
	if _, err := h.root.Change(t.Context(), h.jobs[0].Process.Pid, given("deadline=1h")); err != nil {
		t.Errorf("root's order: %v", err)
	}
	during := h.measure(t, length)
	h.checkJournal(t)
	t.Logf("calls during the attack: root %v; user %v", &during.root, &during.user)
	t.Logf("the victim's share of the device: %.3f before, of %.0f %%; %.3f during, of %.0f %%", before.share, 100*before.used, during.share, 100*during.used)
	t.Logf("leases: %d lapses, %d while the machine was too busy, least time left %v", h.lease.lapses, h.lease.stalls, h.lease.least)
	for _, a := range attackers {
		a.stop(t)
		if out := a.output(); strings.Contains(out, "BROKEN") {
			t.Errorf("%s: %s", a.mode, out)
		} else if *hostileFor > 0 && slices.Contains(ownUser, a.mode) && (strings.HasPrefix(out, "0 ") || strings.Contains(out, "connection reset")) {
			t.Errorf("%s did not reach the daemon: %s", a.mode, out)
		} else {
			t.Logf("%s: %s", a.mode, strings.TrimSpace(out))
		}
	}
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	if h.lease.lapses > 0 {
		t.Errorf("%d leases lapsed", h.lease.lapses)
	}
	limit := 50 * time.Millisecond
	if *hostileFor == 0 { // among other tests: the machine may be busy, and the attackers use its CPUs as well
		limit = 2 * time.Second
	}
	for name, l := range map[string]*latencies{"root": &during.root, "another user": &during.user} {
		if p99 := l.quantile(0.99); len(l.all) == 0 || p99 > limit {
			t.Errorf("%d calls of %s, P99 %v, want at most %v", len(l.all), name, p99, limit)
		}
	}
	if during.share < 0.35 || during.share > 0.65 {
		t.Errorf("the victim's batch job had a share of %.3f, want 0.5", during.share)
	}
}

// hostile is a daemon that is attacked.
type hostile struct {
	dir, socket string
	program     string   // this test, where every user can start it
	mount       []string // starts a program that sees /etc/subuid of the test; nil: not possible here
	jobs        []*child // the victim's and the hostile user's
	daemon      *child
	root        *client.Client
	lease       leaseWatch
}

// mountSubuid gives the hostile user a range of subordinate uids, which the daemon sees
// alone.
func (h *hostile) mountSubuid(t *testing.T) {
	file := filepath.Join(h.dir, "subuid")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%d:%d:65536\n", hostileUID, subordinate), 0o644); err != nil {
		t.Fatal(err)
	}
	mount := []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/subuid && exec "$@"`, file}
	if out, err := exec.Command(mount[0], append(mount[1:], "true")...).CombinedOutput(); err != nil {
		t.Logf("no attacks with subordinate uids, because /etc/subuid cannot be replaced for the daemon: %v: %s", err, out)
		return
	}
	h.mount = mount
}

func newHostile(t *testing.T) *hostile {
	dir, err := os.MkdirTemp("", "hostile") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &hostile{dir: dir, socket: filepath.Join(dir, "s"), program: filepath.Join(dir, "program")}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"program": self, "giveway.yaml": []byte(hostileConfig)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "queues"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.mountSubuid(t)
	h.daemon, h.root = h.start(t, "soak", 0, 0, dir), client.New(h.socket)
	c := h.root
	eventually(t, "the daemon answers", func() bool { _, err := c.Status(t.Context()); return err == nil })
	eventually(t, "two front ends are confined", func() bool {
		fronts := frontEnds(h.daemon.Process.Pid)
		return len(fronts) == 2 && isConfined(fronts[0]) && isConfined(fronts[1])
	})
	conn, page, err := connectShim(h.socket, strconv.Itoa(pageabi.Version), "opencl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Change(t.Context(), os.Getpid(), given("paused=true")); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() { h.lease.watch(page, h.daemon.Process.Pid, over) })
	t.Cleanup(func() { close(over); ended.Wait(); conn.Close() })
	return h
}

// checkJournal checks that the daemon can write its journal, which has the order that root gave during the
// attack, and is no larger than the shares of users allow.
func (h *hostile) checkJournal(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(journal.Path(h.socket))
	if err != nil {
		t.Error(err)
	}
	if key := fmt.Sprintf("%s%d.", keptProcesses, h.jobs[0].Process.Pid); !bytes.Contains(text, []byte(key)) {
		t.Errorf("the journal of %d bytes has no %s: root's order is not kept", len(text), key)
	}
	t.Logf("the journal has %d kB", len(text)>>10)
	st, err := h.root.Status(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, c := range st.Checks {
		if c.Name == "journal" && !c.OK {
			t.Errorf("the daemon reports of its journal: %s", c.Detail)
		}
	}
}

// child is a process of the test that runs as some user.
type child struct {
	*exec.Cmd
	mode string
	in   io.WriteCloser
	out  *logBuffer
	once sync.Once
}

// start starts this test in another mode, as a user, with a nice value.
func (h *hostile) start(t *testing.T, mode string, uid, nice int, args ...string) *child {
	t.Helper()
	argv := append([]string{"nice", "-n", fmt.Sprint(nice), h.program}, args...)
	if mode == "soak" {
		argv = append(slices.Clone(h.mount), argv...)
	}
	c := &child{Cmd: exec.Command(argv[0], argv[1:]...), mode: mode, out: &logBuffer{}}
	c.Env = append(os.Environ(), "DAEMON_TEST="+mode)
	if uid != 0 {
		c.Dir = "/"
	}
	c.Stdout, c.Stderr = c.out, c.out
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	c.WaitDelay = time.Second
	var err error
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if mode == "soak" {
		c.Dir, _ = os.Getwd() // its scenario is in testdata
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if mode == "soak" {
			_ = c.Process.Signal(syscall.SIGTERM)
		}
		c.stop(t)
	})
	return c
}

// stop closes the input of the process, which makes it end, and kills it if it does not.
func (c *child) stop(t *testing.T) {
	c.once.Do(func() {
		c.in.Close()
		kill := time.AfterFunc(20*time.Second, func() { t.Logf("%s does not end", c.mode); _ = c.Process.Kill() })
		_ = c.Wait()
		kill.Stop()
	})
}

func (c *child) output() string { return c.out.String() }

// measured is what the victims saw.
type measured struct {
	root, user  latencies
	share, used float64 // of the device: the victim's part of both jobs', and theirs of the time
}

// steps returns how many commands a job has run so far.
func steps(job *child) (n float64) {
	lines := strings.Fields(job.output())
	if len(lines) > 0 {
		_, _ = fmt.Sscan(lines[len(lines)-1], &n)
	}
	return n
}

// measure lets the victims call the API for a while, and measures the jobs meanwhile.
func (h *hostile) measure(t *testing.T, length time.Duration) (m measured) {
	t.Helper()
	user := h.start(t, "victim", victimUID, 0, h.socket)
	began, victim, other := time.Now(), steps(h.jobs[0]), steps(h.jobs[1])
	c := client.New(h.socket)
	defer c.Close()
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		began := time.Now()
		if _, err := c.Processes(t.Context()); err != nil {
			t.Errorf("root's call: after %v: %v", time.Since(began), err)
		}
		m.root.add(time.Since(began))
	}
	victim, other = steps(h.jobs[0])-victim, steps(h.jobs[1])-other
	m.share = victim / max(victim+other, 1)
	m.used = (victim + other) * jobStep.Seconds() / time.Since(began).Seconds()
	user.stop(t)
	for lines := bufio.NewScanner(strings.NewReader(user.output())); lines.Scan(); {
		if took, err := time.ParseDuration(lines.Text()); err == nil {
			m.user.add(took)
		} else {
			t.Errorf("the user's call: %s", lines.Text())
		}
	}
	return m
}

// attack starts all attacks.
func (h *hostile) attack(t *testing.T) (all []*child) {
	t.Helper()
	const nice = 19 // the kernel's own scheduling is not what is tested
	for i, name := range slices.Sorted(keysOf(attacks)) {
		uid := hostileUID
		if slices.Contains(ownUser, name) {
			uid = accomplices + i
		}
		c := h.start(t, "attack", uid, nice, h.socket, name)
		c.mode = name
		all = append(all, c)
	}
	for i := range 10 {
		if h.mount == nil {
			break
		}
		c := h.start(t, "attack", subordinate+i, nice, h.socket, []string{"connections", "pages"}[i%2])
		c.mode = fmt.Sprintf("%s of uid %d", []string{"connections", "pages"}[i%2], subordinate+i)
		all = append(all, c)
	}
	return all
}

// leaseWatch watches the lease of a page whose gate stays closed.
type leaseWatch struct {
	mu             sync.Mutex
	least          time.Duration // left of a lease
	lapses, stalls int           // lapses, and those while the machine was too busy
}

func (w *leaseWatch) watch(page *pagetest.Process, daemon int, over <-chan struct{}) {
	watchGate(page, daemon, over, func(left time.Duration, stalled bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.least == 0 || left < w.least {
			w.least = left
		}
		switch {
		case left <= 0 && stalled:
			w.stalls++
		case left <= 0:
			w.lapses++
		}
	})
}
