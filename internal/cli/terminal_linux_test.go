package cli

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

// terminal is a pseudo terminal, and what was written to it.
type terminal struct {
	*testing.T
	master, slave *os.File

	mu   sync.Mutex
	text bytes.Buffer
}

// newTerminal opens a pseudo terminal of a size.
func newTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
	term := &terminal{T: t, master: master, slave: slave}
	t.Cleanup(func() { slave.Close(); master.Close() })
	go term.read()
	return term
}

func (t *terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := t.master.Read(buf)
		if err != nil {
			return
		}
		t.mu.Lock()
		t.text.Write(buf[:n])
		t.mu.Unlock()
	}
}

// written returns all that was written.
func (t *terminal) written() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// await waits until a text was written.
func (t *terminal) await(text string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(t.written(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got %q, want %q in it", t.written(), text)
		}
	}
}

func (t *terminal) typeKeys(keys string) {
	t.Helper()
	if _, err := t.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// TestTopOnATerminal: top takes the whole terminal, gives a confirmed order to the daemon,
// and leaves the terminal as it found it.
func TestTopOnATerminal(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to whom the daemon shows everything")
	}
	t.Setenv("TERM", "xterm-256color")
	n := &daemonNode{}
	startDaemon(t, n)
	term := newTerminal(t, 100, 30)
	before, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	defer func(old *os.File) { os.Stdin = old }(os.Stdin)
	os.Stdin = term.slave
	code := make(chan int)
	var errs bytes.Buffer
	go func() { code <- Main([]string{"top"}, term.slave, &errs) }()
	term.await("COMMAND")
	term.typeKeys("p")
	term.await("? y/n")
	term.typeKeys("y")
	term.await("done: pause")
	term.typeKeys("q")
	if c := <-code; c != exitOK || errs.Len() > 0 {
		t.Errorf("got exit %d, %s", c, errs.String())
	}
	n.mu.Lock()
	if len(n.changes) != 1 || !strings.HasSuffix(n.changes[0], `{"paused":true}`) {
		t.Errorf("the daemon got %q, want one order to pause", n.changes)
	}
	n.mu.Unlock()
	term.await("\x1b[?1049l")
	if text := term.written(); strings.Contains(text, "evil \x1b") || !strings.Contains(text, "evil ?[") {
		t.Errorf("a name reached the terminal as it is: %q", text)
	}
	after, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is left with other settings: got %+v, want %+v (%v)", after, before, err)
	}
}

// TestPsOnATerminal: ps uses the width and the colours of a terminal, unless the user does
// not want colours.
func TestPsOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("COLUMNS", "")
	startDaemon(t, &daemonNode{})
	for _, c := range []struct {
		noColor string
		want    bool
	}{{"", true}, {"1", false}} {
		t.Setenv("NO_COLOR", c.noColor)
		term := newTerminal(t, 70, 20)
		if code := Main([]string{"ps"}, term.slave, os.Stderr); code != exitOK {
			t.Fatalf("got exit %d", code)
		}
		term.await("context switches")
		text := term.written()
		if got := strings.Contains(text, "\x1b[32m"); got != c.want {
			t.Errorf("NO_COLOR=%q: got colours %v, want %v: %q", c.noColor, got, c.want, text)
		}
		for line := range strings.Lines(text) {
			if c.noColor != "" && len([]rune(strings.TrimRight(line, "\r\n"))) > 70 {
				t.Errorf("got a line that wraps: %q", line)
			}
		}
	}
}
