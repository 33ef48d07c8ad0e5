// Package quota divides a limited number of things, such as connections, among accounts.
package quota

// Quota says how many things there are, and how many of them one account may have. Nothing is
// taken back, so an account that takes all it can get must leave enough for those that come
// later: half of the things are kept for the first few of every account. Of the other half an
// account may have as many as are left of it: one account alone gets half of that half, two
// that ask in turn a third each.
type Quota struct {
	All  int // things that there are
	Each int // the most that one account may have
}

// Accounts is how many accounts get their first few in any case: more than the pods that
// a node of Kubernetes has by default (110).
const Accounts = 128

// Allows reports whether an account that has mine may have more, when all accounts together
// have taken.
func (q Quota) Allows(mine, taken, more int) bool {
	free := q.All - taken - more
	return free >= 0 && (mine+more <= q.few() || mine+more <= min(q.Each, free+1-q.kept()))
}

// kept is how many are kept for the first few of every account.
func (q Quota) kept() int { return q.All / 2 }

// few is how many an account may have as long as there are any.
func (q Quota) few() int { return max(1, q.kept()/Accounts) }
