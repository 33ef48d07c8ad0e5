package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestHostileNames runs real processes of a user who chose hostile names for them and for
// everything else that has a name, and reads every view: none has a character that a terminal
// obeys, a line that a name added, or markup for a browser. Another user sees the processes
// without their command lines.
func TestHostileNames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs root, to run processes as other users")
	}
	h := newHostileNode(t)
	h.giveOrders()
	for uid, sees := range map[uint32]bool{0: true, namedUID: true, otherUID: false} {
		who := fmt.Sprint("user ", uid)
		shown := map[string]bool{
			"ps":        h.check(who+": ps", h.output(h.as(uid, "ps"))),
			"ps --json": h.checkJSON(who+": ps --json", h.output(h.as(uid, "ps", "--json"))),
			"top":       h.check(who+": top", h.output(h.as(uid, "top"))),
			"complete":  h.check(who+": completion", strings.ReplaceAll(h.output(h.as(uid, "__complete", "pause", "")), "\t", " ")),
			"trace":     h.checkTrace(who, uid),
			"dashboard": h.checkDashboard(who, uid),
			"API":       h.checkJSON(who+": /v1/processes", h.get(uid, "/v1/processes")),
		}
		explained := false
		for _, pid := range []int{h.pids["html"], h.pids["thread"]} {
			explained = h.check(who+": explain", h.output(h.as(uid, "explain", strconv.Itoa(pid)))) || explained
		}
		shown["explain"] = explained
		for view, named := range shown {
			if named != sees {
				t.Errorf("%s: %s shows names or arguments of the command lines: %v, want %v", who, view, named, sees)
			}
		}
		h.checkUnnamed(who, uid)
	}
}

// checkUnnamed checks the views that have no command lines for any user.
func (h *hostileNode) checkUnnamed(who string, uid uint32) {
	h.Helper()
	for _, args := range []string{"log", "doctor", "policy", "pool list"} {
		text := h.output(h.as(uid, strings.Fields(args)...))
		h.check(who+": "+args, text)
		if strings.Contains(text, secret) {
			h.Errorf("%s: %s has an argument of a command line: %s", who, args, text)
		}
	}
	h.check(who+": /metrics", h.get(uid, "/metrics"))
	h.check(who+": psi", h.get(uid, "/v1/pressure?device=queue&format=psi"))
	for _, path := range []string{"/v1/record?limit=5000", "/v1/status", "/v1/policy", "/v1/delays", "/v1/pressure"} {
		text := h.get(uid, path)
		h.checkJSON(who+": "+path, text)
		if strings.Contains(text, secret) {
			h.Errorf("%s: %s has an argument of a command line", who, path)
		}
	}
}

// get returns what the daemon answers to a user for a path.
func (h *hostileNode) get(uid uint32, path string) string {
	h.Helper()
	cmd := h.as(uid)
	cmd.Path = filepath.Join(h.dir, "program")
	cmd.Env = append(cmd.Env, getEnv+"="+path)
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		h.Fatalf("%s: %v, %d bytes", path, err, len(out))
	}
	return string(out)
}

// checkTrace checks the texts of a trace that a user dumps.
func (h *hostileNode) checkTrace(who string, uid uint32) (named bool) {
	h.Helper()
	dir, err := os.MkdirTemp(h.dir, "trace")
	if err != nil {
		h.Fatal(err)
	}
	if err := os.Chown(dir, int(uid), int(uid)); err != nil {
		h.Fatal(err)
	}
	file := filepath.Join(dir, "a.pftrace")
	h.check(who+": trace dump", h.output(h.as(uid, "trace", "dump", "-o", file)))
	data, err := os.ReadFile(file)
	if err != nil {
		h.Fatal(err)
	}
	texts := h.textsOf(data, "")
	if len(texts) < 50 {
		h.Errorf("%s: the trace has %d texts, want 50 at least", who, len(texts))
	}
	for _, text := range texts {
		h.check(who+": trace", text)
		named = named || strings.HasPrefix(text, "html") || strings.Contains(text, secret) // the first word of a command line
	}
	return named
}

// checkDashboard checks what the dashboard of a user answers with and without the token.
// Without it no name is shown.
func (h *hostileNode) checkDashboard(who string, uid uint32) (named bool) {
	h.Helper()
	cmd := h.as(uid, "dashboard", "--listen", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		h.Fatal(err)
	}
	address, token, ok := strings.Cut(strings.TrimSpace(line[strings.Index(line, "http://"):]), "#token=")
	if !ok {
		h.Fatalf("the dashboard printed %q", line)
	}
	for _, path := range []string{"v1/processes", "v1/record?last=true", "v1/status", "v1/delays", "v1/pressure"} {
		for _, token := range []string{token, ""} {
			req, _ := http.NewRequest(http.MethodGet, address+path, nil)
			req.Header.Set("Giveway-Token", token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				h.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
				h.Errorf("%s: dashboard %s: %v, %s, %v", who, path, err, resp.Status, resp.Header)
			}
			shown := h.checkJSON(who+": dashboard "+path, string(text))
			if named = named || shown; shown && token == "" {
				h.Errorf("%s: without the token the dashboard's %s has names: %s", who, path, text)
			}
		}
	}
	return named
}
