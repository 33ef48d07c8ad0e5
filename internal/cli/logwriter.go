package cli

import (
	"io"
	"sync"
	"time"
)

// logWriter passes the lines of a log on to a writer and never waits for it. The daemon logs in
// requests, and the guardian before it undoes changes: neither may wait for a reader of the log that
// has stopped. If more than maxLogBytes wait, further lines are left out, and counted.
type logWriter struct {
	to   io.Writer
	lost func(lines int) // tells the reader, once it reads again, how many lines were left out

	mu      sync.Mutex
	waiting [][]byte
	bytes   int // of the lines that wait, and of the one that is being written
	left    int // lines left out, of which the reader was not told
	closed  bool
	changed chan struct{} // something waits, or closed
	done    chan struct{} // closed when everything is written after close
}

const (
	maxLogBytes = 1 << 20
	// logFlushTime is how long a command waits at its end for its log to be written.
	logFlushTime = time.Second
)

func newLogWriter(to io.Writer, lost func(lines int)) *logWriter {
	w := &logWriter{to: to, lost: lost, changed: make(chan struct{}, 1), done: make(chan struct{})}
	go w.pass()
	return w
}

// Write takes a line. It always succeeds.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes+len(line) > maxLogBytes || w.closed {
		w.left++
		return len(line), nil
	}
	w.waiting, w.bytes = append(w.waiting, append([]byte(nil), line...)), w.bytes+len(line)
	w.wake()
	return len(line), nil
}

// close waits until all lines are written, for logFlushTime at most.
func (w *logWriter) close() {
	w.mu.Lock()
	w.closed = true
	w.wake()
	w.mu.Unlock()
	select {
	case <-w.done:
	case <-time.After(logFlushTime):
	}
}

func (w *logWriter) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// pass writes the lines that wait, one at a time, until the writer is closed. A line that cannot be
// written is dropped: there is no place to report that.
func (w *logWriter) pass() {
	defer close(w.done)
	for {
		line, left, closed := w.next()
		switch {
		case line != nil:
			_, _ = w.to.Write(line)
			w.mu.Lock()
			w.bytes -= len(line)
			w.mu.Unlock()
		case left > 0:
			w.lost(left)
		case closed:
			return
		default:
			<-w.changed
		}
	}
}

// next returns the line to write now. Without one it returns how many were left out since the
// last call.
func (w *logWriter) next() (line []byte, left int, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		left, w.left = w.left, 0
		w.waiting = nil
		return nil, left, w.closed
	}
	line, w.waiting = w.waiting[0], w.waiting[1:]
	return line, 0, w.closed
}
