package pool

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Linger is how long a pool without members is kept for the next one. keepInterval is how
// often the keeper looks for members. appearTime is how long it waits for a control daemon
// whose starter was killed. Tests set them.
var (
	Linger       = 30 * time.Second
	keepInterval = 2 * time.Second
	appearTime   = 5 * time.Second
)

// Keep keeps the pool in a folder until its control daemon has exited or it has had no
// member for Linger, in which case Keep ends it. Before it returns it calls release, which
// gives up the lock that Join passed to the keeper, with the pool's lock held: the next
// member starts another control daemon and another keeper. What fails is logged and tried
// again, because a pool without a keeper would never end.
//
// A member is a 'giveway run' that holds its file, or a client that the server lists: what
// a program left running counts. The control daemon is asked for clients only if there is no
// 'giveway run', and for a fault of a member every faultInterval.
func Keep(dir string, release func(), log *slog.Logger) error {
	p, err := openExisting(dir)
	if err != nil {
		return fmt.Errorf("keep the pool in %s: %w", dir, err)
	}
	defer p.close()
	if f, err := p.excludeFromCleaning(); err == nil {
		defer f.Close()
	}
	k := &keeper{Pool: p, log: log, warned: make(map[string]string)}
	if err := p.waitForControl(); err != nil {
		k.warn(notKept, err)
	}
	for kept := 0; ; {
		pid, _ := p.control() // endUnused returns the error
		if pid != 0 && pid != kept {
			kept = pid
			log.Info("pool is kept", "folder", dir, "control", pid)
		}
		if gone := k.watch(pid); gone && pid != 0 {
			log.Warn("MPS control daemon of the pool has exited; the next member starts another one", "folder", dir, "control", pid)
		}
		ended, err := p.endUnused(release)
		if ended {
			log.Info("pool has ended", "folder", dir)
			return nil
		}
		if _, gone := os.Stat(dir); errors.Is(gone, os.ErrNotExist) {
			return fmt.Errorf("keep the pool in %s: the folder was removed; if process %d, the MPS control daemon, still runs, kill it", dir, pid)
		}
		if err != nil {
			k.warn(notKept, err)
			time.Sleep(keepInterval)
		}
	}
}

// keeper is a Keep that runs.
type keeper struct {
	*Pool
	log     *slog.Logger
	warned  map[string]string // by message: its last error
	asked   time.Time         // when MPS was last asked for a fault
	fault   *os.File          // faultFile, locked; nil: no member has had a fault
	clients []int             // what faultFile says
}

const notKept = "pool cannot be kept or ended; trying again"

// warn logs an error unless it is the last one of this message again.
func (k *keeper) warn(message string, err error) {
	if err.Error() != k.warned[message] {
		k.warned[message] = err.Error()
		k.log.Warn(message, "folder", k.dir, "error", err)
	}
}

// excludeFromCleaning returns a file that, while it is open, excludes the folder from the
// ageing of /tmp by systemd-tmpfiles.
func (p *Pool) excludeFromCleaning() (*os.File, error) {
	f, err := os.Open(p.folder.At("."))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	}
	return f, err
}

// waitForControl waits until the member that started the keeper has started the control
// daemon, for which it holds the pool's lock. If that member was killed, the control daemon
// may appear a little later.
func (p *Pool) waitForControl() error {
	lock, err := p.lock()
	if err != nil {
		return err
	}
	lock.Close()
	return p.awaitControl(appearTime)
}

// watch returns when the control daemon has exited, or the pool has had no member for
// Linger.
func (k *keeper) watch(pid int) (gone bool) {
	control, err := unix.PidfdOpen(pid, 0)
	if pid == 0 || err != nil {
		return true
	}
	defer unix.Close(control)
	for empty := time.Now(); time.Since(empty) < Linger; {
		if exited(control, keepInterval) {
			return true
		}
		if now, err := k.control(); err == nil && now != pid {
			return true
		}
		k.followFault()
		used, err := k.used()
		if err != nil {
			k.warn(notKept, err)
		}
		if used || err != nil {
			empty = time.Now()
		}
	}
	return false
}

// exited waits until a process has exited, or for that long.
func exited(pidfd int, wait time.Duration) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(wait/time.Millisecond))
	return err == nil && n > 0
}

// used reports whether the pool has a member.
func (p *Pool) used() (bool, error) {
	lock, err := p.lock()
	if err != nil {
		return false, err
	}
	defer lock.Close()
	return p.usedLocked()
}

func (p *Pool) usedLocked() (bool, error) {
	all, err := p.members()
	if err != nil || len(all) > 0 {
		return true, err
	}
	servers, err := p.servers()
	clients, failed := p.clientsOf(servers)
	return len(clients) > 0, errors.Join(err, failed)
}

// endUnused ends the pool if it has no member, and reports whether it has ended or had
// ended before. Then it calls release, with the pool's lock held.
func (p *Pool) endUnused(release func()) (ended bool, err error) {
	lock, err := p.lock()
	if err != nil {
		return false, err
	}
	defer lock.Close()
	control, err := p.control()
	if err != nil {
		return false, err
	}
	if control != 0 {
		if used, err := p.usedLocked(); used || err != nil {
			return false, err
		}
		if err := p.quit(); err != nil {
			return false, err
		}
	}
	release()
	return true, nil
}
