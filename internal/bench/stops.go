package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/stats"
)

// StopWay is one way to stop the queues of a process and to start them again.
type StopWay struct {
	Name, About string
	// Open prepares a process. The error says why the way does not work here.
	Open func(pid int) (Stopper, error)
}

// Stopper stops and starts the queues of one process.
type Stopper interface {
	Len() int // queues
	Stop() error
	Start() error
	Close() error
}

// StopsConfig configures a comparison of ways to stop queues. Client and Ways are
// required.
type StopsConfig struct {
	Client  []string
	Runtime string
	Device  int
	Ways    []StopWay
	Queues  []int         // numbers of queues of the batch process; default 1, 2, 10, 64
	Rounds  int           // stops of each way and number; default 200
	Kernel  time.Duration // of the batch process, which is stopped in the middle of one; default 20 ms
	Log     io.Writer
}

// StopsResult is the result of a comparison.
type StopsResult struct {
	Started time.Time  `json:"started"`
	Machine Machine    `json:"machine"`
	Driver  string     `json:"driver"` // of the queues
	Rounds  int        `json:"rounds"`
	Rows    []StopsRow `json:"rows"`
}

// StopsRow is the times of one way with a number of queues.
type StopsRow struct {
	Way   string `json:"way"`
	Asked int    `json:"asked_queues"`
	// Queues is the number of hardware queues that the process had.
	Queues  int            `json:"queues"`
	Stop    *stats.Summary `json:"stop,omitempty"` // of all queues
	Start   *stats.Summary `json:"start,omitempty"`
	Skipped string         `json:"skipped,omitempty"`
	// Stopped reports whether no kernel ended while the queues were stopped, and Resumed
	// whether kernels ended again after the start.
	Stopped bool `json:"stopped"`
	Resumed bool `json:"resumed"`
}

// CompareStops measures each way for each number of queues. A way that does not work here
// is left out with the reason.
func CompareStops(ctx context.Context, c StopsConfig) (*StopsResult, error) {
	if len(c.Queues) == 0 {
		c.Queues = []int{1, 2, 10, 64}
	}
	if c.Rounds == 0 {
		c.Rounds = 200
	}
	if c.Kernel == 0 {
		c.Kernel = 20 * time.Millisecond
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	r := &StopsResult{Started: time.Now().UTC(), Machine: thisMachine(), Rounds: c.Rounds}
	var errs []error
	for _, n := range c.Queues {
		cl, m, err := c.start(ctx, n)
		if err != nil {
			return r, errors.Join(append(errs, err)...)
		}
		r.Machine.describe(m)
		for _, way := range c.Ways {
			row, err := c.measure(ctx, cl, way, n)
			if err != nil {
				row.Skipped = err.Error()
				errs = append(errs, fmt.Errorf("%s, %s: %w", way.Name, format.Plural(n, "queue"), err))
			}
			r.Rows = append(r.Rows, row)
			fmt.Fprintln(c.Log, row.line())
		}
		cl.stop()
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
	}
	return r, errors.Join(errs...)
}

// start starts a batch process with so many streams, each on a hardware queue of its own.
func (c *StopsConfig) start(ctx context.Context, n int) (*client, Message, error) {
	argv := slices.Concat(c.Client, []string{
		"be", "--runtime", c.Runtime, "--device", fmt.Sprint(c.Device), "--streams", fmt.Sprint(n), "--depth", "2", "--kernel", c.Kernel.String(),
	})
	env := append(os.Environ(), fmt.Sprintf("GPU_MAX_HW_QUEUES=%d", n))
	return startClient(ctx, clientOptions{name: "batch", argv: argv, env: env, timeout: startTimeout})
}

// measure stops and starts the queues of a process c.Rounds times.
func (c *StopsConfig) measure(ctx context.Context, cl *client, way StopWay, n int) (StopsRow, error) {
	row := StopsRow{Way: way.Name, Asked: n}
	s, err := way.Open(cl.pid)
	if err != nil {
		row.Skipped = err.Error()
		return row, nil // the driver does not offer it: not a failure of the measurement
	}
	defer s.Close()
	if row.Queues = s.Len(); row.Queues == 0 {
		return row, errors.New("the process has no hardware queue")
	}
	var stops, starts []time.Duration
	timed := func(do func() error, into *[]time.Duration) error {
		begun := time.Now()
		err := do()
		*into = append(*into, time.Since(begun))
		return err
	}
	for range c.Rounds {
		if err := errors.Join(timed(s.Stop, &stops), sleep(ctx, time.Millisecond), timed(s.Start, &starts), sleep(ctx, 5*time.Millisecond)); err != nil {
			return row, err
		}
	}
	stop, start := stats.Summarize(stops), stats.Summarize(starts)
	row.Stop, row.Start = &stop, &start
	if err := s.Stop(); err != nil {
		return row, err
	}
	row.Stopped = cl.rests(ctx, max(time.Second, 8*c.Kernel), 10*time.Second)
	if err := s.Start(); err != nil {
		return row, err
	}
	row.Resumed = cl.advances(ctx, 20*time.Second)
	if !row.Stopped || !row.Resumed {
		return row, fmt.Errorf("the calls succeed, but kernels ended while stopped: %v; kernels ended after the start: %v", !row.Stopped, row.Resumed)
	}
	return row, nil
}

// rests reports whether the client comes to rest: no kernel ends for a while. It may take
// a moment to report those that had ended before.
func (cl *client) rests(ctx context.Context, quiet, within time.Duration) bool {
	last, since := cl.doneSoFar(), time.Now()
	for end := since.Add(within); time.Now().Before(end) && ctx.Err() == nil; _ = sleep(ctx, 10*time.Millisecond) {
		if done := cl.doneSoFar(); done != last {
			last, since = done, time.Now()
		}
		if time.Since(since) > quiet {
			return true
		}
	}
	return false
}

// advances reports whether a kernel of the client ends within a time.
func (cl *client) advances(ctx context.Context, within time.Duration) bool {
	before := cl.doneSoFar()
	for end := time.Now().Add(within); time.Now().Before(end) && ctx.Err() == nil; _ = sleep(ctx, 10*time.Millisecond) {
		if cl.doneSoFar() > before {
			return true
		}
	}
	return false
}

func (cl *client) doneSoFar() int64 {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if len(cl.progress) == 0 {
		return 0
	}
	return cl.progress[len(cl.progress)-1].Done
}

func (r *StopsRow) line() string {
	what := fmt.Sprintf("%s, %s", format.Plural(r.Asked, "queue"), r.Way)
	if r.Skipped != "" {
		return what + ": not measured: " + r.Skipped
	}
	return fmt.Sprintf("%s (%d hardware queues): stop %s; start %s", what, r.Queues, quantiles(r.Stop), quantiles(r.Start))
}

func quantiles(s *stats.Summary) string {
	return fmt.Sprintf("P50 %s, P95 %s, P99 %s, max %s", format.Duration(s.P50), format.Duration(s.P95), format.Duration(s.P99), format.Duration(s.Max))
}

// WriteJSON writes everything.
func (r *StopsResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
