package progress

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// screen is a pseudo-terminal and what a person sees on it.
type screen struct {
	*testing.T
	tty *os.File // the program's end

	mu   sync.Mutex
	raw  []byte
	seen []string // the last line after each piece of output
}

func openScreen(t *testing.T, columns uint16) *screen {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: open /dev/ptmx: %v", err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{T: t, tty: tty}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return // the last descriptor of the other end is closed
			}
			s.mu.Lock()
			s.raw = append(s.raw, b[:n]...)
			lines := visible(s.raw)
			s.seen = append(s.seen, lines[len(lines)-1])
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { tty.Close(); <-done; master.Close() })
	return s
}

// visible returns the lines that a terminal shows after some output: \r goes to the
// beginning of the line, and later characters replace earlier ones.
func visible(raw []byte) []string {
	lines := []string{}
	for line := range strings.SplitSeq(string(raw), "\n") {
		var cells []byte
		at := 0
		for _, c := range []byte(line) {
			if c == '\r' {
				at = 0
				continue
			}
			if at == len(cells) {
				cells = append(cells, ' ')
			}
			cells[at] = c
			at++
		}
		lines = append(lines, strings.TrimRight(string(cells), " "))
	}
	return lines
}

func (s *screen) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return visible(s.raw)
}

// await waits until the terminal's last line contains text.
func (s *screen) await(text string) {
	s.Helper()
	for range 2000 {
		if l := s.lines(); strings.Contains(l[len(l)-1], text) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.Fatalf("the terminal shows %q, want %q in its last line", s.lines(), text)
}

// awaitEmpty waits until the terminal's last line is empty.
func (s *screen) awaitEmpty() {
	s.Helper()
	for range 2000 {
		if l := s.lines(); l[len(l)-1] == "" {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.Fatalf("the terminal shows %q, want an empty last line", s.lines())
}

// TestLineIsShownAndErased checks that a terminal shows the line with its progress, that
// other output is not mixed with it, and that nothing is left of it.
func TestLineIsShownAndErased(t *testing.T) {
	s := openScreen(t, 80)
	l := Start(s.tty, "calibrating")
	l.Set("a long name of a phase \x1b[31m\u202e", nil)
	s.await("a long name of a phase ?[31m? (")
	l.Set("short", func() float64 { return 0.5 })
	s.await(" 50%  short (")
	fmt.Fprintln(l.Writer(s.tty), "a line of the log")
	s.await(" 50%  short (")
	l.Stop()
	l.Stop()
	s.awaitEmpty()
	if got := s.lines(); len(got) != 2 || got[0] != "a line of the log" {
		t.Errorf("got %q on the terminal, want only the line of the log", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.IndexByte(s.raw, 0x1b) >= 0 {
		t.Errorf("got an escape code in %q, want none", s.raw)
	}
}

// TestLineFitsTheTerminal checks that the line is cut off before the last column.
func TestLineFitsTheTerminal(t *testing.T) {
	s := openScreen(t, 20)
	l := Start(s.tty, "a description that is longer than the terminal is wide")
	s.await("a description that")
	l.Stop()
	s.awaitEmpty()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.seen {
		if len(line) > 19 {
			t.Errorf("got %d characters in 20 columns: %q", len(line), line)
		}
	}
}

// TestQuickCommandShowsNothing stops a line at once. On a very busy machine it may have
// been drawn already; then it was erased.
func TestQuickCommandShowsNothing(t *testing.T) {
	s := openScreen(t, 80)
	begun := time.Now()
	Start(s.tty, "quick").Stop()
	quick := time.Since(begun) < firstDraw
	fmt.Fprint(s.tty, "end")
	s.await("end")
	s.mu.Lock()
	defer s.mu.Unlock()
	if quick && string(s.raw) != "end" {
		t.Errorf("got %q, want only the end", s.raw)
	}
}

// TestNoTerminal checks that nothing is written to a pipe, a file or a buffer.
func TestNoTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	var buffer bytes.Buffer
	if Start(file, "") != nil || Start(w, "") != nil || Start(&buffer, "") != nil {
		t.Error("got a line for something that is not a terminal, want nil")
	}
	var none *Line
	none.Set("nothing", nil)
	fmt.Fprint(none.Writer(&buffer), "log")
	none.Stop()
	if buffer.String() != "log" {
		t.Errorf("got %q, want what was written", buffer.String())
	}
}

func TestText(t *testing.T) {
	l := &Line{what: "simulating"}
	for _, c := range []struct {
		part float64
		want string
	}{
		{-1, "simulating (20s)"},
		{0.01, "  1%  simulating (20s)"},
		{0.25, " 25%  simulating (20s, about 1m0s left)"},
		{2, "100%  simulating (20s, about 0s left)"},
	} {
		l.part = nil
		if c.part >= 0 {
			l.part = func() float64 { return c.part }
		}
		if got := l.text(20 * time.Second); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
