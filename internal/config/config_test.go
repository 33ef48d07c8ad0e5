package config

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// TestMistakes compares every error with testdata/mistakes.txt.
func TestMistakes(t *testing.T) {
	const golden = "testdata/mistakes.txt"
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	shorten := strings.NewReplacer(strings.Join(policy.Names(), ", "), "(the policies)")
	out := ""
	for i, text := range strings.Split("\n"+string(data), "\n=== ") {
		if i == 0 {
			out = strings.TrimPrefix(text, "\n")
			continue
		}
		name, body, _ := strings.Cut(text, "\n")
		file, want, _ := strings.Cut(body, ">>>\n")
		_, err := Parse("x.yaml", []byte(file))
		got := "accepted\n"
		if err != nil {
			got = shorten.Replace(err.Error()) + "\n"
		}
		if strings.TrimSpace(got) != strings.TrimSpace(want) && !*rewrite {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
		out += fmt.Sprintf("\n=== %s\n%s>>>\n%s", name, file, got)
	}
	if *rewrite {
		if err := os.WriteFile(golden, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const everything = `
policy: {name: giveway, turn: 20ms}
devices:
  - {device: GPU-1234, policy: {name: rr, quantum: 5ms}}
  - {device: 1, policy: native}
floor: 5%
floor_turn: 20ms
stall_limit: 3s
inversion_limit: 250ms
amd_online_slots: 6
socket: /run/x.sock
tcp: true
token_file: /etc/giveway/token
read_token_file: /etc/giveway/read.token
metrics: {user: true, pod: true, pid: false, series: 50}
rules:
  - {match: {user: alice, command: 'python* *serve*'}, class: online, priority: -3}
  - {match: {cgroup: '/kubepods*', pod_uid: 2f1b7a04-5c1e-4a53-9d3b-8a7a6f0c1d2e}, class: batch, weight: 4, slo: 5ms, share: 10%}
`

func TestEverything(t *testing.T) {
	c, err := Parse("x.yaml", []byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Policy: api.Policy{Name: "giveway", Params: map[string]string{"turn": "20ms"}},
		Devices: []api.Policy{
			{Device: "GPU-1234", Name: "rr", Params: map[string]string{"quantum": "5ms"}},
			{Device: "1", Name: "native"},
		},
		Sched:  sched.Config{Floor: 0.05, FloorTurn: 20 * time.Millisecond, StallLimit: 3 * time.Second, InversionLimit: 250 * time.Millisecond},
		Socket: "/run/x.sock", TCP: "127.0.0.1:50000", TokenFile: "/etc/giveway/token", ReadToken: "/etc/giveway/read.token",
		Metrics: metrics.Labels{User: true, Pod: true, Series: 50}, AMDSlots: 6,
		Rules: []Rule{
			{Attrs: attr.Must("class=online priority=-3"), line: 17, names: []Name{{Text: "alice", Line: 17}}},
			{Attrs: attr.Must("class=batch weight=4 slo=5ms share=10%"), line: 18},
		},
	}
	for i := range c.Rules {
		want.Rules[i].match = c.Rules[i].match // TestMatch tests these
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	for i, name := range []string{"", "native", "rr"} {
		id := []string{"GPU-0", "GPU-5678", "GPU-1234"}[i]
		if p, ok := c.DevicePolicy(id, i); p.Name != name || ok != (i > 0) || ok && p.Device != id {
			t.Errorf("policy of device %d: got %+v, %v, want %q", i, p, ok, name)
		}
	}
	if c, err = Parse("x.yaml", []byte("trace: false\nnvidia: true\namd: false\n")); err != nil || !c.NoTrace || c.NoNVIDIA || !c.NoAMD {
		t.Errorf("trace off: got %+v, %v", c, err)
	}
	if _, err = Parse("x.yaml", []byte("nvidia: off\n")); err == nil {
		t.Error("nvidia: off was accepted")
	}
	if c, err = Parse("x.yaml", []byte("floor: 0\ntcp: false\n")); err != nil || c.Sched.Floor >= 0 || c.TCP != "" || c.Policy.Name != Default().Policy.Name {
		t.Errorf("no floor: got %+v, %v", c, err)
	}
}

const (
	aliceContainer = "4f2c8d1e9b7a3c5d6e8f0a1b2c3d4e5f60718293a4b5c6d7e8f9a0b1c2d3e4f5"
	alicePod       = "2f1b7a04-5c1e-4a53-9d3b-8a7a6f0c1d2e"
)

func TestMatch(t *testing.T) {
	alice := proc.Process{
		UID: 1000, Command: "/usr/bin/python3 train.py --lr 0.1",
		Cgroup:    "/kubepods.slice/kubepods-pod" + strings.ReplaceAll(alicePod, "-", "_") + ".slice/cri-containerd-" + aliceContainer + ".scope",
		Container: aliceContainer, Pod: alicePod,
	}
	for match, want := range map[string]bool{
		"{}":                                                      true,
		"{user: alice}":                                           true,
		"{user: 'al*'}":                                           true,
		"{user: 1000}":                                            true,
		"{user: 100}":                                             false,
		"{user: lice}":                                            false,
		"{user: root}":                                            false,
		"{command: python3}":                                      true,
		"{command: python}":                                       false,
		"{command: 'python3 *'}":                                  true,
		"{command: 'python3 train.py'}":                           false,
		"{command: '*train.py*'}":                                 true,
		"{command: '/usr/bin/*'}":                                 true,
		"{command: 'python? train.py --lr 0.1'}":                  true,
		"{command: 'python? train_py --lr 0.1'}":                  false,
		"{command_regexp: 'train\\.py'}":                          true,
		"{command_regexp: '^train'}":                              false,
		"{command: python3, command_regexp: x$}":                  false,
		"{cgroup: '/kubepods.slice/*'}":                           true,
		"{cgroup: /kubepods.slice}":                               false,
		"{cgroup: '*-pod2f1b7a04_*'}":                             true,
		"{container_id: " + aliceContainer + "}":                  true,
		"{container_id: 4f2c8d1e9b7a}":                            true,
		"{container_id: 4F2C8D1E9B7A}":                            true,
		"{container_id: 4f2c8d1e9b7b}":                            false,
		"{pod_uid: " + alicePod + "}":                             true,
		"{pod_uid: 2f1b7a04-5c1e-4a53-9d3b-8a7a6f0c1d2f}":         false,
		"{user: bob, pod_uid: " + alicePod + "}":                  false,
		"{container_id: 4f2c8d1e9b7a, pod_uid: " + alicePod + "}": true,
	} {
		c, err := Parse("x.yaml", []byte("rules: [{match: "+match+", class: batch, weight: 3}]"))
		if err != nil {
			t.Errorf("%s: got %v", match, err)
			continue
		}
		var attrs attr.Values
		if want {
			attrs = attr.Must("class=batch weight=3")
		}
		if got := c.Match(&Subject{Process: alice, User: "alice"}).Attrs; got != attrs {
			t.Errorf("%s: got %v, want %v", match, got, attrs)
		}
		if got := c.Match(&Subject{}).Attrs; got.Empty() != (match != "{}") {
			t.Errorf("%s: a process about which nothing is known got %v", match, got)
		}
	}
	c, err := Parse("x.yaml", []byte("rules:\n- {match: {user: bob}, class: idle}\n- {match: {user: 'a*'}, class: online}\n- {match: {}, class: batch}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Match(&Subject{Process: alice, User: "alice"}).Attrs; got != attr.Must("class=online") {
		t.Errorf("the first rule that matches: got %v, want class=online", got)
	}
	if got := c.Match(&Subject{}).Attrs; got != attr.Must("class=batch") {
		t.Errorf("a process without a command: got %v, want class=batch", got)
	}
}

// TestMatchAsProcFinds matches a container id and a pod UID in the form in which package
// proc reads them, so that no rule waits for a value that never comes.
func TestMatchAsProcFinds(t *testing.T) {
	dir := t.TempDir()
	pid := filepath.Join(dir, "5")
	files := map[string]string{
		"stat":    "5 (x) S 1 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0",
		"status":  "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n",
		"cmdline": "x\x00",
		"cgroup":  "0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(alicePod, "-", "_") + ".slice/cri-containerd-" + aliceContainer + ".scope\n",
	}
	if err := os.Mkdir(pid, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(pid, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := proc.FS(dir).Process(5)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range []string{"container_id: " + aliceContainer[:12], "pod_uid: " + alicePod, "cgroup: '/kubepods.slice/*'"} {
		c, err := Parse("x.yaml", []byte("rules: [{match: {"+match+"}, class: batch}]"))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Match(&Subject{Process: p}).Attrs; got != attr.Must("class=batch") {
			t.Errorf("%s: got %v for %+v", match, got, p)
		}
	}
}

// TestEveryRuleAttribute sets every attribute that rules can set, by a rule.
func TestEveryRuleAttribute(t *testing.T) {
	for _, id := range attr.IDs(0) {
		r := id.Row()
		c, err := Parse("x.yaml", []byte(fmt.Sprintf("rules: [{match: {}, %s: %s}]", r.YAML(), r.Format(r.Max))))
		if byRule := r.Ways&attr.ByRule != 0; byRule != (err == nil) || byRule && c.Match(&Subject{}).Attrs != id.Of(r.Max) {
			t.Errorf("%s: got %v, %v; settable by a rule: %v", r.Name, c.Match(&Subject{}).Attrs, err, byRule)
		}
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil || !strings.HasSuffix(err.Error(), "none: no such file or directory") {
		t.Errorf("no file: got %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.HasSuffix(err.Error(), " is not a plain file") {
		t.Errorf("a folder: got %v", err)
	}
}

// TestExampleInDocs: the examples in docs/CONFIG.md and packaging are accepted.
func TestExampleInDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/CONFIG.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(doc), "```yaml\n")[1:]
	if len(blocks) == 0 {
		t.Error("there is no example")
	}
	for _, b := range blocks {
		text, _, _ := strings.Cut(b, "```")
		if _, err := Parse("docs/CONFIG.md", []byte(text)); err != nil {
			t.Error(err)
		}
	}
	if _, err := Load("../../packaging/giveway.yaml"); err != nil {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	watchEvery = 10 * time.Millisecond
	path := filepath.Join(t.TempDir(), "x.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("policy: rr\n")
	ctx, cancel := context.WithCancel(t.Context())
	news, signals := make(chan string, 10), make(chan os.Signal, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, path, Stamp(path), signals, func(c Config, err error) {
			if err != nil {
				news <- err.Error()
				return
			}
			news <- c.Policy.Name
		})
	}()
	time.Sleep(5 * watchEvery)
	next := func(want string) {
		t.Helper()
		select {
		case got := <-news:
			if !strings.HasSuffix(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("no news; want %q", want)
		}
	}
	write("policy: wfq\n")
	next("wfq")
	write("\npolicy: wfqq\n")
	next("x.yaml:2: policy: there is no policy \"wfqq\"; did you mean wfq? There are: " + strings.Join(append(policy.Names(), policy.ExternalName), ", "))
	os.Remove(path)
	next("no such file or directory")
	write("policy: native\n")
	next("native")
	if f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err != nil {
		t.Error(err)
	} else {
		_, _ = f.WriteString("floor: 3%\n") // in place
		f.Close()
	}
	next("native")
	signals <- os.Interrupt // any signal
	next("native")
	cancel()
	<-done
	if len(news) > 0 {
		t.Errorf("more news: got %q", <-news)
	}
}

// TestWatchLoadsEachChangeOnce: a change between the first reading and Watch is noticed, and a file
// that was read at a signal is not read again.
func TestWatchLoadsEachChangeOnce(t *testing.T) {
	watchEvery = 10 * time.Millisecond
	path := filepath.Join(t.TempDir(), "x.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("policy: rr\n")
	known := Stamp(path)
	write("policy: native\n")
	ctx, cancel := context.WithCancel(t.Context())
	news, signals, done := make(chan string, 10), make(chan os.Signal), make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, path, known, signals, func(c Config, _ error) { news <- c.Policy.Name })
	}()
	select {
	case got := <-news:
		if got != "native" {
			t.Errorf("got policy %s, want native", got)
		}
	case <-time.After(5 * time.Second):
		t.Error("the file was changed before Watch, and was not read")
	}
	cancel()
	<-done
	watchEvery = 250 * time.Millisecond
	for attempt := range 20 { // until the signal comes well before the first look
		write(fmt.Sprintf("policy: rr # %d\n", attempt))
		ctx, cancel := context.WithCancel(t.Context())
		done, began, known := make(chan struct{}), time.Now(), Stamp(path)
		go func() {
			defer close(done)
			Watch(ctx, path, known, signals, func(c Config, _ error) { news <- c.Policy.Name })
		}()
		write("policy: wfq\n")
		signals <- os.Interrupt // any signal
		inTime := time.Since(began) < watchEvery/2
		if inTime {
			time.Sleep(3 * watchEvery)
		}
		cancel()
		<-done
		if got := <-news; inTime && (got != "wfq" || len(news) > 0) {
			t.Errorf("got policy %q and %d more, want wfq once", got, len(news))
		}
		if inTime {
			return
		}
		for len(news) > 0 {
			<-news
		}
	}
	t.Skip("this machine was too slow 20 times to send a signal within 125 ms")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if c, err := Parse("x.yaml", data); err == nil {
			c.Match(&Subject{Process: proc.Process{Command: "/bin/x " + string(data)}})
		}
	})
}

// TestExternalPolicy: the file can name a policy process; its parameters are checked.
func TestExternalPolicy(t *testing.T) {
	c, err := Parse("x.yaml", []byte(`policy: {name: external, exec: "./policy --fast", deadline: 20ms}`))
	if err != nil || c.Policy.Name != "external" || c.Policy.Params["exec"] != "./policy --fast" {
		t.Errorf("got %+v, %v", c.Policy, err)
	}
	for text, want := range map[string]string{
		`policy: external`:                                    "x.yaml:1: policy: policy external: give either socket",
		`policy: {name: external, socket: s}`:                 "not an absolute path",
		`policy: {name: external, exec: a, turn: 1ms}`:        "it has no parameter",
		`devices: [{device: 0, policy: {name: external}}]`:    "there is no policy",
		`policy: {name: external, exec: a, fallback: nobody}`: "there is no policy",
	} {
		if _, err := Parse("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
}

// TestNeedRestart: a change of any field but policies, rules and limits is named, and
// docs/CONFIG.md lists the same fields.
func TestNeedRestart(t *testing.T) {
	live := []string{"Policy", "Devices", "Rules", "Limits"}
	var old, changed Config
	var change func(v reflect.Value, path string)
	change = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				change(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
			return
		case reflect.Bool:
			v.SetBool(true)
		case reflect.String:
			v.SetString("x")
		case reflect.Float64:
			v.SetFloat(0.1)
		case reflect.Int, reflect.Int64:
			v.SetInt(7)
		default:
			t.Fatalf("%s: a kind of field that this test does not know", path)
		}
		if got := old.NeedRestart(&changed); len(got) != 1 {
			t.Errorf("change of %s: got the fields %q, want one", path, got)
		}
		v.SetZero()
	}
	v := reflect.ValueOf(&changed).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; !slices.Contains(live, name) {
			change(v.Field(i), name)
		}
	}
	doc, err := os.ReadFile("../../docs/CONFIG.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range atStart {
		names = append(names, "`"+f.name+"`")
	}
	last := len(names) - 1
	want := "of " + strings.Join(names[:last], ", ") + " or " + names[last] + " needs a restart"
	if !strings.Contains(strings.ReplaceAll(string(doc), "\n", " "), want) {
		t.Errorf("docs/CONFIG.md does not say: a change %s", want)
	}
}
