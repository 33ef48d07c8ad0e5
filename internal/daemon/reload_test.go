package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
)

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *logBuffer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *logBuffer) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *logBuffer) count(text string) int { return strings.Count(p.String(), text) }

// reloading is a daemon with one process that follows its configuration file.
type reloading struct {
	*testing.T
	d    *Daemon
	file string
	log  *logBuffer
}

func startReloading(t *testing.T, text string) *reloading {
	b := newFakeBackend(t.TempDir())
	p, _ := sleeper(t)
	// SIGHUP must not end the test before the daemon receives it.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(ignored) })

	r := &reloading{T: t, d: newTestDaemon(b), file: filepath.Join(t.TempDir(), "giveway.yaml"), log: &logBuffer{}}
	r.d.cfg.Log = slog.New(slog.NewTextHandler(r.log, nil))
	r.write(text)
	stamp := config.Stamp(r.file)
	first, err := config.Load(r.file)
	if err != nil {
		t.Fatal(err)
	}
	r.d.cfg.File, r.d.conf = first, &first
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := r.d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	ended.Go(func() { r.d.followConfig(ctx, r.file, stamp) })
	t.Cleanup(func() { stop(); ended.Wait() })
	<-r.d.ready
	b.mustOffer(t, p)
	r.becomes("batch", "giveway")
	return r
}

func (r *reloading) write(text string) {
	r.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
}

// writeUnseen changes the file but neither its size nor its time, so that the daemon
// notices the change only at a signal.
func (r *reloading) writeUnseen(text string) {
	r.Helper()
	info, err := os.Stat(r.file)
	if err != nil {
		r.Fatal(err)
	}
	room := int(info.Size()) - len(text)
	if room < 1 {
		r.Fatalf("the text is %d bytes too long", 1-room)
	}
	f, err := os.OpenFile(r.file, os.O_WRONLY, 0) // not emptied first: a signal may be on its way
	if err != nil {
		r.Fatal(err)
	}
	_, err = f.WriteString(text + strings.Repeat(" ", room-1) + "\n")
	if err := errors.Join(err, f.Close(), os.Chtimes(r.file, time.Time{}, info.ModTime())); err != nil {
		r.Fatal(err)
	}
}

// hangUp sends SIGHUP until the log has the text once more. The first signal may come
// before the daemon receives signals.
func (r *reloading) hangUp(until string) {
	r.Helper()
	before := r.log.count(until)
	eventually(r.T, "the log has "+until, func() bool {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			r.Fatal(err)
		}
		return r.log.count(until) > before
	})
}

func (r *reloading) is(class, policy string) bool {
	ps := r.d.Processes()
	return len(ps) == 1 && ps[0].Class() == class && ps[0].Attrs.Source(attr.Class) == attr.FromRule && r.d.Policy().Name == policy
}

// configCheck returns what giveway doctor shows of the configuration.
func (r *reloading) configCheck() api.Check {
	for _, c := range r.d.Status().Checks {
		if c.Name == "configuration" {
			return c
		}
	}
	return api.Check{Detail: "there is no such check"}
}

func (r *reloading) becomes(class, policy string) {
	r.Helper()
	eventually(r.T, "the process has class "+class+" under "+policy, func() bool { return r.is(class, policy) })
}

const (
	readAgain = "configuration was read again"
	refused   = "configuration is refused; the old one stays in force"
	restart   = "changes that need a restart of the daemon"
)

// TestReloadAtSIGHUP: a file with a mistake is refused with the line, and the old one stays
// in force. A file without mistakes is applied.
func TestReloadAtSIGHUP(t *testing.T) {
	r := startReloading(t, "policy: giveway\nrules: [{match: {}, class: batch}]\n"+strings.Repeat("#", 200)+"\n")
	r.writeUnseen("policy: rr\n\nrules: [{match: {}, class: urgent}]\n")
	r.hangUp(refused)
	if r.log.count(r.file+":3: ") == 0 || r.log.count("urgent") == 0 {
		t.Errorf("got log\n%s\nwant the mistake and its line", r.log)
	}
	if c := r.configCheck(); c.OK || !strings.Contains(c.Detail, "urgent") || strings.Contains(c.Detail, "\n") {
		t.Errorf("doctor shows %+v, want the mistake in one line", c)
	}
	if !r.is("batch", "giveway") || r.log.count(readAgain) > 0 {
		t.Errorf("a file that was refused is in force: got %+v, %+v", r.d.Processes(), r.d.Policy())
	}
	if err := os.Rename(r.file, r.file+".away"); err != nil {
		t.Fatal(err)
	}
	r.hangUp("no such file")
	if !r.is("batch", "giveway") {
		t.Errorf("without the file: got %+v, %+v, want batch under giveway", r.d.Processes(), r.d.Policy())
	}
	if err := os.Rename(r.file+".away", r.file); err != nil {
		t.Fatal(err)
	}
	r.writeUnseen("policy: rr\nrules: [{match: {}, class: online}]\n")
	r.hangUp(readAgain)
	r.becomes("online", "rr")
	if c := r.configCheck(); !c.OK {
		t.Errorf("doctor shows %+v, want that the file is accepted", c)
	}
	if n := r.log.count(restart); n > 0 {
		t.Errorf("got log\n%s\nwant no request to restart", r.log)
	}
	r.writeUnseen("policy: rr\nfloor: 3%\nrules: [{match: {}, class: online}]\n")
	r.hangUp(restart)
}

// TestReloadOnChange: the file is read again without a signal when it has changed.
func TestReloadOnChange(t *testing.T) {
	r := startReloading(t, "policy: giveway\nrules: [{match: {}, class: batch}]\n")
	r.write("policy: giveway\nrulez: [{match: {}, class: online}]\n")
	eventually(t, "the file is refused", func() bool { return r.log.count(refused) > 0 && r.log.count(r.file+":2: ") > 0 })
	if !r.is("batch", "giveway") {
		t.Errorf("a file that was refused is in force: got %+v, %+v", r.d.Processes(), r.d.Policy())
	}
	r.write("policy: wfq\nrules: [{match: {}, class: idle}]\n")
	r.becomes("idle", "wfq")
}

// TestReloadOfAPolicyThatDoesNotAnswer: the file has no mistake, but the process of its external policy
// does not run. The old configuration stays in force, and doctor shows why.
func TestReloadOfAPolicyThatDoesNotAnswer(t *testing.T) {
	r := startReloading(t, "policy: giveway\nrules: [{match: {}, class: batch}]\n")
	r.write("policy: {name: external, socket: /nonexistent/socket}\nrules: [{match: {}, class: idle}]\n")
	r.hangUp(refused)
	if c := r.configCheck(); c.OK || !strings.Contains(c.Detail, "/nonexistent/socket") {
		t.Errorf("doctor shows %+v, want that the policy cannot be reached", c)
	}
	if !r.is("batch", "giveway") {
		t.Errorf("a file that was refused is in force: got %+v, %+v", r.d.Processes(), r.d.Policy())
	}
	r.write("policy: wfq\nrules: [{match: {}, class: idle}]\n")
	r.hangUp(readAgain)
	r.becomes("idle", "wfq")
	if c := r.configCheck(); !c.OK {
		t.Errorf("doctor shows %+v, want that the file is accepted", c)
	}
}

// TestReloadKeepsWhatWasSet: a new rule changes the attributes that the owner has not set,
// and no others.
func TestReloadKeepsWhatWasSet(t *testing.T) {
	r := startReloading(t, "policy: giveway\nrules: [{match: {}, class: batch, weight: 5}]\n")
	pid := r.d.Processes()[0].PID
	for _, attrs := range []string{"paused=true weight=3", "paused=false weight=3"} {
		if _, err := r.d.Change(ourselves, pid, given(attrs)); err != nil {
			t.Fatal(err)
		}
	}
	r.becomes("batch", "giveway")
	r.write("policy: giveway\nrules: [{match: {}, class: idle, weight: 7}]\n")
	r.becomes("idle", "giveway")
	if p := r.d.Processes()[0]; p.Attrs.Int(attr.Weight) != 3 || p.Attrs.Bool(attr.Paused) {
		t.Errorf("got %v, want weight 3, not paused", p.Attrs.Given())
	}
	if _, err := r.d.Change(ourselves, pid, given("class=online")); err != nil {
		t.Fatal(err)
	}
	r.write("policy: wfq\nrules: [{match: {}, class: batch}]\n")
	eventually(t, "the file is applied", func() bool { return r.d.Policy().Name == "wfq" })
	if p := r.d.Processes()[0]; p.Class() != "online" || p.Attrs.Source(attr.Class) != attr.FromSet || p.Attrs.Int(attr.Weight) != 3 {
		t.Errorf("got %v, want online by set with weight 3", p.Attrs.Given())
	}
}

// TestReloadKeepsPolicyOrders: a policy that was chosen by an order, and a restore, stay in force when
// the configuration is read again, until it names another policy.
func TestReloadKeepsPolicyOrders(t *testing.T) {
	d, b, stop := newKeptDaemon(t)
	defer stop()
	p, _ := sleeper(t)
	b.mustOffer(t, p)
	reload := func(change func(*config.Config)) {
		t.Helper()
		c := *d.conf
		if change != nil {
			change(&c)
		}
		if err := d.applyConfig(c); err != nil {
			t.Fatal(err)
		}
	}
	order := func(p api.Policy) {
		t.Helper()
		if _, err := d.SetPolicy(ourselves, p); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, all, own string) {
		t.Helper()
		got := d.Policy()
		onDevice := ""
		if len(got.Devices) > 0 {
			onDevice = got.Devices[0].Name
		}
		if got.Name != all || onDevice != own {
			t.Errorf("%s: got %q and %q on the device, want %q and %q", when, got.Name, onDevice, all, own)
		}
	}
	rules := func(c *config.Config) { c.Rules = []config.Rule{{Attrs: attr.Must("class=batch")}} }
	order(api.Policy{Name: "rr"})
	order(api.Policy{Name: "wfq", Device: "fake0"})
	reload(rules)
	want("after orders and a new rule", "rr", "wfq")
	reload(func(c *config.Config) { c.Policy = api.Policy{Name: "fifo"} })
	want("after another policy in the file", "fifo", "wfq")
	order(api.Policy{Name: "rr"})
	reload(func(c *config.Config) { c.Devices = []api.Policy{{Device: "0", Name: "native"}} })
	want("after a policy of the device in the file", "rr", "native")
	reload(func(c *config.Config) { c.Devices = nil })
	want("after the device has none in the file", "rr", "")
	if err := d.Restore(ourselves); err != nil {
		t.Fatal(err)
	}
	reload(nil)
	want("after a restore", "native", "")
	if class := d.Processes()[0].Class(); class != "standard" {
		t.Errorf("after a restore and a reload: got class %s, want standard", class)
	}
	reload(func(c *config.Config) { c.Policy = api.Policy{Name: "rr"} })
	want("after a restore and another policy in the file", "rr", "")
	if class := d.Processes()[0].Class(); class != "batch" {
		t.Errorf("after a restore and another policy in the file: got class %s, want that of the rule", class)
	}
	reload(func(c *config.Config) { c.Devices = []api.Policy{{Device: "0", Name: "wfq"}} })
	order(api.Policy{Name: "native"})
	want("after an order for all devices", "native", "")
	reload(func(c *config.Config) { c.Policy = api.Policy{Name: "fifo"} })
	want("after that and another policy of all devices in the file", "fifo", "wfq")
}

// TestKilledDuringAReload: a configuration with a policy for a device comes into force. Whatever the
// journal has meanwhile, the next daemon has that policy.
func TestKilledDuringAReload(t *testing.T) {
	b := newFakeBackend(journalDir(t))
	own := func(c *config.Config) {
		c.Policy, c.Devices = api.Policy{Name: "fifo"}, []api.Policy{{Device: "fake0", Name: "rr"}}
	}
	d, b, stop := nextDaemon(t, b, func() {}, nil)
	var copies [][]byte
	d.journalOrder = func(o order) error {
		kept := d.keepOrder(o)
		text, err := os.ReadFile(journalPath(b.dir))
		if err != nil {
			t.Error(err)
		}
		copies = append(copies, text)
		return kept
	}
	c := *d.conf
	own(&c)
	if err := d.applyConfig(c); err != nil {
		t.Fatal(err)
	}
	stop()
	if len(copies) == 0 {
		t.Fatal("the journal was not written")
	}
	for i, text := range copies {
		if err := os.WriteFile(journalPath(b.dir), text, 0o600); err != nil { // as it was at the kill
			t.Fatal(err)
		}
		d, _, stop = nextDaemon(t, b, func() {}, own)
		time.Sleep(200 * time.Millisecond)
		if got := d.Policy(); got.Name != "fifo" || len(got.Devices) != 1 || got.Devices[0].Name != "rr" {
			t.Errorf("killed after write %d: the next daemon has %+v, want fifo, and rr on the device", i, got)
		}
		stop()
	}
}
