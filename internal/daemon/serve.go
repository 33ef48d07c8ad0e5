package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
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
	socket := cmp.Or(o.Socket, cfg.Socket, o.Default)
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
	ended.Go(func() { d.followNice(ctx) })
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

// reload reads the file again when it changes, and at SIGHUP. A file with a mistake is
// refused, and the last one that was right stays in force.
func (d *Daemon) reload(ctx context.Context, file string, rules *ruleBook) {
	d.noteConfig(file, nil)
	take := func(c config.Config) {
		d.noteConfig(file, nil)
		if old := rules.set(c); old.NeedsRestart(c) {
			d.cfg.Log.Warn("everything but policies and rules changes only when the daemon is restarted", "file", file)
		}
		d.applyRules()
		if _, err := d.SetPolicy(api.Policy{Name: c.Policy.Name, Params: c.Policy.Params}); err != nil {
			d.cfg.Log.Error("policy of the configuration could not be applied", "file", file, "error", err)
			return
		}
		d.mu.Lock()
		for _, dev := range d.devices {
			d.applyDevicePolicy(dev)
		}
		d.mu.Unlock()
		d.cfg.Log.Info("configuration was read again", "file", file)
	}
	refuse := func(err error) {
		d.noteConfig(file, err)
		d.cfg.Log.Error("configuration is refused, the old one stays in force", "error", err)
	}
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

// noteConfig notes for Status whether the file was accepted when it was last read.
func (d *Daemon) noteConfig(file string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.configFile, d.configErr = file, err
}

// applyRules applies the rules to every process again.
func (d *Daemon) applyRules() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resolveAll()
}

// ruleBook holds the configuration in force.
type ruleBook struct {
	mu  sync.Mutex
	cfg config.Config
}

// set puts a configuration in force and returns the previous one.
func (b *ruleBook) set(c config.Config) (old config.Config) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, b.cfg = b.cfg, c
	return old
}

// apply returns the attributes that the first matching rule gives to a process.
func (b *ruleBook) apply(p proc.Process) attr.Values {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cfg.Match(config.Process{
		User: userName(p.UID), UID: p.UID, Command: strings.Fields(p.Command), Cgroup: p.Cgroup, Container: p.Container, Pod: p.Pod,
	})
}

// devicePolicy returns the policy that the file names for one device.
func (b *ruleBook) devicePolicy(uuid string, index int) (api.Policy, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, yes := b.cfg.PolicyFor(uuid, index)
	return api.Policy{Name: p.Name, Params: p.Params}, yes
}
