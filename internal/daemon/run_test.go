package daemon

import (
	"os"
	"testing"

	"github.com/giveway/giveway/api"
)

// TestRunComesSecond: a program whose shim has found the daemon before 'giveway run' has
// told of it gets what run says, unless more has been said of it.
func TestRunComesSecond(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	plain, hinted, owned := start(t, socket, "cuda"), start(t, socket, "cuda"), start(t, socket, "cuda")
	hinted.do("hint 1 1")
	eventually(t, "the hint counts", func() bool { return hinted.found(d).From == "hint" })
	idle, batch, weight := "idle", "batch", uint32(3)
	owned.set(t, d, api.Change{Class: &idle})
	end, err := d.BeginRun(os.Getpid(), api.Change{Class: &batch, Weight: &weight, Tree: true})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for _, c := range []struct {
		p           *program
		class, from string
		weight      uint32
	}{{plain, "batch", "run", 3}, {hinted, "online", "hint", 3}, {owned, "idle", "set", 0}} {
		if got := c.p.found(d); got.Class != c.class || got.From != c.from || got.Weight != c.weight {
			t.Errorf("%s (%s) with weight %d, want %s (%s) with %d", got.Class, got.From, got.Weight, c.class, c.from, c.weight)
		}
	}
	// Of two runs the nearer counts.
	if end, err := d.BeginRun(os.Getppid(), api.Change{Class: &idle, Tree: true}); err != nil || plain.found(d).Class != "batch" {
		t.Errorf("%v: a run around it made it %s", err, plain.found(d).Class)
	} else {
		end()
	}
}
