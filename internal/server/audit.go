package server

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/record"
)

// Each account has this many lines of audit, so that no user can fill the disk.
const (
	auditRate  = 1.0 // lines per second
	auditBurst = 200.0
)

// auditor limits the lines of audit and counts those that were left out.
type auditor struct {
	lines *buckets

	mu      sync.Mutex
	skipped map[uint32]int // by account
}

// admit reports whether a line of a caller is written, and how many were left out since
// the last one.
func (a *auditor) admit(c caller) (skipped int, ok bool) {
	unlimited := c.all || c.agent
	if !unlimited {
		_, ok = a.lines.spend(c.account, 1, 0, time.Now())
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

// audit logs an order and its outcome, and every refusal of a right or a limit.
func (s *Server) audit(c caller, r request, did outcome, err error) {
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
	}
	denied := status == http.StatusUnauthorized || status == http.StatusForbidden
	if !operations[r.op].order && !denied && !IsLimit(err) {
		return
	}
	skipped, ok := s.auditor.admit(c)
	if !ok {
		return
	}
	order := orderOf(c, r, did, skipped, status, err)
	s.node.Record().Order(r.pid, order, record.Details{UID: did.uid, Pod: did.pod, ByPod: c.pod, AffectsAll: did.all && err == nil})
	attrs := []any{"order", r.op.String()}
	if c.local {
		attrs = append(attrs, "uid", c.uid, "pid", c.pid, "command", order.Command)
	} else {
		attrs = append(attrs, "address", c.address)
	}
	if r.pid != 0 {
		attrs = append(attrs, "process", r.pid)
	}
	if r.tree {
		attrs = append(attrs, "tree", true)
	}
	attrs = append(attrs, "from", record.Printable(did.from), "to", record.Printable(did.to))
	if skipped > 0 {
		attrs = append(attrs, "lines_left_out", skipped)
	}
	if err != nil {
		s.log.Warn("order refused", append(attrs, "status", status, "reason", record.Printable(err.Error()))...)
		return
	}
	s.log.Info("order carried out", attrs...)
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
