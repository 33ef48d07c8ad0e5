package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/giveway/giveway/attr"
)

// auditedServer returns a server and what it logs.
func auditedServer() (*Server, *bytes.Buffer) {
	var log bytes.Buffer
	s := New(busy{}, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	s.owner = 0
	return s, &log
}

// TestNoOrderIsHidden: a user cannot hide an order behind others, as many as the daemon carries out, nor
// behind refusals.
func TestNoOrderIsHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := auditedServer()
		alice := caller{peer: peer{local: true, uid: 1000, account: 1000}}
		order := func(pid int) {
			s.audit(alice, request{op: opChange, pid: pid, values: attr.Must("class=batch")}, outcome{uid: noUser}, nil)
		}
		for i := range 3 * int(refusalLineBurst) {
			s.audit(alice, request{op: opRestore}, outcome{}, Forbidden("no %d", i))
		}
		for range int(OrderBurst) {
			order(5)
		}
		for range 1000 {
			time.Sleep(time.Duration(float64(time.Second) / OrderRate))
			order(5)
		}
		order(4711)
		if !strings.Contains(log.String(), "process=4711") {
			t.Error("an order has no line, because there were others before it")
		}
		if n, want := strings.Count(log.String(), "order carried out"), int(OrderBurst)+1001; n != want {
			t.Errorf("%d orders have a line, want %d", n, want)
		}
		s.end()
	})
}

// TestRepeatedRefusals: a refusal that is repeated has a line, and one that says how often.
func TestRepeatedRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := auditedServer()
		refuse := func(pid int, reason string, times int) {
			for range times {
				time.Sleep(5 * time.Millisecond)
				s.audit(caller{peer: peer{local: true, uid: 1000, account: 1000, pid: 7}}, request{op: opChange, pid: pid}, outcome{uid: noUser}, Forbidden("%s", reason))
			}
		}
		refuse(6, "no", 500)
		refuse(8, "no", 3)
		refuse(6, "not this", 1)
		time.Sleep(2 * repeatTime)
		refuse(6, "not this", 1)
		time.Sleep(2 * repeatTime)
		synctest.Wait()
		var got []string
		for line := range strings.Lines(log.String()) {
			var refused string
			for _, word := range []string{"again", "process=6", "process=8", `reason=no`, `reason="not this"`, "times=499", "times=2"} {
				if strings.Contains(line, word+" ") || strings.HasSuffix(line, word+"\n") || strings.Contains(line, word+`"`) {
					refused += word + " "
				}
			}
			got = append(got, strings.TrimSpace(refused))
		}
		want := []string{
			`process=6 reason=no`, `process=8 reason=no`, `process=6 reason="not this"`,
			`again process=6 reason=no times=499`, `again process=8 reason=no times=2`, `process=6 reason="not this"`,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %q\nwant %q\nlog:\n%s", got, want, log)
		}
		if len(s.auditor.last) != 0 {
			t.Errorf("%d refusals are kept", len(s.auditor.last))
		}
	})
}
