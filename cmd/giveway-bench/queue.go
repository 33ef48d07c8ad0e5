package main

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/cuda"
)

// queue is the kernels in flight, each followed by an event.
type queue struct {
	g       *cuda.GPU
	running []*cuda.Event // the oldest first
	spare   []*cuda.Event
	start   time.Time
	done    atomic.Int64
	last    atomic.Int64 // ns from start to the latest completion
}

func (q *queue) launch(k *cuda.Kernel) error {
	if len(q.spare) == 0 {
		e, err := q.g.NewEvent(false)
		if err != nil {
			return err
		}
		q.spare = append(q.spare, e)
	}
	e := q.spare[len(q.spare)-1]
	q.spare = q.spare[:len(q.spare)-1]
	q.running = append(q.running, e)
	return cmp.Or(k.Launch(), e.Record())
}

// pop removes the oldest kernel, which has ended.
func (q *queue) pop() {
	q.last.Store(int64(time.Since(q.start)))
	q.done.Add(1)
	q.spare = append(q.spare, q.running[0])
	q.running = q.running[1:]
}

func (q *queue) progress() bench.Message {
	done, last := q.done.Load(), time.Duration(q.last.Load())
	at := time.Since(q.start)
	return bench.Message{Progress: &bench.Progress{At: at, Done: done, Idle: at - last}}
}
