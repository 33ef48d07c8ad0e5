package cluster

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"golang.org/x/sys/unix"
)

const (
	namespace     = "giveway"
	controlSocket = "/run/giveway/giveway.sock"

	// prerequisites are what a cluster has before Giveway is installed. The node has no GPU, so
	// the runtime class for NVIDIA's is the ordinary one.
	prerequisites = `
apiVersion: v1
kind: Namespace
metadata:
  name: giveway
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: nvidia
handler: runc
`
)

// manifests returns deploy/kubernetes/giveway.yaml, without missingCapabilities.
func manifests(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../deploy/kubernetes/giveway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, name := range missingCapabilities(t) {
		text = regexp.MustCompile(`(?m)^ +- `+name+` +#.*\n`).ReplaceAllString(text, "")
	}
	return text
}

// missingCapabilities returns those of the daemon's capabilities that this machine cannot give.
func missingCapabilities(t *testing.T) (missing []string) {
	t.Helper()
	for name, number := range map[string]uintptr{
		"SYS_PTRACE": unix.CAP_SYS_PTRACE, "DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH, "BPF": unix.CAP_BPF, "PERFMON": unix.CAP_PERFMON,
		"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
	} {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, number, 0, 0, 0); err == nil && has == 1 {
			continue
		}
		t.Logf("this machine cannot give capability %s to the daemon", name)
		missing = append(missing, name)
	}
	return missing
}

// objectOf returns the one object of a kind of Giveway's manifests.
func objectOf(t *testing.T, kind string) string {
	t.Helper()
	for _, m := range split(manifests(t)) {
		if found := kindLine.FindStringSubmatch(m); found[1] == kind {
			return m
		}
	}
	t.Fatalf("the manifests have no %s", kind)
	return ""
}

// install installs Giveway and waits until it works.
func install(t *testing.T) {
	t.Helper()
	apply(t, namespace, prerequisites)
	waitFor(t, "service account", func() bool {
		return request("GET", "/api/v1/namespaces/"+namespace+"/serviceaccounts/default", "", nil).ok()
	})
	apply(t, namespace, manifests(t))
	waitFor(t, "admission policies", func() bool {
		mapped := pod{name: "x", priority: "gpu-batch"}.dryRun()
		return strings.Contains(mapped.body, `"giveway.dev/class":"batch"`) && !pod{name: "x", annotations: with("class", "none")}.dryRun().ok()
	})
	waitForGiveway(t)
}

// waitForGiveway waits until the daemon knows all containers that run, the agent's included.
func waitForGiveway(t *testing.T) {
	t.Helper()
	waitFor(t, "agent and daemon", func() bool {
		all := registered()
		return all[namespace+"/agent"].ID != "" && all[namespace+"/daemon"].ID != ""
	})
}

// registered returns the daemon's containers, by namespace or, in namespace default, by pod,
// and name. It returns none if the daemon does not answer.
func registered() map[string]api.Container {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	daemon := client.New(controlSocket)
	defer daemon.Close()
	containers, err := daemon.Containers(ctx)
	if err != nil {
		return nil
	}
	all := map[string]api.Container{}
	for _, c := range containers {
		key := c.Pod
		if c.Namespace != "default" {
			key = c.Namespace
		}
		all[key+"/"+c.Name] = c
	}
	return all
}

// processes returns the daemon's processes by the names of their pods.
func processes() map[string]api.Process {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	daemon := client.New(controlSocket)
	defer daemon.Close()
	all := map[string]api.Process{}
	list, err := daemon.Processes(ctx)
	if err != nil {
		return nil
	}
	for _, p := range list {
		all[p.ContainerNames.Pod] = p
	}
	return all
}

// pidsOf returns the processes in the namespaces whose command line begins so.
func pidsOf(t *testing.T, commandLine string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(strings.ReplaceAll(string(data), "\x00", " "), commandLine) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// signalAll sends a signal to the processes whose command line begins so; there must be one.
func signalAll(t *testing.T, commandLine string, signal syscall.Signal) {
	t.Helper()
	pids := pidsOf(t, commandLine)
	if len(pids) == 0 {
		t.Fatalf("no process runs %q", commandLine)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatalf("send %v to %q: %v", signal, commandLine, err)
		}
	}
}

// The command lines of Giveway's processes in its pods.
const (
	agentCommand  = "/giveway-k8s agent"
	daemonCommand = "/giveway daemon"
)
