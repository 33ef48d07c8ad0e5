package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	id  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	id2 = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	uid = "8d1c1f5e-3b9a-4c53-9d3e-0a1b2c3d4e5f"
)

func TestContainer(t *testing.T) {
	underscored := strings.ReplaceAll(uid, "-", "_")
	hash := id[:32]
	for _, c := range []struct{ name, cgroup, id, pod string }{
		{"none", "0::/user.slice/user-1000.slice/session-3.scope\n", "", ""},
		{"empty", "", "", ""},
		{"root", "0::/\n", "", ""},
		{"docker, systemd", "0::/system.slice/docker-" + id + ".scope\n", id, ""},
		{"docker, cgroupfs v1", "12:pids:/docker/" + id + "\n5:cpuset:/docker/" + id + "\n1:name=systemd:/docker/" + id + "\n", id, ""},
		{"v1, only some in a container", "3:cpu,cpuacct:/\n2:memory:/docker/" + id + "\n", id, ""},
		{"containerd, systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", id, uid},
		{"guaranteed, systemd", "0::/kubepods.slice/kubepods-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", id, uid},
		{"kind", "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", id, uid},
		{"containerd, cgroupfs", "4:memory:/kubepods/besteffort/pod" + uid + "/" + id + "\n", id, uid},
		{"static pod of the kubelet", "4:memory:/kubepods/burstable/pod" + hash + "/" + id + "\n", id, hash},
		{"containerd, colons", "0::/system.slice/containerd.service/kubepods-besteffort-pod" + underscored + ".slice:cri-containerd:" + id, id, uid},
		{"cri-o", "0::/kubepods.slice/kubepods-pod" + underscored + ".slice/crio-" + id + ".scope", id, uid},
		{"cri-o's monitor", "0::/kubepods.slice/kubepods-pod" + underscored + ".slice/crio-conmon-" + id + ".scope", "", uid},
		{"podman", "0::/machine.slice/libpod-" + id + ".scope/container\n", id, ""},
		{"podman, rootless", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container", id, ""},
		{"podman's monitor", "0::/machine.slice/libpod-conmon-" + id + ".scope\n", "", ""},
		{"seen from another namespace", "0::/../../docker-" + id + ".scope\n", id, ""},
		{"a container in a container", "0::/docker/" + id + "/kubelet/kubepods/pod" + uid + "/" + id2 + "\n", id2, uid},
		{"a node in a container", "0::/docker/" + id + "/init.scope\n", id, ""},
		{"too short", "0::/docker/" + id[:63] + "\n", "", ""},
		{"too long", "0::/docker/" + id + "0\n", "", ""},
		{"not hex", "0::/docker/" + strings.Repeat("g", 64) + "\n", "", ""},
		{"control characters", "0::/docker/" + strings.Repeat("\x1b", 64) + "/pod" + strings.Repeat("\x1b", 36), "", ""},
		{"pod without a uid", "0::/kubepods/podman/pod/pod-\n", "", ""},
		{"slice without a pod", "0::/kubepods.slice/-pod.slice/pod.slice/.slice\n", "", ""},
		{"no fields", "docker-" + id + ".scope\n:\n::\n", "", ""},
		{"very long", "0::/" + strings.Repeat("a/", 30000) + "docker-" + id + ".scope", id, ""},
	} {
		if gotID, gotPod := container(c.cgroup); gotID != c.id || gotPod != c.pod {
			t.Errorf("%s: got container %q in pod %q, want %q in %q", c.name, gotID, gotPod, c.id, c.pod)
		}
	}
}

// TestContainersIn: containers are listed from the outermost to the innermost.
func TestContainersIn(t *testing.T) {
	for _, c := range []struct{ name, cgroup, want string }{
		{"none", "0::/user.slice\n", ""},
		{"one", "0::/kubepods.slice/cri-containerd-" + id + ".scope\n", id},
		{"a container in a container", "0::/docker/" + id + "/kubepods/pod" + uid + "/" + id2 + "\n", id + "/" + id2},
		{"v1, only some in a container", "0::/\n3:cpu:/\n2:memory:/docker/" + id + "\n", id},
		{"colons", "0::/system.slice/kubepods-pod" + uid + ".slice:cri-containerd:" + id, id},
		{"made by a user, systemd", "0::/user.slice/user-1000.slice/user@1000.service/docker-" + id + ".scope\n", ""},
		{"very many", "0::/" + strings.Repeat(id+"/", 100), strings.TrimSuffix(strings.Repeat(id+"/", maxContainers), "/")},
	} {
		if got := containersIn(c.cgroup, cgroupTree{}); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestContainersThatUsersMake: a user with a folder in which it may make cgroups is in no
// container, whatever their names are. A container's own folder may belong to a user.
func TestContainersThatUsersMake(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to give folders to other users")
	}
	mount := t.TempDir()
	own := func(folder string, uid int) {
		t.Helper()
		path := filepath.Join(mount, folder)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	own("delegated", 1000)
	own("delegated/"+id, 1000)
	own("delegated/deeper/"+id, 1000)
	own("delegated/deeper", 1000)
	own("pod/"+id, 100_000)
	own("pod/"+id+"/"+id2, 100_000)
	own("unified/hybrid", 1000)
	own("hybrid", 0)
	own("systemd/named", 1000)
	for _, c := range []struct{ name, cgroup, want string }{
		{"delegated", "0::/delegated/" + id, ""},
		{"below a folder of its own", "0::/delegated/deeper/" + id, ""},
		{"a pod with users of its own", "0::/pod/" + id, id},
		{"made inside a pod", "0::/pod/" + id + "/" + id2, id},
		{"in the root", "0::/" + id, id},
		{"version 2 beside version 1", "0::/hybrid/" + id, ""},
		{"version 1", "1:name=systemd:/named/" + id, ""},
		{"not to be seen", "0::/elsewhere/" + id, id},
		{"another namespace", "0::/../../delegated/" + id, id},
		{"a line of its own beside a container", "2:memory:/docker/" + id + "\n0::/delegated/" + id2 + "/" + id2, id},
	} {
		if got := containersIn(c.cgroup, cgroupTree{mount: mount}); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	// A daemon in a cgroup namespace sees the same folders through process 1.
	for _, c := range []struct{ name, cgroup, want string }{
		{"delegated", "0::/../../delegated/" + id, ""},
		{"a pod", "0::/../../pod/" + id, id},
		{"made inside a pod", "0::/../../pod/" + id + "/" + id2, id},
		{"below a parent of this namespace", "0::/../delegated/" + id, id},
		{"outside of process 1's", "0::/../../../delegated/" + id, id},
		{"version 1", "1:name=systemd:/../../named/" + id, id},
		{"its own", "0::/delegated/" + id, id},
	} {
		if got := containersIn(c.cgroup, cgroupTree{host: mount, up: "/../.."}); got != c.want {
			t.Errorf("from a namespace, %s: got %q, want %q", c.name, got, c.want)
		}
	}
	for path, want := range map[string]string{"/": "", "/init.scope": "", "/../../init.scope": "/../..", "/../..": "/../..", "/..a/..": "", "": ""} {
		if got := upTo(path); got != want {
			t.Errorf("upTo(%q) is %q, want %q", path, got, want)
		}
	}
}

const statRest = " S 41 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1 1"

func TestStat(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Stat
		ok         bool
	}{
		{"ordinary", "42 (python3)" + statRest, Stat{Parent: 41, Start: 987654}, true},
		{"hostile name", "42 (x) R 1 1) S 7 7 7 7 (\n)" + statRest, Stat{Parent: 41, Start: 987654}, true},
		{"the kernel's", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 3 0 0", Stat{KernelThread: true, Start: 3}, true},
		{"exiting", "42 (a) S 41 42 42 0 -1 4194308 1 0 0 0 0 0 0 0 20 0 1 0 5 1 1 1", Stat{Parent: 41, Exiting: true, Start: 5}, true},
		{"empty", "", Stat{}, false},
		{"cut short", "42 (python3) S 41", Stat{}, false},
		{"no name", "42 S 41 42", Stat{}, false},
		{"not a number", strings.Replace("42 (a)"+statRest, "987654", "-1", 1), Stat{}, false},
	} {
		got, err := parseStat(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: got %+v, %v; want %+v, ok %v", c.name, got, err, c.want, c.ok)
		}
	}
}

// fakeProc makes a procfs with one process, 42.
func fakeProc(t *testing.T, files map[string]string) FS {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "42"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, "42", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return FS(root)
}

func TestProcess(t *testing.T) {
	p := fakeProc(t, map[string]string{
		"stat":    "42 (python3)" + statRest,
		"status":  fmt.Sprintf("Name:\tpython3\nUmask:\t0022\nUid:\t%[1]d\t%[1]d\t%[1]d\t7\nGid:\t5 5 5 7\n", os.Getuid()),
		"cmdline": "python3\x00-c\x00print(\"\x1b[2Jé\u202e\")\x00\xff\x00\x00",
		"cgroup":  "0::/docker/" + id + "\n",
	})
	got, err := p.Process(42)
	want := Process{
		PID: 42, Start: 987654, UID: uint32(os.Getuid()), GID: 5, Groups: "5", Parent: 41, Container: id, Containers: id, Cgroup: "/docker/" + id,
		Command: "python3 -c print(\"\ufffd[2Jé\ufffd\") \ufffd",
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if pids, err := p.PIDs(); err != nil || !slices.Equal(pids, []int{42}) {
		t.Errorf("pids: got %v, %v; want [42]", pids, err)
	}
}

func TestProcessWithoutCommand(t *testing.T) {
	p := fakeProc(t, map[string]string{
		"stat": "42 (a)" + statRest, "status": "Uid:\t7 7 7 7\nGid:\t7 7 7 7\n", "cmdline": "", "comm": "a\tb\n",
	})
	if got, err := p.Process(42); err != nil || got.Command != "[a\ufffdb]" {
		t.Errorf("command: got %+v, %v", got, err)
	}
}

func TestMissingProcess(t *testing.T) {
	p := fakeProc(t, map[string]string{"stat": "42 (a)" + statRest, "status": "Uid:\n"})
	for _, pid := range []int{42, 43} {
		if got, err := p.Process(pid); err == nil {
			t.Errorf("process %d: got %+v, want an error", pid, got)
		}
	}
}

func TestCommandIsLimited(t *testing.T) {
	for _, s := range []string{strings.Repeat("\x01", maxCommand), strings.Repeat("é\x00", maxCommand), "a" + strings.Repeat("\xff", maxCommand)} {
		got := Printable(s)
		if len(got) > maxCommand || len(got) < maxCommand-utf8.UTFMax || !utf8.ValidString(got) {
			t.Errorf("%d bytes of %q: got %d bytes, want at most %d of valid UTF-8", len(s), s[:4], len(got), maxCommand)
		}
	}
}
