package proc

import (
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
)

// starting is held while a process is started.
var starting sync.Mutex

// Start starts a command from a program whose other goroutines must not stop meanwhile.
//
// Until the new process has called execve, the thread that started it sleeps in vfork, and
// the Go runtime cannot stop that thread. So a garbage collection that begins meanwhile
// stops all goroutines and waits for the new process, which on a busy machine got no CPU
// for 1.5 s: leases of closed gates lapsed.
func Start(cmd *exec.Cmd) error { return withoutCollection(cmd.Start) }

// withoutCollection calls f when no garbage collection is under way, and lets none begin
// until f has returned.
func withoutCollection(f func() error) error {
	starting.Lock() // changing the GC percentage stops all goroutines too
	defer starting.Unlock()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	return f()
}

// MinProcs is how many goroutines at least a program that calls Start should let run at
// once: the thread in vfork counts as running.
const MinProcs = 4
