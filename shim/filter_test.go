package shim_test

import (
	"bytes"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The calls of the shim that a program may forbid: the first group is made when a page is
// asked for, the second also later.
var (
	connectCalls = []string{"socket", "connect", "sendto", "ppoll", "recvmsg", "lseek", "geteuid"}
	laterCalls   = []string{"recvfrom", "getsockopt", "fcntl", "fstat", "membarrier", "getpid"}
)

// filterCase is a program that installs a filter, and what becomes of it.
type filterCase struct {
	when, how, action, call string
	pages                   int
}

func filterCases() (all []filterCase) {
	for _, call := range connectCalls {
		all = append(all, filterCase{"start", "prctl", "process", call, 0}, filterCase{"start", "raw", "process", call, 0})
	}
	for _, call := range laterCalls {
		all = append(all, filterCase{"later", "libc", "process", call, 1}, filterCase{"later", "raw", "process", call, 1})
	}
	for _, action := range []string{"thread", "trap", "errno"} {
		all = append(all, filterCase{"start", "libc", action, "socket", 0}, filterCase{"start", "raw", action, "socket", 0},
			filterCase{"later", "raw", action, "recvfrom", 1})
	}
	return append(all,
		filterCase{"start", "prctl", "process", "others", 0}, filterCase{"later", "libc", "process", "others", 1},
		filterCase{"start", "prctl", "process", "openat", 0},
		filterCase{"thread", "raw", "process", "recvfrom", 1}, filterCase{"thread", "prctl", "thread", "getsockopt", 1},
		filterCase{"fork", "raw", "process", "socket", 1}, filterCase{"fork", "prctl", "process", "connect", 1},
		filterCase{"exec", "prctl", "process", "socket", 0}, filterCase{"exec", "raw", "process", "membarrier", 0},
		filterCase{"exec", "raw", "process", "getpid", 0},
	)
}

// TestFilters: a program that installs a seccomp filter, at any time and in any way, is not
// killed for a call of the shim.
func TestFilters(t *testing.T) {
	b := buildHarm(t)
	b.compile("filter", "test/filter.c")
	for _, c := range filterCases() {
		args := []string{"filter", c.when, c.how, c.action, c.call}
		t.Run(strings.Join(args[1:], " "), func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, noSetup)
			start(t, d.Socket(), b.dir, args...).expectOK()
			if got := d.Waiting(); got != c.pages {
				t.Errorf("the program has taken %d pages, want %d", got, c.pages)
			}
		})
	}
}

// TestInheritedFilters: a process that was started under a filter takes a page if the filter is
// known to permit it, and otherwise says why it does not.
func TestInheritedFilters(t *testing.T) {
	b := buildHarm(t)
	b.compile("filter", "test/filter.c")
	harmless := []string{"filter", "exec", "raw", "errno", "nothing"}
	for name, c := range map[string]struct {
		args  []string
		env   string
		inNew bool // in a pid namespace of its own, as the first process
		pages int
	}{
		"unknown":                        {args: harmless},
		"tried by giveway run":           {args: harmless, env: "GIVEWAY_FILTERS=1", pages: 1},
		"not the one that was tried":     {args: harmless, env: "GIVEWAY_FILTERS=2"},
		"no number":                      {args: harmless, env: "GIVEWAY_FILTERS="},
		"of a container":                 {args: harmless, inNew: true, pages: 1},
		"installed by the first process": {args: []string{"filter", "start", "raw", "process", "socket"}, inNew: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, noSetup)
			p := prepare(t, d.Socket(), b.dir, c.args...)
			if c.env != "" {
				p.cmd.Env = append(p.cmd.Env, c.env)
			}
			if c.inNew {
				inNewNamespace(t, p)
			}
			var stderr bytes.Buffer
			p.cmd.Stderr = &stderr
			p.run()
			p.expectOK()
			if got := d.Waiting(); got != c.pages {
				t.Errorf("the program has taken %d pages, want %d", got, c.pages)
			}
			const note = "giveway: the program was started under a seccomp filter"
			inherited := c.args[1] == "exec"
			if got := strings.Contains(stderr.String(), note); got != (inherited && c.pages == 0) {
				t.Errorf("stderr is %q", stderr.String())
			}
		})
	}
}

// TestFiltersWithoutProc: where /proc does not show the filters of a process, there may be some,
// so the process is not killed for a call of the shim.
func TestFiltersWithoutProc(t *testing.T) {
	b := buildHarm(t)
	b.compile("filter", "test/filter.c")
	for _, call := range []string{"membarrier", "socket"} {
		t.Run(call, func(t *testing.T) {
			d := newDaemon(t, noSetup)
			p := prepare(t, d.Socket(), b.dir, "filter", "exec", "raw", "process", call)
			withMount(t, p, "mount -t tmpfs none /proc", syscall.CLONE_NEWNS)
			p.run()
			p.expectOK()
			if got := d.Waiting(); got != 0 {
				t.Errorf("the program has taken %d pages, want none", got)
			}
		})
	}
}

// inNewNamespace makes a program the first process of a pid namespace with its own /proc.
func inNewNamespace(t *testing.T, p *process) {
	t.Helper()
	withMount(t, p, "mount -t proc proc /proc", syscall.CLONE_NEWPID|syscall.CLONE_NEWNS)
}

// withMount runs a program in new namespaces, after a mount command.
func withMount(t *testing.T, p *process, mount string, namespaces uintptr) {
	t.Helper()
	script := "mount --make-rprivate / && " + mount
	attr := &syscall.SysProcAttr{Cloneflags: namespaces}
	probe := exec.Command("sh", "-c", script)
	probe.SysProcAttr = attr
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("no namespaces: %v: %s", err, out)
	}
	p.cmd.Args = append([]string{"sh", "-c", script + ` && exec "$@"`, "sh", p.cmd.Path}, p.cmd.Args[1:]...)
	p.cmd.Path = "/bin/sh"
	p.cmd.SysProcAttr = attr
}
