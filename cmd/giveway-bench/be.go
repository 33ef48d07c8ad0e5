package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/cuda"
)

// runBatch keeps kernels queued until it reads "quit". With --wait it begins when it
// reads "work", and again after each "rest".
func runBatch(set *flag.FlagSet, args []string, in io.Reader, out io.Writer) error {
	var o options
	o.register(set, 40*time.Millisecond, "block")
	depth := set.Int("depth", 64, "keep this `number` of kernels queued")
	wait := set.Bool("wait", false, "begin when \"work\" is read, and queue nothing from \"rest\" to the next \"work\"")
	if err := parse(set, args); err != nil {
		return err
	}
	if *depth < 1 {
		return usageError{fmt.Errorf("--depth %d: want at least 1", *depth)}
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
	q := &queue{g: g, start: time.Now()}
	to := bench.NewWriter(out)
	// Ready means that the queue runs, or that it has run and is empty.
	if err := q.fill(kernel, *depth); err != nil {
		return err
	}
	if *wait {
		err = q.drain()
	} else {
		err = q.popOldest()
	}
	if err == nil {
		err = to.Send(ready(g, &bench.Calibration{Full: shape}))
	}
	if err != nil {
		return err
	}
	go sendProgress(q, to)
	return q.obey(lines, kernel, *depth, !*wait)
}

// obey keeps the queue full while the last command was "work", or working is true before
// the first command.
func (q *queue) obey(lines <-chan string, kernel *cuda.Kernel, depth int, working bool) error {
	for {
		if !working {
			if err := q.drain(); err != nil {
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
		if err := q.fill(kernel, depth); err != nil {
			return err
		}
		if err := q.popOldest(); err != nil {
			return err
		}
	}
}

// fill launches kernels until that many are queued.
func (q *queue) fill(kernel *cuda.Kernel, depth int) error {
	for len(q.running) < depth {
		if err := q.launch(kernel); err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
	}
	return nil
}

// popOldest waits for the oldest kernel.
func (q *queue) popOldest() error {
	if err := q.running[0].Synchronize(); err != nil {
		return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
	}
	q.pop()
	return nil
}

// drain waits until no kernel is queued.
func (q *queue) drain() error {
	for len(q.running) > 0 {
		if err := q.popOldest(); err != nil {
			return err
		}
	}
	return nil
}

// sendProgress sends the progress ten times a second until the reader closes the pipe.
func sendProgress(q *queue, to *bench.Writer) {
	for range time.Tick(100 * time.Millisecond) {
		if err := to.Send(q.progress()); err != nil {
			os.Exit(0)
		}
	}
}
