package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/record"
)

// TestVisible: the owner of a process and callers that may do everything see all of it,
// other users what docs/CONFIG.md says.
func TestVisible(t *testing.T) {
	const alice, bob = 1000, 1001
	var all attr.Values
	for _, id := range attr.IDs(0) {
		all.Set(id, id.Row().Max)
	}
	p := api.Process{
		PID: 5, Command: "train", User: "alice", UID: alice, Container: "c0ffee", Pod: "2f1b7a04",
		ContainerNames: api.ContainerNames{Name: "main"},
		Attrs:          attr.Resolve(&attr.Layers{attr.FromSet: all}), Ignored: []api.Ignored{{Name: "slo"}},
		Queues: []api.Queue{{ID: 1}}, Requests: &api.Requests{Count: 6}, Shim: &api.Shim{Launched: 7},
		Member: &api.Member{Server: 8}, Memory: map[string]uint64{"gpu0": 9}, Warning: "the journal is full",
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
	if n := reflect.TypeFor[api.Process]().NumField() - 1; len(fields(p)) != n { // all but Owner, of a process in a pod
		t.Fatalf("this test fills %q, and a process has %d fields", fields(p), n)
	}
	for name, c := range map[string]caller{"its owner": {peer: peer{uid: alice}}, "root": {all: true}} {
		if got := c.visible(p); !reflect.DeepEqual(got, p) {
			t.Errorf("%s sees %+v", name, got)
		}
	}
	got := caller{peer: peer{uid: bob}}.visible(p)
	if want := []string{"PID", "User", "UID", "Attrs", "Queues", "Member"}; !slices.Equal(fields(got), want) {
		t.Errorf("another user sees %q, want %q", fields(got), want)
	}
	if got, want := got.Attrs.Given(), attr.Must("class=idle paused=true"); got != want {
		t.Errorf("another user sees the attributes %v, want %v", got, want)
	}
	if got := (caller{peer: peer{uid: bob}}).visible(api.Process{UID: alice}); got.Queues == nil {
		t.Error("without queues the list is null in JSON, not empty")
	}
}

// TestPolicyCommandIsHidden: only callers that may do everything see the command line of a
// policy process, in the policy and in the orders about it.
func TestPolicyCommandIsHidden(t *testing.T) {
	const command = "run --key=secret"
	external := api.Policy{Name: "external", Params: map[string]string{"exec": command, "deadline": "5ms"}}
	policy := api.Policy{Name: "slo", Devices: []api.Policy{external}}
	root, bob := caller{all: true}, caller{peer: peer{uid: 1001}}
	if got := root.visiblePolicy(policy); !reflect.DeepEqual(got, policy) {
		t.Errorf("root sees %+v", got)
	}
	for _, p := range []api.Policy{external, policy} {
		text, err := json.Marshal(bob.visiblePolicy(p))
		if err != nil || bytes.Contains(text, []byte("secret")) || !bytes.Contains(text, []byte("5ms")) {
			t.Errorf("another user sees %s (%v), want all but the command line", text, err)
		}
	}
	if external.Params["exec"] != command {
		t.Error("the policy itself was changed")
	}
	s := New(mute{}, Config{})
	for _, c := range []struct {
		to   api.Policy
		want bool
	}{{api.Policy{Name: "rr"}, true}, {external, false}} {
		if _, did, err := s.setPolicy(caller{all: true, peer: peer{local: true}}, c.to); err != nil || did.all != c.want {
			t.Errorf("policy %s: got an order that every user sees: %v (%v), want %v", c.to.Name, did.all, err, c.want)
		}
	}
}

// TestOthersSeeLess checks what is hidden in the record from users that an entry does not
// concern.
func TestOthersSeeLess(t *testing.T) {
	const alice, bob = 1000, 1001
	s, by := New(mute{}, Config{}), caller{peer: peer{local: true, uid: bob}}
	rec, uid := s.node.Record(), int64(alice)
	from := rec.Last()
	order := api.Order{Name: "set", UID: &uid, PID: 3, Command: "sh", To: "weight=3"}
	rec.Order(5, order, record.Details{UID: alice})
	rec.Order(6, order, record.Details{UID: bob})
	rec.Order(0, order, record.Details{AffectsAll: true, UID: alice})
	rec.Add(&record.Entry{Kind: record.Request, PID: 5, UID: alice})
	rec.Add(&record.Entry{Kind: record.Request, PID: 6, UID: bob})
	rec.Add(&record.Entry{Kind: record.State, What: record.Queue, PID: 5, UID: alice, Slice: 7, Bound: 3, Paused: true})
	var r api.Record
	if err := json.Unmarshal(s.readRecord(by, recordQuery{after: from, kinds: record.All, limit: 100}).body, &r); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.Entries {
		switch {
		case e.Order != nil:
			got = append(got, fmt.Sprintf("order %q %q %v", e.Order.To, e.Order.Command, e.Order.UID != nil))
		case e.Request != nil:
			got = append(got, fmt.Sprint("request ", e.PID))
		case e.State != nil:
			got = append(got, fmt.Sprintf("state %v %d %v", e.State.SLO, e.State.Weight, e.State.Paused))
		}
	}
	want := []string{`order "" "" false`, `order "weight=3" "sh" true`, `order "weight=3" "sh" true`, "request 6", "state 0s 0 true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestInputsAreForRoot checks that no other user gets the inputs of the scheduler, which are
// of all processes.
func TestInputsAreForRoot(t *testing.T) {
	s := New(mute{}, Config{})
	for _, op := range []operation{opBeginInputs, opNextInputs, opEndInputs} {
		if _, err := s.inputs(caller{peer: peer{local: true, uid: 1000}}, op); statusOf(err) != http.StatusForbidden {
			t.Errorf("%v for another user: got %v, want a refusal", op, err)
		}
		if _, err := s.inputs(caller{all: true}, op); err != nil {
			t.Errorf("%v for root: got %v", op, err)
		}
	}
}

// TestRecordOfPodsIsHidden: a user outside of pods has the uid of a process in a pod. It does not see the
// requests of that process, nor details of its states, nor of orders by or for it.
func TestRecordOfPodsIsHidden(t *testing.T) {
	const uid = 1000
	user := caller{peer: peer{local: true, uid: uid}}
	by := int64(uid)
	for _, pod := range []string{"", "2f1b7a04"} {
		inPod := pod != ""
		request := record.Entry{Kind: record.Request, UID: uid, Pod: pod}
		if user.query(recordQuery{}).Visible(&request) == inPod {
			t.Errorf("pod %q: the request is visible: %v", pod, !inPod)
		}
		for name, e := range map[string]record.Entry{
			"state":     {Kind: record.State, UID: uid, Pod: pod},
			"order for": {Kind: record.Order, Words: &record.Details{UID: uid, Pod: pod}},
			"order by":  {Kind: record.Order, Words: &record.Details{UID: noUser, ByPod: pod, Order: api.Order{UID: &by}}},
		} {
			if user.hides(&e) != inPod || (caller{all: true}).hides(&e) {
				t.Errorf("pod %q, %s: hidden from the user %v, from root %v", pod, name, user.hides(&e), caller{all: true}.hides(&e))
			}
		}
	}
}
