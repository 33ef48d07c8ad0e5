package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/sched"
	"golang.org/x/sys/unix"
)

// classOf returns the class with which a container is registered.
func classOf(c api.Container) string {
	value, given := c.Values.Get(attr.Class)
	if !given {
		return ""
	}
	return sched.Class(value).String()
}

// testRestart restarts something under a running pod. The pod is not touched and stays
// registered, and later pods are registered too.
func testRestart(t *testing.T, restart func(*testing.T)) {
	p := pod{name: "running", annotations: with("class", "idle", "shim", "true")}
	before := p.start(t).Status.ContainerStatuses[0]
	wantClass(t, p, "main", "idle")
	began := time.Now()
	restart(t)
	waitForGiveway(t)
	waitFor(t, "registration of the running pod", func() bool { return classOf(registered()["running/main"]) == "idle" })
	t.Logf("all registered again %v after the restart began", time.Since(began).Round(time.Millisecond))
	after := statusOf(podsPath + "/running").Status.ContainerStatuses[0]
	if after.RestartCount != before.RestartCount || after.ContainerID != before.ContainerID {
		t.Errorf("the running pod's container was restarted: %+v, was %+v", after, before)
	}
	waitForNewClass(t)
}

// waitForNewClass starts pods until one has its class at its start: an agent that was
// restarted connects within seconds, and pods start meanwhile without it.
func waitForNewClass(t *testing.T) {
	t.Helper()
	for i := range 20 {
		p := pod{name: "later-" + strconv.Itoa(i), annotations: with("class", "batch", "shim", "true")}
		p.start(t)
		if s, _ := p.report(t, "main"); len(s.Processes) == 1 && s.Processes[0].Class == "batch" {
			if i > 0 {
				t.Logf("%d pods started without their class", i)
			}
			return
		}
	}
	t.Error("no later pod has its class at its start")
}

// killAndWait kills processes and waits until others have taken their place.
func killAndWait(t *testing.T, commandLine string) {
	t.Helper()
	old := map[int]bool{}
	for _, pid := range pidsOf(t, commandLine) {
		old[pid] = true
	}
	signalAll(t, commandLine, syscall.SIGKILL)
	waitFor(t, "another process "+commandLine, func() bool {
		for _, pid := range pidsOf(t, commandLine) {
			if !old[pid] {
				return true
			}
		}
		return false
	})
}

// restart returns a function that restarts a program of the node.
func (n *node) restart(name string) func(*testing.T) {
	return func(t *testing.T) {
		n.t = t
		n.stop(name, syscall.SIGTERM)
		n.began = time.Now()
		n.start(name)
		waitFor(t, name, n.ready)
	}
}

// testHung stops the agent. A pod must start without it, and be registered when the agent goes
// on. A pod that was deleted meanwhile is removed.
func testHung(t *testing.T) {
	deleted := pod{name: "deleted-while-hung", annotations: with("class", "idle")}
	deleted.start(t)
	signalAll(t, agentCommand, syscall.SIGSTOP)
	began := time.Now()
	p := pod{name: "while-hung", annotations: with("class", "idle")}
	p.start(t)
	t.Logf("pod started after %v", time.Since(began).Round(time.Millisecond))
	deleted.remove(t)
	if _, known := registered()["deleted-while-hung/main"]; !known {
		t.Error("the hung agent has removed a container")
	}
	signalAll(t, agentCommand, syscall.SIGCONT)
	began = time.Now()
	waitFor(t, "registration of the pod", func() bool { return classOf(registered()["while-hung/main"]) == "idle" })
	t.Logf("registered %v after the agent went on", time.Since(began).Round(time.Millisecond))
	waitFor(t, "removal of the deleted pod", func() bool {
		all := registered()
		_, known := all["deleted-while-hung/main"]
		return all != nil && !known
	})
	waitForNewClass(t)
}

// testDaemonHung stops the daemon. A pod must start without it, and be registered when the
// daemon goes on.
func testDaemonHung(t *testing.T) {
	signalAll(t, daemonCommand, syscall.SIGSTOP)
	began := time.Now()
	p := pod{name: "daemon-hung", annotations: with("class", "idle")}
	p.start(t)
	t.Logf("pod started after %v", time.Since(began).Round(time.Millisecond))
	signalAll(t, daemonCommand, syscall.SIGCONT)
	began = time.Now()
	waitFor(t, "registration of the pod", func() bool { return classOf(registered()["daemon-hung/main"]) == "idle" })
	t.Logf("registered %v after the daemon went on", time.Since(began).Round(time.Millisecond))
	waitForNewClass(t)
}

// testLost removes a running pod's container from the daemon, as if the journal had been lost,
// and registers one that does not exist. The agent puts both right.
func testLost(t *testing.T) {
	p := pod{name: "lost", annotations: with("class", "idle")}
	p.start(t)
	daemon := client.New(controlSocket)
	defer daemon.Close()
	stranger := api.Container{ID: strings.Repeat("a", 64), ContainerNames: api.ContainerNames{Name: "main", Pod: "stranger", Namespace: "default"}}
	if err := errors.Join(daemon.Unregister(t.Context(), registered()["lost/main"].ID), daemon.Register(t.Context(), stranger)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitFor(t, "the agent's comparison", func() bool {
		all := registered()
		_, known := all["stranger/main"]
		return classOf(all["lost/main"]) == "idle" && !known
	})
	t.Logf("put right after %v", time.Since(began).Round(time.Millisecond))
}

// testUnregistered starts a pod with the control socket while the agent hangs, so that the pod
// runs before it is registered. It sees no other pod's processes, and changes none.
func testUnregistered(t *testing.T) {
	other := pod{name: "other", priority: "gpu-online", annotations: with("shim", "true")}
	other.start(t)
	other.report(t, "main")
	signalAll(t, agentCommand, syscall.SIGSTOP)
	// The agent cannot mount the socket, so the pod does. It cannot register the pod either.
	p := pod{name: "unregistered", annotations: with("class", "batch"), containers: []container{{name: "main", mode: "ask", socket: true}}}
	p.start(t)
	s, _ := p.report(t, "main")
	signalAll(t, agentCommand, syscall.SIGCONT)
	// If the daemon has found the pod's own process by then, the pod sees that one, without names.
	own := []seenProcess{{Class: "standard", Weight: 1}}
	if len(s.Processes) != 0 && !slices.Equal(s.Processes, own) || s.Raise == "" || s.Other == "" || s.Containers == "" {
		t.Errorf("processes %v; raising a class: %q, registering: %q, listing containers: %q; want all refused, and no process but its own", s.Processes, s.Raise, s.Other, s.Containers)
	}
	waitFor(t, "registration", func() bool { return classOf(registered()["unregistered/main"]) == "batch" })
	if got := processes()["other"].Attrs.Class().String(); got != "online" {
		t.Errorf("the other pod has class %s, want online", got)
	}
	waitForNewClass(t)
}

// testReboot kills every process of the node, empties /run, and boots again. A pod comes back
// with its class.
func (n *node) testReboot(t *testing.T) {
	n.t = t
	p := pod{name: "rebooted", annotations: with("class", "idle", "shim", "true")}
	before := p.start(t).Status.ContainerStatuses[0]
	wantClass(t, p, "main", "idle")
	began := time.Now()
	n.powerOff()
	n.began = time.Now()
	n.boot()
	waitFor(t, "the pod after the reboot", func() bool {
		s := statusOf(podsPath + "/rebooted").Status.ContainerStatuses
		return len(s) == 1 && s[0].ContainerID != before.ContainerID && p.running()
	})
	waitForGiveway(t)
	waitFor(t, "registration after the reboot", func() bool {
		c := registered()["rebooted/main"]
		return classOf(c) == "idle" && "containerd://"+c.ID != before.ContainerID
	})
	t.Logf("registered %.1f s after the machine was switched off", time.Since(began).Seconds())
	waitForNewClass(t)
}

// powerOff ends all processes but the test and its init, and removes what a reboot does not
// keep: cgroups and /run.
func (n *node) powerOff() {
	n.t.Helper()
	for range 50 {
		left := 0
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			n.t.Fatal(err)
		}
		for _, p := range all {
			pid, err := strconv.Atoi(filepath.Base(p))
			if err != nil || pid == 1 || pid == os.Getpid() || !hasProgram(pid) {
				continue
			}
			left++
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
		if left == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for name, cmd := range n.running {
		_ = cmd.Wait() // it was killed
		delete(n.running, name)
	}
	for _, dir := range cgroupFolders(n.t, n.cgroup) {
		removeCgroup(filepath.Join(dir, "kubepods"))
	}
	if err := unix.Unmount("/run", unix.MNT_DETACH); err != nil {
		n.t.Fatalf("empty /run: %v", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		n.t.Fatalf("empty /run: %v", err)
	}
}

// hasProgram reports whether a process has not ended.
func hasProgram(pid int) bool {
	_, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	return err == nil
}
