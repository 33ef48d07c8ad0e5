package main

import (
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/gpuwork"
)

// obey launches a kernel of the length that each line of input gives, and sends its
// progress as kernels end. Tests use it to control when the GPU has work.
func obey(set *flag.FlagSet, args []string, in io.Reader, out io.Writer) error {
	var o options
	o.register(set, time.Millisecond, "spin")
	if err := parse(set, args); err != nil {
		return err
	}
	lines := make(chan string, 1024)
	go quitAtEnd(in, lines)
	g, err := o.open()
	if err != nil {
		return err
	}
	_, shape, err := o.newKernel(g, true)
	if err != nil {
		return err
	}
	o.nsPer = shape.NsPerIteration
	queues, err := newQueues(g, 1)
	if err != nil {
		return err
	}
	to, q := bench.NewWriter(out), queues[0]
	if err := to.Send(o.ready(g, nil)); err != nil {
		return err
	}
	kernels := make(map[string]gpuwork.Kernel) // by line of input
	for {
		if len(q.running) > 0 && len(lines) == 0 {
			runtime.Gosched() // the goroutine that reads the input needs a thread too
			if err := reap(q, to); err != nil {
				return err
			}
			continue
		}
		line := <-lines
		k := kernels[line]
		if k == nil {
			if o.kernel, err = time.ParseDuration(line); err != nil {
				return fmt.Errorf("launch a kernel of %q: %w", line, err)
			}
			if k, _, err = o.newKernel(g, true); err != nil {
				return err
			}
			kernels[line] = k
		}
		if err := q.launch(k); err != nil {
			return err
		}
	}
}

// reap sends the progress if kernels have ended.
func reap(q *queue, to *bench.Writer) error {
	before := q.done.Load()
	for len(q.running) > 0 {
		ended, err := q.running[0].Passed()
		if err != nil {
			return fmt.Errorf("after %d kernels: %w", q.done.Load(), err)
		}
		if !ended {
			break
		}
		q.pop()
	}
	if q.done.Load() == before {
		return nil
	}
	return to.Send(q.progress())
}
