package bench

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fakeFolder is the environment variable that makes the test binary a fake client.
// It names a folder through which the fake clients and the fake daemon communicate:
// file be-PID exists for each batch client, and file PID holds the class that the
// daemon has set, or "paused".
const fakeFolder = "GIVEWAY_TEST_FAKE_CLIENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(fakeFolder); dir != "" {
		fakeClient(dir, os.Args[1], os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func fakeClient(dir, what string, args []string) {
	set := flag.NewFlagSet(what, flag.ExitOnError)
	for _, name := range []string{"kernel", "depth", "after", "alone", "poisson", "gap", "every", "device", "parked", "lead", "kernels", "seed"} {
		set.String(name, "", "")
	}
	perNs := set.Float64("ns-per-iteration", 0, "")
	seconds := set.Float64("seconds", 0, "")
	set.Bool("wait", false, "")
	set.Bool("awake", false, "")
	breaks := set.String("breaks", "", "")
	_ = set.Parse(args)
	w := NewWriter(os.Stdout)
	if what == "calibrate" {
		shape := &Shape{Blocks: 8, NsPerIteration: 10, OverheadUs: 2}
		_ = w.Send(Message{Ready: true, GPU: "Fake GPU", Calibration: &Calibration{Full: shape, Tiny: shape}})
		return
	}
	if *perNs != 10 {
		_ = w.Send(Message{Error: "not calibrated"})
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
	if what == "be" {
		fakeBatch(dir, w)
	}
	fakeOnline(dir, w, *seconds)
}

func class(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, strconv.Itoa(os.Getpid())))
	return string(b)
}

// fakeBatch completes 1000 kernels per second unless it is paused.
func fakeBatch(dir string, w *Writer) {
	own := filepath.Join(dir, fmt.Sprintf("be-%d", os.Getpid()))
	_ = os.WriteFile(own, nil, 0o644)
	_ = w.Send(Message{Ready: true, PID: os.Getpid()})
	go func() {
		start, done, idle := time.Now(), 0.0, time.Duration(0)
		for last := start; ; {
			time.Sleep(10 * ms)
			now := time.Now()
			if class(dir) == "paused" {
				idle += now.Sub(last)
			} else {
				done, idle = done+1000*now.Sub(last).Seconds(), 0
			}
			last = now
			_ = w.Send(Message{Progress: &Progress{At: now.Sub(start), Done: int64(done), Idle: idle}})
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "quit"; {
	}
	_ = os.Remove(own)
	os.Exit(0)
}

// fakeOnline takes 44 us alone, 1500 us beside a batch client, 210 us beside one with
// class online.
func fakeOnline(dir string, w *Writer, seconds float64) {
	_ = w.Send(Message{Ready: true, PID: os.Getpid()})
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "quit"; {
		took := 44.0
		if others, _ := filepath.Glob(filepath.Join(dir, "be-*")); len(others) > 0 {
			took = 1500
			if class(dir) == "online" {
				took = 210
			}
		}
		a := &Answered{}
		for i := range 100 {
			a.SamplesUs = append(a.SamplesUs, took+float64(i)/10)
		}
		time.Sleep(time.Duration(seconds * float64(time.Second)))
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
		state = flags[1] // after --class
	}
	return os.WriteFile(filepath.Join(d.dir, strconv.Itoa(pid)), []byte(state), 0o644)
}
