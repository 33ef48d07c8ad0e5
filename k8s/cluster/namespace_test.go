package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The environment of the processes in the namespaces.
const (
	stageKey  = "GIVEWAY_CLUSTER_STAGE"  // init or inside; not set on the machine
	cgroupKey = "GIVEWAY_CLUSTER_CGROUP" // name of the cgroup of all pods, in each hierarchy
	outKey    = "GIVEWAY_CLUSTER_OUT"    // absolute path of out/k8s
	testKey   = "GIVEWAY_CLUSTER_TEST"   // name of the test that the namespaces are for
)

// programs are those that make test-k8s builds.
var programs = []string{
	"hyper", "etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "cni/bridge", "cni/host-local", "cni/loopback",
	"giveway", "giveway-k8s", "libgiveway.so",
}

const cgroupPrefix = "giveway-k8s-"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == podProgram {
		os.Exit(podMain(os.Args[1:]))
	}
	if os.Getenv(stageKey) == "init" {
		status, err := initMain()
		if err != nil {
			fmt.Fprintln(os.Stderr, "set up the namespaces:", err)
		}
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// TestCluster runs all cases in one cluster.
func TestCluster(t *testing.T) { inNamespaces(t, runCases) }

// inNamespaces runs a test in namespaces of its own. On the machine the test runs itself in them,
// and checks that they leave nothing behind.
func inNamespaces(t *testing.T, inside func(*testing.T)) {
	if os.Getenv(stageKey) == "inside" {
		if os.Getenv(testKey) == t.Name() {
			inside(t)
		}
		return
	}
	out := findPrograms(t)
	removeCgroups(t, cgroupPrefix+"*") // of a run that was killed
	before := machineState(t)
	cgroup := cgroupPrefix + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		removeCgroups(t, cgroup)
		if after := machineState(t); !slices.Equal(before, after) {
			t.Errorf("the run changed the machine:\nbefore %q\nafter  %q", before, after)
		}
	})
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageKey+"=init", cgroupKey+"="+cgroup, outKey+"="+out, testKey+"="+t.Name())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("cluster: %v; the programs' logs are in %s", err, filepath.Join(out, "run"))
	}
}

// findPrograms returns the folder with the programs, or skips the test.
func findPrograms(t *testing.T) string {
	t.Helper()
	if os.Getenv("GIVEWAY_TEST_K8S") == "" {
		t.Skip("a cluster takes minutes; make test-k8s runs it")
	}
	if os.Getuid() != 0 {
		t.Skip("a cluster needs root")
	}
	out, err := filepath.Abs("../../out/k8s")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(out, "bin", p)); err != nil {
			t.Skipf("%v; make test-k8s builds it", err)
		}
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the node's network needs the program ip (package iproute2)")
	}
	if !isStatic(t) {
		t.Skip("the test's program is used in pods and must be static; set CGO_ENABLED=0, as make test-k8s does")
	}
	return out
}

// machineState returns what a run must not change on the machine.
func machineState(t *testing.T) (all []string) {
	t.Helper()
	for _, name := range settings {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			all = append(all, name+"="+strings.TrimSpace(string(value)))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if where := strings.Fields(line)[4]; strings.Contains(where, "out/k8s") || strings.Contains(where, "kubelet") || strings.Contains(where, "containerd") {
			all = append(all, "mount "+where)
		}
	}
	for _, dir := range cgroupFolders(t, cgroupPrefix+"*") {
		if !ofOther(dir) {
			all = append(all, "cgroup "+dir)
		}
	}
	return append(all, processesOf(t)...)
}

// processesOf returns the processes whose programs are those of a cluster in this checkout.
func processesOf(t *testing.T) (all []string) {
	t.Helper()
	bin, err := filepath.Abs("../../out/k8s/bin")
	if err != nil {
		t.Fatal(err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, bin) {
			all = append(all, "process "+to)
		}
	}
	return all
}

func cgroupFolders(t *testing.T, name string) (all []string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		some, err := filepath.Glob(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// removeCgroups removes cgroups and those inside, except the ones of a test that still runs.
// Their processes are dead or about to be.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	for range 100 {
		left := 0
		for _, dir := range cgroupFolders(t, name) {
			if ofOther(dir) {
				continue
			}
			left++
			removeCgroup(dir)
		}
		if left == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ofOther reports whether a cgroup belongs to a test in another checkout that still runs.
func ofOther(dir string) bool {
	pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
	return err == nil && pid != os.Getpid() && syscall.Kill(pid, 0) == nil
}

func removeCgroup(dir string) {
	var all []string
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, d := range slices.Backward(all) {
		_ = unix.Rmdir(d) // busy while a process in it ends; tried again
	}
}

// initMain is the first process of the namespaces. It makes the mounts, starts the test, and
// waits for all processes that lose their parents, until the test ends.
func initMain() (int, error) {
	if err := setUpMounts(os.Getenv(outKey)); err != nil {
		return 1, err
	}
	if err := os.Setenv(stageKey, "inside"); err != nil {
		return 1, err
	}
	child, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 1, fmt.Errorf("start the test: %w", err)
	}
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case err != nil && !errors.Is(err, syscall.EINTR):
			return 1, fmt.Errorf("wait for the test: %w", err)
		case pid == child && (status.Exited() || status.Signaled()):
			if status.Signaled() {
				return 1, fmt.Errorf("the test was ended by signal %v", status.Signal())
			}
			return status.ExitStatus(), nil
		}
	}
}
