package discover

import "slices"

// membership is a group of an MPS server that a client holds. It was reported by Joined.
type membership struct {
	*Member
	by *Group // the client's own handle of the server's group
}

// same reports whether both are of the same group of the same server.
func (m membership) same(o membership) bool { return m.Server == o.Server && m.Group == o.Group }

// ownsGroup reports whether a group is to be reported for a process. Under MPS all clients
// use the group of the server, each under a handle of its own: it is one queue and belongs
// to the server.
func (w *Watcher) ownsGroup(h *opener, g *Group, server bool) bool {
	for _, o := range w.sortedOpeners() {
		if o == h {
			continue
		}
		for _, key := range sortedKeys(o.groups) {
			other := o.groups[key] // nil: a scan of o has found that it is gone
			if other == nil || other.ID != g.ID || other.GPU != g.GPU {
				continue
			}
			switch {
			case server: // o is a client, or has given up a group with this number
				o.sharesGroup = true
				w.reportGone(o, key)
				w.scanSoon(o.process.PID)
			case w.proc.isMPSServer(o.process.PID) && w.isClient(h, g, o, key):
				return false
			}
		}
	}
	return true
}

// isClient reports whether a process that has a group with the number of a server's group is
// a client of that server, and reports a new one by Joined. RM gives the number of a group
// that was freed to another process, so the server is scanned first.
func (w *Watcher) isClient(h *opener, g *Group, server *opener, key Key) bool {
	m := membership{&Member{h.process, server.process.ID(), key}, g}
	known := func(o membership) bool { return o.same(m) && o.by.Key == g.Key && o.by.ID == g.ID }
	switch {
	case slices.ContainsFunc(h.memberOf, known):
		return true
	case w.inOwnerScan: // scans are not nested further
		w.scanSoon(h.process.PID)
		return true
	case !w.stillHas(server, key):
		return false
	}
	// An older one by the same handle is replaced.
	w.reportLeft(h, func(o membership) bool { return o.by.Key == g.Key })
	joined := slices.ContainsFunc(h.memberOf, m.same)
	if h.memberOf = append(h.memberOf, m); !joined {
		w.emit(Event{Joined: m.Member})
	}
	return true
}

// stillHas scans a process and reports whether it still has a group with the same number.
func (w *Watcher) stillHas(h *opener, key Key) bool {
	was := h.groups[key]
	w.inOwnerScan = true
	for fd, c := range h.files {
		if c.client == key.Client {
			w.scan(h.process.PID, []call{{fd: fd, client: key.Client, object: key.Handle}}, false)
			break
		}
	}
	w.inOwnerScan = false
	is := h.groups[key]
	return w.openers[h.process.PID] == h && is != nil && is.ID == was.ID && is.GPU == was.GPU
}

// reportLeft emits that a client has given up groups of MPS servers.
func (w *Watcher) reportLeft(h *opener, gone func(membership) bool) {
	var left []membership
	h.memberOf = slices.DeleteFunc(h.memberOf, func(m membership) bool {
		if gone(m) {
			left = append(left, m)
			return true
		}
		return false
	})
	for i, m := range left {
		// It may hold the group under another handle.
		if !slices.ContainsFunc(h.memberOf, m.same) && !slices.ContainsFunc(left[:i], m.same) {
			w.emit(Event{Left: m.Member})
		}
	}
}

// dropMembers forgets the clients of a group that its server has given up. If the server
// makes it again, they are reported again.
func (w *Watcher) dropMembers(server *opener, group Key) {
	of := func(m membership) bool { return m.Server == server.process.ID() && m.Group == group }
	for _, h := range w.openers {
		if slices.ContainsFunc(h.memberOf, of) {
			h.memberOf = slices.DeleteFunc(h.memberOf, of)
			w.scanSoon(h.process.PID)
		}
	}
}
