package describe

import (
	"fmt"

	"github.com/giveway/giveway/api"
)

// lateLines says what late entry gave to others and what it cost, since the process started.
func (f *Facts) lateLines() []string {
	s := f.Process.Shim
	if s == nil || s.LateRequests == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("requests that entered late since the process started: %d; they left the device to others for %s", s.LateRequests, LongTime(s.LateFor))}
	return append(lines, costLines(s.LateCompared)...)
}

// costLines says by how much late entry makes requests slower.
func costLines(c *api.LateCompared) (lines []string) {
	switch {
	case c == nil:
		return []string{"none of them was compared with one that entered at once, so what late entry costs is not known"}
	case c.Ratio == 0:
		lines = []string{fmt.Sprintf("pairs that compare one of them with the request before, which entered at once: %d, too few to say what late entry costs", c.Pairs)}
	default:
		lines = []string{fmt.Sprintf("in %d pairs with the request before, which entered at once, a late one took %.3f times as long (median; %.3f to %.3f with a confidence of 95 %%)",
			c.Pairs, c.Ratio, c.Low, c.High)}
	}
	if c.GivenUp > 0 {
		lines = append(lines, fmt.Sprintf("times that late entry was given up for a while because it made requests slower: %d", c.GivenUp))
	}
	return lines
}
