package bench

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/htmlreport/pagetest"
)

// TestPageLayout lays out the page in a browser, on a phone and on a desk: no text may
// overlap another or be outside the page, and on a desk nothing may be cut off.
func TestPageLayout(t *testing.T) {
	var page bytes.Buffer
	if err := sample().WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{390, 1280} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			l := pagetest.In(t, page.String(), width)
			if l.Texts < 30 || len(l.Overlaps) > 0 || len(l.Outside) > 0 || l.Width > width {
				t.Errorf("got %d texts, width %d, overlapping texts\n%s\nand outside\n%s", l.Texts, l.Width, strings.Join(l.Overlaps, "\n"), strings.Join(l.Outside, "\n"))
			}
			if width >= 1280 && len(l.Scrolled) > 0 {
				t.Errorf("cut off:\n%s", strings.Join(l.Scrolled, "\n"))
			}
		})
	}
}
