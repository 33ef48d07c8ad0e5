// Package userdb looks up the users and groups of the machine: in /etc/passwd and /etc/group, and,
// for those that are not there, in its other databases, such as LDAP or SSSD.
//
// The program is built without cgo, so os/user reads the two files only. What nsswitch.conf names
// besides them can be asked through getent(1), a process for each question. It is asked only about
// what the files do not have, one process at a time, with a deadline. After a failure it is not asked
// for a while: a directory that does not answer must not delay every new process.
package userdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// ErrUnanswered means that a database did not answer, so that it is not known whether it has the
// user or the group.
var ErrUnanswered = errors.New("the machine's databases of users do not answer")

// Limits on questions to getent.
const (
	deadline  = 2 * time.Second
	pause     = 10 * time.Second // after a failure
	maxOutput = 1 << 20
	maxKeys   = 256 // names or numbers in a question
)

// programs are the paths at which getent is looked for. $PATH is not used: the daemon is root.
var programs = []string{"/usr/bin/getent", "/bin/getent", "/run/current-system/sw/bin/getent"}

// DB has the users and groups of a machine. Its methods may wait for a process, and so must not be
// called with a lock held that others need.
type DB struct {
	Programs []string      // where getent is, the first that exists; tests set it
	Deadline time.Duration // of a question; zero: the default

	mu     sync.Mutex // held while a question is asked
	paused time.Time  // no question is asked until then
}

// System has the users and groups of this machine.
var System = &DB{Programs: programs}

// User is a user and its groups.
type User struct {
	Name   string
	UID    uint32
	Groups []uint32 // its own and those that list it
}

// User looks a user up by number; found is false if no database has it.
func (db *DB) User(uid uint32) (u User, found bool, err error) {
	id := strconv.FormatUint(uint64(uid), 10)
	if local, err := user.LookupId(id); err == nil {
		groups, _ := local.GroupIds()
		return User{local.Username, uid, numbers(groups)}, true, nil
	}
	entries, err := db.ask("passwd", id)
	if err != nil || len(entries) == 0 {
		return User{}, false, err
	}
	e := entries[0] // name:password:uid:gid:...
	if len(e) < 4 || e[2] != id {
		return User{}, false, fmt.Errorf("look up user %s: getent answered with another user", id)
	}
	u = User{e[0], uid, numbers([]string{e[3]})}
	// Some versions of getent cannot list a user's groups. Then its own is known, and those of each of
	// its processes.
	if of, err := db.run("initgroups", u.Name); err == nil {
		if fields := strings.Fields(of); len(fields) > 0 {
			u.Groups = append(u.Groups, numbers(fields[1:])...)
		}
	}
	return u, true, nil
}

// UIDs looks users up by name. Names that no database has are left out.
func (db *DB) UIDs(names []string) (map[string]uint32, error) {
	return db.byName("passwd", names, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

// GIDs is UIDs for groups.
func (db *DB) GIDs(names []string) (map[string]uint32, error) {
	return db.byName("group", names, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
}

// GroupNames looks groups up by number. Those that no database has are left out.
func (db *DB) GroupNames(gids []uint32) (map[uint32]string, error) {
	names := make(map[uint32]string)
	var others []string
	for _, gid := range gids {
		id := strconv.FormatUint(uint64(gid), 10)
		if g, err := user.LookupGroupId(id); err == nil {
			names[gid] = g.Name
		} else {
			others = append(others, id)
		}
	}
	entries, err := db.ask("group", others...)
	for _, e := range entries {
		if len(e) < 3 {
			continue
		}
		for _, gid := range numbers(e[2:3]) {
			names[gid] = e[0]
		}
	}
	return names, err
}

// byName looks names up in a database whose entries have the number in the third field.
func (db *DB) byName(database string, names []string, local func(name string) (id string, err error)) (map[string]uint32, error) {
	found := make(map[string]uint32)
	var others []string
	for _, name := range names {
		id, err := local(name)
		if err != nil {
			others = append(others, name)
			continue
		}
		for _, n := range numbers([]string{id}) {
			found[name] = n
		}
	}
	others = slices.DeleteFunc(others, func(name string) bool { return name == "" || name[0] == '-' }) // an option
	entries, err := db.ask(database, others...)
	for _, e := range entries {
		if len(e) < 3 {
			continue
		}
		for _, n := range numbers(e[2:3]) {
			found[e[0]] = n
		}
	}
	return found, err
}

// ask returns the entries of a database for some keys, in fields.
func (db *DB) ask(database string, keys ...string) (entries [][]string, err error) {
	for len(keys) > 0 && err == nil {
		n := min(len(keys), maxKeys)
		var text string
		if text, err = db.run(database, keys[:n]...); err == nil {
			for line := range strings.Lines(text) {
				entries = append(entries, strings.Split(strings.TrimSpace(line), ":"))
			}
		}
		keys = keys[n:]
	}
	return entries, err
}

// Statuses with which getent ends.
const (
	statusUnknownDatabase = 1 // or a usage error, such as for a database that it cannot search
	statusNotFound        = 2 // of at least one key
)

// run asks getent. A machine without getent has no other databases.
func (db *DB) run(database string, keys ...string) (string, error) {
	program := db.program()
	if program == "" {
		return "", nil
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if time.Now().Before(db.paused) {
		return "", ErrUnanswered
	}
	within := db.Deadline
	if within == 0 {
		within = deadline
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{database}, keys...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out := &limitedBuffer{limit: maxOutput}
	cmd.Stdout = out
	if err := proc.Start(cmd); err != nil {
		db.paused = time.Now().Add(pause)
		return "", fmt.Errorf("%w: start %s: %w", ErrUnanswered, program, err)
	}
	err := cmd.Wait()
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		db.paused = time.Now().Add(pause)
		return "", fmt.Errorf("%w: %s %s took longer than %v", ErrUnanswered, program, database, within)
	case err == nil, errors.As(err, &status) && (status.ExitCode() == statusNotFound || status.ExitCode() == statusUnknownDatabase):
		return out.String(), nil
	}
	db.paused = time.Now().Add(pause)
	return "", fmt.Errorf("%w: %s %s: %w", ErrUnanswered, program, database, err)
}

// program returns the path of getent, or "".
func (db *DB) program() string {
	for _, path := range db.Programs {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	return ""
}

// numbers returns those texts that are uids or gids.
func numbers(texts []string) (all []uint32) {
	for _, text := range texts {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			all = append(all, uint32(n))
		}
	}
	return all
}

// limitedBuffer keeps the first bytes that are written to it.
type limitedBuffer struct {
	bytes.Buffer
	limit int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.limit-b.Len())])
	return len(p), nil
}
