// Package policy holds the scheduling policies. A file holds one policy or a few
// variants of one, and each has a line in the table below.
//
// A policy is pure, as the scheduler is: its plans depend only on the View and on
// the policy's own state. The attributes of queues (class, weight, deadline, ...)
// belong to the scheduler and survive a change of policy. A policy that keeps
// state for each queue keeps it in a perQueue, which drops closed queues.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/giveway/giveway/sched"
)

// table lists every policy. The first one is the default, of the daemon and of
// the simulator.
var table = []tableRow{
	{"slo", "as giveway, but batch work gives way only as far as online requests need to meet their SLO; without SLOs it is giveway", newSLO, "class weight:batch,idle priority:online slo:online expect:online"},
	{"giveway", "online work first; batch queues take turns on what is left, by weight", newGiveway, "class weight:batch,idle priority:online expect:online"},
	{"native", "the vendor's own scheduling: no queue is stopped, no slice is changed", newNative, ""},
	{"fifo", "work in order of arrival, one queue at a time, to the end", newFIFO, ""},
	{"rr", "turns of equal length, one queue at a time", newRR, ""},
	{"hpf", "highest priority first, on each device", newHPF, "priority expect"},
	{"hpf-global", "highest priority first, across all devices", newHPFGlobal, "priority expect"},
	{"nice", "highest priority first, by the priority of the process on the CPU", newNice, "nice real-time expect"},
	{"wfq", "device time in proportion to weight, by time slices where the device has them", newWFQ, "weight"},
	{"cfs", "as Linux shares its CPUs: by weight and nice, the lowest virtual run time first", newCFS, "weight nice"},
	{"share", "a percentage of the device for every queue that sets one, equal parts of the rest for the others", newShare, "share"},
	{"share-process", "a percentage of the device for every process that sets one, equal parts of the rest for the others", newShareProcess, "share"},
	{"edf", "earliest deadline first", newEDF, "deadline"},
	{"kedf", "the k earliest deadlines together", newKEDF, "deadline"},
	{"llf", "least laxity first: the queue that can least afford to wait", newLLF, "deadline laxity work"},
	{"mlfq", "short work first: a queue that uses up its turn moves down a level", newMLFQ, "priority"},
	{"window", "the processes whose window has the focus first", newWindow, "focus"},
}

type tableRow struct {
	name string
	doc  string
	make func() sched.Policy
	// uses names the attributes that the policy reads: see Info.Uses. After a colon are the
	// classes in which it reads one; without them it is all.
	uses string
}

// attributes calls f with each attribute that the policy reads, and with the classes in which
// it does; empty: in all.
func (e *tableRow) attributes(f func(attribute, classes string)) {
	for word := range strings.FieldsSeq(e.uses) {
		attribute, classes, _ := strings.Cut(word, ":")
		f(attribute, classes)
	}
}

// namesUsing maps an attribute to the names of the policies that use it. classesUsing maps the name of
// a policy and an attribute to the classes in which the policy uses it; none: in all.
var namesUsing, classesUsing = indexUses()

func indexUses() (names map[string][]string, classes map[[2]string][]string) {
	names, classes = map[string][]string{}, map[[2]string][]string{}
	for i := range table {
		e := &table[i]
		e.attributes(func(attribute, in string) {
			names[attribute] = append(names[attribute], e.name)
			if in != "" {
				classes[[2]string{e.name, attribute}] = strings.Split(in, ",")
			}
		})
	}
	return names, classes
}

// ClassesUsing lists the classes in which a policy that uses an attribute does so; none: in all.
// The caller must not change the list.
func ClassesUsing(name, attribute string) []string { return classesUsing[[2]string{name, attribute}] }

// NamesUsing lists the names of the policies whose Info.Uses has an attribute. The caller must not
// change the list.
func NamesUsing(attribute string) []string { return namesUsing[attribute] }

// Info describes a policy.
type Info struct {
	Name       string `json:"name"`
	Doc        string `json:"doc"`
	AllDevices bool   `json:"spans_devices,omitempty"` // one instance schedules all devices together
	// Uses names the attributes that the policy reads: class, weight, priority,
	// deadline, slo, laxity, work, expect, share, nice, real-time and focus. The
	// policy ignores the others of these. Attributes that the scheduler core or the
	// shim applies under every policy (paused, bound, predict) are not listed, nor
	// that class idle has no floor.
	Uses   []string    `json:"uses,omitempty"`
	Params []ParamInfo `json:"params,omitempty"`
}

// List describes every policy, the default first.
func List() []Info {
	infos := make([]Info, 0, len(table))
	for _, e := range table {
		p := e.make()
		var uses []string
		e.attributes(func(attribute, _ string) { uses = append(uses, attribute) })
		infos = append(infos, Info{e.name, e.doc, allDevices(p), uses, paramsOf(p).describe()})
	}
	return infos
}

// Names lists the names of all policies, the default first.
func Names() []string {
	names := make([]string, 0, len(table))
	for _, e := range table {
		names = append(names, e.name)
	}
	return names
}

// Choose returns the named policy. Parameters that are not in values have their
// defaults. It returns an error for an unknown policy or parameter, and for a
// value that is not allowed; the error lists what is.
func Choose(name string, values map[string]string) (sched.PolicyChoice, error) {
	i := slices.IndexFunc(table, func(e tableRow) bool { return e.name == name })
	if i < 0 {
		return sched.PolicyChoice{}, fmt.Errorf("there is no policy %q; there are: %s", name, strings.Join(Names(), ", "))
	}
	p := table[i].make()
	for param, value := range values { //shape:unordered each sets a parameter of its own
		if err := paramsOf(p).set(param, value); err != nil {
			return sched.PolicyChoice{}, fmt.Errorf("policy %s: %w", name, err)
		}
	}
	chosen := paramsOf(p).describe()
	update := func(p sched.Policy) {
		for _, c := range chosen {
			_ = paramsOf(p).set(c.Name, c.Value) // p has the same parameters, and the value was allowed
		}
	}
	return sched.PolicyChoice{
		Name: name, AllDevices: allDevices(p), Update: update,
		Make: func() sched.Policy { p := table[i].make(); update(p); return p },
	}, nil
}

// allDevices reports whether one instance of p schedules all devices together.
func allDevices(p sched.Policy) bool {
	_, all := p.(interface{ allDevices() })
	return all
}
