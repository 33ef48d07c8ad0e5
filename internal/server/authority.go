package server

import (
	"maps"
	"net/http"
	"runtime/debug"
	"slices"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/proc"
)

// answer decides on a request of a connection, carries it out and returns the reply.
func (s *Server) answer(c *connection, r request) (a reply) {
	by, err := s.identify(c, r.token)
	did := outcome{uid: noUser}
	if err == nil {
		err = by.mayAsk(r.op)
	}
	var paid float64
	if err == nil {
		paid, err = s.take(by, r.op)
	}
	if err == nil {
		c.replyRead() // the last one, or there were no further request
		a, did, err = s.carryOut(c, by, r)
		s.settle(by, r.op, paid, a)
	}
	if err != nil {
		a = errorReply(err)
		if a.status == http.StatusInternalServerError {
			s.log.Error("request failed", "request", r.op.String(), "error", err)
		}
	}
	s.audit(by, r, did, err)
	return s.countUnread(c, by, a)
}

// outcome says for the audit what an order changed.
type outcome struct {
	from, to string
	uid      uint32 // the user that it affects; noUser: none but the caller
	pod      string // of the process that it affects; empty: none
	all      bool   // it affects every user
}

// carryOut does what a request asks for. A mistake in it does not end the daemon.
func (s *Server) carryOut(c *connection, by caller, r request) (a reply, did outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("request panicked", "request", r.op.String(), "panic", p, "stack", string(debug.Stack()))
			err = errMistake
		}
	}()
	did.uid = noUser
	var v any
	switch r.op {
	case opProcesses:
		v = s.visibleProcesses(by)
	case opMetrics:
		return reply{status: http.StatusOK, text: true, body: s.metrics(by)}, did, nil
	case opPolicy:
		v = by.visiblePolicy(s.node.Policy())
	case opStatus:
		st := s.status()
		st.Policy = by.visiblePolicy(st.Policy)
		v = st
	case opHint:
		v, err = s.hint(by, r)
	case opChange:
		v, did, err = s.change(by, r)
	case opSetPolicy:
		v, did, err = s.setPolicy(by, r.policy)
	case opRestore:
		v, did, err = s.restore(by)
	case opRun:
		did.to = r.values.String()
		return reply{held: true}, did, s.beginRun(c, by, r)
	case opShim:
		return reply{held: true}, did, s.beginShim(c, by, r)
	case opRecord:
		return s.readRecord(by, r.record), did, nil
	case opStream:
		return reply{held: true}, did, s.beginStream(c, by, r.record)
	case opDelays:
		v = s.node.Delays()
	case opPressure:
		return s.pressure(r)
	case opBeginInputs, opNextInputs, opEndInputs:
		v, err = s.inputs(by, r.op)
	case opContainers, opRegister, opUnregister:
		v, did, err = s.containers(by, r)
	}
	if err != nil {
		return a, did, err
	}
	return jsonReply(http.StatusOK, v), did, nil
}

// owns reports whether the caller may see and change what a user runs in a pod, or outside of pods
// if pod is empty. In a pod it is the pod that counts, and not the user: pods share users, with each
// other and with the machine.
func (c caller) owns(uid uint32, pod string) bool {
	if c.pod != "" || pod != "" {
		return c.all || c.pod == pod
	}
	return c.all || c.uid == uid && uid != noUser
}

// ownsProcess reports whether the caller may see and change a process.
func (c caller) ownsProcess(p *api.Process) bool { return c.owns(p.UID, p.Owner) }

// visible returns the part of p that the caller may see. Of another user's process that
// is the pid, the user, the queues and the attributes that are public.
func (c caller) visible(p api.Process) api.Process {
	if !c.ownsProcess(&p) {
		p = api.Process{PID: p.PID, User: p.User, UID: p.UID, Attrs: p.Attrs.Public(), Queues: p.Queues, Member: p.Member}
	}
	if p.Queues == nil {
		p.Queues = []api.Queue{} // an empty list in JSON, not null
	}
	return p
}

func (s *Server) visibleProcesses(c caller) []api.Process {
	all := []api.Process{}
	for _, p := range s.node.Processes() {
		if c.pod == "" || c.ownsProcess(&p) {
			all = append(all, c.visible(p))
		}
	}
	return all
}

// metrics returns the metrics. The token for reading is made for them, so its caller sees
// those of all users; metrics have no command lines.
func (s *Server) metrics(by caller) []byte {
	n := metrics.Node{
		Status: s.node.Status(), Delays: s.node.Delays(), Pressure: s.node.Pressure(), Tally: s.node.Tally(), Record: s.node.Record().Last(),
		Everything: by.all || by.reads, UID: by.uid,
	}
	if n.Everything {
		n.Processes = s.node.Processes()
	} else {
		n.Processes = s.visibleProcesses(by)
	}
	return metrics.Text(&n)
}

// target checks that the caller may change a process, and returns it as it is. The kernel
// knows the owner of a process that the node does not know yet.
func (s *Server) target(c caller, pid int) (p api.Process, err error) {
	if known, ok := s.node.Process(pid); ok {
		p = known
	} else if owner, ok := ownerOf(pid); ok {
		p.UID = owner
		if ids, err := proc.ContainersOf(pid); err == nil {
			p.Owner, _ = s.podOf(ids)
		}
	} else if !c.all { // otherwise the node reports it
		return p, NotFound("there is no process %d", pid)
	}
	if c.pod != "" && !c.ownsProcess(&p) {
		return p, NotFound("there is no process %d in this pod", pid)
	}
	if !c.ownsProcess(&p) {
		return p, Forbidden("process %d belongs to another user: only its owner and root may change it", pid)
	}
	return p, nil
}

func (s *Server) hint(c caller, r request) (any, error) {
	if _, err := s.target(c, r.pid); err != nil {
		return nil, err
	}
	p, err := s.node.Hint(c.public(), r.pid, r.hint())
	return c.visible(p), err
}

func (s *Server) change(c caller, r request) (v any, did outcome, err error) {
	did.to, did.uid = r.values.String(), noUser
	before, err := s.target(c, r.pid)
	if err != nil {
		return nil, did, err
	}
	did.uid, did.pod = before.UID, before.Owner
	if before.PID != 0 {
		var old attr.Values // the same attributes, also where they are the default
		for _, id := range r.values.Changes() {
			old.Set(id, before.Attrs.Int(id))
		}
		did.from = old.String()
	}
	p, err := s.node.Change(c.public(), r.pid, api.Change{Values: r.values, Tree: r.tree})
	return c.visible(p), did, err
}

func (s *Server) setPolicy(c caller, p api.Policy) (v any, did outcome, err error) {
	did.to, did.uid = describePolicy(p), noUser
	if err := c.mayManage("change the policy"); err != nil {
		return nil, did, err
	}
	if hasCommand(p) && !c.local {
		return nil, did, Forbidden("change the policy: a command is started only by a request on the daemon's unix socket, not over TCP")
	}
	old := s.node.Policy()
	did.from, did.all = describePolicy(old), !hasCommand(old) && !hasCommand(p)
	v, err = s.node.SetPolicy(c.public(), p)
	return v, did, err
}

// execParam is the parameter of a policy that has a command line.
const execParam = "exec"

// hasCommand reports whether a policy, or that of a device, has a command line. Only callers
// that may do everything see the details of an order with one.
func hasCommand(p api.Policy) bool {
	return p.Params[execParam] != "" || slices.ContainsFunc(p.Devices, hasCommand)
}

// visiblePolicy returns the part of p that the caller may see: not the command line of a
// policy process.
func (c caller) visiblePolicy(p api.Policy) api.Policy {
	if c.all || !hasCommand(p) {
		return p
	}
	if p.Params[execParam] != "" {
		p.Params = maps.Clone(p.Params)
		p.Params[execParam] = hidden
	}
	p.Devices = slices.Clone(p.Devices)
	for i := range p.Devices {
		p.Devices[i] = c.visiblePolicy(p.Devices[i])
	}
	return p
}

// hidden stands for a command line that the caller may not see.
const hidden = "(hidden)"

// describePolicy returns a policy in one line.
func describePolicy(p api.Policy) string {
	text := p.Spec()
	if p.Device != "" {
		text += " on device " + p.Device
	}
	for _, own := range p.Devices {
		text += ", " + describePolicy(own)
	}
	return text
}

func (s *Server) status() api.Status {
	st := s.node.Status()
	if st.Devices == nil {
		st.Devices = []api.Device{}
	}
	if st.Checks == nil {
		st.Checks = []api.Check{}
	}
	return st
}

// inputs begins a recording of the scheduler's inputs, or returns the next part of it, or
// the last one. They are of all processes.
func (s *Server) inputs(by caller, op operation) (part api.Inputs, err error) {
	if err := by.mayManage("record the scheduler's inputs"); err != nil {
		return part, err
	}
	if op == opBeginInputs {
		part.Data, err = s.node.BeginInputs()
	} else {
		part.Data, err = s.node.NextInputs(op == opEndInputs)
	}
	return part, err
}

func (s *Server) restore(c caller) (v any, did outcome, err error) {
	did.uid = noUser
	if err := c.mayManage("restore all devices"); err != nil {
		return nil, did, err
	}
	old := s.node.Policy()
	did.from, did.all = describePolicy(old), !hasCommand(old)
	if err := s.node.Restore(c.public()); err != nil {
		return nil, did, err
	}
	st := s.status()
	did.to = describePolicy(st.Policy)
	return st, did, nil
}

// mayManage says why the caller may not do what affects every user.
func (c caller) mayManage(what string) error {
	switch {
	case c.all:
		return nil
	case c.confined != "":
		return Forbidden("%s: it affects every user, and the caller has not the rights of its user: %s", what, c.confined)
	}
	return Forbidden("%s: it affects every user, so only root and the daemon's own user may", what)
}
