package discover

import (
	"os"
	"testing"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// Clients of MPS hold the server's group under handles of their own: it is
// reported of the server alone, whoever was seen first, and of a client again
// when the server has gone.
func TestMPSGroupIsTheServers(t *testing.T) {
	const server = 42 // as fakeProc has it
	fake := fakeProc(t, nil, map[string]string{"exe": "/usr/bin/nvidia-cuda-mps-server"})
	w, err := newWatcher(t.Context(), Config{Proc: string(fake.FS)})
	if err != nil {
		t.Fatal(err)
	}
	w.events = make(chan Event, 8)
	me, err := proc.Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self, err := proc.System.Open(me.PID, me.Start)
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	hold := func(pid int, client nvrm.Handle, id uint32, gpu string) (*holder, *found) {
		h := &holder{process: proc.Process{PID: pid, Start: uint64(pid)}, pidfd: self, groups: map[groupName]*found{}}
		w.holders[pid] = h
		return h, &found{groupName: groupName{client, 0x5c000015}, id: id, gpu: gpu}
	}
	keep := func(h *holder, g *found) { h.groups[g.groupName], w.owners[g.groupName] = g, h }

	client, his := hold(50, 0xc1d00001, 3, "GPU-a")
	if !w.sortOutMPS(client, his, false) {
		t.Fatal("a group that nobody else has is not the client's")
	}
	keep(client, his)
	other, apart := hold(51, 0xc1d00002, 4, "GPU-a")
	keep(other, apart)
	elsewhere, far := hold(52, 0xc1d00003, 3, "GPU-b")
	keep(elsewhere, far)

	s, its := hold(server, 0xc1d00004, 3, "GPU-a")
	if !w.sortOutMPS(s, its, true) {
		t.Fatal("the server's group is not the server's")
	}
	keep(s, its)
	if len(w.events) != 1 || len(client.groups) != 0 || !client.shares {
		t.Fatalf("%d events; the client still has %v", len(w.events), client.groups)
	}
	if g := (<-w.events).Gone; g == nil || g.PID != 50 || g.Group != his.group {
		t.Errorf("gone: %+v", g)
	}
	if w.sortOutMPS(client, his, false) {
		t.Error("a client may have the server's group")
	}
	if !w.sortOutMPS(other, apart, false) || !w.sortOutMPS(elsewhere, far, false) {
		t.Error("a group of another number, or on another GPU, is taken for the server's")
	}
}
