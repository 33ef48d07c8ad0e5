package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/progress"
	"github.com/giveway/giveway/internal/trace"
	"github.com/spf13/cobra"
)

// maxRecording is how long trace record may take.
const maxRecording = time.Hour

func newTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Write what the devices and the scheduler did as a timeline",
		Long: `Write what the devices and the scheduler did as a timeline for ui.perfetto.dev: which
process held each device, every request and what it waited for, every decision with its
reason, and the actions that followed. docs/TRACE.md says how to read it.

The trace has what the caller may see: other users' requests and commands are not in it.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTraceDump(), newTraceRecord(), newTraceReplay())
	return cmd
}

func newTraceDump() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Write the last seconds, which the daemon always keeps",
		Long: `Write what the daemon's record has: the last 65,536 entries, which are some seconds of a
busy node and more of others.`,
		Example: "  giveway trace dump -o late.pftrace",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeTrace(cmd, path, (*tracing).dump)
		},
	}
	addTraceOutput(cmd, &path)
	return cmd
}

func newTraceRecord() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "record DURATION",
		Short: "Write what happens from now on",
		Long: `Write what happens from now on, for a duration of at most an hour. Interrupt it (Ctrl-C)
to end earlier: the trace is complete until then.

If root records it, the trace also has the state and the inputs of the scheduler, from which
'giveway trace replay' computes the same decisions again. They are of all processes.`,
		Example: "  giveway trace record 10s",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("trace record takes one duration, such as 10s; got %d", len(args))
			}
			_, err := recordingLength(args[0])
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			length, _ := recordingLength(args[0]) // Args has checked it
			return writeTrace(cmd, path, func(t *tracing) error { return t.record(length) })
		},
	}
	addTraceOutput(cmd, &path)
	return cmd
}

func recordingLength(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > maxRecording {
		return 0, fmt.Errorf("%.40q is not a duration from 1ms to %s, such as 10s", s, format.ExactDuration(maxRecording))
	}
	return d, nil
}

func addTraceOutput(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVarP(path, "output", "o", "", "write to this file, or to standard output if it is - (default: a new file giveway-TIME.pftrace in the current folder)")
	_ = cmd.MarkFlagFilename("output", "pftrace") // the flag exists
}

// tracing is a trace that is being written.
type tracing struct {
	ctx    context.Context
	client *client.Client
	line   *progress.Line
	trace  *trace.Trace

	began   time.Time     // of the daemon
	first   time.Duration // time of the first entry, or of the beginning
	lost    uint64        // entries that were overwritten before they were read
	older   int           // entries from before the rest that are not in the trace
	started bool
	inputs  string // what is said about the scheduler's inputs

	mu sync.Mutex // of trace
}

// writeTrace writes a trace and says what it has. What fill wrote before an error is kept.
func writeTrace(cmd *cobra.Command, path string, fill func(*tracing) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	t := &tracing{ctx: ctx, client: client.New("")}
	names, err := t.names()
	if err != nil {
		return err
	}
	file, notes, err := openTrace(cmd, path)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(file, 1<<16)
	t.trace = trace.New(out, maxTrace)
	t.trace.Names(names)
	t.line = progress.Start(cmd.ErrOrStderr(), "reading the daemon's record")
	err = fill(t)
	t.line.Stop()
	sum, writeErr := t.trace.Close()
	if writeErr = cmp.Or(writeErr, out.Flush(), file.Close()); writeErr != nil {
		return errors.Join(err, fmt.Errorf("write the trace: %w; it is not complete", writeErr))
	}
	if sum.Total() == 0 && err != nil {
		return errors.Join(err, file.remove())
	}
	_, printErr := fmt.Fprint(notes, t.summary(file.name, &sum))
	return errors.Join(err, printErr)
}

// traceFile is what a trace is written to.
type traceFile struct {
	io.Writer
	name string
	file *os.File // nil: standard output
}

// Close implements io.Closer. Standard output stays open.
func (f *traceFile) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

func (f *traceFile) remove() error {
	if f.file == nil {
		return nil
	}
	return os.Remove(f.name)
}

// openTrace returns what the trace is written to, and where the text about it goes: not into
// the trace.
func openTrace(cmd *cobra.Command, path string) (*traceFile, io.Writer, error) {
	if path == "-" {
		return &traceFile{Writer: cmd.OutOrStdout(), name: "standard output"}, cmd.ErrOrStderr(), nil
	}
	file, err := createTrace(path)
	if err != nil {
		return nil, nil, err
	}
	return &traceFile{Writer: file, name: file.Name(), file: file}, cmd.OutOrStdout(), nil
}

// createTrace creates the file. Only its owner may read it, because it has names of
// processes. A file whose name the command chooses is a new one: in a folder that all may
// write to another user could have put a link there.
func createTrace(path string) (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if path == "" {
		path = "giveway-" + time.Now().Format("20060102-150405") + ".pftrace"
		flags |= os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write the trace: %w; name another file with --output", err)
	}
	return file, nil
}

// names returns the names of the processes that the caller may see.
func (t *tracing) names() (map[int]string, error) {
	all, err := t.client.Processes(t.ctx)
	names := map[int]string{}
	for i := range all {
		names[all[i].PID] = shortName(all[i].Command)
	}
	return names, err
}

// shortName returns the program of a command, and what an interpreter runs: "python
// train.py" of "/usr/bin/python /home/me/train.py --fast".
func shortName(command string) string {
	words := strings.Fields(command)
	if len(words) == 0 {
		return ""
	}
	name := filepath.Base(words[0])
	if len(words) > 1 && !strings.HasPrefix(words[1], "-") {
		name += " " + filepath.Base(words[1])
	}
	return name
}

// take adds a part of the record to the trace.
func (t *tracing) take(r *api.Record) error {
	if !t.started {
		t.started, t.began, t.first = true, r.Began, r.Now
		t.trace.Clock(r.Clock)
	}
	if !r.Began.Equal(t.began) {
		return errors.New("the daemon was restarted; the trace ends there")
	}
	if slices.ContainsFunc(r.Entries, processAppeared) {
		if names, err := t.names(); err == nil { // else they are shown with their pids
			t.trace.Names(names)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range r.Entries {
		t.first = min(t.first, r.Entries[i].At)
		t.trace.Add(&r.Entries[i])
	}
	return nil
}

func processAppeared(e api.Entry) bool {
	return e.State != nil && e.State.What == "process" && e.State.Change == "appeared"
}

// dump adds all of the record.
func (t *tracing) dump() error {
	var early []api.Entry // state, orders and notes, which are kept longer than the rest
	q := api.RecordQuery{Limit: api.MaxRecordLimit}
	for end := time.Duration(0); ; {
		r, err := t.client.Record(t.ctx, q)
		if err != nil {
			return err
		}
		end = cmp.Or(end, r.Now)
		if !t.started {
			early, r.Entries = append(early, r.Entries[:keptLonger(r.Entries)]...), r.Entries[keptLonger(r.Entries):]
			if len(r.Entries) == 0 && r.More {
				q.After = r.Next
				continue
			}
			r.Entries = append(t.recent(early, r.Entries), r.Entries...)
			early = nil
		}
		if err := t.take(&r); err != nil {
			return err
		}
		if n := len(r.Entries); !r.More || n > 0 && r.Entries[n-1].At > end {
			return nil
		}
		q.After = r.Next
	}
}

// keptLonger returns how many entries at the beginning are of kinds that are kept longer
// than the others.
func keptLonger(entries []api.Entry) (n int) {
	for n < len(entries) && (entries[n].Kind == api.KindState || entries[n].Kind == api.KindOrder || entries[n].Kind == api.KindNote) {
		n++
	}
	return n
}

// recent returns the early entries that are at most a second older than the rest, if there
// is a rest: others would make the picture hours long.
func (t *tracing) recent(early, rest []api.Entry) []api.Entry {
	if len(rest) == 0 {
		return early
	}
	for t.older < len(early) && early[t.older].At < rest[0].At-time.Second {
		t.older++
	}
	return early[t.older:]
}

// lateness is how long after a moment its last entries arrive: the hardware's trace is read
// every few milliseconds, and the stream is sent every 50 ms.
const lateness = 300 * time.Millisecond

// record adds what happens from now on. An interrupt ends it earlier and is no error.
func (t *tracing) record(length time.Duration) error {
	now, err := t.client.Record(t.ctx, api.RecordQuery{Limit: 1, Last: true})
	if err != nil {
		return err
	}
	start, end := time.Now(), now.Now+length
	t.line.Set(fmt.Sprintf("recording for %v; Ctrl-C ends it", length), func() float64 { return float64(time.Since(start)) / float64(length) })
	now.Entries = nil
	if err := t.take(&now); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.ctx, length+lateness)
	defer cancel()
	ended := t.recordInputs(ctx)
	defer ended()
	err = t.client.FollowRecord(ctx, api.RecordQuery{After: now.Next, Limit: api.MaxRecordLimit}, func(r api.Record) error {
		t.lost += r.Lost
		if r.Now > end { // what was made after the end is not part of it
			for n := len(r.Entries); n > 0 && r.Entries[n-1].At > end+lateness; n-- {
				r.Entries = r.Entries[:n-1]
			}
		}
		return t.take(&r)
	})
	if ctx.Err() != nil {
		err = nil
	}
	return err
}

// summary says what the trace has and how to open it.
func (t *tracing) summary(path string, s *trace.Summary) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The trace is in %s (%s).\nEntries: %s", path, format.Bytes(s.Bytes), format.Integer(s.Total()))
	if s.Total() > 0 {
		fmt.Fprintf(&b, " in %s", format.Duration(s.Last-t.first))
		var kinds []string
		for _, k := range api.EntryKinds() {
			if n := s.Entries[k]; n > 0 {
				kinds = append(kinds, fmt.Sprintf("%s %s", k, format.Integer(n)))
			}
		}
		fmt.Fprintf(&b, " (%s)", strings.Join(kinds, ", "))
	}
	fmt.Fprintf(&b, ". Lost: %d.\n", t.lost)
	if t.older > 0 {
		fmt.Fprintf(&b, "Older entries of kinds state, order and note that are not in it: %s.\n", format.Integer(t.older))
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(&b, "To stay below %s it ends %s after its beginning: %d later entries are not in it.\n",
			format.Bytes(maxTrace), format.Duration(s.Until-t.first), s.LeftOut)
	}
	b.WriteString(t.inputs)
	b.WriteString("Open it in https://ui.perfetto.dev with \"Open trace file\"; the page reads it in the browser and sends it nowhere.\n")
	return b.String()
}
