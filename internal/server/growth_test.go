package server

import (
	"fmt"
	"net"
	"testing"

	"github.com/giveway/giveway/internal/heaptest"
)

// manyPods is a registry in which each container is a pod.
type manyPods struct{ oneContainer }

func (*manyPods) PodOf(containers string) (pod string, registered bool) { return containers, true }

// TestPodsComeAndGo: what the server keeps does not grow with the number of pods that
// connected, asked, were refused and went. Tables with a limit are full before the first half
// has gone.
func TestPodsComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector makes it slow, and other tests make the same calls at once")
	}
	const half = maxPodAccounts + 1000
	client, c := unixPair(t)
	defer client.Close()
	defer c.Close()
	pods := func(n int) heaptest.Elements {
		s, pod := New(mute{}, Config{Registry: &manyPods{}}), ""
		s.containersOf = func(net.Conn, int) (string, bool) { return pod, true }
		s.rights.effective = ^uint64(0)           // so that this process does not manage the daemon
		s.auditor.refusals = newBuckets(1e9, 0.5) // less than one line, so that refusals are only counted
		for i := range n {
			pod = fmt.Sprintf("%064x", i+1)
			conn := s.admitLocal(c)
			if conn == nil {
				t.Fatalf("pod %d: the connection was refused", i)
			}
			if a := s.answer(conn, request{op: opProcesses}); a.status != 200 {
				t.Fatalf("pod %d: got status %d", i, a.status)
			}
			if a := s.answer(conn, request{op: opStatus}); a.status != 403 {
				t.Fatalf("pod %d: got status %d, want 403", i, a.status)
			}
			conn.release() // and the socket stays open, for the next pod
		}
		return heaptest.Count(map[string]any{"server": s})
	}
	before := pods(half)
	if grown := pods(2*half).Grown(before, half/2); grown != "" {
		t.Errorf("after %d more pods:\n%s", half, grown)
	}
}
