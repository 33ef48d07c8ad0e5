package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	control "github.com/giveway/giveway/client"
	"github.com/giveway/giveway/sched"
)

// TestContainer registers a container as the agent of Kubernetes does, and then starts a program in
// it, in namespaces and a cgroup of its own, beside a batch job. The class must be in force, and the
// batch job give way, before the program's first kernel. CUDA itself uses the GPU earlier, while it
// makes the context.
func TestContainer(t *testing.T) {
	b := newTestbed(t)
	id := strings.Repeat("e2", 32)
	cgroup := b.newCgroup("kubepods/pod0123/" + id)
	agent := filepath.Join(b.TempDir(), "agent.sock")
	file := filepath.Join(filepath.Dir(b.socket), "giveway.yaml")
	if err := os.WriteFile(file, []byte("agent_socket: "+agent+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.startDaemon("--config", file)
	job := b.startJob() // alone on the GPU, a context makes no visit that ends
	b.await(job.pid)
	b.set(job.pid, "--class", "batch")
	names := api.ContainerNames{Pod: "serve-0", Namespace: "shop", Name: "model"}
	c := api.Container{ID: id, PodUID: "0123", ContainerNames: names, Values: attr.Must("class=online")}
	begun := time.Now()
	if err := control.New(agent).Register(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	registered := time.Since(begun)

	cmd := b.command("giveway-bench")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	program, pid, _ := b.startNamespaced(cmd, strings.Fields(onlineJob+" --seconds 3")...)
	b.await(pid)
	latency := program.measure()
	m := b.firstMoments(pid, job.pid)
	sinceOpened := func(at time.Time) float64 { return at.Sub(program.opened).Seconds() * 1e3 }
	b.record("container", &latency, values{
		"register_us": float64(registered.Microseconds()), "first_use_after_open_ms": sinceOpened(m.firstUse),
		"class_after_open_ms": sinceOpened(m.class), "batch_slice_after_open_ms": sinceOpened(m.givesWay),
	})
	b.Log(b.mustGiveway("ps", "--wide"))
	b.atMost("from before the first kernel to the class, ms", sinceOpened(m.class), 0)
	b.atMost("from before the first kernel to the minimum slice of the batch job, ms", sinceOpened(m.givesWay), 0)
	b.policy("native")
	native := program.measure()
	b.record("container, native", &native, nil)
	b.atMost("P50 by class / native", float64(latency.P50)/float64(native.P50), 0.5)
}

// moments are those of a new online process, by the wall clock.
type moments struct {
	firstUse time.Time // it had the device
	class    time.Time // its class was in force
	givesWay time.Time // a batch process had the minimum slice
}

// firstMoments returns the moments of an online process beside a batch process.
func (b *testbed) firstMoments(online, batch int) (m moments) {
	b.Helper()
	kinds := []api.EntryKind{api.KindState, api.KindSpan, api.KindAction}
	record, err := control.New(b.socket).Record(context.Background(), api.RecordQuery{Kinds: kinds, Limit: 5000})
	if err != nil {
		b.Fatal(err)
	}
	first := func(moment *time.Time, at time.Duration) {
		if t := record.Began.Add(at); moment.IsZero() || t.Before(*moment) {
			*moment = t
		}
	}
	for _, e := range record.Entries {
		switch {
		case e.PID == online && e.State != nil && e.State.Class == "online":
			first(&m.class, e.At)
		case e.PID == online && e.Span != nil && e.Span.What == "held":
			first(&m.firstUse, e.Span.Begin)
		case e.PID == batch && e.Action != nil && e.Action.Verb == "slice" && e.Action.Slice == sched.MinSlice && e.Action.Outcome == "done":
			first(&m.givesWay, e.Action.Completed)
		}
	}
	if m.firstUse.IsZero() || m.class.IsZero() || m.givesWay.IsZero() || record.Lost > 0 {
		b.Fatalf("process %d beside %d: %+v, %d entries lost; want all moments and no loss", online, batch, m, record.Lost)
	}
	return m
}

// newCgroup makes a cgroup of version 2 and opens it.
func (b *testbed) newCgroup(path string) *os.File {
	b.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = b.TempDir()
		if err := syscall.Mount("giveway", root, "cgroup2", 0, ""); err != nil {
			b.Skipf("there is no cgroup of version 2, and none can be mounted: %v", err)
		}
		b.Cleanup(func() { _ = syscall.Unmount(root, 0) })
	}
	dir := root
	for part := range strings.SplitSeq(path, "/") {
		dir = filepath.Join(dir, part)
		made, err := dir, os.Mkdir(dir, 0o755)
		if err == nil {
			b.Cleanup(func() { _ = os.Remove(made) })
		} else if !os.IsExist(err) {
			b.Skipf("no cgroup can be made: %v", err)
		}
	}
	open, err := os.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = open.Close() })
	return open
}
