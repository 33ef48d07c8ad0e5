package proc

import (
	"os/exec"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
)

// collections allocates far more than a collection is due after, and returns how many
// collections there were.
func collections() int64 {
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	for range 64 {
		allocated = make([]byte, 1<<20)
	}
	debug.ReadGCStats(&after)
	return after.NumGC - before.NumGC
}

var allocated []byte

// TestNoCollectionWhileAProcessStarts delays the start of a process and checks that no
// garbage collection begins until it is over.
func TestNoCollectionWhileAProcessStarts(t *testing.T) {
	if n := collections(); n == 0 {
		t.Fatal("before the start: got no collection, want some: the test would show nothing")
	}
	syscall.ForkLock.RLock() // os/exec waits for it before it forks
	started := make(chan error)
	cmd := exec.Command("/bin/true")
	go func() { started <- Start(cmd) }()
	quiet := false
	for end := time.Now().Add(20 * time.Second); !quiet && time.Now().Before(end); time.Sleep(time.Millisecond) {
		quiet = collections() == 0
	}
	if !quiet {
		t.Error("during the start: collections began for 20 s, want none")
	}
	if n := collections(); n != 0 {
		t.Errorf("during the start: got %d collections, want none", n)
	}
	syscall.ForkLock.RUnlock()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if n := collections(); n == 0 {
		t.Error("after the start: got no collection, want some")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
