package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// Options is what a person says when starting the daemon.
type Options struct {
	Version  string
	File     string // configuration; empty: none
	Socket   string // empty: as the file says, or Default
	Default  string
	User     bool // our own processes only
	Guardian []string
	// Backends makes the backends for the processes of one user, or of proc.Everyone,
	// and says what the configuration leaves out.
	Backends func(cfg config.Config, uid int, log *slog.Logger) ([]hal.Backend, []hal.Check, error)
	Log      *slog.Logger
}

// Serve runs a daemon with its control socket until ctx is done.
func Serve(ctx context.Context, o Options) error {
	if os.Getenv(guardian.Env) != "" {
		return errors.New("a guardian does not start a daemon")
	}
	cfg := config.Default()
	if o.File != "" {
		var err error
		if cfg, err = config.Load(o.File); err != nil {
			return err
		}
	}
	rules := &ruleBook{}
	rules.set(cfg)
	only := proc.Everyone
	if o.User {
		only = os.Geteuid()
	}
	backends, notes, err := o.Backends(cfg, only, o.Log)
	if err != nil {
		return err
	}
	d, err := New(Config{
		Version: o.Version, Policy: api.Policy{Name: cfg.Policy.Name, Params: cfg.Policy.Params}, Sched: cfg.Sched,
		Guardian: o.Guardian, Backends: backends, Notes: notes, Rule: rules.apply, DevicePolicy: rules.devicePolicy, Log: o.Log,
	})
	if err != nil {
		return err
	}
	socket := firstOf(o.Socket, cfg.Socket, o.Default)
	if socket == "" {
		return errors.New("there is no place for the control socket: name one with --socket")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var serving error
	var ended sync.WaitGroup
	s := server.New(d, server.Config{Socket: socket, TCP: cfg.TCP, TokenFile: cfg.TokenFile, Pages: pageHost(backends), Log: o.Log})
	if err := s.Listen(); err != nil {
		return err
	}
	ended.Go(func() {
		select {
		case <-d.ready:
			_ = server.Notify(server.Ready)
		case <-ctx.Done():
		}
		serving = s.Serve(ctx)
		stop() // a daemon that nobody can reach is no use
	})
	ended.Go(func() { d.reload(ctx, o.File, rules) })
	ended.Go(func() { server.KeepAlive(ctx, func() bool { d.events.inLoop(func() {}); return true }) })
	o.Log.Info("the daemon runs", "socket", socket, "policy", cfg.Policy.Name, "file", o.File)
	err = d.Run(ctx)
	_ = server.Notify(server.Stopping)
	stop()
	ended.Wait()
	return errors.Join(err, serving)
}

// pageHost returns the backend that shares pages with processes, or nil.
func pageHost(backends []hal.Backend) server.PageHost {
	for _, b := range backends {
		if h, ok := b.(server.PageHost); ok {
			return h
		}
	}
	return nil
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

// reload reads the file again when it changes, and at SIGHUP. A file that is
// wrong is refused, and what was before stays.
func (d *Daemon) reload(ctx context.Context, file string, rules *ruleBook) {
	take := func(c config.Config) {
		if old := rules.set(c); old.Sched != c.Sched || old.Socket != c.Socket || old.TCP != c.TCP || old.TokenFile != c.TokenFile ||
			old.Blind != c.Blind || old.NoNVIDIA != c.NoNVIDIA || old.NoAMD != c.NoAMD {
			d.cfg.Log.Warn("the floor, the stall limit, eyes, nvidia, amd and where to listen are as they were until the daemon is restarted", "file", file)
		}
		d.rule()
		if _, err := d.SetPolicy(api.Policy{Name: c.Policy.Name, Params: c.Policy.Params}); err != nil {
			d.cfg.Log.Error("the file's policy", "error", err)
			return
		}
		d.mu.Lock()
		for _, dev := range d.devices {
			d.applyDevicePolicy(dev)
		}
		d.mu.Unlock()
		d.cfg.Log.Info("the configuration was read again", "file", file)
	}
	refuse := func(err error) { d.cfg.Log.Error("the configuration is refused: the old one stays", "error", err) }
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	if file == "" {
		<-ctx.Done()
		return
	}
	go config.Watch(ctx, file, take, refuse)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			if c, err := config.Load(file); err != nil {
				refuse(err)
			} else {
				take(c)
			}
		}
	}
}

// rule applies the rules again: what was said otherwise counts before them.
func (d *Daemon) rule() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.processes {
		was, from := p.attr, p.from
		if d.resolve(p); p.attr != was || p.from != from {
			d.announce(p)
		}
	}
}

// ruleBook holds the rules in force.
type ruleBook struct {
	mu  sync.Mutex
	cfg config.Config
}

// set puts a file in force and returns the one that was.
func (b *ruleBook) set(c config.Config) (old config.Config) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, b.cfg = b.cfg, c
	return old
}

// apply returns what the first rule that matches makes of a process's attributes.
func (b *ruleBook) apply(p proc.Process, attr sched.Attr) (sched.Attr, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.cfg.Match(config.Program{
		User: userName(p.UID), UID: p.UID, Command: strings.Fields(p.Command), Container: p.Container, Pod: p.Pod,
	})
	if !ok {
		return attr, false
	}
	return r.Apply(attr), true
}

// devicePolicy returns the policy that the file names for one device.
func (b *ruleBook) devicePolicy(uuid string, index int) (api.Policy, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, yes := b.cfg.PolicyFor(uuid, index)
	return api.Policy{Name: p.Name, Params: p.Params}, yes
}
