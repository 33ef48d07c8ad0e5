package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nri "github.com/containerd/nri/pkg/api"
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
)

// daemon is a daemon in memory.
type daemon struct {
	mu     sync.Mutex
	all    map[string]api.Container
	fail   error
	hang   chan struct{} // calls wait until it is closed; nil: they do not
	writes int
}

func (d *daemon) call() error {
	d.mu.Lock()
	hang, err := d.hang, d.fail
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

func (d *daemon) Containers(context.Context) (all []api.Container, err error) {
	if err := d.call(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.all {
		all = append(all, c)
	}
	return all, nil
}

func (d *daemon) Register(_ context.Context, c api.Container) error {
	if err := d.call(); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return &client.Error{Status: 400, Message: err.Error()}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[string]api.Container{}
	}
	d.all[c.ID], d.writes = c, d.writes+1
	return nil
}

func (d *daemon) Unregister(_ context.Context, id string) error {
	if err := d.call(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.all[id]; !ok {
		return &client.Error{Status: 404, Message: "not registered"}
	}
	delete(d.all, id)
	d.writes++
	return nil
}

func (d *daemon) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// knows reports which class the daemon has for each of some containers; "-": it has none.
func (d *daemon) knows(ids ...string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, id := range ids {
		c, ok := d.all[id]
		if !ok {
			out = append(out, "-")
			continue
		}
		out = append(out, c.String())
	}
	return strings.Join(out, ", ")
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what + ": not within 30 s")
		}
	}
}

// runtime is the runtime's side of NRI, with the pods that are there.
type runtime struct {
	*adaptation.Adaptation
	mu         sync.Mutex
	pods       []*nri.PodSandbox
	containers []*nri.Container
}

func newRuntime(t *testing.T, socket string) *runtime {
	t.Helper()
	r := &runtime{}
	sync := func(ctx context.Context, cb adaptation.SyncCB) error {
		r.mu.Lock()
		pods, containers := r.pods, r.containers
		r.mu.Unlock()
		_, err := cb(ctx, pods, containers)
		return err
	}
	update := func(context.Context, []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) { return nil, nil }
	none := t.TempDir()
	a, err := adaptation.New("test", "1", sync, update, adaptation.WithSocketPath(socket), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err != nil {
		t.Fatal(err)
	}
	r.Adaptation = a
	return r
}

func (r *runtime) start(t *testing.T) {
	t.Helper()
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
}

func sandbox(class string) *nri.PodSandbox {
	return &nri.PodSandbox{Id: "sandbox-" + class, Name: "pod-" + class, Namespace: "ml", Uid: "uid-" + class, Annotations: map[string]string{prefix + "class": class}}
}

func inside(pod *nri.PodSandbox, digit string) *nri.Container {
	return &nri.Container{Id: strings.Repeat(digit, 64), PodSandboxId: pod.Id, Name: "main", State: nri.ContainerState_CONTAINER_RUNNING}
}

// startAgent runs a plugin against a runtime, a daemon and, if watch is not nil, an API server.
// disconnect ends its connection to the runtime, as the end of the runtime's process does.
func startAgent(t *testing.T, d *daemon, socket string, watch *Watch) (disconnect func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p := &Plugin{Registrar: NewRegistrar(d, log), Injection: Injection{Library: "/lib/giveway", Socket: "/run/giveway"}, Watch: watch, Log: log}
	p.Registrar.every = 20 * time.Millisecond
	var mu sync.Mutex
	var last net.Conn
	p.dial = func(path string) (net.Conn, error) {
		c, err := net.Dial("unix", path)
		mu.Lock()
		defer mu.Unlock()
		last = c
		return c, err
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, socket) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		last.Close()
	}
}

// TestPlugin: over NRI, as containerd makes the calls. The daemon knows a container when its
// creation returns, what is injected arrives, and containers that are gone are removed.
func TestPlugin(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r, d := newRuntime(t, socket), &daemon{all: map[string]api.Container{strings.Repeat("9", 64): {ID: strings.Repeat("9", 64)}}}
	old := sandbox("idle")
	r.pods, r.containers = []*nri.PodSandbox{old}, []*nri.Container{inside(old, "1")}
	r.start(t)
	defer r.Stop()
	startAgent(t, d, socket, nil)
	one, two, gone := strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("9", 64)
	eventually(t, "what was there is registered, and what is gone is removed", func() bool { return d.knows(one, gone) == "class=idle, -" })

	pod := sandbox("batch")
	pod.Annotations[prefix+"shim"] = "true"
	c := inside(pod, "2")
	c.Env = []string{"LD_PRELOAD=/own.so"}
	got, err := r.CreateContainer(t.Context(), &nri.CreateContainerRequest{Pod: pod, Container: c})
	if err != nil {
		t.Fatal(err)
	}
	if d.knows(two) != "class=batch" {
		t.Errorf("when creation has returned: got %s, want class=batch", d.knows(two))
	}
	adjust := got.GetAdjust()
	var preload string
	for _, e := range adjust.GetEnv() {
		if e.Key == "LD_PRELOAD" {
			preload = e.Value
		}
	}
	if preload != "/own.so:/opt/giveway/libgiveway.so" || len(adjust.GetMounts()) != 2 || !strings.Contains(strings.Join(adjust.GetMounts()[0].Options, ","), "ro") {
		t.Errorf("got %v", adjust)
	}
	if _, err := r.StopContainer(t.Context(), &nri.StopContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
	if err := r.RemoveContainer(t.Context(), &nri.RemoveContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container is removed", func() bool { return d.knows(one, two) == "class=idle, -" })
}

// TestRuntimeRestarts: when the runtime is restarted the plugin connects again and learns
// what has changed meanwhile.
func TestRuntimeRestarts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r, d := newRuntime(t, socket), &daemon{}
	a := sandbox("batch")
	r.pods, r.containers = []*nri.PodSandbox{a}, []*nri.Container{inside(a, "1")}
	r.start(t)
	disconnect := startAgent(t, d, socket, nil)
	eventually(t, "registered", func() bool { return d.knows(strings.Repeat("1", 64)) == "class=batch" })
	r.Stop()
	disconnect()
	r = newRuntime(t, socket)
	b := sandbox("idle")
	r.pods, r.containers = []*nri.PodSandbox{b}, []*nri.Container{inside(b, "2")}
	r.start(t)
	defer r.Stop()
	eventually(t, "the new pods are known", func() bool { return d.knows(strings.Repeat("1", 64), strings.Repeat("2", 64)) == "-, class=idle" })
}

func add(t *testing.T, r *Registrar, c api.Container) {
	t.Helper()
	r.put(c)
	r.register(t.Context(), c)
}

// TestDaemonAway: a daemon that hangs or is not there delays a pod for a moment only. When it
// is back, also without its journal, it learns everything.
func TestDaemonAway(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	d := &daemon{hang: make(chan struct{})}
	r := NewRegistrar(d, log)
	r.every = 10 * time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { r.Run(ctx) })
	defer ended.Wait()
	defer stop()
	r.Replace(nil)
	begin := time.Now()
	add(t, r, api.Container{ID: id, Values: attr.Must("class=batch")})
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("a daemon that hangs delayed a pod by %v", took)
	}
	if d.knows(id) != "-" {
		t.Fatal("the daemon did not hang")
	}
	d.set(func() { close(d.hang); d.hang = nil })
	eventually(t, "a daemon that goes on learns of it", func() bool { return d.knows(id) == "class=batch" })
	d.set(func() { d.fail = errors.New("connection refused") })
	add(t, r, api.Container{ID: strings.Repeat("b", 64)})
	d.set(func() { d.fail, d.all = nil, nil })
	eventually(t, "a daemon that forgot everything learns of it", func() bool { return d.knows(id, strings.Repeat("b", 64)) == "class=batch, " })
	d.set(func() { d.writes = 0 })
	time.Sleep(100 * time.Millisecond)
	d.set(func() {
		if d.writes != 0 {
			t.Errorf("nothing changed, and the daemon was told %d times", d.writes)
		}
	})
	r.Remove(id)
	eventually(t, "the container is removed", func() bool { return d.knows(id) == "-" })
}

// TestRegistrarGivesUpWhatIsRefused: a container that the daemon refuses is not tried again.
func TestRegistrarGivesUpWhatIsRefused(t *testing.T) {
	d := &daemon{}
	r := NewRegistrar(d, slog.New(slog.DiscardHandler))
	add(t, r, api.Container{ID: "not an id"})
	if len(r.live) != 0 {
		t.Errorf("got %v, want it given up", r.live)
	}
}
