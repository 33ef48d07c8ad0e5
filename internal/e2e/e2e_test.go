package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

const job = "be --kernel 212us --depth 64"

// TestWhoseTail measures one online client beside 40 ms kernels with the daemon at
// work and with the daemon stopped in its tracks: the difference is ours.
func TestWhoseTail(t *testing.T) {
	b := newBed(t)
	online := b.work("lc --kernel 28us --alone 44us --after 5ms --awake --wait --seconds 6")
	t.Logf("alone:          %v", online.measure())
	batch := b.work("be --kernel 40ms --depth 16")
	t.Logf("native:         %v, batch %.1f/s", online.measure(), batch.rate(2*time.Second))
	b.start()
	b.set(online.pid, "--class", "online")
	b.set(batch.pid, "--class", "batch")
	time.Sleep(time.Second)
	for range 2 {
		t.Logf("giveway:        %v", online.measure())
		_ = b.daemon.Process.Signal(syscall.SIGSTOP)
		t.Logf("daemon stopped: %v", online.measure())
		_ = b.daemon.Process.Signal(syscall.SIGCONT)
	}
	t.Logf("giveway:        batch %.1f/s", batch.rate(3*time.Second))
}

// TestKilledAtAnyInstant kills the daemon while it rotates eight batch jobs. Were
// two ready groups ever left at the least slice nothing would move again.
func TestKilledAtAnyInstant(t *testing.T) {
	b := newBed(t)
	online := b.work("lc --kernel 28us --after 5ms --wait --seconds 1000")
	fmt.Fprintln(online.in, "start")
	var batch []*work
	for range 8 {
		batch = append(batch, b.work(job+" --ns-per-iteration "+b.nsPer))
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	slowest := time.Duration(0)
	for round := range 12 {
		b.start()
		b.set(online.pid, "--class", "online")
		for _, w := range batch {
			b.set(w.pid, "--class", "batch")
		}
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		b.kill()
		killed := time.Now()
		for i, w := range batch {
			for from := w.count(); w.count() == from; time.Sleep(time.Millisecond) {
				if time.Since(killed) > 3*time.Second {
					t.Fatalf("round %d: batch job %d stands still 3 s after the daemon was killed", round, i+1)
				}
			}
		}
		slowest = max(slowest, time.Since(killed))
	}
	t.Logf("12 times killed: all eight jobs were seen to move again within %v, of which up to 200 ms are how often they tell", slowest)
	b.start()
	b.await(online.pid, batch[0].pid, batch[7].pid)
	for _, p := range b.ps() {
		for _, q := range p.Queues {
			if q.Slice != 0 || q.State != "running" || q.Found < time.Millisecond {
				t.Errorf("process %d was left with %+v", p.PID, q)
			}
		}
	}
}

// TestFloor: batch work beside online work that never lets go still gets a little.
func TestFloor(t *testing.T) {
	b := newBed(t)
	per := " --ns-per-iteration " + b.nsPer
	batch := b.work(job + per)
	alone := batch.rate(3 * time.Second)
	hog := b.work(job + per)
	b.start()
	for _, class := range []string{"online", "standard"} {
		b.set(hog.pid, "--class", class)
		b.set(batch.pid, "--class", "batch")
		time.Sleep(3 * time.Second)
		var got float64
		other := hog.during(func() { got = batch.rate(30*time.Second) / alone }) / alone
		t.Logf("beside a saturating %s process: batch %.2f %% of what it does alone, the other %.1f %%",
			class, 100*got, 100*other)
		if got < 0.02 {
			t.Errorf("less than its floor of 2 %%")
		}
	}
}

// TestLateDaemon: a program that was there before the daemon is found on a node where
// many have come and gone, and the kernel's log is not filled by that.
func TestLateDaemon(t *testing.T) {
	b := newBed(t)
	f, err := nvrm.Open("/dev/nvidiactl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	comeAndGo := func(clients int) {
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
	comeAndGo(300)
	w := b.work(job + " --ns-per-iteration " + b.nsPer)
	for _, more := range []int{0, 5000} {
		comeAndGo(more)
		before, begun := kernelLines(), time.Now()
		b.start()
		b.set(w.pid, "--class", "batch")
		t.Logf("%d clients later: found and set within %v of the daemon's start; %d lines in the kernel's log",
			more, time.Since(begun).Round(time.Millisecond), kernelLines()-before)
		b.kill()
	}
}

// kernelLines is how many lines of the driver's the kernel's log has; 0 where it may not
// be read.
func kernelLines() int {
	out, _ := exec.Command("dmesg").Output()
	return strings.Count(string(out), "NVRM")
}

// TestIdleJob: a batch job that does nothing costs two that do nothing to speak of; and
// how long it takes to set a job that runs.
func TestIdleJob(t *testing.T) {
	b := newBed(t)
	b.start()
	per := " --ns-per-iteration " + b.nsPer
	two := []*work{b.work(job + per), b.work(job + per)}
	set := func(w *work) {
		b.await(w.pid)
		asked := time.Now()
		b.set(w.pid, "--class", "batch")
		t.Logf("set in %v", time.Since(asked).Round(100*time.Microsecond))
	}
	set(two[0])
	set(two[1])
	both := func() float64 {
		time.Sleep(2 * time.Second)
		return together(two, 4*time.Second)
	}
	var with, without []float64
	for range 2 {
		without = append(without, both())
		idle := b.work("obey" + per)
		set(idle)
		with = append(with, both())
		idle.kill()
	}
	ratio := (with[0] + with[1]) / (without[0] + without[1])
	t.Logf("the two together %.0f/s, and %.0f/s with an idle third: %.3f x", without, with, ratio)
	if ratio < 0.98 {
		t.Error("the idle one costs more than 2 %")
	}
}

// TestShortProcesses: 200 CUDA processes come and go in two minutes, some killed,
// some paused when they are.
func TestShortProcesses(t *testing.T) {
	b := newBed(t)
	b.start()
	per := b.nsPer
	keep := b.work(job + " --ns-per-iteration " + per)
	b.set(keep.pid, "--class", "batch")
	time.Sleep(5 * time.Second)
	before := b.usage()
	begun := time.Now()
	for n := range 50 {
		var four []*work
		for range 4 {
			four = append(four, b.work("be --kernel 1ms --depth 4 --ns-per-iteration "+per))
		}
		b.set(four[0].pid, "--class", "online")
		b.set(four[1].pid, "--class", "batch")
		if n%5 == 0 {
			if _, err := b.giveway("pause", strconv.Itoa(four[1].pid)); err != nil {
				t.Error(err)
			}
		}
		for i, w := range four {
			if i%2 == 0 {
				fmt.Fprintln(w.in, "quit")
				_ = w.cmd.Wait()
			} else {
				w.kill()
			}
		}
		time.Sleep(time.Until(begun.Add(time.Duration(n+1) * 120 * time.Second / 50)))
	}
	took := time.Since(begun)
	time.Sleep(5 * time.Second)
	after := b.usage()
	t.Logf("200 processes in %v: descriptors %d -> %d, threads %d -> %d, resident %d -> %d KiB; %.2f %% of a core",
		took.Round(time.Second), before.files, after.files, before.threads, after.threads, before.kib, after.kib,
		100*(after.cpu-before.cpu).Seconds()/(took.Seconds()+5))
	if after.files > before.files+4 {
		t.Errorf("descriptors are left open")
	}
	if n := len(b.ps()); n != 1 {
		t.Errorf("it lists %d processes, want 1", n)
	}
	idle := b.usage()
	keep.kill()
	time.Sleep(10 * time.Second)
	t.Logf("idle: %.2f %% of a core", 100*(b.usage().cpu-idle.cpu).Seconds()/10)
}

// usage is what the daemon has taken.
type usage struct {
	files, threads, kib int
	cpu                 time.Duration
}

func (b *bed) usage() (u usage) {
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

// TestOtherNamespaces: a process in pid and mount namespaces of its own, as in a
// container, is found and set like any other.
func TestOtherNamespaces(t *testing.T) {
	b := newBed(t)
	b.start()
	cmd := b.command("giveway-bench")
	inside := append([]string{"--pid", "--fork", "--kill-child", "--mount-proc", cmd.Path}, strings.Fields(job)...)
	unshare := exec.Command("unshare", inside...)
	unshare.Env = cmd.Env
	w := b.workBy(unshare)
	parent := unshare.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid == 0 {
		t.Skipf("the process in the namespace cannot be told: %v", err)
	}
	t.Logf("there it is process %d, here %d", w.pid, pid)
	b.set(pid, "--class", "batch")
	if _, err := b.giveway("pause", strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if r := w.rate(time.Second); r != 0 {
		t.Errorf("paused, it does %.0f kernels a second", r)
	}
	if _, err := b.giveway("resume", strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if r := w.rate(time.Second); r == 0 {
		t.Error("resumed, it stands still")
	}
}

// TestOrdinaryUser: anybody may run a daemon for processes of their own.
func TestOrdinaryUser(t *testing.T) {
	b := newBed(t)
	rooted := b.work(job + " --ns-per-iteration " + b.nsPer)
	b.as = &syscall.Credential{Uid: 65534, Gid: 65534}
	if err := b.command("giveway", "version").Run(); err != nil {
		t.Skipf("user 65534 cannot run the bundle: %v", err)
	}
	mine := b.work(job + " --ns-per-iteration " + b.nsPer)
	online := b.work("lc --kernel 28us --after 5ms --wait --seconds 3 --ns-per-iteration " + b.nsPerTiny)
	b.start()
	b.set(mine.pid, "--class", "batch")
	b.set(online.pid, "--class", "online")
	if out, err := b.giveway("set", strconv.Itoa(rooted.pid), "--class", "batch"); err == nil {
		t.Errorf("it set a process of root's: %s", out)
	}
	rooted.kill()
	time.Sleep(time.Second)
	t.Logf("online, an ordinary user's daemon: %v", online.measure())
	out, _ := b.giveway("ps")
	t.Logf("giveway ps\n%s", out)
	out, _ = b.giveway("doctor")
	t.Logf("giveway doctor\n%s", out)
}

// TestMPS: the server's group is one queue for all its clients.
func TestMPS(t *testing.T) {
	b := newBed(t)
	if _, err := exec.LookPath("nvidia-cuda-mps-control"); err != nil {
		t.Skip("no nvidia-cuda-mps-control here")
	}
	per := b.nsPer
	online := b.work("lc --kernel 28us --after 5ms --wait --seconds 5")
	t.Logf("alone: %v", online.measure())
	dir := t.TempDir()
	mps := []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir}
	control := func(word string) {
		cmd := exec.Command("nvidia-cuda-mps-control")
		cmd.Env = append(os.Environ(), mps...)
		cmd.Stdin = strings.NewReader(word + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Logf("mps: %s: %v: %s", word, err, out)
		}
	}
	up := exec.Command("nvidia-cuda-mps-control", "-d")
	up.Env = append(os.Environ(), mps...)
	if out, err := up.CombinedOutput(); err != nil {
		t.Skipf("MPS does not start: %v: %s", err, out)
	}
	t.Cleanup(func() { control("quit -t 2") })
	var clients []*work
	for range 4 {
		cmd := b.command("giveway-bench", strings.Fields(job+" --ns-per-iteration "+per)...)
		cmd.Env = append(cmd.Env, mps...)
		clients = append(clients, b.workBy(cmd))
	}
	sum := func() float64 { return together(clients, 2*time.Second) }
	t.Logf("native, four clients of MPS: online %v; batch %.0f/s", online.measure(), sum())
	b.start("-v")
	b.await(online.pid)
	_, err := b.giveway("set", strconv.Itoa(clients[0].pid), "--class", "batch")
	if err == nil || !strings.Contains(err.Error(), "MPS") {
		t.Errorf("set on a client of MPS: %v", err)
	}
	t.Logf("set on a client: %v", err)
	server := 0
	for _, p := range b.ps() {
		for _, q := range p.Queues {
			if q.Shared == "mps" {
				server = p.PID
			}
		}
	}
	if server == 0 {
		t.Fatalf("the MPS server's group was not found: %+v", b.ps())
	}
	b.set(online.pid, "--class", "online")
	b.set(server, "--class", "batch")
	time.Sleep(time.Second)
	t.Logf("giveway, the server as batch: online %v; batch %.0f/s", online.measure(), sum())
	for _, c := range clients {
		c.kill()
	}
}
