package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// processMetricsConfig makes the daemon count device time by process.
const processMetricsConfig = "metrics: {pid: true}\n"

// TestPromises compares what the daemon promises and gives to two saturating jobs of weights 3
// and 1: with the policy giveway the promise is kept, and with the vendor's own scheduling each
// job has a half. Device time that the online process leaves and takes back adds up as well.
func TestPromises(t *testing.T) {
	b := newTestbed(t)
	file := filepath.Join(filepath.Dir(b.socket), "giveway.yaml")
	if err := os.WriteFile(file, []byte(processMetricsConfig), 0o644); err != nil {
		b.Fatal(err)
	}
	b.startDaemon("--config", file)
	online := b.run("--class online --late-entry off", onlineJob+" --seconds 10")
	jobs := b.startJobs(2)
	b.await(online.pid, jobs[0].pid, jobs[1].pid)
	b.set(jobs[0].pid, "--class", "batch", "--weight", "3")
	b.set(jobs[1].pid, "--class", "batch", "--weight", "1")
	for _, policy := range []string{"giveway", "native"} {
		b.policy(policy)
		time.Sleep(2 * time.Second)
		before := b.metrics()
		latency := online.measure()
		after := b.metrics()
		more := func(name string, pid int) float64 {
			return grown(before, after, "giveway_process_"+name+"_seconds_total", fmt.Sprintf("pid=%q", fmt.Sprint(pid)))
		}
		heavy, light := more("share_given", jobs[0].pid)/more("share_promised", jobs[0].pid), more("share_given", jobs[1].pid)/more("share_promised", jobs[1].pid)
		all := func(name string) float64 { return grown(before, after, "giveway_"+name+"_seconds_total", "") }
		batch := grown(before, after, "giveway_class_device_seconds_total", `class="batch"`)
		served := grown(before, after, "giveway_class_device_seconds_total", `class="online"`)
		b.record(policy, &latency, values{
			"given_of_promised_weight3": heavy, "given_of_promised_weight1": light, "promised_s": all("process_share_promised"), "given_s": all("process_share_given"),
			"given_away_s": all("given_away"), "batch_s": batch, "taken_back_s": all("taken_back"), "online_s": served,
		})
		b.atLeast("given / promised, together", all("process_share_given")/all("process_share_promised"), 0.999)
		b.atMost("given / promised, together", all("process_share_given")/all("process_share_promised"), 1.001)
		if policy == "native" {
			b.atMost("given / promised, weight 3, native", heavy, 0.8)
			continue
		}
		b.atLeast("given / promised, weight 3", heavy, 0.9)
		b.atLeast("given / promised, weight 1", light, 0.8)
		b.atMost("given / promised, weight 1", light, 1.25)
		b.atLeast("given away / batch", all("given_away")/batch, 0.8)
		b.atMost("given away / batch", all("given_away")/batch, 1.01)
		b.atLeast("taken back / online", all("taken_back")/served, 0.8)
		b.atMost("taken back / online", all("taken_back")/served, 1.01)
	}
}
