package server

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// rights are what a process may do beyond its user's files: its capabilities, and the user
// namespace in which they count.
type rights struct {
	namespace string
	effective uint64
}

// readRights reads the rights of a process from /proc.
func readRights(pid string) (r rights, err error) {
	if r.namespace, err = os.Readlink("/proc/" + pid + "/ns/user"); err != nil {
		return r, err
	}
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			r.effective, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return r, err
		}
	}
	return r, fmt.Errorf("/proc/%s/status has no line CapEff", pid)
}

// confinement says why a process has fewer rights than the daemon, although its user is
// root or the daemon's; empty: it has not. The rule is the kernel's for ptrace: the same
// user namespace, and at least the daemon's capabilities. A process that passes could
// control the daemon anyway. Root of a container or of a user namespace, and a service
// whose capabilities were dropped, do not pass.
func (d rights) confinement(c *net.UnixConn, pid int) string {
	if pid <= 0 {
		return "it is in a pid namespace that the daemon cannot see"
	}
	process, err := peerProcess(c, pid)
	if err != nil {
		return "its process cannot be found: " + err.Error()
	}
	defer process.Close()
	r, err := readRights(strconv.Itoa(pid))
	switch {
	case process.Exited(): // so what was read may be about another process
		return "its process has exited"
	case err != nil:
		return "its rights cannot be read: " + err.Error()
	case r.namespace != d.namespace:
		return "it is in another user namespace"
	case d.effective&^r.effective != 0:
		return "it lacks capabilities that the daemon has"
	}
	return ""
}
