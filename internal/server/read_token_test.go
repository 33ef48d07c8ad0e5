package server

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/record"
)

const (
	fullToken    = "0123456789abcdef"
	readingToken = "fedcba9876543210"
)

// tokenServer returns a server over TCP with both tokens.
func tokenServer(n Node) *Server {
	s := New(n, Config{})
	s.token, _ = newToken([]byte(fullToken), "x")
	s.read, _ = newToken([]byte(readingToken), "x")
	return s
}

// askTCP makes a request over TCP. The connection is not a socket, so that it cannot be kept
// for a run, a page or a stream.
func askTCP(t *testing.T, s *Server, method, path, body, token string) *httptest.ResponseRecorder {
	t.Helper()
	mine, other := net.Pipe()
	defer mine.Close()
	defer other.Close()
	c := &connection{Conn: mine, peer: peer{address: "192.0.2.7", account: noUser}, uses: 1}
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), connKey{}, c), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	routesOf(s).ServeHTTP(w, r)
	return w
}

// TestReadToken: the token for reading is good for these paths and no other. Every path is
// asked for with each token.
func TestReadToken(t *testing.T) {
	s := tokenServer(busy{})
	readable := map[string]bool{
		"GET /v1/processes": true, "GET /v1/policy": true, "GET /v1/status": true, "GET /metrics": true,
		"GET /v1/record": true, "GET /v1/record/stream": true, "GET /v1/delays": true, "GET /v1/pressure": true,
	}
	bodies := map[string]string{
		"POST /v1/processes/{pid}": `{"class":"idle"}`, "POST /v1/processes/{pid}/hint": `{"class":"idle"}`,
		"PUT /v1/containers/{id}": `{"class":"idle"}`,
		"POST /v1/policy":         `{"name":"rr"}`, "POST /v1/runs": `{"class":"idle"}`,
	}
	for _, pattern := range slices.Sorted(maps.Keys(paths)) {
		method, path, _ := strings.Cut(strings.NewReplacer("{pid}", "5", "{id}", containerA).Replace(pattern), " ")
		if got := askTCP(t, s, method, path, bodies[pattern], "another token 123"); got.Code != http.StatusUnauthorized {
			t.Errorf("%s with another token: got %d %s", pattern, got.Code, got.Body)
		}
		full := askTCP(t, s, method, path, bodies[pattern], fullToken)
		if full.Code == http.StatusUnauthorized || full.Code == http.StatusForbidden {
			t.Errorf("%s with the token for everything: got %d %s", pattern, full.Code, full.Body)
		}
		read := askTCP(t, s, method, path, bodies[pattern], readingToken)
		switch {
		case !readable[pattern]:
			if read.Code != http.StatusForbidden || !strings.Contains(read.Body.String(), "reading only") {
				t.Errorf("%s with the token for reading: got %d %s", pattern, read.Code, read.Body)
			}
		case read.Code != full.Code:
			t.Errorf("%s with the token for reading: got %d %s, with the other %d", pattern, read.Code, read.Body, full.Code)
		}
	}
	for pattern := range readable {
		if paths[pattern] == nil || strings.HasPrefix(pattern, "POST") {
			t.Errorf("there is no path %s, or it changes something", pattern)
		}
	}
}

// TestReadTokenSeesNoSecrets: what is private to users stays so, root's processes and orders
// included. Metrics are those of all users.
func TestReadTokenSeesNoSecrets(t *testing.T) {
	n := rooted{rec: record.New(muteBegan, 0)}
	s := tokenServer(n)
	// Orders of root and of a user.
	for _, uid := range []uint32{0, 1000} {
		s.audit(caller{peer: peer{local: true, uid: uid, pid: 1}, all: uid == 0}, request{op: opChange, pid: 5},
			outcome{from: "class=batch", to: "class=secret", uid: uid}, nil)
	}
	for path := range paths {
		method, path, _ := strings.Cut(path, " ")
		if method != http.MethodGet {
			continue
		}
		text := askTCP(t, s, method, path, "", readingToken).Body.String()
		for _, secret := range []string{"hunter", "c0ffee", "web-0", "class=secret"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s:\n%s", path, secret, text)
			}
		}
	}
	if text := askTCP(t, s, "GET", "/v1/record?kinds=order", "", fullToken).Body.String(); strings.Count(text, "class=secret") != 2 {
		t.Errorf("with the token for everything: got %s", text)
	}
	if text := askTCP(t, s, "GET", "/v1/processes", "", readingToken).Body.String(); strings.Count(text, `"pid"`) != 3 {
		t.Errorf("processes: got %s", text)
	}
	if text := askTCP(t, s, "GET", "/metrics", "", readingToken).Body.String(); !strings.Contains(text, `giveway_shim_launched_total{pid="5"} 3`) {
		t.Errorf("metrics: got %s", text)
	}
}

// TestSameTokens: the two tokens must differ.
func TestSameTokens(t *testing.T) {
	s := New(mute{}, Config{TCP: "127.0.0.1:0"})
	file := t.TempDir() + "/token"
	if err := os.WriteFile(file, []byte(fullToken), 0o600); err != nil {
		t.Fatal(err)
	}
	s.cfg.TokenFile, s.cfg.ReadToken = file, file
	if err := s.readTokens(); err == nil || !strings.Contains(err.Error(), "same token") {
		t.Errorf("got %v", err)
	}
	s.cfg.TokenFile, s.token = "", nil
	if err := s.readTokens(); err != nil || s.token.matches(sum{}) || s.read == nil {
		t.Errorf("only a token for reading: got %v", err)
	}
	if got := askTCP(t, s, "POST", "/v1/restore", "", fullToken); got.Code != http.StatusForbidden {
		t.Errorf("the token is for reading, and there is no other: got %d %s", got.Code, got.Body)
	}
}
