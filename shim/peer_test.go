package shim_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// overflowUser is the user that the kernel shows for users which a namespace does not have.
const overflowUser = 65534

// buildHarm compiles the shim, the fake driver and test/harm.c into a folder that other users
// can read.
func buildHarm(t *testing.T) builder {
	t.Helper()
	if testing.Short() {
		t.Skip("tests of C code are skipped with -short")
	}
	b := newBuilder(t)
	for _, dir := range []string{b.dir, filepath.Dir(b.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.makeLibrary()
	b.compileFakeCUDA()
	b.compile("harm", "test/harm.c")
	return b
}

// madeLibrary is the library as the Makefile links it, which is made once for all tests.
var madeLibrary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "giveway")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "libgiveway.so")
	if out, err := exec.Command("make", "-C", "..", "CC=gcc", "SHIM="+path, path).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// makeLibrary writes libgiveway.so, or skips the test if there is no make.
func (b builder) makeLibrary() {
	b.t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		b.t.Skip("no make, which links the library")
	}
	library, err := madeLibrary()
	if err == nil {
		err = os.WriteFile(b.path("libgiveway.so"), library, 0o644) // other users load it
	}
	if err != nil {
		b.t.Fatalf("make the library: %v", err)
	}
}

// compileShim compiles the shim with other options than the Makefile's.
func (b builder) compileShim(name string, options ...string) {
	b.t.Helper()
	sources, err := filepath.Glob("*.c")
	if err != nil {
		b.t.Fatal(err)
	}
	b.compile(name, slices.Concat(sources, options, []string{
		"-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-shared",
		"-Wl,-Bsymbolic,--version-script=giveway.map,-z,defs,-z,nodelete,-z,relro,-z,now",
	})...)
}

// TestPeerIsChecked: a process takes a page from root and from its own user, and from no other
// user. A daemon of another user could hold it for ever.
func TestPeerIsChecked(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to listen and to run as other users")
	}
	b := buildHarm(t)
	for _, c := range []struct {
		name            string
		daemon, process int
		trusted         bool
	}{
		{"root", 0, 0, true},
		{"a daemon of root", 0, overflowUser, true},
		{"its own user", 1000, 1000, true},
		{"another user and root", 1000, 0, false},
		{"another user", 1000, 1001, false},
		{"the overflow user and root", overflowUser, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := filepath.Join(b.dir, strings.ReplaceAll(c.name, " ", "-"))
			d := pagetest.On(t, pagetest.Listen(t, socket, c.daemon, 16), func(p *shimpage.Page) {
				if !c.trusted {
					p.Hold(lease) // and d renews the lease for ever
				}
			})
			p, stderr := startAs(t, c.process, socket, b.dir, "harm", "plain")
			if c.trusted {
				page := d.Page()
				line := p.expectOK()
				expectAllGated(t, page.Counters(), line)
				return
			}
			p.expectOK()
			if n := d.Waiting(); n != 0 {
				t.Errorf("the process took %d pages of another user", n)
			}
			const want = "giveway: the daemon's socket belongs to another user"
			if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, want) {
				t.Errorf("got %q on stderr, want one line that starts with %q", got, want)
			}
		})
	}
}

// TestPeerInUserNamespace: in a user namespace root may look like any other user. A process
// there takes a page from the machine's socket, and not from another one.
func TestPeerInUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a folder at /run")
	}
	b := buildHarm(t)
	if err := os.Mkdir(b.path("giveway"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := pagetest.On(t, pagetest.Listen(t, b.path("giveway/giveway.sock"), 0, 16), nil)
	// The process runs as user 1000 in a namespace that has no other user.
	script := "#!/bin/sh\nmount --bind " + b.dir + " /run && exec setpriv --reuid=1000 --regid=1000 --clear-groups" +
		" unshare --user --map-current-user " + b.path("harm") + " plain\n"
	if err := os.WriteFile(b.path("inside"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		socket string
		pages  int
	}{{d.Socket(), 0}, {"/run/giveway/giveway.sock", 1}} {
		p := prepare(t, c.socket, b.dir, "inside")
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // and what is mounted stays inside
		p.run()
		p.expectOK()
		if got := d.Waiting(); got != c.pages {
			t.Errorf("%s: the process has taken %d pages, want %d", c.socket, got, c.pages)
		}
	}
}

// startAs starts a program with the shim as another user and returns what it writes to stderr,
// to be read after the program has ended.
func startAs(t *testing.T, uid int, socket, dir string, args ...string) (*process, *bytes.Buffer) {
	t.Helper()
	var stderr bytes.Buffer
	p := prepare(t, socket, dir, args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	p.cmd.Stderr = &stderr
	p.run()
	return p, &stderr
}

// TestFullBacklog: a socket that accepts nothing and has no room for another connection does
// not delay a program.
func TestFullBacklog(t *testing.T) {
	b := buildHarm(t)
	socket := b.path("s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), 1) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	for full := false; !full; {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		full = errors.Is(syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}), syscall.EAGAIN)
	}
	began := time.Now()
	start(t, socket, b.dir, "harm", "plain").expectOK()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the program took %v, want at most 10s", took)
	}
}
