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

// obey launches a kernel for every line it reads, as long as the line says, and
// tells of each as it ends: for tests that must say what happens when.
func obey(args []string, in io.Reader, out io.Writer) error {
	set := flag.NewFlagSet("obey", flag.ContinueOnError)
	var o options
	o.register(set, time.Millisecond, "spin")
	if err := parse(set, args); err != nil {
		return err
	}
	if err := dieWithParent(); err != nil {
		return err
	}
	words := make(chan string, 1024)
	quitAtEnd(in, words)
	g, err := openGPU(o.device, o.sync)
	if err != nil {
		return err
	}
	s := &servant{g: g, o: o, kernels: make(map[string]*cuda.Kernel), start: time.Now()}
	if _, shape, err := g.kernel(&o, true); err != nil {
		return err
	} else {
		s.o.nsPer = shape.NsPerIteration
	}
	m, err := g.ready()
	if err != nil {
		return err
	}
	s.to = bench.NewWriter(out)
	if err := s.to.Send(m); err != nil {
		return err
	}
	for {
		if len(s.running) == 0 {
			if err := s.launch(<-words); err != nil {
				return err
			}
		}
		select {
		case word := <-words:
			err = s.launch(word)
		default:
			runtime.Gosched() // the reader of words needs a thread too
			err = s.reap()
		}
		if err != nil {
			return err
		}
	}
}

// servant is the kernels that were asked for and are not yet done.
type servant struct {
	g       *gpu
	o       options
	to      *bench.Writer
	kernels map[string]*cuda.Kernel // by the word that asks for one
	running []*cuda.Event           // the oldest first
	spare   []*cuda.Event
	start   time.Time
	done    int64
}

func (s *servant) launch(word string) error {
	k := s.kernels[word]
	if k == nil {
		length, err := time.ParseDuration(word)
		if err != nil {
			return fmt.Errorf("a kernel of %q: %w", word, err)
		}
		s.o.kernel = length
		if k, _, err = s.g.kernel(&s.o, true); err != nil {
			return err
		}
		s.kernels[word] = k
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

// reap tells of the kernels that have ended.
func (s *servant) reap() error {
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
