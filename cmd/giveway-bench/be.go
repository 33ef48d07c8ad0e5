package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/gpuwork"
)

// runBatch keeps kernels queued until it reads "quit". With --wait it begins when it
// reads "work", and again after each "rest".
func runBatch(set *flag.FlagSet, args []string, in io.Reader, out io.Writer) error {
	var o options
	o.register(set, 40*time.Millisecond, "block")
	depth := set.Int("depth", 64, "keep this `number` of kernels queued on each stream")
	streams := set.Int("streams", 1, "`number` of streams; HIP maps them to at most GPU_MAX_HW_QUEUES hardware queues")
	wait := set.Bool("wait", false, "begin when \"work\" is read, and queue nothing from \"rest\" to the next \"work\"")
	if err := parse(set, args); err != nil {
		return err
	}
	if *depth < 1 {
		return usageError{fmt.Errorf("--depth %d: want at least 1", *depth)}
	}
	if *streams < 1 || *streams > maxStreams {
		return usageError{fmt.Errorf("--streams %d: want 1 to %d", *streams, maxStreams)}
	}
	lines := make(chan string, 16)
	go quitAtEnd(in, lines)
	g, err := o.open()
	if err != nil {
		return err
	}
	kernel, shape, err := o.newKernel(g, true)
	if err != nil {
		return err
	}
	queues, err := newQueues(g, *streams)
	if err != nil {
		return err
	}
	b, to := &batch{queues, kernel, *depth}, bench.NewWriter(out)
	// Ready means that the queues run, or that they have run and are empty.
	if err := b.fill(); err != nil {
		return err
	}
	if *wait {
		err = b.drain()
	} else {
		err = b.popOldest()
	}
	if err == nil {
		err = to.Send(o.ready(g, &bench.Calibration{Full: shape}))
	}
	if err != nil {
		return err
	}
	go sendProgress(queues[0].completions, to)
	return b.obey(lines, !*wait)
}

// maxStreams is more than any GPU has hardware queues.
const maxStreams = 1024

// batch is the work of a batch client.
type batch struct {
	queues []*queue
	kernel gpuwork.Kernel
	depth  int // of each queue
}

// obey keeps the queues full while the last command was "work", or working is true before
// the first command.
func (b *batch) obey(lines <-chan string, working bool) error {
	for {
		if !working {
			if err := b.drain(); err != nil {
				return err
			}
		}
		for len(lines) > 0 || !working {
			line := <-lines
			if line != "work" && line != "rest" {
				return fmt.Errorf("read %q: want work, rest or quit", line)
			}
			working = line == "work"
		}
		if err := b.fill(); err != nil {
			return err
		}
		if err := b.popOldest(); err != nil {
			return err
		}
	}
}

// fill launches kernels until each queue has as many as it should.
func (b *batch) fill() error {
	for _, q := range b.queues {
		for len(q.running) < b.depth {
			if err := q.launch(b.kernel); err != nil {
				return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
			}
		}
	}
	return nil
}

// popOldest waits for the oldest kernel of each queue that has one.
func (b *batch) popOldest() error {
	for _, q := range b.queues {
		if len(q.running) == 0 {
			continue
		}
		if err := q.running[0].Synchronize(); err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
		q.pop()
	}
	return nil
}

// drain waits until no kernel is queued.
func (b *batch) drain() error {
	for range b.depth {
		if err := b.popOldest(); err != nil {
			return err
		}
	}
	return nil
}

// sendProgress sends the progress ten times a second until the reader closes the pipe.
func sendProgress(c *completions, to *bench.Writer) {
	for range time.Tick(100 * time.Millisecond) {
		if err := to.Send(c.progress()); err != nil {
			os.Exit(0)
		}
	}
}
