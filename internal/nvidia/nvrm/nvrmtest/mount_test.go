package nvrmtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

func mounts(t *testing.T, path string) int {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(table), " "+path+" ")
}

// TestCloseUnmounts checks that after Close open files fail and the file below is visible.
func TestCloseUnmounts(t *testing.T) {
	m := nvrmtest.Mounted(t, nvrmtest.New(nvrmtest.Config{}))
	p := m.Start(t)
	f, err := nvrm.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if mounts(t, m.Path) != 1 {
		t.Errorf("mounts: got %d, want 1", mounts(t, m.Path))
	}
	m.Close()
	m.Close()
	if mounts(t, m.Path) != 0 {
		t.Error("still mounted after Close")
	}
	if _, err := nvrm.Alloc(f, 0, 0, 0, nvgpu.NV01_ROOT_CLIENT, nil); err == nil {
		t.Error("a call on an open file succeeded after Close")
	}
	if err := p.Exit(); err == nil {
		t.Error("the program freed its context after Close")
	}
	if b, err := os.ReadFile(m.Path); err != nil || len(b) != 0 {
		t.Errorf("file below the mount: got %q, %v; want empty", b, err)
	}
}

// TestKilledTestIsUnmounted checks that the mount and the programs of a test process that is
// killed are cleaned up.
func TestKilledTestIsUnmounted(t *testing.T) {
	if path := os.Getenv("NVRMTEST_KILLED"); path != "" {
		m, err := nvrmtest.NewMount(path, nvrmtest.New(nvrmtest.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(m.Start(t).PID); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	path := nvrmtest.Mounted(t, nvrmtest.New(nvrmtest.Config{})).Path // or skip
	path = filepath.Join(filepath.Dir(path), "doomed")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestKilledTestIsUnmounted$")
	cmd.Env = append(os.Environ(), "NVRMTEST_KILLED="+path)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	err = json.NewDecoder(stdout).Decode(&pid)
	if err != nil || mounts(t, path) != 1 {
		t.Errorf("program %d, %v; mounts: got %d, want 1", pid, err, mounts(t, path))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // reports the signal
	drivertest.Eventually(t, "the file is unmounted", func() bool { return mounts(t, path) == 0 })
	drivertest.Eventually(t, "the program has exited", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// TestHangingCallBlocksOnlyItsThread checks that other calls work while one hangs.
func TestHangingCallBlocksOnlyItsThread(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	f, err := nvrm.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := nvrmtest.NewContext(f)
	if err != nil {
		t.Fatal(err)
	}
	g := nvrm.Group{File: f, Client: c.Client, Handle: c.Compute.Group}
	release := make(chan struct{})
	rm.Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Hang: release, Times: 1})
	done := make(chan error)
	go func() { done <- g.SetTimeslice(time.Millisecond) }()
	drivertest.Eventually(t, "the call has arrived", func() bool { return rm.Calls(nvrmtest.Control(nvrmtest.SetTimeslice)) == 1 })
	if d, err := g.Timeslice(); d != 2048*time.Microsecond || err != nil {
		t.Errorf("slice while a call hangs: got %v, %v; want 2.048ms", d, err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d, err := g.Timeslice(); d != time.Millisecond || err != nil {
		t.Errorf("slice after the call: got %v, %v; want 1ms", d, err)
	}
}

// TestOlderAlloc checks that the 32-byte form of RM_ALLOC makes the same objects.
func TestOlderAlloc(t *testing.T) {
	f := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00077}).Open()
	arg := make([]byte, 32)
	arg[12] = nvgpu.NV01_ROOT_CLIENT
	if err := f.Ioctl(0xc020462b, arg); err != nil || arg[28] != 0 || arg[8] != 0x77 {
		t.Errorf("alloc: got %v, %x", err, arg)
	}
	if o, err := nvrm.Lookup(f, 0xc1d00077, 0xc1d00077); err != nil || o.Class != nvgpu.NV01_ROOT_CLIENT {
		t.Errorf("lookup: got %v, %v", o, err)
	}
}

// TestWrongAddress checks that an unmapped address is refused with a status.
func TestWrongAddress(t *testing.T) {
	f := nvrmtest.New(nvrmtest.Config{}).Open()
	c, err := nvrmtest.NewContext(f)
	if err != nil {
		t.Fatal(err)
	}
	arg := []byte{
		byte(c.Client), 0, 0xd0, 0xc1, 0x15, 0, 0, 0x5c, 4, 1, 0x6c, 0xa0, 0, 0, 0, 0,
		0x10, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
	}
	if err := f.Ioctl(0xc020462a, arg); err != nil || arg[28] != 0x1e {
		t.Errorf("unmapped address: got %v, status %#x; want status 0x1e", err, arg[28])
	}
	if err := f.Ioctl(0xc020462a, arg[:16]); !errors.Is(err, unix.EFAULT) {
		t.Errorf("short argument: got %v, want EFAULT", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Ioctl(0xc020462a, arg); !errors.Is(err, unix.EBADF) {
		t.Errorf("closed file: got %v, want EBADF", err)
	}
}

// TestLastCloseFreesClient checks that a client stays until the last descriptor of its file
// is closed.
func TestLastCloseFreesClient(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	f := rm.Open()
	c, err := nvrmtest.NewContext(f)
	if err != nil {
		t.Fatal(err)
	}
	dup := f.Copy()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := nvrm.Lookup(dup, c.Client, c.Device); err != nil {
		t.Error(err)
	}
	if err := dup.Close(); err != nil || rm.Clients() != 0 {
		t.Errorf("clients after the last close: got %d, %v; want 0", rm.Clients(), err)
	}
	if err := dup.Close(); !errors.Is(err, unix.EBADF) {
		t.Errorf("second close: got %v, want EBADF", err)
	}
}

// TestFaultsAffectTheirCalls checks how many calls a fault affects, and how.
func TestFaultsAffectTheirCalls(t *testing.T) {
	var slept time.Duration
	rm := nvrmtest.New(nvrmtest.Config{Sleep: func(d time.Duration) { slept += d }})
	f := rm.Open()
	free := func() error { return nvrm.Free(f, 1, 1, 1) }
	for _, tt := range []struct {
		fault nvrmtest.Fault
		want  []error
		slept time.Duration
	}{
		{nvrmtest.Fault{}, []error{nvrm.ErrInvalidObjectHandle}, 0},
		{nvrmtest.Fault{Status: nvrm.ErrTimeout}, []error{nvrm.ErrTimeout, nvrm.ErrTimeout}, 0},
		{nvrmtest.Fault{Errno: unix.EIO, Times: 1, Latency: time.Second}, []error{unix.EIO, nvrm.ErrInvalidObjectHandle}, time.Second},
		{nvrmtest.Fault{Latency: time.Second}, []error{nvrm.ErrInvalidObjectHandle, nvrm.ErrInvalidObjectHandle}, 2 * time.Second},
	} {
		rm.Inject(nvrmtest.Free(), tt.fault)
		slept = 0
		for i, want := range tt.want {
			if err := free(); !errors.Is(err, want) {
				t.Errorf("%+v, call %d: got %v, want %v", tt.fault, i, err, want)
			}
		}
		if slept != tt.slept {
			t.Errorf("%+v: slept %v, want %v", tt.fault, slept, tt.slept)
		}
	}
	if n := rm.Calls(nvrmtest.Free()); n != 7 {
		t.Errorf("calls: got %d, want 7", n)
	}
}
