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

// Keep keeps the pool in a folder until it has had no member for Linger, and then ends it.
// If the control daemon exits, Keep returns: the next member starts another one, with
// another keeper.
//
// A member is a 'giveway run' that holds its file, or a client that the server lists: what
// a program left running counts. The control daemon is asked only if there is no
// 'giveway run'.
func Keep(dir string, log *slog.Logger) error {
	p, err := openExisting(dir)
	if err != nil {
		return fmt.Errorf("keep the pool in %s: %w", dir, err)
	}
	defer p.close()
	pid := controlPID(p.pipe())
	if pid == 0 {
		return fmt.Errorf("keep the pool in %s: it has no control daemon", dir)
	}
	control, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("keep the pool in %s: watch process %d: %w", dir, pid, err)
	}
	defer unix.Close(control)
	log.Info("pool is kept", "folder", dir, "control", pid)
	empty := time.Now()
	for {
		if exited(control, keepInterval) || controlPID(p.pipe()) != pid {
			log.Warn("MPS control daemon of the pool has exited; the next member starts another one", "folder", dir, "control", pid)
			return nil
		}
		switch used, err := p.used(); {
		case err != nil:
			log.Warn("members of the pool cannot be counted", "folder", dir, "error", err)
			empty = time.Now()
		case used:
			empty = time.Now()
		case time.Since(empty) >= Linger:
			if ended, err := p.end(); ended || err != nil {
				log.Info("pool is ended", "folder", dir, "error", err)
				return err
			}
		}
	}
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

// end ends the pool if it has no member.
func (p *Pool) end() (ended bool, err error) {
	lock, err := p.lock()
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if controlPID(p.pipe()) == 0 {
		return false, nil
	}
	if used, err := p.usedLocked(); used || err != nil {
		return false, err
	}
	return true, p.quit()
}
