// Package packaging holds the files of make install, and a test that installs them.
package packaging

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/config"
)

// tree is a temporary DESTDIR, and a temporary folder in which make builds.
type tree struct {
	*testing.T
	dest, bin, prefix string
}

// make runs make in the source tree, without the variables of an outer make.
func (tr *tree) make(target string) string {
	tr.Helper()
	cmd := exec.Command("make", "-s", "-C", "..", target, "BIN="+tr.bin, "DESTDIR="+tr.dest, "PREFIX="+tr.prefix)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "MAKE") || slices.Contains([]string{"MFLAGS", "PREFIX", "UNITDIR", "DESTDIR", "BIN"}, name)
	})
	out, err := cmd.CombinedOutput()
	if err != nil {
		tr.Fatalf("make %s: %v\n%s", target, err, out)
	}
	return string(out)
}

// files lists the installed files as paths without DESTDIR.
func (tr *tree) files() []string {
	tr.Helper()
	var all []string
	err := filepath.WalkDir(tr.dest, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(name, tr.dest))
		}
		return err
	})
	if err != nil {
		tr.Fatal(err)
	}
	return all
}

func (tr *tree) read(name string) string {
	tr.Helper()
	text, err := os.ReadFile(tr.dest + name)
	if err != nil {
		tr.Fatal(err)
	}
	return string(text)
}

// run runs the installed program.
func (tr *tree) run(args ...string) string {
	tr.Helper()
	out, err := exec.Command(tr.dest+tr.prefix+"/bin/giveway", args...).CombinedOutput()
	if err != nil {
		tr.Fatalf("giveway %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestInstallAndUninstall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs")
	}
	tr := &tree{T: t, dest: filepath.Join(t.TempDir(), "dest"), bin: filepath.Join(t.TempDir(), "bin"), prefix: "/opt/giveway"}
	tr.make("build")
	tr.make("install")
	for _, want := range []string{
		"/bin/giveway", "/bin/giveway-bench", "/lib/libgiveway.so", "/lib/pkgconfig/giveway.pc", "/lib/systemd/system/giveway.service",
		"/include/giveway/giveway.h", "/include/giveway/giveway_guard.h", "/include/giveway/queue.h",
		"/share/man/man1/giveway.1", "/share/man/man1/giveway-run.1", "/share/man/man1/giveway-policy.1",
		"/share/bash-completion/completions/giveway", "/share/zsh/site-functions/_giveway", "/share/fish/vendor_completions.d/giveway.fish",
		"/share/doc/giveway/docs/CONFIG.md", "/share/doc/giveway/docs/img/top.png", "/share/doc/giveway/scenarios/demo.yaml",
	} {
		if info, err := os.Stat(tr.dest + tr.prefix + want); err != nil || info.Size() == 0 {
			t.Errorf("%s%s: %v, or empty", tr.prefix, want, err)
		}
	}
	for _, name := range tr.files() {
		if name != config.Path && !strings.HasPrefix(name, tr.prefix+"/") {
			t.Errorf("installed %s, want only files below %s and %s", name, tr.prefix, config.Path)
		}
		if text := tr.read(name); strings.Contains(text, tr.dest) {
			t.Errorf("%s contains DESTDIR", name)
		} else if placeholder := regexp.MustCompile(`@[A-Z]+@`).FindString(text); placeholder != "" && !strings.Contains(name, "/bin/") {
			t.Errorf("%s contains %s", name, placeholder)
		}
	}

	version := strings.Fields(tr.run("version"))[1]
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+`).MatchString(version) {
		t.Errorf("giveway version: got %q, want one that starts with numbers", version)
	}
	for name, want := range map[string]string{
		"/lib/systemd/system/giveway.service":           "ExecStart=" + tr.prefix + "/bin/giveway daemon\n",
		"/lib/pkgconfig/giveway.pc":                     "Version: " + version + "\n",
		"/share/man/man1/giveway-run.1":                 "giveway " + version,
		"/share/bash-completion/completions/giveway":    "bash completion",
		"/share/zsh/site-functions/_giveway":            "#compdef giveway",
		"/share/fish/vendor_completions.d/giveway.fish": "complete -c giveway",
	} {
		if !strings.Contains(tr.read(tr.prefix+name), want) {
			t.Errorf("%s does not contain %q", name, want)
		}
	}
	_, commands, _ := strings.Cut(tr.run("--help"), "Available Commands:\n")
	commands, _, _ = strings.Cut(commands, "\n\n")
	for line := range strings.Lines(commands) {
		if name := strings.Fields(line)[0]; name != "help" {
			tr.read(tr.prefix + "/share/man/man1/giveway-" + name + ".1")
		}
	}
	if c, err := config.Load(tr.dest + config.Path); err != nil {
		t.Errorf("installed configuration: %v", err)
	} else if standard, _ := config.Parse("empty.yaml", nil); c.Policy.Name != standard.Policy.Name {
		t.Errorf("installed policy: got %q, want the default %q", c.Policy.Name, standard.Policy.Name)
	}

	before := tr.read(config.Path)
	if err := os.WriteFile(tr.dest+config.Path, []byte("policy: native\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tr.make("install")
	tr.make("uninstall")
	if left := tr.files(); !slices.Equal(left, []string{config.Path}) || tr.read(config.Path) != "policy: native\n" {
		t.Errorf("after uninstall with a changed configuration: %q is left, want the configuration, unchanged", left)
	}
	if err := os.WriteFile(tr.dest+config.Path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	tr.make("uninstall")
	if left := tr.files(); len(left) != 0 {
		t.Errorf("after uninstall: %q is left, want nothing", left)
	}
}

// TestServiceIsConfined: systemd rates the exposure of the service below 3 ("OK").
func TestServiceIsConfined(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze")
	}
	text, err := os.ReadFile("giveway.service.in")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "giveway.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "@BINDIR@", "/usr/bin")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=29", unit).CombinedOutput()
	if strings.Contains(string(out), "unrecognized option") {
		t.Skip("needs systemd-analyze 250 or later, which rates a file")
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil {
		t.Errorf("%v, want an exposure below 3.0: %s", err, lines[len(lines)-1])
	}
	t.Log(lines[len(lines)-1])
}

// TestServiceIsAlwaysRestarted: a daemon that ends at once, however often, is started again. systemd
// gives up when there were more starts in an interval than its burst.
func TestServiceIsAlwaysRestarted(t *testing.T) {
	unit, err := os.ReadFile("giveway.service.in")
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name, byDefault string) float64 {
		if m := regexp.MustCompile(`(?m)^` + name + `=(.+)$`).FindSubmatch(unit); m != nil {
			byDefault = string(m[1])
		}
		n, err := strconv.ParseFloat(byDefault, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	interval, burst, pause := setting("StartLimitIntervalSec", "10"), setting("StartLimitBurst", "5"), setting("RestartSec", "0.1")
	if !strings.Contains(string(unit), "\nRestart=always\n") || interval >= burst*pause {
		t.Errorf("a daemon that ends at once is started %v times in %v s, %v s apart, and then no more", burst, interval, pause)
	}
	// Without these lines nothing undoes what a killed daemon left: its guardian is killed with it, or
	// the journal is gone, or a daemon that hangs stays.
	for _, line := range []string{
		"KillMode=process", "OOMScoreAdjust=-1000", "RuntimeDirectoryPreserve=restart",
		"SystemCallFilter=setpriority", // front ends take the daemon's priority on the CPU from themselves
		"ExecStopPost=-@BINDIR@/giveway restore --left", "Type=notify", "WatchdogSec=10",
	} {
		if !strings.Contains(string(unit), "\n"+line+"\n") {
			t.Errorf("the unit has no line %q", line)
		}
	}
}

// TestCapabilitiesAreExplained: docs/SECURITY.md says of every capability that the service
// has what it is for.
func TestCapabilitiesAreExplained(t *testing.T) {
	unit, err := os.ReadFile("giveway.service.in")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.+)$`).FindStringSubmatch(string(unit))
	if set == nil {
		t.Fatal("the service has every capability")
	}
	for _, name := range strings.Fields(set[1]) {
		if !strings.Contains(string(doc), "| `"+name+"` |") {
			t.Errorf("docs/SECURITY.md has no row for %s", name)
		}
	}
}

// TestVersionWithoutGit runs version.sh in a tree without git, as a source archive is.
func TestVersionWithoutGit(t *testing.T) {
	dir := t.TempDir()
	release, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("version.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "packaging"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"VERSION": release, "packaging/version.sh": script} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("bash", filepath.Join(dir, "packaging", "version.sh")).CombinedOutput()
	if err != nil || string(out) != string(release) {
		t.Errorf("version.sh without git: got %q, %v; want %q", out, err, release)
	}
}
