package proc

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// owner is the user and the group that a process belongs to, the user who started it, and its groups.
type owner struct {
	uid, gid, starter uint32
	groups            string // as Process.Groups
}

// owner returns to which user a process belongs, by the rule by which the kernel decides
// who may trace it (PTRACE_MODE_READ_FSCREDS): a user whose uid is the real, effective and
// saved uid of the process and whose gid is likewise its gid, if the process is dumpable.
// Every other process, such as a setuid program, has or had more rights than the user who
// started it, and belongs to root. The capabilities of the process, which the kernel compares with
// the caller's, do not count: docs/SECURITY.md says why.
func (p FS) owner(pid int) (owner, error) {
	f, err := os.Open(p.Path(pid, "status"))
	if err != nil {
		return owner{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return owner{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil {
		return owner{}, err
	}
	uid, oneUser, err := ids(string(text), "Uid:")
	if err != nil {
		return owner{}, err
	}
	gid, oneGroup, err := ids(string(text), "Gid:")
	if err != nil {
		return owner{}, err
	}
	// The files of a process that is not dumpable belong to root.
	st := info.Sys().(*syscall.Stat_t) // it always is, on Linux
	out := owner{starter: uid, groups: groups(string(text), gid)}
	if oneUser && oneGroup && st.Uid == uid {
		out.uid, out.gid = uid, gid
	}
	return out, nil
}

// groups returns the groups of a process with a real gid.
func groups(status string, gid uint32) string {
	own := strconv.FormatUint(uint64(gid), 10)
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, "Groups:")
		if !ok {
			continue
		}
		all := strings.Fields(rest)
		if !strings.HasSuffix(line, "\n") && len(all) > 0 { // cut off: so may be the last number
			all = all[:len(all)-1]
		}
		return strings.Join(append([]string{own}, slices.DeleteFunc(all, func(g string) bool { return g == own })...), " ")
	}
	return own
}

// Starter returns the user who started a process: its real uid. Process.Starter is the same.
func (p FS) Starter(pid int) (uint32, error) {
	text, err := p.read(pid, "status", maxText)
	if err != nil {
		return 0, err
	}
	uid, _, err := ids(text, "Uid:")
	return uid, err
}

// ids returns the real id in a line of status that lists the real, effective, saved and
// filesystem id, and whether the first three are the same.
func ids(status, label string) (id uint32, same bool, err error) {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, label)
		fields := strings.Fields(rest)
		if !ok || len(fields) < 3 {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 10, 32)
		same := !slices.ContainsFunc(fields[1:3], func(f string) bool { return f != fields[0] })
		return uint32(n), same, err
	}
	return 0, false, errors.New("status has no " + strings.TrimSuffix(label, ":"))
}
