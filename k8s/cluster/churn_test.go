package cluster

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var churnTime = flag.Duration("churn", 20*time.Second, "how long pods are created and deleted to look for leaks")

// usage is what a process holds.
type usage struct{ descriptors, resident int } // resident memory in KiB

func usageOf(t *testing.T, commandLine string) (u usage) {
	t.Helper()
	for _, pid := range pidsOf(t, commandLine) {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		files, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		u.descriptors += len(files)
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(status), "VmRSS:")
		var kib int
		if _, err := fmt.Sscan(after, &kib); err != nil {
			t.Fatalf("resident memory of %q: %v", commandLine, err)
		}
		u.resident += kib
	}
	return u
}

// testChurn creates and deletes pods, 10 at a time. At the end the daemon knows the containers
// that are left, and neither it nor the agent holds more than after the first round.
func testChurn(t *testing.T) {
	total := churnRound(t)
	settled := func() int {
		count := 0
		waitFor(t, "removal of the deleted pods", func() bool {
			all := registered()
			count = len(all)
			for name := range all {
				if strings.HasPrefix(name, "churn-") {
					return false
				}
			}
			return all != nil
		})
		return count
	}
	containers := settled()
	commands := []string{agentCommand, daemonCommand}
	before := map[string]usage{}
	for _, c := range commands {
		before[c] = usageOf(t, c)
	}
	for began := time.Now(); time.Since(began) < *churnTime; {
		total += churnRound(t)
	}
	if now := settled(); now != containers {
		t.Errorf("%d containers are registered, and %d were", now, containers)
	}
	for _, c := range commands {
		b, now := before[c], usageOf(t, c)
		t.Logf("%s: %d descriptors, were %d; %d KiB, were %d; after %d pods", c, now.descriptors, b.descriptors, now.resident, b.resident, total)
		if now.descriptors > b.descriptors+8 || now.resident > 2*b.resident+16<<10 {
			t.Errorf("%s holds more than before", c)
		}
	}
}

var churned atomic.Int64 // names the pods

// churnRound creates 10 pods at once, waits until they run, deletes them, and returns their
// number.
func churnRound(t *testing.T) int {
	t.Helper()
	var pods []pod
	for range 10 {
		p := pod{
			name: "churn-" + strconv.FormatInt(churned.Add(1), 10), annotations: with("class", "batch", "shim", "true"),
			containers: []container{{name: "main", mode: "report"}},
		}
		if a := request("POST", podsPath, "application/json", p.manifest()); !a.ok() {
			t.Fatalf("create pod %s: status %d: %s", p.name, a.status, a.body)
		}
		pods = append(pods, p)
	}
	for _, p := range pods {
		waitFor(t, "pod "+p.name, p.running)
	}
	for _, p := range pods {
		request("DELETE", podsPath+"/"+p.name, "", nil)
	}
	for _, p := range pods {
		p.remove(t)
	}
	return len(pods)
}
