package discover

import (
	"os"
	"strings"
	"testing"

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
	hold := func(pid int, client nvrm.Handle, id uint32, gpu string) (*holder, *Group) {
		h := &holder{process: proc.Process{PID: pid, Start: uint64(pid)}, pidfd: self, groups: map[Key]*Group{}}
		w.holders[pid] = h
		return h, &Group{Key: Key{client, 0x5c000015}, ID: id, GPU: gpu}
	}
	keep := func(h *holder, g *Group) { h.groups[g.Key], w.owners[g.Key] = g, h }

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
	if len(w.events) != 2 || len(client.groups) != 0 || !client.sharesGroup {
		t.Fatalf("got %d events, groups %v of the client; want 2 and none", len(w.events), client.groups)
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
	joined(50)
	if w.ownsGroup(client, clientGroup, false) {
		t.Error("the group of the server belongs to a client")
	}
	if len(w.events) != 0 {
		t.Error("a client has joined twice")
	}
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
