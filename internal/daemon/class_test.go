package daemon

import (
	"testing"
	"time"

	"github.com/giveway/giveway/attr"
)

// TestStreamClasses: the setting is off unless the owner asks for it, reaches the page, and the
// counters of the page are in the API.
func TestStreamClasses(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	expect := func(setting, want string) {
		t.Helper()
		if setting != "" {
			p.set(t, d, setting)
		}
		eventually(t, want, func() bool {
			p.send("classes")
			return <-p.output == want
		})
	}
	expect("", "classes 0")
	expect("stream-classes=true", "classes 1")
	described := p.described(d)
	if s := described.Shim; s == nil || s.ClassHolds != 7 || s.ClassLetGo != 2 || s.ClassHeldFor != 3*time.Millisecond {
		t.Errorf("got %+v, want 7 launches held for 3ms and 2 let go", s)
	}
	if !described.Attrs.Bool(attr.StreamClasses) {
		t.Error("the API does not show the attribute")
	}
	expect("stream-classes=false", "classes 0")
}
