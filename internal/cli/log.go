package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/describe"
	"github.com/spf13/cobra"
)

func newLogCommand() *cobra.Command {
	var l logCommand
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show the orders that the daemon was given, and what became of them",
		Long: `Show every order to the daemon (run, set, pause, resume, policy, restore, a configuration
that was read again): the user and the command that gave it, what it changed, from what to
what, and whether it was refused. Overruled policies, failed actions and the guardian are
shown too.

Root sees all orders. Other users see their own, those that affect their processes and those
that affect everyone; of the others they see the name of the order and the outcome.

The daemon keeps the last few thousand entries since it was started. Older ones are in its
log: journalctl -u giveway, or what it wrote to stderr if systemd did not start it.

With --json it prints one object in a line for each entry: an entry of the daemon's record
(docs/API.md), with the wall clock in time and the sentence in text.`,
		Example: `  giveway log --since 10m
  giveway log --follow --pid 4711`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.since < 0 {
				return usageError{fmt.Errorf("since %v is negative: give the time without the sign, for example --since 10m for the last ten minutes", l.since)}
			}
			l.cmd, l.client, l.began, l.users = cmd, client.New(""), time.Now(), map[int64]string{}
			if l.follow {
				return l.followRecord(cmd.Context())
			}
			return l.once(cmd.Context())
		},
	}
	addJSON(cmd, "print one JSON object in a line for each entry")
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on with new entries until Ctrl-C")
	cmd.Flags().DurationVar(&l.since, "since", 0, "only the entries of the last `time`, such as 10m")
	cmd.Flags().Var(&l.pid, "pid", "only orders that change this `process` or that it gave, and its failed actions")
	return cmd
}

// logCommand is one call of log.
type logCommand struct {
	cmd    *cobra.Command
	client *client.Client
	follow bool
	since  time.Duration
	pid    pidFlag
	began  time.Time
	users  map[int64]string // names that were looked up

	last   uint64    // the sequence number of the last entry that was printed
	daemon time.Time // when the daemon that it is from was started
	noted  bool      // that older entries are elsewhere
}

// logKinds are the kinds of entries that log shows.
var logKinds = []api.EntryKind{api.KindOrder, api.KindNote}

// once prints what is in the record.
func (l *logCommand) once(ctx context.Context) error {
	q := api.RecordQuery{Kinds: logKinds, Limit: api.MaxRecordLimit}
	for {
		r, err := l.client.Record(ctx, q)
		if err != nil {
			return err
		}
		if err := l.print(r); err != nil || !r.More {
			return err
		}
		q.After = r.Next
	}
}

// logPause is how long log --follow waits for a daemon that is away.
const logPause = time.Second

// errOutput is an error of the output, after which there is no point in going on.
type errOutput struct{ error }

// followRecord prints what is in the record and what is added. When the daemon is restarted,
// it goes on with the next one.
func (l *logCommand) followRecord(ctx context.Context) error {
	away := false
	for first := true; ; first = false {
		q := api.RecordQuery{Kinds: logKinds, Limit: api.MaxRecordLimit, After: l.last}
		err := l.client.FollowRecord(ctx, q, func(r api.Record) error {
			away = false
			if err := l.print(r); err != nil {
				return errOutput{err}
			}
			return nil
		})
		var output errOutput
		var refusal *client.Error
		switch {
		case errors.As(err, &output):
			return output.error
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &refusal) || first && errors.Is(err, client.ErrNoDaemon):
			return err
		case !away:
			away = true
			printMessage(l.cmd, "warning", fmt.Sprintf("%v; waiting for the daemon", err))
		}
		time.Sleep(logPause)
	}
}

// print prints the entries that are asked for and that were not printed yet.
func (l *logCommand) print(r api.Record) error {
	if !r.Began.Equal(l.daemon) {
		l.daemon, l.last = r.Began, 0
	}
	l.noteOlder(&r)
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.Seq <= l.last {
			continue
		}
		l.last = e.Seq
		at := r.Wall.Add(e.At - r.Now)
		text := describe.Log(e, l.userName)
		if text == "" || l.since > 0 && at.Before(l.began.Add(-l.since)) || l.pid > 0 && !concerns(e, int(l.pid)) {
			continue
		}
		if err := l.printEntry(e, at, text); err != nil {
			return err
		}
	}
	l.last = max(l.last, r.Next)
	return nil
}

// concerns reports whether an entry is about a process, or about an order that it gave.
func concerns(e *api.Entry, pid int) bool {
	return e.PID == pid || e.Order != nil && e.Order.PID == pid
}

// logEntry is what log --json prints.
type logEntry struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
	api.Entry
}

func (l *logCommand) printEntry(e *api.Entry, at time.Time, text string) error {
	if wantsJSON(l.cmd) {
		return json.NewEncoder(l.cmd.OutOrStdout()).Encode(logEntry{at.UTC(), text, *e})
	}
	_, err := fmt.Fprintf(l.cmd.OutOrStdout(), "%s  %s\n", at.Local().Format("2006-01-02 15:04:05"), text)
	return err
}

// noteOlder says once where older entries are, if some were overwritten, or if --since asks for
// a time before the daemon was started.
func (l *logCommand) noteOlder(r *api.Record) {
	before := l.since > 0 && r.Began.After(l.began.Add(-l.since))
	if l.noted || !r.KeptLost && !before {
		return
	}
	l.noted = true
	what := fmt.Sprintf("the daemon was started at %s", r.Began.Local().Format("2006-01-02 15:04:05"))
	if r.KeptLost {
		what = "the record is full, and its oldest entries are overwritten"
	}
	printMessage(l.cmd, "note", what+"; earlier orders, if any, are in the daemon's log: journalctl -u giveway, or what it wrote to stderr if systemd did not start it")
}

// userName returns the name of a user, or an empty text.
func (l *logCommand) userName(uid int64) string {
	name, ok := l.users[uid]
	if !ok {
		if u, err := user.LookupId(strconv.FormatInt(uid, 10)); err == nil {
			name = u.Username
		}
		l.users[uid] = name
	}
	return name
}
