package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPool runs three batch jobs in a pool: the MPS server has them as its clients, one can
// be paused, one that is killed harms no other, and the daemon says when the server has
// exited. A job outside the pool goes on throughout.
func TestPool(t *testing.T) {
	b := newTestbed(t)
	b.needMPS()
	b.startDaemon()
	outside := b.startJob()
	members := []*client{b.startMember(), b.startMember(), b.startMember()}
	server := b.checkMembers(members)
	b.record("members", nil, values{"per_s": sumOfRates(members, 2*time.Second), "outside_per_s": outside.rate(time.Second)})

	pid := strconv.Itoa(members[1].pid)
	b.mustGiveway("pause", pid)
	time.Sleep(500 * time.Millisecond)
	b.atMost("kernels per second of a paused member", members[1].rate(time.Second), 0)
	b.atLeast("kernels per second of another", members[0].rate(time.Second), 1)
	b.mustGiveway("resume", pid)

	members[0].kill()
	for i, c := range members[1:] {
		if took, moved := c.awaitProgress(); !moved || !c.alive() {
			t.Errorf("member %d after another was killed: alive %v, nothing completed for %v", i+2, c.alive(), took)
		}
	}
	members[0] = b.startMember() // a new one can join
	if again := b.checkMembers(members); again != server {
		t.Errorf("the pool has server %d, want still %d", again, server)
	}

	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.awaitLog("MPS server has exited")
	begun := time.Now()
	for i, c := range members {
		select {
		case <-c.exited:
		case <-time.After(20 * time.Second):
			t.Errorf("member %d neither fails nor exits within 20 s of its server's exit", i+1)
		}
	}
	b.record("server killed", nil, values{"members_exited_after_s": time.Since(begun).Seconds()})
	if _, moved := outside.awaitProgress(); !moved {
		t.Error("the job outside the pool completes nothing after the server's exit")
	}
	if again := b.checkMembers([]*client{b.startMember()}); again == server {
		t.Errorf("the pool still has server %d, which was killed", server)
	}
}

// needMPS skips the test on a machine without MPS. At the end of the test, when its clients
// have been killed, it ends the pool.
func (b *testbed) needMPS() {
	b.Helper()
	if _, err := exec.LookPath("nvidia-cuda-mps-control"); err != nil {
		b.Skip("no nvidia-cuda-mps-control on this machine")
	}
	b.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			_, _ = b.giveway("pool", "end")
			left, err := b.giveway("pool", "--json")
			if err == nil && !strings.Contains(left, "{") {
				return
			}
			if time.Now().After(end) {
				b.Errorf("a pool without members did not end within 10 s: %s, %v", left, err)
				return
			}
		}
	})
}

// startMember starts a batch client in the pool.
func (b *testbed) startMember() *client {
	b.Helper()
	return b.run("--class batch --pool", batchJob+" --ns-per-iteration "+b.nsPer)
}

// checkMembers waits until the MPS server of the pool and the daemon both have the clients
// as members, and returns the server's pid.
func (b *testbed) checkMembers(clients []*client) int {
	b.Helper()
	problem := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var pools []struct{ Servers, Clients []int }
		out := b.mustGiveway("pool", "--json")
		if err := json.Unmarshal([]byte(out), &pools); err != nil {
			b.Fatalf("giveway pool --json: %v: %s", err, out)
		}
		if problem = b.missingMember(clients, out, pools); problem == "" {
			return pools[0].Servers[0]
		}
	}
	b.Fatal(problem)
	return 0
}

// missingMember returns what keeps the clients from being members of one pool, or an empty
// string.
func (b *testbed) missingMember(clients []*client, out string, pools []struct{ Servers, Clients []int }) string {
	b.Helper()
	if len(pools) != 1 || len(pools[0].Servers) != 1 {
		return "want one pool with one server: " + out
	}
	all := b.ps()
	for _, c := range clients {
		if !slices.Contains(pools[0].Clients, c.pid) {
			return "process " + strconv.Itoa(c.pid) + " is not a client of the server: " + out
		}
		i := slices.IndexFunc(all, func(p process) bool { return p.PID == c.pid })
		if i < 0 || all[i].Member == nil || all[i].Member.Server != pools[0].Servers[0] || all[i].Member.Pool == "" {
			return "giveway ps does not show process " + strconv.Itoa(c.pid) + " as a member of the pool"
		}
	}
	return ""
}

// awaitLog waits until the daemon's log has a message, for at most 5 s.
func (b *testbed) awaitLog(message string) {
	b.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		text, _ := os.ReadFile(b.log)
		if strings.Contains(string(text), message) {
			return
		}
		if time.Now().After(end) {
			b.Errorf("the daemon's log has no %q after 5 s", message)
			return
		}
	}
}
