package pageclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/client"
)

// lodging is the memory that a daemon lends us, and the connection it hangs on.
type lodging struct {
	conn   *net.UnixConn
	memory []byte // of page
	notice []byte // of board
	page   *page
	board  *board
	bell   int

	// Under Page.mu.
	users int  // who may look at the memory without the lock
	over  bool // the daemon has hung up
}

// libraryIsLoaded reports whether this process has libgiveway.so in it.
func libraryIsLoaded() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err == nil && strings.Contains(string(maps), "libgiveway")
}

// dial finds a daemon and gets a page from it.
func dial(ctx context.Context) (*lodging, error) {
	if libraryIsLoaded() {
		return nil, ErrLibrary
	}
	var refused error
	for _, path := range client.Sockets() {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			refused = errors.Join(refused, err)
			continue
		}
		l, err := hello(ctx, conn.(*net.UnixConn))
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("ask the daemon at %s for a page: %w", path, err)
		}
		return l, nil
	}
	return nil, refused
}

const greeting = "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\nGiveway-Abi: 1\r\nGiveway-Runtime: hint\r\n\r\n"

// hello is that of shim/abi.h.
func hello(ctx context.Context, conn *net.UnixConn) (*lodging, error) {
	giveUp := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer giveUp()
	if _, err := conn.Write([]byte(greeting)); err != nil {
		return nil, err
	}
	text, control := make([]byte, 512), make([]byte, unix.CmsgSpace(3*4))
	n, got, _, _, err := conn.ReadMsgUnix(text, control)
	if err != nil {
		return nil, err
	}
	fds, err := descriptors(control[:got])
	if err != nil {
		return nil, err
	}
	if len(fds) != 3 || !strings.HasPrefix(string(text[:n]), "HTTP/1.1 101") {
		closeAll(fds)
		line, _, _ := strings.Cut(string(text[:n]), "\r\n")
		return nil, fmt.Errorf("it answers %.60q with %d descriptors", line, len(fds))
	}
	l, err := enter(fds[0], fds[1], fds[2])
	closeAll(fds[:2])
	if err != nil {
		_ = unix.Close(fds[2])
		return nil, err
	}
	if !giveUp() {
		l.conn = conn
		l.close()
		return nil, ctx.Err()
	}
	l.conn = conn
	return l, nil
}

func descriptors(control []byte) (fds []int, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	for i := range messages {
		some, wrong := syscall.ParseUnixRights(&messages[i])
		fds, err = append(fds, some...), errors.Join(err, wrong)
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// enter maps what a daemon has sent, if it is as it should be.
func enter(pageFD, boardFD, bell int) (*lodging, error) {
	l := &lodging{bell: bell}
	var err error
	if l.memory, err = mapped(pageFD, pageSize, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, fmt.Errorf("map the page: %w", err)
	}
	if l.notice, err = mapped(boardFD, boardSize, unix.PROT_READ); err != nil {
		l.unmap()
		return nil, fmt.Errorf("map the board: %w", err)
	}
	l.page, l.board = pageAt(l.memory), boardAt(l.notice)
	if l.page.magic.Load() != magic || l.page.abi.Load() != abi || l.page.size.Load() != pageSize ||
		l.board.magic.Load() != magic || l.board.abi.Load() != abi {
		l.unmap()
		return nil, fmt.Errorf("this is no page of version %d", abi)
	}
	if err := unix.SetNonblock(bell, true); err != nil { // so that no hint waits
		l.unmap()
		return nil, err
	}
	return l, nil
}

// mapped is memory that can never get smaller: who shrinks it would make us fault.
func mapped(fd, size, how int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if seals&unix.F_SEAL_SHRINK == 0 || st.Size != int64(size) {
		return nil, fmt.Errorf("%d bytes with seals %#x", st.Size, seals)
	}
	return unix.Mmap(fd, 0, size, how, unix.MAP_SHARED)
}

// untilOver returns when the daemon hangs up, or says something, which it never should.
func (l *lodging) untilOver() { _, _ = l.conn.Read(make([]byte, 1)) }

func (l *lodging) ring() { _, _ = unix.Write(l.bell, one[:]) } // it fails only when it has rung enough

func (l *lodging) unmap() {
	for _, m := range [][]byte{l.memory, l.notice} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
}

func (l *lodging) close() {
	l.unmap()
	_ = unix.Close(l.bell)
	_ = l.conn.Close()
}

func machineClock() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail
	return uint64(ts.Nano())
}
