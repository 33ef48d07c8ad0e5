package server

import (
	"net"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
)

// Addrs lists the addresses that the server listens on, TCP first.
func (s *Server) Addrs() []net.Addr {
	var addrs []net.Addr
	for _, l := range s.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// SetPageVersions makes the server one that understands other versions of the page.
func (s *Server) SetPageVersions(v pageabi.Versions) { s.pageVersions = v }

// SetSubuidFile makes the server read another file than /etc/subuid.
func (s *Server) SetSubuidFile(path string) { s.accounts.path = path }

// SetSilence sets how long a front end may be silent.
func (s *Server) SetSilence(d time.Duration) { s.silence = d }
