package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/replay"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// addSpans adds spans of a millisecond and a note after every tenth.
func addSpans(r *record.Record, from, n int) {
	for i := from; i < from+n; i++ {
		at := sched.Time(i) * sched.Time(time.Millisecond)
		r.Add(&record.Entry{Kind: record.Span, At: at, Begin: at - 1e6, End: at, Device: "gpu0", PID: 812, SpanKind: hal.SpanHeld})
		if i%10 == 9 {
			r.Add(&record.Entry{Kind: record.Note, At: at, Text: "floor"})
		}
	}
}

// TestTraceDump checks that a dump has as many entries as the API has, in more than one
// answer, without the old notes that the record keeps longer.
func TestTraceDump(t *testing.T) {
	n := &daemonNode{record: record.New(time.Now().Add(-time.Minute), 16<<10)}
	for range 300 {
		n.record.Add(&record.Entry{Kind: record.Note, At: 1, Text: "floor"})
	}
	addSpans(n.record, 5000, 12_000)
	startDaemon(t, n)
	path := filepath.Join(t.TempDir(), "a.pftrace")
	out, errs, code := call("trace", "dump", "-o", path)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() < 12_000*20 {
		t.Fatalf("got %v, %v; want a file for its owner only", info, err)
	}
	for _, want := range []string{
		"The trace is in " + path + " (", "Entries: 13,200 in 12.0s (span 12,000, note 1,200). Lost: 0.\n",
		"Older entries of kinds state, order and note that are not in it: 300.", "ui.perfetto.dev",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%swant %q in it", out, want)
		}
	}
}

// TestTraceToStandardOutput checks that standard output has the trace alone.
func TestTraceToStandardOutput(t *testing.T) {
	n := &daemonNode{record: record.New(time.Now().Add(-time.Minute), 16<<10)}
	addSpans(n.record, 5000, 100)
	startDaemon(t, n)
	out, errs, code := call("trace", "dump", "-o", "-")
	if code != exitOK || len(out) < 100*20 || strings.Contains(out, "The trace is in") || !strings.Contains(errs, "The trace is in standard output (") {
		t.Errorf("got exit %d, %d bytes of output, and %s; want the trace, and the text about it apart", code, len(out), errs)
	}
}

// TestTraceRecord records while entries are added, and checks that those from before are
// not in the trace.
func TestTraceRecord(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the test waits for the recording of inputs, which only root may have")
	}
	n := &daemonNode{record: record.New(time.Now(), 0), recording: make(chan struct{})}
	addSpans(n.record, 1, 50)
	startDaemon(t, n)
	done := make(chan string)
	path := filepath.Join(t.TempDir(), "b.pftrace")
	go func() {
		out, errs, code := call("trace", "record", "2s", "-o", path)
		done <- fmt.Sprint(code, out, errs)
	}()
	<-n.recording // what is added from now on is part of it
	addSpans(n.record, 1000, 40)
	if out := <-done; !strings.HasPrefix(out, "0") || !strings.Contains(out, "(span 40, note 4). Lost: 0.") {
		t.Errorf("got %s; want 40 spans and 4 notes", out)
	}
}

// TestDaemonEndsWhileInputsAreRecorded checks that the summary says so in words.
func TestDaemonEndsWhileInputsAreRecorded(t *testing.T) {
	for want, err := range map[string]error{
		"Only its beginning can be replayed: the daemon has ended, or does not answer.\n": syscall.ECONNRESET,
		"Only its beginning can be replayed: too slow.\n":                                 &client.Error{Message: "too slow"},
	} {
		tr := &tracing{ctx: t.Context()}
		if more := tr.nextInputs(func(context.Context) (api.Inputs, error) { return api.Inputs{}, err }); more || tr.inputs != want {
			t.Errorf("got %q, %v; want %q", tr.inputs, more, want)
		}
	}
}

// TestTraceErrors checks command lines and files that are wrong.
func TestTraceErrors(t *testing.T) {
	startDaemon(t, &daemonNode{})
	for _, length := range []string{"x", "0s", "2h", "10"} {
		if _, errs, code := call("trace", "record", length); code != exitUsage || !strings.Contains(errs, "is not a duration") {
			t.Errorf("%s: got exit %d: %s", length, code, errs)
		}
	}
	dir := t.TempDir()
	if _, errs, code := call("trace", "dump", "-o", dir); code != exitFailure || !strings.Contains(errs, "write the trace: ") {
		t.Errorf("got exit %d: %s", code, errs)
	}
	if out, errs, code := call("trace", "dump", "-o", "/dev/full"); code != exitFailure || out != "" || errs != "giveway: write the trace: write /dev/full: no space left on device; it is not complete\n" {
		t.Errorf("full disk: got exit %d: %s%s", code, out, errs)
	}
	t.Setenv("GIVEWAY_SOCKET", filepath.Join(dir, "none.sock"))
	path := filepath.Join(dir, "c.pftrace")
	if _, errs, code := call("trace", "dump", "-o", path); code != exitFailure || errs == "" {
		t.Errorf("got exit %d: %s", code, errs)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("without a daemon there is a file, want none")
	}
}

// TestShortName checks names of processes.
func TestShortName(t *testing.T) {
	for command, want := range map[string]string{
		"":                                    "",
		"/usr/bin/python /home/a/train.py -x": "python train.py",
		"./serve --port 80":                   "serve",
	} {
		if got := shortName(command); got != want {
			t.Errorf("%q: got %q, want %q", command, got, want)
		}
	}
}

// TestTraceReplay records the inputs of a scheduler in a trace and replays them from the
// file. A file that is cut, damaged or of another kind is an error.
func TestTraceReplay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root may record the scheduler's inputs")
	}
	choice, err := policy.Choose("giveway", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := sched.New(sched.Config{}, choice)
	recording, err := replay.Begin(s, version().Version)
	if err != nil {
		t.Fatal(err)
	}
	n := &daemonNode{record: record.New(time.Now(), 0), inputs: [][]byte{recording.Take()}}
	for i, events := range [][]sched.Event{
		{{Kind: sched.DeviceOpened, Device: "g"}},
		{{Kind: sched.QueueOpened, Device: "g", Queue: 1, Can: sched.CanInterrupt, Attr: sched.Attr{Paused: true}}},
	} {
		actions, _ := s.Step(sched.Time(i), events)
		if err := recording.Step(sched.Time(i), events, actions); err != nil {
			t.Fatal(err)
		}
	}
	n.inputs = append(n.inputs, recording.Take())
	startDaemon(t, n)
	path := filepath.Join(t.TempDir(), "d.pftrace")
	if out, errs, code := call("trace", "record", "10ms", "-o", path); code != exitOK || !strings.Contains(out, "'giveway trace replay' computes") {
		t.Fatalf("got exit %d: %s%s", code, out, errs)
	}
	if out, errs, code := call("trace", "replay", path); code != exitOK || out != "2 steps with 2 events in 1.00ns: the same 1 decisions and 1 actions.\n" {
		t.Errorf("got exit %d: %s%s", code, out, errs)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-3] ^= 1
	for what, content := range map[string][]byte{"damaged": data, "cut": data[:len(data)-1], "foreign": []byte("{}"), "empty": nil} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, errs, code := call("trace", "replay", path); code != exitFailure || out != "" || !strings.HasPrefix(errs, "giveway: replay "+path+": ") {
			t.Errorf("a %s file: got exit %d: %s%s", what, code, out, errs)
		}
	}
}
