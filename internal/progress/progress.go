// Package progress shows, on a terminal, what a command that takes long is doing.
//
// It writes one line and redraws it in place with carriage returns and spaces, without
// escape codes. The line appears after a moment, so that quick commands show nothing, and
// is erased at the end. To anything that is not a terminal it writes nothing.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	firstDraw = 700 * time.Millisecond // after Start
	redraw    = 200 * time.Millisecond
)

// Line is the line on the terminal. The methods of a nil Line do nothing.
type Line struct {
	file  *os.File
	start time.Time
	stop  chan struct{}
	ended chan struct{}

	mu    sync.Mutex
	what  string
	part  func() float64 // share of the work that is done, 0 to 1; nil: unknown
	drawn int            // characters on the terminal
}

// Start shows a line on w, usually standard error, until Stop is called. It returns nil if
// w is not a terminal.
func Start(w io.Writer, what string) *Line {
	file, ok := w.(*os.File)
	if !ok || columns(file) == 0 {
		return nil
	}
	l := &Line{file: file, start: time.Now(), stop: make(chan struct{}), ended: make(chan struct{}), what: what}
	go l.run()
	return l
}

// Set changes what the line says. part returns the share of the work that is done, from 0
// to 1; it is called from another goroutine. It may be nil.
func (l *Line) Set(what string, part func() float64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.what, l.part = what, part
}

// Stop erases the line. Nothing is drawn after it returns.
func (l *Line) Stop() {
	if l == nil {
		return
	}
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	<-l.ended
}

// Writer returns a writer for other output to the same terminal: the line is erased before
// each write and drawn again later. For a nil Line it returns w.
func (l *Line) Writer(w io.Writer) io.Writer {
	if l == nil {
		return w
	}
	return writer{l, w}
}

type writer struct {
	line *Line
	w    io.Writer
}

func (w writer) Write(p []byte) (int, error) {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	w.line.erase()
	return w.w.Write(p)
}

func (l *Line) run() {
	defer close(l.ended)
	timer := time.NewTimer(firstDraw)
	defer timer.Stop()
	for {
		select {
		case <-l.stop:
			l.mu.Lock()
			l.erase()
			l.mu.Unlock()
			return
		case <-timer.C:
			l.mu.Lock()
			l.draw(columns(l.file))
			l.mu.Unlock()
			timer.Reset(redraw)
		}
	}
}

// draw writes the line over the one before. A line that filled the last column would make
// some terminals scroll.
func (l *Line) draw(columns int) {
	text := clean(l.text(time.Since(l.start)))
	if most := columns - 1; len(text) > most {
		text = text[:max(most, 0)]
	}
	padding := strings.Repeat(" ", max(l.drawn-len(text), 0))
	l.write("\r" + text + padding)
	l.drawn = len(text)
}

func (l *Line) text(elapsed time.Duration) string {
	seconds := elapsed.Round(time.Second)
	if l.part == nil {
		return fmt.Sprintf("%s (%v)", l.what, seconds)
	}
	part := min(max(l.part(), 0), 1)
	text := fmt.Sprintf("%3.0f%%  %s (%v", 100*part, l.what, seconds)
	if part >= 0.05 {
		left := time.Duration(float64(elapsed) * (1 - part) / part)
		text += fmt.Sprintf(", about %v left", left.Round(time.Second))
	}
	return text + ")"
}

// erase leaves the cursor at the beginning of an empty line.
func (l *Line) erase() {
	if l.drawn > 0 {
		l.write("\r" + strings.Repeat(" ", l.drawn) + "\r")
		l.drawn = 0
	}
}

// write ignores errors: the command goes on without its progress.
func (l *Line) write(s string) { _, _ = l.file.WriteString(s) }

// clean replaces what is not printable ASCII, so that every character takes one column and
// none controls the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// columns returns the width of a terminal; zero if the file is none.
func columns(f *os.File) int {
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 80
	}
	return int(size.Col)
}
