package config

import (
	"testing"

	"github.com/giveway/giveway/attr"
)

// TestLimit: the first limit that matches a user applies, by the name or the number of the
// user or of a group.
func TestLimit(t *testing.T) {
	c, err := Parse("x.yaml", []byte(`
limits:
  - {match: {user: alice, group: staff}, class: online}
  - {match: {user: "al*"}, class: standard, priority: 3}
  - {match: {user: 1005}, weight: 4}
  - {match: {group: students}, class: batch}
  - {match: {group: 44}, class: idle}
  - {match: {}, priority: 0}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []struct {
		uid    uint32
		name   string
		groups []string
		want   string
		line   int
	}{
		{1000, "alice", []string{"50", "staff"}, "class=online", 3},
		{1000, "alice", []string{"students"}, "class=standard priority=3", 4},
		{1005, "eve", []string{"students"}, "weight=4", 5},
		{1001, "bob", []string{"1001", "students"}, "class=batch", 6},
		{1001, "bob", []string{"44", "video"}, "class=idle", 7},
		{1001, "bob", nil, "priority=0", 8},
	} {
		if got := c.Limit(u.uid, u.name, u.groups); got.Ceiling != attr.Must(u.want) || got.Line != u.line {
			t.Errorf("%+v: got %v of line %d", u, got.Ceiling, got.Line)
		}
	}
	if got := (&Config{}).Limit(0, "root", nil); !got.Ceiling.Empty() {
		t.Errorf("without limits: got %v", got.Ceiling)
	}
	if got := c.NeedRestart(&Config{}); len(got) > 0 {
		t.Errorf("a change of limits needs a restart for %q", got)
	}
}
