package main

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/giveway/giveway/internal/bench"
	"github.com/giveway/giveway/internal/gpuwork"
)

// queue is the kernels in flight on one stream, each followed by an event.
type queue struct {
	g       gpuwork.GPU
	stream  gpuwork.Stream
	running []gpuwork.Event // the oldest first
	spare   []gpuwork.Event
	*completions
}

// completions counts the kernels of all queues that have ended.
type completions struct {
	start time.Time
	done  atomic.Int64
	last  atomic.Int64 // ns from start to the latest completion
}

// newQueues makes queues with a stream each.
func newQueues(g gpuwork.GPU, n int) ([]*queue, error) {
	all, queues := &completions{start: time.Now()}, make([]*queue, n)
	for i := range queues {
		s, err := g.NewStream()
		if err != nil {
			return nil, fmt.Errorf("make stream %d of %d: %w", i+1, n, err)
		}
		queues[i] = &queue{g: g, stream: s, completions: all}
	}
	return queues, nil
}

func (q *queue) launch(k gpuwork.Kernel) error {
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
	return cmp.Or(k.Launch(q.stream), e.Record(q.stream))
}

// pop removes the oldest kernel, which has ended.
func (q *queue) pop() {
	q.last.Store(int64(time.Since(q.start)))
	q.done.Add(1)
	q.spare = append(q.spare, q.running[0])
	q.running = q.running[1:]
}

func (c *completions) progress() bench.Message {
	done, last := c.done.Load(), time.Duration(c.last.Load())
	at := time.Since(c.start)
	return bench.Message{Progress: &bench.Progress{At: at, Done: done, Idle: at - last}}
}
