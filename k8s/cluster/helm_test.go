package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/client"
)

// helm runs Helm to its end and returns what it prints.
func (n *node) helm(t *testing.T, args ...string) string {
	t.Helper()
	args = append(args, "--kubeconfig", n.path("kubeconfig"), "--namespace", namespace)
	cmd := exec.Command(filepath.Join(n.bin, "helm"), args...)
	cmd.Env = []string{"HOME=" + n.state, "PATH=/usr/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// testHelm installs the chart with Helm, upgrades and uninstalls it under a running pod. It comes
// after testUninstall, so there is no Giveway at its begin, and none may be left at its end.
func (n *node) testHelm(t *testing.T) {
	filter := n.path("post-renderer") // without it the runtime refuses the daemon's container
	n.write(filter, "#!/bin/sh\nexec grep -vE '^ *- ("+strings.Join(append(missingCapabilities(t), "NONE"), "|")+") '\n")
	if err := os.Chmod(filter, 0o755); err != nil {
		t.Fatal(err)
	}
	chart, err := filepath.Abs("../../deploy/helm/giveway")
	if err != nil {
		t.Fatal(err)
	}
	p := pod{name: "beside-helm", annotations: with("class", "idle", "shim", "true")}
	before := p.start(t).Status.ContainerStatuses[0]
	notes := n.helm(t, "install", "giveway", chart, "--post-renderer", filter)
	if !strings.Contains(notes, "STATUS: deployed") {
		t.Errorf("helm install printed:\n%s", notes)
	}
	waitForGiveway(t)
	waitFor(t, "registration of the running pod", func() bool { return classOf(registered()["beside-helm/main"]) == "idle" })
	waitForNewClass(t)

	n.helm(t, "upgrade", "giveway", chart, "--post-renderer", filter, "--set", "daemon.config.policy=giveway")
	waitFor(t, "the new policy", func() bool { return policyInForce() == "giveway" })
	waitForGiveway(t)
	waitFor(t, "registration after the upgrade", func() bool { return classOf(registered()["beside-helm/main"]) == "idle" })

	objects := split(n.helm(t, "get", "manifest", "giveway"))
	n.helm(t, "uninstall", "giveway", "--wait")
	waitFor(t, "end of agent and daemon", func() bool { return len(pidsOf(t, agentCommand))+len(pidsOf(t, daemonCommand)) == 0 })
	if len(objects) < 10 {
		t.Errorf("the release had %d objects", len(objects))
	}
	for _, m := range objects {
		path, err := objectPath(namespace, m)
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "removal of "+path, func() bool { return request("GET", path, "", nil).status == 404 })
	}
	if after := statusOf(podsPath + "/beside-helm").Status.ContainerStatuses[0]; after.ContainerID != before.ContainerID || after.RestartCount != before.RestartCount {
		t.Errorf("the running pod's container was restarted: %+v, was %+v", after, before)
	}
}

// policyInForce returns the name of the daemon's policy; none if the daemon does not answer.
func policyInForce() string {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	daemon := client.New(controlSocket)
	defer daemon.Close()
	p, _ := daemon.Policy(ctx) // zero after an error
	return p.Name
}
