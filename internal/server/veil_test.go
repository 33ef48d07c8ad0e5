package server

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
)

// TestVeil: of a program with something in every field there is, its owner and who may all
// see everything, and others what docs/CONFIG.md says.
func TestVeil(t *testing.T) {
	const alice, bob = 1000, 1001
	p := api.Process{
		PID: 5, Command: "train", User: "alice", UID: alice, Container: "c0ffee", Pod: "web-0", Class: "online", From: "set",
		Weight: 2, Priority: 3, Paused: true, Queues: []api.Queue{{ID: 1}},
		Deadline: time.Second, Laxity: time.Second, Work: time.Second, Expect: time.Second, Idempotent: true, Predict: true,
		SLO: time.Second, Bound: 4, Batch: 5, Requests: &api.Requests{Count: 6}, Shim: &api.Shim{Launched: 7},
	}
	fields := func(p api.Process) (names []string) {
		v := reflect.ValueOf(p)
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				names = append(names, v.Type().Field(i).Name)
			}
		}
		return names
	}
	if n := reflect.TypeFor[api.Process]().NumField(); len(fields(p)) != n {
		t.Fatalf("of %d fields this test fills %q", n, fields(p))
	}
	for who, c := range map[string]caller{"its owner": {peer: peer{uid: alice}}, "root": {all: true}} {
		if got := c.veil(p); !reflect.DeepEqual(got, p) {
			t.Errorf("%s sees %+v", who, got)
		}
	}
	others := []string{"PID", "User", "UID", "Class", "From", "Paused", "Queues"}
	if got := fields(caller{peer: peer{uid: bob}}.veil(p)); !slices.Equal(got, others) {
		t.Errorf("another user sees %q, want %q", got, others)
	}
	if got := (caller{peer: peer{uid: bob}}).veil(api.Process{UID: alice}); got.Queues == nil {
		t.Error("without queues there is no list of them")
	}
}
