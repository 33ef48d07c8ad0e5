package format_test

import (
	"testing"

	"github.com/giveway/giveway/internal/format"
)

// FuzzText: whatever a name is, it fits, has nothing that a terminal obeys, and stays as it
// is the second time.
func FuzzText(f *testing.F) {
	for i, s := range hostile {
		f.Add(s[:min(len(s), 1000)], i)
	}
	f.Fuzz(func(t *testing.T, s string, width int) {
		width = min(max(width, 0), 1000)
		got := format.Text(s, width)
		if n := format.Width(got); n > width {
			t.Errorf("%q at width %d: got %q, %d columns", s, width, got, n)
		}
		if format.Printable(got) != got || format.Text(got, width) != got {
			t.Errorf("%q at width %d: got %q, which is not printable", s, width, got)
		}
	})
}
