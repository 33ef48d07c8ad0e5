package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pod describes a pod of the test. Its containers run the test's own program.
type pod struct {
	name, priority string
	annotations    map[string]string
	containers     []container // none: one that is named "main" and reports
}

type container struct {
	name, mode string
	env        map[string]string
	socket     bool     // mount the control socket's folder, as a pod may that is allowed hostPath
	command    []string // instead of the test's program: one of the node's
}

const podsPath = "/api/v1/namespaces/default/pods"

// with returns annotations: keys without the prefix, and values, in turn.
func with(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all["giveway.dev/"+pairs[i]] = pairs[i+1]
	}
	return all
}

// systemVolumes and systemMounts give a container the node's programs and libraries.
var systemVolumes, systemMounts = func() (volumes, mounts []map[string]any) {
	for _, name := range []string{"usr", "lib", "lib64"} {
		volumes = append(volumes, map[string]any{"name": name, "hostPath": map[string]string{"path": "/" + name}})
		mounts = append(mounts, map[string]any{"name": name, "mountPath": "/" + name, "readOnly": true})
	}
	return volumes, mounts
}()

// manifest returns the pod as the API takes it.
func (p pod) manifest() []byte {
	if len(p.containers) == 0 {
		p.containers = []container{{name: "main", mode: "report"}}
	}
	var containers, volumes []map[string]any
	for _, c := range p.containers {
		env := []map[string]string{{"name": containerEnv, "value": c.name}}
		for name, value := range c.env {
			env = append(env, map[string]string{"name": name, "value": value})
		}
		spec := map[string]any{
			"name": c.name, "image": "localhost/giveway/pod:1", "imagePullPolicy": "Never", "args": []string{c.mode}, "env": env,
		}
		if c.command != nil {
			spec["command"], spec["args"], spec["volumeMounts"] = c.command, nil, systemMounts
			volumes = systemVolumes
		}
		if c.socket {
			volumes = append(volumes, map[string]any{"name": "control", "hostPath": map[string]string{"path": filepath.Dir(controlSocket)}})
			spec["volumeMounts"] = []map[string]any{{"name": "control", "mountPath": filepath.Dir(controlSocket)}}
			spec["env"] = append(env, map[string]string{"name": "GIVEWAY_SOCKET", "value": controlSocket})
		}
		containers = append(containers, spec)
	}
	spec := map[string]any{
		"hostNetwork": true, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1, "containers": containers, "volumes": volumes,
	}
	if p.priority != "" {
		spec["priorityClassName"] = p.priority
	}
	return encode(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": p.name, "annotations": p.annotations}, "spec": spec,
	})
}

// dryRun asks the API server to check the pod, and returns its answer.
func (p pod) dryRun() answer {
	return request("POST", podsPath+"?dryRun=All", "application/json", p.manifest())
}

// status is what the API server says of a pod.
type status struct {
	Metadata struct {
		UID         string
		Annotations map[string]string
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			Name, ContainerID string
			RestartCount      int
			State             struct {
				Running *struct{ StartedAt time.Time }
			}
		}
	}
}

func statusOf(path string) (s status) {
	request("GET", path, "", nil).decode(&s)
	return s
}

// start creates a pod and waits until all its containers run. The pod is deleted at the end of
// the test.
func (p pod) start(t *testing.T) status {
	t.Helper()
	if a := request("POST", podsPath, "application/json", p.manifest()); !a.ok() {
		t.Fatalf("create pod %s: status %d: %s", p.name, a.status, a.body)
	}
	t.Cleanup(func() { p.remove(t) })
	waitFor(t, "pod "+p.name, func() bool { return p.running() })
	return statusOf(podsPath + "/" + p.name)
}

func (p pod) running() bool {
	s := statusOf(podsPath + "/" + p.name).Status
	for _, c := range s.ContainerStatuses {
		if c.State.Running == nil {
			return false
		}
	}
	return s.Phase == "Running" && len(s.ContainerStatuses) == max(len(p.containers), 1)
}

// remove deletes a pod and waits until it is gone.
func (p pod) remove(t *testing.T) {
	t.Helper()
	path := podsPath + "/" + p.name
	request("DELETE", path, "", nil)
	waitFor(t, "end of pod "+p.name, func() bool { return request("GET", path, "", nil).status == 404 })
}

// line is a line of a container's log.
type line struct {
	at   time.Time
	text string
}

// lines returns what a container has printed, in all its lives.
func (p pod) lines(container string) (all []line) {
	uid := statusOf(podsPath + "/" + p.name).Metadata.UID
	files, err := filepath.Glob(fmt.Sprintf("/var/log/pods/default_%s_%s/%s/*.log", p.name, uid, container))
	if err != nil {
		return nil
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it is being replaced
		}
		for l := range strings.Lines(string(data)) {
			parts := strings.SplitN(strings.TrimSpace(l), " ", 4) // time, stream, F for a full line, text
			if at, err := time.Parse(time.RFC3339Nano, parts[0]); err == nil && len(parts) == 4 {
				all = append(all, line{at, parts[3]})
			}
		}
	}
	return all
}

// report waits for what a container saw when it started, and when it reported that.
func (p pod) report(t *testing.T, container string) (seen, time.Time) {
	t.Helper()
	var s seen
	var at time.Time
	waitFor(t, "report of "+p.name+"/"+container, func() bool {
		for _, l := range p.lines(container) {
			if json.NewDecoder(strings.NewReader(l.text)).Decode(&s) == nil {
				at = l.at
				return true
			}
		}
		return false
	})
	return s, at
}
