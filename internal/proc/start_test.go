package proc

import (
	"errors"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
)

// collections allocates far more than a collection is due after, and returns how many
// collections there were.
func collections() int64 {
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	for range 128 {
		allocated = make([]byte, 1<<20)
	}
	debug.ReadGCStats(&after)
	return after.NumGC - before.NumGC
}

var allocated []byte

func TestNoCollectionWhileAProcessStarts(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	runtime.GC()
	if n := collections(); n == 0 {
		t.Fatal("before: got no collection, want some: the test would show nothing")
	}
	failed := errors.New("it failed")
	err := withoutCollection(func() error {
		if n := collections(); n != 0 {
			t.Errorf("meanwhile: got %d collections, want none", n)
		}
		return failed
	})
	if err != failed {
		t.Errorf("got error %v, want %v", err, failed)
	}
	if percent := debug.SetGCPercent(50); percent != 50 {
		t.Errorf("afterwards: got a GC percentage of %d, want 50, as before", percent)
	}
}

func TestStart(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
