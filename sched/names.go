package sched

import (
	"fmt"
	"strings"
)

// Names of the constants, for people: command lines, scripts, logs.
var (
	classNames   = []string{"standard", "online", "batch", "idle"}
	stateNames   = []string{"running", "stopping", "stopped", "starting"}
	verbNames    = []string{"", "stop", "start", "slice", "window"}
	failureNames = []string{"done", "refused", "unsupported", "gone"}
	abilityNames = []string{"hold", "deactivate", "interrupt", "slice", "bound"}
	kindNames    = []string{
		"", "device-opened", "device-closed", "queue-opened", "queue-closed", "progressed", "dozed", "woke", "ran",
		"asked", "answered", "hinted", "action-done", "policy-chosen", "parameter-set", "plan-offered", "let-go",
	}
)

func (c Class) String() string   { return name(classNames, int(c)) }
func (s State) String() string   { return name(stateNames, int(s)) }
func (v Verb) String() string    { return name(verbNames, int(v)) }
func (f Outcome) String() string { return name(failureNames, int(f)) }
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
	i, err := parse("class", classNames, s)
	return Class(i), err
}

// ParseFailure is the inverse of Failure.String.
func ParseOutcome(s string) (Outcome, error) {
	i, err := parse("failure", failureNames, s)
	return Outcome(i), err
}

// ParseAbility is the inverse of Ability.String.
func ParseAbility(s string) (Ability, error) {
	var a Ability
	for word := range strings.SplitSeq(s, ",") {
		if word == "" {
			continue
		}
		i, err := parse("ability", abilityNames, word)
		if err != nil {
			return 0, err
		}
		a |= 1 << i
	}
	return a, nil
}

func parse(what string, names []string, s string) (int, error) {
	for i, n := range names {
		if n == s && n != "" {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s %q is not one of %s", what, s, strings.Join(names, ", "))
}
