package agent

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	nri "github.com/containerd/nri/pkg/api"
	"github.com/giveway/giveway/internal/heaptest"
)

// TestContainersComeAndGo: the agent's heap does not grow with the number of containers that
// came and went, over NRI as containerd makes the calls.
func TestContainersComeAndGo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r, d := newRuntime(t, socket), &daemon{}
	r.start(t)
	defer r.Stop()
	startAgent(t, d, socket, nil)
	one := inside(sandbox("batch"), "1")
	eventually(t, "the agent is there", func() bool {
		got, err := r.CreateContainer(t.Context(), &nri.CreateContainerRequest{Pod: sandbox("batch"), Container: one})
		return err == nil && got != nil && d.knows(one.Id) != "-"
	})
	const half = 10_000
	live := func() int {
		eventually(t, "all are removed", func() (gone bool) {
			d.set(func() { gone = len(d.all) == 1 })
			return gone
		})
		time.Sleep(50 * time.Millisecond) // the last comparison ends
		return heaptest.Live()
	}
	for i := range half {
		comeAndGo(t, r, i)
	}
	early := live()
	for i := range half {
		comeAndGo(t, r, half+i)
	}
	late := live()
	t.Logf("live heap: %d KiB after %d containers, %d KiB after %d", early>>10, half, late>>10, 2*half)
	if late-early > 256*half {
		t.Errorf("the heap grew by %d bytes with each container", (late-early)/half)
	}
}

func comeAndGo(t *testing.T, r *runtime, i int) {
	t.Helper()
	pod := sandbox("batch")
	pod.Id, pod.Name, pod.Uid = fmt.Sprint("sandbox-", i), fmt.Sprint("pod-", i), fmt.Sprint("uid-", i)
	pod.Annotations[prefix+"shim"] = "true"
	c := inside(pod, "2")
	c.Id = fmt.Sprintf("%064x", i+1)
	_, err := r.CreateContainer(t.Context(), &nri.CreateContainerRequest{Pod: pod, Container: c})
	if err == nil {
		_, err = r.StopContainer(t.Context(), &nri.StopContainerRequest{Pod: pod, Container: c})
	}
	if err == nil {
		err = r.RemoveContainer(t.Context(), &nri.RemoveContainerRequest{Pod: pod, Container: c})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTablesOfTheAgent: no table of the agent grows with the number of pods that came and went,
// also where it watches the API server.
func TestTablesOfTheAgent(t *testing.T) {
	const half = 2000
	pods := func(n int) heaptest.Elements {
		log := slog.New(slog.DiscardHandler)
		p := &Plugin{Registrar: NewRegistrar(&daemon{}, log), Injection: Injection{Library: "/lib/giveway"}, Log: log, pods: newPods()}
		if _, err := p.Synchronize(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		version := "1"
		event := func(kind string, i int, class string) {
			t.Helper()
			text := fmt.Sprintf(`{"type": %q, "object": {"metadata": {"uid": "uid-%d", "resourceVersion": "2", "annotations": {"giveway.dev/class": %q}}}}`, kind, i, class)
			if err := take([]byte(text), &version, p.pods); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			pod := sandbox("batch")
			pod.Uid = fmt.Sprint("uid-", i)
			c := inside(pod, "2")
			c.Id = fmt.Sprintf("%064x", i+1)
			event("ADDED", i, "batch")
			if _, _, err := p.CreateContainer(t.Context(), pod, c); err != nil {
				t.Fatal(err)
			}
			event("MODIFIED", i, "idle")
			p.applyChanged()
			if err := p.RemoveContainer(t.Context(), pod, c); err != nil {
				t.Fatal(err)
			}
			event("DELETED", i, "idle")
			p.Registrar.compare(t.Context())
		}
		return heaptest.Count(map[string]any{"agent": p})
	}
	before := pods(half)
	if grown := pods(2*half).Grown(before, half/2); grown != "" {
		t.Errorf("after %d more pods:\n%s", half, grown)
	}
}
