package discover

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/quota"
)

// startOpeners starts processes of the hostile user that have a number of open control devices
// each, and no channel group.
func startOpeners(t *testing.T, path string, processes, descriptors int) (started []*exec.Cmd) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to start processes of another user")
	}
	var files []*os.File
	for range descriptors {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for range processes {
		p := exec.Command("sleep", "300")
		p.ExtraFiles = files
		p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: hostile, Gid: hostile}, Pdeathsig: unix.SIGKILL}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
		started = append(started, p)
	}
	return started
}

func openPidfds(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		// Linux 6.9 moved pidfds to a filesystem of their own.
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && (target == "anon_inode:[pidfd]" || strings.HasPrefix(target, "pidfd:")) {
			n++
		}
	}
	return n
}

func (w *testWatcher) detail(name string) string {
	for _, c := range w.Checks() {
		if c.Name == name {
			return c.Detail
		}
	}
	return ""
}

// waitForDetail waits until the detail of a check contains a text.
func (w *testWatcher) waitForDetail(name, want string) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(w.detail(name), want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("check %s: got %q, want %q in it", name, w.detail(name), want)
		}
	}
}

const openDevices = "open control devices" // the check

// TestOpenersOfAUserAreLimited checks that a user can make the Watcher keep descriptors for a
// limited number of processes without a channel group, that the others are counted and kept when
// there is room, and that processes with a group are found meanwhile, also the user's own.
func TestOpenersOfAUserAreLimited(t *testing.T) {
	const (
		processes  = 40
		perProcess = 20 // descriptors, which take two places
		kept       = 4  // of 8 places
		places     = 2 * kept * accountShare
	)
	for _, noBPF := range []bool{true, false} {
		t.Run(fmt.Sprintf("NoBPF=%v", noBPF), func(t *testing.T) {
			_, path, m := mounted(t)
			openers := startOpeners(t, path, processes, perProcess)
			before := openPidfds(t) // of the processes that the test started
			w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: noBPF, places: places})
			w.waitForDetail(openDevices, fmt.Sprintf("%d processes without a channel group are not kept", processes-kept))
			const scanned = 1 // the process of which a scan is under way
			if n := openPidfds(t) - before; n > kept+scanned {
				t.Errorf("the Watcher has %d pidfds, want at most %d", n, kept+scanned)
			}
			p := m.Start(t)
			g := w.wantComplete(p.Context)
			wantGroup(t, g, p.PID, p.Context)
			own := startProcess(t, path)
			own.order("become by " + strconv.Itoa(hostile))
			c := own.make()
			if g := w.wantComplete(c); g.Process.PID != own.PID || g.Process.Starter != hostile {
				t.Errorf("got a group of process %d of user %d, want %d of %d", g.Process.PID, g.Process.Starter, own.PID, hostile)
			}
			for _, o := range openers[kept:] {
				_ = o.Process.Kill()
				_ = o.Wait()
			}
			w.waitForDetail(openDevices, "no user has more than 8")
		})
	}
}

// TestUnkeptProcessIsKeptWhenThereIsRoom checks that a process for which there was no place is
// kept when another one has exited, although no call of it is traced.
func TestUnkeptProcessIsKeptWhenThereIsRoom(t *testing.T) {
	_, path, _ := mounted(t)
	openers := startOpeners(t, path, 3, 1)
	w, err := newWatcher(t.Context(), Config{Control: path, Only: proc.Everyone, places: accountShare})
	if err != nil {
		t.Fatal(err)
	}
	w.tracedSince = 0 // nothing is guessed
	for _, o := range openers {
		w.scan(o.Process.Pid, nil, false)
	}
	kept := openers[0]
	if len(w.openers) != 1 || w.openers[kept.Process.Pid] == nil || len(w.unkept) != 2 || w.account(hostile).places != 1 {
		t.Fatalf("got %d processes and %d more, want 1 and 2", len(w.openers), len(w.unkept))
	}
	w.queueUnkept(false)
	if len(w.queued) != 0 {
		t.Errorf("without room: %d processes are scanned again, want none", len(w.queued))
	}
	_ = kept.Process.Kill()
	_ = kept.Wait()
	w.exited(<-w.exits)
	w.queueUnkept(false)
	w.scanDue(time.Now())
	if len(w.openers) != 1 || w.openers[kept.Process.Pid] != nil || len(w.unkept) != 1 {
		t.Errorf("with room: got %d processes and %d more, want 1 and 1", len(w.openers), len(w.unkept))
	}
	for _, h := range w.openers {
		w.forget(h)
	}
	w.stop()
	w.waiters.Wait()
}

// TestHeirWithoutPlaceIsFound checks that the group of a process that has exited is found in a
// process that inherited its open file, although there is no place for such processes.
func TestHeirWithoutPlaceIsFound(t *testing.T) {
	_, path, _ := mounted(t)
	w := startWatcher(t, Config{Control: path, Only: proc.Everyone, NoBPF: true, places: 1})
	p := startProcess(t, path)
	p.order("become by " + strconv.Itoa(hostile))
	c := p.make()
	w.wantComplete(c)
	child, err := strconv.Atoi(p.order("pass on"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	startOpeners(t, path, 3, 1) // the place is taken
	w.waitForDetail(openDevices, "processes without a channel group are not kept")
	p.Kill()
	for _, want := range []Key{{c.Client, c.Compute.Group}, {}} {
		if got := w.wantGone(); got.PID != p.PID || got.Key != want {
			t.Fatalf("got %+v gone, want %+v of process %d", got, want, p.PID)
		}
	}
	if g := w.wantFound(); g.Process.PID != child || g.Client != c.Client {
		t.Errorf("got client %v of %d, want %v of %d", g.Client, g.Process.PID, c.Client, child)
	}
}

// TestPlaces checks how many places accounts may have: one alone, many in turn, and root.
func TestPlaces(t *testing.T) {
	const alice, bob = 1000, 1001
	subuids := func(uid uint32) uint32 {
		if uid >= 100_000 {
			return alice
		}
		return uid
	}
	w, err := newWatcher(t.Context(), Config{Proc: t.TempDir(), places: maxPlaces, Account: subuids})
	if err != nil {
		t.Fatal(err)
	}
	fill := func(uids ...uint32) (n int) {
		for {
			h := &opener{process: proc.Process{Starter: uids[n%len(uids)]}, files: map[int]*controlFD{1: {}}}
			if !w.takePlaces(h) {
				return n
			}
			n++
		}
	}
	if n := fill(alice, 100_000, 100_001, 165_535); n != maxPlaces/accountShare {
		t.Errorf("a user with subordinate uids: got %d places, want %d", n, maxPlaces/accountShare)
	}
	for uid := uint32(2000); uid < 2100; uid++ {
		fill(uid)
	}
	if n, few := fill(bob), maxPlaces/2/quota.Accounts; n < few {
		t.Errorf("the last user: got %d places, want at least %d", n, few)
	}
	if n := fill(0); n != maxPlaces/rootShare || w.placesTaken > maxPlaces {
		t.Errorf("root: got %d places, want %d; %d taken by others", n, maxPlaces/rootShare, w.placesTaken)
	}
	h := &opener{process: proc.Process{PID: 1, Starter: alice}}
	for i := range maxUnkept + 5 {
		h.process.PID = i
		w.addUnkept(h)
	}
	if got, want := (&testWatcher{Watcher: w}).detail(openDevices), fmt.Sprintf("more than %d processes", maxUnkept); !strings.HasPrefix(got, want) {
		t.Errorf("check: got %q, want %q at its beginning", got, want)
	}
}
