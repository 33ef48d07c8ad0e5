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
)

// TestContainer registers a container as the agent of Kubernetes does, and then starts a program in
// it, in namespaces and a cgroup of its own, beside a batch job. The class must be in force before
// CUDA uses the GPU for the first time, which is before the program's first kernel. (It was not when
// it was last run, 147 and 158 ms late, before queues were offered while they settle.)
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
	inForce, first := b.firstMoments(pid)
	after := (inForce - first).Seconds() * 1e3
	b.record("container", &latency, values{"register_us": float64(registered.Microseconds()), "class_after_first_use_ms": after})
	b.Log(b.mustGiveway("ps", "--wide"))
	b.atMost("from CUDA's first use of the GPU to the class, ms", after, 0)
	b.policy("native")
	native := program.measure()
	b.record("container, native", &native, nil)
	b.atMost("P50 by class / native", float64(latency.P50)/float64(native.P50), 0.5)
}

// firstMoments returns when the class of a process was in force, and when it first had the device.
func (b *testbed) firstMoments(pid int) (inForce, first time.Duration) {
	b.Helper()
	record, err := control.New(b.socket).Record(context.Background(), api.RecordQuery{Kinds: []api.EntryKind{api.KindState, api.KindSpan}, Limit: 5000})
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range record.Entries {
		switch {
		case e.PID != pid:
		case e.State != nil && e.State.Class == "online" && inForce == 0:
			inForce = e.At
		case e.Span != nil && e.Span.What == "held" && (first == 0 || e.Span.Begin < first):
			first = e.Span.Begin
		}
	}
	if inForce == 0 || first == 0 || record.Lost > 0 {
		b.Fatalf("process %d: class in force at %v, first on the device at %v, %d entries lost", pid, inForce, first, record.Lost)
	}
	return inForce, first
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
