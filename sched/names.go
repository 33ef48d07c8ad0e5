package sched

import (
	"fmt"
	"strings"
)

// Names of the constants for command lines, scripts and logs, indexed by value.
var (
	classNames   = []string{"standard", "online", "batch", "idle"}
	stateNames   = []string{"running", "stopping", "stopped", "starting"}
	verbNames    = []string{"", "stop", "start", "slice", "bound"}
	outcomeNames = []string{"done", "refused", "unsupported", "gone", "partial"}
	abilityNames = []string{"hold", "deactivate", "interrupt", "slice", "bound"}
	kindNames    = []string{
		"", "device-opened", "device-closed", "queue-opened", "queue-closed", "progressed", "device-time",
		"measurement-lost", "request-started", "request-finished", "attrs-changed", "action-done", "policy-chosen", "plan-offered",
		"shutdown-started",
	}
)

func (c Class) String() string   { return name(classNames, int(c)) }
func (s State) String() string   { return name(stateNames, int(s)) }
func (v Verb) String() string    { return name(verbNames, int(v)) }
func (o Outcome) String() string { return name(outcomeNames, int(o)) }
func (k Kind) String() string    { return name(kindNames, int(k)) }

func (a Ability) String() string {
	var names []string
	for i, n := range abilityNames {
		if a&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, ",")
}

func name(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprint("unknown-", i)
}

// ParseClass is the inverse of Class.String.
func ParseClass(s string) (Class, error) {
	for i, n := range classNames {
		if n == s {
			return Class(i), nil
		}
	}
	return 0, fmt.Errorf("class %q is not one of %s", s, strings.Join(classNames, ", "))
}
