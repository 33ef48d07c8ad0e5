package server

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
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
	if !c.all {
		_, ok = a.lines.spend(c.account, 1, 0, time.Now())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !c.all && !ok {
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
	denied := status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests
	if !operations[r.op].order && !denied {
		return
	}
	skipped, ok := s.auditor.admit(c)
	if !ok {
		return
	}
	attrs := []any{"order", r.op.String()}
	if c.local {
		attrs = append(attrs, "uid", c.uid, "pid", c.pid, "command", commandOf(c.pid))
	} else {
		attrs = append(attrs, "address", c.address)
	}
	if r.pid != 0 {
		attrs = append(attrs, "process", r.pid)
	}
	if r.tree {
		attrs = append(attrs, "tree", true)
	}
	attrs = append(attrs, "from", printable(did.from), "to", printable(did.to))
	if skipped > 0 {
		attrs = append(attrs, "lines_left_out", skipped)
	}
	if err != nil {
		s.log.Warn("order refused", append(attrs, "status", status, "reason", printable(err.Error()))...)
		return
	}
	s.log.Info("order carried out", attrs...)
}

// commandOf returns the name of a process's command.
func commandOf(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm") // empty if it has exited
	return printable(strings.TrimSuffix(string(name), "\n"))
}

// printable returns text that a user chose in one line of printable ASCII, of bounded
// length.
func printable(s string) string {
	const most = 300
	s = strconv.QuoteToASCII(s[:min(len(s), most)])
	return s[1 : len(s)-1]
}
