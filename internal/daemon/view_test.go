package daemon

import (
	"encoding/json"
	"os"
	"testing"
)

// TestProcessIsAsListed: Process returns what Processes has of a process, but for its queues, and nothing of
// one that is not listed.
func TestProcessIsAsListed(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	p, _ := sleeper(t)
	if _, err := b.offer(p); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Change(ourselves, p.PID, given("class=batch weight=3")); err != nil {
		t.Fatal(err)
	}
	all := d.Processes()
	if len(all) != 1 || len(all[0].Queues) != 1 {
		t.Fatalf("got %+v, want one process with a queue", all)
	}
	all[0].Queues = all[0].Queues[:0]
	all[0].Memory = nil
	one, ok := d.Process(p.PID)
	got, _ := json.Marshal(one)
	want, _ := json.Marshal(all[0])
	if !ok || string(got) != string(want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if one, ok := d.Process(os.Getpid()); ok {
		t.Errorf("a process without a queue is listed: %+v", one)
	}
}
