package server

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
)

// An agent, such as that of Kubernetes, registers the containers of the machine on a socket
// of its own. Only root and the daemon's user can connect to it, without any capability, and
// nothing but containers can be changed there.
//
// A process in a registered container has the rights of its pod: it sees and changes the
// processes of the pod and nothing else, whatever its uid is. Processes of other pods may
// have the same uid.

// Registry keeps the registered containers.
type Registry interface {
	// Containers lists the containers, in order of id.
	Containers() []api.Container
	// Container returns a container.
	Container(id string) (api.Container, bool)
	// Register registers a container, or replaces what was registered for it.
	Register(api.Container) error
	// Unregister removes a container, if it is registered.
	Unregister(id string) error
	// PodOf returns what identifies the pod of a process in containers, which are as
	// proc.Process.Containers has them: that of the registered one, or the outermost container
	// if none is registered; empty: it is in no container.
	PodOf(containers string) (pod string, registered bool)
}

// podOf returns what identifies the pod of a process; containers is as in Registry.PodOf.
func (s *Server) podOf(containers string) (pod string, registered bool) {
	if s.cfg.Registry == nil || containers == "" {
		return "", false
	}
	return s.cfg.Registry.PodOf(containers)
}

// readContainer reads a container to register.
func readContainer(r *http.Request) (request, error) {
	var c api.Container
	if err := read(r.Body, &c); err != nil {
		return request{}, err
	}
	if id := r.PathValue("id"); c.ID == "" {
		c.ID = id
	} else if c.ID != id {
		return request{}, BadRequest("the id in the path is %s, and in the body %s", clip(id), clip(c.ID))
	}
	req := request{op: opRegister, values: c.Values, container: c}
	return req, req.checkContainer()
}

// readContainerID reads the id of a container to remove.
func readContainerID(r *http.Request) (request, error) {
	req := request{op: opUnregister, container: api.Container{ID: r.PathValue("id")}}
	return req, req.checkContainer()
}

// checkContainer checks the container of a request. Its attributes are those of the request.
func (r *request) checkContainer() error {
	r.container.Values = r.values
	if r.op == opUnregister {
		r.container.Values = attr.Values{}
	}
	if err := r.container.Check(); err != nil {
		return BadRequest("%w", err)
	}
	return nil
}

// containers carries out a request about containers.
func (s *Server) containers(by caller, r request) (v any, did outcome, err error) {
	did.uid = noUser
	all := s.cfg.Registry
	if all == nil {
		return nil, did, Conflict("this daemon registers no containers: set agent_socket in its configuration")
	}
	if !by.agent {
		if err := by.mayManage("register containers"); err != nil {
			return nil, did, err
		}
	}
	if r.op == opContainers {
		return all.Containers(), did, nil
	}
	c := r.container
	before, known := all.Container(c.ID)
	if known {
		did.from = describeContainer(&before)
	}
	if r.op == opUnregister {
		if !known {
			return nil, did, NotFound("container %s is not registered", clip(c.ID))
		}
		return before, did, all.Unregister(c.ID)
	}
	did.to = describeContainer(&c)
	return c, did, all.Register(c)
}

// describeContainer returns a container in one line.
func describeContainer(c *api.Container) string {
	text := c.ID[:12]
	if c.Pod != "" {
		text = c.Namespace + "/" + c.Pod + "/" + c.Name + " " + text
	}
	if v := c.Values.String(); v != "" {
		text += " " + v
	}
	return text
}

// containersOf returns the containers that the process at the other end of a connection is
// in, as proc.Process.Containers has them. ok is false if that cannot be found out, for
// example because the process has exited: a process in a pod must not pass for one outside.
func containersOf(c net.Conn, pid int) (ids string, ok bool) {
	u, unix := c.(*net.UnixConn)
	if !unix || pid <= 0 {
		return "", false
	}
	process, err := peerProcess(u, pid)
	if err != nil {
		return "", false
	}
	defer process.Close()
	ids, err = proc.ContainersOf(pid)
	return ids, err == nil && !process.Exited() // exited: what was read may be about another process
}

// agentListener is the socket on which an agent registers containers.
type agentListener struct {
	net.Listener
	s *Server
}

func (d *agentListener) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &connection{Conn: c, uses: 1}
		conn.peer = peerOf(c)
		conn.agent = true
		if conn.err == nil && (conn.uid == 0 || conn.uid == d.s.owner) {
			return conn, nil
		}
		c.Close()
	}
}

// podAccounts gives each pod an account of its own: connections, pages and requests of a pod
// count for the pod, and not for a user that other pods have too. Containers that are not
// registered have none: a user that may make cgroups could have any number of them. A pod keeps its account while
// it has a connection, and afterwards until maxPodAccounts others have come: what it has spent
// counts until then.
type podAccounts struct {
	mu   sync.Mutex
	of   map[string]*podAccount
	last uint32
}

type podAccount struct {
	number uint32
	open   int       // connections
	used   time.Time // when the last connection was opened or closed
}

// maxPodAccounts is several times the number of pods of a machine, and of the connections that
// pods can have open.
const maxPodAccounts = 2 * maxOfUsers

// firstPodAccount is above all uids in use: subordinate uids end below 2^31.
const firstPodAccount = 0xc0000000

// enter counts a connection of a pod and returns the pod's account.
func (p *podAccounts) enter(pod string, now time.Time) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.of[pod]
	if a == nil {
		p.forget()
		p.last++
		a = &podAccount{number: firstPodAccount + p.last%(1<<29)}
		p.of[pod] = a
	}
	a.open, a.used = a.open+1, now
	return a.number
}

// leave ends a connection of a pod.
func (p *podAccounts) leave(pod string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.of[pod]
	a.open, a.used = a.open-1, now
}

// forget drops half of the accounts without connections if there are many, those first that
// were not used for longest. p.mu is held.
func (p *podAccounts) forget() {
	if p.of == nil {
		p.of = map[string]*podAccount{}
	}
	if len(p.of) < maxPodAccounts {
		return
	}
	var idle []string
	for pod, a := range p.of {
		if a.open == 0 {
			idle = append(idle, pod)
		}
	}
	slices.SortFunc(idle, func(a, b string) int { return p.of[a].used.Compare(p.of[b].used) })
	for _, pod := range idle[:(len(idle)+1)/2] {
		delete(p.of, pod)
	}
}
