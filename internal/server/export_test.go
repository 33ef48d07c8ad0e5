package server

import "net"

// Addrs lists the addresses that the server listens on, TCP first.
func (s *Server) Addrs() []net.Addr {
	var addrs []net.Addr
	for _, l := range s.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}
