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
//	pool.json   an Info
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
	"slices"
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
	ErrNoMPS     = errors.New("MPS is not installed")
)

// Info describes a pool.
type Info struct {
	Label   string `json:"label"`
	Devices string `json:"devices"` // as CUDA_VISIBLE_DEVICES; empty: all
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

// open opens the folder of a pool in the first usable folder of pools, and makes what is
// missing.
func open(info Info) (*Pool, error) {
	var failed []string
	for _, parent := range parents() {
		p, err := openIn(parent, info)
		if err == nil {
			return p, nil
		}
		failed = append(failed, err.Error())
	}
	return nil, fmt.Errorf("make the pool's folder: %s", strings.Join(failed, "; "))
}

// parents lists the folders of pools, the best first. Root's is not in /run/giveway, which
// systemd removes when the daemon is stopped.
func parents() []string {
	if dir := os.Getenv(FolderEnv); dir != "" {
		return []string{dir}
	}
	uid := os.Geteuid()
	dirs := []string{filepath.Join(os.TempDir(), fmt.Sprintf("giveway-%d", uid), "pool")}
	switch dir := os.Getenv("XDG_RUNTIME_DIR"); {
	case uid == 0:
		dirs = slices.Insert(dirs, 0, "/run/giveway-pool")
	case filepath.IsAbs(dir):
		dirs = slices.Insert(dirs, 0, filepath.Join(dir, "giveway", "pool"))
	}
	return dirs
}

// name returns the name of a pool's folder.
func (i Info) name() string {
	sum := sha256.Sum256([]byte(i.Label + "\x00" + i.Devices))
	return fmt.Sprintf("%s-%x", i.Label, sum[:4])
}

func openIn(parent string, info Info) (*Pool, error) {
	if !filepath.IsAbs(parent) {
		return nil, fmt.Errorf("%s is not an absolute path", parent)
	}
	p := &Pool{Info: info, dir: filepath.Join(parent, info.name())}
	if len(p.pipe()) > maxPipe {
		return nil, fmt.Errorf("%s is longer than the %d characters that MPS can use; set %s to a shorter folder", p.pipe(), maxPipe, FolderEnv)
	}
	f, err := safepath.OpenFolder(p.dir)
	if err != nil {
		return nil, err
	}
	p.folder = f
	err = os.Chmod(f.At("."), 0o700)
	for _, name := range []string{"members", "pipe", "log"} {
		if e := os.Mkdir(f.At(name), 0o700); e != nil && !errors.Is(e, os.ErrExist) {
			err = cmp.Or(err, e)
		}
	}
	if text, e := json.Marshal(info); e == nil && err == nil {
		err = os.WriteFile(f.At("pool.json"), text, 0o600)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
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

// member is what the file of a member says.
type member struct {
	PID     int    `json:"pid"`
	Weight  int64  `json:"weight"`
	Command string `json:"command"`
}

// members returns the members whose 'giveway run' is alive, and removes the files of the
// others. The pool's lock is held.
func (p *Pool) members() ([]member, error) {
	entries, err := os.ReadDir(p.folder.At("members"))
	if err != nil {
		return nil, err
	}
	var all []member
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
		m := member{Weight: 1}
		_ = json.NewDecoder(f).Decode(&m) // being written: it counts as well
		m.PID, _ = strconv.Atoi(e.Name())
		f.Close()
		all = append(all, m)
	}
	return all, nil
}

// register makes the file of a member, locked until it is closed. The pool's lock is held.
func (p *Pool) register(m member) (*os.File, error) {
	f, err := os.OpenFile(p.folder.At(filepath.Join("members", strconv.Itoa(m.PID))), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if !tryLock(f) {
		f.Close()
		return nil, fmt.Errorf("register process %d with the pool: it is registered already", m.PID)
	}
	if err := json.NewEncoder(f).Encode(m); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
