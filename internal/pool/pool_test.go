package pool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestPoolLivesWithItsMembers checks that joiners at the same time get one control daemon,
// that all programs are its clients, and that the pool ends after the last one.
func TestPoolLivesWithItsMembers(t *testing.T) {
	b := newTestbed(t)
	const n = 6
	var jobs [n]*job
	var started sync.WaitGroup
	for i := range jobs {
		started.Go(func() { jobs[i] = b.start(1) })
	}
	started.Wait()
	control := b.control()
	for _, j := range jobs {
		if want := fmt.Sprintf("inside %s/pipe  \n", b.folder()); j.says != want {
			t.Errorf("got %q, want %q; %s", j.says, want, j.errs)
		}
	}
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != n || len(all[0].Members) != n || all[0].Control != control || len(all[0].Servers) != 1 {
		t.Errorf("got %+v, %v", all, err)
	}
	if ended, err := EndUnused(); ended != 0 || err != nil {
		t.Errorf("a pool with members: got %d ended, %v", ended, err)
	}
	if mode := mustStat(t, b.folder()).Mode().Perm(); mode != 0o700 {
		t.Errorf("folder: got mode %v", mode)
	}
	for _, j := range jobs {
		if err := j.end(); err != nil {
			t.Errorf("%v: %s", err, j.errs)
		}
	}
	b.wait("the end of the pool", b.ended)
}

func mustStat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestControlDaemonThatCannotBeSeen checks that a pool whose control daemon's file cannot be read
// does not count as one without a control daemon: the files of the daemon, which runs, are left
// alone, and the pool is as before when the file can be read again.
func TestControlDaemonThatCannotBeSeen(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	control, pipe := b.control(), filepath.Join(b.folder(), "pipe")
	file := filepath.Join(pipe, controlProgram+".pid")
	before, err := os.ReadDir(pipe)
	if err != nil {
		t.Fatal(err)
	}
	// A pipe in its place cannot be read, even by root.
	if err := errors.Join(os.Rename(file, filepath.Join(b.dir, "pid")), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	second := b.start(1)
	_ = second.end() // it has failed
	if second.says != "" || !strings.Contains(second.errs.String(), "not a plain file") {
		t.Errorf("a joiner: got %q, %q; want an error", second.says, second.errs)
	}
	if all, err := List(); err == nil {
		t.Errorf("list: got %+v, want an error", all)
	}
	if n, err := EndUnused(); n != 0 || err == nil {
		t.Errorf("end unused pools: got %d, %v; want an error", n, err)
	}
	if after, err := os.ReadDir(pipe); err != nil || len(after) != len(before) {
		t.Errorf("files of the control daemon: got %v, %v; want %v", after, err, before)
	}
	if !b.kept() {
		t.Error("the pool has no keeper any more")
	}
	if err := os.Rename(filepath.Join(b.dir, "pid"), file); err != nil {
		t.Fatal(err)
	}
	if b.control() != control {
		t.Errorf("control daemon: got %d, want %d", b.control(), control)
	}
	if err := first.end(); err != nil {
		t.Errorf("%v: %s", err, first.errs)
	}
	b.wait("the end of the pool", b.ended)
}

// TestControlDaemonDies checks that the next member gets a new control daemon, in a folder
// with the files of the old one.
func TestControlDaemonDies(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	control := b.control()
	if err := syscall.Kill(control, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.wait("the end of the keeper", func() bool { return !b.kept() })
	second := b.start(1)
	if !strings.HasPrefix(second.says, "inside ") || b.control() == control {
		t.Errorf("got %q with control daemon %d, before %d; %s", second.says, b.control(), control, second.errs)
	}
	if err := first.end(); err == nil {
		t.Error("the first program went on without its control daemon")
	}
	if err := second.end(); err != nil {
		t.Error(err)
	}
	b.wait("the end of the pool", b.ended)
}

// TestServerDies checks that members of a server that was killed fail and new ones do not.
func TestServerDies(t *testing.T) {
	b := newTestbed(t)
	first := b.start(1)
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Servers) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if err := syscall.Kill(all[0].Servers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := first.cmd.Wait(); err == nil || !strings.Contains(first.errs.String(), "MpsRpcFailure") {
		t.Errorf("the member of a killed server: got %v: %s", err, first.errs)
	}
	second := b.start(1)
	if !strings.HasPrefix(second.says, "inside ") {
		t.Errorf("got %q; %s", second.says, second.errs)
	}
}

// TestOwnServer checks that a program which would use an MPS server of the user does not
// join a pool.
func TestOwnServer(t *testing.T) {
	b := newTestbed(t)
	_, err := Join(Request{Env: []string{pipeEnv + "=/misspelt"}})
	if !errors.Is(err, ErrOwnServer) || !strings.Contains(err.Error(), "/misspelt") {
		t.Errorf("with the variable: got %v", err)
	}
	defaultPipe = filepath.Join(b.dir, "default")
	b.startControl(os.Environ(), defaultPipe)
	if _, err := Join(Request{}); !errors.Is(err, ErrOwnServer) || !strings.Contains(err.Error(), defaultPipe) {
		t.Errorf("with a control daemon in the default folder: got %v", err)
	}
	if b.control() != 0 {
		t.Error("a pool was started")
	}
}

// TestFull checks that the program after the last that MPS takes gets a clear answer.
func TestFull(t *testing.T) {
	b := newTestbed(t)
	p, err := open(b.info())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for i := range MaxClients {
		f, err := p.register(MemberInfo{PID: 1<<30 + i, Weight: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	j := b.start(1)
	if err := j.end(); err == nil || !strings.Contains(j.errs.String(), "the pool is full: it has 60 members") || !strings.Contains(j.errs.String(), "--pool-label") {
		t.Errorf("got %v: %s", err, j.errs)
	}
}

// TestFault checks that a program does not join a server that refuses clients, because those
// that a fault has ended are still there: its CUDA calls would fail. When they have exited the
// next one joins.
func TestFault(t *testing.T) {
	b := newTestbed(t)
	first, second := b.start(1), b.start(1)
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != 2 || len(all[0].Faulted) != 0 {
		t.Fatalf("got %+v, %v; want a pool with two clients and no fault", all, err)
	}
	if err := syscall.Kill(all[0].Clients[0], syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	b.wait("the fault", func() bool {
		all, err = List()
		return err == nil && len(all) == 1 && len(all[0].Faulted) == 1 && all[0].Faulted[0] == all[0].Servers[0]
	})
	b.wait("the keeper's report", func() bool {
		faults, err := Faults()
		return err == nil && len(faults) == 1 && faults[0].Label == DefaultLabel && len(faults[0].Clients) == 2
	})
	third := b.start(1)
	if err := third.end(); err == nil || !strings.Contains(third.errs.String(), ErrFault.Error()) || !strings.Contains(third.errs.String(), "--pool-label") {
		t.Errorf("got %v: %s", err, third.errs)
	}
	for _, j := range []*job{first, second} {
		if err := j.end(); err != nil {
			t.Errorf("%v: %s", err, j.errs)
		}
	}
	b.wait("the server's recovery", func() bool {
		all, err := List()
		return err == nil && (len(all) == 0 || len(all[0].Faulted) == 0)
	})
	b.wait("the keeper's report", func() bool {
		faults, err := Faults()
		return err == nil && len(faults) == 0
	})
	text, err := os.ReadFile(filepath.Join(b.folder(), "log", "keeper.log"))
	if err != nil || strings.Count(string(text), "a member of the pool has had a fault") != 1 {
		t.Errorf("log of the keeper: got %v\n%s\nwant one line on the fault", err, text)
	}
	if fourth := b.start(1); !strings.HasPrefix(fourth.says, "inside ") {
		t.Errorf("after the fault: got %q: %s", fourth.says, fourth.errs)
	}
}

// TestWeights checks that a member with a smaller weight than another one may use a part
// of the GPU, unless its user says otherwise.
func TestWeights(t *testing.T) {
	b := newTestbed(t)
	heavy := b.start(4)
	light := b.start(1)
	own := b.start(1, threadsEnv+"=70")
	for want, j := range map[string]*job{"  \n": heavy, " 25 \n": light, " 70 \n": own} {
		if !strings.HasSuffix(j.says, "/pipe"+want) {
			t.Errorf("got %q, want %q at its end", j.says, want)
		}
	}
}

// TestNotPossible checks that what makes a pool impossible is an error that names it.
func TestNotPossible(t *testing.T) {
	b := newTestbed(t)
	t.Run("no MPS", func(t *testing.T) {
		t.Setenv("PATH", "/none")
		if _, err := Join(Request{}); !errors.Is(err, ErrNoMPS) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("control daemon fails", func(t *testing.T) {
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, controlProgram), []byte("#!/bin/sh\necho no device; exit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		if _, err := Join(Request{Keeper: keeperCommand()}); err == nil || !strings.Contains(err.Error(), `exit status 3; it printed "no device"`) {
			t.Errorf("got %v", err)
		}
		b.wait("the end of the keeper", b.ended)
	})
	t.Run("keeper fails", func(t *testing.T) {
		_, err := Join(Request{Keeper: []string{"/none"}})
		if err == nil || !strings.Contains(err.Error(), "start the keeper") {
			t.Errorf("got %v", err)
		}
		if b.control() != 0 {
			t.Error("a control daemon is left that nothing ends")
		}
	})
	t.Run("folder of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can make a folder of another user")
		}
		dir := filepath.Join(b.dir, "foreign")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		t.Setenv(FolderEnv, dir)
		_, joined := Join(Request{})
		_, listed := List()
		for _, err := range []error{joined, listed} {
			if err == nil || !strings.Contains(err.Error(), dir+" belongs to user 12345") || !strings.Contains(err.Error(), FolderEnv) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("folder of others", func(t *testing.T) {
		dir := filepath.Join(b.dir, "open")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		t.Setenv(FolderEnv, dir)
		if _, err := Join(Request{}); err == nil || !strings.Contains(err.Error(), "other users may write") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("long path", func(t *testing.T) {
		t.Setenv(FolderEnv, "/tmp/"+strings.Repeat("x", 80))
		if _, err := Join(Request{}); err == nil || !strings.Contains(err.Error(), FolderEnv) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("label", func(t *testing.T) {
		for _, label := range []string{"../x", "a/b", ".", "a b", strings.Repeat("a", 33)} {
			if _, err := Join(Request{Label: label}); err == nil || !strings.Contains(err.Error(), "pool label") {
				t.Errorf("%q: got %v", label, err)
			}
		}
	})
}

// TestFolderFor checks that all sessions of a user have the same pools.
func TestFolderFor(t *testing.T) {
	for uid, want := range map[int]string{0: "/run/giveway-pool", 1000: "/tmp/giveway-1000/pool"} {
		for _, session := range []string{"", "/run/user/1000", "/elsewhere"} {
			t.Setenv(FolderEnv, "")
			t.Setenv("XDG_RUNTIME_DIR", session)
			t.Setenv("TMPDIR", session)
			if got := folderFor(uid); got != want {
				t.Errorf("user %d in %q: got %s, want %s", uid, session, got, want)
			}
			t.Setenv(FolderEnv, "/mine")
			if got := folderFor(uid); got != "/mine" {
				t.Errorf("with %s: got %s", FolderEnv, got)
			}
		}
	}
}

// TestUnreadablePool checks that a pool which cannot be read does not hide the others.
func TestUnreadablePool(t *testing.T) {
	b := newTestbed(t)
	j := b.start(1)
	broken := filepath.Join(b.dir, "a-broken")
	if err := errors.Join(os.Mkdir(broken, 0o700), os.WriteFile(filepath.Join(broken, "pool.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	all, err := List()
	if len(all) != 1 || len(all[0].Clients) != 1 {
		t.Errorf("got %+v", all)
	}
	if err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("got %v, want an error that names %s", err, broken)
	}
	if err := j.end(); err != nil {
		t.Error(err)
	}
}

// TestRegisterLeavesOthersAlone checks that the file of a member that is registered already,
// for example in another pid namespace, is not changed.
func TestRegisterLeavesOthersAlone(t *testing.T) {
	b := newTestbed(t)
	p, err := open(b.info())
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	f, err := p.register(MemberInfo{PID: 1 << 30, Weight: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := p.register(MemberInfo{PID: 1 << 30, Weight: 1}); err == nil {
		t.Error("it was registered twice")
	}
	if all, err := p.members(); err != nil || len(all) != 1 || all[0].Weight != 7 {
		t.Errorf("got %+v, %v", all, err)
	}
}

// TestEnvironOfControlDaemons checks that the pool's control daemon is known by its
// environment, whose first variable says so, and that one which the user starts in a member,
// with a pipe folder of its own, is not.
func TestEnvironOfControlDaemons(t *testing.T) {
	b := newTestbed(t)
	environ := func(pid int) []string {
		t.Helper()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(text), "\x00")
	}
	j := b.start(1)
	env := environ(b.control())
	if LabelOf(env) != DefaultLabel || !strings.HasPrefix(env[0], Env+"=") {
		t.Errorf("the pool's: got label %q, first variable %q", LabelOf(env), env[0])
	}
	all, err := List()
	if err != nil || len(all) != 1 || len(all[0].Clients) != 1 {
		t.Fatalf("got %+v, %v", all, err)
	}
	member := environ(all[0].Clients[0])
	if LabelOf(member) != DefaultLabel || !Started(member) {
		t.Errorf("a member: got label %q, started in a pool: %v", LabelOf(member), Started(member))
	}
	own := filepath.Join(b.dir, "own")
	pid := b.startControl(member, own)
	if env := environ(pid); LabelOf(env) != "" {
		t.Errorf("the user's own: got label %q", LabelOf(env))
	}
	if err := j.end(); err != nil {
		t.Error(err)
	}
}
