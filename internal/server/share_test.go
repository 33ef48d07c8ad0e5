package server

import (
	"math/rand/v2"
	"testing"
)

// TestShare: whatever accounts take, in any order, each of 128 accounts still gets its first
// few, and an account gets less the more others have.
func TestShare(t *testing.T) {
	for _, s := range []Share{{All: 896, Each: 256}, {All: 4096, Each: 512}, {All: 128, Each: 32}, {All: 64, Each: 8}} {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 1))
		has, taken := map[int]int{}, 0
		take := func(account int) bool {
			if !s.Allows(has[account], taken) {
				return false
			}
			has[account]++
			taken++
			return true
		}
		accounts := min(shareAccounts, s.All/2)
		for hog := 0; hog < accounts; hog += 1 + random.IntN(8) { // one after the other
			for take(hog) {
			}
		}
		for range 20 * s.All { // all together
			take(random.IntN(accounts))
		}
		for account := range accounts {
			for take(account) {
			}
			if has[account] < s.few() || has[account] > s.Each {
				t.Errorf("%+v, seed %d: account %d of %d got %d, want %d to %d", s, seed, account, accounts, has[account], s.few(), s.Each)
			}
		}
		if taken > s.All {
			t.Errorf("%+v, seed %d: %d were taken", s, seed, taken)
		}
	}
}

// TestShareOfFew: accounts that ask in turn get equal parts, which are larger the fewer they
// are.
func TestShareOfFew(t *testing.T) {
	s := Share{All: 800, Each: 1000}
	for accounts, want := range map[int]int{1: 200, 3: 100, 7: 50} {
		has := make([]int, accounts)
		taken := 0
		for going := true; going; {
			going = false
			for i := range has {
				if s.Allows(has[i], taken) {
					has[i], taken, going = has[i]+1, taken+1, true
				}
			}
		}
		for i, n := range has {
			if n < want-1 || n > want+1 {
				t.Errorf("account %d of %d got %d, want %d", i, accounts, n, want)
			}
		}
	}
}
