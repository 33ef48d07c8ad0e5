package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Store is a journal on disk: values by key, which outlive the process. It is a file to which
// a record is appended for every change of a value, and which is written anew when most of
// its records are outdated. A nil Store keeps nothing.
//
// A write is in the page cache when it returns and so survives SIGKILL of every process. The
// file is never synced to a disk: only the end of the kernel could lose the page cache, and
// the values name processes and queues that end with the kernel. A file of an earlier boot
// is therefore ignored.
type Store struct {
	path string
	log  *slog.Logger
	lock *os.File // nil: the caller has it

	mu     sync.Mutex
	file   *os.File
	values map[string]json.RawMessage
	size   int64 // of the file
	live   int64 // of that, bytes of records that are not outdated
	torn   bool  // the end of the file may not be a whole record, so nothing may be appended
	// rewriteAt is when a torn file may be written anew, after that failed with rewriteErr.
	rewriteAt  time.Time
	rewriteErr error
	// compactAt is the size at which compaction is tried again after it failed; zero: it has not.
	compactAt int64
	closed    bool
	damaged   error
	failing   error // why the last write failed; nil: it did not
}

// MaxOrders is how many bytes of orders a Store keeps. What is left of its room is for queues and
// changes: users cannot fill it with orders.
const MaxOrders = maxLive / 2

// Limits of a Store. A file never grows beyond maxFile, so a larger one is not read.
const (
	maxRecord   = 1 << 20
	maxLive     = 8 << 20
	maxFile     = 64 << 20
	compactSize = 64 << 10 // a smaller file is not written anew
	compactMore = 4        // times the live bytes: a larger file is
)

// LockTime is how long to wait for the lock of a journal by default. A guardian that restores
// queues holds it, at most for as long as guardian.Undo takes.
const LockTime = 15 * time.Second

// Path returns where the daemon with a control socket keeps its journal: beside the socket.
func Path(socket string) string { return socket + ".journal" }

// DamagedPath returns where a damaged journal is kept.
func DamagedPath(path string) string { return path + ".damaged" }

// ErrLocked means that another process uses the journal.
var ErrLocked = errors.New("another daemon uses the journal, or the guardian of one that died, which needs some seconds; stop the daemon, or try again then")

// Open opens the journal at path, and creates it if there is none. It waits for its lock for
// the given time at most. The lock is shared with every process that got LockFile.
//
// A record that was not written completely is cut off. A damaged file is replaced by one with the
// values that could be read, and kept under another name: see Damaged. If no file can be written,
// for example because the disk is full, a file that was there stays as it is: its changes can be
// undone, and Put and Delete fail until there is room. After an error the file is as it was.
func Open(path string, wait time.Duration, log *slog.Logger) (*Store, error) {
	lock, err := openFile(path+".lock", os.O_CREATE)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("open the journal: %w; run this as root or as the daemon's user", err)
	} else if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	if err := waitForLock(lock, wait); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open the journal %s: %w", path, err)
	}
	s, err := OpenLocked(path, log)
	if err != nil {
		lock.Close()
		return nil, err
	}
	s.lock = lock
	return s, nil
}

// Check returns why Open could not open the journal at path whatever the state of its lock, as far as that
// shows while another process uses the journal. It changes nothing but to create the file of the lock.
func Check(path string) error {
	lock, err := openFile(path+".lock", os.O_CREATE)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	defer lock.Close()
	f, err := openFile(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer f.Close()
		s := &Store{path: path, values: make(map[string]json.RawMessage)}
		if err = s.read(f); !errors.Is(err, ErrVersion) { // damage is repaired, and a record may be half written
			return nil
		}
	}
	return fmt.Errorf("open the journal %s: %w", path, err)
}

// OpenLocked is Open for a process that holds the lock already.
func OpenLocked(path string, log *slog.Logger) (*Store, error) {
	s := &Store{path: path, log: log, values: make(map[string]json.RawMessage)}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("open the journal %s: %w", path, err)
	}
	err := s.rewriteTorn()
	if err != nil && s.file == nil {
		return nil, fmt.Errorf("open the journal %s: %w", path, err)
	}
	s.noteWrite(err)
	return s, nil
}

func waitForLock(f *os.File, wait time.Duration) error {
	for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return os.NewSyscallError("flock", err)
		case time.Now().After(end):
			return ErrLocked
		}
	}
}

// openFile opens a file that only this user can read and write. A link, or a file of another
// user, is refused: its owner could make us write elsewhere or read what we did not write.
func openFile(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|flags, 0o600)
	if err != nil {
		return nil, err
	}
	var st syscall.Stat_t
	if err = syscall.Fstat(int(f.Fd()), &st); err == nil &&
		(st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 || st.Nlink > 1) {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("it is not a regular file that only this user can read and write; remove it")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// load reads the values. The file stays in place and open, also if it is damaged: until rewrite
// replaces it, it is the only one that lists the changes.
func (s *Store) load() error {
	aside := DamagedPath(s.path)
	s.dropLink(aside)
	f, err := openFile(s.path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	damage := s.read(f)
	if errors.Is(damage, ErrVersion) {
		f.Close()
		return damage
	}
	s.file, s.torn = f, true
	if damage != nil {
		s.damaged = fmt.Errorf("journal %s is damaged: %w. It is kept as %s", s.path, damage, aside)
		for key := range s.values {
			if isOrder(key) {
				s.apply(record{Key: key})
			}
		}
		s.log.Error("journal is damaged; its changes are undone as far as they can be read", "path", s.path, "error", damage, "kept_as", aside, "values_kept", len(s.values))
		_ = os.Remove(aside)
		if err := os.Link(s.path, aside); err != nil { // no reason to leave the changes in force
			s.log.Error("damaged journal is not kept", "error", err)
		}
	}
	return nil
}

// dropLink removes the second name that a damaged file has if an earlier Open was killed before
// rewrite replaced the file. openFile refuses a file with several names.
func (s *Store) dropLink(name string) {
	first, err := os.Lstat(s.path)
	if err != nil {
		return
	}
	if second, err := os.Lstat(name); err == nil && os.SameFile(first, second) {
		_ = os.Remove(name)
	}
}

// Damaged returns what is wrong with the file that Open found, or nil. Of a damaged file the
// queues and changes before the damage are kept: undoing a change twice is harmless. Orders
// are dropped: a later one may have revoked them.
func (s *Store) Damaged() error {
	if s == nil {
		return nil
	}
	return s.damaged
}

// Failing returns why the last write failed, or nil if it did not.
func (s *Store) Failing() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failing
}

// LockFile returns the file whose lock is held, to give it to another process: the journal is
// locked until every process has closed it.
func (s *Store) LockFile() *os.File { return s.lock }

// Path returns the path of the journal.
func (s *Store) Path() string { return s.path }

// Put sets the value of a key. After an error the old value is in force.
func (s *Store) Put(key string, value any) error {
	if s == nil {
		return nil
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = s.append(record{Key: key, Value: text})
	}
	if err != nil {
		return fmt.Errorf("write %s to the journal: %w", key, err)
	}
	return nil
}

// Delete removes keys. After an error some may be left.
func (s *Store) Delete(keys ...string) error {
	if s == nil {
		return nil
	}
	for _, key := range keys {
		if err := s.append(record{Key: key}); err != nil {
			return fmt.Errorf("delete %s from the journal: %w", key, err)
		}
	}
	return nil
}

// Get decodes the value of a key. ok is false if there is none, or it does not fit.
func (s *Store) Get(key string, value any) (ok bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.values[key]
	return ok && json.Unmarshal(text, value) == nil
}

// Keys returns the keys that begin with a prefix, sorted.
func (s *Store) Keys(prefix string) []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.values)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
}

// Close closes the journal and gives up its lock.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	err := s.file.Close()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// append writes a record and applies it.
func (s *Store) append(r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.values[r.Key]
	switch {
	case s.closed: // another process may have the lock, and the file
		return os.ErrClosed
	case r.Value == nil && !exists, r.Value != nil && exists && string(old) == string(r.Value):
		return nil
	case r.Value != nil && s.live+r.length() > r.maxLive():
		return fmt.Errorf("it has %d bytes of values, and no more than %d are kept", s.live, r.maxLive())
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	err = s.write(text)
	s.noteWrite(err)
	if err != nil {
		return err
	}
	s.apply(r)
	if s.size > max(compactSize, s.compactAt) && s.size > compactMore*s.live {
		if err := s.rewrite(); err != nil {
			s.compactAt = 2 * s.size // not with every record
			s.log.Warn("journal could not be compacted; it grows", "error", err, "bytes", s.size)
		}
	}
	return nil
}

// write appends an encoded record to the file. s.mu is held.
func (s *Store) write(text []byte) (err error) {
	if s.torn = s.torn || s.isRemoved(); s.torn {
		err = s.rewriteTorn()
	} else if s.size+int64(len(text)) > maxFile {
		err = s.rewrite()
	}
	if err != nil {
		return err
	}
	if n, err := s.file.WriteAt(text, s.size); err != nil {
		s.torn = n > 0 && s.file.Truncate(s.size) != nil
		return err
	}
	s.size += int64(len(text))
	return nil
}

// isRemoved reports whether there is no file at the path. What is written to the open file then, no
// later process finds. Another file there may be of another daemon, and is left alone.
func (s *Store) isRemoved() bool {
	_, err := os.Lstat(s.path)
	return errors.Is(err, fs.ErrNotExist)
}

// noteWrite notes whether a write failed, and logs that only if it did not before: every change of
// a queue is a write. s.mu is held, or s is not in use yet.
func (s *Store) noteWrite(err error) {
	switch {
	case err != nil && s.failing == nil:
		s.log.Error("journal cannot be written; changes that it does not list are not made until it can", "path", s.path, "error", err)
	case err == nil && s.failing != nil:
		s.log.Info("journal can be written again", "path", s.path)
	}
	s.failing = err
}

// apply takes a record in. s.mu is held.
func (s *Store) apply(r record) {
	if old, exists := s.values[r.Key]; exists {
		s.live -= record{r.Key, old}.length()
	}
	if r.Value == nil {
		delete(s.values, r.Key)
		return
	}
	s.values[r.Key] = r.Value
	s.live += r.length()
}

// rewritePause is the time between two attempts to replace a torn file: each takes long if there are
// many values, and every change waits for it.
const rewritePause = time.Second

// rewriteTorn is rewrite for a torn file. After a failure it is not tried again before rewritePause.
func (s *Store) rewriteTorn() error {
	if time.Now().Before(s.rewriteAt) {
		return s.rewriteErr
	}
	err := s.rewrite()
	if err != nil {
		s.rewriteAt, s.rewriteErr = time.Now().Add(rewritePause), err
	}
	return err
}

// rewrite writes a new file with the present values and puts it in the place of the old one.
// After an error the old one is in place. s.mu is held, or s is not in use yet.
func (s *Store) rewrite() error {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	next := s.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := openFile(next, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	text, err := s.encode()
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err == nil {
		err = os.Rename(next, s.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(next))
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.size, s.torn, s.compactAt = f, int64(len(text)), false, 0
	return nil
}
