// Package pool starts, keeps and ends the MPS servers of pools. A pool is one MPS server
// of NVIDIA in which batch programs of one user run side by side on the same GPUs, so that
// they share in space and give way in time as one queue.
//
// Everything here runs as the user whose programs are in the pool, because an MPS server
// does. 'giveway run' calls Join: under a lock on the pool's folder it starts NVIDIA's
// control daemon if there is none, and a keeper, which ends that daemon when the pool has
// had no member for a while. The daemon of giveway has no part in it. It recognises the
// server by Env and schedules it.
//
// A folder has:
//
//	lock        held while a member joins and while the pool ends
//	keeper      held by the keeper for as long as it runs
//	pool.json   an Info; it is replaced by renaming
//	fault       a Fault, held locked by the keeper while it lasts
//	members/    a file for each member, which that member's 'giveway run' holds locked
//	pipe/, log/ CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_LOG_DIRECTORY
//
// Locks are those of flock(2): the kernel drops them when a process is killed.
package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/giveway/giveway/internal/safepath"
)

const (
	// DefaultLabel is the label of the pool of programs for which none is given.
	DefaultLabel = "default"
	// MaxClients is how many clients an MPS server takes, by NVIDIA's documentation.
	MaxClients = 60

	// maxPipe is the longest path of a pipe folder: the path of a unix socket in it must
	// fit in 108 bytes.
	maxPipe = 80
)

// Reasons for which a program does not join a pool. Join wraps them.
var (
	ErrOwnServer = errors.New("it uses an MPS server of yours")
	ErrFull      = errors.New("the pool is full")
	ErrFault     = errors.New("a member of the pool has had a fault")
	ErrNoMPS     = errors.New("MPS is not installed")
)

// Info describes a pool.
type Info struct {
	Label     string `json:"label"`
	Devices   string `json:"devices"`       // as CUDA_VISIBLE_DEVICES; empty: all
	Namespace string `json:"pid_namespace"` // and the machine, on which the pids in the folder are valid
}

// Pool is the folder of a pool.
type Pool struct {
	Info
	dir    string
	folder *safepath.Folder
}

var validLabel = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,32}$`)

// CheckLabel returns an error if a label cannot be part of a file's name.
func CheckLabel(label string) error {
	if !validLabel.MatchString(label) || strings.HasPrefix(label, ".") {
		return fmt.Errorf("pool label %q is not 1 to 32 letters, digits, '_', '-' or '.'", label)
	}
	return nil
}

// folderFor returns the folder of a user's pools. It is the same in every session: with
// XDG_RUNTIME_DIR or TMPDIR in it, programs of one user would be in several pools and
// nothing would say so. Root's is not in /run/giveway, which systemd removes when the daemon
// is stopped.
func folderFor(uid int) string {
	if dir := os.Getenv(FolderEnv); dir != "" {
		return dir
	}
	if uid == 0 {
		return "/run/giveway-pool"
	}
	return fmt.Sprintf("/tmp/giveway-%d/pool", uid)
}

// hostname returns the name of this machine. Tests set it.
var hostname = os.Hostname

// pidNamespace names the pid namespace of this process, and the machine: on all machines the
// first namespace has the same number, and they may share the folder of pools. In another
// namespace the pids in a pool's folder mean other processes or none, so that its control daemon
// would seem to be dead.
func pidNamespace() (string, error) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return "", errors.New("/proc is missing or shows another pid namespace; mount proc")
	}
	machine, err := hostname()
	if err != nil {
		return "", err
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return namespace + " " + machine, err
}

// name returns the name of a pool's folder.
func (i Info) name() string {
	sum := sha256.Sum256([]byte(i.Label + "\x00" + i.Devices + "\x00" + i.Namespace))
	return fmt.Sprintf("%s-%x", i.Label, sum[:4])
}

// open opens the folder of a pool, and makes what is missing.
func open(info Info) (*Pool, error) {
	parent := folderFor(os.Geteuid())
	if !filepath.IsAbs(parent) {
		return nil, fmt.Errorf("%s, the folder of pools, is not an absolute path; set %s to one", parent, FolderEnv)
	}
	p := &Pool{Info: info, dir: filepath.Join(parent, info.name())}
	if len(p.pipe()) > maxPipe {
		return nil, fmt.Errorf("%s is longer than the %d characters that MPS can use; set %s to a shorter folder", p.pipe(), maxPipe, FolderEnv)
	}
	f, err := safepath.OpenFolder(p.dir)
	if err != nil {
		return nil, fmt.Errorf("make the pool's folder: %w (%s)", err, FolderEnv)
	}
	p.folder = f
	err = os.Chmod(f.At("."), 0o700)
	for _, name := range []string{"members", "pipe", "log"} {
		if e := os.Mkdir(f.At(name), 0o700); e != nil && !errors.Is(e, os.ErrExist) {
			err = cmp.Or(err, e)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// save writes pool.json. A reader does not take the lock, so the file is replaced. The
// pool's lock is held.
func (p *Pool) save() error {
	text, err := json.Marshal(p.Info)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.folder.At("pool.json.new"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(p.folder.At("pool.json.new"), p.folder.At("pool.json"))
}

// openExisting opens the folder of a pool that was made before.
func openExisting(dir string) (*Pool, error) {
	text, err := safepath.ReadFile(filepath.Join(dir, "pool.json"), 1<<16, true)
	if err != nil {
		return nil, err
	}
	p := &Pool{dir: dir}
	if err := json.Unmarshal(text, &p.Info); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, "pool.json"), err)
	}
	p.folder, err = safepath.OpenFolder(dir)
	return p, err
}

func (p *Pool) pipe() string { return filepath.Join(p.dir, "pipe") }
func (p *Pool) log() string  { return filepath.Join(p.dir, "log") }
func (p *Pool) close()       { p.folder.Close() }

// MemberInfo is what the file of a member says.
type MemberInfo struct {
	PID     int    `json:"pid"` // of its 'giveway run'
	Weight  int64  `json:"weight"`
	Command string `json:"command"`
	// RulesApplied says that Weight is by the rules of the daemon too. Otherwise no daemon
	// answered when the member started.
	RulesApplied bool `json:"rules_applied"`
}

// members returns the members whose 'giveway run' is alive, and removes the files of the
// others. The pool's lock is held.
func (p *Pool) members() ([]MemberInfo, error) {
	entries, err := os.ReadDir(p.folder.At("members"))
	if err != nil {
		return nil, err
	}
	var all []MemberInfo
	for _, e := range entries {
		name := filepath.Join("members", e.Name())
		f, err := os.OpenFile(p.folder.At(name), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if tryLock(f) {
			_ = os.Remove(p.folder.At(name)) // its process has exited
			f.Close()
			continue
		}
		m := MemberInfo{Weight: 1}
		_ = json.NewDecoder(f).Decode(&m) // being written: it counts as well
		m.PID, _ = strconv.Atoi(e.Name())
		f.Close()
		all = append(all, m)
	}
	return all, nil
}

// register makes the file of a member, locked until it is closed. The pool's lock is held.
func (p *Pool) register(m MemberInfo) (*os.File, error) {
	f, err := os.OpenFile(p.folder.At(filepath.Join("members", strconv.Itoa(m.PID))), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if !tryLock(f) {
		f.Close()
		return nil, fmt.Errorf("register process %d with the pool: it is registered already", m.PID)
	}
	err = f.Truncate(0) // of an earlier process with this pid
	if err == nil {
		err = json.NewEncoder(f).Encode(m)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
