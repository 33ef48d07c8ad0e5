package nvrm_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"golang.org/x/sys/unix"
)

func TestFindClient(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{FirstClient: 0xc1d00010})
	_, other := context(t, rm)
	f, c := context(t, rm)
	found, wrong, err := nvrm.FindClient(f, nvrm.FirstClients(100))
	if found != c.Client || err != nil || found == other.Client {
		t.Errorf("got %v, %v; want %v", found, err, c.Client)
	}
	// Sixteen handles are not in use, and one belongs to another file.
	if wrong != 17 || rm.Logged() != 16 {
		t.Errorf("got %d wrong guesses and %d log lines, want 17 and 16", wrong, rm.Logged())
	}
	if _, wrong, err = nvrm.FindClient(f, nvrm.FirstClients(17)); wrong != 17 || !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("with too few guesses: got %d wrong, %v; want 17, NV_ERR_INVALID_CLIENT", wrong, err)
	}
	calls := rm.Calls(nvrmtest.Control(nvrmtest.GetHandleInfo))
	rm.Inject(nvrmtest.Control(nvrmtest.GetHandleInfo), nvrmtest.Fault{Errno: unix.EACCES})
	if _, wrong, err = nvrm.FindClient(f, nvrm.FirstClients(17)); wrong != 0 || !errors.Is(err, unix.EACCES) {
		t.Errorf("ioctl refused: got %d wrong, %v; want 0, EACCES", wrong, err)
	}
	if n := rm.Calls(nvrmtest.Control(nvrmtest.GetHandleInfo)) - calls; n != 1 {
		t.Errorf("ioctl refused: got %d calls, want 1", n)
	}
}

func TestObjects(t *testing.T) {
	f, c := context(t, nvrmtest.New(nvrmtest.Config{}))
	objects, err := nvrm.Objects(f, c.Client, 0x400)
	if err != nil {
		t.Fatal(err)
	}
	byHandle := map[nvrm.Handle]nvrm.Object{}
	classes := map[string]int{}
	for _, o := range objects {
		byHandle[o.Handle] = o
		switch {
		case nvrm.IsChannel(o.Class):
			classes["channel"]++
		case nvrm.IsCompute(o.Class):
			classes["compute"]++
		default:
			classes[fmt.Sprintf("%04x", o.Class)]++
		}
	}
	want := "map[0080:1 2080:1 a06c:4 c8b5:12 channel:20 compute:8]"
	if got := fmt.Sprint(classes); got != want {
		t.Errorf("objects by class: got %v, want %v", got, want)
	}
	for _, tt := range []struct{ handle, parent nvrm.Handle }{
		{0x5c000002, c.Client},
		{0x5c000003, 0x5c000002},
		{0x5c000015, 0x5c000002},
		{0x5c00003a, 0x5c000015},
		{0x5c00003b, 0x5c00003a},
		{0x5c00005a, 0x5c000002},
		{0x5c000065, 0x5c00005a},
	} {
		if got := byHandle[tt.handle].Parent; got != tt.parent {
			t.Errorf("parent of %v: got %v, want %v", tt.handle, got, tt.parent)
		}
	}
	if _, err := nvrm.Objects(f, c.Client+1, 10); !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("objects of an unknown client: got %v, want NV_ERR_INVALID_CLIENT", err)
	}
}

func TestUUID(t *testing.T) {
	f, c := context(t, nvrmtest.New(nvrmtest.Config{UUID: uuid}))
	const want = "GPU-6da75686-2f9f-1a32-6b54-1e6f31705c88"
	if got, err := nvrm.UUID(f, c.Client, c.Subdevice); got != want || err != nil {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

// TestCopiedDescriptorControlsItsOwner checks that a copy of another process's descriptor
// controls that process's objects, and that no other descriptor does.
func TestCopiedDescriptorControlsItsOwner(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{UUID: uuid})
	m := nvrmtest.Mounted(t, rm)
	p := m.Start(t)
	c := p.Context

	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.PID, p.FD))
	if err != nil || link != m.Path {
		t.Errorf("link of descriptor %d: got %q, %v; want %q", p.FD, link, err, m.Path)
	}
	own, err := nvrm.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := groupOf(own, c).ID(); !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("through a file of our own: got %v, want NV_ERR_INVALID_CLIENT", err)
	}
	other := copyOf(t, p.PID, p.OtherFD)
	if _, err := groupOf(other, c).ID(); !errors.Is(err, nvrm.ErrInvalidClient) {
		t.Errorf("through another file of the process: got %v, want NV_ERR_INVALID_CLIENT", err)
	}

	f := copyOf(t, p.PID, p.FD)
	client, _, err := nvrm.FindClient(f, nvrm.FirstClients(100))
	if err != nil || client != c.Client {
		t.Fatalf("client: got %v, %v; want %v", client, err, c.Client)
	}
	if objects, err := nvrm.Objects(f, client, 0x80); err != nil || len(objects) != 46 {
		t.Errorf("objects: got %d, %v; want 46", len(objects), err)
	}
	g := groupOf(f, c)
	if d, err := g.Timeslice(); d != 2048*time.Microsecond || err != nil {
		t.Errorf("slice: got %v, %v; want 2.048ms", d, err)
	}
	if err := g.SetTimeslice(time.Microsecond); err != nil {
		t.Error(err)
	}
	if d, err := g.Timeslice(); d != time.Microsecond || err != nil {
		t.Errorf("slice: got %v, %v; want 1us", d, err)
	}
	if err := nvrm.DisableChannels(f, client, c.Subdevice, c.Compute.Channels, true); err != nil {
		t.Error(err)
	}
	for _, ch := range c.Compute.Channels {
		if !rm.Disabled(client, ch) {
			t.Errorf("channel %v: got enabled, want disabled", ch)
		}
	}
	if err := p.Exit(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.ID(); !nvrm.IsGone(err) {
		t.Errorf("after the process exited: got %v, want a status that means gone", err)
	}
}

// TestCopyKeepsClientAlive checks that RM frees the objects of a killed process only when
// the last descriptor of its file is closed, copies included. A holder of copies must
// therefore close them when the process exits.
func TestCopyKeepsClientAlive(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	p := nvrmtest.Mounted(t, rm).Start(t)
	f := copyOf(t, p.PID, p.FD)
	p.Kill()
	if _, err := groupOf(f, p.Context).ID(); err != nil {
		t.Errorf("process killed, copy open: got %v, want no error", err)
	}
	f.Close()
	for end := time.Now().Add(5 * time.Second); rm.Clients() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("clients after 5 s: got %d, want 0", rm.Clients())
		}
	}
}

func copyOf(t *testing.T, pid, fd int) *nvrm.File {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd_open: %v", err)
	}
	defer unix.Close(pidfd)
	dup, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		t.Fatalf("pidfd_getfd: %v", err)
	}
	f := nvrm.NewFile(dup)
	t.Cleanup(func() { f.Close() })
	return f
}
