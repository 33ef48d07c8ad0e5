package shim_test

import (
	"testing"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

func lateEntry(setting shimpage.LateEntry) func(*shimpage.Page) {
	return func(p *shimpage.Page) { p.SetLateEntry(setting) }
}

// testLateOrder: a program gets the same results if its requests enter late.
func testLateOrder(t *testing.T, dir string) {
	for _, lookup := range lookups {
		args := append(lookup, "order", "3")
		native := start(t, noShim, dir, args...).expectOK()
		d := newDaemon(t, lateEntry(shimpage.LateOn))
		p := start(t, d.Socket(), dir, args...)
		page := d.Page()
		line := p.expectOK()
		if checksum(line) != checksum(native) {
			t.Errorf("%s: got %s, without the shim %s", lookup[1], line, native)
		}
		c := page.Counters()
		if want := field(t, line, "commands"); c.Launched != want {
			t.Errorf("%s: %d of %d commands passed the gate", lookup[1], c.Launched, want)
		}
		if c.LateRequests < 5 || c.LateFor == 0 {
			t.Errorf("%s: got %+v, want at least 5 requests that entered late", lookup[1], c)
		}
		t.Logf("%s: %s, %d late, %v, %d early", lookup[1], line, c.LateRequests, c.LateFor, c.LateEarly)
	}
}
