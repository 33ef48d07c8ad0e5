package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// churn opens n queues that are always ready and replaces each when its lifetime is
// over. It adds to fluid what an ideal device, which serves all ready queues at once by
// weight, would give each of the residents.
type churn struct {
	l         *testNode
	r         *rand.Rand
	life      time.Duration // the mean
	away      time.Duration // the mean of the time between two queues
	weight    uint32        // the highest
	residents []*job
	fluid     []float64
	visitors  []*job
	lastID    sched.QueueID
	change    []sched.Time // when each visitor closes, or the next one opens
}

func (c *churn) batch(w uint32) sched.Queue {
	c.lastID++
	return sched.Queue{ID: c.lastID, Attr: sched.Attr{Class: sched.Batch, Weight: w}}
}

// tick opens and closes visitors, and advances the ideal device by one tick.
func (c *churn) tick() {
	for i, v := range c.visitors {
		if c.l.now < c.change[i] {
			continue
		}
		mean := c.life
		if v != nil && !v.closed {
			c.l.close(v)
			c.l.jobs = slices.DeleteFunc(c.l.jobs, func(j *job) bool { return j == v })
			mean = c.away
		} else {
			c.visitors[i] = c.l.open(c.batch(1+uint32(c.r.IntN(int(c.weight)))), saturating)
		}
		c.change[i] = c.l.now.Add(mean/2 + time.Duration(c.r.Int64N(int64(mean)+1)))
	}
	total := 0.0
	for _, j := range c.l.jobs {
		if !j.closed {
			total += float64(j.Weight())
		}
	}
	for i, j := range c.residents {
		c.fluid[i] += float64(tick) * float64(j.Weight()) / total
	}
}

func newChurn(t *testing.T, policy string, seed uint64, life time.Duration, visitors int, residents ...uint32) *churn {
	c := &churn{
		l: newNode(t, policy, nil), r: rand.New(rand.NewPCG(seed, 15)), life: life, away: life / 2, weight: 1,
		visitors: make([]*job, visitors), change: make([]sched.Time, visitors), fluid: make([]float64, len(residents)),
	}
	for _, w := range residents {
		c.residents = append(c.residents, c.l.open(c.batch(w), saturating))
	}
	return c
}

// few returns n, or a fifth of it with -short.
func few(n uint64) uint64 {
	if testing.Short() {
		return max(n/5, 1)
	}
	return n
}

// TestResidentKeepsItsShareBesideNewcomers checks that queues that come and go take no
// more than their weight, however often a new one comes.
func TestResidentKeepsItsShareBesideNewcomers(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "share-process", "giveway", "slo"} {
		for _, life := range []time.Duration{15 * ms, 60 * ms, 300 * ms} {
			for seed := range few(3) {
				c := newChurn(t, name, seed, life, 8, 1)
				c.l.run(time.Duration(few(10))*time.Second, c.tick)
				// What a queue was served after the last plan before it closed is not
				// counted. That is most with lifetimes as short as a turn.
				if got := float64(c.residents[0].served) / c.fluid[0]; got < 0.75 || got > 1.15 {
					t.Errorf("%s, newcomers live for %v, seed %d: the resident got %v, %.2f of its share", name, life, seed, c.residents[0].served, got)
				}
			}
		}
	}
}

// TestResidentsStayTogetherBesideNewcomers checks at every tick that the service of two
// queues that are always ready, divided by weight, differs by at most one turn of each,
// and at the end that each has its share, while queues of other weights come and go.
func TestResidentsStayTogetherBesideNewcomers(t *testing.T) {
	for name, turn := range map[string]time.Duration{"wfq": 10 * ms, "cfs": 20 * ms, "giveway": 50 * ms} {
		for seed := range few(10) {
			c := newChurn(t, name, seed, 100*ms, 5, 1, 2, 5)
			c.weight = 6
			c.l.run(5*time.Second, c.tick, func() {
				for i, a := range c.residents {
					for _, b := range c.residents[:i] {
						wa, wb := time.Duration(a.Weight()), time.Duration(b.Weight())
						if apart := (a.served/wa - b.served/wb).Abs(); apart > turn/wa+turn/wb+tick {
							t.Fatalf("%s, seed %d, at %v: weights %d and %d differ by %v", name, seed, time.Duration(c.l.now), wa, wb, apart)
						}
					}
				}
			})
			for i, j := range c.residents {
				if want := time.Duration(c.fluid[i]); !near(j.served, want, want/10+turn) {
					t.Errorf("%s, seed %d: the resident of weight %d got %v, want %v", name, seed, j.Weight(), j.served, want)
				}
			}
		}
	}
}

// TestNewcomerThatStaysDoesNotTakeOver checks that queues that leave before they are
// served do not hold the clock back: the next newcomer would have the device alone until
// it had caught up.
func TestNewcomerThatStaysDoesNotTakeOver(t *testing.T) {
	for _, name := range []string{"wfq", "cfs", "share", "giveway"} {
		c := newChurn(t, name, 1, ms, 8, 1)
		c.l.run(5*time.Second, c.tick)
		for _, v := range c.visitors {
			c.l.close(v)
		}
		old := c.residents[0]
		young := c.l.open(c.batch(1), saturating)
		before := old.served
		c.l.run(time.Second)
		if got := old.served - before; !near(got, 500*ms, 60*ms) {
			t.Errorf("%s: in the next second the resident got %v and the newcomer %v, want 500ms each", name, got, young.served)
		}
	}
}
