package pool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKilledMemberLeavesNothing checks that the pool ends after a SIGKILL of the joiner,
// but not while a program that it left behind is a client.
func TestKilledMemberLeavesNothing(t *testing.T) {
	b := newTestbed(t)
	j := b.start(1)
	control := b.control()
	if err := j.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = j.cmd.Process.Release()
	time.Sleep(3 * Linger) // in which an unused pool would end
	if b.control() != control {
		t.Error("the pool was ended under a client")
	}
	j.stdin.Close() // the program ends
	b.wait("the end of the pool", b.ended)
}

// TestJoinWhilePoolEnds checks that a program which joins while the pool is being ended is
// in a pool nevertheless, and that the pool has a keeper.
func TestJoinWhilePoolEnds(t *testing.T) {
	b := newTestbed(t)
	t.Setenv("POOL_TEST_LINGER", "1ms")
	controls := map[int]bool{}
	rounds := 25
	if testing.Short() {
		rounds = 4 // each starts about ten processes
	}
	for range rounds {
		j := b.start(1)
		if !strings.HasPrefix(j.says, "inside ") {
			t.Fatalf("got %q: %s", j.says, j.errs)
		}
		if !b.kept() {
			t.Fatal("the pool of a program that runs has no keeper")
		}
		controls[b.control()] = true
		if err := j.end(); err != nil {
			t.Fatalf("%v: %s", err, j.errs)
		}
	}
	t.Logf("%d control daemons for %d programs", len(controls), rounds)
	b.wait("the end of the pool", b.ended)
}

// TestKeeperDies checks that the next member starts another keeper.
func TestKeeperDies(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	for _, pid := range keepersOf(t, b.folder()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	b.wait("the end of the keeper", func() bool { return !b.kept() })
	control := b.control()
	second := b.start(1)
	if !b.kept() || b.control() != control || control == 0 {
		t.Errorf("kept %v, control daemon %d, before %d", b.kept(), b.control(), control)
	}
	if err := errors.Join(first.end(), second.end()); err != nil {
		t.Error(err)
	}
	b.wait("the end of the pool", b.ended)
}

// TestKeeperDiesInFault checks that the report of a keeper that was killed is not shown, and that
// the next keeper reports the fault anew.
func TestKeeperDiesInFault(t *testing.T) {
	b := newTestbed(t)
	faults := func(n int) func() bool {
		return func() bool {
			all, err := Faults()
			return err == nil && len(all) == n
		}
	}
	j := b.start(1)
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if err := syscall.Kill(all[0].Clients[0], syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	b.wait("a report", faults(1))
	_ = syscall.Kill(keepersOf(t, b.folder())[0], syscall.SIGKILL)
	b.wait("the end of the report", faults(0))
	if !b.marked(filepath.Join(b.info().name(), faultFile)) {
		t.Error("the killed keeper has removed its report")
	}
	_ = b.start(1).end() // MPS refuses it; its keeper stays
	b.wait("another report", faults(1))
	if err := j.end(); err != nil {
		t.Errorf("%v: %s", err, j.errs)
	}
	b.wait("the end of the pool", b.ended)
}

// TestInheritedDescriptors checks that the processes of a pool do not keep open what 'giveway run'
// has inherited: under flock(1) they would hold its lock for as long as the pool lives.
func TestInheritedDescriptors(t *testing.T) {
	b := newTestbed(t)
	t.Setenv("POOL_TEST_LINGER", "1h")
	path := filepath.Join(b.dir, "of-flock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	locked, again := open(), open()
	defer again.Close()
	if !tryLock(locked) {
		t.Fatal("the file is locked already")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.ExtraFiles = []*os.File{locked, locked} // the keeper's lock takes the place of the first one
	j := b.run(cmd, joinEnv(1))
	locked.Close()
	if tryLock(again) {
		t.Error("the program in the pool has not inherited the file")
	}
	if err := j.end(); err != nil {
		t.Fatalf("%v: %s", err, j.errs)
	}
	if b.control() == 0 || !b.kept() {
		t.Fatal("the pool has ended")
	}
	if !tryLock(again) {
		t.Error("the pool holds the lock of a program that has ended")
	}
}

// TestKilledWhileStarting checks that the control daemon which a joiner was starting when it
// was killed is ended: the keeper is there before it.
func TestKilledWhileStarting(t *testing.T) {
	b := newTestbed(t)
	b.wrapControl(`if [ "$1" != -d ]; then exec "$real"; fi
: >"$dir/starting"
while [ -e "$dir/wait" ]; do sleep 0.02; done
"$real" -d && : >"$dir/started"`)
	b.mark("wait")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), joinEnv(1), "POOL_TEST_APPEAR=1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.wait("the start of the control daemon", func() bool { return b.marked("starting") })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	b.unmark("wait")
	b.wait("the control daemon", func() bool { return b.marked("started") })
	b.wait("the end of the pool", b.ended)
}

// TestStartedByAnother checks that a member uses the control daemon that another one, which was
// killed meanwhile, is starting: NVIDIA's program then says that there is one.
func TestStartedByAnother(t *testing.T) {
	b := newTestbed(t)
	b.wrapControl(`if [ "$1" != -d ]; then exec "$real"; fi
(sleep 0.1; exec "$real" -d) &
echo An instance of this daemon is already running
exit 1`)
	j := b.start(1)
	if !strings.HasPrefix(j.says, "inside ") || !b.kept() {
		t.Errorf("got %q, kept %v: %s", j.says, b.kept(), j.errs)
	}
	if err := j.end(); err != nil {
		t.Errorf("%v: %s", err, j.errs)
	}
	b.wait("the end of the pool", b.ended)
}

// TestKeeperTriesAgain checks that a keeper which cannot end the control daemon says so and
// tries again.
func TestKeeperTriesAgain(t *testing.T) {
	b := newTestbed(t)
	b.wrapControl(`if [ "$1" = -d ]; then exec "$real" -d; fi
read -r command
if [ "$command" = quit ] && [ -e "$dir/broken" ]; then : >"$dir/refused"; exit 1; fi
echo "$command" | "$real"`)
	b.mark("broken")
	j := b.start(1)
	if err := j.end(); err != nil {
		t.Fatalf("%v: %s", err, j.errs)
	}
	b.wait("an attempt to end the pool", func() bool { return b.marked("refused") })
	b.unmark("refused")
	b.wait("another attempt", func() bool { return b.marked("refused") })
	if !b.kept() {
		t.Error("the keeper has given up")
	}
	b.unmark("broken")
	b.wait("the end of the pool", b.ended)
	text, err := os.ReadFile(filepath.Join(b.folder(), "log", "keeper.log"))
	if err != nil || strings.Count(string(text), "trying again") != 1 {
		t.Errorf("got %v; log:\n%s", err, text)
	}
}

// TestFolderIsRemoved checks that the keeper ends if the folder does.
func TestFolderIsRemoved(t *testing.T) {
	b := newTestbed(t)
	j := b.start(1)
	control, keeper := b.control(), keepersOf(t, b.folder())[0]
	defer func() { _ = syscall.Kill(control, syscall.SIGKILL); _ = j.end() }()
	// MPS may make a file while the folder is being removed.
	b.wait("the folder to be removed", func() bool { return os.RemoveAll(b.folder()) == nil })
	b.wait("the end of the keeper", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", keeper))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// keepersOf returns the pids of the keepers of a folder.
func keepersOf(t *testing.T, folder string) (pids []int) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		text, _ := os.ReadFile(path)
		if strings.HasSuffix(string(text), "\x00keep\x00"+folder+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	if len(pids) != 1 {
		t.Fatalf("got keepers %v, want one", pids)
	}
	return pids
}
