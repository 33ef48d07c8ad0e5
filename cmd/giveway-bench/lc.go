package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/stats"
)

// online is the flags of an online client.
type online struct {
	options
	after, every, alone, gap, lead, announce time.Duration
	poisson                                  string
	seed                                     uint64
	seconds                                  float64
	kernels, park                            int
	each, tell, awake, wait                  bool
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
	set.IntVar(&o.park, "parked", 0, "`number` of waiting kernels to put on the GPU before a request (2 are enough to keep it)")
	set.DurationVar(&o.lead, "lead", 0, "`time` between these kernels and the request")
	set.DurationVar(&o.announce, "announce", 0, "hint each request to the daemon this `time` before it arrives")
	set.BoolVar(&o.each, "each", false, "wait for each kernel of a request before launching the next")
	set.BoolVar(&o.tell, "tell", false, "hint the beginning and end of each request to the daemon")
	set.BoolVar(&o.awake, "awake", false, "spin between requests, so that the CPU is awake when one arrives")
	set.BoolVar(&o.wait, "wait", false, "run each time that \"start\" is read, not once at the beginning")
}

// arrivals returns when requests arrive. Exactly one of three flags must say it. If
// random is true, requests with a period arrive at random instead, at the same rate.
func (o *online) arrivals(random bool) (a bench.Arrivals, err error) {
	given := 0
	if o.after > 0 {
		a, given = bench.After(o.after), given+1
	}
	if o.every > 0 {
		a, given = bench.Every(o.every), given+1
		if random {
			a = bench.Poisson(1/o.every.Seconds(), o.seed)
		}
	}
	if o.poisson != "" {
		rate, err := strconv.ParseFloat(strings.TrimSuffix(o.poisson, "/s"), 64)
		if err != nil || !(rate > 0) || math.IsInf(rate, 0) {
			return a, fmt.Errorf("--poisson %q: want a rate such as 200/s", o.poisson)
		}
		a, given = bench.Poisson(rate, o.seed), given+1
	}
	switch {
	case given != 1:
		err = errors.New("give one of --after, --every and --poisson")
	case o.announce > 0 && o.park > 0:
		err = errors.New("--announce and --parked exclude each other")
	case o.kernels < 1:
		err = fmt.Errorf("--kernels %d: want at least 1", o.kernels)
	case !(o.seconds > 0) || o.seconds > 86400:
		err = fmt.Errorf("--seconds %g: want more than 0 and at most 86400", o.seconds)
	}
	return a, err
}

// runOnline serves requests and sends their latencies.
func runOnline(set *flag.FlagSet, args []string, in io.Reader, out io.Writer) error {
	var o online
	o.register(set)
	if err := parse(set, args); err != nil {
		return err
	}
	if _, err := o.arrivals(false); err != nil {
		return usageError{err}
	}
	lines := make(chan string, 16)
	if o.wait {
		go quitAtEnd(in, lines)
	}
	g, err := o.open()
	if err != nil {
		return err
	}
	kernel, shape, err := o.newKernel(g, false)
	if err != nil {
		return err
	}
	r, err := newRequest(g, kernel, &o)
	if err == nil && o.alone > 0 {
		err = r.shorten(shape)
	}
	if err != nil {
		return err
	}
	to := bench.NewWriter(out)
	if err := to.Send(o.ready(g, &bench.Calibration{Tiny: shape})); err != nil {
		return err
	}
	if !o.wait {
		return r.serve(to, false)
	}
	for line := range lines {
		if line != "start" && line != startRandom {
			return fmt.Errorf("read %q: want start, %s or quit", line, startRandom)
		}
		if err := r.serve(to, line == startRandom); err != nil {
			return err
		}
	}
	return nil
}

// request is the GPU work of a request.
type request struct {
	o      *online
	g      gpuwork.GPU
	stream gpuwork.Stream
	kernel gpuwork.Kernel
	hint   hintFunc // nil: no hints
	word   *gpuwork.Word
	parked []gpuwork.Kernel
}

// parkedTimeout is when a parked kernel ends without its request.
const parkedTimeout = 50 * time.Millisecond

// newRequest makes a request and runs it 20 times, so that one-time costs are not
// measured.
func newRequest(g gpuwork.GPU, kernel gpuwork.Kernel, o *online) (*request, error) {
	r := &request{o: o, g: g, kernel: kernel}
	var err error
	if r.stream, err = g.NewStream(); err != nil {
		return nil, err
	}
	if o.tell || o.announce > 0 {
		if r.hint, err = newHint(); err != nil {
			return nil, err
		}
	}
	if o.park > 0 {
		if r.word, err = g.NewWord(); err != nil {
			return nil, err
		}
	}
	for range o.park {
		r.parked = append(r.parked, g.Parked(r.word, parkedTimeout))
	}
	for range 20 {
		if err := r.parkKernels(); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		if err := r.do(); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	return r, nil
}

// shorten shortens the kernel until a request takes the time of --alone on the idle GPU.
// The time that the host adds to a kernel differs between machines.
func (r *request) shorten(shape *bench.Shape) error {
	const pause, length, shortest = 5 * time.Millisecond, 500 * time.Millisecond, 2 * time.Microsecond
	alone, err := bench.Serve(bench.NewWallClock(r.o.awake), bench.After(pause), bench.Job{Do: r.do}, length, length)
	if err != nil || len(alone.SamplesUs) == 0 {
		return errors.Join(err, errors.New("shorten the kernel: no request was answered"))
	}
	o := r.o.options
	o.nsPer = shape.NsPerIteration
	slices.Sort(alone.SamplesUs)
	median := time.Duration(stats.Quantile(alone.SamplesUs, 0.5) * 1e3)
	o.kernel = max(shortest, min(o.kernel, o.kernel-(median-r.o.alone)))
	r.kernel, _, err = o.newKernel(r.g, false)
	return err
}

// startRandom is the command for a run with random arrivals.
const startRandom = "start random"

// serve does one run. Garbage collection is off: its pauses would count as latency.
func (r *request) serve(to *bench.Writer, random bool) error {
	arrivals, err := r.o.arrivals(random)
	if err != nil {
		return err
	}
	job := bench.Job{Do: r.do, Lead: r.o.lead}
	switch {
	case r.o.park > 0:
		job.Hint = r.parkKernels
	case r.o.announce > 0:
		job.Lead = r.o.announce
		job.Hint = func() error { return r.hint(pageabi.HintExpect, int64(monotonic()+r.o.announce)) }
	}
	length := time.Duration(r.o.seconds * float64(time.Second))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	a, err := bench.Serve(bench.NewWallClock(r.o.awake), arrivals, job, length, length)
	if err != nil {
		return fmt.Errorf("after %d requests: %w", len(a.SamplesUs), err)
	}
	if r.o.poisson != "" || random {
		a.Seed = r.o.seed
	}
	return to.Send(bench.Message{PID: os.Getpid(), Answered: a})
}

// parkKernels launches kernels that wait for a word, so that the GPU switches to this
// process before the request. One kernel is not enough: with nothing queued behind it,
// the channel group looks idle.
func (r *request) parkKernels() error {
	if r.word != nil {
		r.word.Set(0)
	}
	for _, k := range r.parked {
		if err := k.Launch(r.stream); err != nil {
			return err
		}
	}
	return nil
}

// do serves one request, with hints if --tell is given.
func (r *request) do() error {
	if !r.o.tell {
		return r.work()
	}
	return errors.Join(r.hint(pageabi.HintBegin, 1), r.work(), r.hint(pageabi.HintEnd, 1))
}

// work launches all kernels, with the gap between them, and waits for the last.
func (r *request) work() error {
	clock := bench.NewWallClock(false)
	for i := range r.o.kernels {
		if i > 0 && r.o.each {
			if err := r.stream.Synchronize(); err != nil {
				return err
			}
		}
		if i > 0 && r.o.gap > 0 {
			clock.Until(clock.Now() + r.o.gap)
		}
		if err := r.kernel.Launch(r.stream); err != nil {
			return err
		}
		if i == 0 && r.word != nil {
			r.word.Set(1)
		}
	}
	return r.stream.Synchronize()
}

// hintFunc gives the daemon a hint through the preloaded library.
type hintFunc func(kind pageabi.HintKind, value int64) error

func newHint() (hintFunc, error) {
	hint, err := clib.Preloaded("giveway_hint")
	if err != nil {
		return nil, err
	}
	return func(kind pageabi.HintKind, value int64) error {
		if hint(uintptr(kind), uintptr(value)) != 0 {
			return errors.New("give a hint: the daemon does not run")
		}
		return nil
	}, nil
}
