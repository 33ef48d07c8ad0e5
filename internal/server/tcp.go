package server

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Limits on connections over TCP: of clients that have sent a token, and of these of clients
// with the token for reading; of those that have not, in all and from one address. A connection without the token has no longer than
// headerTime to send it, and is closed after a request without it.
const (
	maxTCP            = 64
	maxTCPReaders     = 32
	maxWaiting        = 64
	maxWaitingAddress = 16
)

// tcpConnections are the open connections over TCP. When too many of them have not sent a
// token, the oldest one of the address that has most of those is closed: connections without a token
// cannot keep out a client that has one, nor close its connection before the token is read.
type tcpConnections struct {
	mu       sync.Mutex
	waiting  []*connection // without a token, in order of arrival
	admitted []*connection // with the token for everything
	readers  []*connection // with the token for reading
}

// enter adds a connection. It returns the connection that has to leave for it, if any.
func (r *tcpConnections) enter(c *connection) (evicted *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, c)
	of, most := map[string]int{}, 0 // by address
	for _, w := range r.waiting {
		of[w.address]++
		most = max(most, of[w.address])
	}
	// Other addresses have no more than maxWaitingAddress, so above that most is the new connection's.
	if most <= maxWaitingAddress && len(r.waiting) <= maxWaiting {
		return nil
	}
	oldest := slices.IndexFunc(r.waiting, func(w *connection) bool { return of[w.address] == most })
	evicted = r.waiting[oldest]
	r.waiting = slices.Delete(r.waiting, oldest, oldest+1)
	return evicted
}

// admit moves a connection that has sent a token to those that may stay, or says why it cannot
// stay. Readers leave room for clients that may do everything.
func (r *tcpConnections) admit(c *connection, reads bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case slices.Contains(r.admitted, c) || slices.Contains(r.readers, c):
		return nil
	case !slices.Contains(r.waiting, c):
		return errClosed // it was evicted or closed: nothing would free the place that it takes
	case len(r.admitted)+len(r.readers) >= maxTCP || reads && len(r.readers) >= maxTCPReaders:
		return TooMany("too many clients are connected over TCP: %d with a token, of these %d with the token for reading", maxTCP, maxTCPReaders)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *connection) bool { return w == c })
	if reads {
		r.readers = append(r.readers, c)
	} else {
		r.admitted = append(r.admitted, c)
	}
	return nil
}

func (r *tcpConnections) leave(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	is := func(w *connection) bool { return w == c }
	r.waiting, r.admitted, r.readers = slices.DeleteFunc(r.waiting, is), slices.DeleteFunc(r.admitted, is), slices.DeleteFunc(r.readers, is)
}

// tcpListener is the listener on TCP.
type tcpListener struct {
	net.Listener
	conns tcpConnections
}

func (d *tcpListener) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: c, peer: peer{address: addressOf(c), account: noUser}, tcp: &d.conns, uses: 1}
	conn.leave = func() { d.conns.leave(conn) }
	if evicted := d.conns.enter(conn); evicted != nil {
		evicted.shutDown()
	}
	return conn, nil
}

// addressOf returns the address that a client can be limited by: of IPv6 the network, of
// which one client usually has all addresses.
func addressOf(c net.Conn) string {
	a, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	ip := a.Addr().Unmap().WithZone("")
	if ip.Is4() || ip.IsLoopback() {
		return ip.String()
	}
	network, _ := ip.Prefix(64) // an IPv6 address has one
	return network.String()
}
