package policy

import "github.com/giveway/giveway/sched"

// group limits how many light queues run side by side beside online work. Each one that runs
// makes requests wait longer, and a few already use what online work leaves: in the simulator
// on an H200, 24 launch-bound jobs do less together (585/s) than four at a time (622/s), and a
// request takes 7.7 ms, not 1.1 ms.
//
// The group is the queue whose turn it is and those that had the turns just before. So with
// every turn one queue enters, and the one that ran longest leaves.
type group struct {
	limit int // queues in the group, with the one whose turn it is: the parameter beside
}

// maxGroup is the largest number of queues in a group.
const maxGroup = 64

// choose sets which of the light queues wait because the group is full. Newcomers in a trial
// do not count. It marks all light queues as outside, keeps those with the latest turns in a
// list that is sorted as it grows, and marks the queues of that list as inside.
func (g *group) choose(current sched.QueueID, queues []sched.Queue, states []queueState, limited bool) {
	var latest [maxGroup]*queueState // of at most limit-1 queues, by their last turns, the latest first
	n := 0
	for i := range states {
		st := &states[i]
		st.outsideGroup = limited && st.sideBySide && st.load.verdict == lightLoad && queues[i].ID != current
		if !st.outsideGroup {
			continue
		}
		at := n
		for at > 0 && latest[at-1].lastTurn < st.lastTurn {
			at--
		}
		if at == g.limit-1 {
			continue // the list is full of later ones
		}
		n = min(n+1, g.limit-1)
		copy(latest[at+1:n], latest[at:])
		latest[at] = st
	}
	for _, st := range latest[:n] {
		st.outsideGroup = false
	}
}

// advance lets the light queue that has waited longest enter the group. It is called while only
// heavy queues take turns, because then no turn of a light queue changes the group.
func (g *group) advance(now sched.Time, states []queueState) {
	var next *queueState
	for i := range states {
		if st := &states[i]; st.sideBySide && st.outsideGroup && (next == nil || st.lastTurn < next.lastTurn) {
			next = st
		}
	}
	if next != nil {
		next.lastTurn = now
	}
}
