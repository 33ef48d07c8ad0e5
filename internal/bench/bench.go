// Package bench measures Giveway on a real GPU: the same processes alone, sharing
// the GPU natively, and sharing it under the daemon, in one run. It starts workload
// processes (clients), sets their class with the giveway program, and summarizes what
// they measured. Only the clients use the GPU and its driver.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/progress"
)

// Config configures a run. Client is required.
type Config struct {
	Client  []string // command line of giveway-bench, without the subcommand
	Giveway Giveway  // nil: measure only without the daemon
	RunWith []string // command line of giveway run, without its flags
	// Ask runs giveway with arguments and returns what it prints; nil: phases lack what only
	// the daemon knows.
	Ask     func(args ...string) []byte
	Python  string        // default python3
	Runtime string        // of the clients: cuda, hip or auto (default)
	Device  int           // the runtime's index of the GPU
	Length  time.Duration // of a measurement; default 5 s
	Settle  time.Duration // between a change and the measurement; default 500 ms
	Adapt   time.Duration // more time for the daemon to learn how the clients behave; default 1 s
	Log     io.Writer     // one line for each phase; nil: none
	// Progress shows what is being measured; may be nil.
	Progress *progress.Line
	Save     func(*Result) // called after each case, so that a failed run leaves a result

	// Traces is an existing folder for the daemon's trace of each phase; empty: none are kept.
	Traces string

	MPSControl string // NVIDIA's program that controls MPS; empty: do not measure with MPS
}

// harness is one run.
type harness struct {
	Config
	calibration Calibration
	torch       *torchCheck // nil: no case has needed it
	uuid        string      // of the GPU
	hip         bool        // the GPU is AMD's
	cases, done int         // cases of the run; cases measured
}

// Run measures the cases. After a case that fails it goes on with the next. The
// error joins those of the cases, or is one that stops all cases.
func Run(ctx context.Context, config Config, cases []Case) (*Result, error) {
	config.Runtime = cmp.Or(config.Runtime, "auto")
	config.Python = cmp.Or(config.Python, "python3")
	config.Length = cmp.Or(config.Length, 5*time.Second)
	config.Settle = cmp.Or(config.Settle, 500*time.Millisecond)
	config.Adapt = cmp.Or(config.Adapt, time.Second)
	config.Log = cmp.Or(config.Log, io.Discard)
	h := &harness{Config: config, cases: len(cases)}
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
		if c.Torch && h.torch == nil {
			if h.torch, err = h.checkTorch(ctx, dir); err != nil {
				return result, err
			}
		}
		r := h.measure(ctx, c)
		if c.Torch && h.torch.cannotRun() == "" {
			result.Machine.PyTorch = h.torch.version
		}
		if r.Error != "" {
			failed = append(failed, fmt.Errorf("case %s: %s", c.Name, r.Error))
		}
		result.Cases = append(result.Cases, r)
		h.done++
		if h.Save != nil {
			h.Save(result)
		}
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
	}
	return result, errors.Join(failed...)
}

// showProgress shows what is being done for a case.
func (h *harness) showProgress(c Case, doing string) {
	part := float64(h.done) / float64(h.cases)
	h.Progress.Set(fmt.Sprintf("case %d of %d, %s: %s", h.done+1, h.cases, c.Name, doing), func() float64 { return part })
}

// calibrate measures the kernels for all clients, while the GPU is still idle.
func (h *harness) calibrate(ctx context.Context, result *Result) error {
	h.Progress.Set("measuring how long the kernels take", nil)
	argv := slices.Concat(h.Client, []string{"calibrate", "--runtime", h.Runtime, "--device", fmt.Sprint(h.Device)})
	cl, m, err := startClient(ctx, clientOptions{name: argv[0], argv: argv, timeout: startTimeout})
	if err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	cl.stop()
	if m.Calibration == nil || m.Calibration.Full == nil || m.Calibration.Tiny == nil {
		return errors.New("calibrate: the client sent no calibration")
	}
	h.calibration, h.uuid = *m.Calibration, m.UUID
	result.Calibration = h.calibration
	result.Machine.describe(m)
	if h.hip = m.HIP != ""; h.hip {
		h.Runtime = "hip"
	} else {
		h.Runtime = "cuda"
	}
	for _, s := range []*Shape{h.calibration.Full, h.calibration.Tiny} {
		fmt.Fprintf(h.Log, "calibrated: %d blocks, %.3f ns per iteration, launch %.1f us, residual %.1f%%\n",
			s.Blocks, s.NsPerIteration, s.OverheadUs, 100*s.Residual)
		if s.Residual > 0.05 {
			fmt.Fprintf(h.Log, "warning: the times are not proportional to the iterations: does another process use the GPU?\n")
		}
	}
	return nil
}

// argv returns the command line of a client. It waits for a command to begin.
func (h *harness) argv(c Case, l Load, online bool) []string {
	program, kind, shape := h.Client, "be", h.calibration.Full
	if c.Torch {
		program = []string{h.Python, "-u", h.torch.script}
	}
	if online {
		kind, shape = "lc", h.calibration.Tiny
	}
	argv := slices.Concat(program, []string{kind}, l.Args, []string{"--wait", "--device", fmt.Sprint(h.Device)})
	if online {
		argv = append(argv, "--seconds", fmt.Sprint(h.length(c).Seconds()))
	}
	if c.Torch {
		return append(argv, "--lock", h.torch.script+".lock")
	}
	return append(argv, "--runtime", h.Runtime, "--ns-per-iteration", fmt.Sprint(shape.NsPerIteration))
}
