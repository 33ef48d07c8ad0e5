package server

// Share divides a limited number of things, such as connections, among accounts. Nothing is
// taken back, so an account that takes all it can get must leave enough for those that come
// later: half of the things are kept for the first few of every account. Of the other half an
// account may have as many as are left of it: one account alone gets half of that half, two
// that ask in turn a third each.
type Share struct {
	All  int // things that there are
	Each int // the most that one account may have
}

// shareAccounts is how many accounts get their first few in any case: more than the pods that
// a node of Kubernetes has by default (110).
const shareAccounts = 128

// Allows reports whether an account that has mine may have one more, when all accounts
// together have taken.
func (s Share) Allows(mine, taken int) bool {
	free := s.All - taken
	return free > 0 && (mine < s.few() || mine < min(s.Each, free-s.kept()))
}

// kept is how many are kept for the first few of every account.
func (s Share) kept() int { return s.All / 2 }

// few is how many an account may have as long as there are any.
func (s Share) few() int { return max(1, s.kept()/shareAccounts) }
