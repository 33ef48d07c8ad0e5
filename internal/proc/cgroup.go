package proc

import "strings"

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
// version 1 a container need not be in every hierarchy.
func containersIn(cgroup string) (most string) {
	for line := range strings.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		var ids []string
		for segment := range strings.FieldsFuncSeq(parts[2], func(r rune) bool { return r == '/' || r == ':' }) {
			if strings.HasPrefix(segment, "user@") { // below it a user makes cgroups of any name
				break
			}
			if id := containerOf(segment); id != "" && len(ids) < maxContainers {
				ids = append(ids, id)
			}
		}
		if all := strings.Join(ids, "/"); len(all) > len(most) {
			most = all
		}
	}
	return most
}

// maxContainers is how many nested containers are looked at.
const maxContainers = 8

// ContainersOf returns the containers that a process is in, as Process.Containers has them.
func ContainersOf(pid int) (string, error) {
	text, err := System.read(pid, "cgroup", maxText)
	if err != nil {
		return "", err
	}
	return containersIn(text), nil
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
