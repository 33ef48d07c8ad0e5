package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// Options are the options with which a user starts the daemon.
type Options struct {
	Version  string
	File     string        // configuration; empty: Config applies
	Config   config.Config // without a policy: the default one
	Socket   string        // empty: as the file says, or Default
	Default  string
	User     bool // our own processes only
	TakeOver bool // end the daemon that listens on the socket, and go on with its orders
	Guardian []string
	FrontEnd []string // empty: requests are parsed in this process
	// Backends makes the backends for the processes of one user, or of proc.Everyone,
	// and says what the configuration leaves out.
	Backends func(cfg config.Config, uid int, log *slog.Logger) ([]hal.Backend, []hal.Check, error)
	// DeviceFiles and StartedInPool are those of Config.
	DeviceFiles   []string
	StartedInPool func(env []string) bool
	Log           *slog.Logger
}

// Serve runs a daemon with its control socket until ctx is done.
func Serve(ctx context.Context, o Options) error {
	if os.Getenv(guardian.Env) != "" {
		return errors.New("a guardian does not start a daemon")
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), proc.MinProcs))
	cfg, stamp := o.Config, config.Stamp(o.File)
	if o.File != "" {
		var err error
		if cfg, err = config.Load(o.File); err != nil {
			return err
		}
	}
	cfg.Policy.Name = cmp.Or(cfg.Policy.Name, config.Default().Policy.Name)
	socket := cmp.Or(o.Socket, cfg.Socket, o.Default)
	if socket == "" {
		return errors.New("listen: XDG_RUNTIME_DIR is not set, so there is no place for the control socket; name one with --socket")
	}
	only := proc.Everyone
	if o.User {
		only = os.Geteuid()
	}
	backends, notes, err := o.Backends(cfg, only, o.Log)
	if err != nil {
		return err
	}
	d, err := New(Config{
		Version: o.Version, File: cfg, Guardian: o.Guardian, Backends: backends, Notes: notes, DeviceFiles: o.DeviceFiles, StartedInPool: o.StartedInPool, Log: o.Log,
	})
	if err != nil {
		return err
	}
	s := server.New(d, server.Config{
		Socket: socket, Agent: cfg.Agent, Pods: cfg.Pods, Registry: registry(d, cfg.Agent), TCP: cfg.TCP, TokenFile: cfg.TokenFile, ReadToken: cfg.ReadToken, Pages: pageHost(backends), FrontEnd: o.FrontEnd, Log: o.Log,
	})
	if o.TakeOver {
		// What can be checked while the other daemon runs: without it, there may be none afterwards.
		if err := errors.Join(s.Check(), journal.Check(journal.Path(socket))); err != nil {
			return fmt.Errorf("the running daemon goes on: %w", err)
		}
		pid, err := endOther(ctx, socket)
		if err != nil {
			return err
		}
		if pid != 0 {
			o.Log.Info("took over from the daemon that listened on the socket", "socket", socket, "pid", pid)
		}
	}
	if err := s.Listen(); err != nil {
		return err
	}
	if d.cfg.Journal, err = journal.Open(journal.Path(socket), journal.LockTime, o.Log); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var serving error
	var ended sync.WaitGroup
	ended.Go(func() {
		<-d.ready // after that the policy is the one that the journal had, if any
		o.Log.Info("daemon is running", "socket", socket, "policy", d.Policy().Spec(), "file", o.File)
		if c := d.deviceCheck(); !c.OK {
			o.Log.Warn("daemon has no device to schedule", "reason", c.Detail, "todo", c.Fix)
		}
		_ = server.Notify(server.Ready)
		serving = s.Serve(ctx)
		stop(serving) // without its socket the daemon cannot be controlled
	})
	ended.Go(func() { d.followConfig(ctx, o.File, stamp) })
	ended.Go(func() { d.followNice(ctx) })
	ended.Go(func() { server.KeepAlive(ctx, func() bool { d.events.inLoop(func() {}); return true }) })
	err = d.Run(ctx)
	_ = server.Notify(server.Stopping)
	stop(nil)
	ended.Wait()
	return errors.Join(err, serving)
}

// registry returns the registry of containers, which is in use only where an agent can reach
// it; otherwise nil.
func registry(d *Daemon, agent string) server.Registry {
	if agent == "" {
		return nil
	}
	return d
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

// followConfig loads the file again when it changes, and at SIGHUP. A file with a mistake
// is refused, and the last one that was right stays in force. The stamp is that of the file in force.
func (d *Daemon) followConfig(ctx context.Context, file, stamp string) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // without a file as well: it must not end the daemon
	defer signal.Stop(hup)
	if file == "" {
		<-ctx.Done()
		return
	}
	d.noteConfig(file, nil)
	config.Watch(ctx, file, stamp, hup, func(c config.Config, err error) {
		<-d.ready // the file is newer than what Run takes over from the journal
		d.readAgain(file, c, err)
	})
}

// readAgain applies a configuration that was read again, unless it was refused with an error.
// The record has it as an order.
func (d *Daemon) readAgain(file string, c config.Config, err error) {
	d.mu.Lock()
	before := describeConfig(d.policy.Name, d.conf)
	d.mu.Unlock()
	after := describeConfig(c.Policy.Name, &c) // unless an order stays in force
	if d.ending() {
		return // the next daemon reads the file
	}
	if err == nil {
		if fields := d.cfg.File.NeedRestart(&c); len(fields) > 0 {
			d.cfg.Log.Warn("configuration has changes that need a restart of the daemon", "fields", strings.Join(fields, ","), "file", file)
		}
		err = d.applyConfig(c)
	}
	d.noteConfig(file, err)
	if err != nil {
		d.cfg.Log.Error("configuration is refused; the old one stays in force", "file", file, "error", err)
	} else {
		d.mu.Lock()
		after = describeConfig(d.policy.Name, d.conf)
		d.mu.Unlock()
		d.cfg.Log.Info("configuration was read again", "file", file, "from", before, "to", after)
	}
	d.recorder.config(file, before, after, err)
}

// describeConfig returns the policy and what else a configuration can change without a restart,
// in a few words.
func describeConfig(policy string, c *config.Config) string {
	text := fmt.Sprintf("policy %s, %s, %s", policy, format.Plural(len(c.Rules), "rule"), format.Plural(len(c.Limits), "limit"))
	for _, own := range c.Devices {
		text += fmt.Sprintf(", %s on device %s", own.Name, own.Device)
	}
	return text
}

// noteConfig notes for Status whether the file was accepted when it was last read.
func (d *Daemon) noteConfig(file string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.confFile, d.confErr = file, err; err != nil {
		d.confRefused = append(d.confRefused, time.Now())
		d.confRefused = d.confRefused[max(0, len(d.confRefused)-maxRefused):]
		d.confReason = err
	}
}

// maxRefused is how many refused configurations are counted.
const maxRefused = 100

// deviceCheck says whether the daemon has a device to schedule.
func (d *Daemon) deviceCheck() api.Check {
	d.mu.Lock()
	known := len(d.devices)
	d.mu.Unlock()
	if known > 0 {
		return api.Check{Name: "devices", OK: true, Detail: format.Plural(known, "device")}
	}
	return DeviceCheck(d.cfg.DeviceFiles)
}

// DeviceCheck says whether the machine has a device, by files of which one exists then.
func DeviceCheck(files []string) api.Check {
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			return api.Check{Name: "devices", OK: true, Detail: file + " exists; a device is listed as soon as a process uses it"}
		}
	}
	if len(files) == 0 {
		return api.Check{Name: "devices", OK: true, Detail: "none is in use yet"}
	}
	return api.Check{
		Name: "devices", Detail: "no device was found: there is no " + strings.Join(files, " and no "),
		Fix: "load the GPU's driver, or pass its device files into the container. Processes of 'giveway run' are held by the shim all the same. Without a GPU: giveway daemon --sim scenarios/demo.yaml",
	}
}

// missingDevices names the devices that the configuration has a policy for and that no backend has
// found. That is no failure: some backends find a device only when a process uses it.
func (d *Daemon) missingDevices() (checks []api.Check) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.conf.Devices {
		one, found := config.Config{Devices: []api.Policy{p}}, false
		for id, dev := range d.devices {
			_, named := one.DevicePolicy(string(id), dev.info.Index)
			found = found || named
		}
		if !found {
			checks = append(checks, api.Check{
				Name: "policy of device " + p.Device, OK: true,
				Detail: fmt.Sprintf("%s waits for the device, which is not found so far; correct the configuration if the machine has no device %s", p.Name, p.Device),
			})
		}
	}
	return checks
}

// lastHour is how long ago what doctor shows may be.
const lastHour = time.Hour

// pastChecks reports what went wrong in the last hour: a file that was refused although it is
// right now, and actions that failed.
func (d *Daemon) pastChecks() (checks []api.Check) {
	d.mu.Lock()
	refused, reason := 0, d.confReason
	for _, at := range d.confRefused {
		if time.Since(at) < lastHour {
			refused++
		}
	}
	right := d.confErr == nil
	d.mu.Unlock()
	if refused > 0 && right {
		checks = append(checks, api.Check{
			Name: "earlier configuration", OK: true,
			Detail: fmt.Sprintf("the file is accepted now; it was refused %s in the last hour, the last time because of %s", format.Plural(refused, "time"), oneLine(reason)),
		})
	}
	if failed, last := d.recorder.tally.Failures(d.Now()); failed > 0 {
		checks = append(checks, api.Check{
			Name: "actions", Detail: fmt.Sprintf("%s failed in the last hour; the last one %s ago: %s", format.Plural(failed, "action"), d.Now().Sub(last.At).Round(time.Second), last.String()),
			Fix: "giveway log shows which; the daemon tries other ways, and processes that cannot be stopped run as without Giveway",
		})
	}
	return checks
}

// ourselves is the caller of what the configuration file orders.
var ourselves = server.Caller{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: os.Getpid(), All: true}
