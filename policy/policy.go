// Package policy holds the policies a scheduler can be started with: one file
// each, and one line in the table below.
//
// A policy is pure, as the scheduler is: it knows the time from its View, and
// nothing of the world beyond it. What an owner asked of a queue (class, weight,
// deadline, ...) is kept by the scheduler, so it survives a change of policy.
// A policy that keeps accounts of its own keeps them in a ledger, which forgets
// queues as they go.
package policy

import (
	"fmt"
	"strings"

	"github.com/giveway/giveway/sched"
)

// table lists every policy there is. The first is the default.
var table = []entry{
	{"giveway", "online work first, batch work takes turns with what is left (the default of the simulator)", newGiveway},
	{"native", "whatever the vendor does: nothing is stopped, no slice is changed", newNative},
	{"slo", "as giveway, but batch work gives way only as far as the requests of online work need to be in time (the default of the daemon)", newSLO},
	{"fifo", "work in order of arrival, one queue at a time, to the end", newFIFO},
	{"rr", "turns of equal length, one queue at a time", newRR},
	{"hpf", "highest priority first, on each device", newHPF},
	{"hpf-global", "highest priority first, across all devices", newHPFGlobal},
	{"nice", "highest priority first, as the process has it on the CPU", newNice},
	{"wfq", "in proportion to weight, by time slices where there are any", newWFQ},
	{"cfs", "as Linux shares its CPUs: by weight and nice, least virtual run time first", newCFS},
	{"share", "a percentage of the device for every queue that asks, equal parts of the rest for the others", newShare},
	{"share-process", "the same for every process", newShareProcess},
	{"edf", "earliest deadline first", newEDF},
	{"kedf", "the k earliest deadlines together", newKEDF},
	{"llf", "least laxity first: who can least afford to wait", newLLF},
	{"mlfq", "short work first, without being told: who uses up its turn falls a level", newMLFQ},
	{"window", "the window with the user's eye first", newWindow},
}

type entry struct {
	name string
	doc  string
	make func() sched.Policy
}

// spanner is implemented by policies that look at all devices at once.
type spanner interface{ spans() }

// Info describes a policy to a person.
type Info struct {
	Name   string      `json:"name"`
	Doc    string      `json:"doc"`
	Spans  bool        `json:"spans_devices,omitempty"`
	Params []ParamInfo `json:"params,omitempty"`
}

// List describes every policy, the default first.
func List() []Info {
	infos := make([]Info, 0, len(table))
	for _, e := range table {
		p := e.make()
		info := Info{Name: e.name, Doc: e.doc}
		_, info.Spans = p.(spanner)
		if t, ok := p.(interface{ params() []ParamInfo }); ok {
			info.Params = t.params()
		}
		infos = append(infos, info)
	}
	return infos
}

// Names lists the policies Choose knows, the default first.
func Names() []string {
	names := make([]string, 0, len(table))
	for _, e := range table {
		names = append(names, e.name)
	}
	return names
}

// Choose returns the named policy, with parameters other than their defaults
// where params says so. It refuses what is not there, and says what is.
func Choose(name string, params map[string]string) (sched.PolicyChoice, error) {
	for _, e := range table {
		if e.name != name {
			continue
		}
		build := func() (sched.Policy, error) {
			p := e.make()
			for key, value := range params { //shape:unordered each sets a parameter of its own
				if err := Set(p, key, value); err != nil {
					return nil, fmt.Errorf("policy %s: %w", name, err)
				}
			}
			return p, nil
		}
		p, err := build()
		if err != nil {
			return sched.PolicyChoice{}, err
		}
		_, spans := p.(spanner)
		return sched.PolicyChoice{Name: name, AllDevices: spans, Make: func() sched.Policy {
			p, _ := build() // it worked a moment ago, and depends on nothing
			return p
		}}, nil
	}
	return sched.PolicyChoice{}, fmt.Errorf("there is no policy %q; there are: %s", name, strings.Join(Names(), ", "))
}

// Set changes one parameter of a live policy. It leaves all as it was when it
// returns an error.
func Set(p sched.Policy, name, value string) error {
	if t, ok := p.(sched.Tunable); ok {
		return t.Set(name, value)
	}
	return fmt.Errorf("it has no parameter %q, nor any other", name)
}
