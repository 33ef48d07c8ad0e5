package queue

import (
	"cmp"
	"sync"
	"time"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pageclient"
	"github.com/giveway/giveway/sched"
)

// The limits of a wait for higher queues. They are those of shim/class_rule.h.
const (
	linger  = 200 * time.Microsecond // after their last command
	stall   = 20 * time.Millisecond  // while none of their commands is done: they may wait for this queue
	maxHold = 100 * time.Millisecond // in all, so that no queue starves
)

// lookAgain is how often a queue that waits looks at the limits.
const lookAgain = time.Millisecond

// rank is the place of a queue among the queues of the process. It is guarded by ranks.mu.
type rank struct {
	class         sched.Class
	priority      int32
	classGiven    bool
	priorityGiven bool

	busy      bool // it has commands that may begin or have begun
	hasNext   bool // it has a command that is to begin, and is not suspended
	done      uint64
	doneAt    time.Time // when the last command was done
	heldSince time.Time // since when the next command waits; zero: it does not
	letGo     uint64    // done of the higher queues, plus 1, when a command was let go; zero: none was
}

// ranks orders the queues of a process among themselves. Its lock may be taken with that of a
// queue held, not the other way round.
type ranks struct {
	page *pageclient.Page

	mu      sync.Mutex
	queues  map[*rank]struct{}
	changed chan struct{} // closed when a queue may have to wait no longer
	told    rank          // the class and the priority that the daemon was told
}

func newRanks(page *pageclient.Page) *ranks {
	return &ranks{page: page, queues: map[*rank]struct{}{}, changed: make(chan struct{})}
}

// processRanks orders the queues that New makes.
var processRanks = sync.OnceValue(func() *ranks { return newRanks(pageclient.ProcessPage()) })

// urgency is higher for a more urgent class.
func urgency(c sched.Class) int {
	switch c {
	case sched.Online:
		return 3
	case sched.Standard:
		return 2
	case sched.Batch:
		return 1
	}
	return 0
}

func (r *rank) compare(other *rank) int {
	return cmp.Or(cmp.Compare(urgency(r.class), urgency(other.class)), cmp.Compare(r.priority, other.priority))
}

func (s *ranks) add(r *rank) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[r] = struct{}{}
}

func (s *ranks) remove(r *rank) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, r)
	s.notify()
}

// set changes the class or the priority of a queue.
func (s *ranks) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.tell()
	s.notify()
}

// update notes whether a queue has a command that is to begin, whether commands are in flight, and
// how many are done.
func (s *ranks) update(r *rank, hasNext, inFlight bool, done uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done != r.done {
		r.done, r.doneAt = done, time.Now()
	}
	if r.hasNext = hasNext; !hasNext {
		r.heldSince = time.Time{} // dropped or suspended: a later command has its own wait
	}
	if busy := hasNext || inFlight; busy != r.busy {
		r.busy = busy
		s.tell()
		s.notify()
	}
}

// notify wakes the queues that wait. s.mu is held.
func (s *ranks) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// tell gives the daemon the class and the priority of the highest queue that has commands, as
// hints of the process, if they were set. s.mu is held.
func (s *ranks) tell() {
	var top *rank
	for r := range s.queues {
		if r.busy && (top == nil || r.compare(top) > 0) {
			top = r
		}
	}
	if top == nil {
		return
	}
	if top.classGiven && (!s.told.classGiven || s.told.class != top.class) {
		s.told.classGiven = s.page.Hint(pageabi.HintClass, int64(top.class))
		s.told.class = top.class
	}
	if top.priorityGiven && (!s.told.priorityGiven || s.told.priority != top.priority) {
		s.told.priorityGiven = s.page.Hint(pageabi.HintPriority, int64(top.priority))
		s.told.priority = top.priority
	}
}

// begun notes that the next command of a queue has begun.
func (s *ranks) begun(r *rank) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.heldSince = time.Time{}
}

// holds reports whether the next command of a queue waits because a higher queue has commands,
// and returns a channel that is closed when that may have changed.
func (s *ranks) holds(r *rank) (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.rule(r, time.Now())
	return held, s.changed
}

// rule is gw_class_rule of shim/class_rule.h. s.mu is held.
func (s *ranks) rule(r *rank, now time.Time) (wait bool) {
	var busy bool
	var done uint64
	var progress time.Time
	for o := range s.queues {
		if o == r || o.compare(r) <= 0 {
			continue
		}
		busy = busy || o.busy
		done += o.done
		if o.doneAt.After(progress) {
			progress = o.doneAt
		}
	}
	if !busy && now.Sub(progress) >= linger {
		return false
	}
	since := r.heldSince
	if since.IsZero() {
		since = now
	}
	if now.Sub(since) >= maxHold {
		return false
	}
	if busy && r.letGo == done+1 {
		return false
	}
	if since.After(progress) {
		progress = since
	}
	if busy && now.Sub(progress) >= stall {
		r.letGo = done + 1
		return false
	}
	if r.hasNext {
		r.heldSince = since
	}
	return true
}
