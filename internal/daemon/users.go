package daemon

import (
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/server"
)

// Limits of the cache of users.
const (
	maxKnownUsers = 4096
	userLifetime  = time.Minute
)

// account is a user as the system's databases have it.
type account struct {
	name   string   // the number if there is no name
	groups []string // names and numbers
}

// account returns the user whose limits apply to a uid.
func (d *Daemon) account(uid uint32) uint32 {
	if d.users.account != nil {
		return d.users.account(uid)
	}
	return server.Account(uid)
}

// users looks users up and keeps what it found for a while. A lookup reads files, so it
// is never made with Daemon.mu held.
type users struct {
	lookup  func(uid uint32) account // nil: the system's databases
	account func(uid uint32) uint32  // nil: server.Account

	mu    sync.Mutex
	known map[uint32]knownUser
}

type knownUser struct {
	account
	until time.Time
}

// get returns a user.
func (u *users) get(uid uint32) account {
	now := time.Now()
	u.mu.Lock()
	k, ok := u.known[uid]
	lookup := u.lookup
	u.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.account
	}
	if lookup == nil {
		lookup = lookUpUser
	}
	k = knownUser{lookup(uid), now.Add(userLifetime)}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil || len(u.known) >= maxKnownUsers {
		u.known = make(map[uint32]knownUser)
	}
	u.known[uid] = k
	return k.account
}

// lookUpUser reads a user and its groups from the system's databases.
func lookUpUser(uid uint32) account {
	id := strconv.FormatUint(uint64(uid), 10)
	u, err := user.LookupId(id)
	if err != nil {
		return account{name: id}
	}
	a := account{name: u.Username}
	groups, _ := u.GroupIds() // without them the user is in no group
	for _, gid := range groups {
		a.groups = append(a.groups, gid)
		if g, err := user.LookupGroupId(gid); err == nil {
			a.groups = append(a.groups, g.Name)
		}
	}
	return a
}
