package config

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

var rewrite = flag.Bool("rewrite", false, "write what is found to the golden files")

// TestMistakes holds the reader to the exact words of testdata/mistakes.txt.
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
		got := "it is right\n"
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
socket: /run/x.sock
tcp: true
token_file: /etc/giveway/token
rules:
  - {match: {user: alice, command: 'python* *serve*'}, class: online, priority: -3}
  - {match: {cgroup: '/kubepods*', pod: 'train-?'}, class: batch, weight: 4}
`

func TestEverything(t *testing.T) {
	c, err := Parse("x.yaml", []byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	online, batch, three := sched.Online, sched.Batch, int32(-3)
	want := Config{
		Policy: Policy{"giveway", map[string]string{"turn": "20ms"}},
		Devices: []DevicePolicy{
			{"GPU-1234", Policy{"rr", map[string]string{"quantum": "5ms"}}},
			{"1", Policy{Name: "native"}},
		},
		Sched:  sched.Config{Floor: 0.05, FloorTurn: 20 * time.Millisecond, StallLimit: 3 * time.Second},
		Socket: "/run/x.sock", TCP: "127.0.0.1:50000", TokenFile: "/etc/giveway/token",
		Rules: []Rule{
			{Class: &online, Priority: &three, line: 13},
			{Class: &batch, Weight: 4, line: 14},
		},
	}
	for i := range c.Rules {
		want.Rules[i].match = c.Rules[i].match // TestMatch looks at these
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	for i, name := range []string{"giveway", "native", "rr"} {
		id := []string{"GPU-0", "GPU-5678", "GPU-1234"}[i]
		if p, own := c.PolicyFor(id, i); p.Name != name || own != (i > 0) {
			t.Errorf("device %d: %v, %v", i, p, own)
		}
	}
	if c, err = Parse("x.yaml", []byte("eyes: false\nnvidia: true\namd: false\n")); err != nil || !c.Blind || c.NoNVIDIA || !c.NoAMD {
		t.Errorf("no eyes: %+v, %v", c, err)
	}
	if _, err = Parse("x.yaml", []byte("nvidia: off\n")); err == nil {
		t.Error("nvidia: off is taken")
	}
	if c, err = Parse("x.yaml", []byte("floor: 0\ntcp: false\n")); err != nil || c.Sched.Floor >= 0 || c.TCP != "" || c.Policy.Name != Default().Policy.Name {
		t.Errorf("no floor: %+v, %v", c, err)
	}
}

func TestMatch(t *testing.T) {
	alice := Program{
		User: "alice", UID: 1000, Command: []string{"/usr/bin/python3", "train.py", "--lr", "0.1"},
		Cgroup: "/kubepods/burstable/pod1", Container: "train", Pod: "train-7",
	}
	for match, want := range map[string]bool{
		"{}":                                      true,
		"{user: alice}":                           true,
		"{user: 'al*'}":                           true,
		"{user: 1000}":                            true,
		"{user: 100}":                             false,
		"{user: lice}":                            false,
		"{user: root}":                            false,
		"{command: python3}":                      true,
		"{command: python}":                       false,
		"{command: 'python3 *'}":                  true,
		"{command: 'python3 train.py'}":           false,
		"{command: '*train.py*'}":                 true,
		"{command: '/usr/bin/*'}":                 true,
		"{command: 'python? train.py --lr 0.1'}":  true,
		"{command: 'python? train_py --lr 0.1'}":  false,
		"{command_regexp: 'train\\.py'}":          true,
		"{command_regexp: '^train'}":              false,
		"{command: python3, command_regexp: x$}":  false,
		"{cgroup: '/kubepods/*'}":                 true,
		"{cgroup: /kubepods}":                     false,
		"{container: train, pod: 'train-?'}":      true,
		"{container: train, pod: 'serve-?'}":      false,
		"{user: alice, command: python3, pod: x}": false,
	} {
		c, err := Parse("x.yaml", []byte("rules: [{match: "+match+", class: batch, weight: 3}]"))
		if err != nil {
			t.Errorf("%s: %v", match, err)
			continue
		}
		rule, got := c.Match(alice)
		if got != want {
			t.Errorf("%s: %v, want %v", match, got, want)
		}
		if a := (sched.Attr{Priority: 5, Weight: 1}); got && rule.Apply(a) != (sched.Attr{Class: sched.Batch, Weight: 3, Priority: 5}) {
			t.Errorf("%s: %+v", match, rule.Apply(a))
		}
	}
	c, err := Parse("x.yaml", []byte("rules:\n- {match: {user: bob}, class: idle}\n- {match: {user: 'a*'}, class: online}\n- {match: {}, class: batch}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := c.Match(alice); !ok || r.Line() != 3 {
		t.Errorf("not the first that matches: %+v", r)
	}
	if r, ok := c.Match(Program{}); !ok || r.Line() != 4 {
		t.Errorf("a program without a command: %+v", r)
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil || !strings.HasSuffix(err.Error(), "none: no such file or directory") {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.HasSuffix(err.Error(), ": not a plain file") {
		t.Errorf("a folder: %v", err)
	}
}

// TestExampleInDocs: what docs/CONFIG.md and packaging show is right.
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
	news := make(chan string, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, path, func(c Config) { news <- c.Policy.Name }, func(err error) { news <- err.Error() })
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
	next("x.yaml:2: policy: there is no policy \"wfqq\"; did you mean wfq? There are: " + strings.Join(policy.Names(), ", "))
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
	cancel()
	<-done
	if len(news) > 0 {
		t.Errorf("more news: %q", <-news)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if c, err := Parse("x.yaml", data); err == nil {
			c.Match(Program{Command: []string{"/bin/x", string(data)}})
		}
	})
}
