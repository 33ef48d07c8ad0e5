package policy

import "github.com/giveway/giveway/sched"

// ledger keeps an account of type T for every queue of a view. Views and ledger
// are both in order of ID, so one walk brings the ledger up to date: newcomers
// get a zero account and those who left are forgotten. Nothing is allocated
// while the same queues stay.
type ledger[T any] struct {
	ids      []sched.QueueID
	accounts []T
	spareIDs []sched.QueueID
	spare    []T
}

// update makes account i that of queue i of the view, for every i.
func (l *ledger[T]) update(queues []sched.Queue) []T {
	if l.current(queues) {
		return l.accounts
	}
	ids, accounts := l.spareIDs[:0], l.spare[:0]
	old := 0
	for i := range queues {
		id := queues[i].ID
		for old < len(l.ids) && l.ids[old] < id {
			old++
		}
		var account T
		if old < len(l.ids) && l.ids[old] == id {
			account = l.accounts[old]
		}
		ids, accounts = append(ids, id), append(accounts, account)
	}
	l.ids, l.accounts, l.spareIDs, l.spare = ids, accounts, l.ids, l.accounts
	return l.accounts
}

func (l *ledger[T]) current(queues []sched.Queue) bool {
	if len(l.ids) != len(queues) {
		return false
	}
	for i := range queues {
		if l.ids[i] != queues[i].ID {
			return false
		}
	}
	return true
}
