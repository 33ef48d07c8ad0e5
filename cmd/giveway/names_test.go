package main_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/giveway/giveway/hint"
	"github.com/giveway/giveway/queue"
)

// programEnv makes this program a process that uses a device, with the value as the name of
// its main thread.
const programEnv = "GIVEWAY_TEST_PROGRAM"

// getEnv makes this program a process that prints what the daemon answers for a path.
const getEnv = "GIVEWAY_TEST_GET"

func TestMain(m *testing.M) {
	if name := os.Getenv(programEnv); name != "" {
		useDevice(name)
	}
	if path := os.Getenv(getEnv); path != "" {
		os.Exit(get(path))
	}
	os.Exit(m.Run())
}

// get prints the answer for a path of the daemon's socket.
func get(path string) (status int) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", os.Getenv("GIVEWAY_SOCKET"))
	}
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: dial}}).Get("http://giveway" + path)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.Copy(os.Stdout, resp.Body)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// useDevice runs commands, each as a request, until the process is killed.
func useDevice(name string) {
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	session, _ := hint.Connect(context.Background()) // without a daemon it is found later
	for q := queue.New(); ; time.Sleep(5 * time.Millisecond) {
		end := session.Begin()
		if c, err := q.Submit(func() { time.Sleep(5 * time.Millisecond) }); err == nil {
			_ = c.Wait(context.Background())
		}
		end()
	}
}

// The users of TestHostileNames: no process of the machine has these uids.
const (
	namedUID = 65203 // owns the processes with hostile names
	otherUID = 65204 // must not see their command lines
)

// secret is an argument of every process with a hostile name.
const secret = "--key=TOP-SECRET"

// policyCommand begins the command line of an external policy that root starts.
const policyCommand = "exec sleep 1000 # "

// forged begins a line that a name would add to an output.
const forged = "FORGED"

// hostileNames are what a user may choose as a name. Each has a part by which its process is
// found.
var hostileNames = map[string]string{
	"html":    "html <img src=x onerror=alert(1)><script>alert(2)</script>",
	"ansi":    "ansi \x1b[2J\x1b]0;title\a\x1b[31m",
	"lines":   "lines\n" + forged + "\r" + forged + "\t\v",
	"long":    "long" + strings.Repeat("x", 64<<10),
	"invalid": "invalid \xff\xfe\xc0\x80 \x9b31m \xed\xa0\x80",
	"unicode": "unicode \u009b31m \u202egnp\u2066 \u200b \ufeff e\u0301\u0301\u0301",
	"quotes":  "quotes \"'`\\ {a=\"b\"} ${HOME} %s %!d &lt; </script>",
}

// userName is the name of namedUID, as far as /etc/passwd can have it.
const userName = "<b>\x1b[35m\"\xff\u202e"

// hostileNode is a daemon of which all processes have hostile names.
type hostileNode struct {
	*node
	dir    string
	config string
	log    bytes.Buffer
	named  bool           // the user has a hostile name too
	pids   map[string]int // by the key in hostileNames
}

const hostileConfig = "policy: giveway\nnvidia: false\namd: false\nmetrics: {pid: true, user: true, container: true, pod: true}\n"

// newHostileNode starts a daemon for real processes, and one process for each hostile name.
func newHostileNode(t *testing.T) *hostileNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &hostileNode{dir: dir, config: filepath.Join(dir, "giveway.yaml"), pids: map[string]int{}}
	h.node = &node{T: t, program: filepath.Join(dir, "giveway"), socket: filepath.Join(dir, "s")}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	giveway, err := os.ReadFile(build(t))
	if err != nil {
		t.Fatal(err)
	}
	passwd := fmt.Appendf(nil, "root:x:0:0:root:/root:/bin/sh\n%s:x:%d:%d::/:/bin/sh\n", userName, namedUID, namedUID)
	for name, text := range map[string][]byte{"program": self, "giveway": giveway, "giveway.yaml": []byte(hostileConfig), "passwd": passwd} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.startDaemon()
	for key, name := range hostileNames {
		h.startProgram(key, name)
	}
	h.eventually("all processes are shown", func() bool { return h.found() == len(hostileNames)+1 })
	return h
}

// startDaemon starts a daemon that sees the test's /etc/passwd.
func (h *hostileNode) startDaemon() {
	h.Helper()
	args := []string{h.program, "daemon", "--socket", h.socket, "--config", h.config}
	mount := []string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/passwd && exec "$@"`, filepath.Join(h.dir, "passwd")}
	if out, err := exec.Command(mount[0], append(mount[1:], "true")...).CombinedOutput(); err != nil {
		h.Logf("the user has no hostile name, because /etc/passwd cannot be replaced for the daemon: %v: %s", err, out)
	} else {
		args, h.named = append(mount, args...), true
	}
	h.daemon = exec.Command(args[0], args[1:]...)
	h.daemon.Stderr = &h.log
	if err := h.daemon.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		_ = h.daemon.Process.Signal(syscall.SIGTERM)
		_ = h.daemon.Wait()
		h.check("the daemon's log", h.log.String())
	})
	h.eventually("the daemon answers", func() bool { return h.processes() != nil })
}

// startProgram starts a process with a name as its command line and as the name of its main
// thread.
func (h *hostileNode) startProgram(key, name string) {
	h.Helper()
	cmd := exec.Command(filepath.Join(h.dir, "program"))
	cmd.Args = []string{name, secret}
	if key == "ansi" { // an empty command line: the name of the main thread is shown
		h.startAs(cmd, name)
		cmd = exec.Command(cmd.Path)
		cmd.Args = []string{""}
		key = "thread"
	}
	h.pids[key] = h.startAs(cmd, name)
}

func (h *hostileNode) startAs(cmd *exec.Cmd, thread string) (pid int) {
	h.Helper()
	cmd.Env = []string{programEnv + "=" + thread[:min(len(thread), 15)], "GIVEWAY_SOCKET=" + h.socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: namedUID, Gid: namedUID}}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// found counts the processes that the daemon shows.
func (h *hostileNode) found() (n int) {
	for _, p := range h.processes() {
		if p.UID == namedUID {
			n++
		}
	}
	return n
}

// as returns a command of giveway, run by a user.
func (h *hostileNode) as(uid uint32, args ...string) *exec.Cmd {
	cmd := exec.Command(h.program, args...)
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+h.socket, "HOME=/")
	cmd.Dir = h.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// output runs a command and returns what it prints; a status other than zero is allowed.
func (h *hostileNode) output(cmd *exec.Cmd) string {
	h.Helper()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		h.Fatal(err)
	}
	return string(out)
}

// check checks that a text has nothing that a terminal obeys, no line that a name added, and
// no name in full length. It reports whether the text has a part of some name.
func (h *hostileNode) check(where, text string) (named bool) {
	h.Helper()
	if !utf8.ValidString(text) {
		h.Errorf("%s: invalid UTF-8: %.300q", where, text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }); i >= 0 {
		h.Errorf("%s: a character that a terminal obeys: %q", where, text[max(i-100, 0):min(i+100, len(text))])
	}
	if strings.HasPrefix(text, forged) || strings.Contains(text, "\n"+forged) {
		h.Errorf("%s: a line that a name added: %.300q", where, text)
	}
	if strings.Contains(text, strings.Repeat("x", 4097)) {
		h.Errorf("%s: a name is in it in full length", where)
	}
	return strings.Contains(text, "onerror") || strings.Contains(text, secret)
}

// checkJSON checks all texts of JSON values that follow each other. Answers for a browser
// have no markup.
func (h *hostileNode) checkJSON(where, text string) (named bool) {
	h.Helper()
	if strings.ContainsAny(text, "<>") {
		h.Errorf("%s: markup: %.300q", where, text)
	}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return named
		}
		if err != nil {
			h.Fatalf("%s: %v: %.300q", where, err, text)
		}
		s, _ := token.(string)
		if strings.HasPrefix(s, policyCommand) {
			continue // what root ordered is shown to root as it is
		}
		named = h.check(where, s) || named
	}
}

// traceTexts are the paths of field numbers to the texts in a trace: names of tracks and
// processes, names of events, categories and arguments, and values of arguments.
var traceTexts = []string{"1.60.2", "1.60.3.6", "1.12.1.2", "1.12.2.2", "1.12.3.2", "1.11.4.6"}

// textsOf returns the texts of a trace, one a line, and counts them.
func (h *hostileNode) textsOf(message []byte, path string) (texts []string) {
	h.Helper()
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		message = message[n:]
		value, n := binary.Uvarint(message)
		of := strings.TrimPrefix(fmt.Sprint(path, ".", tag>>3), ".")
		switch tag & 7 {
		case 0:
			message = message[n:]
		case 1:
			message = message[8:]
		case 2:
			inner := message[n : n+int(value)]
			message = message[n+int(value):]
			if slices.Contains(traceTexts, of) {
				texts = append(texts, string(inner))
			} else if slices.ContainsFunc(traceTexts, func(p string) bool { return strings.HasPrefix(p, of+".") }) {
				texts = append(texts, h.textsOf(inner, of)...)
			}
		default:
			h.Fatalf("field %s has wire type %d", of, tag&7)
		}
	}
	return texts
}

// giveOrders gives orders with hostile names, from a program with one.
func (h *hostileNode) giveOrders() {
	h.Helper()
	evil := filepath.Join(h.dir, "\x1b[2J<b>\n"+forged)
	if err := os.Symlink(h.program, evil); err != nil {
		h.Fatal(err)
	}
	for i, pid := range h.pids {
		class := "batch"
		if i == "html" || i == "lines" {
			class = "online"
		}
		cmd := h.as(0, "set", strconv.Itoa(pid), "--class", class)
		cmd.Path = evil
		h.check("set", h.output(cmd))
	}
	all := ""
	for key, name := range hostileNames {
		if key != "long" {
			all += name
		}
	}
	for key, name := range map[string]string{"all": all, "long": hostileNames["long"]} {
		for _, args := range [][]string{
			{"policy", name},
			{"policy", "external", "--exec", policyCommand + name},
			{"run", "--pool", name, "--", "true"},
			{"run", "--no-shim", "--class", name, "--", "true"},
			{"run", "--no-shim", "--class", "batch", "--", "true", name},
			{"explain", name},
			{"sim", name},
			{name},
		} {
			out := h.output(h.as(0, args...))
			out = strings.ReplaceAll(out, "\n"+forged, "") // line breaks of one's own arguments do no harm
			h.check(fmt.Sprintf("%s: giveway %.10q", key, args[0]), out)
		}
		h.rewriteConfig(key, name)
	}
}

// rewriteConfig makes the daemon read a configuration with a hostile name as policy, pool and
// user, which it refuses.
func (h *hostileNode) rewriteConfig(key, name string) {
	h.Helper()
	quoted, _ := json.Marshal(name)
	for i, line := range []string{"policy: %s", "rules: [{match: {user: %s}, pool: %[1]s}]", "%s: 1"} {
		text := strings.Replace(hostileConfig, "policy: giveway\n", "", 1) + fmt.Sprintf(line, quoted) + "\n"
		if err := os.WriteFile(h.config, []byte(text), 0o644); err != nil {
			h.Fatal(err)
		}
		refused := func() int {
			return strings.Count(h.run(false, "log"), "was refused, and the one before stays in force")
		}
		before := refused()
		if err := h.daemon.Process.Signal(syscall.SIGHUP); err != nil {
			h.Fatal(err)
		}
		h.eventually("the configuration is read and refused", func() bool { return refused() > before })
		h.check(fmt.Sprint(key, ": doctor after configuration ", i), h.doctor())
	}
}
