package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/progress"
	"github.com/giveway/giveway/internal/replay"
	"github.com/giveway/giveway/internal/trace"
	"github.com/spf13/cobra"
)

func newTraceReplay() *cobra.Command {
	return &cobra.Command{
		Use:   "replay FILE",
		Short: "Compute the decisions of a recorded trace again",
		Long: `Compute the decisions of a trace again that root wrote with 'giveway trace record', and
compare. The scheduler gets the same state and the same inputs, so it decides the same; a
changed scheduler shows here where it would have decided differently. No daemon is needed.

A trace can be replayed by every version whose scheduler has the same state as that of the
version that recorded it.`,
		Example: "  giveway trace replay late.pftrace",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("trace replay takes one file of 'giveway trace record'; got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			line := progress.Start(cmd.ErrOrStderr(), "replaying "+args[0])
			res, err := replayFile(args[0])
			line.Stop()
			if err != nil {
				return fmt.Errorf("replay %s: %w", args[0], err)
			}
			if res.Version != version().Version {
				fmt.Fprintf(cmd.ErrOrStderr(), "giveway: the trace is of version %q, this is version %q\n", res.Version, version().Version)
			}
			if res.Difference != nil {
				return errors.New(differenceText(res.Difference))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s steps with %s events in %s: the same %s decisions and %s actions.\n",
				format.Integer(res.Steps), format.Integer(res.Events), format.Duration(res.Last.Sub(res.First)), format.Integer(res.Decisions), format.Integer(res.Actions))
			return err
		},
	}
}

func replayFile(path string) (res replay.Result, err error) {
	file, err := os.Open(path)
	if err != nil {
		return res, err
	}
	defer file.Close()
	inputs, err := trace.ReadInputs(file)
	if err != nil {
		return res, err
	}
	return replay.Run(inputs)
}

// differenceText says where a replay decided differently.
func differenceText(d *replay.Difference) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the replay decides differently at step %d, %v after the daemon was started", d.Step, time.Duration(d.At))
	list := func(title string, o *replay.Output) {
		fmt.Fprintf(&b, "\n%s:", title)
		for _, x := range o.Decisions {
			fmt.Fprintf(&b, "\n  queue %d: run %v (%v), slice %v, bound %d", x.Queue, x.Run, x.Reason, x.Slice, x.Bound)
		}
		for _, a := range o.Actions {
			fmt.Fprintf(&b, "\n  %v", a)
		}
		if len(o.Decisions)+len(o.Actions) == 0 {
			b.WriteString(" nothing")
		}
	}
	fmt.Fprintf(&b, "\nevents:")
	for i := range d.Events {
		fmt.Fprintf(&b, "\n  %v of queue %d", d.Events[i].Kind, d.Events[i].Queue)
	}
	list("recorded", &d.Recorded)
	list("replayed", &d.Replayed)
	return b.String()
}

// inputsPeriod is how often the scheduler's inputs are fetched. The daemon keeps them for 10 s.
const inputsPeriod = time.Second

// recordInputs adds the scheduler's inputs to the trace until ctx is done, if the caller may
// have them. The function that it returns ends that and adds the rest.
func (t *tracing) recordInputs(ctx context.Context) (end func()) {
	first, err := t.client.BeginInputs(t.ctx)
	var refusal *client.Error
	switch {
	case errors.As(err, &refusal) && refusal.Status == http.StatusForbidden:
		t.inputs = "It cannot be replayed: only root may record the scheduler's inputs.\n"
		return func() {}
	case err != nil:
		t.inputs = fmt.Sprintf("It cannot be replayed: %v.\n", err)
		return func() {}
	}
	t.inputs = "'giveway trace replay' computes its decisions again.\n"
	t.addInputs(first.Data)
	var fetching sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	fetching.Go(func() {
		tick := time.NewTicker(inputsPeriod)
		defer tick.Stop()
		for more := true; more; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				more = t.nextInputs(t.client.NextInputs)
			}
		}
	})
	return func() {
		cancel()
		fetching.Wait()
		t.nextInputs(t.client.EndInputs)
	}
}

// nextInputs adds the next part of the inputs. It reports whether there may be more.
func (t *tracing) nextInputs(next func(context.Context) (api.Inputs, error)) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 5*time.Second)
	defer cancel()
	part, err := next(ctx)
	if err != nil {
		if !errors.As(err, new(*client.Error)) { // the text of a broken connection says nothing to a user
			err = errors.New("the daemon has ended, or does not answer")
		}
		t.inputs = fmt.Sprintf("Only its beginning can be replayed: %v.\n", err)
		return false
	}
	return t.addInputs(part.Data)
}

func (t *tracing) addInputs(part []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.trace.Inputs(part) {
		t.inputs = "Only its beginning can be replayed: there was no room for more inputs.\n"
		return false
	}
	return true
}
