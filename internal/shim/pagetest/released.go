package pagetest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// What the release with version 1 of the page sends, byte for byte. A released shim or daemon
// stays in use beside a newer one, so these do not change.
const (
	// ReleasedHello is the request of its shim.
	ReleasedHello = "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\nGiveway-Abi: 1\r\nGiveway-Runtime: cuda\r\n\r\n"
	// releasedAnswer and releasedRefusal are the answers of its daemon.
	releasedAnswer  = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: giveway-shim/1\r\n\r\n"
	releasedRefusal = "HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{}\n"
)

// ReleasedAccepts reports whether the shim of that release accepts an answer with the memory of
// p.
func ReleasedAccepts(answer string, p *Process) bool {
	const magic = 0x59575647
	return len(answer) < 256 && strings.HasPrefix(answer, "HTTP/1.1 101") &&
		p.Page.Magic.Load() == magic && p.Page.ABI.Load() == 1 && p.Page.Size.Load() == 4096 &&
		p.status.Magic.Load() == magic && p.status.ABI.Load() == 1
}

// Released makes d answer as the daemon of the release with version 1: it compares the version
// as text, and its pages have version 1.
func (d *Daemon) Released() {
	d.Answer(func(conn *net.UnixConn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		if r.Method != http.MethodPost || r.URL.Path != "/v1/shim" || r.Header.Get("Giveway-Abi") != "1" {
			_, _ = io.WriteString(conn, releasedRefusal) // the process may have exited
			return
		}
		d.sendPage(conn, releasedAnswer, 1)
	})
}

// Speak makes d a daemon that understands these versions of the page.
func (d *Daemon) Speak(v pageabi.Versions) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions = v
}

// PageVersion returns the version that is written on a page.
func PageVersion(t testing.TB, p *shimpage.Page) uint32 {
	t.Helper()
	fd, doorbell, err := p.Descriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer closeBoth(fd, doorbell)
	var head [8]byte
	if _, err := syscall.Pread(fd, head[:], 0); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint32(head[4:]) // struct gw_page: magic, abi
}
