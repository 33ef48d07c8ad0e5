package discover

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/proc"
)

// manyDescriptors returns a number of descriptors that a child may have, at most n.
func manyDescriptors(t *testing.T, n int) int {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	const own = 600 // that the child needs besides
	if limit.Max < 4*lookWindow+own {
		t.Skipf("a process may have %d descriptors, which is not many", limit.Max)
	}
	return int(min(uint64(n), limit.Max-own))
}

// TestDeviceUnderAnotherName checks that a process is found that opened the device through
// a bind mount with another name, and that its descriptor is noticed when it is closed.
func TestDeviceUnderAnotherName(t *testing.T) {
	_, path, _ := mounted(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(path, other, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("bind mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(other, unix.MNT_DETACH) })
	p := startProcess(t, other)
	c := p.make()
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true})
	wantGroup(t, w.wantFound(), p.PID, c)
	p.order("close")
	if got := w.wantGone(); got.PID != p.PID {
		t.Errorf("got %+v gone, want the group of %d", got, p.PID)
	}
}

// TestDeviceBehindManyDescriptors checks that a process is found however many descriptors it
// opened before the one that matters: of other files, or of the device without a client.
func TestDeviceBehindManyDescriptors(t *testing.T) {
	for _, order := range []string{fmt.Sprintf("hold more by %d", manyDescriptors(t, 70_000)), "open more by 200"} {
		for _, noBPF := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s NoBPF=%v", order, noBPF), func(t *testing.T) {
				_, path, _ := mounted(t)
				p := startProcess(t, path)
				p.order("close")
				p.order(order)
				p.order("reopen")
				c := p.make()
				w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: noBPF})
				wantGroup(t, w.wantFound(), p.PID, c)
			})
		}
	}
}

// TestManyDescriptorsDelayNoOther checks that processes with many descriptors do not delay
// finding a newer process: the Watcher reads a part of each in turn.
func TestManyDescriptorsDelayNoOther(t *testing.T) {
	const processes = 12
	descriptors := manyDescriptors(t, 19_000)
	_, path, m := mounted(t)
	for range processes {
		startProcess(t, path).order(fmt.Sprintf("hold more by %d", descriptors))
	}
	p := m.Start(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true, Poll: time.Second})
	began := time.Now()
	wantGroup(t, w.wantFound(), p.PID, p.Context)
	t.Logf("found after %v and %d descriptors", time.Since(began), w.looks.Load())
	if got, most := w.looks.Load(), uint64(processes*descriptors/4); got > most {
		t.Errorf("the process was found after %d descriptors of others, want at most %d", got, most)
	}
	want := fmt.Sprintf("%d processes have more than %d", processes, lookWindow)
	var got string
	for end := time.Now().Add(20 * time.Second); !strings.Contains(got, want); time.Sleep(time.Millisecond) {
		for _, c := range w.Checks() {
			if c.Name == "descriptors" {
				got = c.Detail
			}
		}
		if time.Now().After(end) {
			t.Fatalf("check: got %q, want %q in it", got, want)
		}
	}
}

// TestSweepsDoNotGuessForTracedProcesses: no handle is guessed for a process whose calls were
// all traced, however many descriptors of the device it has.
func TestSweepsDoNotGuessForTracedProcesses(t *testing.T) {
	_, path, _ := mounted(t)
	p := startProcess(t, path)
	p.order("open more by 200")
	w, err := newWatcher(t.Context(), Config{Control: path, Only: proc.Everyone})
	if err != nil {
		t.Fatal(err)
	}
	for _, traced := range []bool{true, false} {
		if w.tracedSince = math.MaxUint64; traced {
			w.tracedSince = 0
		}
		w.scan(p.PID, nil, false)
		h := w.openers[p.PID]
		if h == nil || !h.hasUnasked() {
			t.Fatal("the first scan has asked about all descriptors, so nothing is tested")
		}
		for len(w.unfinished()) > 0 {
			w.startInterval()
			w.queueSweeps()
			w.scanDue(time.Now())
		}
		guesses := 0
		for _, c := range h.files {
			guesses += c.tries
		}
		if h.hasUnasked() || traced != (guesses == 0) {
			t.Errorf("traced %v: got %d rounds of guessing", traced, guesses)
		}
		w.forget(h)
	}
	w.stop()
	w.waiters.Wait()
}

// TestAncestorsAreSearchedOncePerFile checks that the ancestors of a process, which may own its groups,
// are not searched for each of its groups: a process may make a thousand, and have ancestors with many
// descriptors, and meanwhile no other process is found.
func TestAncestorsAreSearchedOncePerFile(t *testing.T) {
	const groups = 50
	_, path, _ := mounted(t)
	parent, p := startProcess(t, path), startProcess(t, path)
	parent.order(fmt.Sprintf("hold more by %d", manyDescriptors(t, 2*lookWindow)))
	p.make()
	p.order(fmt.Sprintf("more groups by %d", groups-1))
	w, err := newWatcher(t.Context(), Config{Control: path, Only: proc.Everyone, NoBPF: true})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	reported := make(chan bool)
	go func() {
		defer close(reported)
		for e := range w.events {
			found++
			e.Found.File.Close()
		}
	}()
	h, fds := w.openerOf(p.PID, nil)
	w.setFiles(h, fds)
	h.process.Parent = parent.PID
	before := w.looks.Load()
	for _, fd := range fds {
		w.scanFile(h, fd, nil, true, map[Key]bool{})
	}
	close(w.events)
	<-reported
	if looks := w.looks.Load() - before; found != groups || looks > lookWindow {
		t.Errorf("found %d groups, want %d; looked at %d descriptors of ancestors, want %d at most", found, groups, looks, lookWindow)
	}
	w.stop()
	h.pidfd.Close()
	w.waiters.Wait()
}
