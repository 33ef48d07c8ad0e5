package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/cuda"
	"github.com/giveway/giveway/internal/stats"
)

// online is the flags of an online client.
type online struct {
	options
	alone        time.Duration
	after, every time.Duration
	poisson      string
	seed         uint64
	seconds      float64
	kernels      int
	gap          time.Duration
	lead         time.Duration
	announce     time.Duration
	parked       int
	each         bool
	hints        bool
	awake        bool
	wait         bool
}

func (o *online) register(set *flag.FlagSet) {
	o.options.register(set, 28*time.Microsecond, "spin")
	set.DurationVar(&o.alone, "alone", 0, "shorten the kernel until a request takes this `time` alone; the GPU must be idle")
	set.DurationVar(&o.after, "after", 0, "closed loop: send a request this `time` after each answer")
	set.DurationVar(&o.every, "every", 0, "open loop: requests arrive with this `period`")
	set.StringVar(&o.poisson, "poisson", "", "open loop: requests arrive at random with this `rate`, such as 200/s")
	set.Uint64Var(&o.seed, "seed", 1, "`seed` of the random arrivals")
	set.Float64Var(&o.seconds, "seconds", 10, "`length` of the run in seconds")
	set.IntVar(&o.kernels, "kernels", 1, "`number` of kernels in a request")
	set.DurationVar(&o.gap, "gap", 0, "`time` between two launches of a request")
	set.IntVar(&o.parked, "parked", 0, "`number` of waiting kernels to put on the GPU before a request (2 are enough to keep it)")
	set.DurationVar(&o.lead, "lead", 0, "`time` between these kernels and the request")
	set.DurationVar(&o.announce, "announce", 0, "hint each request to the daemon this `time` before it arrives")
	set.BoolVar(&o.each, "each", false, "wait for each kernel of a request before launching the next")
	set.BoolVar(&o.hints, "tell", false, "hint the beginning and end of each request to the daemon")
	set.BoolVar(&o.awake, "awake", false, "spin between requests, so that the CPU is awake when one arrives")
	set.BoolVar(&o.wait, "wait", false, "run each time that \"start\" is read, not once at the beginning")
}

// arrivals returns the arrivals. Exactly one of three flags gives them.
func (o *online) arrivals() (bench.Arrivals, error) {
	given := 0
	for _, is := range []bool{o.after > 0, o.every > 0, o.poisson != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return bench.Arrivals{}, errors.New("give one of --after, --every and --poisson")
	case o.announce > 0 && o.parked > 0:
		return bench.Arrivals{}, errors.New("--announce and --parked exclude each other")
	case o.kernels < 1:
		return bench.Arrivals{}, fmt.Errorf("--kernels %d: want at least 1", o.kernels)
	case !(o.seconds > 0) || o.seconds > 86400:
		return bench.Arrivals{}, fmt.Errorf("--seconds %g: want more than 0 and at most 86400", o.seconds)
	case o.after > 0:
		return bench.After(o.after), nil
	case o.every > 0:
		return bench.Every(o.every), nil
	}
	rate, err := strconv.ParseFloat(strings.TrimSuffix(o.poisson, "/s"), 64)
	if err != nil || !(rate > 0) || math.IsInf(rate, 0) {
		return bench.Arrivals{}, fmt.Errorf("--poisson %q: want a rate such as 200/s", o.poisson)
	}
	return bench.Poisson(rate, o.seed), nil
}

// runOnline serves requests and sends their latencies.
func runOnline(args []string, in io.Reader, out io.Writer) error {
	set := flag.NewFlagSet("lc", flag.ContinueOnError)
	var o online
	o.register(set)
	if err := parse(set, args); err != nil {
		return err
	}
	if _, err := o.arrivals(); err != nil {
		return usageError{err}
	}
	if err := dieWithParent(); err != nil {
		return err
	}
	lines := make(chan string, 16)
	if o.wait {
		quitAtEnd(in, lines)
	}
	g, err := openGPU(o.device, o.sync)
	if err != nil {
		return err
	}
	kernel, shape, err := g.kernel(&o.options, false)
	if err != nil {
		return err
	}
	r, err := newRequest(g, kernel, &o)
	if err == nil && o.alone > 0 {
		err = r.shorten(&o, shape)
	}
	if err != nil {
		return err
	}
	m, err := g.ready()
	if err != nil {
		return err
	}
	m.Calibration = &bench.Calibration{Tiny: shape}
	to := bench.NewWriter(out)
	if err := to.Send(m); err != nil {
		return err
	}
	if !o.wait {
		return serve(r, &o, to)
	}
	for line := range lines {
		if line != "start" {
			return fmt.Errorf("read %q: want start or quit", line)
		}
		if err := serve(r, &o, to); err != nil {
			return err
		}
	}
	return nil
}

// serve does one run. Garbage collection is off: its pauses would count as latency.
func serve(r *request, o *online, to *bench.Writer) error {
	arrivals, err := o.arrivals()
	if err != nil {
		return err
	}
	job := bench.Job{Do: r.do, Lead: o.lead}
	switch {
	case len(r.parked) > 0:
		job.Hint = r.park
	case o.announce > 0:
		job.Lead = o.announce
		if job.Hint, err = announcer(o.announce); err != nil {
			return err
		}
	}
	length := time.Duration(o.seconds * float64(time.Second))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	clock := bench.NewWallClock()
	clock.Awake = o.awake
	served, err := bench.Serve(clock, arrivals, job, length, length)
	if err != nil {
		return fmt.Errorf("after %d requests: %w", len(served.Latencies), err)
	}
	a := &bench.Answered{Unanswered: served.Unanswered, Took: served.Took, SamplesUs: []float64{}}
	if o.poisson != "" {
		a.Seed = o.seed
	}
	for _, l := range served.Latencies {
		a.SamplesUs = append(a.SamplesUs, float64(l.Nanoseconds())/1e3)
	}
	return to.Send(bench.Message{PID: os.Getpid(), Answered: a})
}

// request is the GPU work of a request.
type request struct {
	g      *gpu
	kernel *cuda.Kernel
	count  int
	gap    time.Duration
	each   bool
	hint   hintFunc // nil: no hints
	word   *cuda.Word
	parked []*cuda.Kernel
}

// parkedTimeout is when a parked kernel ends without its request.
const parkedTimeout = 50 * time.Millisecond

// newRequest makes a request and runs it 20 times, so that one-time costs are not
// measured.
func newRequest(g *gpu, kernel *cuda.Kernel, o *online) (*request, error) {
	r := &request{g: g, kernel: kernel, count: o.kernels, gap: o.gap, each: o.each}
	if o.hints {
		var err error
		if r.hint, err = newHint(); err != nil {
			return nil, err
		}
	}
	if o.parked > 0 {
		var err error
		if r.word, err = g.ctx.NewWord(); err != nil {
			return nil, err
		}
	}
	for range o.parked {
		r.parked = append(r.parked, g.mod.Parked(r.word, parkedTimeout))
	}
	for range 20 {
		if err := r.park(); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		if err := r.do(); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	return r, nil
}

// shorten shortens the kernel until a request takes o.alone on the idle GPU. The time
// that the host adds to a kernel differs between machines.
func (r *request) shorten(o *online, shape *bench.Shape) error {
	const pause, length, shortest = 5 * time.Millisecond, 500 * time.Millisecond, 2 * time.Microsecond
	clock := bench.NewWallClock()
	clock.Awake = o.awake
	alone, err := bench.Serve(clock, bench.After(pause), bench.Job{Do: r.do}, length, length)
	if err != nil || len(alone.Latencies) == 0 {
		return errors.Join(err, errors.New("shorten the kernel: no request was answered"))
	}
	median := stats.Summarize(alone.Latencies).P50
	shorter := o.options
	shorter.nsPer = shape.NsPerIteration
	shorter.kernel = max(shortest, min(o.kernel, o.kernel-(median-o.alone)))
	r.kernel, _, err = r.g.kernel(&shorter, false)
	return err
}

// park launches kernels that wait for a word, so that the GPU switches to this process
// before the request. One kernel is not enough: with nothing queued behind it, the
// channel group looks idle.
func (r *request) park() error {
	if len(r.parked) == 0 {
		return nil
	}
	r.word.Set(0)
	for _, k := range r.parked {
		if err := k.Launch(r.g.stream); err != nil {
			return err
		}
	}
	return nil
}

// do serves one request, with hints if they are on.
func (r *request) do() error {
	if r.hint == nil {
		return r.work()
	}
	return errors.Join(r.hint(hintBegin, 1), r.work(), r.hint(hintEnd, 1))
}

// work launches all kernels, with the gap between them, and waits for the last.
func (r *request) work() error {
	clock := bench.NewWallClock()
	for i := range r.count {
		if i > 0 && r.each {
			if err := r.g.stream.Synchronize(); err != nil {
				return err
			}
		}
		if i > 0 && r.gap > 0 {
			clock.Until(clock.Now() + r.gap)
		}
		if err := r.kernel.Launch(r.g.stream); err != nil {
			return err
		}
		if i == 0 && r.word != nil {
			r.word.Set(1)
		}
	}
	return r.g.stream.Synchronize()
}

// Kinds of hints, as GW_HINT_... in shim/abi.h.
const (
	hintExpect = 7
	hintBegin  = 9
	hintEnd    = 10
)

// hintFunc gives the daemon a hint through the preloaded library.
type hintFunc func(kind uint32, value int64) error

func newHint() (hintFunc, error) {
	hint, err := cuda.Preloaded("giveway_hint")
	if err != nil {
		return nil, err
	}
	return func(kind uint32, value int64) error {
		if hint(uintptr(kind), uintptr(value)) != 0 {
			return errors.New("give a hint: the daemon does not run")
		}
		return nil
	}, nil
}

// announcer returns a function that hints a request that arrives ahead later.
func announcer(ahead time.Duration) (func() error, error) {
	hint, err := newHint()
	if err != nil {
		return nil, err
	}
	return func() error { return hint(hintExpect, int64(monotonic()+ahead)) }, nil
}
