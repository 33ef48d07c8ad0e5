package agent

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	nri "github.com/containerd/nri/pkg/api"
	"github.com/giveway/giveway/api"
)

// Plugin implements the calls of the runtime.
type Plugin struct {
	Registrar   *Registrar
	Injection   Injection
	TrustClaims bool   // class online may come from a resource claim
	Watch       *Watch // of the pods' annotations; nil: those of a pod's start apply
	Log         *slog.Logger

	pods *pods
	dial func(path string) (net.Conn, error) // nil: to a unix socket
}

// Synchronize is called when the plugin connects, with everything that is there.
func (p *Plugin) Synchronize(_ context.Context, pods []*nri.PodSandbox, containers []*nri.Container) ([]*nri.ContainerUpdate, error) {
	byID := map[string]*nri.PodSandbox{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock() // until all are replaced, so that no change is lost
	clear(p.pods.containers)
	var all []api.Container
	for _, c := range containers {
		if pod := byID[c.GetPodSandboxId()]; pod != nil && c.GetState() != nri.ContainerState_CONTAINER_STOPPED {
			r := Read(p.pods.add(described(pod, c), false), p.TrustClaims)
			all = append(all, r.Container)
		}
	}
	p.Log.Info("connected to the container runtime", "pods", len(pods), "containers", len(all))
	p.Registrar.Replace(all)
	return nil, nil
}

// CreateContainer is called before a container is made. When it returns, the daemon knows the
// container, unless it does not answer.
func (p *Plugin) CreateContainer(ctx context.Context, pod *nri.PodSandbox, c *nri.Container) (*nri.ContainerAdjustment, []*nri.ContainerUpdate, error) {
	began := time.Now()
	r := p.add(described(pod, c))
	change := p.Injection.Adjust(&r, c.GetEnv())
	p.logMistakes(&r)
	p.Registrar.register(ctx, r.Container)
	p.Log.Info("container created", "container", Describe(&r.Container), "attributes", r.Container.Values.String(), "took", time.Since(began))
	return adjustment(change), nil, nil
}

// add adds a container to those that the daemon is to know.
func (p *Plugin) add(c Pod) Request {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	r := Read(p.pods.add(c, true), p.TrustClaims)
	p.Registrar.put(r.Container)
	return r
}

func (p *Plugin) logMistakes(r *Request) {
	for _, m := range r.Mistakes {
		p.Log.Warn("annotations of a pod", "container", Describe(&r.Container), "mistake", m)
	}
}

// changeEvery is how often changed annotations are applied: users may change them without end.
const changeEvery = 250 * time.Millisecond

// applyChanges applies changed annotations until ctx is done.
func (p *Plugin) applyChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.pods.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(changeEvery):
		}
		p.applyChanged()
	}
}

func (p *Plugin) applyChanged() {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	var all []api.Container
	for _, c := range p.pods.take() {
		r := Read(c, p.TrustClaims)
		p.logMistakes(&r)
		p.Log.Info("annotations changed", "container", Describe(&r.Container), "attributes", r.Container.Values.String())
		all = append(all, r.Container)
	}
	p.Registrar.change(all)
}

// StopContainer is called when a container has been stopped.
func (p *Plugin) StopContainer(_ context.Context, _ *nri.PodSandbox, c *nri.Container) ([]*nri.ContainerUpdate, error) {
	p.remove(c.GetId())
	return nil, nil
}

// RemoveContainer is called when a container is removed, whether it was stopped or exited.
func (p *Plugin) RemoveContainer(_ context.Context, _ *nri.PodSandbox, c *nri.Container) error {
	p.remove(c.GetId())
	return nil
}

func (p *Plugin) remove(id string) {
	p.pods.remove(id)
	p.Registrar.Remove(id)
}

// described returns what the runtime says of a container.
func described(pod *nri.PodSandbox, c *nri.Container) Pod {
	return Pod{
		Name: pod.GetName(), Namespace: pod.GetNamespace(), UID: pod.GetUid(), Annotations: pod.GetAnnotations(),
		Container: c.GetName(), ID: c.GetId(), Env: c.GetEnv(),
	}
}

// adjustment returns a change as the runtime takes it, or nil if there is none.
func adjustment(c Change) *nri.ContainerAdjustment {
	if len(c.Mounts) == 0 && len(c.Env) == 0 {
		return nil
	}
	a := &nri.ContainerAdjustment{}
	for _, m := range c.Mounts {
		a.AddMount(&nri.Mount{Source: m.Source, Destination: m.Destination, Type: "bind", Options: []string{"rbind", "ro", "nosuid", "nodev"}})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		a.RemoveEnv(name) // the container's own value, which the new one contains
		a.AddEnv(name, c.Env[name])
	}
	return a
}
