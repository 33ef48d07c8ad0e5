package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/drivertest"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/server"
)

// stranger is a user that is neither root nor the user of the tests.
const stranger = 65534

// fakeNode is a node with a process of root, one of the stranger and one of the user of
// the tests.
type fakeNode struct {
	mu      sync.Mutex
	changes []string
	runs    map[int]string
	policy  api.Policy
	fail    error
	rec     *record.Record
}

func newFake() *fakeNode {
	return &fakeNode{runs: map[int]string{}, policy: api.Policy{Name: "giveway"}, rec: record.New(time.Now(), 0)}
}

func (n *fakeNode) Record() *record.Record              { return n.rec }
func (n *fakeNode) Delays() api.Delays                  { return api.Delays{Version: api.RecordVersion} }
func (n *fakeNode) BeginInputs() ([]byte, error)        { return []byte("begin"), nil }
func (n *fakeNode) NextInputs(end bool) ([]byte, error) { return []byte("next"), nil }
func (n *fakeNode) Tally() *metrics.Tally               { return metrics.NewTally(metrics.Labels{}) }

func (n *fakeNode) Pressure() api.Pressure {
	return api.Pressure{
		Version: api.RecordVersion, Devices: []api.DevicePressure{{Device: "GPU-a", Some: api.Stall{Avg10: 1.5, Total: 7 * time.Millisecond}}},
		Processes: []api.ProcessPressure{{PID: 4711, Full: api.Stall{Avg300: 99.25}}},
	}
}

func (n *fakeNode) Processes() []api.Process {
	return []api.Process{
		{PID: 1, Command: "init --secret", User: "root", Pod: "2f1b7a04"},
		{PID: 4711, Command: "python train.py", User: "nobody", UID: stranger, Attrs: set("class=batch")},
		{PID: 4712, Command: "python mine.py", User: "me", UID: uint32(os.Getuid()), Attrs: set("class=batch")},
	}
}

func (n *fakeNode) Process(pid int) (p api.Process, ok bool) {
	all := n.Processes()
	if i := slices.IndexFunc(all, func(p api.Process) bool { return p.PID == pid }); i >= 0 {
		return all[i], true
	}
	return p, false
}

func set(attrs string) attr.Resolved {
	return attr.Resolve(&attr.Layers{attr.FromSet: attr.Must(attrs)})
}

func (n *fakeNode) Change(_ server.Caller, pid int, c api.Change) (api.Process, error) {
	return n.change(pid, c.Values, attr.FromSet)
}

func (n *fakeNode) change(pid int, v attr.Values, from attr.Source) (api.Process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes = append(n.changes, fmt.Sprint(pid, " ", from))
	switch pid {
	case 404:
		return api.Process{}, server.NotFound("there is no process 404")
	case 409:
		return api.Process{}, server.Conflict("process 409 is the MPS server")
	case 500:
		return api.Process{}, errors.New("the disk is full")
	case 501:
		panic("a mistake")
	}
	var l attr.Layers
	l[from] = v
	return api.Process{PID: pid, Command: "python", UID: stranger, Attrs: attr.Resolve(&l)}, nil
}

func (n *fakeNode) Hint(_ server.Caller, pid int, h api.Hint) (api.Process, error) {
	return n.change(pid, h.Values, attr.FromHint)
}

func (n *fakeNode) Policy() api.Policy { return n.policy }

func (n *fakeNode) SetPolicy(_ server.Caller, p api.Policy) (api.Policy, error) {
	if p.Name != "rr" {
		return api.Policy{}, server.BadRequest("there is no policy %q", p.Name)
	}
	return p, nil
}

func (n *fakeNode) Status() api.Status          { return api.Status{Version: "test", PID: os.Getpid()} }
func (n *fakeNode) Restore(server.Caller) error { return n.fail }

func (n *fakeNode) BeginRun(by server.Caller, r api.Run) (api.RunStarted, func(), error) {
	pid := by.PID
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs[pid] = r.String()
	return api.RunStarted{Ignored: []api.Ignored{{Name: "slo", Mark: "ignored by rr"}}}, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.runs, pid)
	}, nil
}

func (n *fakeNode) run(pid int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runs[pid]
}

// frontEnds is the command of the front ends; empty: there are none, and requests are
// parsed in this process.
var frontEnds []string

// newServer returns a server with front ends as frontEnds says.
func newServer(n server.Node, cfg server.Config) *server.Server {
	cfg.FrontEnd = frontEnds
	return server.New(n, cfg)
}

// start serves a node on a socket of its own until the test ends.
func start(t *testing.T, n server.Node) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "run", "giveway.sock")
	pages, _ := n.(server.PageHost)
	return socket, serve(t, newServer(n, server.Config{Socket: socket, Pages: pages}))
}

func serve(t *testing.T, s *server.Server) (stop func()) {
	t.Helper()
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// idle sets a process to class idle.
var idle = api.Change{Values: attr.Must("class=idle")}

func TestCalls(t *testing.T) {
	socket, _ := start(t, newFake())
	c, ctx := client.New(socket), t.Context()
	all, err := c.Processes(ctx)
	if err != nil || len(all) != 3 || all[0].Command != "init --secret" && os.Getuid() == 0 || all[2].Command != "python mine.py" || all[0].Queues == nil {
		t.Errorf("processes: got %+v, %v", all, err)
	}
	p, err := c.Change(ctx, 4712, api.Change{Values: idle.Values, Tree: true})
	if err != nil || p.Attrs != set("class=idle") {
		t.Errorf("change: got %+v, %v", p, err)
	}
	if p, err = c.Hint(ctx, 4712, api.Hint{Values: attr.Must("slo=5ms")}); err != nil || p.Attrs.Duration(attr.SLO) != 5*time.Millisecond || p.Attrs.Source(attr.SLO) != attr.FromHint {
		t.Errorf("hint: got %+v, %v", p, err)
	}
	pol, err := c.Policy(ctx)
	if err != nil || pol.Name != "giveway" {
		t.Errorf("policy: got %+v, %v", pol, err)
	}
	pol, err = c.SetPolicy(ctx, api.Policy{Name: "rr", Params: map[string]string{"quantum": "5ms"}, Device: "0"})
	if err != nil || pol.Params["quantum"] != "5ms" || pol.Device != "0" {
		t.Errorf("set policy: got %+v, %v", pol, err)
	}
	st, err := c.Status(ctx)
	if err != nil || st.Version != "test" || st.Devices == nil || st.Checks == nil {
		t.Errorf("status: got %+v, %v", st, err)
	}
	if st, err = c.Restore(ctx); err != nil || st.Version != "test" {
		t.Errorf("restore: got %+v, %v", st, err)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("socket: got %v, %v", info, err)
	}
	if info, err = os.Stat(filepath.Dir(socket)); err != nil || info.Mode().Perm()&0o022 != 0 {
		t.Errorf("folder of the socket: got %v, %v", info, err)
	}
}

// TestErrors: an error of the node arrives as its text, with a status.
func TestErrors(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: other users may not change a process that does not exist")
	}
	n := newFake()
	n.fail = errors.New("the journal is gone")
	socket, _ := start(t, n)
	c := client.New(socket)
	for pid, want := range map[int]string{
		404: "404 there is no process 404",
		409: "409 process 409 is the MPS server",
		500: "500 the disk is full",
		501: "500 the daemon made a mistake, which is in its log",
	} {
		_, err := c.Change(t.Context(), pid, api.Change{Values: attr.Must("paused=true")})
		var e *client.Error
		if !errors.As(err, &e) || fmt.Sprint(e.Status, " ", e.Message) != want {
			t.Errorf("%d: got %v, want %s", pid, err, want)
		}
	}
	if _, err := c.Restore(t.Context()); err == nil || err.Error() != "the journal is gone" {
		t.Errorf("restore: got %v", err)
	}
}

// TestOtherUser makes calls as another user, in a process of its own.
func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	n := newFake()
	socket, _ := start(t, n)
	makeReachable(t, filepath.Dir(socket))
	sleeper := exec.Command("/proc/self/exe") // a process of the stranger that the node does not know
	sleeper.Env = []string{"GIVEWAY_TEST_SLEEP=1"}
	sleeper.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"GIVEWAY_TEST_CALL=" + socket, fmt.Sprint("GIVEWAY_TEST_PID=", sleeper.Process.Pid), fmt.Sprint("GIVEWAY_TEST_ROOT=", os.Getpid())}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = `processes: 1 "" "", 4711 "python train.py" "", 4712 "" ""
change root's: process 1 belongs to another user: only its owner and root may change it
change mine: <nil>
change mine, unknown to the node: <nil>
change root's, unknown to the node: process N belongs to another user: only its owner and root may change it
change none: there is no process 1073741824
policy: <nil>
set policy: change the policy: it affects every user, so only root and the daemon's own user may
restore: restore all devices: it affects every user, so only root and the daemon's own user may
status: <nil>
run: <nil>
`
	got := strings.ReplaceAll(string(out), fmt.Sprintf("process %d ", os.Getpid()), "process N ")
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if len(n.changes) != 2 {
		t.Errorf("the node was asked for %q", n.changes)
	}
}

// makeReachable lets every user go through the folders of a test.
func makeReachable(t *testing.T, dir string) {
	t.Helper()
	for ; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// strangersCalls makes the calls of TestOtherUser in the other process.
func strangersCalls(socket string) {
	c, ctx := client.New(socket), context.Background()
	var words []string
	all, err := c.Processes(ctx)
	for _, p := range all {
		words = append(words, fmt.Sprintf("%d %q %q", p.PID, p.Command, p.Pod))
	}
	if err != nil {
		words = append(words, err.Error())
	}
	fmt.Println("processes:", strings.Join(words, ", "))
	change := func(what string, pid int) {
		_, err := c.Change(ctx, pid, idle)
		fmt.Printf("change %s: %v\n", what, err)
	}
	var pid, root int
	fmt.Sscan(os.Getenv("GIVEWAY_TEST_PID"), &pid)
	fmt.Sscan(os.Getenv("GIVEWAY_TEST_ROOT"), &root)
	change("root's", 1)
	change("mine", 4711)
	change("mine, unknown to the node", pid)
	change("root's, unknown to the node", root)
	change("none", 1<<30)
	_, err = c.Policy(ctx)
	fmt.Println("policy:", err)
	_, err = c.SetPolicy(ctx, api.Policy{Name: "rr"})
	fmt.Println("set policy:", err)
	_, err = c.Restore(ctx)
	fmt.Println("restore:", err)
	_, err = c.Status(ctx)
	fmt.Println("status:", err)
	run, err := c.Run(ctx, api.Run{Values: attr.Must("class=batch")})
	fmt.Println("run:", err)
	if err == nil {
		run.Close()
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("GIVEWAY_FRONT_END") != "" {
		runFrontEnd()
		return
	}
	if os.Getenv("GIVEWAY_TEST_SLEEP") != "" {
		time.Sleep(time.Minute)
		return
	}
	if socket := os.Getenv("GIVEWAY_TEST_CALL"); socket != "" {
		strangersCalls(socket)
		return
	}
	if socket := os.Getenv("GIVEWAY_TEST_SERVE"); socket != "" {
		serveChild(socket)
		return
	}
	if socket := os.Getenv("GIVEWAY_TEST_POLICY"); socket != "" {
		callPolicy(socket)
		return
	}
	os.Exit(m.Run())
}

// eventually waits until ok is true.
var eventually = drivertest.Eventually

func TestRun(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	c, me := client.New(socket), os.Getpid()
	run, err := c.Run(t.Context(), api.Run{Values: attr.Must("class=batch")})
	if err != nil {
		t.Fatal(err)
	}
	if n.run(me) != "class=batch" {
		t.Error("the run has not begun")
	}
	if len(run.Ignored) != 1 || run.Ignored[0].Mark != "ignored by rr" {
		t.Errorf("ignored attributes: got %+v", run.Ignored)
	}
	if _, err := c.Status(t.Context()); err != nil { // the open request blocks no other
		t.Error(err)
	}
	run.Close()
	run.Close()
	eventually(t, "end of the run", func() bool { return n.run(me) == "" })

	if run, err = c.Run(t.Context(), api.Run{Values: idle.Values}); err != nil {
		t.Fatal(err)
	}
	stop()
	<-run.Done
	if n.run(me) != "" {
		t.Error("the run outlives the server")
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket outlives the server: got %v", err)
	}
}

// TestRunEndsWithItsConnection: a run ends when its connection does, as it does when the
// process exits.
func TestRunEndsWithItsConnection(t *testing.T) {
	n := newFake()
	socket, _ := start(t, n)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"class":"online"}`
	fmt.Fprintf(conn, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	eventually(t, "begin of the run", func() bool { return n.run(os.Getpid()) == "class=online" })
	conn.Close()
	eventually(t, "end of the run", func() bool { return n.run(os.Getpid()) == "" })
}

func TestSocketInUse(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	again := newServer(n, server.Config{Socket: socket})
	if err := again.Listen(); err == nil || !strings.HasSuffix(err.Error(), "; stop it, or choose another socket") {
		t.Errorf("second daemon: got %v", err)
	}
	// The same without the lock, as by a daemon in another container.
	os.Remove(socket + ".lock")
	if err := again.Listen(); err == nil || !strings.HasSuffix(err.Error(), "; stop it, or choose another socket") {
		t.Errorf("second daemon without the lock: got %v", err)
	}
	if _, err := client.New(socket).Status(t.Context()); err != nil {
		t.Errorf("the first daemon: got %v", err)
	}
	stop()

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // leaves a socket on which no daemon answers
	serve(t, again)
	if _, err := client.New(socket).Status(t.Context()); err != nil {
		t.Errorf("after a stale socket: got %v", err)
	}

	plain := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(plain, []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := newServer(n, server.Config{Socket: plain}).Listen(); err == nil {
		t.Error("a regular file was replaced")
	}
	if data, err := os.ReadFile(plain); err != nil || string(data) != "data" {
		t.Errorf("a regular file was changed: got %q, %v", data, err)
	}
}

func TestTCP(t *testing.T) {
	const secret = "0123456789abcdef"
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	write := func(text string, mode os.FileMode) {
		os.Remove(tokenFile)
		if err := os.WriteFile(tokenFile, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	cfg := server.Config{TCP: "127.0.0.1:0", TokenFile: tokenFile}
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{secret, 0o644, "chmod 600"},
		{"short\n", 0o600, "shorter than 16"},
		{strings.Repeat("x", 5000), 0o600, "larger than 4096 bytes"},
	} {
		write(c.text, c.mode)
		if err := newServer(newFake(), cfg).Listen(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("token %.10q: got %v, want %s", c.text, err, c.want)
		}
	}
	if err := newServer(newFake(), server.Config{TCP: "127.0.0.1:0"}).Listen(); err == nil {
		t.Error("TCP without a token")
	}
	write(secret+"\n", 0o600)
	all := newServer(newFake(), server.Config{TCP: "0.0.0.0:0", TokenFile: tokenFile})
	serve(t, all)
	if a := all.Addrs()[0].(*net.TCPAddr); a.IP.To4() == nil {
		t.Errorf("0.0.0.0 listens on %v, want addresses of IPv4 alone", a)
	}
	s := newServer(newFake(), cfg)
	serve(t, s)
	for _, c := range []struct {
		header, path string
		status       int
	}{
		{"", "/v1/status", 401},
		{"Bearer", "/v1/status", 401},
		{"Bearer 0123456789abcdee", "/v1/status", 401},
		{"Basic " + secret, "/v1/status", 401},
		{"Bearer " + secret, "/v1/status", 200},
		{"bearer " + secret, "/v1/processes", 200},
		{"Bearer " + secret, "/v1/record", 200},
		{"", "/v1/record/stream", 401},
		{"Bearer " + secret, "/v1/runs", 405},
	} {
		req, _ := http.NewRequest(http.MethodGet, "http://"+s.Addrs()[0].String()+c.path, nil)
		req.Header.Set("Authorization", c.header)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%q %s: got %d, want %d", c.header, c.path, resp.StatusCode, c.status)
		}
	}
	req, _ := http.NewRequest(http.MethodPost, "http://"+s.Addrs()[0].String()+"/v1/runs", strings.NewReader(`{"class":"batch"}`))
	req.Header.Set("Authorization", "Bearer "+secret)
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != 409 {
		t.Errorf("run over TCP: got %v, %v", resp, err)
	}
}
