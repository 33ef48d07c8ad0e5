package discover

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/proc"
)

// crowdedProc is a procfs of chosen processes.
type crowdedProc struct {
	t     *testing.T
	root  string
	heavy string // the folder of a process with lookWindow descriptors, none of the control device
}

func newCrowdedProc(t *testing.T) *crowdedProc {
	t.Helper()
	p := &crowdedProc{t: t, root: t.TempDir(), heavy: filepath.Join(t.TempDir(), "heavy")}
	p.makeFolder(p.heavy, lookWindow, nil)
	return p
}

// makeFolder makes the folder of a process that has descriptors 0 to n-1 of /dev/null, and others.
func (p *crowdedProc) makeFolder(dir string, n int, others map[int]string) {
	p.t.Helper()
	err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755)
	for fd := 0; fd < n && err == nil; fd++ {
		err = os.Symlink("/dev/null", filepath.Join(dir, "fd", strconv.Itoa(fd)))
	}
	for fd, path := range others {
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, "fd", strconv.Itoa(fd)))
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.setStart(dir, 9_000_000_000) // after every real process
}

func (p *crowdedProc) setStart(dir string, ticks uint64) {
	p.t.Helper()
	text := fmt.Sprintf("1 (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0", ticks)
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// setUser makes a user the owner of a process, also by its status.
func (p *crowdedProc) setUser(dir string, uid int) {
	p.t.Helper()
	path := filepath.Join(dir, "status")
	text := fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\nGid:\t0\t0\t0\t0\n", uid, uid, uid, uid)
	err := os.WriteFile(path, []byte(text), 0o600)
	for _, file := range []string{path, dir} {
		if err == nil {
			err = os.Chown(file, uid, -1)
		}
	}
	if err != nil {
		p.t.Skipf("needs root, to make files of other users: %v", err)
	}
}

// add lists a process whose folder is elsewhere.
func (p *crowdedProc) add(pid int, folder string) {
	p.t.Helper()
	if err := os.Symlink(folder, filepath.Join(p.root, strconv.Itoa(pid))); err != nil {
		p.t.Fatal(err)
	}
}

// addHeavy lists n processes with many descriptors, from a pid on.
func (p *crowdedProc) addHeavy(from, n int) {
	for pid := from; pid < from+n; pid++ {
		p.add(pid, p.heavy)
	}
}

func (p *crowdedProc) setLastPID(pid int) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.root, "loadavg"), fmt.Appendf(nil, "0.00 0.01 0.05 1/200 %d\n", pid), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// TestHeirIsFoundInACrowd checks that a process which has inherited a descriptor is found among
// many processes with many descriptors: by the number that the descriptor had, and if it has
// another number, because the processes of the same user and the youngest ones are looked at first.
func TestHeirIsFoundInACrowd(t *testing.T) {
	const crowd, other = 1000, 65534
	for _, tt := range []struct {
		name    string
		order   string
		younger bool // the others, than the heir
		uid     int  // of the others
	}{
		{"same number", "fork", true, os.Getuid()},
		{"another number, younger", "pass on by 20", false, os.Getuid()},
		{"another number, same user", "pass on by 20", true, other},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := newCrowdedProc(t)
			files.setUser(files.heavy, tt.uid)
			_, path, _ := mounted(t)
			p := startProcess(t, path)
			c := p.make()
			child, err := strconv.Atoi(p.order(tt.order))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
			for _, pid := range []int{p.PID, child} {
				files.add(pid, "/proc/"+strconv.Itoa(pid))
			}
			first := max(p.PID, child) + 1
			files.addHeavy(first, crowd)
			if files.setLastPID(child); tt.younger {
				files.setLastPID(first + crowd)
			}
			w, err := newWatcher(t.Context(), Config{Proc: files.root, Control: path, Only: proc.Everyone})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(w.events)
				w.scan(p.PID, nil, true)
				p.Kill()
				w.exited(<-w.exits)
				w.stop()
				for _, h := range w.openers {
					h.pidfd.Close()
				}
				w.waiters.Wait()
			}()
			var got []string
			for e := range w.events {
				if e.Found != nil {
					e.Found.File.Close()
					got = append(got, fmt.Sprint("found ", e.Found.Process.PID))
				} else {
					got = append(got, fmt.Sprint("gone ", e.Gone.PID, e.Gone.Handle))
				}
			}
			want := []string{fmt.Sprint("found ", p.PID), fmt.Sprint("gone ", p.PID, c.Compute.Group), fmt.Sprint("gone ", p.PID, Key{}.Handle), fmt.Sprint("found ", child)}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestOrderOfHeirs checks in which order heirs are scanned: those of the same user first, by the
// number of the descriptor before another one, the youngest first.
func TestOrderOfHeirs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make files of other users")
	}
	const alice, bob = 1000, 1001
	files := newCrowdedProc(t)
	control := filepath.Join(t.TempDir(), "nvidiactl")
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for pid, p := range map[int]struct{ uid, fd int }{
		10: {alice, 7}, 11: {bob, 7}, 12: {alice, 9}, 13: {bob, 9}, 14: {alice, 7}, // after the pids have wrapped
		90: {alice, 7}, 91: {bob, 7}, 92: {alice, 9}, 93: {alice, 8}, 94: {bob, 9},
		95: {alice, 7}, // an opener
	} {
		dir := filepath.Join(files.root, strconv.Itoa(pid))
		file := control
		if p.fd == 8 {
			file = "/dev/null"
		}
		files.makeFolder(dir, 3, map[int]string{p.fd: file})
		if err := os.Chown(dir, p.uid, -1); err != nil {
			t.Fatal(err)
		}
	}
	files.setLastPID(20)
	w, err := newWatcher(t.Context(), Config{Proc: files.root, Control: control})
	if err != nil {
		t.Fatal(err)
	}
	w.openers[95] = &opener{}
	h := &opener{process: proc.Process{UID: alice, Starter: alice}, groups: map[Key]*Group{{1, 2}: {fd: 7}, {1, 3}: {fd: 7}, {2, 2}: {fd: 70}}}
	var got []int
	for _, p := range w.likelyHeirs(h) {
		got = append(got, p.pid)
	}
	if want := []int{14, 10, 90, 12, 92, 11, 91, 13, 94}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestSearchForHeirsIsLimited checks that neither many processes nor many descriptors make the
// search long.
func TestSearchForHeirsIsLimited(t *testing.T) {
	files := newCrowdedProc(t)
	files.addHeavy(10, maxHeirPIDs+10)
	control := filepath.Join(t.TempDir(), "nvidiactl")
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []int{os.Getuid(), os.Getuid() + 1} {
		w, err := newWatcher(t.Context(), Config{Proc: files.root, Control: control})
		if err != nil {
			t.Fatal(err)
		}
		h := &opener{process: proc.Process{UID: uint32(uid), Starter: uint32(uid)}, groups: map[Key]*Group{{1, 2}: {fd: 2000}}}
		if found := w.likelyHeirs(h); len(found) > 0 {
			t.Errorf("got %v, want none", found)
		}
		if n := w.looks.Load(); n < maxHeirPIDs || n > maxHeirLooks+lookWindow {
			t.Errorf("descriptors looked at: got %d, want %d to %d", n, maxHeirPIDs, maxHeirLooks+lookWindow)
		}
	}
}
