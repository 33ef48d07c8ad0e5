package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/policy"
)

const small = `
name: small
doc: a small one
warmup: 20ms
length: 100ms
devices: [{model: nvidia-h200}]
clients:
  - {name: serve, class: online, arrival: {poisson: 200/s}, kernels: {count: 10, time: 50us}}
  - {name: fill, class: batch, arrival: {closed: 0, depth: 4}, kernels: {time: {normal: 200us, jitter: 10%}}}
`

// livelock breaks an invariant of the simulator: queues arrive with slices that are too
// short for any progress.
const livelock = `
name: livelock
warmup: 0
length: 500ms
devices: [{model: nvidia-h200}]
clients:
  - {name: serve, class: online, kernels: {time: 1ms}, arrival: {periodic: 10ms}}
  - {name: fill, count: 3, slice: 1us, class: batch, arrival: {closed: 0, depth: 4}, kernels: {time: 200us}}
`

// call runs the command line and returns its output and exit code.
func call(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = Main(args, &out, &errs)
	return out.String(), errs.String(), code
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHelp checks that help refuses an unknown command and reports that it cannot be written.
func TestHelp(t *testing.T) {
	for _, args := range []string{"help nosuch", "help trace nosuch"} {
		if out, errs, code := call(strings.Fields(args)...); code != exitUsage || out != "" || !strings.Contains(errs, `there is no command "nosuch"`) {
			t.Errorf("%s: got exit %d, %s%s", args, code, out, errs)
		}
	}
	if out, _, code := call("help", "trace", "dump"); code != exitOK || !strings.Contains(out, "giveway trace dump [flags]") {
		t.Errorf("help trace dump: got exit %d, %s", code, out)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range []string{"--help", "help", "", "ps --help"} {
		var errs bytes.Buffer
		if code := Main(strings.Fields(args), full, &errs); code != exitFailure || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%q: got exit %d, %s; want that there is no space left", args, code, &errs)
		}
	}
}

// TestFullDisk checks that the error of a report that cannot be written is printed once.
func TestFullDisk(t *testing.T) {
	for _, what := range []string{"report", "trace"} {
		_, errs, code := call("sim", file(t, small), "--"+what, "/dev/full")
		if want := "giveway: write the " + what + ": write /dev/full: no space left on device\n"; code != exitFailure || errs != want {
			t.Errorf("got exit %d, %q; want %q", code, errs, want)
		}
	}
}

func TestSim(t *testing.T) {
	path := file(t, small)
	for _, c := range []struct {
		args []string
		runs []string
	}{
		{nil, []string{"native", "slo"}},
		{[]string{"--policy", "rr"}, []string{"rr"}},
		{[]string{"--policy", "giveway:turn=20ms,slice=200us"}, []string{"giveway:slice=200us,turn=20ms"}},
		{[]string{"--compare", "native,giveway:turn=20ms,slice=200us,wfq"}, []string{"native", "giveway:slice=200us,turn=20ms", "wfq"}},
		{[]string{"--compare", "all"}, strings.Fields("slo giveway native fifo rr hpf hpf-global nice wfq mlfq")}, // the others need attributes
		{[]string{"--policy", "window"}, []string{"window"}},
	} {
		out, errs, code := call(append([]string{"sim", path, "--json"}, c.args...)...)
		if code != exitOK || errs != "" {
			t.Errorf("%q: got exit %d, %s", c.args, code, errs)
			continue
		}
		var v simJSON
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatal(err)
		}
		var runs []string
		for _, r := range v.Runs {
			runs = append(runs, r.Policy)
			if len(r.Clients) != 2 || r.Clients[0].Latency == nil || r.Clients[1].Rate <= 0 && r.Policy == "giveway" {
				t.Errorf("%s: got %+v", r.Policy, r.Clients)
			}
		}
		if strings.Join(runs, " ") != strings.Join(c.runs, " ") {
			t.Errorf("%q: got ran %q, want %q", c.args, runs, c.runs)
		}
		text, errs, code := call(append([]string{"sim", path}, c.args...)...)
		if code != exitOK || errs != "" || !strings.Contains(text, "\nWith ") {
			t.Errorf("%q: got exit %d, %s%s", c.args, code, text, errs)
		}
	}
}

func TestSimSeed(t *testing.T) {
	path := file(t, small)
	first, _, _ := call("sim", path)
	if again, _, _ := call("sim", path, "--seed", "1"); again != first {
		t.Errorf("the same seed gave\n%s\nand\n%s", first, again)
	}
	if other, _, _ := call("sim", path, "--seed", "2"); other == first || !strings.Contains(other, "seed 2") {
		t.Errorf("another seed gave\n%s", other)
	}
}

func TestSimFiles(t *testing.T) {
	path := file(t, small)
	report, trace := filepath.Join(t.TempDir(), "out.html"), filepath.Join(t.TempDir(), "out.pftrace")
	out, errs, code := call("sim", path, "--report", report, "--trace", trace)
	if code != exitOK {
		t.Fatalf("exit %d: got %s", code, errs)
	}
	if !strings.Contains(out, "The report is in "+report) || !strings.Contains(out, "The trace is in "+trace) {
		t.Errorf("the output does not name the files:\n%s", out)
	}
	page, err := os.ReadFile(report)
	if err != nil || !bytes.Contains(page, []byte("<html")) {
		t.Errorf("report: got %v, %d bytes", err, len(page))
	}
	data, err := os.ReadFile(trace)
	if err != nil || len(data) < 10_000 || data[0] != 0x0a { // field 1, the first packet
		t.Errorf("trace: got %v, %d bytes", err, len(data))
	}
}

// TestSimChecksOutputFilesFirst checks that files that cannot be written fail before
// the simulation, and that an error leaves existing files unchanged.
func TestSimChecksOutputFilesFirst(t *testing.T) {
	path, dir := file(t, small), t.TempDir()
	for _, what := range []string{"report", "trace"} {
		for _, where := range []string{dir, filepath.Join(dir, "none", "out"), filepath.Join(path, "out")} {
			out, errs, code := call("sim", path, "--"+what, where)
			if code != exitFailure || out != "" || !strings.HasPrefix(errs, "giveway: write the "+what+": ") {
				t.Errorf("%s in %s: got exit %d: %s%s", what, where, code, out, errs)
			}
		}
	}
	old := filepath.Join(dir, "old.html")
	if err := os.WriteFile(old, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	call("sim", path, "--report", old, "--trace", dir)
	call("sim", path, "--report", filepath.Join(dir, "new.html"), "--trace", dir)
	if text, err := os.ReadFile(old); err != nil || string(text) != "precious" {
		t.Errorf("the old report is now %q, %v", text, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("files were left behind: got %v, %v", all, err)
	}
	link := filepath.Join(dir, "link.html") // to a place that is not there yet
	if err := os.Symlink(filepath.Join(dir, "target.html"), link); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{link, link, os.DevNull} { // the second time it is there
		if _, errs, code := call("sim", path, "--report", where); code != exitOK {
			t.Errorf("report to %s: got exit %d: %s", where, code, errs)
		}
	}
}

func TestSimReportsBrokenRules(t *testing.T) {
	out, errs, code := call("sim", file(t, livelock))
	if code != exitFailure || !strings.Contains(errs, "rules of the simulator were broken, with seed 1:\n  slo: at ") {
		t.Errorf("exit %d: got %s", code, errs)
	}
	if !strings.Contains(out, "work") {
		t.Errorf("no table:\n%s", out)
	}
}

// TestErrors checks that every error is printed once, on stderr, with nothing on stdout.
func TestErrors(t *testing.T) {
	good, bad := file(t, small), file(t, "name: x\nlenght: 5s\n")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"simm", exitUsage, `giveway: there is no command "simm"; did you mean sim?` + "\nSee \"giveway --help\".\n"},
		{"policy foo", exitUsage, `giveway: there is no policy "foo"; there are: ` + strings.Join(policy.Names(), ", ") + ", external\n"},
		{"completion foo", exitUsage, `giveway: there is no command "foo"` + "\nSee \"giveway completion --help\".\n"},
		{"log --pid abc", exitUsage, `giveway: "abc" is not a pid; 'giveway ps' lists them` + "\nSee \"giveway log --help\".\n"},
		{"log --pid -1", exitUsage, `giveway: "-1" is not a pid; 'giveway ps' lists them` + "\nSee \"giveway log --help\".\n"},
		{"sim GOOD --compare=", exitUsage, "giveway: --compare is empty: give it a value, or leave the flag out\nSee \"giveway sim --help\".\n"},
		{"sim GOOD --policy=", exitUsage, "giveway: --policy is empty: give it a value, or leave the flag out\nSee \"giveway sim --help\".\n"},
		{"sim GOOD --report= --json", exitUsage, `{"error":"--report is empty: `},
		{"policy rr --device=", exitUsage, "giveway: --device is empty: "},
		{"policy external --exec true --device=", exitUsage, "giveway: --device is empty: "},
		{"daemon --socket=", exitUsage, "giveway: --socket is empty: "},
		{"daemon --config=", exitUsage, "giveway: --config is empty: "},
		{"daemon --sim=", exitUsage, "giveway: --sim is empty: "},
		{"trace dump --output=", exitUsage, "giveway: --output is empty: "},
		{"bench amd --html=", exitUsage, "giveway: --html is empty: "},
		{"dashboard --listen 0.0.0.0:9000", exitUsage, "giveway: --listen 0.0.0.0:9000: want a loopback address with a port, such as 127.0.0.1:8047"},
		{"replay x", exitUsage, `giveway: there is no command "replay"; did you mean trace replay?`},
		{"set 5 --pool", exitUsage, "giveway: unknown flag: --pool: pool can be given only by: rule, run\n"},
		{"fly", exitUsage, `giveway: there is no command "fly"` + "\nSee \"giveway --help\".\n"},
		{"policy lits", exitUsage, `giveway: there is no command "lits"; did you mean list?` + "\nSee \"giveway policy --help\".\n"},
		{"foo", exitUsage, `giveway: there is no command "foo"` + "\nSee \"giveway --help\".\n"},
		{"ps --frob", exitUsage, "giveway: unknown flag: --frob\nSee \"giveway ps --help\".\n"},
		{"bench --cases micro", exitUsage, "giveway: unknown flag: --cases; flags of giveway-bench follow --, for example: giveway bench -- --cases micro\n"},
		{"policy list all", exitUsage, `giveway: policy list takes no arguments; got "all"`},
		{"sim", exitUsage, "giveway: sim takes one scenario file, such as scenarios/demo.yaml; got 0\nSee \"giveway sim --help\".\n"},
		{"sim a b", exitUsage, "giveway: sim takes one scenario file, such as scenarios/demo.yaml; got 2\n"},
		{"sim x --polcy rr", exitUsage, "giveway: unknown flag: --polcy; did you mean --policy?\nSee \"giveway sim --help\".\n"},
		{"sim x --seed no", exitUsage, "giveway: seed no is not a whole number from 0, of at most 64 bits\nSee \"giveway sim --help\".\n"},
		{"sim GOOD --policy rr --compare rr", exitUsage, "giveway: --policy and --compare exclude each other\nSee \"giveway sim --help\".\n"},
		{"sim GOOD --policy givewya", exitUsage, "giveway: there is no policy \"givewya\"; did you mean giveway? There are: "},
		{"sim GOOD --compare rr,rr", exitUsage, "giveway: policy rr is listed twice\nSee \"giveway sim --help\".\n"},
		{"sim GOOD --policy rr:quantum=5", exitUsage, "giveway: policy rr: parameter quantum: \"5\" is not a duration from 100"},
		{"sim none.yaml", exitFailure, "giveway: read none.yaml: no such file or directory\n"},
		{"sim BAD", exitFailure, "giveway: 3 mistakes:\n  BAD:1: devices is missing; for example "},
	} {
		files := strings.NewReplacer("GOOD", good, "BAD", bad)
		out, errs, code := call(strings.Fields(files.Replace(c.args))...)
		if code != c.code || out != "" || !strings.HasPrefix(errs, files.Replace(c.want)) {
			t.Errorf("%s: got exit %d\n%s%swant %d\n%s", c.args, code, out, errs, c.code, c.want)
		}
	}
}

// TestSimBrief: --brief prints one line, also with a report, which is written.
func TestSimBrief(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report.html")
	out, errs, code := call("sim", file(t, small), "--compare", "native,giveway", "--brief", "--report", report)
	if code != exitOK || errs != "" || strings.Count(out, "\n") != 1 || !strings.Contains(out, ": With giveway ") {
		t.Errorf("got exit %d, %s%s", code, out, errs)
	}
	if _, err := os.Stat(report); err != nil {
		t.Error(err)
	}
}

func TestOtherCommands(t *testing.T) {
	for args, want := range map[string]string{
		"":                                  "Available Commands:",
		"--help":                            "Available Commands:",
		"sim --help":                        "giveway sim scenarios/demo.yaml --compare native,rr,giveway",
		"policy --help":                     "Available Commands:",
		"policy list":                       "giveway        online work first; batch queues take turns on what is left, by weight\n                 uses class, weight, priority, expect\n                 turn=50ms",
		"version":                           "giveway ",
		"completion bash":                   "bash completion",
		"__complete sim --policy g":         "giveway\tonline work first",
		"__complete sim x":                  "yaml\nyml\n:8",
		"__complete sim --compare native,g": "native,giveway\n",
	} {
		out, _, code := call(strings.Fields(args)...)
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: got exit %d, no %q in\n%s", args, code, want, out)
		}
	}
	var infos []policy.Info
	out, _, _ := call("policy", "list", "--json")
	if err := json.Unmarshal([]byte(out), &infos); err != nil || len(infos) != len(policy.Names())+1 || infos[len(infos)-1].Name != policy.ExternalName {
		t.Errorf("policy list --json: got %v, %d policies", err, len(infos))
	}
	var v versionInfo
	out, _, _ = call("version", "--json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Version == "" {
		t.Errorf("version --json: got %v, %+v", err, v)
	}
}
