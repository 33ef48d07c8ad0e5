package agent

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"

	nri "github.com/containerd/nri/pkg/api"
	"github.com/giveway/giveway/api"
)

// Plugin implements the calls of the runtime.
type Plugin struct {
	Registrar   *Registrar
	Injection   Injection
	TrustClaims bool // class online may come from a resource claim
	Log         *slog.Logger

	dial func(path string) (net.Conn, error) // nil: to a unix socket
}

// Synchronize is called when the plugin connects, with everything that is there.
func (p *Plugin) Synchronize(_ context.Context, pods []*nri.PodSandbox, containers []*nri.Container) ([]*nri.ContainerUpdate, error) {
	byID := map[string]*nri.PodSandbox{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	var all []api.Container
	for _, c := range containers {
		if pod := byID[c.GetPodSandboxId()]; pod != nil && c.GetState() != nri.ContainerState_CONTAINER_STOPPED {
			all = append(all, p.read(pod, c).Container)
		}
	}
	p.Log.Info("connected to the container runtime", "pods", len(pods), "containers", len(all))
	p.Registrar.Replace(all)
	return nil, nil
}

// CreateContainer is called before a container is made. When it returns, the daemon knows the
// container, unless it does not answer.
func (p *Plugin) CreateContainer(ctx context.Context, pod *nri.PodSandbox, c *nri.Container) (*nri.ContainerAdjustment, []*nri.ContainerUpdate, error) {
	r := p.read(pod, c)
	change := p.Injection.Adjust(&r, c.GetEnv())
	for _, m := range r.Mistakes {
		p.Log.Warn("annotations of a pod", "container", Describe(&r.Container), "mistake", m)
	}
	p.Registrar.Add(ctx, r.Container)
	return adjustment(change), nil, nil
}

// StopContainer is called when a container has been stopped.
func (p *Plugin) StopContainer(_ context.Context, _ *nri.PodSandbox, c *nri.Container) ([]*nri.ContainerUpdate, error) {
	p.Registrar.Remove(c.GetId())
	return nil, nil
}

// RemoveContainer is called when a container is removed, whether it was stopped or exited.
func (p *Plugin) RemoveContainer(_ context.Context, _ *nri.PodSandbox, c *nri.Container) error {
	p.Registrar.Remove(c.GetId())
	return nil
}

func (p *Plugin) read(pod *nri.PodSandbox, c *nri.Container) Request {
	return Read(Pod{
		Name: pod.GetName(), Namespace: pod.GetNamespace(), UID: pod.GetUid(), Annotations: pod.GetAnnotations(),
		Container: c.GetName(), ID: c.GetId(), Env: c.GetEnv(),
	}, p.TrustClaims)
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
