package server

import (
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/record"
)

// Each account has this many lines of audit, so that no user can fill the disk. For orders that were carried
// out it has more than the daemon carries out (OrderRate, OrderBurst), so that no order can be hidden
// behind others. A refusal that is repeated within repeatTime has no line: one says afterwards how often.
const (
	orderLineRate    = 1.2 * OrderRate
	orderLineBurst   = 1.5 * OrderBurst
	refusalLineRate  = 1.0 // lines per second
	refusalLineBurst = 200.0
	repeatTime       = 10 * time.Second
)

// OrderRate and OrderBurst are how many orders of an account the node may carry out in a second, and at once.
const (
	OrderRate  = 50.0
	OrderBurst = 200.0
)

// auditor limits the lines of audit and counts those that were left out.
type auditor struct {
	orders, refusals *buckets

	mu      sync.Mutex
	skipped map[uint32]int      // by account
	last    map[uint32]*refusal // the last one of an account that has a line, until repeatTime has passed
}

func newAuditor() auditor {
	return auditor{
		orders: newBuckets(orderLineRate, orderLineBurst), refusals: newBuckets(refusalLineRate, refusalLineBurst),
		skipped: map[uint32]int{}, last: map[uint32]*refusal{},
	}
}

// refusal is a refusal as the audit has it, and how often it was repeated.
type refusal struct {
	pid     int // the process that was to be changed
	order   api.Order
	details record.Details
	attrs   []any
	times   int
}

// admit reports whether a line of a caller is written, and how many were left out since
// the last one.
func (a *auditor) admit(c caller, lines *buckets) (skipped int, ok bool) {
	unlimited := c.all || c.agent
	if !unlimited {
		_, ok = lines.spend(c.account, 1, 0, time.Now())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !unlimited && !ok {
		if len(a.skipped) < maxBuckets {
			a.skipped[c.account]++
		}
		return 0, false
	}
	skipped = a.skipped[c.account]
	delete(a.skipped, c.account)
	return skipped, true
}

// repeats reports whether a refusal is the last one of its account again, and counts it then.
func (a *auditor) repeats(c caller, r request, status int, reason string) bool {
	if c.all || c.agent {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.last[c.account]
	again := l != nil && l.order.Name == r.op.String() && l.pid == r.pid && l.order.Status == status && l.order.Reason == reason && l.order.PID == c.pid
	if again {
		l.times++
	}
	return again
}

// audit logs an order and its outcome, and every refusal of a right or a limit.
func (s *Server) audit(c caller, r request, did outcome, err error) {
	status, reason, lines := http.StatusOK, "", s.auditor.orders
	if err != nil {
		status, reason, lines = statusOf(err), record.Printable(err.Error()), s.auditor.refusals
	}
	denied := status == http.StatusUnauthorized || status == http.StatusForbidden
	if !operations[r.op].order && !denied && !IsLimit(err) {
		return
	}
	if err != nil && s.auditor.repeats(c, r, status, reason) {
		return
	}
	skipped, ok := s.auditor.admit(c, lines)
	if !ok {
		return
	}
	l := &refusal{
		pid: r.pid, order: orderOf(c, r, did, skipped, status, err),
		details: record.Details{UID: did.uid, Pod: did.pod, ByPod: c.pod, AffectsAll: did.all && err == nil},
	}
	s.node.Record().Order(r.pid, l.order, l.details)
	l.attrs = []any{"order", r.op.String()}
	if c.local {
		l.attrs = append(l.attrs, "uid", c.uid, "pid", c.pid, "command", l.order.Command)
	} else {
		l.attrs = append(l.attrs, "address", c.address)
	}
	if r.pid != 0 {
		l.attrs = append(l.attrs, "process", r.pid)
	}
	if r.tree {
		l.attrs = append(l.attrs, "tree", true)
	}
	l.attrs = append(l.attrs, "from", record.Printable(did.from), "to", record.Printable(did.to))
	logged := l.attrs
	if skipped > 0 {
		logged = append(slices.Clip(logged), "lines_left_out", skipped)
	}
	if err == nil {
		s.log.Info("order carried out", logged...)
		return
	}
	l.attrs = append(slices.Clip(l.attrs), "status", status, "reason", reason)
	s.log.Warn("order refused", append(slices.Clip(logged), "status", status, "reason", reason)...)
	s.countRepeats(c.account, l)
}

// countRepeats counts repetitions of a refusal for repeatTime, and then writes a line about them if there were
// any.
func (s *Server) countRepeats(account uint32, l *refusal) {
	a := &s.auditor
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.last) >= maxBuckets {
		return
	}
	a.last[account] = l
	time.AfterFunc(repeatTime, func() {
		a.mu.Lock()
		times := l.times
		if a.last[account] == l {
			delete(a.last, account)
		}
		a.mu.Unlock()
		if times == 0 || s.over.Err() != nil {
			return
		}
		again := l.order
		again.LeftOut = times
		s.node.Record().Order(l.pid, again, l.details)
		s.log.Warn("order refused again", append(slices.Clip(l.attrs), "times", times)...)
	})
}

// orderOf returns an order as the record has it.
func orderOf(c caller, r request, did outcome, skipped, status int, err error) api.Order {
	o := api.Order{
		Name: r.op.String(), Address: c.address, Tree: r.tree, From: record.Printable(did.from), To: record.Printable(did.to), LeftOut: skipped,
	}
	if c.local {
		uid := int64(c.uid)
		o.UID, o.PID, o.Command = &uid, c.pid, commandOf(c.pid)
	}
	if err != nil {
		o.Refused, o.Status, o.Reason = true, status, record.Printable(err.Error())
	}
	return o
}

// commandOf returns the name of a process's command.
func commandOf(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm") // empty if it has exited
	return record.Printable(strings.TrimSuffix(string(name), "\n"))
}
