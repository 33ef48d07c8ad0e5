package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// TestPool runs four batch clients in a pool, which gives way to an online client as one
// queue. One member is paused, one is killed, and at last their server is: the daemon says
// so, and the next member gets another server. A job outside the pool goes on throughout.
func TestPool(t *testing.T) {
	b := newTestbed(t)
	b.needMPS()
	online := b.start("lc --kernel 28us --after 5ms --wait --seconds 3")
	alone := online.measure()
	b.record("alone", &alone, nil)
	b.startDaemon()
	b.set(online.pid, "--class", "online")
	var members []*client
	for range 4 {
		members = append(members, b.startMember())
	}
	server := b.checkMembers(members)
	measure := func(policy string) (stats.Summary, float64) {
		b.policy(policy)
		latency, rate := online.measure(), sumOfRates(members, 2*time.Second)
		b.record("pool, "+policy, &latency, values{"batch_per_s": rate})
		return latency, rate
	}
	native, nativeRate := measure("native")
	got, rate := measure("giveway")
	b.atMost("P50 giveway / native", float64(got.P50)/float64(native.P50), 0.25)
	b.atLeast("batch rate giveway / native", rate/nativeRate, 0.85)

	pid := strconv.Itoa(members[0].pid)
	b.mustGiveway("pause", pid)
	time.Sleep(time.Second)
	b.atMost("kernels per second of a paused member", members[0].rate(time.Second), 0)
	b.atLeast("batch rate of the others / all", sumOfRates(members[1:], 2*time.Second)/rate, 0.85)
	b.mustGiveway("resume", pid)
	if took, moved := members[0].awaitProgress(); !moved {
		t.Errorf("a resumed member has completed nothing after %v", took)
	}

	members[0].kill()
	time.Sleep(500 * time.Millisecond)
	b.atLeast("batch rate after one member was killed / all", sumOfRates(members[1:], 2*time.Second)/rate, 0.85)
	members[0] = b.startMember() // a new one can join
	if again := b.checkMembers(members); again != server {
		t.Errorf("the pool has server %d, want still %d", again, server)
	}
	b.killServer(server, members)
}

// killServer kills the pool's server, on which its members end.
func (b *testbed) killServer(server int, members []*client) {
	b.Helper()
	outside := b.startJob()
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		b.Fatal(err)
	}
	killed := time.Now()
	b.awaitLog("MPS server has exited")
	for i, c := range members {
		select {
		case <-c.exited:
		case <-time.After(20 * time.Second):
			b.Errorf("member %d has not ended 20 s after its server", i+1)
		}
	}
	b.record("server killed", nil, values{"members_ended_after_s": time.Since(killed).Seconds()})
	if _, moved := outside.awaitProgress(); !moved {
		b.Error("the job outside the pool completes nothing after the server's exit")
	}
	if again := b.checkMembers([]*client{b.startMember()}); again == server {
		b.Errorf("the pool still has server %d, which was killed", server)
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
		if b.Failed() {
			b.Log(b.poolState())
		}
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
		out, err := b.giveway("pool", "--json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &pools)
		}
		if err != nil { // a server may exit between two questions
			problem = fmt.Sprintf("giveway pool --json: %v: %s", err, out)
		} else if problem = b.missingMember(clients, out, pools); problem == "" {
			return pools[0].Servers[0]
		}
	}
	b.Fatalf("%s\n%s", problem, b.poolState())
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
