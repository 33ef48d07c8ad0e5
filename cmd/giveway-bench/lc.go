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
	"github.com/giveway/giveway/internal/cuda"
)

// online is what an online client is told.
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
	each, tell   bool
	awake        bool
	wait         bool
}

func (o *online) register(set *flag.FlagSet) {
	o.options.register(set, 28*time.Microsecond, "spin")
	set.DurationVar(&o.alone, "alone", 0, "shorten the kernel so that a request takes `that` on a GPU that is idle, as it must be now")
	set.DurationVar(&o.after, "after", 0, "closed loop: `pause` after each answer")
	set.DurationVar(&o.every, "every", 0, "open loop: fixed `period`; late requests queue")
	set.StringVar(&o.poisson, "poisson", "", "open loop: random arrivals at a `rate` such as 200/s")
	set.Uint64Var(&o.seed, "seed", 1, "`number` that the random arrivals follow from")
	set.Float64Var(&o.seconds, "seconds", 10, "`length` of the run")
	set.IntVar(&o.kernels, "kernels", 1, "`number` of kernels in a request")
	set.DurationVar(&o.gap, "gap", 0, "`time` of the host between two launches of a request")
	set.IntVar(&o.parked, "parked", 0, "`number` of waiting kernels put on the GPU ahead of a request (2 hold it)")
	set.DurationVar(&o.lead, "lead", 0, "`time` by which they are ahead")
	set.DurationVar(&o.announce, "announce", 0, "tell giveway of each request, `time` before it comes")
	set.BoolVar(&o.each, "each", false, "wait for each kernel of a request before the next")
	set.BoolVar(&o.tell, "tell", false, "tell giveway when a request begins and ends")
	set.BoolVar(&o.awake, "awake", false, "spin between requests, so that the CPU is awake when one comes")
	set.BoolVar(&o.wait, "wait", false, "run at each \"start\" read, not once at the beginning")
}

// arrivals are as exactly one flag says.
func (o *online) arrivals() (bench.Arrivals, error) {
	said := 0
	for _, is := range []bool{o.after > 0, o.every > 0, o.poisson != ""} {
		if is {
			said++
		}
	}
	switch {
	case said != 1:
		return bench.Arrivals{}, fmt.Errorf("say one of --after, --every and --poisson")
	case o.announce > 0 && o.parked > 0:
		return bench.Arrivals{}, fmt.Errorf("say one of --announce and --parked")
	case o.kernels < 1:
		return bench.Arrivals{}, fmt.Errorf("--kernels %d: at least 1", o.kernels)
	case !(o.seconds > 0) || o.seconds > 86400:
		return bench.Arrivals{}, fmt.Errorf("--seconds %g: more than 0, at most a day", o.seconds)
	case o.after > 0:
		return bench.After(o.after), nil
	case o.every > 0:
		return bench.Every(o.every), nil
	}
	rate, err := strconv.ParseFloat(strings.TrimSuffix(o.poisson, "/s"), 64)
	if err != nil || !(rate > 0) || math.IsInf(rate, 0) {
		return bench.Arrivals{}, fmt.Errorf("--poisson %q: a rate such as 200/s", o.poisson)
	}
	return bench.Poisson(rate, o.seed), nil
}

// answer serves requests and tells how long they took.
func answer(args []string, in io.Reader, out io.Writer) error {
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
	words := make(chan string, 16)
	if o.wait {
		quitAtEnd(in, words)
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
	for word := range words {
		if word != "start" {
			return fmt.Errorf("read %q: start or quit", word)
		}
		if err := serve(r, &o, to); err != nil {
			return err
		}
	}
	return nil
}

// serve is one run. Nothing is collected during it: a pause of ours would be taken
// for one of the GPU's.
func serve(r *request, o *online, to *bench.Writer) error {
	arrivals, err := o.arrivals()
	if err != nil {
		return err
	}
	job := bench.Job{Do: r.do, Lead: o.lead}
	switch {
	case len(r.parked) > 0:
		job.Hint = r.hint
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
	a := &bench.Answered{Unfinished: served.Unfinished, Took: served.Took, SamplesUs: []float64{}}
	if o.poisson != "" {
		a.Seed = o.seed
	}
	for _, l := range served.Latencies {
		a.SamplesUs = append(a.SamplesUs, float64(l.Nanoseconds())/1e3)
	}
	return to.Send(bench.Message{PID: os.Getpid(), Answered: a})
}

// request is the GPU's part of one.
type request struct {
	g      *gpu
	kernel *cuda.Kernel
	count  int
	gap    time.Duration
	each   bool
	tell   func(kind uint32, value int64) error // nil: nobody
	word   *cuda.Word
	parked []*cuda.Kernel
}

// parkedAtMost bounds how long a forgotten kernel holds the GPU.
const parkedAtMost = 50 * time.Millisecond

// newRequest makes one and runs it a few times, so that nothing happens for the
// first time while it is measured.
func newRequest(g *gpu, kernel *cuda.Kernel, o *online) (*request, error) {
	r := &request{g: g, kernel: kernel, count: o.kernels, gap: o.gap, each: o.each}
	if o.tell {
		var err error
		if r.tell, err = teller(); err != nil {
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
		r.parked = append(r.parked, g.mod.Parked(r.word, parkedAtMost))
	}
	for range 20 {
		if err := r.hint(); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		if err := r.do(); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	return r, nil
}

// shorten makes the kernel so short that a request takes what it is to take alone: what
// the host adds to a kernel is not the same on every machine.
func (r *request) shorten(o *online, shape *bench.Shape) error {
	const pause, length, least = 5 * time.Millisecond, 500 * time.Millisecond, 2 * time.Microsecond
	clock := bench.NewWallClock()
	clock.Awake = o.awake
	alone, err := bench.Serve(clock, bench.After(pause), bench.Job{Do: r.do}, length, length)
	if err != nil || len(alone.Latencies) == 0 {
		return errors.Join(err, errors.New("shorten the kernel: nothing was answered"))
	}
	slices.Sort(alone.Latencies)
	shorter := o.options
	shorter.nsPer = shape.NsPerIteration
	shorter.kernel = max(least, min(o.kernel, o.kernel-(alone.Latencies[len(alone.Latencies)/2]-o.alone)))
	r.kernel, _, err = r.g.kernel(&shorter, false)
	return err
}

// hint has the GPU come to this process: kernels that wait for a word. One is not
// enough: while it runs with nothing behind it, the group looks idle.
func (r *request) hint() error {
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

// do is one request, of which giveway is told if it is to be.
func (r *request) do() error {
	if r.tell == nil {
		return r.work()
	}
	return errors.Join(r.tell(hintBegin, 1), r.work(), r.tell(hintEnd, 1))
}

// work launches all kernels, the host's gap between them, and waits for the last.
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

// Kinds of hints: GW_HINT_... of shim/abi.h.
const (
	hintExpect = 7
	hintBegin  = 9
	hintEnd    = 10
)

// teller returns what gives giveway a hint, as the preloaded library takes it.
func teller() (func(kind uint32, value int64) error, error) {
	hint, err := cuda.Preloaded("giveway_hint")
	if err != nil {
		return nil, err
	}
	return func(kind uint32, value int64) error {
		if hint(uintptr(kind), uintptr(value)) != 0 {
			return errors.New("there is no daemon to give a hint to")
		}
		return nil
	}, nil
}

// announcer returns what tells giveway that a request comes that much later.
func announcer(ahead time.Duration) (func() error, error) {
	tell, err := teller()
	if err != nil {
		return nil, err
	}
	return func() error { return tell(hintExpect, int64(monotonic()+ahead)) }, nil
}
