package bench

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fakeFolder is the environment variable that makes the test binary a fake client, or a
// fake giveway run. It names a folder through which the fake clients and the fake daemon
// communicate: file be-PID exists while a batch client works, file PID holds the class
// that the daemon has set, or "paused", and file started has a line for each client.
const fakeFolder = "GIVEWAY_TEST_FAKE_CLIENT"

// fakeFlags is the environment variable that holds the flags of the fake giveway run, and
// fakePool the one that holds the folder of the fake pool. Without it nothing can join.
const (
	fakeFlags = "GIVEWAY_TEST_FAKE_FLAGS"
	fakePool  = "GIVEWAY_TEST_FAKE_POOL"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(fakeFolder)
	switch {
	case dir == "":
		os.Exit(m.Run())
	case os.Args[1] == "run":
		os.Exit(fakeRun(os.Args[2:]))
	default:
		fakeClient(dir, os.Args[1], os.Args[2:])
	}
}

// fakeRun runs a client as a child, as giveway run does.
func fakeRun(args []string) int {
	end := slices.Index(args, "--")
	cmd := exec.Command(args[end+1], args[end+2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), fakeFlags+"="+strings.Join(args[:end], " "))
	if pool := os.Getenv(fakePool); pool != "" && slices.Contains(args[:end], "--pool") {
		cmd.Env = append(cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+pool, "CUDA_MPS_CLIENT_PRIORITY=of the pool")
	}
	if err := cmd.Run(); err != nil {
		return 1
	}
	return 0
}

func fakeClient(dir, what string, args []string) {
	set := flag.NewFlagSet(what, flag.ExitOnError)
	for _, name := range []string{
		"kernel", "depth", "after", "alone", "poisson", "gap", "every", "device", "parked", "lead", "kernels", "seed",
		"every-ms", "mode", "work", "runtime",
	} {
		set.String(name, "", "")
	}
	perNs := set.Float64("ns-per-iteration", 0, "")
	seconds := set.Float64("seconds", 0, "")
	wait := set.Bool("wait", false, "")
	set.Bool("awake", false, "")
	lock := set.String("lock", "", "")
	breaks := set.String("breaks", "", "")
	_ = set.Parse(args)
	w := NewWriter(os.Stdout)
	if what == "calibrate" {
		shape := &Shape{Blocks: 8, NsPerIteration: 10, OverheadUs: 2}
		_ = w.Send(Message{Ready: true, GPU: "Fake GPU", Calibration: &Calibration{Full: shape, Tiny: shape}})
		return
	}
	if *perNs != 10 && *lock == "" || !*wait {
		_ = w.Send(Message{Error: "not calibrated, or not told to wait"})
		os.Exit(1)
	}
	switch *breaks {
	case "at-start":
		_ = w.Send(Message{Error: "cuInit: CUDA_ERROR_NO_DEVICE (100): none"})
		os.Exit(1)
	case "json":
		fmt.Println("Segmentation fault")
		os.Exit(1)
	case "soon":
		go func() { time.Sleep(150 * ms); fmt.Fprintln(os.Stderr, "core dumped"); os.Exit(3) }()
	}
	noteStart(dir, what)
	if what == "be" {
		fakeBatch(dir, w)
	}
	fakeOnline(dir, w, *seconds)
}

// noteStart notes how the client was started, and joins the fake MPS server.
func noteStart(dir, what string) {
	flags, pipes := os.Getenv(fakeFlags), os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if flags != "" {
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), []byte(strings.Fields(flags)[1]), 0o644)
	}
	line := what + " " + flags
	if pipes != "" {
		line += " MPS priority " + os.Getenv("CUDA_MPS_CLIENT_PRIORITY")
		_ = os.WriteFile(filepath.Join(pipes, fmt.Sprintf("client-%d", os.Getpid())), nil, 0o644)
	}
	f, err := os.OpenFile(filepath.Join(dir, "started"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		fmt.Fprintln(f, strings.Join(strings.Fields(line), " "))
		f.Close()
	}
}

func class(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, strconv.Itoa(os.Getpid())))
	return string(b)
}

// fakeBatch completes 1000 kernels per second while it works, unless it is paused.
func fakeBatch(dir string, w *Writer) {
	own := filepath.Join(dir, fmt.Sprintf("be-%d", os.Getpid()))
	_ = w.Send(Message{Ready: true, PID: os.Getpid()})
	var working atomic.Bool
	go func() {
		start, done, idle := time.Now(), 0.0, time.Duration(0)
		for last := start; ; {
			time.Sleep(10 * ms)
			now := time.Now()
			if !working.Load() || class(dir) == "paused" {
				idle += now.Sub(last)
			} else {
				done, idle = done+1000*now.Sub(last).Seconds(), 0
			}
			last = now
			_ = w.Send(Message{Progress: &Progress{At: now.Sub(start), Done: int64(done), Idle: idle}})
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "quit"; {
		working.Store(in.Text() == "work")
		if working.Load() {
			_ = os.WriteFile(own, nil, 0o644)
		} else {
			_ = os.Remove(own)
		}
	}
	_ = os.Remove(own)
	os.Exit(0)
}

// fakeOnline takes 44 us alone, 1500 us beside a batch client that works, 210 us beside
// one with class online, and twice as long with random arrivals. It looks at the batch clients late in
// each quarter of its run: by then they have read their commands.
func fakeOnline(dir string, w *Writer, seconds float64) {
	_ = w.Send(Message{Ready: true, PID: os.Getpid()})
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "quit"; {
		begun, length := time.Now(), time.Duration(seconds*float64(time.Second))
		a := &Answered{Took: length}
		took := 0.0
		for i := range 100 {
			if i%25 == 0 {
				time.Sleep(time.Until(begun.Add(length * time.Duration(i+18) / 100)))
				took = 44
				if others, _ := filepath.Glob(filepath.Join(dir, "be-*")); len(others) > 0 {
					took = 1500
					if class(dir) == "online" {
						took = 210
					}
				}
				if in.Text() == "start random" {
					took *= 2
				}
			}
			a.ArrivedUs = append(a.ArrivedUs, seconds*1e4*float64(i))
			a.SamplesUs = append(a.SamplesUs, took+float64(i)/10)
		}
		time.Sleep(time.Until(begun.Add(length)))
		_ = w.Send(Message{Answered: a})
	}
}

// fakeDaemon writes classes to the folder and records its orders.
type fakeDaemon struct {
	dir    string
	orders []string
	err    error // of set
}

func (d *fakeDaemon) order(subcommand string, pid int, flags ...string) error {
	d.orders = append(d.orders, strings.Join(append([]string{subcommand}, flags...), " "))
	state := map[string]string{"pause": "paused", "resume": "batch"}[subcommand]
	if subcommand == "set" {
		if d.err != nil {
			return d.err
		}
		if flags[0] != "--class" {
			return nil
		}
		state = flags[1]
	}
	return os.WriteFile(filepath.Join(d.dir, strconv.Itoa(pid)), []byte(state), 0o644)
}

// fakePython writes a script that stands for Python: it runs fake clients.
func fakePython(t *testing.T) string {
	t.Helper()
	return script(t, "python3", `[ "$2" = check ] && echo 2.9.0 && exit
shift 2
exec `+os.Args[0]+` "$@"
`)
}

// fakeMPSControl writes a script that stands for nvidia-cuda-mps-control. Its server has
// the fake clients that found its folder. It lists lose clients fewer.
func fakeMPSControl(t *testing.T, lose int) string {
	t.Helper()
	return script(t, "nvidia-cuda-mps-control", fmt.Sprintf(`[ "$1" = -d ] && exit
read -r command server
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
case $command in
  get_server_list) echo 4242 ;;
  get_client_list) [ "$server" = 4242 ] && ls | sed -n 's/^client-//p' | tail -n +%d ;;
  quit) ;;
  *) exit 1 ;;
esac
`, lose+1))
}

func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
