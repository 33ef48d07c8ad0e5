package shimpage

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// StatusPage is what the daemon tells all programs at once.
type StatusPage struct {
	memory memory
	board  *board
	reader int
}

// NewStatusPage makes a board that nobody but us can write to.
func NewStatusPage() (*StatusPage, error) {
	m, err := newMemory("giveway-board", boardSize, unix.F_SEAL_FUTURE_WRITE)
	if err != nil { // before Linux 5.1
		if m, err = newMemory("giveway-board", boardSize, 0); err != nil {
			return nil, fmt.Errorf("make a board: %w", err)
		}
	}
	b := &StatusPage{memory: m, board: m.board()}
	if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, sealed); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("make a board: seal it: %w", err)
	}
	b.board.abi.Store(abi)
	b.board.magic.Store(magic)
	// A descriptor that was opened for reading, of a file that only we may open for
	// writing, serves where the kernel has no seal for it.
	_ = unix.Fchmod(m.fd, 0o444)
	if b.reader, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("make a board: %w", err)
	}
	return b, nil
}

// Descriptor returns a descriptor to give away, which can only be read. It is the
// caller's to close.
func (b *StatusPage) Descriptor() (int, error) { return duplicate(b.reader) }

// SetAsleep says whether programs must ring to be heard.
func (b *StatusPage) SetAsleep(asleep bool) {
	if asleep {
		b.board.asleep.Store(1)
	} else {
		b.board.asleep.Store(0)
	}
}

// Close gives the board up. Those who have it keep what it said last.
func (b *StatusPage) Close() {
	_ = unix.Close(b.reader)
	_ = b.memory.close()
}

func duplicate(fd int) (int, error) {
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("dup", err)
	}
	return copied, nil
}
