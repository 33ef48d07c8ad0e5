package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// scraped returns the metrics of a daemon.
func scraped(d *Daemon) string {
	return string(metrics.Text(&metrics.Node{Status: d.Status(), Processes: d.Processes(), Delays: d.Delays(), Tally: d.Tally(), Everything: true}))
}

// checkOf returns the check with a name.
func checkOf(d *Daemon, name string) (found api.Check) {
	for _, c := range d.Status().Checks {
		if c.Name == name {
			found = c
		}
	}
	return found
}

// notes returns how many notes have a name and contain a text.
func notes(t *testing.T, d *Daemon, name, text string) (n int) {
	t.Helper()
	for _, e := range recorded(t, d) {
		if e.Note != nil && e.Note.Name == name && strings.Contains(e.Note.Text, text) {
			n++
		}
	}
	return n
}

// TestFailedActions: actions that the driver refuses are counted, shown by doctor, and noted
// once although the scheduler tries again and again.
func TestFailedActions(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	b.mu.Lock()
	b.refuse = map[int]error{p.PID: errors.New("busy")}
	b.mu.Unlock()
	b.mustOffer(t, p)
	if c := checkOf(d, "actions"); c.Name != "" {
		t.Errorf("nothing has failed, and yet: %+v", c)
	}
	if _, err := d.Change(server.Caller{All: true}, p.PID, api.Change{Values: attr.Must("paused=true")}); err != nil {
		t.Fatal(err)
	}
	const name = `giveway_actions_total{verb="stop",level="interrupt",outcome="refused"}`
	eventually(t, "stops are refused several times", func() bool {
		failed, _ := d.recorder.tally.Failures(d.Now())
		return failed >= 3
	})
	if text := scraped(d); !strings.Contains(text, name) || strings.Contains(text, name+" 0\n") {
		t.Errorf("%s is not counted:\n%s", name, text)
	}
	what := (&metrics.Action{PID: p.PID, Verb: sched.Stop, Level: sched.LevelInterrupt, Outcome: sched.Refused}).String()
	if c := checkOf(d, "actions"); c.OK || !strings.Contains(c.Detail, "failed in the last hour") || !strings.Contains(c.Detail, what) {
		t.Errorf("got %+v, want it to contain %s", c, what)
	}
	if n := notes(t, d, "action", what); n < 1 || n > 2 { // two if a minute has passed
		t.Errorf("%d notes", n)
	}
	for _, e := range recorded(t, d) {
		if e.Note != nil && e.Note.Name == "action" && e.PID != p.PID {
			t.Errorf("the note is about process %d", e.PID)
		}
	}
}

// TestGuardianIsCounted: a guardian that dies and is replaced shows in metrics and in the
// record.
func TestGuardianIsCounted(t *testing.T) {
	d := newTestDaemon(newFakeBackend(t.TempDir()))
	defer runDaemon(t, d)()
	if text := scraped(d); !strings.Contains(text, "\ngiveway_guardian_up 1\n") || !strings.Contains(text, "\ngiveway_guardian_starts_total 1\n") {
		t.Errorf("got\n%s", text)
	}
	d.guardian.mu.Lock()
	d.guardian.guardian.Kill()
	d.guardian.mu.Unlock()
	eventually(t, "there is another guardian", func() bool {
		text := scraped(d)
		return strings.Contains(text, "\ngiveway_guardian_up 1\n") && strings.Contains(text, "\ngiveway_guardian_starts_total 2\n")
	})
	if notes(t, d, "guardian", "died") != 1 || notes(t, d, "guardian", "running") != 2 {
		t.Error("the record does not tell it")
	}
}

// TestConfigOrders: a configuration that is read again is one order, with the policy and the
// rules before and after; one that is refused, or that cannot be applied, is refused in the
// record too.
func TestConfigOrders(t *testing.T) {
	d := newTestDaemon(newFakeBackend(t.TempDir()))
	defer runDaemon(t, d)()
	file := filepath.Join(t.TempDir(), "giveway.yaml")
	read := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(file)
		d.readAgain(file, c, err)
	}
	read("policy: rr\nrules: [{match: {user: daemon}, class: idle}]\n")
	read("policy: \"\x1b[2J\"\n")
	read("policy: wfq\n")
	var orders []*api.Order
	for _, e := range recorded(t, d) {
		if e.Order != nil {
			orders = append(orders, e.Order)
		}
	}
	if len(orders) != 3 {
		t.Fatalf("got %d orders", len(orders))
	}
	if o := orders[0]; o.Name != "config" || o.Refused || o.From != "policy giveway, 0 rules, 0 limits" || o.To != file+": policy rr, 1 rule, 0 limits" {
		t.Errorf("got %+v", o)
	}
	if o := orders[1]; !o.Refused || o.Reason == "" || o.To != file || strings.Contains(o.Reason, "\x1b") {
		t.Errorf("got %+v", o)
	}
	if o := orders[2]; o.Refused || o.From != "policy rr, 1 rule, 0 limits" {
		t.Errorf("got %+v", o)
	}
	text := scraped(d)
	for _, want := range []string{`giveway_config_reloads_total{result="accepted"} 2`, `giveway_config_reloads_total{result="refused"} 1`, "giveway_config_accepted 1"} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if c := checkOf(d, "earlier configuration"); !c.OK || !strings.Contains(c.Detail, "refused 1 time in the last hour") {
		t.Errorf("got %+v", c)
	}
}
