package format

import (
	"strings"
	"unicode"
)

// ellipsis marks text that was shortened.
const ellipsis = "..."

// Printable returns s without characters that a terminal would obey, and without those of
// which terminals disagree how many columns they take: each becomes a question mark. Any
// user can choose a command line.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if runeWidth(r) == 0 {
			return '?'
		}
		return r
	}, s)
}

// maxLine is how many columns a line of Lines has at most.
const maxLine = 2000

// Lines returns s as Printable does, with its line breaks. Each line is shortened to maxLine
// columns.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Text(lines[i], maxLine)
	}
	return strings.Join(lines, "\n")
}

// Text returns s as Printable does, shortened to at most width columns. It reads no more
// of s than it shows, so a long s costs no more than a short one.
func Text(s string, width int) string {
	if len(s) <= width && isPlain(s) {
		return s
	}
	var b strings.Builder
	used, kept := 0, 0 // columns of what is in b; bytes of b that leave room for the ellipsis
	for _, r := range s {
		w := runeWidth(r)
		if w == 0 {
			r, w = '?', 1
		}
		if used+w > width {
			return b.String()[:kept] + ellipsis[:min(len(ellipsis), max(width, 0))]
		}
		b.WriteRune(r)
		if used += w; used <= width-len(ellipsis) {
			kept = b.Len()
		}
	}
	return b.String()
}

// isPlain reports whether s is printable ASCII.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Width returns how many columns s takes on a terminal. s is from Printable or Text.
func Width(s string) (n int) {
	if isPlain(s) {
		return len(s)
	}
	for _, r := range s {
		n += max(runeWidth(r), 1)
	}
	return n
}

// narrow and wide list the characters that take one and two columns on every terminal.
// Emoji, combining marks and scripts whose letters join are in neither: terminals draw them
// in different widths.
var (
	narrow = [][2]rune{
		{0x20, 0x2ff},
		{0x370, 0x8ff},
		{0xe00, 0xeff},
		{0x10a0, 0x10ff},
		{0x1e00, 0x1fff},
		{0x2010, 0x205e},
		{0x20a0, 0x20bf},
		{0x2190, 0x2199},
		{0x2200, 0x22ff},
		{0x2500, 0x259f},
		{0x2800, 0x28ff},
	}
	wide = [][2]rune{
		{0x3001, 0x3029},
		{0x3041, 0x3096},
		{0x30a1, 0x30fa},
		{0x3400, 0x4dbf},
		{0x4e00, 0x9fff},
		{0xac00, 0xd7a3},
		{0xff01, 0xff60},
	}
)

// runeWidth returns how many columns a character takes; zero: it is not to be shown.
func runeWidth(r rune) int {
	switch {
	case r >= ' ' && r <= '~':
		return 1
	case !unicode.IsPrint(r) || unicode.Is(unicode.M, r):
		return 0
	case within(narrow, r):
		return 1
	case within(wide, r):
		return 2
	}
	return 0
}

func within(ranges [][2]rune, r rune) bool {
	for _, x := range ranges {
		if r >= x[0] && r <= x[1] {
			return true
		}
	}
	return false
}
