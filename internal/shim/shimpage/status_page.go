package shimpage

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// StatusPage is memory that all processes can read. It says whether the daemon sleeps, so
// that a process writes to its doorbell only when that is needed.
type StatusPage struct {
	memory memory
	status *pageabi.Status
	reader int
}

// NewStatusPage creates a status page to which only this process can write.
func NewStatusPage() (*StatusPage, error) {
	m, err := newMemory("giveway-status", pageabi.StatusSize, unix.F_SEAL_FUTURE_WRITE)
	if err != nil { // Linux before 5.1 does not know this seal
		if m, err = newMemory("giveway-status", pageabi.StatusSize, 0); err != nil {
			return nil, fmt.Errorf("create the status page: %w", err)
		}
	}
	s := &StatusPage{memory: m, status: pageabi.StatusAt(m.bytes)}
	if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, sizeSeals); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("create the status page: seal it: %w", err)
	}
	s.status.ABI.Store(pageabi.LowestVersion) // processes of every version share it
	s.status.Magic.Store(pageabi.Magic)
	// Where the kernel has no seal against writing, a read-only descriptor of a file
	// with mode 0444 does the same for other users.
	_ = unix.Fchmod(m.fd, 0o444)
	if s.reader, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("create the status page: %w", err)
	}
	return s, nil
}

// Descriptor returns a read-only descriptor to be sent to a process. The caller closes it.
func (s *StatusPage) Descriptor() (int, error) { return duplicate(s.reader) }

// SetAsleep says whether processes must write to their doorbells to be noticed.
func (s *StatusPage) SetAsleep(asleep bool) {
	if asleep {
		s.status.Asleep.Store(1)
	} else {
		s.status.Asleep.Store(0)
	}
}

// Close unmaps the status page here. Processes that have mapped it keep its last content.
func (s *StatusPage) Close() {
	_ = unix.Close(s.reader)
	_ = s.memory.close()
}

func duplicate(fd int) (int, error) {
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("dup", err)
	}
	return copied, nil
}
