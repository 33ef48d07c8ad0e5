package discover

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// TestMPSGroupBelongsToServer checks that a group which MPS clients hold under handles of
// their own is reported for the server only, whichever was found first.
func TestMPSGroupBelongsToServer(t *testing.T) {
	const server = 42 // as fakeProc has it
	fake := fakeProc(t, map[string]string{"exe": "/usr/bin/nvidia-cuda-mps-server"})
	w, err := newWatcher(t.Context(), Config{Proc: string(fake.FS)})
	if err != nil {
		t.Fatal(err)
	}
	w.events = make(chan Event, 8)
	me, err := proc.Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self, err := proc.System.OpenPidfd(me.PID, me.Start)
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	hold := func(pid int, client nvrm.Handle, id uint32, gpu string) (*opener, *Group) {
		h := &opener{process: proc.Process{PID: pid, Start: uint64(pid)}, pidfd: self, groups: map[Key]*Group{}}
		w.openers[pid] = h
		return h, &Group{Key: Key{client, 0x5c000015}, ID: id, GPU: gpu}
	}
	keep := func(h *opener, g *Group) { h.groups[g.Key], w.owners[g.Key] = g, h }

	client, clientGroup := hold(50, 0xc1d00001, 3, "GPU-a")
	if !w.ownsGroup(client, clientGroup, false) {
		t.Fatal("a group of one process does not belong to it")
	}
	keep(client, clientGroup)
	other, apart := hold(51, 0xc1d00002, 4, "GPU-a")
	keep(other, apart)
	elsewhere, far := hold(52, 0xc1d00003, 3, "GPU-b")
	keep(elsewhere, far)

	mps, mpsGroup := hold(server, 0xc1d00004, 3, "GPU-a")
	if !w.ownsGroup(mps, mpsGroup, true) {
		t.Fatal("the group of the server does not belong to it")
	}
	keep(mps, mpsGroup)
	if len(w.events) != 1 || len(client.groups) != 0 || !client.sharesGroup || w.pending[50] == nil {
		t.Fatalf("got %d events, groups %v of the client, pending %v; want one, none, and a scan of the client", len(w.events), client.groups, w.pending)
	}
	if g := (<-w.events).Gone; g == nil || g.PID != 50 || g.Key != clientGroup.Key {
		t.Errorf("got %+v, want the client's group gone", g)
	}
	joined := func(pid int) {
		t.Helper()
		if len(w.events) != 1 {
			t.Fatalf("got %d events, want one", len(w.events))
		}
		m := (<-w.events).Joined
		if m == nil || m.Process.PID != pid || m.Server.PID != server || m.Group != mpsGroup.Key {
			t.Errorf("got %+v, want that process %d has joined", m, pid)
		}
	}
	for range 2 { // it joins once
		if w.ownsGroup(client, clientGroup, false) {
			t.Error("the group of the server belongs to a client")
		}
	}
	joined(50)
	late, lateGroup := hold(53, 0xc1d00005, 3, "GPU-a")
	if w.ownsGroup(late, lateGroup, false) {
		t.Error("the group of the server belongs to a later client")
	}
	joined(53)
	w.exited(late)
	if m := (<-w.events).Left; m == nil || m.Process.PID != 53 || m.Group != mpsGroup.Key {
		t.Errorf("got %+v, want that process 53 has left", m)
	}
	if !w.ownsGroup(other, apart, false) || !w.ownsGroup(elsewhere, far, false) {
		t.Error("a group with another number, or on another GPU, belongs to the server")
	}
}

// startServer starts a process that follows orders and is called nvidia-cuda-mps-server.
func startServer(t *testing.T, path string) *testProcess {
	t.Helper()
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	cmd := child("orders", path)
	cmd.Path = filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	if err := os.WriteFile(cmd.Path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	c := drivertest.Start(t, cmd)
	return &testProcess{c, t, bufio.NewReader(c.Out)}
}

// wantMember waits for Joined or Left of a process, which must be the next event.
func (w *testWatcher) wantMember(pid int, joined bool) {
	w.t.Helper()
	select {
	case e := <-w.Events():
		m := e.Left
		if joined {
			m = e.Joined
		}
		if m == nil || m.Process.PID != pid {
			w.t.Fatalf("got %+v, want that process %d joined: %v", e, pid, joined)
		}
	case <-time.After(20 * time.Second):
		w.t.Fatalf("process %d: got no event, want that it joined: %v", pid, joined)
	}
}

// TestMemberLeaves checks that a client which frees its group, or closes the device, as a
// program that executes another one does, is no member any more.
func TestMemberLeaves(t *testing.T) {
	for _, noBPF := range []bool{false, true} {
		for _, order := range []string{"free group", "close"} {
			t.Run(fmt.Sprintf("NoBPF=%v/%s", noBPF, order), func(t *testing.T) {
				rm, path, _ := mounted(t)
				server, client := startServer(t, path), startProcess(t, path)
				rm.ShareGroup(server.make(), client.make())
				w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: noBPF})
				if g := w.wantFound(); g.Process.PID != server.PID || !g.MPSServer {
					t.Fatalf("got %+v, want the server's group", g)
				}
				w.wantMember(client.PID, true)
				w.wantNothing()
				client.order(order)
				w.wantMember(client.PID, false)
				w.wantNothing()
			})
		}
	}
}

// TestStaleGroupMakesNoMember checks that a process whose group has the number of one that
// the MPS server has freed is no client of the server.
func TestStaleGroupMakesNoMember(t *testing.T) {
	rm, path, _ := mounted(t)
	server := startServer(t, path)
	of := server.make()
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true, Poll: time.Hour})
	if g := w.wantFound(); g.Process.PID != server.PID {
		t.Fatalf("got %+v, want the server's group", g)
	}
	other := startProcess(t, path)
	rm.ShareGroup(of, other.make())
	server.order("free group")
	w.Rescan(other.PID)
	if got := w.wantGone(); got.PID != server.PID || got.Handle != of.Compute.Group {
		t.Errorf("got %+v gone, want the server's group", got)
	}
	if g := w.wantFound(); g.Process.PID != other.PID {
		t.Errorf("got %+v, want the group of the other process", g)
	}
	w.wantNothing()
}

// TestPoolOf checks that the server of a pool is known by its environment, or by that of the
// control daemon, its parent, and that nothing else is taken for a label. A server that the
// user starts in a member of a pool inherits the variable, but has another pipe folder.
func TestPoolOf(t *testing.T) {
	const pipe = "CUDA_MPS_PIPE_DIRECTORY=/p/pipe\x00"
	for name, tt := range map[string]struct {
		environ, want string
	}{
		"pool":            {"HOME=/\x00GIVEWAY_POOL=night-2:/p/pipe\x00" + pipe, "night-2"},
		"none":            {"HOME=/\x00XGIVEWAY_POOL=x:/p/pipe\x00" + pipe, ""},
		"empty":           {"GIVEWAY_POOL=\x00" + pipe, ""},
		"no pipe folder":  {"GIVEWAY_POOL=x\x00" + pipe, ""},
		"not a label":     {"GIVEWAY_POOL=a\x1b[2Jb:/p/pipe\x00" + pipe, ""},
		"cut at limit":    {"A=" + strings.Repeat("x", maxEnviron) + "\x00GIVEWAY_POOL=x:/p/pipe\x00" + pipe, ""},
		"own pipe folder": {"GIVEWAY_POOL=x:/p/pipe\x00CUDA_MPS_PIPE_DIRECTORY=/own\x00", ""},
		"default folder":  {"GIVEWAY_POOL=x:/p/pipe\x00HOME=/\x00", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := fakeProc(t, map[string]string{"exe": "/usr/bin/nvidia-cuda-mps-server"})
			control := fakeProc(t, map[string]string{"exe": "/usr/bin/nvidia-cuda-mps-control"})
			other := fakeProc(t, map[string]string{"exe": "/bin/sh"})
			for _, p := range []procfs{server, control, other} {
				if err := os.WriteFile(p.Path(42, "environ"), []byte(tt.environ), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := server.poolOf(proc.Process{PID: 42}); got != tt.want {
				t.Errorf("by its own environment: got %q, want %q", got, tt.want)
			}
			if got := control.poolOf(proc.Process{PID: 7, Parent: 42}); got != tt.want {
				t.Errorf("by that of the control daemon: got %q, want %q", got, tt.want)
			}
			if got := other.poolOf(proc.Process{PID: 7, Parent: 42}); got != "" {
				t.Errorf("by that of another parent, such as a member: got %q", got)
			}
		})
	}
}
