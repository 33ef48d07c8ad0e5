package main

import (
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/cuda"
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
	_, shape, err := g.kernel(&o, true)
	if err != nil {
		return err
	}
	o.nsPer = shape.NsPerIteration
	s := &onDemand{g: g, o: o, to: bench.NewWriter(out), kernels: make(map[string]*cuda.Kernel), start: time.Now()}
	if err := g.ready(s.to, nil); err != nil {
		return err
	}
	for {
		if len(s.running) == 0 {
			if err := s.launch(<-lines); err != nil {
				return err
			}
		}
		select {
		case line := <-lines:
			err = s.launch(line)
		default:
			runtime.Gosched() // the goroutine that reads the input needs a thread too
			err = s.reap()
		}
		if err != nil {
			return err
		}
	}
}

// onDemand is the kernels that were requested and are not done.
type onDemand struct {
	g       *gpu
	o       options
	to      *bench.Writer
	kernels map[string]*cuda.Kernel // by line of input
	running []*cuda.Event           // the oldest first
	spare   []*cuda.Event
	start   time.Time
	done    int64
}

func (s *onDemand) launch(line string) error {
	k := s.kernels[line]
	if k == nil {
		length, err := time.ParseDuration(line)
		if err != nil {
			return fmt.Errorf("launch a kernel of %q: %w", line, err)
		}
		s.o.kernel = length
		if k, _, err = s.g.kernel(&s.o, true); err != nil {
			return err
		}
		s.kernels[line] = k
	}
	if len(s.spare) == 0 {
		e, err := s.g.ctx.NewEvent(false)
		if err != nil {
			return err
		}
		s.spare = append(s.spare, e)
	}
	e := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	if err := k.Launch(s.g.stream); err != nil {
		return err
	}
	s.running = append(s.running, e)
	return e.Record(s.g.stream)
}

// reap sends the progress if kernels have ended.
func (s *onDemand) reap() error {
	before := s.done
	for len(s.running) > 0 {
		ended, err := s.running[0].Passed()
		if err != nil {
			return fmt.Errorf("after %d kernels: %w", s.done, err)
		}
		if !ended {
			break
		}
		s.spare = append(s.spare, s.running[0])
		s.running = s.running[1:]
		s.done++
	}
	if s.done == before {
		return nil
	}
	return s.to.Send(bench.Message{Progress: &bench.Progress{At: time.Since(s.start), Done: s.done}})
}
