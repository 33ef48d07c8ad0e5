package server

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
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

	mu     sync.Mutex
	looked time.Time
	stamp  string
	ranges []uidRange
}

type uidRange struct {
	first, count, owner uint32
}

// of returns the user that a uid counts for.
func (a *accounts) of(uid uint32) uint32 {
	if uid == 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); now.Sub(a.looked) >= subuidEvery {
		a.looked = now
		a.reload()
	}
	for _, r := range a.ranges {
		if uid >= r.first && uid-r.first < r.count {
			return r.owner
		}
	}
	return uid
}

// machine has the accounts of this machine.
var machine = accounts{path: subuidFile}

// Account returns the user that a uid of this machine counts for: the owner of uid, where
// uid is one of a user's subordinate uids.
func Account(uid uint32) uint32 { return machine.of(uid) }

// reload reads the file if it has changed.
func (a *accounts) reload() {
	info, err := os.Stat(a.path)
	if err != nil || info.Size() > maxSubuid {
		a.ranges, a.stamp = nil, ""
		return
	}
	st := info.Sys().(*syscall.Stat_t)
	stamp := fmt.Sprint(st.Dev, st.Ino, info.Size(), info.ModTime().UnixNano())
	if stamp == a.stamp {
		return
	}
	if text, err := os.ReadFile(a.path); err == nil {
		a.ranges, a.stamp = parseSubuid(string(text), lookUpUser), stamp
	}
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
			if owner, known = lookUp(fields[0]); !known {
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

func lookUpUser(name string) (uint32, bool) {
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(uid), true
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid), err == nil
}
