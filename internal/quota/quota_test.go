package quota

import (
	"math/rand/v2"
	"testing"
)

// TestQuota: whatever accounts take, in any order, each of 128 accounts still gets its first
// few, and an account gets less the more others have.
func TestQuota(t *testing.T) {
	for _, q := range []Quota{{All: 896, Each: 256}, {All: 4096, Each: 512}, {All: 128, Each: 32}, {All: 64, Each: 8}} {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 1))
		has, taken := map[int]int{}, 0
		take := func(account int) bool {
			if !q.Allows(has[account], taken, 1) {
				return false
			}
			has[account]++
			taken++
			return true
		}
		accounts := min(Accounts, q.All/2)
		for hog := 0; hog < accounts; hog += 1 + random.IntN(8) { // one after the other
			for take(hog) {
			}
		}
		for range 20 * q.All { // all together
			take(random.IntN(accounts))
		}
		for account := range accounts {
			for take(account) {
			}
			if has[account] < q.few() || has[account] > q.Each {
				t.Errorf("%+v, seed %d: account %d of %d got %d, want %d to %d", q, seed, account, accounts, has[account], q.few(), q.Each)
			}
		}
		if taken > q.All {
			t.Errorf("%+v, seed %d: %d were taken", q, seed, taken)
		}
	}
}

// TestQuotaOfFew: accounts that ask in turn get equal parts, which are larger the fewer they
// are.
func TestQuotaOfFew(t *testing.T) {
	q := Quota{All: 800, Each: 1000}
	for accounts, want := range map[int]int{1: 200, 3: 100, 7: 50} {
		has := make([]int, accounts)
		taken := 0
		for going := true; going; {
			going = false
			for i := range has {
				if q.Allows(has[i], taken, 1) {
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
