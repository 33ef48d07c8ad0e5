package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/stats"
)

var kills = flag.Int("kills", 12, "how often the tests that kill the daemon do so")

// TestDaemonKilledAtAnyInstant kills the daemon again and again at random instants while
// it rotates eight batch jobs. The guardian must restore all slices: two busy queues
// left at the minimum slice would complete nothing (measured: 0 kernels/s).
func TestDaemonKilledAtAnyInstant(t *testing.T) {
	b := newTestbed(t)
	online := b.start("lc --kernel 28us --after 5ms --wait --seconds 1000")
	fmt.Fprintln(online.in, "start")
	var batch []*client
	for range 8 {
		batch = append(batch, b.startJob())
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	var took []time.Duration // until everything was restored
	for round := range *kills {
		b.startDaemon()
		b.set(online.pid, "--class", "online")
		for _, c := range batch {
			b.set(c.pid, "--class", "batch")
		}
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		b.killDaemon()
		killed := time.Now()
		for i, c := range batch {
			if _, moved := c.awaitProgress(); !moved {
				t.Fatalf("round %d: batch job %d completed nothing for 3 s after the daemon was killed", round, i+1)
			}
		}
		took = append(took, time.Since(killed))
	}
	recovery := stats.Summarize(slices.Clone(took))
	b.record(fmt.Sprintf("%d kills", *kills), &recovery, nil, fmt.Sprintf("seed %d", seed))
	// Typically 0.35 to 0.53 s. The guardian has 1 s, and progress is up to 0.2 s old.
	b.atMost("seconds until all eight jobs progress", slices.Max(took).Seconds(), 1.5)
	b.startDaemon()
	b.await(online.pid, batch[0].pid, batch[7].pid)
	b.checkAsFound()
}

// checkAsFound lets the daemon restore everything and checks that it found every queue with
// the vendor's slice.
func (b *testbed) checkAsFound() {
	b.Helper()
	b.mustGiveway("restore") // orders survive a restart
	for _, p := range b.ps() {
		for _, q := range p.Queues {
			if q.Slice != 0 || q.State != "running" || slices.Contains(q.Can, "slice") && q.Found < time.Millisecond {
				b.Errorf("process %d at the end: got %+v, want a running queue with the vendor's slice", p.PID, q)
			}
		}
	}
}

// TestBothKilledAtAnyInstant kills the daemon and its guardian together, again and again at
// random instants while they rotate eight batch jobs. Then 'giveway restore', or the next
// daemon, restores all queues from the journal.
func TestBothKilledAtAnyInstant(t *testing.T) {
	b := newTestbed(t)
	online := b.start("lc --kernel 28us --after 5ms --wait --seconds 1000")
	fmt.Fprintln(online.in, "start")
	var batch []*client
	for range 8 {
		batch = append(batch, b.startJob())
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	b.startDaemon()
	b.set(online.pid, "--class", "online")
	for _, c := range batch {
		b.set(c.pid, "--class", "batch")
	}
	var took []time.Duration // until everything was restored
	for round := range *kills {
		time.Sleep(time.Duration(500+random.IntN(400)) * time.Millisecond)
		if drivertest.KillChildren(b.daemon.Process.Pid) == 0 {
			t.Fatalf("round %d: the daemon has no guardian", round)
		}
		b.killDaemon()
		killed := time.Now()
		if round%2 == 0 {
			t.Logf("round %d: %s", round, b.mustGiveway("restore", "--left"))
			took = append(took, time.Since(killed))
		} else {
			b.startDaemon() // which goes on with the classes
		}
		for i, c := range batch {
			if _, moved := c.awaitProgress(); !moved {
				t.Fatalf("round %d: batch job %d completed nothing for 3 s", round, i+1)
			}
		}
		if round%2 == 0 {
			b.startDaemon()
		}
		b.await(online.pid, batch[0].pid, batch[7].pid)
	}
	recovery := stats.Summarize(slices.Clone(took))
	b.record(fmt.Sprintf("%d kills of both", *kills), &recovery, nil, fmt.Sprintf("seed %d", seed))
	b.atMost("seconds that restore takes", slices.Max(took).Seconds(), 1.5)
	b.checkAsFound()
}

// TestFloor checks that a batch job beside a saturating online or standard process
// gets its floor of 2 % (measured: 2.25 % and 45 %).
func TestFloor(t *testing.T) {
	b := newTestbed(t)
	batch := b.startJob()
	alone := batch.rate(3 * time.Second)
	other := b.startJob()
	b.startDaemon()
	for _, class := range []string{"online", "standard"} {
		b.set(other.pid, "--class", class)
		b.set(batch.pid, "--class", "batch")
		time.Sleep(3 * time.Second)
		var got float64
		kept := other.rateDuring(func() { got = batch.rate(30*time.Second) / alone }) / alone
		b.record("beside saturating "+class, nil, values{"batch_of_alone": got, "other_of_alone": kept})
		b.atLeast("batch share beside "+class, got, 0.02)
	}
}

// TestDaemonFindsEarlierProcesses starts the daemon after its clients, on a driver
// that has allocated and freed thousands of RM clients before (measured: 36 to 92 ms
// from start to set, no line in the kernel's log).
func TestDaemonFindsEarlierProcesses(t *testing.T) {
	b := newTestbed(t)
	f, err := nvrm.Open("/dev/nvidiactl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	allocateAndFree := func(clients int) {
		for range clients {
			h, err := nvrm.NewClient(f)
			if err == nil {
				err = nvrm.Free(f, h, 0, h)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	allocateAndFree(300)
	c := b.startJob()
	for _, more := range []int{0, 5000} {
		allocateAndFree(more)
		before, begun := driverLogLines(), time.Now()
		b.startDaemon()
		b.set(c.pid, "--class", "batch")
		took, lines := time.Since(begun), driverLogLines()-before
		b.record(fmt.Sprintf("after %d RM clients", 300+more), nil, values{"found_and_set_ms": float64(took.Milliseconds()), "kernel_log_lines": float64(lines)})
		b.atMost("seconds from the daemon's start to set", took.Seconds(), 1)
		b.atMost("new NVRM lines in the kernel's log", float64(lines), 4)
		b.killDaemon()
	}
}

// driverLogLines counts the driver's lines in the kernel's log; 0 where it cannot be read.
func driverLogLines() int {
	out, _ := exec.Command("dmesg").Output()
	return strings.Count(string(out), "NVRM")
}

// TestIdleBatchJobCostsNothing measures two busy batch jobs with and without a third
// that is idle (measured: 0.999 to 1.003), and how long set takes (4 to 9 ms).
func TestIdleBatchJobCostsNothing(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	var setMs []float64
	set := func(c *client) {
		b.await(c.pid)
		begun := time.Now()
		b.set(c.pid, "--class", "batch")
		setMs = append(setMs, float64(time.Since(begun).Microseconds())/1000)
	}
	busy := []*client{b.startJob(), b.startJob()}
	set(busy[0])
	set(busy[1])
	sum := func() float64 {
		time.Sleep(2 * time.Second)
		return sumOfRates(busy, 4*time.Second)
	}
	var ratios []float64
	for range 3 {
		without := sum()
		idle := b.start("obey --ns-per-iteration " + b.nsPer)
		set(idle)
		with := sum()
		idle.kill()
		ratios = append(ratios, with/without)
		b.record("two busy jobs", nil, values{"without_idle_per_s": without, "with_idle_per_s": with})
	}
	b.record("set", nil, values{"median_ms": median(setMs)})
	b.atLeast("rate with an idle job / without", median(ratios), 0.98)
	b.atMost("milliseconds for set", median(setMs), 50)
}

// TestShortProcesses starts 200 CUDA processes in two minutes, half of them killed and
// some paused when they are. The daemon must not leak (measured: 31 -> 31 descriptors)
// and must be almost idle afterwards (0.4 to 1.1 % of a core).
func TestShortProcesses(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	keep := b.startJob()
	b.set(keep.pid, "--class", "batch")
	time.Sleep(5 * time.Second)
	before := b.daemonUsage()
	begun := time.Now()
	for n := range 50 {
		var four []*client
		for range 4 {
			four = append(four, b.start("be --kernel 1ms --depth 4 --ns-per-iteration "+b.nsPer))
		}
		b.set(four[0].pid, "--class", "online")
		b.set(four[1].pid, "--class", "batch")
		if n%5 == 0 {
			if _, err := b.giveway("pause", strconv.Itoa(four[1].pid)); err != nil {
				t.Error(err)
			}
		}
		for i, c := range four {
			if i%2 == 0 {
				c.quit()
			} else {
				c.kill()
			}
		}
		time.Sleep(time.Until(begun.Add(time.Duration(n+1) * 120 * time.Second / 50)))
	}
	took := time.Since(begun)
	time.Sleep(5 * time.Second)
	after := b.daemonUsage()
	b.record("before", nil, before.values())
	b.record("after 200 processes", nil, after.values())
	b.record("during", nil, values{"core_percent": 100 * (after.cpu - before.cpu).Seconds() / (took.Seconds() + 5)})
	b.atMost("descriptors left open", float64(after.files-before.files), 4)
	b.atMost("resident memory / before", float64(after.kib)/float64(before.kib), 1.6)
	if n := len(b.ps()); n != 1 {
		t.Errorf("giveway ps lists %d processes, want 1", n)
	}
	keep.kill()
	idle := b.daemonUsage()
	time.Sleep(10 * time.Second)
	percent := 100 * (b.daemonUsage().cpu - idle.cpu).Seconds() / 10
	b.record("idle", nil, values{"core_percent": percent})
	b.atMost("percent of a core when idle", percent, 2)
}

// usage is what the daemon's process has taken from the system.
type usage struct {
	files, threads, kib int
	cpu                 time.Duration
}

func (u usage) values() values {
	return values{"descriptors": float64(u.files), "threads": float64(u.threads), "resident_kib": float64(u.kib)}
}

func (b *testbed) daemonUsage() (u usage) {
	pid := b.daemon.Process.Pid
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	u.files = len(files)
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "Threads:":
			u.threads, _ = strconv.Atoi(f[1])
		case len(f) > 1 && f[0] == "VmRSS:":
			u.kib, _ = strconv.Atoi(f[1])
		}
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])); len(f) > 12 {
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		u.cpu = time.Duration(user+system) * 10 * time.Millisecond
	}
	return u
}

// TestOtherNamespaces pauses and resumes a process in pid and mount namespaces of its
// own, as in a container.
func TestOtherNamespaces(t *testing.T) {
	b := newTestbed(t)
	b.startDaemon()
	c, pid, inner := b.startNamespaced(b.command("giveway-bench"), strings.Fields(batchJob)...)
	t.Logf("process %d is %d in its own namespace", pid, inner)
	b.set(pid, "--class", "batch")
	b.mustGiveway("pause", strconv.Itoa(pid))
	time.Sleep(500 * time.Millisecond)
	paused := c.rate(time.Second)
	b.mustGiveway("resume", strconv.Itoa(pid))
	time.Sleep(500 * time.Millisecond)
	resumed := c.rate(time.Second)
	b.record("namespaced process", nil, values{"paused_per_s": paused, "resumed_per_s": resumed})
	b.atMost("kernels per second while paused", paused, 0)
	b.atLeast("kernels per second after resume", resumed, 1)
}

// startNamespaced starts a client in namespaces of its own, with a /proc of its own: CUDA does not
// start without. It returns the client's pid, and its pid in its namespace. Of cmd it takes the
// program, the environment and the cgroup.
func (b *testbed) startNamespaced(cmd *exec.Cmd, args ...string) (c *client, pid, inner int) {
	b.Helper()
	unshare := exec.Command("unshare", append([]string{"--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", cmd.Path}, args...)...)
	unshare.Env, unshare.SysProcAttr = cmd.Env, cmd.SysProcAttr
	c = b.startCommand(unshare)
	inner, c.pid = c.pid, 0 // a number of the other namespace, which kill must not use
	parent := unshare.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid == 0 {
		b.Skipf("find the namespaced process among the children of %d: %v", parent, err)
	}
	return c, pid, inner
}

// TestOrdinaryUser runs a daemon as user 65534 for that user's processes (measured:
// online P99 272 us). It must not touch root's.
func TestOrdinaryUser(t *testing.T) {
	b := newTestbed(t)
	b.user = &syscall.Credential{Uid: 65534, Gid: 65534}
	if err := b.command("giveway", "version").Run(); err != nil {
		t.Skipf("user 65534 cannot run the bundle: %v", err)
	}
	online := b.start("lc --kernel 28us --after 5ms --wait --seconds 3 --ns-per-iteration " + b.nsPerTiny)
	batch := b.startJob()
	native := online.measure()
	b.record("native", &native, nil)
	b.user = nil
	ofRoot := b.startJob()
	b.user = &syscall.Credential{Uid: 65534, Gid: 65534}
	b.startDaemon()
	b.set(batch.pid, "--class", "batch")
	b.set(online.pid, "--class", "online")
	if out, err := b.giveway("set", strconv.Itoa(ofRoot.pid), "--class", "batch"); err == nil {
		t.Errorf("set on a process of root: got %q, want an error", out)
	}
	ofRoot.kill()
	time.Sleep(time.Second)
	got := online.measure()
	b.record("giveway", &got, nil)
	b.atMost("P50 giveway / native", float64(got.P50)/float64(native.P50), 0.25)
	out, _ := b.giveway("ps")
	t.Logf("giveway ps\n%s", out)
	out, _ = b.giveway("doctor")
	t.Logf("giveway doctor\n%s", out)
}
