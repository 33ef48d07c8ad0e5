package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/hip/hiptest"
)

// asProgram is the environment variable that makes the test binary the program.
const asProgram = "GIVEWAY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise the race detector delays each exit by a second
	os.Exit(m.Run())
}

// program returns a command that runs the program.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// withFake builds the fake libcuda.so.1 and puts it where the loader finds it.
func withFake(t *testing.T) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build the fake libcuda with")
	}
	dir := t.TempDir()
	out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "../../internal/cuda/testdata/fakecuda.c").CombinedOutput()
	if err != nil {
		t.Fatalf("build the fake: %v\n%s", err, out)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"--help": "giveway-bench run --cases", "help": "giveway-bench run --cases", "run --help": "Usage of giveway-bench run:", "be -h": "Usage of giveway-bench be:",
	} {
		out, err := program(t, strings.Fields(args)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: got error %v and output %.80q, want %q", args, err, out, want)
		}
	}
	out, _ := program(t, "nonsense").CombinedOutput()
	if want := "giveway-bench: there is no command \"nonsense\"; 'giveway-bench --help' lists them\n"; string(out) != want {
		t.Errorf("unknown command: got %q, want %q", out, want)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range []string{
		"", "nonsense", "lc", "lc --after 5ms --every 5ms", "lc --poisson often", "lc --poisson 0/s", "lc --every 5ms --kernels 0",
		"lc --every 5ms --seconds -1", "be --depth 0", "be word", "lc --after 1ms --sync doze", "run --cases nonsense", "be --streams 0", "calibrate --runtime metal", "run --runtime metal",
	} {
		err := program(t, strings.Fields(args)...).Run()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 {
			t.Errorf("%q: got %v, want exit code 2", args, err)
		}
	}
}

func TestMissingDriver(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "")
	if err := program(t, "calibrate").Run(); err == nil {
		t.Skip("this machine has a driver")
	}
	// Where HIP is installed, the error is that it has no GPU.
	noHIP, noDevice := "not found: is AMD's ROCm installed?", "is there an AMD GPU, and may this user open /dev/kfd?"
	for name, want := range map[string][]string{
		"cuda": {"libcuda.so.1: not found: is an NVIDIA driver installed?"},
		"hip":  {noHIP, noDevice},
		"auto": {"CUDA: libcuda.so.1: not found: is an NVIDIA driver installed?; HIP: libamdhip64.so.7", noDevice},
	} {
		out, err := program(t, "calibrate", "--runtime", name).Output()
		if err == nil || !slices.ContainsFunc(want, func(s string) bool { return strings.Contains(string(out), s) }) {
			t.Errorf("--runtime %s: got %s, %v; want one of %q", name, out, err, want)
		}
	}
}

func TestOnlineClientSendsItsSamples(t *testing.T) {
	withFake(t)
	for _, args := range []string{
		"--after 5ms", "--every 5ms --kernels 3 --gap 100us", "--poisson 200/s --seed 7", "--after 5ms --parked 2 --lead 300us",
	} {
		cmd := program(t, append([]string{"lc", "--kernel", "1ms", "--ns-per-iteration", "10", "--seconds", "1"}, strings.Fields(args)...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		var ready, last bench.Message
		if err := json.Unmarshal([]byte(lines[0]), &ready); err != nil || !ready.Ready || ready.GPU != "Fake GPU" || ready.CUDA != "13.0" {
			t.Errorf("%s: got first line %s, %v; want a ready message", args, lines[0], err)
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Answered == nil || len(last.Answered.SamplesUs) < 10 {
			t.Fatalf("%s: got last line %.200s, %v; want at least 10 samples", args, lines[len(lines)-1], err)
		}
		for _, s := range last.Answered.SamplesUs {
			if s < 1000 {
				t.Errorf("%s: got %g us for a kernel of 1 ms", args, s)
			}
		}
	}
}

func TestBatchClientSendsItsProgress(t *testing.T) {
	withFake(t)
	cmd := program(t, "be", "--kernel", "2ms", "--depth", "8") // calibrates itself
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var messages []bench.Message
	for len(messages) < 5 && lines.Scan() {
		var m bench.Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		messages = append(messages, m)
	}
	if len(messages) < 5 || !messages[0].Ready || messages[0].PID != cmd.Process.Pid {
		t.Fatalf("got %+v, want ready and four messages of progress", messages)
	}
	first, last := messages[1].Progress, messages[4].Progress
	// At most about 500 are possible. A busy machine completes fewer.
	if rate := float64(last.Done-first.Done) / (last.At - first.At).Seconds(); rate > 650 || rate < 25 {
		t.Errorf("got %g kernels of 2 ms per second, want 25 to 650", rate)
	}
	_, _ = in.Write([]byte("quit\n"))
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestObeyLaunchesTheRequestedKernels(t *testing.T) {
	withFake(t)
	cmd := program(t, "obey", "--ns-per-iteration", "10")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Write([]byte("1ms\n3ms\n1ms\n"))
	message := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var m bench.Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		if m.Progress != nil && m.Progress.Done == 3 {
			_, _ = in.Write([]byte("nonsense\n"))
		}
		message = m.Error
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(message, `"nonsense"`) {
		t.Errorf("got %v, error %q; want an error that quotes the line", err, message)
	}
}

// TestHarnessWithRealClients runs the benchmark with the program as its clients.
func TestHarnessWithRealClients(t *testing.T) {
	withFake(t)
	t.Setenv(asProgram, "1")
	cases, err := bench.Select([]string{"micro-212us", "hint", "loop-60us"})
	if err != nil {
		t.Fatal(err)
	}
	config := bench.Config{Client: []string{os.Args[0]}, Length: time.Second, Settle: 50 * time.Millisecond}
	r, err := bench.Run(context.Background(), config, cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Cases {
		for _, p := range c.Phases {
			if p.Latency.Count < 10 || p.BatchRate < 100 || p.BatchRate > 6000 { // 4717 at most; a busy machine delays when it is read
				t.Errorf("%s, %s: got %d requests, %g batch kernels per second", c.Name, p.Name, p.Latency.Count, p.BatchRate)
			}
		}
	}
}

// TestHIPClients runs the clients, and the benchmark with them, on the double of HIP.
func TestHIPClients(t *testing.T) {
	hiptest.Use(t)
	out, err := program(t, "calibrate").Output()
	var m bench.Message
	if err != nil || json.Unmarshal(out, &m) != nil || m.HIP != "6.3" || m.CUDA != "" || m.GPU != "HIP double, not hardware" || m.Calibration.Full.Blocks != 2*304*8 {
		t.Fatalf("calibrate: got %s, %v; want a calibration of the double", out, err)
	}
	if out, err := program(t, "calibrate", "--runtime", "cuda").Output(); err == nil || !strings.Contains(string(out), "libcuda.so.1") {
		t.Errorf("--runtime cuda: got %s, %v; want an error about libcuda", out, err)
	}
	t.Setenv(asProgram, "1")
	cases, err := bench.Select([]string{"hint", "loop-1us"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := bench.Run(context.Background(), bench.Config{Client: []string{os.Args[0]}, Length: time.Second, Settle: 50 * time.Millisecond}, cases)
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Machine; m.HIP != "6.3" || m.Arch != "gfx942:sramecc+:xnack-" || !strings.HasPrefix(m.Driver, "amdgpu") {
		t.Errorf("got machine %+v, want one with HIP", m)
	}
	for _, c := range r.Cases {
		for _, p := range c.Phases {
			if p.Latency.Count < 10 || p.BatchRate < 50 || p.BatchRate > 6000 {
				t.Errorf("%s, %s: got %d requests, %g batch kernels per second", c.Name, p.Name, p.Latency.Count, p.BatchRate)
			}
		}
	}
	if notes := r.Cases[1].Notes; !slices.Contains(notes, "MPS with priority: not measured: MPS is NVIDIA's") {
		t.Errorf("got notes %q, want one about MPS", notes)
	}
}

// TestStreams keeps several streams busy: on the double they run at the same time, up to
// the number of hardware queues.
func TestStreams(t *testing.T) {
	hiptest.Use(t)
	rate := func(queues string) float64 {
		t.Setenv("GPU_MAX_HW_QUEUES", queues)
		cmd := program(t, "be", "--kernel", "20ms", "--depth", "2", "--streams", "4", "--ns-per-iteration", "10")
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var first, last *bench.Progress
		for lines := bufio.NewScanner(out); lines.Scan() && (first == nil || last.At-first.At < time.Second); {
			var m bench.Message
			_ = json.Unmarshal(lines.Bytes(), &m)
			if last = m.Progress; first == nil {
				first = m.Progress
			}
		}
		in.Close()
		_ = cmd.Wait()
		return float64(last.Done-first.Done) / (last.At - first.At).Seconds()
	}
	one, four := rate("1"), rate("4")
	if four < 2*one || one > 60 { // 50 and 200 where the machine is idle
		t.Errorf("got %g kernels of 20 ms per second on one hardware queue, %g on four", one, four)
	}
}

// TestBatchClientWorksAndRests checks --wait: nothing runs until "work", nor after "rest".
func TestBatchClientWorksAndRests(t *testing.T) {
	withFake(t)
	cmd := program(t, "be", "--kernel", "1ms", "--depth", "4", "--wait", "--ns-per-iteration", "10")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func() (m bench.Message) {
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &m) != nil {
			t.Fatalf("got %q, want a message", lines.Text())
		}
		return m
	}
	if !next().Ready {
		t.Fatal("want ready first")
	}
	for range 3 {
		if done := next().Progress.Done; done != 4 {
			t.Fatalf("got %d kernels before work, want the 4 of the warm-up", done)
		}
	}
	for _, again := range []int64{1, 2} {
		_, _ = in.Write([]byte("work\n"))
		for next().Progress.Done < 4+again*20 {
		}
		_, _ = in.Write([]byte("rest\n"))
		last := int64(-1)
		for done := next().Progress.Done; done != last; done = next().Progress.Done { // 0.1 s apart
			last = done
		}
	}
	_, _ = in.Write([]byte("nonsense\n"))
	message := ""
	for lines.Scan() {
		var m bench.Message
		_ = json.Unmarshal(lines.Bytes(), &m)
		message = m.Error
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(message, `"nonsense"`) {
		t.Errorf("got %v, error %q; want an error that quotes the line", err, message)
	}
}

// TestRandomArrivals checks that "start random" replaces a period by random arrivals, and
// only for that run.
func TestRandomArrivals(t *testing.T) {
	withFake(t)
	cmd := program(t, "lc", "--kernel", "1ms", "--every", "5ms", "--seed", "9", "--seconds", "0.2", "--wait", "--ns-per-iteration", "10")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Write([]byte("start random\nstart\n"))
	var seeds []uint64
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var m bench.Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		if m.Answered != nil {
			seeds = append(seeds, m.Answered.Seed)
		}
		if len(seeds) == 2 {
			break
		}
	}
	in.Close()
	_ = cmd.Wait()
	if !slices.Equal(seeds, []uint64{9, 0}) {
		t.Errorf("got seeds %v, want that of the random run and none", seeds)
	}
}
