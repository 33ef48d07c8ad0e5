package main

import (
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
func runBatch(set *flag.FlagSet, args []string, in io.Reader, out io.Writer) error {
	var o options
	o.register(set, 40*time.Millisecond, "block")
	depth := set.Int("depth", 64, "keep this `number` of kernels queued")
	if err := parse(set, args); err != nil {
		return err
	}
	if *depth < 1 {
		return usageError{fmt.Errorf("--depth %d: want at least 1", *depth)}
	}
	go quitAtEnd(in, nil)
	g, err := o.open()
	if err != nil {
		return err
	}
	kernel, shape, err := g.kernel(&o, true)
	if err != nil {
		return err
	}
	q := &queue{g: g, kernel: kernel, start: time.Now()}
	if err := q.fill(*depth); err != nil {
		return err
	}
	if err := q.next(); err != nil { // one kernel is done: the queue runs
		return err
	}
	to := bench.NewWriter(out)
	if err := g.ready(to, &bench.Calibration{Full: shape}); err != nil {
		return err
	}
	go q.sendProgress(to)
	for {
		if err := q.next(); err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
	}
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

// fill queues depth kernels.
func (q *queue) fill(depth int) error {
	for range depth {
		e, err := q.g.ctx.NewEvent(false)
		if err == nil {
			err = q.launch(e)
		}
		if err != nil {
			return err
		}
		q.events = append(q.events, e)
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
		done, last := q.done.Load(), time.Duration(q.last.Load())
		at := time.Since(q.start)
		p := &bench.Progress{At: at, Done: done, Idle: at - last}
		if err := to.Send(bench.Message{Progress: p}); err != nil {
			os.Exit(0)
		}
	}
}
