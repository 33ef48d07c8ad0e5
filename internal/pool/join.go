package pool

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Request describes a program that is to run in a pool.
type Request struct {
	Env      []string // of the program
	Label    string   // of the pool; empty: DefaultLabel
	Weight   int64    // of the program
	Priority int64    // of the program; if negative, MPS puts it below the other members
	// RulesApplied says that Weight and Priority are by the rules of the daemon too.
	RulesApplied bool
	Command      string
	// Keeper is a command that calls Keep with the folder of the pool, its last argument,
	// and with descriptor 3, which it closes to give up the keeper's lock.
	Keeper []string
}

// Member is a program's place in a pool.
type Member struct {
	Info
	Env    []string // for the program
	Folder string   // of the pool's pipes, to mount into a container
	file   *os.File
}

// Leave gives up the place. The kernel does the same when the process exits.
func (m *Member) Leave() { m.file.Close() }

// defaultPipe is where MPS has its pipes if no folder is given. Tests set it.
var defaultPipe = "/tmp/nvidia-mps"

// Join makes this process a member of a pool, which it starts if necessary.
func Join(r Request) (*Member, error) {
	if err := ownServer(r.Env); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(controlProgram); err != nil {
		return nil, fmt.Errorf("%w: there is no %s; install NVIDIA's compute utilities", ErrNoMPS, controlProgram)
	}
	namespace, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	devices, err := gpuSet(r.Env)
	if err != nil {
		return nil, err
	}
	info := Info{Label: cmp.Or(r.Label, DefaultLabel), Devices: devices, Namespace: namespace}
	if err := CheckLabel(info.Label); err != nil {
		return nil, err
	}
	p, err := open(info)
	if err != nil {
		return nil, err
	}
	defer p.close()
	lock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	restore, err := withholdInherited()
	if err != nil {
		return nil, err
	}
	defer restore()
	return p.join(r)
}

// withholdInherited keeps the descriptors that this process has inherited from the programs
// that it starts until restore is called: the keeper and the control daemon outlive it, and
// would hold what its caller has open, for example the lock of flock(1). Descriptors of Go's
// own are never inherited.
func withholdInherited() (restore func(), err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var withheld []uintptr
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.CloseOnExec(fd)
			withheld = append(withheld, uintptr(fd))
		}
	}
	return func() {
		for _, fd := range withheld {
			_, _ = unix.FcntlInt(fd, unix.F_SETFD, 0) // it cannot fail
		}
	}, nil
}

// join makes this process a member. The keeper comes first: if this process is killed
// meanwhile, the keeper ends the control daemon. The pool's lock is held.
func (p *Pool) join(r Request) (*Member, error) {
	if err := p.save(); err != nil {
		return nil, err
	}
	others, err := p.members()
	if err != nil {
		return nil, err
	}
	m := &Member{Info: p.Info, Folder: p.pipe(), Env: p.clientEnv(r, others)}
	info := MemberInfo{PID: os.Getpid(), Weight: max(r.Weight, 1), Command: r.Command, RulesApplied: r.RulesApplied}
	if m.file, err = p.register(info); err != nil {
		return nil, err
	}
	err = p.startKeeper(r.Keeper)
	if err == nil {
		err = p.makeRoom(r.Env, len(others))
	}
	if err != nil {
		m.Leave()
		return nil, err
	}
	return m, nil
}

// ownServer returns an error if the user runs an MPS server that the program would use.
func ownServer(env []string) error {
	if pipe, ok := lookup(env, pipeEnv); ok {
		return fmt.Errorf("%w: %s is %s; unset it to use the pool", ErrOwnServer, pipeEnv, pipe)
	}
	if pid := controlPID(defaultPipe); pid != 0 {
		return fmt.Errorf("%w: the control daemon in %s, process %d; end it to use the pool", ErrOwnServer, defaultPipe, pid)
	}
	return nil
}

// makeRoom makes sure that the pool takes a client beside those of some other members, and
// has a control daemon. The pool's lock is held.
func (p *Pool) makeRoom(env []string, members int) error {
	control, err := p.control()
	if err != nil {
		return err
	}
	var clients, faulted []int
	if control != 0 {
		servers, err := p.servers()
		var failed [2]error
		clients, failed[0] = p.clientsOf(servers)
		faulted, failed[1] = p.faulted(servers)
		if err := errors.Join(err, failed[0], failed[1]); err != nil && !errors.Is(err, errNoPIDs) {
			return err // a program would wait for such a daemon as well
		}
	}
	if len(faulted) > 0 {
		return fmt.Errorf("%w: MPS takes no client until its clients, processes %v, have exited; end them, or use another pool with --pool-label", ErrFault, clients)
	}
	// A member may have several clients, or none yet.
	if most := max(len(clients), members); most >= MaxClients {
		return fmt.Errorf("%w: it has %d members, and MPS takes %d clients; wait for one to end, or use another pool with --pool-label", ErrFull, most, MaxClients)
	}
	if control == 0 {
		return p.start(env)
	}
	return nil
}

// clientEnv returns the environment of a program in the pool.
func (p *Pool) clientEnv(r Request, others []MemberInfo) []string {
	env := append(p.variables(), without(r.Env, Env, pipeEnv, logEnv, devicesEnv)...)
	gpus, _ := readGPUs()
	if names, given := visibleGPUs(r.Env, gpus); given {
		env = append(env, devicesEnv+"="+strings.Join(names, ","))
	}
	if _, given := lookup(r.Env, threadsEnv); !given {
		if part := threadPart(r.Weight, others); part < 100 {
			env = append(env, fmt.Sprintf("%s=%d", threadsEnv, part))
		}
	}
	if _, given := lookup(r.Env, priorityEnv); !given && r.Priority < 0 {
		env = append(env, priorityEnv+"=1")
	}
	return env
}

// threadPart returns the percentage of the GPU's multiprocessors that a member may use: all
// if no member has a larger weight, otherwise in proportion to the largest. MPS takes it
// when the program starts and does not change it later.
func threadPart(weight int64, others []MemberInfo) int64 {
	largest := max(weight, 1)
	for _, o := range others {
		largest = max(largest, o.Weight)
	}
	return max(100*max(weight, 1)/largest, 1)
}

// startKeeper starts a keeper unless the pool has one. The keeper inherits the lock that
// says so. The pool's lock is held.
func (p *Pool) startKeeper(command []string) error {
	f, err := os.OpenFile(p.folder.At("keeper"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if !tryLock(f) {
		return nil
	}
	if len(command) == 0 {
		return errors.New("start the keeper of the pool: no command is given")
	}
	log, err := os.OpenFile(p.folder.At("log/keeper.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], p.dir)...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = p.environment(os.Environ()), "/", log, log, []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the keeper of the pool: %w", err)
	}
	return cmd.Process.Release()
}
