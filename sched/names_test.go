package sched_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/giveway/giveway/sched"
)

// TestParseClass checks that every class is read by its name, and that an error names them all.
func TestParseClass(t *testing.T) {
	for _, c := range []sched.Class{sched.Standard, sched.Online, sched.Batch, sched.Idle} {
		if got, err := sched.ParseClass(c.String()); got != c || err != nil {
			t.Errorf("%v: got %v, %v", c, got, err)
		}
	}
	if _, err := sched.ParseClass("fast"); err == nil || !strings.Contains(err.Error(), "standard, online, batch, idle") {
		t.Errorf("unknown class: got error %v, want one that names the classes", err)
	}
}

// TestUnknownValuesHaveANumber checks the names of values that do not exist, from the first on.
func TestUnknownValuesHaveANumber(t *testing.T) {
	for _, c := range []struct {
		value fmt.Stringer
		want  string
	}{
		{sched.Idle, "idle"},
		{sched.Idle + 1, "unknown-4"},
		{sched.Starting, "starting"},
		{sched.Starting + 1, "unknown-4"},
		{sched.SetBound, "bound"},
		{sched.SetBound + 1, "unknown-5"},
		{sched.Verb(0), "unknown-0"},
		{sched.Gone, "gone"},
		{sched.Partial, "partial"},
		{sched.Partial + 1, "unknown-5"},
		{sched.ShutdownStarted, "shutdown-started"},
		{sched.ShutdownStarted + 1, "unknown-15"},
	} {
		if got := c.value.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
