package report_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/htmlreport/pagetest"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
)

// manyPolicies compares all policies, for three online clients with SLOs and long names. One
// client falls behind in one run.
func manyPolicies(t *testing.T) scenario.Outcome {
	t.Helper()
	clients := append(several(3, 2, online, "a-chat-service-with-a-long-name-"), several(5, 2, batch, "training-job-")...)
	for i := range 3 {
		clients[i].Attr.SLO = 5 * ms
	}
	o := simulate(t, "nvidia-h200", clients, policy.Names()...)
	o.Runs[4].Policy = "giveway:online=20ms,slice=200us,turn=20ms"
	o.Runs[5].Result.Clients[0].Unfinished = 895
	return o
}

// TestLayout lays out reports in a browser, on a phone and on a desk: no text may overlap
// another or be outside the page, and on a desk nothing may be cut off.
func TestLayout(t *testing.T) {
	pages := map[string]string{
		"many policies": render(t, manyPolicies(t)),
		"two policies":  render(t, simulate(t, "nvidia-h200", []sim.ClientConfig{online("chat", 0), batch("train", 0)}, "native", "giveway")),
		"only batch":    render(t, simulate(t, "amd-hws", several(3, 1, batch, "train"), "native", "wfq")),
	}
	for name, page := range pages {
		for _, width := range []int{390, 768, 1280} {
			t.Run(fmt.Sprintf("%s at %d", name, width), func(t *testing.T) {
				l := pagetest.In(t, page, width)
				if l.Texts < 50 {
					t.Fatalf("got %d texts, want at least 50: was the page drawn?", l.Texts)
				}
				if len(l.Overlaps) > 0 || len(l.Outside) > 0 || l.Width > width {
					t.Errorf("got width %d, overlapping texts\n%s\nand outside\n%s", l.Width, strings.Join(l.Overlaps, "\n"), strings.Join(l.Outside, "\n"))
				}
				if width >= 1280 && len(l.Scrolled) > 0 {
					t.Errorf("cut off:\n%s", strings.Join(l.Scrolled, "\n"))
				}
			})
		}
	}
}

// TestManyPolicies checks what a report of all policies has besides its layout.
func TestManyPolicies(t *testing.T) {
	text := render(t, manyPolicies(t))
	for _, want := range []string{"<th>SLO met</th>", "SLO 5ms</small>", "<th>work kept</th>"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in the page", want)
		}
	}
	for _, name := range policy.Names()[6:] {
		if n := strings.Count(text, "</span>"+name+"</th>"); n != 3+5+1 {
			t.Errorf("policy %s has %d rows in the tables, want one for each of 8 clients and one for all batch clients", name, n)
		}
	}
}
