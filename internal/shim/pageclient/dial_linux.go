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
	"github.com/giveway/giveway/internal/shim/pageabi"
)

// connection is the connection to a daemon and the memory that the daemon has sent over it.
type connection struct {
	socket       *net.UnixConn
	pageMemory   []byte
	statusMemory []byte
	page         *pageabi.Page
	status       *pageabi.Status
	doorbell     int

	// Guarded by Page.mu.
	users int  // goroutines that use the memory without the lock
	ended bool // the daemon has closed the connection
}

// libraryIsLoaded reports whether libgiveway.so is loaded in this process.
func libraryIsLoaded() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err == nil && strings.Contains(string(maps), "libgiveway")
}

// dial connects to the first daemon that answers and gets a page from it.
func dial(ctx context.Context) (*connection, error) {
	if libraryIsLoaded() {
		return nil, ErrLibrary
	}
	var refused error
	for _, path := range client.Sockets() {
		socket, err := client.Dial(ctx, path)
		if err != nil {
			refused = errors.Join(refused, err)
			continue
		}
		c, err := hello(ctx, socket)
		if err != nil {
			_ = socket.Close()
			return nil, fmt.Errorf("ask the daemon at %s for a page: %w", path, err)
		}
		return c, nil
	}
	return nil, refused
}

// greeting asks for a page of any version that this package understands.
var greeting = fmt.Sprintf("POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n"+
	"Giveway-Abi: %d\r\nGiveway-Abi-Max: %d\r\nGiveway-Runtime: hint\r\n\r\n", pageabi.LowestVersion, pageabi.Version)

// hello is the exchange that shim/abi.h describes.
func hello(ctx context.Context, socket *net.UnixConn) (*connection, error) {
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := socket.Write([]byte(greeting)); err != nil {
		return nil, err
	}
	text, control := make([]byte, 512), make([]byte, unix.CmsgSpace(3*4))
	n, got, _, _, err := socket.ReadMsgUnix(text, control)
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
		return nil, fmt.Errorf("unexpected answer %.60q with %d descriptors", line, len(fds))
	}
	c, err := mapPages(fds[0], fds[1], fds[2])
	closeAll(fds[:2])
	if err != nil {
		_ = unix.Close(fds[2])
		return nil, err
	}
	c.socket = socket
	if !stop() { // ctx is done, and the socket has a deadline
		c.close()
		return nil, ctx.Err()
	}
	return c, nil
}

func descriptors(control []byte) (fds []int, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	for i := range messages {
		rights, wrong := syscall.ParseUnixRights(&messages[i])
		fds, err = append(fds, rights...), errors.Join(err, wrong)
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

// mapPages maps the memory that a daemon has sent, after checking it.
func mapPages(pageFD, statusFD, doorbell int) (*connection, error) {
	c := &connection{doorbell: doorbell}
	var err error
	if c.pageMemory, err = mapSealed(pageFD, pageabi.PageSize, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, fmt.Errorf("map the page: %w", err)
	}
	if c.statusMemory, err = mapSealed(statusFD, pageabi.StatusSize, unix.PROT_READ); err != nil {
		c.unmap()
		return nil, fmt.Errorf("map the status page: %w", err)
	}
	c.page, c.status = pageabi.PageAt(c.pageMemory), pageabi.StatusAt(c.statusMemory)
	if c.page.Magic.Load() != pageabi.Magic || c.page.Size.Load() != pageabi.PageSize || c.status.Magic.Load() != pageabi.Magic ||
		!pageabi.Understood.Accepts(c.page.ABI.Load(), c.status.ABI.Load()) {
		c.unmap()
		return nil, fmt.Errorf("not a page of version %v", pageabi.Understood)
	}
	if err := unix.SetNonblock(doorbell, true); err != nil { // so that no hint waits
		c.unmap()
		return nil, err
	}
	return c, nil
}

// mapSealed maps memory of that size which cannot shrink: an access after it shrank would
// fault.
func mapSealed(fd, size, protection int) ([]byte, error) {
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
	return unix.Mmap(fd, 0, size, protection, unix.MAP_SHARED)
}

// waitForEnd returns when the daemon closes the connection, or sends something, which it
// never should.
func (c *connection) waitForEnd() { _, _ = c.socket.Read(make([]byte, 1)) }

func (c *connection) unmap() {
	for _, m := range [][]byte{c.pageMemory, c.statusMemory} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
}

func (c *connection) close() {
	c.unmap()
	_ = unix.Close(c.doorbell)
	_ = c.socket.Close()
}
