package kfdtest

import (
	"os"
	"testing"
)

// Machine is a driver behind a real path, for tests with real processes. Its methods fail
// the test on errors.
type Machine struct {
	*KFD
	Path string // of the device
	Sys  string // directory of sysfs
	t    testing.TB
}

// NewMachine mounts a driver until the test is over. It skips the test where FUSE is not
// available.
func NewMachine(t testing.TB, cfg Config) *Machine {
	t.Helper()
	cfg.Sys = t.TempDir()
	k := New(cfg)
	return &Machine{k, Mounted(t, k).Path, cfg.Sys, t}
}

// Process is a process with compute queues.
type Process struct {
	*Program
	Queues []QueueID
	m      *Machine
}

// StartProcess starts a process with an enabled runtime and compute queues on the MI300X.
func (m *Machine) StartProcess(queues int) *Process {
	m.t.Helper()
	p := &Process{Program: Start(m.t, os.Getuid()), m: m}
	m.check(p.Open(m.Path))
	m.check(SetRuntime(p, true))
	for range queues {
		p.AddQueue()
	}
	return p
}

// AddQueue creates another compute queue.
func (p *Process) AddQueue() {
	p.m.t.Helper()
	id, err := CreateQueue(p, NewQueue{GPU: MI300X.GPU, Type: TypeComputeAQL, Ring: 1 << 30, RingSize: 4096})
	p.m.check(err)
	p.Queues = append(p.Queues, QueueID{PID: p.PID, Queue: id})
}

// Running returns how many of its queues are active.
func (p *Process) Running() (n int) {
	for _, id := range p.Queues {
		if p.m.Active(id) {
			n++
		}
	}
	return n
}

func (m *Machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}
