package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/userdb"
)

// Limits of the cache of users.
const (
	maxKnownUsers  = 4096
	maxKnownGroups = 4096
	userLifetime   = time.Minute
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

// users looks users and groups up and keeps what it found for a while. A lookup reads files and may
// start a process, so it is never made with Daemon.mu held.
type users struct {
	lookup  func(uid uint32) account // nil: the system's databases
	account func(uid uint32) uint32  // nil: server.Account
	db      *userdb.DB               // nil: userdb.System

	mu     sync.Mutex
	known  map[uint32]knownUser
	names  map[uint32]knownGroup // of groups
	failed error                 // of the last lookup; nil: it was answered
	// The names of a configuration that are not known, for the status.
	checked struct {
		conf    *config.Config
		until   time.Time
		missing []config.Name
		err     error
	}
}

type knownUser struct {
	account
	until time.Time
}

type knownGroup struct {
	name  string // empty: it has none
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
	if lookup != nil {
		k.account = lookup(uid)
	} else if found, err := u.lookUp(uid); err == nil || !ok { // what was known counts until there is an answer
		k.account = found
	}
	k.until = time.Now().Add(userLifetime)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil || len(u.known) >= maxKnownUsers {
		u.known = make(map[uint32]knownUser)
	}
	u.known[uid] = k
	return k.account
}

// lookUp reads a user and its groups from the system's databases. A uid that is subordinate to a
// user is in none.
func (u *users) lookUp(uid uint32) (account, error) {
	a := account{name: strconv.FormatUint(uint64(uid), 10)}
	if server.Account(uid) != uid {
		return a, nil
	}
	found, known, err := u.database().User(uid)
	u.note(err)
	if err != nil || !known {
		return a, err
	}
	a.name = found.Name
	for _, gid := range found.Groups {
		a.groups = append(a.groups, strconv.FormatUint(uint64(gid), 10))
	}
	a.groups = append(a.groups, u.groupNames(found.Groups)...)
	return a, nil
}

// groupsOf returns the names and numbers of the groups of a user and of a process: those that the
// databases have for the user, and those that the process is in. A process may have left groups, and a
// database may not know the user, so neither is enough.
func (u *users) groupsOf(a account, info *proc.Process) []string {
	all := slices.Clone(a.groups)
	var others []uint32
	for id := range strings.FieldsSeq(info.Groups) {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil && !slices.Contains(a.groups, id) {
			all, others = append(all, id), append(others, uint32(n))
		}
	}
	return append(all, u.groupNames(others)...)
}

// groupNames returns the names of groups, without those that have none.
func (u *users) groupNames(gids []uint32) (names []string) {
	now := time.Now()
	var others []uint32
	u.mu.Lock()
	for _, gid := range gids {
		if k, ok := u.names[gid]; ok && now.Before(k.until) {
			names = append(names, k.name)
		} else {
			others = append(others, gid)
		}
	}
	u.mu.Unlock()
	if len(others) > 0 {
		found, err := u.database().GroupNames(others)
		u.note(err)
		u.mu.Lock()
		if u.names == nil || len(u.names)+len(others) > maxKnownGroups {
			u.names = make(map[uint32]knownGroup)
		}
		for _, gid := range others {
			name := found[gid]
			if err != nil {
				name = cmp.Or(name, u.names[gid].name)
			}
			if names = append(names, name); len(u.names) < maxKnownGroups {
				u.names[gid] = knownGroup{name, time.Now().Add(userLifetime)}
			}
		}
		u.mu.Unlock()
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

func (u *users) database() *userdb.DB {
	if u.db != nil {
		return u.db
	}
	return userdb.System
}

// note notes whether a lookup was answered.
func (u *users) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failed = err
}

// unknown returns those names of a configuration that no database has, or had within userLifetime,
// and the error of the last lookup that was not answered.
func (u *users) unknown(conf *config.Config) (missing []config.Name, err error) {
	u.mu.Lock()
	last, failed := u.checked, u.failed
	u.mu.Unlock()
	if last.conf != conf || time.Now().After(last.until) {
		last.conf, last.until = conf, time.Now().Add(userLifetime)
		last.missing, last.err = u.lookUpNames(conf.Names())
		u.mu.Lock()
		u.checked = last
		u.mu.Unlock()
	}
	return last.missing, cmp.Or(last.err, failed)
}

// lookUpNames returns those names that no database has.
func (u *users) lookUpNames(names []config.Name) (missing []config.Name, err error) {
	var ofUsers, ofGroups []string
	for _, n := range names {
		if n.Group {
			ofGroups = append(ofGroups, n.Text)
		} else {
			ofUsers = append(ofUsers, n.Text)
		}
	}
	uids, err1 := u.database().UIDs(ofUsers)
	gids, err2 := u.database().GIDs(ofGroups)
	for _, n := range names {
		_, user := uids[n.Text]
		if _, group := gids[n.Text]; n.Group && !group || !n.Group && !user {
			missing = append(missing, n)
		}
	}
	return missing, cmp.Or(err1, err2)
}

// namesCheck says whether the machine knows the users and groups that the rules and limits name. It
// may start a process.
func (d *Daemon) namesCheck() (c api.Check, used bool) {
	d.mu.Lock()
	conf := d.conf
	d.mu.Unlock()
	names := conf.Names()
	missing, err := d.users.unknown(conf)
	c.Name = "users and groups"
	switch {
	case err != nil:
		c.Detail = err.Error()
		c.Fix = "until they do, rules and limits that name users or groups apply only to those in /etc/passwd and /etc/group; use numbers, which always apply"
	case len(missing) > 0:
		var texts []string
		for _, n := range missing {
			texts = append(texts, n.String())
		}
		c.Detail = "not known on this machine: " + proc.Printable(strings.Join(texts, ", "))
		c.Fix = "correct the names, or use numbers; a rule or limit with an unknown name applies to no process"
	default:
		c.OK, c.Detail = true, fmt.Sprintf("all %d that rules and limits name are known", len(names))
	}
	return c, len(names) > 0 || !c.OK
}
