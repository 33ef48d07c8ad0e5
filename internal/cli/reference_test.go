package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/policy"
)

const referenceHead = `# Reference

Generated from the tables in the code: packages ` + "`attr` and `policy`" + `. To update it:
` + "`go test ./internal/cli -run TestReference -rewrite`" + `.

## Attributes of a process

The name is that of the flag of ` + "`giveway run`, `set` and `hint`" + `. In rules and scenario files the key has ` + "`_` for `-`" + `. In JSON a time is in
nanoseconds. A time elsewhere is a number and a unit (` + "`500us`, `20ms`" + `), a percentage is ` + "`25%` or `0.25`" + `. An attribute that the policy in force does
not use has no effect; ` + "`giveway run`, `set` and `hint` warn, and `giveway ps`" + ` marks it. An attribute that needs the shim has no effect either in a process without the shim.

` + "`giveway set` and `hint` take back what they gave with the value `default`; in the API it is `null`" + `. The value of another source is then in force again.

`

// reference returns the text of docs/REFERENCE.md.
func reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	b.WriteString("| name | JSON key | values | default | set by | policies that use it | |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, id := range attr.IDs(0) {
		r := id.Row()
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s | %s |\n", r.Name, r.Key, r.Takes(), r.Format(r.Default), r.Ways, usedBy(r), r.Help)
	}
	b.WriteString("\n\"page\" is a hint that the process writes to its page itself, in C, Python or Go: see [HINTS.md](HINTS.md).\n")

	b.WriteString("\n### Classes\n\n| class | |\n| --- | --- |\n")
	for _, c := range attr.Classes() {
		fmt.Fprintf(&b, "| `%v` | %s |\n", c.Class, c.Help)
	}

	b.WriteString("\n### Sources\n\nA later source overrides an earlier one, for each attribute separately: " + strings.Join(attr.Sources(), " < ") + ".\n")
	b.WriteString("`giveway ps --json` has the source of each attribute in `sources`, and of the class in `class_from`.\n")

	b.WriteString("\n## Policies\n\nThe first is the default. [POLICIES.md](POLICIES.md) explains them, `giveway policy list` lists their parameters.\n\n")
	b.WriteString("| policy | attributes that it uses | |\n| --- | --- | --- |\n")
	for _, p := range policy.List() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.Name, strings.Join(p.Uses, ", "), p.Doc)
	}
	return b.String()
}

// usedBy returns the policies that use an attribute, or what else does.
func usedBy(r *attr.Row) string {
	var by []string
	if users := policy.NamesUsing(r.Uses); len(users) > 0 {
		by = append(by, strings.Join(users, ", "))
	}
	switch {
	case len(r.Runtimes) > 0:
		by = append(by, "the shim with "+strings.Join(r.Runtimes, ", "))
	case r.Shim:
		by = append(by, "the shim")
	case r.Uses == "":
		by = append(by, "all policies")
	}
	return strings.Join(by, "; ")
}

// TestReference: docs/REFERENCE.md is what the tables say.
func TestReference(t *testing.T) {
	const path = "../../docs/REFERENCE.md"
	if rewriting() {
		if err := os.WriteFile(path, []byte(reference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != reference() {
		t.Errorf("docs/REFERENCE.md is out of date (%v): run go test ./internal/cli -run TestReference -rewrite", err)
	}
}
