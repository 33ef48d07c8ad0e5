package proc

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// container returns the container and the pod in the text of /proc/PID/cgroup, of either
// version. A process can run in a cgroup that it named itself, so these are labels to show
// and not to trust. Their form, and so their length, is checked.
//
//	0::/system.slice/docker-<id>.scope                                  Docker, systemd
//	5:cpuset:/docker/<id>                                               Docker, cgroupfs
//	0::/kubepods.slice/kubepods-pod<uid>.slice/cri-containerd-<id>.scope  Kubernetes, systemd; uid with _ for -
//	3:cpu:/kubepods/burstable/pod<uid>/<id>                             Kubernetes, cgroupfs
//	0::/system.slice/kubepods-pod<uid>.slice:cri-containerd:<id>        containerd with both forms mixed up
//	0::/machine.slice/libpod-<id>.scope/container                       Podman
//
// The innermost of each counts, because a container may run containers.
func container(cgroup string) (id, pod string) {
	for line := range strings.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		for segment := range strings.FieldsFuncSeq(parts[2], func(r rune) bool { return r == '/' || r == ':' }) {
			if s := containerOf(segment); s != "" {
				id = s
			}
			if s := podOf(segment); s != "" {
				pod = s
			}
		}
		if id != "" {
			return id, pod
		}
	}
	return id, pod
}

// containersIn returns the ids of the containers in the text of /proc/PID/cgroup, from the
// outermost to the innermost and joined by "/". It reads the line with the most of them: in
// version 1 a container need not be in every hierarchy. Where a user may make cgroups, their
// names mean nothing.
func containersIn(cgroup string, tree cgroupTree) (most string) {
	for line := range strings.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		if all := containersOn(parts[2], func(folder string) bool { return tree.isRoots(parts[1], folder) }); len(all) > len(most) {
			most = all
		}
	}
	return most
}

// containersOn returns the ids on one path. trusted reports whether only root could make what
// is in a folder.
func containersOn(path string, trusted func(folder string) bool) string {
	var ids []string
	for at, end := 0, 0; at < len(path); at = end + 1 {
		if end = strings.IndexByte(path[at:], '/') + at; end < at {
			end = len(path)
		}
		if strings.HasPrefix(path[at:end], "user@") { // the user's, by systemd
			break
		}
		for segment := range strings.SplitSeq(path[at:end], ":") {
			id := containerOf(segment)
			if id == "" {
				continue
			}
			if len(ids) == maxContainers || !trusted(path[:at]) {
				return strings.Join(ids, "/")
			}
			ids = append(ids, id)
		}
	}
	return strings.Join(ids, "/")
}

// cgroupMount is where cgroups are mounted: those of version 2, or each hierarchy in a folder.
const cgroupMount = "/sys/fs/cgroup"

// cgroupTree is where the folders of cgroups can be seen. A process in a cgroup namespace, such as
// a daemon in a container, sees its own part, and the whole tree through process 1.
type cgroupTree struct {
	mount string // empty: nowhere
	host  string // of process 1
	up    string // how process 1's root of cgroups is named here, such as "/../.."; empty: it is ours, too
}

// systemCgroups returns the cgroups of this machine.
var systemCgroups = sync.OnceValue(func() cgroupTree {
	text, _ := System.read(1, "cgroup", maxText)
	return cgroupTree{cgroupMount, System.Path(1, "root"+cgroupMount), upTo(cgroupPath(text))}
})

// upTo returns the part of a path that leads out of the namespace.
func upTo(path string) string {
	rest := path
	for strings.HasPrefix(rest+"/", "/../") {
		rest = rest[len("/.."):]
	}
	return path[:len(path)-len(rest)]
}

// isRoots reports whether a folder of a hierarchy belongs to root or to this process's user. One that
// cannot be seen does.
func (t cgroupTree) isRoots(hierarchy, folder string) bool {
	mount := t.mount
	if up := upTo(folder); up != "" {
		if up != t.up || hierarchy != "" {
			return true
		}
		mount, folder = t.host, folder[len(up):]
	}
	if mount == "" {
		return true
	}
	places := []string{strings.TrimPrefix(hierarchy, "name=")}
	if hierarchy == "" {
		places = []string{"unified", "."} // version 2 beside version 1, and alone
	}
	for _, place := range places {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(mount, place, folder), &st) == nil {
			return st.Uid == 0 || st.Uid == uint32(os.Geteuid())
		}
	}
	return true
}

// maxContainers is how many nested containers are looked at.
const maxContainers = 8

// ContainersOf returns the containers that a process is in, as Process.Containers has them.
func ContainersOf(pid int) (string, error) {
	text, err := System.read(pid, "cgroup", maxText)
	if err != nil {
		return "", err
	}
	return containersIn(text, systemCgroups()), nil
}

// containerOf returns the id of a segment <id> or <runtime>-<id>.scope. conmon is the monitor
// process of Podman and CRI-O, which runs beside the container.
func containerOf(segment string) string {
	runtime, id := "", strings.TrimSuffix(segment, ".scope")
	if i := strings.LastIndexByte(id, '-'); i >= 0 {
		runtime, id = id[:i], id[i+1:]
	}
	if len(id) != 64 || !isHex(id) || strings.HasSuffix(runtime, "conmon") {
		return ""
	}
	return id
}

// podOf returns the UID of a segment pod<uid> or <anything>-pod<uid>.slice.
func podOf(segment string) string {
	s := segment
	if slice, ok := strings.CutSuffix(s, ".slice"); ok {
		i := strings.LastIndex(slice, "-pod")
		if i < 0 {
			return ""
		}
		s = slice[i+1:]
	}
	uid, ok := strings.CutPrefix(s, "pod")
	if !ok {
		return ""
	}
	uid = strings.ReplaceAll(uid, "_", "-")
	// A static pod of the kubelet has a hash instead of a UID.
	if len(uid) == 32 && isHex(uid) {
		return uid
	}
	if len(uid) != 36 || uid[8] != '-' || uid[13] != '-' || uid[18] != '-' || uid[23] != '-' ||
		!isHex(uid[:8]+uid[9:13]+uid[14:18]+uid[19:23]+uid[24:]) {
		return ""
	}
	return uid
}

func isHex(s string) bool {
	return strings.TrimLeft(s, "0123456789abcdef") == ""
}

// cgroupPath returns the path of a process's cgroup: that of version 2 (the line without a
// controller), otherwise that of the first line.
func cgroupPath(cgroup string) (first string) {
	for line := range strings.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		if parts[1] == "" {
			return parts[2]
		}
		if first == "" {
			first = parts[2]
		}
	}
	return first
}
