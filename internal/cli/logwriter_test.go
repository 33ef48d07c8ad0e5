package cli

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// slowReader takes no line before it is let go.
type slowReader struct {
	release chan struct{}
	mu      sync.Mutex
	text    strings.Builder
}

func (s *slowReader) Write(p []byte) (int, error) {
	<-s.release
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func TestLogWriterNeverWaits(t *testing.T) {
	to := &slowReader{release: make(chan struct{})}
	lost := 0
	w := newLogWriter(to, func(lines int) { lost += lines })
	const lines, length = 5000, 1024
	began := time.Now()
	for i := range lines {
		fmt.Fprintf(w, "%0*d\n", length-1, i)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("%d lines took %v while nothing read them", lines, took)
	}
	close(to.release)
	w.close()
	got := strings.Split(strings.TrimSuffix(to.text.String(), "\n"), "\n")
	if len(got) != maxLogBytes/length || lost != lines-len(got) {
		t.Errorf("got %d lines and %d left out, want %d and the other %d", len(got), lost, maxLogBytes/length, lines-maxLogBytes/length)
	}
	for i, line := range got {
		if line != fmt.Sprintf("%0*d", length-1, i) {
			t.Fatalf("line %d is %.20q", i, line)
		}
	}
}

func TestLogWriterCloseIsBounded(t *testing.T) {
	to := &slowReader{release: make(chan struct{})}
	defer close(to.release)
	w := newLogWriter(to, func(int) {})
	fmt.Fprintln(w, "line")
	began := time.Now()
	w.close()
	if took := time.Since(began); took > 3*logFlushTime {
		t.Errorf("close took %v although nothing reads", took)
	}
}
