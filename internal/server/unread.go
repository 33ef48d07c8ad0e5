package server

import (
	"sync"

	"github.com/giveway/giveway/internal/quota"
)

// A front end keeps a reply in memory until the caller has read it, for answerTime at most. So the
// bytes of replies that were not read are limited for each account. Callers that may do everything
// have no limit, and a front end of their own.
const smallReply = 16 << 10 // replies up to this size do not count: the number of connections bounds them

// unreadQuota divides the bytes of unread replies among accounts.
var unreadQuota = quota.Quota{All: 64 << 20, Each: 16 << 20}

// unread counts the bytes of replies that callers have not read.
type unread struct {
	mu  sync.Mutex
	of  map[uint32]int // by account
	all int
}

// enter counts a reply, unless the account has too many bytes unread. An account that has read
// everything gets its reply whatever its size.
func (u *unread) enter(account uint32, n int) (leave func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if mine := u.of[account]; mine > 0 && !unreadQuota.Allows(mine, u.all, n) {
		return nil, false
	}
	count := func(n int) {
		if u.of[account] += n; u.of[account] == 0 {
			delete(u.of, account)
		}
		u.all += n
	}
	count(n)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		count(-n)
	}, true
}

// countUnread counts a reply to a connection as unread, or returns a refusal in its place.
func (s *Server) countUnread(c *connection, by caller, a reply) reply {
	if by.all || by.agent || !a.counts() {
		return a
	}
	leave, ok := s.unread.enter(by.account, len(a.body))
	if !ok {
		return errorReply(TooMany("user %d has too many replies that were not read; read them, or close their connections", by.account))
	}
	c.setUnread(leave)
	return a
}

// counts reports whether a reply is counted until the front end has written it.
func (a *reply) counts() bool { return !a.held && len(a.body) > smallReply }

// setUnread notes that the connection has a reply to read; leave is called when it is read.
func (c *connection) setUnread(leave func()) {
	c.mu.Lock()
	gone := c.gone
	if !gone {
		c.unread = leave
	}
	c.mu.Unlock()
	if gone {
		leave()
	}
}

// replyRead notes that the last reply was written to the connection, or never will be.
func (c *connection) replyRead() {
	c.mu.Lock()
	leave := c.unread
	c.unread = nil
	c.mu.Unlock()
	if leave != nil {
		leave()
	}
}
