package format_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/giveway/giveway/internal/format"
)

// hostile lists names that would break a screen if they were printed as they are.
var hostile = []string{
	"\x1b[2J\x1b]0;title\x07", "a\nb\r\tc", "\xff\xfe\x80", strings.Repeat("x", 64<<10), strings.Repeat("字", 30000),
	"e\u0301\u0301\u0301", "\u202eabc\u2066", "\U0001f469\u200d\U0001f467", "\u009b2J", "\u200b\ufeff\u00ad", "", "界a界", "\u1100\u1161",
}

func TestTextOfHostileNames(t *testing.T) {
	for _, s := range hostile {
		for width := range 12 {
			got := format.Text(s, width)
			if n := format.Width(got); n > width {
				t.Errorf("%.20q at width %d: got %q, %d columns", s, width, got, n)
			}
			for _, r := range got {
				if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e {
					t.Errorf("%.20q at width %d: got %q, with %U", s, width, got, r)
				}
			}
		}
		if got, want := format.Printable(s), format.Text(s, 1<<20); got != want {
			t.Errorf("%.20q: got %.40q and %.40q, want the same", s, got, want)
		}
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct {
		s     string
		width int
		want  string
	}{
		{"python", 6, "python"},
		{"python", 5, "py..."},
		{"python", 2, ".."},
		{"python", 0, ""},
		{"é\u0301", 5, "é?"},
		{"字字字", 6, "字字字"},
		{"字字字", 5, "字..."},
		{"字字字", 4, "..."},
		{"a\x1b[1m", 9, "a?[1m"},
	} {
		if got := format.Text(c.s, c.width); got != c.want {
			t.Errorf("%q at width %d: got %q, want %q", c.s, c.width, got, c.want)
		}
	}
}

// TestTextOfLongNames: a name of 64 MiB takes no longer than a short one.
func TestTextOfLongNames(t *testing.T) {
	long := strings.Repeat("\x1b", 64<<20)
	start := time.Now()
	for range 1000 {
		format.Text(long, 60)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("1000 times: got %v, want under 10 s", took)
	}
}

func TestColumnsFit(t *testing.T) {
	make := func() format.Columns {
		return format.Columns{Gap: 2, All: []format.Column{
			{Head: "PID", Cells: []string{"1", "字23"}},
			{Head: "USER", Cells: []string{"alice", "bob"}, Rank: 2},
			{Head: "SHARE", Cells: []string{"5%", "100%"}, Right: true, Rank: 1, Paint: func(int) format.Style { return format.Red }},
			{Head: "COMMAND", Cells: []string{"python train.py", "x"}, Elide: 9},
		}}
	}
	for _, c := range []struct {
		width int
		want  string
	}{
		{0, "PID   USER   SHARE  COMMAND\n1     alice     5%  python train.py\n字23  bob     100%  x\n"},
		{30, "PID   USER   SHARE  COMMAND\n1     alice     5%  python ...\n字23  bob     100%  x\n"},
		{28, "PID   SHARE  COMMAND\n1        5%  python train.py\n字23   100%  x\n"},
		{20, "PID   COMMAND\n1     python trai...\n字23  x\n"},
		{10, "PID   C...\n1     p...\n字23  x\n"},
		{3, "PID\n1\n...\n"},
	} {
		table := make()
		table.Fit(c.width)
		var b strings.Builder
		for row := format.Heads; row < 2; row++ {
			table.Line(&b, row, false)
			b.WriteString("\n")
		}
		if b.String() != c.want {
			t.Errorf("width %d: got\n%swant\n%s", c.width, b.String(), c.want)
		}
	}
	table, b := make(), strings.Builder{}
	table.Fit(0)
	if table.Line(&b, 0, true); !strings.Contains(b.String(), "   \x1b[31m5%\x1b[m  python") {
		t.Errorf("painted: got %q", b.String())
	}
}
