package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/cuda"
)

// progressEvery is how often a batch client sends its progress.
const progressEvery = 100 * time.Millisecond

// runBatch keeps kernels queued until it reads "quit".
func runBatch(args []string, in io.Reader, out io.Writer) error {
	set := flag.NewFlagSet("be", flag.ContinueOnError)
	var o options
	o.register(set, 40*time.Millisecond, "block")
	depth := set.Int("depth", 64, "keep this `number` of kernels queued")
	if err := parse(set, args); err != nil {
		return err
	}
	if *depth < 1 {
		return usageError{fmt.Errorf("--depth %d: want at least 1", *depth)}
	}
	if err := dieWithParent(); err != nil {
		return err
	}
	quitAtEnd(in, nil)
	g, err := openGPU(o.device, o.sync)
	if err != nil {
		return err
	}
	kernel, shape, err := g.kernel(&o, true)
	if err != nil {
		return err
	}
	q, err := newQueue(g, kernel, *depth)
	if err != nil {
		return err
	}
	if err := q.fill(); err != nil {
		return err
	}
	if err := q.next(); err != nil { // one kernel is done: the queue runs
		return err
	}
	m, err := g.ready()
	if err != nil {
		return err
	}
	m.Calibration = &bench.Calibration{Full: shape}
	to := bench.NewWriter(out)
	if err := to.Send(m); err != nil {
		return err
	}
	go q.sendProgress(to)
	for {
		if err := q.next(); err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
	}
}

// quitAtEnd reads lines, sends them to lines if that is not nil, and exits at "quit"
// or the end of the input. It exits at once, without waiting for the GPU, so that a
// paused process can be stopped.
func quitAtEnd(in io.Reader, lines chan<- string) {
	go func() {
		for input := bufio.NewScanner(in); input.Scan() && input.Text() != "quit"; {
			if lines != nil {
				lines <- input.Text()
			}
		}
		os.Exit(0)
	}()
}

// queue is the kernels in flight, each followed by an event.
type queue struct {
	g      *gpu
	kernel *cuda.Kernel
	events []*cuda.Event // a ring
	oldest int           // index in events
	start  time.Time
	done   atomic.Int64
	last   atomic.Int64 // ns from start to the latest completion
}

func newQueue(g *gpu, kernel *cuda.Kernel, depth int) (*queue, error) {
	q := &queue{g: g, kernel: kernel, start: time.Now()}
	for range depth {
		e, err := g.ctx.NewEvent(false)
		if err != nil {
			return nil, err
		}
		q.events = append(q.events, e)
	}
	return q, nil
}

func (q *queue) fill() error {
	for _, e := range q.events {
		if err := q.launch(e); err != nil {
			return err
		}
	}
	return nil
}

func (q *queue) launch(e *cuda.Event) error {
	if err := q.kernel.Launch(q.g.stream); err != nil {
		return err
	}
	return e.Record(q.g.stream)
}

// next waits for the oldest kernel, counts it, and queues another.
func (q *queue) next() error {
	e := q.events[q.oldest]
	if err := e.Synchronize(); err != nil {
		return err
	}
	q.last.Store(int64(time.Since(q.start)))
	q.done.Add(1)
	q.oldest = (q.oldest + 1) % len(q.events)
	return q.launch(e)
}

// sendProgress sends the progress until the reader closes the pipe.
func (q *queue) sendProgress(to *bench.Writer) {
	for range time.Tick(progressEvery) {
		p := &bench.Progress{Done: q.done.Load()}
		last := time.Duration(q.last.Load())
		p.At = time.Since(q.start)
		p.Idle = p.At - last
		if err := to.Send(bench.Message{Progress: p}); err != nil {
			os.Exit(0)
		}
	}
}
