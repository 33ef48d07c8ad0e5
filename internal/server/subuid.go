package server

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/userdb"
)

// subuidFile lists ranges of uids that users may use in user namespaces: subuid(5).
const subuidFile = "/etc/subuid"

// Limits on the file: how often it is looked at, and its size.
const (
	subuidEvery = time.Second
	maxSubuid   = 1 << 20
)

// accounts finds the user that a uid counts for. A user has subordinate uids for free, so
// a limit per uid would be none.
type accounts struct {
	path string
	db   *userdb.DB

	reading sync.Mutex // held while the file is read and its names are looked up; taken before mu
	mu      sync.Mutex
	looked  time.Time // zero: never
	stamp   string    // of the file that was read; guarded by reading, as is complete
	ranges  []uidRange

	complete bool // the names of a file have been looked up
}

type uidRange struct {
	first, count, owner uint32
}

// of returns the user that a uid counts for. The caller that looks at the file may wait for a
// lookup; others have what was known before, if the file has been read.
func (a *accounts) of(uid uint32) uint32 {
	if uid == 0 {
		return 0
	}
	a.mu.Lock()
	never, due := a.looked.IsZero(), time.Since(a.looked) >= subuidEvery
	a.mu.Unlock()
	switch {
	case never:
		a.reading.Lock()
		a.readOnce()
		a.reading.Unlock()
	case due && a.reading.TryLock():
		a.read()
		a.reading.Unlock()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.ranges {
		if uid >= r.first && uid-r.first < r.count {
			return r.owner
		}
	}
	return uid
}

// machine has the accounts of this machine.
var machine = accounts{path: subuidFile, db: userdb.System}

// Account returns the user that a uid of this machine counts for: the owner of uid, where
// uid is one of a user's subordinate uids.
func Account(uid uint32) uint32 { return machine.of(uid) }

// readOnce reads the file unless that was done. a.reading is held.
func (a *accounts) readOnce() {
	a.mu.Lock()
	never := a.looked.IsZero()
	a.mu.Unlock()
	if never {
		a.read()
	}
}

// read reads the file if it has changed. a.reading is held.
func (a *accounts) read() {
	ranges, changed := a.load()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.looked = time.Now(); changed {
		a.ranges = ranges
	}
}

// load returns the ranges of the file, and whether they are to be used. If the databases did not
// answer, the ranges from before are better than ones whose owners are not known, and the names are
// looked up again the next time.
func (a *accounts) load() (ranges []uidRange, changed bool) {
	info, err := os.Stat(a.path)
	if err != nil || info.Size() > maxSubuid {
		a.stamp = ""
		return nil, true
	}
	st := info.Sys().(*syscall.Stat_t)
	stamp := fmt.Sprint(st.Dev, st.Ino, info.Size(), info.ModTime().UnixNano())
	if stamp == a.stamp {
		return nil, false
	}
	text, err := os.ReadFile(a.path)
	if err != nil {
		return nil, false
	}
	owners, err := a.db.UIDs(ownersIn(string(text)))
	if err != nil && a.complete {
		return nil, false
	}
	if err == nil {
		a.stamp, a.complete = stamp, true
	}
	return parseSubuid(string(text), func(name string) (uint32, bool) {
		uid, known := owners[name]
		return uid, known
	}), true
}

// parseSubuid reads lines of owner:first:count. The owner is a name or a uid. Lines that
// are not like that are skipped. All ranges of a name that cannot be looked up have one
// owner: the first uid of the first of them.
func parseSubuid(text string, lookUp func(name string) (uint32, bool)) (all []uidRange) {
	owners := map[string]uint32{}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 || fields[0] == "" || fields[0][0] == '#' {
			continue
		}
		first, wrong := strconv.ParseUint(fields[1], 10, 32)
		count, wrong2 := strconv.ParseUint(fields[2], 10, 32)
		if wrong != nil || wrong2 != nil {
			continue
		}
		owner, known := owners[fields[0]]
		if !known {
			if number, err := strconv.ParseUint(fields[0], 10, 32); err == nil {
				owner = uint32(number)
			} else if owner, known = lookUp(fields[0]); !known {
				owner = uint32(first)
			}
			owners[fields[0]] = owner
		}
		if owner != 0 { // root's ranges are not root: users of containers have them
			all = append(all, uidRange{uint32(first), uint32(count), owner})
		}
	}
	return all
}

// ownersIn returns the owners in the file that are names, each once.
func ownersIn(text string) (names []string) {
	for line := range strings.Lines(text) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), ":")
		if _, err := strconv.ParseUint(name, 10, 32); ok && err != nil && !strings.HasPrefix(name, "#") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
