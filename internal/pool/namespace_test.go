package pool

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/pool/mpstest"
)

// unshared returns a command in a mount and a pid namespace of its own, with its own /proc.
func unshared(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	before := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if out, err := exec.Command("unshare", append(before, "true")...).CombinedOutput(); err != nil {
		t.Skipf("unshare --mount --pid is not permitted or not installed here: %v: %s", err, out)
	}
	return exec.Command("unshare", append(before, args...)...)
}

// TestOtherPIDNamespace checks that a joiner in another pid namespace, to which the control
// daemon of the pool seems to be dead, has a pool of its own and does not harm that one.
func TestOtherPIDNamespace(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	control := b.control()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	second := b.run(unshared(t, self), joinEnv(1))
	if !strings.HasPrefix(second.says, "inside ") || second.says == first.says {
		t.Errorf("got %q, outside the namespace %q; %s", second.says, first.says, second.errs)
	}
	third := b.start(1)
	if third.says != first.says || b.control() != control {
		t.Errorf("got %q with control daemon %d, before %q with %d", third.says, b.control(), first.says, control)
	}
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != 2 {
		t.Errorf("got %+v, %v; want one pool with two clients", all, err)
	}
	if err := errors.Join(first.end(), third.end()); err != nil {
		t.Errorf("the pool was harmed: %v: %s%s", err, first.errs, third.errs)
	}
}

// TestOtherMachine checks that the pool of another machine in a shared folder of pools is not
// joined and not harmed: its control daemon would seem to be dead, and its pipes would be removed.
func TestOtherMachine(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	control := b.control()
	was := hostname
	hostname = func() (string, error) { return "another", nil }
	defer func() { hostname = was }()
	m, err := Join(Request{Env: os.Environ(), Keeper: keeperCommand()})
	if err != nil {
		t.Fatal(err)
	}
	if own := controlPID(m.Folder); own == 0 || own == control {
		t.Errorf("got control daemon %d, that of the other machine is %d", own, control)
	}
	if all, err := List(); err != nil || len(all) != 1 || all[0].Folder != filepath.Dir(m.Folder) {
		t.Errorf("got %+v, %v; want the pool of this machine", all, err)
	}
	m.Leave()
	b.wait("the end of the pool", b.ended)
	hostname = was
	if err := first.end(); err != nil {
		t.Errorf("the pool of the other machine was harmed: %v: %s", err, first.errs)
	}
}

// TestContainer checks that a program in other mount and pid namespaces, into which the pipe
// folder is mounted, is a client of the pool, and that the pool is kept for it.
func TestContainer(t *testing.T) {
	b := newTestbed(t)
	starter := b.start(1)
	control := b.control()
	const script = `mount --bind "$1" /mnt && CUDA_MPS_PIPE_DIRECTORY=/mnt exec "$2"`
	inside := b.run(unshared(t, "sh", "-c", script, "sh", filepath.Join(b.folder(), "pipe"), filepath.Join(b.bin, mpstest.Program)))
	if !strings.HasPrefix(inside.says, "inside /mnt ") {
		t.Fatalf("got %q: %s", inside.says, inside.errs)
	}
	if err := starter.end(); err != nil {
		t.Error(err)
	}
	b.wait("one client", func() bool {
		all, err := List()
		return err == nil && len(all) == 1 && len(all[0].Clients) == 1 && len(all[0].Members) == 0
	})
	time.Sleep(3 * Linger) // in which an unused pool would end
	if b.control() != control {
		t.Error("the pool was ended under a client in a container")
	}
	if err := inside.end(); err != nil {
		t.Errorf("%v: %s", err, inside.errs)
	}
	b.wait("the end of the pool", b.ended)
}
