package cli

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// screen is what a command knows of where its output goes.
type screen struct {
	terminal bool
	colour   bool // it is a terminal that shows colours, and the user wants them
	width    int  // characters in a line; zero: there is no limit
	height   int  // lines; zero: there is no limit
}

// screenOf describes the terminal that w is, if it is one. COLUMNS overrides the width, and
// NO_COLOR and TERM=dumb mean no colours.
func screenOf(w io.Writer) (s screen) {
	if f, ok := w.(*os.File); ok {
		if s.terminal = isTerminal(f); s.terminal {
			if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
				s.width, s.height = int(size.Col), int(size.Row)
			}
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		s.width = n
	}
	s.colour = s.terminal && os.Getenv("NO_COLOR") == "" && canControl()
	return s
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// canControl reports whether the terminal obeys control sequences.
func canControl() bool {
	term := os.Getenv("TERM")
	return term != "" && term != "dumb"
}

// hasUTF8 reports whether the user's locale has more characters than ASCII.
func hasUTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// redraw returns text such that it replaces what is on the terminal. Without a terminal it
// is followed by an empty line.
func (s screen) redraw(text string) string {
	if !s.terminal || !canControl() {
		return text + "\n"
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if s.height > 1 && len(lines) >= s.height {
		left := len(lines) - (s.height - 2)
		lines = append(lines[:s.height-2], "and "+strconv.Itoa(left)+" lines more; see 'giveway top'")
	}
	const home, toEnd, below = "\x1b[H", "\x1b[K", "\x1b[J"
	return home + strings.Join(lines, toEnd+"\r\n") + toEnd + "\r\n" + below
}
