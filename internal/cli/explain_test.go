package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/record"
)

// TestExplain: the daemon's reason, delays and orders are in the explanation. An order is
// named with the user and the process that gave it.
func TestExplain(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	startDaemon(t, &daemonNode{record: record.New(time.Now(), 0)})
	if _, errs, code := call("set", "4711", "--weight", "7"); code != exitOK {
		t.Fatalf("set: got exit %d: %s", code, errs)
	}
	out, errs, code := call("explain", "4711")
	if code != exitOK || errs != "" {
		t.Fatalf("got exit %d: %s", code, errs)
	}
	text := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"Process 4711 of user bob is of class batch.",
		"On GPU 0 (H200) it waits: it is the turn of another batch process.",
		"1.20s while process 812 (python serve.py --port 80) had the device",
		"weight 2, by 'giveway set'",
		"set by root (cli.test, pid ", "): weight=7",
		"giveway set 4711 --weight N: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q", out, want)
		}
	}
}

// TestExplainJSON: the facts and the sentences are one object.
func TestExplainJSON(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	startDaemon(t, &daemonNode{record: record.New(time.Now(), 0)})
	if _, errs, code := call("set", "4711", "--weight", "7"); code != exitOK {
		t.Fatalf("set: got exit %d: %s", code, errs)
	}
	out, errs, code := call("explain", "4711", "--json")
	var got explainJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || errs != "" {
		t.Fatalf("got exit %d, %v: %s%s", code, err, out, errs)
	}
	if got.Process.PID != 4711 || got.Policy == "" || len(got.Delays) == 0 || len(got.Orders) != 1 || len(got.Sections) < 3 || len(got.Sections[0].Lines) == 0 {
		t.Errorf("got %+v", got)
	}
}
