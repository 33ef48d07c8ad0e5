package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/stats"
)

// SoakConfig configures a soak: an online process, and batch processes that come and go,
// under a daemon that runs already. Client, Giveway and RunWith are required.
type SoakConfig struct {
	Client  []string
	Giveway Giveway
	RunWith []string // command line of giveway run, without its flags
	Runtime string
	Device  int
	Length  time.Duration // default 1 h
	Round   time.Duration // of one measurement of the online process; default 5 s
	Batch   int           // batch processes; default 4
	Streams int           // of each; default 8
	Seed    uint64
	// Slots returns how many hardware slots are in use; nil: unknown.
	Slots func() (active, slots int, counted bool, err error)
	Log   io.Writer
}

// SoakResult is what a soak measured.
type SoakResult struct {
	Started    time.Time     `json:"started"`
	Machine    Machine       `json:"machine"`
	Seed       uint64        `json:"seed"`
	Length     time.Duration `json:"length_ns"` // that passed
	Rounds     int           `json:"rounds"`
	Killed     int           `json:"killed"` // batch processes, each replaced by another
	Paused     int           `json:"paused"`
	Latency    stats.Summary `json:"latency"` // of the online process
	Unanswered int           `json:"unanswered"`
	Completed  int64         `json:"completed"` // batch kernels
	// Stalled counts rounds in which a batch process that was neither new nor paused
	// completed nothing.
	Stalled int       `json:"stalled"`
	Slots   *SlotsUse `json:"slots,omitempty"`
	Errors  []string  `json:"errors,omitempty"`
}

// SlotsUse is the use of the hardware slots, sampled.
type SlotsUse struct {
	Slots   int     `json:"slots"`
	Mean    float64 `json:"mean"`    // share of the slots with an active queue
	Counted bool    `json:"counted"` // by the driver; else an upper bound
	Samples int     `json:"samples"`
}

// soak is a soak during its run.
type soak struct {
	SoakConfig
	rng       *rand.Rand
	online    *client
	batch     []*client
	before    []int64 // completions of each batch process when the round began; -1: it is new
	latencies stats.Distribution
	result    SoakResult
}

// Soak runs until the length has passed. It returns an error if it could not go on; what
// went wrong in a round is in the result.
func Soak(ctx context.Context, c SoakConfig) (*SoakResult, error) {
	setDefaults(&c)
	s := &soak{SoakConfig: c, rng: rand.New(rand.NewPCG(c.Seed, 1))}
	s.result = SoakResult{Started: time.Now().UTC(), Machine: thisMachine(), Seed: c.Seed}
	defer func() { stopClients(append(s.batch, s.online)) }()
	if err := s.begin(ctx); err != nil {
		return &s.result, err
	}
	stop := s.sampleSlots(ctx)
	for begun := time.Now(); time.Since(begun) < s.Length && ctx.Err() == nil; s.result.Length = time.Since(begun) {
		if err := s.round(ctx); err != nil {
			s.result.Errors = append(s.result.Errors, fmt.Sprintf("round %d: %v", s.result.Rounds+1, err))
		}
		s.result.Rounds++
		if n := len(s.result.Errors); n > 0 && n == s.result.Rounds && n >= 5 {
			break // nothing works
		}
	}
	stop()
	s.result.Latency = s.latencies.Summary()
	return &s.result, ctx.Err()
}

func setDefaults(c *SoakConfig) {
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&c.Length, time.Hour}, {&c.Round, 5 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	if c.Batch == 0 {
		c.Batch = 4
	}
	if c.Streams == 0 {
		c.Streams = 8
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
}

// begin starts the processes and sets their classes.
func (s *soak) begin(ctx context.Context) (err error) {
	gpu := []string{"--runtime", s.Runtime, "--device", fmt.Sprint(s.Device)}
	// The online process has the shim: where the driver does not say whether a process has
	// work, other processes are not stopped for one without.
	argv := slices.Concat(s.RunWith, []string{"--class", "online", "--priority", "1", "--"}, s.Client, []string{
		"lc", "--kernel", "1ms", "--every", "50ms", "--wait", "--seconds", fmt.Sprint(s.Round.Seconds()),
	}, gpu)
	var m Message
	if s.online, m, err = startClient(ctx, clientOptions{name: "online", argv: argv, timeout: startTimeout}); err != nil {
		return err
	}
	s.result.Machine.describe(m)
	for range s.Batch {
		cl, err := s.startBatch(ctx)
		if err != nil {
			return err
		}
		s.batch, s.before = append(s.batch, cl), append(s.before, -1)
	}
	return nil
}

func (s *soak) startBatch(ctx context.Context) (*client, error) {
	argv := slices.Concat(s.Client, []string{
		"be", "--runtime", s.Runtime, "--device", fmt.Sprint(s.Device), "--kernel", "5ms", "--depth", "4", "--streams", fmt.Sprint(s.Streams),
		"--ns-per-iteration", "10", // any length does: nothing is compared with it
	})
	env := append(os.Environ(), fmt.Sprintf("GPU_MAX_HW_QUEUES=%d", s.Streams))
	cl, _, err := startClient(ctx, clientOptions{name: "batch", argv: argv, env: env, timeout: startTimeout})
	if err != nil {
		return nil, err
	}
	return cl, s.setBatch(ctx, cl)
}

// setBatch sets the class, and tries again while the daemon does not know the process yet.
func (s *soak) setBatch(ctx context.Context, cl *client) error {
	for end := time.Now().Add(10 * time.Second); ; _ = sleep(ctx, 100*time.Millisecond) {
		err := s.Giveway("set", cl.pid, "--class", "batch")
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
	}
}

// round measures the online process once. Before, it kills and replaces a batch process,
// pauses one for the round, or does nothing.
func (s *soak) round(ctx context.Context) error {
	var errs []error
	for i, cl := range s.batch {
		s.before[i] = cl.doneSoFar()
	}
	at, paused := s.rng.IntN(len(s.batch)), -1
	switch s.rng.IntN(3) {
	case 0:
		s.result.Completed += s.batch[at].doneSoFar()
		s.batch[at].kill()
		cl, err := s.startBatch(ctx)
		if cl == nil {
			return fmt.Errorf("replace a batch process: %w", err)
		}
		s.batch[at], s.before[at] = cl, -1
		s.result.Killed++
		errs = append(errs, err)
	case 1:
		paused = at
		errs = append(errs, s.Giveway("pause", s.batch[at].pid))
		s.result.Paused++
	}
	if err := s.online.send("start"); err != nil {
		return errors.Join(append(errs, err)...)
	}
	a, err := s.online.samples(ctx, s.Round+grace)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, us := range a.SamplesUs {
		s.latencies.Add(time.Duration(us * 1e3))
	}
	s.result.Unanswered += a.Unanswered
	if paused >= 0 {
		errs = append(errs, s.Giveway("resume", s.batch[paused].pid))
	}
	for i, cl := range s.batch {
		if s.before[i] >= 0 && i != paused && cl.doneSoFar() == s.before[i] {
			s.result.Stalled++
		}
		select {
		case <-cl.ended:
			errs = append(errs, cl.error("ended"))
		default:
		}
	}
	return errors.Join(errs...)
}

// sampleSlots samples the use of the slots until the returned function is called.
func (s *soak) sampleSlots(ctx context.Context) (stop func()) {
	if s.Slots == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done, use, sum := make(chan struct{}), &SlotsUse{}, 0.0
	go func() {
		defer close(done)
		for sleep(ctx, 50*time.Millisecond) == nil {
			active, slots, counted, err := s.Slots()
			if err != nil || slots == 0 {
				continue
			}
			use.Slots, use.Counted, use.Samples = slots, counted, use.Samples+1
			sum += float64(active) / float64(slots)
		}
	}()
	return func() {
		cancel()
		<-done
		if use.Samples > 0 {
			use.Mean = sum / float64(use.Samples)
			s.result.Slots = use
		}
	}
}

// WriteJSON writes everything.
func (r *SoakResult) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

// WriteTable writes the result as text.
func (r *SoakResult) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s; soak of %s, seed %d: %d rounds, %d batch processes killed, %d paused\n",
		strings.Join(r.Machine.labels(), "; "), r.Length.Round(time.Second), r.Seed, r.Rounds, r.Killed, r.Paused)
	fmt.Fprintf(w, "  online: %d requests, %s; %d unanswered\n", r.Latency.Count, quantiles(&r.Latency), r.Unanswered)
	fmt.Fprintf(w, "  batch: in %d cases a process completed nothing in a round\n", r.Stalled)
	if u := r.Slots; u != nil {
		kind := "an upper bound: queues that exist, from sysfs"
		if u.Counted {
			kind = "counted by the driver"
		}
		fmt.Fprintf(w, "  HQD slots in use: %s of %d (%s)\n", format.Percent(u.Mean), u.Slots, kind)
	}
	for _, e := range r.Errors {
		fmt.Fprintf(w, "  ERROR %s\n", e)
	}
	return nil
}
