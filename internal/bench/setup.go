package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

const needsDaemon = "needs the daemon: run with --giveway"

// cannot returns why a setup cannot be measured here, or an empty string.
func (h *harness) cannot(s Setup) string {
	switch {
	case s.MPS:
		return h.noMPS()
	case h.Giveway == nil || len(h.RunWith) == 0:
		return needsDaemon
	case h.hip && s.Pool:
		return "pools need NVIDIA's MPS"
	}
	return ""
}

// prepared starts the clients in the setup's way, measures them, and stops them.
func (t *trial) prepared(ctx context.Context, s Setup) error {
	var server *mpsServer
	if s.MPS {
		var err error
		if server, err = startMPS(ctx, t.MPSControl); err != nil {
			return err
		}
		defer server.stop()
	}
	err := t.start(ctx, s, server)
	defer t.stop() // before the MPS server
	if err == nil {
		err = t.checkServers(ctx, s, server)
	}
	if err != nil {
		return err
	}
	if err := sleep(ctx, t.Settle); err != nil { // the daemon attaches a queue that has not changed for a while
		return err
	}
	if s.Pool && len(t.online) > 0 { // earlier figures of alone are of other processes, and too long ago
		if err := t.measurePhase(ctx, newPhase(alone, ""), t.online[:1], nil); err != nil {
			return err
		}
	}
	if err := t.classify(func(l Load) bool { return !s.MPS && s.Run(l) == "" }); err != nil {
		return err
	}
	if err := errors.Join(send("work", t.batch), sleep(ctx, t.Adapt)); err != nil {
		return err
	}
	if s.MPS {
		return t.measurePhase(ctx, newPhase(s.Name, ""), t.online, t.batch)
	}
	if err := t.together(ctx, s.Name); err != nil {
		return err
	}
	return t.measureThen(ctx, &s)
}

// measureThen measures the changes of a setup.
func (t *trial) measureThen(ctx context.Context, s *Setup) error {
	for _, change := range s.Then {
		if err := t.change(ctx, change); err != nil {
			return fmt.Errorf("%s: %w", change.Name, err)
		}
	}
	return nil
}

// checkServers returns an error if a client is not in the MPS server that it was started
// for. Such a client runs without MPS and does not say so.
func (t *trial) checkServers(ctx context.Context, s Setup, server *mpsServer) error {
	loads := slices.Concat(t.c.Online, t.c.Batch)
	for i, cl := range slices.Concat(t.online, t.batch) {
		in := server
		if s.Run != nil && slices.Contains(strings.Fields(s.Run(loads[i])), "--pool") {
			if in = serverOf(cl.pid, t.MPSControl); in == nil {
				return cl.error("is not in the pool")
			}
		}
		if in != nil {
			if err := in.check(ctx, cl); err != nil {
				return err
			}
		}
	}
	return nil
}

// change changes an attribute of the online clients and measures all clients.
func (t *trial) change(ctx context.Context, c Change) error {
	for _, cl := range t.online {
		if err := t.Giveway("set", cl.pid, c.Set); err != nil {
			return fmt.Errorf("set %s (pid %d): %w", cl.name, cl.pid, err)
		}
	}
	if err := sleep(ctx, t.Adapt); err != nil {
		return err
	}
	p := newPhase(c.Name, "")
	p.learn = c.Learn
	return t.measurePhase(ctx, p, t.online, t.batch)
}

// classify sets the classes of the chosen loads, those of online loads first: the daemon
// does not schedule batch clients without them.
func (t *trial) classify(chosen func(Load) bool) error {
	return t.classifyWith(func(l Load) (string, bool) { return l.Class, chosen(l) })
}

func (t *trial) classifyWith(classOf func(Load) (class string, chosen bool)) error {
	loads := slices.Concat(t.c.Online, t.c.Batch)
	for i, cl := range slices.Concat(t.online, t.batch) {
		l := loads[i]
		class, chosen := classOf(l)
		if !chosen {
			continue
		}
		if err := t.Giveway("set", cl.pid, "--class", class, "--weight", fmt.Sprint(l.Weight)); err != nil {
			return fmt.Errorf("set %s (pid %d) to class %s, weight %d: %w", l.Name, cl.pid, class, l.Weight, err)
		}
	}
	return nil
}

// start starts a client for each load and waits until all are ready. Batch clients rest.
func (t *trial) start(ctx context.Context, s Setup, server *mpsServer) error {
	clients, err := t.startLoads(ctx, s, server, slices.Concat(t.c.Online, t.c.Batch))
	if err == nil {
		t.online, t.batch = clients[:len(t.c.Online)], clients[len(t.c.Online):]
	}
	return err
}

// startLoads starts a client for each load, those of online loads first.
// PyTorch clients start at the same time, because each takes seconds; the others one
// after the other, because an online client may calibrate itself.
func (t *trial) startLoads(ctx context.Context, s Setup, server *mpsServer, loads []Load) ([]*client, error) {
	t.showProgress(t.c, "starting its processes")
	clients, failed := make([]*client, len(loads)), make([]error, len(loads))
	startOne := func(i int) {
		o := clientOptions{name: loads[i].Name, timeout: startTimeout, argv: t.argv(t.c, loads[i], i < len(t.c.Online))}
		if s.Run != nil {
			if flags := strings.Fields(s.Run(loads[i])); len(flags) > 0 {
				o.argv = slices.Concat(t.RunWith, flags, []string{"--"}, o.argv)
			}
		}
		if server != nil {
			o.env = server.env(i < len(t.c.Online))
		}
		if t.c.Torch {
			o.timeout = torchTimeout
		}
		if clients[i], _, failed[i] = startClient(ctx, o); failed[i] != nil {
			failed[i] = fmt.Errorf("start %s: %w", loads[i].Name, failed[i])
		}
	}
	var all sync.WaitGroup
	for i := range loads {
		if t.c.Torch {
			all.Go(func() { startOne(i) })
		} else if startOne(i); failed[i] != nil {
			break
		}
	}
	all.Wait()
	if t.c.Torch {
		t.torch.cannotRun() // the check ends before anything is measured
	}
	if err := errors.Join(failed...); err != nil {
		stopClients(clients)
		return nil, err
	}
	return clients, nil
}

// stop stops all clients.
func (t *trial) stop() {
	stopClients(slices.Concat(t.idle, t.online, t.batch))
	t.idle, t.online, t.batch = nil, nil, nil
}

// stopClients stops clients at the same time. Those that are nil were not started.
func stopClients(clients []*client) {
	var all sync.WaitGroup
	for _, cl := range clients {
		if cl != nil {
			all.Go(cl.stop)
		}
	}
	all.Wait()
}

// send sends a command to clients.
func send(command string, clients []*client) error {
	for _, cl := range clients {
		if err := cl.send(command); err != nil {
			return err
		}
	}
	return nil
}
