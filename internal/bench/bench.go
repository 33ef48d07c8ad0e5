// Package bench measures what giveway gives on a real GPU: the same processes
// alone, shared as the vendor does it, and under giveway, in one run. It starts
// workload clients, tells a controller what they are, and sums up what they
// measured. It touches no GPU and no driver itself; the clients do.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Controller is the way to giveway.
type Controller interface {
	Set(pid int, class string, weight int) error
	Pause(pid int) error
	Resume(pid int) error
	Close() error
}

// Config is what a run needs to know. Client is required.
type Config struct {
	Client     []string      // giveway-bench, and words before the subcommand if any
	Controller Controller    // nil measures alone and native only
	Python     string        // python3
	Device     int           // as CUDA counts
	Length     time.Duration // of a measurement; 5 s
	Settle     time.Duration // before one, after a change; 500 ms
	Log        io.Writer     // a line as each phase is measured; nil for none
	Save       func(*Result) // called after each case, so that a broken run leaves something
}

func (c Config) withDefaults() Config {
	if c.Python == "" {
		c.Python = "python3"
	}
	if c.Length == 0 {
		c.Length = 5 * time.Second
	}
	if c.Settle == 0 {
		c.Settle = 500 * time.Millisecond
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	return c
}

// harness is one run.
type harness struct {
	Config
	calibration Calibration
	script      string // the Python client, written out
	noTorch     string // why it cannot run
}

// Run measures the cases. A case that fails says so in the result and the next one
// is run; the error is of what no case can do without, or joins those of the cases.
func Run(ctx context.Context, config Config, cases []Case) (*Result, error) {
	h := &harness{Config: config.withDefaults()}
	result := &Result{Started: time.Now().UTC(), Seconds: h.Length.Seconds(), Machine: thisMachine()}
	if err := h.calibrate(ctx, result); err != nil {
		return result, err
	}
	dir, err := os.MkdirTemp("", "giveway-bench-")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	var failed []error
	for _, c := range cases {
		if c.Torch && h.script == "" {
			if err := h.prepareTorch(ctx, dir, result); err != nil {
				return result, err
			}
		}
		r := h.measure(ctx, c)
		if r.Error != "" {
			failed = append(failed, fmt.Errorf("case %s: %s", c.Name, r.Error))
		}
		result.Cases = append(result.Cases, r)
		if h.Save != nil {
			h.Save(result)
		}
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
	}
	return result, errors.Join(failed...)
}

// calibrate runs the kernels on the idle GPU, once for all clients: later the GPU
// is not idle.
func (h *harness) calibrate(ctx context.Context, result *Result) error {
	argv := append(append([]string{}, h.Client...), "calibrate", "--device", fmt.Sprint(h.Device))
	m, err := ask(ctx, argv, startWithin)
	if err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	if m.Calibration == nil || m.Calibration.Full == nil || m.Calibration.Tiny == nil {
		return errors.New("calibrate: the client told no calibration")
	}
	h.calibration = *m.Calibration
	result.Calibration = h.calibration
	result.Machine.GPU, result.Machine.UUID, result.Machine.CUDA = m.GPU, m.UUID, m.CUDA
	for _, s := range []*Shape{h.calibration.Full, h.calibration.Tiny} {
		fmt.Fprintf(h.Log, "calibrated: %d blocks, %.3f ns an iteration, launch %.1f us, residual %.1f %%\n",
			s.Blocks, s.NsPerIteration, s.OverheadUs, 100*s.Residual)
		if s.Residual > 0.05 {
			fmt.Fprintf(h.Log, "warning: the times do not lie on a line: is something else running on the GPU?\n")
		}
	}
	return nil
}

// argv is the command line of a client.
func (h *harness) argv(c Case, l Load, kind string) []string {
	var argv []string
	if c.Torch {
		argv = []string{h.Python, "-u", h.script, kind}
	} else {
		argv = append(append(argv, h.Client...), kind)
	}
	argv = append(argv, l.Args...)
	argv = append(argv, "--device", fmt.Sprint(h.Device))
	shape := h.calibration.Full
	if kind == "lc" {
		shape = h.calibration.Tiny
		argv = append(argv, "--wait", "--seconds", fmt.Sprint(h.Length.Seconds()))
	}
	if !c.Torch {
		argv = append(argv, "--ns-per-iteration", fmt.Sprint(shape.NsPerIteration))
	}
	return argv
}
