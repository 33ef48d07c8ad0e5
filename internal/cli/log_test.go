package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/sched"
)

// recording returns a node with a record that was begun an hour ago.
func recording() (*daemonNode, *record.Record) {
	r := record.New(time.Now().Add(-time.Hour), 0)
	return &daemonNode{record: r}, r
}

// addOrders adds an order of root 50 minutes ago, and one now.
func addOrders(r *record.Record) {
	root := int64(0)
	old := api.Order{Name: "policy", UID: &root, PID: 70, Command: "giveway", From: "slo", To: "rr"}
	r.Add(&record.Entry{Kind: record.Order, At: sched.Time(10 * time.Minute), Words: &record.Details{Order: old, AffectsAll: true}})
	r.Order(812, api.Order{Name: "set", UID: &root, PID: 71, Command: "giveway", From: "class=online", To: "class=batch"}, record.Details{})
	r.Note("GPU-a", 0, "guardian", "running")
	r.Add(&record.Entry{Kind: record.Span, At: sched.Time(time.Hour)})
}

func TestLog(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	n, r := recording()
	startDaemon(t, n)
	addOrders(r)
	const (
		policy = "changed the policy from slo to rr\n"
		set    = "changed process 812 from class=online to class=batch\n"
		alive  = "  guardian: running\n"
	)
	for args, want := range map[string][]string{
		"log":                     {policy, set, alive},
		"log --since 10m":         {set, alive},
		"log --pid 812":           {set},
		"log --pid 70":            {policy},
		"log --pid 5":             {},
		"log --since 1m --pid 70": {},
		"log --since 2h":          {policy, set, alive},
	} {
		out, errs, code := call(strings.Fields(args)...)
		lines := strings.SplitAfter(out, "\n")
		if code != exitOK || len(lines) != len(want)+1 {
			t.Errorf("%s: got exit %d\n%s%s", args, code, out, errs)
			continue
		}
		for i := range want {
			if !strings.HasSuffix(lines[i], want[i]) || !strings.HasPrefix(lines[i], "20") {
				t.Errorf("%s: got line %q, want %q", args, lines[i], want[i])
			}
		}
		if older := strings.Contains(errs, "journalctl -u giveway, or what it wrote to stderr"); older != strings.Contains(args, "2h") {
			t.Errorf("%s: stderr is %q", args, errs)
		}
	}
	out, errs, code := call("log", "--json", "--pid", "812", "--since", "2h")
	var e logEntry
	if err := json.Unmarshal([]byte(out), &e); err != nil || code != exitOK || e.Order == nil || e.Order.To != "class=batch" || e.PID != 812 || e.Text == "" || time.Since(e.Time) > time.Minute {
		t.Errorf("--json: got %v, exit %d: %s", err, code, out)
	}
	if !json.Valid([]byte(errs)) {
		t.Errorf("--json: stderr is %s", errs)
	}
	for args, want := range map[string]string{
		"log 5": "takes no arguments", "log --pid -1": `"-1" is not a pid`, "log --pid x": `"x" is not a pid`,
		"log --since -5m": "without the sign, for example --since 10m", "log --since abc": "since abc is not a time: a number and a unit, such as 20ms, 10m or 2h",
	} {
		if out, errs, code := call(strings.Fields(args)...); code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: got exit %d\n%s%s", args, code, out, errs)
		}
	}
}

// TestLogOverwritten: a record that is full says so, and log reads all parts of it.
func TestLogOverwritten(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	r := record.New(time.Now().Add(-time.Hour), 1)
	startDaemon(t, &daemonNode{record: r})
	const orders = 12000
	root := int64(0)
	for i := range orders {
		r.Order(i+1, api.Order{Name: "set", UID: &root, To: fmt.Sprint("weight=", i)}, record.Details{})
	}
	out, errs, code := call("log", "--since", "10m")
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if code != exitOK || len(lines) <= api.MaxRecordLimit || len(lines) >= orders || !strings.Contains(errs, "the record is full") {
		t.Errorf("got exit %d, %d lines, %s", code, len(lines), errs)
	}
	for i, l := range lines {
		if want := fmt.Sprintf("changed process %d to weight=%d", orders-len(lines)+i+1, orders-len(lines)+i); !strings.HasSuffix(l, want) {
			t.Fatalf("line %d: got %s, want %s", i, l, want)
		}
	}
}

// TestLogHostile: names that users chose are printed in one line, without anything that a
// terminal obeys.
func TestLogHostile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	n, r := recording()
	startDaemon(t, n)
	names := []string{"\x1b[2J", "a\nb", strings.Repeat("x", 64<<10), "\xff\xfe", `"\`}
	root := int64(0)
	for _, name := range names {
		r.Order(5, api.Order{Name: "set", UID: &root, Command: name, From: name, To: name, Reason: name}, record.Details{})
	}
	out, _, code := call("log")
	if code != exitOK || strings.Count(out, "\n") != len(names) || strings.ContainsAny(out, "\x1b\r") || strings.Contains(out, "\xff") || len(out) > 5000 {
		t.Errorf("got exit %d, %q", code, out[:min(len(out), 2000)])
	}
	out, _, _ = call("log", "--json")
	for l := range strings.Lines(out) {
		if !json.Valid([]byte(l)) || strings.ContainsAny(l, "\x1b\r") {
			t.Errorf("--json: got %.200q", l)
		}
	}
}
