package discover

import (
	"cmp"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/internal/proc"
)

// procfs is a mounted procfs.
type procfs struct{ proc.FS }

// isMPSServer reports whether a process is the MPS server.
func (p procfs) isMPSServer(pid int) bool { return p.program(pid) == "nvidia-cuda-mps-server" }

// program returns the name of the executable of a process; empty: it cannot be read. The
// kernel's name for a process is cut to 15 letters, which the MPS server and the control
// daemon have in common.
func (p procfs) program(pid int) string {
	exe, err := os.Readlink(p.Path(pid, "exe"))
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
}

// userOf returns the user that the kernel shows as the owner of a process; zero if it cannot be
// read.
func (p procfs) userOf(pid int) uint32 {
	var st unix.Stat_t
	if unix.Stat(p.Path(pid, ""), &st) != nil {
		return 0
	}
	return st.Uid
}

// starterOf returns the user who started a process. The kernel shows root as the owner of a
// process that is not dumpable, which any process can make itself.
func (p procfs) starterOf(pid int) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Stat(p.Path(pid, ""), &st); err != nil || st.Uid != 0 {
		return st.Uid, err
	}
	return p.Starter(pid)
}

// sortYoungestFirst sorts pids by the age of their processes, as far as pids tell it: the kernel
// gives them out in ascending order, and begins again with low ones after the highest.
func (p procfs) sortYoungestFirst(pids []int) {
	last := p.lastPID()
	slices.SortFunc(pids, func(a, b int) int {
		return cmp.Or(first(a <= last, b <= last), cmp.Compare(b, a))
	})
}

// lastPID returns the pid that was given out last; the highest number if it cannot be read.
func (p procfs) lastPID() int {
	text, err := os.ReadFile(filepath.Join(string(p.FS), "loadavg")) // the three averages, how many processes run, and this
	if fields := strings.Fields(string(text)); err == nil && len(fields) == 5 {
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			return pid
		}
	}
	return math.MaxInt
}

// maxEnviron is how much of the environment of a process is read.
const maxEnviron = 128 << 10

// poolOf returns the label of the pool that an MPS server serves; empty: none. 'giveway run'
// sets it in the environment of the control daemon, whose child the server is. A user can
// set it for a server of its own, which then is of class batch.
func (p procfs) poolOf(server proc.Process) string {
	label := pool.LabelOf(p.environ(&server, server.PID))
	if label == "" && p.program(server.Parent) == "nvidia-cuda-mps-control" {
		label = pool.LabelOf(p.environ(&server, server.Parent))
	}
	return label
}

// environ returns the beginning of the environment of a server or of its parent; none if it
// cannot be read.
func (p procfs) environ(server *proc.Process, pid int) []string {
	text, _ := p.ReadMemory(server, pid, "environ", maxEnviron) // of a process that exits: what there is
	return strings.Split(text, "\x00")
}

// controls returns all descriptors of the control device of a process.
func (p procfs) controls(pid int, control string) ([]int, error) {
	const most = 1 << 20 // descriptors that are looked at: what the kernel permits by default
	d, err := p.descriptors(pid, control)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var all []int
	for looked, from := 0, 0; looked < most; {
		fds, n, next, err := d.controls(from)
		if err != nil {
			return nil, err
		}
		all = append(all, fds...)
		if next == 0 {
			break
		}
		looked, from = looked+n, next
	}
	return all, nil
}

// descriptors is the folder of a process's descriptors.
type descriptors struct {
	dir     *os.File
	control device
}

func (p procfs) descriptors(pid int, control string) (*descriptors, error) {
	dir, err := os.Open(p.Path(pid, "fd"))
	if err != nil {
		return nil, err
	}
	d := &descriptors{dir: dir}
	d.control, _ = deviceAt(unix.AT_FDCWD, control, 0) // without a driver no descriptor matches
	return d, nil
}

func (d *descriptors) Close() error { return d.dir.Close() }

// isControl reports whether a descriptor is of the control device. The process may change
// it at any time, so the caller must check its copy again.
func (d *descriptors) isControl(fd int) bool {
	have, err := deviceAt(int(d.dir.Fd()), strconv.Itoa(fd), 0)
	return err == nil && have == d.control
}

// controls looks at up to lookWindow descriptors, from one on, and returns those of the
// control device. next is the descriptor to go on with; zero: there are no more.
func (d *descriptors) controls(from int) (found []int, looked, next int, err error) {
	if from > 0 {
		const dots = 2 // "." and ".." come before descriptor 0
		if _, err := d.dir.Seek(int64(from)+dots, io.SeekStart); err != nil {
			return nil, 0, 0, err
		}
	}
	names, err := d.dir.Readdirnames(lookWindow)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, 0, err
	}
	last := 0
	for _, fd := range proc.Numbers(names) {
		last = max(last, fd)
		if d.isControl(fd) {
			found = append(found, fd)
		}
	}
	if len(names) == lookWindow && last >= from {
		next = last + 1
	}
	return found, len(names), next, nil
}
