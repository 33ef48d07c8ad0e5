package backends

import (
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/server"
)

// TestPoolOnNVIDIA runs the daemon with the MPS server of a pool, two clients of it, which
// hold its group under handles of their own, and an online process outside. The pool is one
// queue of class batch that gives way; its clients are members, one of them is killed, and
// at last the server is.
func TestPoolOnNVIDIA(t *testing.T) {
	rm := nvrmtest.New(nvrmtest.Config{})
	m := nvrmtest.Mounted(t, rm)
	mps := m.StartMPSServer(t, "GIVEWAY_POOL=night:/p/pipe", "CUDA_MPS_PIPE_DIRECTORY=/p/pipe")
	one, two, online := m.Start(t), m.Start(t), m.Start(t)
	rm.ShareGroup(mps.Context, one.Context)
	rm.ShareGroup(mps.Context, two.Context)
	d := newDaemon(m.Path, "")
	defer run(t, d)()
	of := func(pid int) (out api.Process) {
		for _, p := range d.Processes() {
			if p.PID == pid {
				out = p
			}
		}
		return out
	}
	isMember := func(pid int) bool {
		p := of(pid)
		return p.Member != nil && !p.Member.Lost && p.Member.Server == mps.PID && p.Member.Pool == "night" && len(p.Queues) == 0
	}
	drivertest.Eventually(t, "the pool has two members", func() bool { return isMember(one.PID) && isMember(two.PID) })
	p := of(mps.PID)
	if len(p.Queues) != 1 || p.Queues[0].Pool != "night" || p.Class() != "batch" || p.Attrs.Source(attr.Class) != attr.FromBackend || p.Attrs.Int(attr.Weight) != 2 {
		t.Errorf("the server: got %+v", p)
	}
	drivertest.Eventually(t, "the online process is known", func() bool {
		_, err := d.Change(server.Caller{All: true}, online.PID, api.Change{Values: attr.Must("class=online")})
		return err == nil
	})
	drivertest.Eventually(t, "the pool has the minimum slice", func() bool { return groupOf(t, rm, m.Path, mps.PID).slice == time.Microsecond })
	one.Kill()
	drivertest.Eventually(t, "the pool has one member", func() bool { return of(one.PID).PID == 0 && of(mps.PID).Attrs.Int(attr.Weight) == 1 })
	if !isMember(two.PID) {
		t.Errorf("the other member: got %+v", of(two.PID))
	}
	mps.Kill()
	drivertest.Eventually(t, "the member has lost its server", func() bool {
		m := of(two.PID).Member
		return m != nil && m.Lost
	})
}
