package agent

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// pods are the containers of the node, as the runtime told of them when they were created, and
// the annotations that their pods have had since, where the API server is watched.
type pods struct {
	mu         sync.Mutex
	containers map[string]Pod               // by id of the container
	watched    map[string]map[string]string // annotations by UID of the pod
	changed    map[string]bool              // UIDs of pods with other annotations than before
	wake       chan struct{}                // something is in changed
}

func newPods() *pods {
	return &pods{containers: map[string]Pod{}, watched: map[string]map[string]string{}, changed: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// add adds a container and returns it with the annotations that are the newest known: the
// runtime has those of the time when the pod's sandbox was made. created says that the
// container is about to be made; otherwise it is there, with what was injected. p.mu is held.
func (p *pods) add(c Pod, created bool) Pod {
	c.Annotations = ours(c.Annotations)
	if now, known := p.watched[c.UID]; known && created {
		c.Annotations = now
	} else if known {
		c.Annotations = changed(c.Annotations, now)
	}
	c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(e string) bool { return !strings.HasPrefix(e, claimEnv) })
	p.containers[c.ID] = c
	return c
}

func (p *pods) remove(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.containers, id)
}

// annotate takes the annotations of a pod from the API server.
func (p *pods) annotate(uid string, all map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := ours(all)
	if was, known := p.watched[uid]; known && maps.Equal(was, now) {
		return
	}
	p.watched[uid], p.changed[uid] = now, true
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// forget drops the annotations of a pod that is gone.
func (p *pods) forget(uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watched, uid)
	delete(p.changed, uid)
}

// prune drops the annotations of pods without containers. Some may have been deleted while the
// API server was not watched; those that were not are told again.
func (p *pods) prune() {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := map[string]bool{}
	for _, c := range p.containers {
		live[c.UID] = true
	}
	maps.DeleteFunc(p.watched, func(uid string, _ map[string]string) bool { return !live[uid] })
	maps.DeleteFunc(p.changed, func(uid string, _ bool) bool { return !live[uid] })
}

// take returns the containers of the pods whose annotations have changed, with the new ones.
// p.mu is held.
func (p *pods) take() (all []Pod) {
	for _, c := range p.containers {
		if !p.changed[c.UID] {
			continue
		}
		if next := changed(c.Annotations, p.watched[c.UID]); !maps.Equal(next, c.Annotations) {
			c.Annotations = next
			all = append(all, c)
		}
	}
	for _, c := range all {
		p.containers[c.ID] = c
	}
	clear(p.changed)
	return all
}

// changed returns the annotations of a container that is there, when those of its pod have
// changed: what is injected when a container is created stays as it was.
func changed(was, now map[string]string) map[string]string {
	next := map[string]string{}
	for key, value := range was {
		if injects(key) {
			next[key] = value
		}
	}
	for key, value := range now {
		if !injects(key) {
			next[key] = value
		}
	}
	return next
}

// injects reports whether an annotation has its effect when a container is created.
func injects(key string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), suffix)
	return name == shimKey || name == poolKey
}

// maxKeys is how many annotations of a pod are kept: more than its containers can use.
const maxKeys = 256

// ours returns the annotations that are read, and no more of long ones than shows that they
// are too long: a pod may have 256 KiB.
func ours(all map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(key, prefix) && len(out) < maxKeys {
			value := all[key]
			out[key] = strings.Clone(value[:min(len(value), maxValue+1)]) // the rest can be freed
		}
	}
	return out
}
