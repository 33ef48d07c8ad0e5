package main_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const readToken = "0123456789abcdef-only-to-read"

// observed starts a daemon whose metrics are complete and that listens on TCP with a token for
// reading only. It returns its address and its configuration file.
func observed(t *testing.T) (n *node, address, file string) {
	t.Helper()
	program := build(t)
	dir, err := os.MkdirTemp("", "gw") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	l.Close()
	file = filepath.Join(dir, "giveway.yaml")
	config := fmt.Sprintf("policy: slo\ntcp: %q\nread_token_file: %s/token\nmetrics: {pid: true, user: true, container: true, pod: true}\n", address, dir)
	for name, text := range map[string]string{file: config, dir + "/token": readToken} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n = &node{T: t, program: program, socket: filepath.Join(dir, "s"), flags: []string{"--config", file}}
	n.start()
	return n, address, file
}

// scrape returns the metrics: the type of each, and the samples by series.
func (n *node) scrape(address string) (types map[string]string, samples map[string]float64) {
	n.Helper()
	req, _ := http.NewRequest(http.MethodGet, "http://"+address+"/metrics", nil)
	req.Header.Set("Authorization", "Bearer "+readToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		n.Fatalf("scrape: got %v, %s: %s", err, resp.Status, text)
	}
	types, samples = map[string]string{}, map[string]float64{}
	for l := range strings.Lines(string(text)) {
		l = strings.TrimSuffix(l, "\n")
		if fields := strings.Fields(l); strings.HasPrefix(l, "# TYPE ") {
			types[fields[2]] = fields[3]
		} else if !strings.HasPrefix(l, "#") {
			i := strings.LastIndex(l, " ")
			v, err := strconv.ParseFloat(l[i+1:], 64)
			if err != nil {
				n.Errorf("sample %s: %v", l, err)
			}
			samples[l[:i]] = v
		}
	}
	return types, samples
}

// family returns the name of the metric that a series belongs to.
func family(types map[string]string, series string) string {
	name, _, _ := strings.Cut(series, "{")
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && types[base] == "histogram" {
			return base
		}
	}
	return name
}

var metricName = regexp.MustCompile(`giveway_[a-z0-9_]+`)

// TestSimulatedMetrics scrapes a daemon on simulated devices: every metric that is documented
// is there, no counter goes down, and the dashboard and the alerts name only metrics that exist.
func TestSimulatedMetrics(t *testing.T) {
	n, address, _ := observed(t)
	n.run(false, "set", n.pid("serve"), "--slo", "1us") // is missed
	doc, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(giveway_[a-z0-9_]+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[m[1]] = true
	}
	var types map[string]string
	var samples map[string]float64
	missing := func() (names []string) {
		shown := map[string]bool{}
		for series := range samples {
			shown[family(types, series)] = true
		}
		for name := range documented {
			// Simulated processes have no shim, and simulated devices reserve no slots.
			if !shown[name] && !strings.HasPrefix(name, "giveway_shim_") && name != "giveway_device_reserved_slots" {
				names = append(names, name)
			}
		}
		return slices.Sorted(slices.Values(names))
	}
	last := map[string]float64{}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		types, samples = n.scrape(address)
		for series, v := range samples {
			if kind := types[family(types, series)]; (kind == "counter" || kind == "histogram") && v < last[series] {
				t.Errorf("%s went from %v to %v", series, last[series], v)
			}
		}
		if last = samples; len(missing()) == 0 && samples[`giveway_slo_requests_total{class="online",result="missed"}`] > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("these metrics have no sample: %q", missing())
		}
	}
	for name := range types {
		if !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	checkDeployed(t, types)
	checkAgreement(n, address)
}

// recordedName finds series of recording rules, which have colons in their names. tools/promcheck
// checks those.
var recordedName = regexp.MustCompile(`\b[a-z0-9_]+(:[a-z0-9_]+)+`)

// checkDeployed checks that what is to be deployed names only metrics that exist.
func checkDeployed(t *testing.T, types map[string]string) {
	t.Helper()
	for _, file := range []string{"../../deploy/grafana/giveway.json", "../../deploy/prometheus/giveway.rules.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := metricName.FindAllString(recordedName.ReplaceAllString(string(text), ""), -1)
		if len(names) < 5 {
			t.Errorf("%s names only %q", file, names)
		}
		for _, name := range names {
			if types[family(types, name)] == "" {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}

// checkAgreement checks that metrics and ps have the same device times.
func checkAgreement(n *node, address string) {
	n.Helper()
	_, before := n.scrape(address)
	processes := n.processes()
	_, after := n.scrape(address)
	for _, name := range slices.Sorted(maps.Keys(processes)) {
		p := processes[name]
		series := fmt.Sprintf(`giveway_process_device_seconds_total{device="gpu0",class="%s",pid="%d",user="%s",container="",pod=""}`, p.Class(), p.PID, p.User)
		if got := p.Queues[0].Served.Seconds(); got < before[series]-1e-6 || got > after[series]+1e-6 || after[series] == 0 {
			n.Errorf("%s: ps has %v s, metrics had %v before and %v after", name, got, before[series], after[series])
		}
	}
}

// TestSimulatedLog: giveway log shows every order exactly once, with its outcome, and log
// --follow shows them as they come; doctor shows a configuration that was refused.
func TestSimulatedLog(t *testing.T) {
	n, _, file := observed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow := exec.CommandContext(ctx, n.program, "log", "--follow")
	follow.Env = append(os.Environ(), "GIVEWAY_SOCKET="+n.socket)
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()

	const none = "4194304" // the kernel gives no process this pid
	train := n.pid("train")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n.run(false, "set", train, "--weight", "3")
	n.run(false, "pause", train, "--tree")
	n.run(false, "resume", train)
	n.run(false, "policy", "rr")
	n.run(true, "set", none, "--weight", "2")
	n.run(false, "run", "--no-shim", "--class", "batch", "--", "true")
	rewrite := func(text, shown string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n.eventually(shown, func() bool { return strings.Contains(n.run(false, "log"), shown) })
	}
	rewrite(string(config)+"floor: much\n", "was refused, and the one before stays in force")
	n.contains(n.doctor(), "floor: \"much\" is not")
	rewrite(string(config)+"rules: [{match: {user: daemon}, class: idle}]\n", "was read again")
	n.contains(n.doctor(), "it was refused 1 time in the last hour")
	n.run(false, "restore")

	want := []string{
		"changed process " + train + " from weight=1 to weight=3", "paused process " + train + " and its descendants", "resumed process " + train,
		"changed the policy from slo to rr", "was refused: set weight=2 of process " + none, "began a run with class=batch",
		"was refused, and the one before stays in force", "policy rr, 1 rule, 0 limits; before policy rr, 0 rules, 0 limits",
		"restored all devices, and changed the policy from rr to native",
	}
	text := n.run(false, "log")
	for _, w := range want {
		if strings.Count(text, w) != 1 {
			t.Errorf("%q is not there once:\n%s", w, text)
		}
	}
	if one := n.run(false, "log", "--pid", train, "--since", "10m"); strings.Count(one, "process "+train) != 3 || strings.Contains(one, "policy") {
		t.Errorf("of one process: got %s", one)
	}
	// The stream has the same lines, and goes on with the next daemon.
	for _, w := range want {
		awaitLine(t, lines, w)
	}
	if err := n.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = n.daemon.Wait()
	n.start()
	awaitLine(t, lines, "guardian: running")
	n.run(false, "pause", n.pid("embed"))
	awaitLine(t, lines, "paused process "+n.pid("embed"))
	cancel()
	_ = follow.Wait() // it was killed
}

// awaitLine waits for a line that contains a text.
func awaitLine(t *testing.T, lines <-chan string, text string) {
	t.Helper()
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				t.Fatalf("log --follow has ended without %q", text)
			}
			if strings.Contains(l, text) {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("log --follow does not show %q", text)
		}
	}
}
