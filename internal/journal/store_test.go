package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, path string) *journal.Store {
	t.Helper()
	s, err := journal.Open(path, 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// memoryDir returns a folder in memory, as a runtime directory is: on a disk each of the
// thousands of files of a test would take milliseconds.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "journal")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// values returns what a store has.
func values(s *journal.Store) map[string]string {
	all := map[string]string{}
	for _, k := range s.Keys("") {
		var v json.RawMessage
		s.Get(k, &v)
		all[k] = string(v)
	}
	return all
}

// TestStoreKeepsValues: values outlive the store; a file that only its owner can read holds
// them, and stays small however often they change.
func TestStoreKeepsValues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "journal")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	for i := range 20000 {
		if err := errors.Join(s.Put("a", i), s.Put("b", "x"), s.Put("c", 1), s.Delete("c")); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(path)
	if err != nil || st.Size() > 100<<10 || st.Mode().Perm() != 0o600 {
		t.Errorf("got a file of %d bytes with mode %v, %v; want at most 100 KiB and 0600", st.Size(), st.Mode(), err)
	}
	if _, err := journal.Open(path, 0, quiet); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("open it a second time: got %v, want %v", err, journal.ErrLocked)
	}
	want := values(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := values(open(t, path)); !maps.Equal(got, want) || got["a"] != "19999" || len(got) != 2 {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLockIsSharedWithTheGuardian: the journal stays locked while another process has the
// lock file.
func TestLockIsSharedWithTheGuardian(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	fd, err := syscall.Dup(int(s.LockFile().Fd())) // as SCM_RIGHTS does
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if _, err := journal.Open(path, 20*time.Millisecond, quiet); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("while the lock is held: got %v, want %v", err, journal.ErrLocked)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = syscall.Close(fd) })
	s, err = journal.Open(path, 10*time.Second, quiet)
	if err != nil {
		t.Fatalf("after the lock was given up: got %v", err)
	}
	_ = s.Close()
}

// TestStoreRefusesFilesOfOthers: links, folders, and files that others can write are neither
// read nor written.
func TestStoreRefusesFilesOfOthers(t *testing.T) {
	for _, suffix := range []string{"", ".lock"} {
		for name, put := range map[string]func(path, victim string) error{
			"symbolic link": func(p, v string) error { return os.Symlink(v, p) },
			"hard link":     func(p, v string) error { return os.Link(v, p) },
			"folder":        func(p, _ string) error { return os.Mkdir(p, 0o700) },
			"FIFO":          func(p, _ string) error { return syscall.Mkfifo(p, 0o600) },
			"open to all":   func(p, _ string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o666)) },
		} {
			dir := t.TempDir()
			path, victim := filepath.Join(dir, "journal"), filepath.Join(dir, "victim")
			if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), put(path+suffix, victim)); err != nil {
				t.Fatal(err)
			}
			if s, err := journal.Open(path, 0, quiet); err == nil {
				t.Errorf("%s as journal%s: got no error", name, suffix)
				_ = s.Close()
			}
			if text, _ := os.ReadFile(victim); string(text) != "precious" {
				t.Errorf("%s as journal%s: the file that it leads to was changed to %q", name, suffix, text)
			}
		}
	}
}

// TestLeftoverOfACompactionIsReplaced: also a link in the place of the new file is removed,
// not followed.
func TestLeftoverOfACompactionIsReplaced(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Symlink(victim, filepath.Join(dir, "journal.new"))); err != nil {
		t.Fatal(err)
	}
	_ = open(t, filepath.Join(dir, "journal")).Put("a", 1)
	if text, _ := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the file that the link leads to: got %q", text)
	}
}

// TestNewerVersionIsRefused: the file stays as it is, and the error says what to do.
func TestNewerVersionIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	newer := []byte("GIVEWAY\x02anything")
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := journal.Open(path, 0, quiet)
	if !errors.Is(err, journal.ErrVersion) || !strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error that names the file and its version", err)
	}
	if text, _ := os.ReadFile(path); !bytes.Equal(text, newer) {
		t.Errorf("the file was changed to %q", text)
	}
}

// TestOtherBootIsIgnored: nothing of an earlier boot exists any more.
func TestOtherBootIsIgnored(t *testing.T) {
	defer journal.SetBootID("")
	path := filepath.Join(t.TempDir(), "journal")
	for _, c := range []struct {
		boot string
		want int
	}{{"first", 0}, {"first", 1}, {"second", 0}} {
		journal.SetBootID(c.boot)
		s := open(t, path)
		if got := values(s); len(got) != c.want || s.Damaged() != nil {
			t.Errorf("boot %s: got %v, %v; want %d values", c.boot, got, s.Damaged(), c.want)
		}
		_ = errors.Join(s.Put("a", 1), s.Close())
	}
}

// TestFullDiskKeepsTheJournal: a record that does not fit is refused; what was there stays,
// and later records are written again.
func TestFullDiskKeepsTheJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	_ = s.Put("a", 1)
	size, _ := os.Stat(path)
	var old syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old)
	limited := old
	limited.Cur = uint64(size.Size() + 10) // the kernel writes 10 bytes and then refuses
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	err := s.Put("b", strings.Repeat("x", 100))
	_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)
	if err == nil {
		t.Fatal("a record beyond the limit was accepted")
	}
	if err := s.Put("c", 3); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	s = open(t, path)
	if got := fmt.Sprint(values(s)); got != "map[a:1 c:3]" || s.Damaged() != nil {
		t.Errorf("got %v, %v", got, s.Damaged())
	}
}

// TestFullDiskDoesNotHideChanges: daemon and guardian were killed and the disk is full. The next
// daemon can undo what the journal lists. Nothing can be added until there is room.
func TestFullDiskDoesNotHideChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	if err := errors.Join(s.PutQueue(3, journal.Queue{}), s.PutChange(3, journal.Change{Sliced: true}), s.Put("order", 1), s.Close()); err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old)
	limited := old
	limited.Cur = 10
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	s, err := journal.Open(path, 0, quiet)
	if err != nil {
		_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)
		t.Fatal(err)
	}
	all, last, _ := s.Left()
	put := s.Put("order", 2)
	_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)
	if len(all) != 1 || last != 3 || put == nil {
		t.Errorf("while the disk is full: got changes %v, last queue %d, put %v; want one change, 3 and an error", all, last, put)
	}
	for end := time.Now().Add(5 * time.Second); put != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		put = s.Put("order", 2)
	}
	if err := errors.Join(put, s.ForgetQueue(3), s.Close()); err != nil {
		t.Fatalf("when there is room: %v", err)
	}
	s = open(t, path)
	if got := fmt.Sprint(values(s)); got != "map[order:2]" || s.Damaged() != nil {
		t.Errorf("opened again: got %v, %v", got, s.Damaged())
	}
}

// TestRemovedFileIsWrittenAgain: the file, or the folder that it is in, was removed or moved while the
// journal is open. The next write makes a file with all values.
func TestRemovedFileIsWrittenAgain(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"file removed":   os.Remove,
		"folder removed": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"folder moved":   func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
	} {
		path := filepath.Join(t.TempDir(), "giveway", "journal")
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		s := open(t, path)
		if err := errors.Join(s.Put("a", 1), remove(path), s.Put("b", 2), s.Put("c", 3)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		copied := filepath.Join(t.TempDir(), "copy") // the journal itself is locked
		text, err := os.ReadFile(path)
		if err = errors.Join(err, os.WriteFile(copied, text, 0o600), s.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s = open(t, copied)
		if got := fmt.Sprint(values(s)); got != "map[a:1 b:2 c:3]" {
			t.Errorf("%s: got %s", name, got)
		}
		_ = errors.Join(s.Close(), os.Remove(copied))
		if err := s.Put("d", 4); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: after Close: got %v, want %v", name, err, os.ErrClosed)
		}
		if _, err := os.Stat(copied); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a closed journal wrote the file again", name)
		}
	}
}

// TestDamageLeavesRoomForOrders: the orders of a damaged journal are dropped, so that as many fit again.
func TestDamageLeavesRoomForOrders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	large := strings.Repeat("x", journal.MaxOrders/8)
	for i := range 7 {
		if err := s.Put(fmt.Sprint("order", i), large); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Close()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 100)) // no frame begins with zeros
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	defer s.Close()
	if s.Damaged() == nil || len(values(s)) != 0 {
		t.Fatalf("got damage %v and %d values, want damage and none", s.Damaged(), len(values(s)))
	}
	for i := range 7 {
		if err := s.Put(fmt.Sprint("later", i), large); err != nil {
			t.Fatalf("order %d: %v", i, err)
		}
	}
}

// TestUndoFromTheDiskAfterACrashAtAnyByte makes random changes of a device, each after its
// record was written. The file is then cut at every byte, and one bit of every byte is
// flipped. Undoing what the file lists leaves every queue as found, unless the damage is
// reported. A cut file is never damaged: it lists at least what was changed by then.
func TestUndoFromTheDiskAfterACrashAtAnyByte(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		path := filepath.Join(memoryDir(t), "journal")
		s := open(t, path)
		type moment struct {
			size   int64 // of the file when the device became as it is
			device map[sched.QueueID]journal.Change
		}
		device := map[sched.QueueID]journal.Change{}
		first, _ := os.Stat(path)
		history := []moment{{first.Size(), map[sched.QueueID]journal.Change{}}}
		for range 40 {
			id := sched.QueueID(1 + r.IntN(3))
			c := journal.Change{Level: sched.Level(r.IntN(4)), Sliced: r.IntN(2) == 0}
			both := journal.Change{Level: max(c.Level, device[id].Level), Sliced: c.Sliced || device[id].Sliced}
			err := errors.Join(s.PutQueue(id, journal.Queue{Process: proc.ID{PID: int(id)}, State: json.RawMessage(`{"found":1}`)}), s.PutChange(id, both))
			if err != nil {
				t.Fatal(err)
			}
			device[id] = c // the change is made after its record was written, and undone before
			st, _ := os.Stat(path)
			history = append(history, moment{st.Size(), maps.Clone(device)})
			if err := s.PutChange(id, c); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// check undoes what the file lists and returns the queues that stay changed.
		check := func(text []byte, device map[sched.QueueID]journal.Change) (changed string, damaged error) {
			copied := path + ".copy"
			if err := os.WriteFile(copied, text, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := journal.Open(copied, 0, quiet)
			if err != nil {
				return "", err
			}
			defer s.Close()
			left := maps.Clone(device)
			all, _, err := s.Left()
			for _, l := range all {
				c := left[l.ID]
				for _, a := range l.Change.Undo(l.ID) {
					switch a.Verb {
					case sched.SetSlice:
						c.Sliced = false
					case sched.Start:
						c.Level = 0
					}
				}
				left[l.ID] = c
			}
			maps.DeleteFunc(left, func(_ sched.QueueID, c journal.Change) bool { return c == (journal.Change{}) })
			if len(left) > 0 {
				changed = fmt.Sprint(left)
			}
			return changed, errors.Join(err, s.Damaged())
		}
		at := 0
		for n := first.Size(); n <= int64(len(text)); n++ {
			for at+1 < len(history) && history[at+1].size <= n {
				at++
			}
			if changed, damaged := check(text[:n], history[at].device); changed != "" || damaged != nil {
				t.Fatalf("seed %d: killed after byte %d: got changed %s, damage %v; want none", seed, n, changed, damaged)
			}
		}
		for i := range text {
			flipped := bytes.Clone(text)
			flipped[i] ^= 1 << r.IntN(8)
			if changed, damaged := check(flipped, device); changed != "" && damaged == nil {
				t.Fatalf("seed %d: a flipped bit in byte %d: %s stays changed and is not reported", seed, i, changed)
			} else if damaged == nil {
				t.Fatalf("seed %d: a flipped bit in byte %d is not reported", seed, i)
			}
		}
	}
}

// TestDamagedJournalIsKeptUntilItIsReplaced: Open of a damaged journal cannot write, or is killed, before
// the new file is in place. The next Open finds the changes and the damage all the same.
func TestDamagedJournalIsKeptUntilItIsReplaced(t *testing.T) {
	for name, interrupt := range map[string]func(path string) error{
		"the new file cannot be written": func(path string) error {
			if err := os.MkdirAll(path+".new/x", 0o700); err != nil {
				return err
			}
			s, err := journal.Open(path, 0, quiet)
			if err == nil {
				err = s.Close()
			}
			return errors.Join(err, os.RemoveAll(path+".new"))
		},
		"killed before the new file is in place": func(path string) error { return os.Link(path, path+".damaged") },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			s := open(t, path)
			err := errors.Join(s.PutQueue(3, journal.Queue{}), s.PutChange(3, journal.Change{Sliced: true}), s.Close())
			text, _ := os.ReadFile(path)
			text = append(text, "this is no record"...)
			if err = errors.Join(err, os.WriteFile(path, text, 0o600), interrupt(path)); err != nil {
				t.Fatal(err)
			}
			s = open(t, path)
			if all, _, err := s.Left(); len(all) != 1 || err != nil || s.Damaged() == nil {
				t.Errorf("got changes %v, %v, damage %v; want one change, and the damage", all, err, s.Damaged())
			}
			if kept, _ := os.ReadFile(path + ".damaged"); !bytes.Equal(kept, text) {
				t.Error("the damaged file was not kept")
			}
		})
	}
}

// TestDamagedJournalDropsOrders: a later record, which is lost, may have revoked them. The
// file is kept under another name.
func TestDamagedJournalDropsOrders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := open(t, path)
	_ = errors.Join(s.Put("order", 1), s.PutQueue(3, journal.Queue{Process: proc.ID{PID: 5}}), s.PutChange(3, journal.Change{Sliced: true}), s.Put("order", 2))
	_ = s.Close()
	text, _ := os.ReadFile(path)
	text[len(text)-1] ^= 1
	_ = os.WriteFile(path, text, 0o600)
	s = open(t, path)
	all, last, err := s.Left()
	if s.Damaged() == nil || len(s.Keys("order")) != 0 || len(all) != 1 || last != 3 || err != nil {
		t.Errorf("got damage %v, keys %v, changes %v, %v; want the change alone", s.Damaged(), s.Keys(""), all, err)
	}
	if kept, _ := os.ReadFile(path + ".damaged"); !bytes.Equal(kept, text) {
		t.Error("the damaged file was not kept")
	}
	_ = s.Close()
	if s = open(t, path); len(s.Keys("order")) != 0 || s.Damaged() != nil {
		t.Errorf("opened again: got %v, %v, want no order", s.Keys(""), s.Damaged())
	}
}

// TestJournalThatCannotBeCompacted: it grows, but never so far that it could not be read
// again. What does not fit is refused.
func TestJournalThatCannotBeCompacted(t *testing.T) {
	path := filepath.Join(memoryDir(t), "journal")
	s := open(t, path)
	if err := os.MkdirAll(filepath.Join(path+".new", "x"), 0o700); err != nil { // in the way of the new file
		t.Fatal(err)
	}
	_ = s.PutQueue(1, journal.Queue{Process: proc.ID{PID: 5}})
	_ = s.PutChange(1, journal.Change{Sliced: true})
	large := strings.Repeat("x", 1<<20-100)
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		err = s.Put("order", fmt.Sprint(i, large))
	}
	if err == nil {
		t.Error("100 MiB: got no error")
	}
	_ = errors.Join(s.Close(), os.RemoveAll(path+".new"))
	s = open(t, path)
	if all, _, err := s.Left(); len(all) != 1 || err != nil || s.Damaged() != nil {
		t.Errorf("opened again: got %v, %v, damage %v; want the change", all, err, s.Damaged())
	}
}

// TestOrdersLeaveRoomForChanges: with as many orders as fit, a change can still be recorded.
func TestOrdersLeaveRoomForChanges(t *testing.T) {
	s := open(t, filepath.Join(memoryDir(t), "journal"))
	large := strings.Repeat("x", 100<<10)
	var err error
	for i := 0; i < 200 && err == nil; i++ {
		err = s.Put(fmt.Sprint("order/", i), large)
	}
	if err == nil {
		t.Fatal("20 MiB of orders: got no error")
	}
	if err := errors.Join(s.PutQueue(1, journal.Queue{State: json.RawMessage(`"` + large + `"`)}), s.PutChange(1, journal.Change{Sliced: true})); err != nil {
		t.Errorf("a change after that: got %v", err)
	}
}

func FuzzStore(f *testing.F) {
	f.Add([]byte("GIVEWAY\x01"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := journal.Open(path, 0, quiet)
		if err != nil {
			return
		}
		defer s.Close()
		_, _, _ = s.Left()
		if err := s.Put("a", 1); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkPutChange measures one record of a change, with the compactions that it causes.
func BenchmarkPutChange(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "journal")
	if err != nil {
		b.Skip("no tmpfs at /dev/shm")
	}
	defer os.RemoveAll(dir)
	s, err := journal.Open(filepath.Join(dir, "journal"), 0, quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := 0; b.Loop(); i++ {
		if err := s.PutChange(sched.QueueID(i%32), journal.Change{Sliced: true, Level: sched.Level(1 + i/32%2)}); err != nil {
			b.Fatal(err)
		}
	}
}
