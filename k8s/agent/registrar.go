package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
)

// Daemon is the part of the daemon that the agent needs. *client.Client implements it.
type Daemon interface {
	Containers(context.Context) ([]api.Container, error)
	Register(context.Context, api.Container) error
	Unregister(context.Context, string) error
}

// Times of the registrar.
const (
	// PodDelay is the longest that a pod's start is delayed by a daemon that does not answer.
	PodDelay  = 40 * time.Millisecond
	callTime  = 5 * time.Second
	syncEvery = 2 * time.Second
)

// Registrar makes the daemon's containers agree with those of the runtime, also after the
// daemon was away or was restarted without its journal.
type Registrar struct {
	daemon Daemon
	log    *slog.Logger
	every  time.Duration // how often the daemon is compared

	mu     sync.Mutex
	live   map[string]api.Container // what the daemon is to know
	synced bool                     // live has all containers, so that others can be removed
	failed bool                     // the last comparison did; logged once

	wake chan struct{}
}

// NewRegistrar returns a registrar that has no containers yet.
func NewRegistrar(d Daemon, log *slog.Logger) *Registrar {
	return &Registrar{daemon: d, log: log, every: syncEvery, live: map[string]api.Container{}, wake: make(chan struct{}, 1)}
}

// put adds a container to those that the daemon is to know.
func (r *Registrar) put(c api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[c.ID] = c
}

// change replaces containers, unless they are gone. The daemon is told soon.
func (r *Registrar) change(all []api.Container) {
	r.mu.Lock()
	for _, c := range all {
		if _, live := r.live[c.ID]; live {
			r.live[c.ID] = c
		}
	}
	r.mu.Unlock()
	r.wakeUp()
}

// register tells the daemon of a container that was put. It returns when the daemon has it, or
// after PodDelay; the daemon is told later then.
func (r *Registrar) register(ctx context.Context, c api.Container) {
	done := make(chan error, 1)
	go func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer stop()
		done <- r.daemon.Register(ctx, c)
	}()
	select {
	case err := <-done:
		if err != nil {
			r.refused(c, err)
		}
	case <-time.After(PodDelay):
		r.log.Warn("daemon has not answered; the container starts without its class", "container", Describe(&c))
		r.wakeUp()
	}
}

// refused handles a failed registration: what the daemon refuses for good is given up, the
// rest is tried again.
func (r *Registrar) refused(c api.Container, err error) {
	if !r.giveUp(c, err) {
		r.wakeUp()
	}
}

// giveUp forgets a container if the daemon refuses it for good, and reports whether it did.
func (r *Registrar) giveUp(c api.Container, err error) bool {
	refusal := (*client.Error)(nil)
	if !errors.As(err, &refusal) || refusal.Status != 400 {
		return false
	}
	r.log.Warn("daemon refuses the container", "container", Describe(&c), "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, c.ID)
	return true
}

// Remove removes a container that is gone.
func (r *Registrar) Remove(id string) {
	r.mu.Lock()
	_, known := r.live[id]
	delete(r.live, id)
	r.mu.Unlock()
	if known {
		r.wakeUp()
	}
}

// Replace sets all containers of the runtime.
func (r *Registrar) Replace(all []api.Container) {
	live := map[string]api.Container{}
	for _, c := range all {
		live[c.ID] = c
	}
	r.mu.Lock()
	r.live, r.synced = live, true
	r.mu.Unlock()
	r.wakeUp()
}

func (r *Registrar) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run compares the daemon's containers with the runtime's until ctx is done: when something
// changes, and every few seconds.
func (r *Registrar) Run(ctx context.Context) {
	for {
		r.compare(ctx)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			select { // changes come in groups
			case <-ctx.Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		case <-time.After(r.every):
		}
	}
}

// compare makes the daemon's containers agree with the runtime's.
func (r *Registrar) compare(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, callTime)
	defer stop()
	there, err := r.daemon.Containers(ctx)
	if err != nil {
		r.report(err)
		return
	}
	r.mu.Lock()
	live, synced := maps.Clone(r.live), r.synced
	r.mu.Unlock()
	for _, c := range there {
		want, ok := live[c.ID]
		switch {
		case ok && want == c:
			delete(live, c.ID)
		case !ok && synced:
			err = errors.Join(err, ignoreGone(r.daemon.Unregister(ctx, c.ID)))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(live)) {
		if failed := r.daemon.Register(ctx, live[id]); failed != nil {
			r.giveUp(live[id], failed) // what is not given up is tried again with the next comparison
			err = errors.Join(err, failed)
		}
	}
	r.report(err)
}

func ignoreGone(err error) error {
	if refusal := (*client.Error)(nil); errors.As(err, &refusal) && refusal.Status == 404 {
		return nil
	}
	return err
}

// report logs that the daemon cannot be reached, and that it can be again, once each.
func (r *Registrar) report(err error) {
	r.mu.Lock()
	was := r.failed
	r.failed = err != nil
	r.mu.Unlock()
	switch {
	case err != nil && !was:
		r.log.Warn("daemon does not know all containers; trying again", "error", err)
	case err == nil && was:
		r.log.Info("daemon knows all containers again")
	}
}
