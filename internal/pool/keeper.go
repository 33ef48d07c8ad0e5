package pool

import (
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// Linger is how long a pool without members is kept for the next one. keepInterval is how
// often the keeper looks for members. Tests set them.
var (
	Linger       = 30 * time.Second
	keepInterval = 2 * time.Second
)

// Keep keeps the pool in a folder until its control daemon has exited or it has had no
// member for Linger, in which case Keep ends it. Before it returns it calls release, which
// gives up the lock that Join passed to the keeper, with the pool's lock held: the next
// member starts another control daemon and another keeper.
//
// A member is a 'giveway run' that holds its file, or a client that the server lists: what
// a program left running counts. The control daemon is asked only if there is no
// 'giveway run'.
func Keep(dir string, release func(), log *slog.Logger) error {
	p, err := openExisting(dir)
	if err != nil {
		return fmt.Errorf("keep the pool in %s: %w", dir, err)
	}
	defer p.close()
	for {
		pid := controlPID(p.pipe())
		log.Info("pool is kept", "folder", dir, "control", pid)
		if p.watch(pid, log) {
			log.Warn("MPS control daemon of the pool has exited; the next member starts another one", "folder", dir, "control", pid)
		}
		switch ended, err := p.endUnused(release); {
		case err != nil:
			return fmt.Errorf("end the pool in %s: %w", dir, err)
		case ended:
			log.Info("pool has ended", "folder", dir)
			return nil
		}
	}
}

// watch returns when the control daemon has exited, or the pool has had no member for
// Linger.
func (p *Pool) watch(pid int, log *slog.Logger) (gone bool) {
	control, err := unix.PidfdOpen(pid, 0)
	if pid == 0 || err != nil {
		return true
	}
	defer unix.Close(control)
	for empty := time.Now(); time.Since(empty) < Linger; {
		if exited(control, keepInterval) || controlPID(p.pipe()) != pid {
			return true
		}
		used, err := p.used()
		if err != nil {
			log.Warn("members of the pool cannot be counted", "folder", p.dir, "error", err)
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
	clients, err := p.clients()
	return len(clients) > 0, err
}

// endUnused ends the pool if it has no member, and reports whether it has ended or had
// ended before. Then it calls release, with the pool's lock held.
func (p *Pool) endUnused(release func()) (ended bool, err error) {
	lock, err := p.lock()
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if controlPID(p.pipe()) != 0 {
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
