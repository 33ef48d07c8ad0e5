package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/giveway/giveway/internal/bench"
)

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
	kernel, shape, err := o.newKernel(g, true)
	if err != nil {
		return err
	}
	q := &queue{g: g, start: time.Now()}
	for range *depth {
		if err := q.launch(kernel); err != nil {
			return err
		}
	}
	to := bench.NewWriter(out)
	for {
		if err := q.running[0].Synchronize(); err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
		q.pop()
		if err := q.launch(kernel); err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
		if q.done.Load() == 1 { // the queue runs
			if err := to.Send(ready(g, &bench.Calibration{Full: shape})); err != nil {
				return err
			}
			go sendProgress(q, to)
		}
	}
}

// sendProgress sends the progress ten times a second until the reader closes the pipe.
func sendProgress(q *queue, to *bench.Writer) {
	for range time.Tick(100 * time.Millisecond) {
		if err := to.Send(q.progress()); err != nil {
			os.Exit(0)
		}
	}
}
