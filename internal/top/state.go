package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
)

// State is the state of the screen.
type State struct {
	look          Look
	width, height int

	last    Snapshot
	shown   bool // there is a snapshot
	gone    error
	history map[int]*history
	shares  map[describe.Key]float64 // between the last two snapshots
	took    time.Duration            // between them
	classes []classTotals            // of the last 10 s, the oldest first
	all     []row                    // of all processes
	rows    []row                    // those on the screen: filtered and sorted

	mode      mode
	sort      int // in sorts
	reverse   bool
	flat      bool // members of pools are not below their server
	frozen    bool
	filter    string
	selected  int  // pid
	chosen    bool // by the user; otherwise it is the first row
	offset    int  // of the first row on the screen
	scroll    int  // of help and explanations
	input     string
	order     Order // to confirm
	message   string
	said      time.Time // when message was
	clock     time.Time // of the newest snapshot, also of those that are not shown
	once      bool      // it is printed once, after a moment
	explained []describe.Section
}

// messageTime is how long a message stays, unless a key is pressed.
const messageTime = 5 * time.Second

// say shows a message in the last line.
func (s *State) say(text string) { s.message, s.said = text, s.clock }

// mode says what the screen shows and what keys mean.
type mode uint8

const (
	inTable   mode = iota
	inHelp         // the keys
	inExplain      // why a process runs or waits
	inFilter       // a filter is typed
	inClass        // a class is chosen
	inWeight       // a weight is typed
	inConfirm      // an order is to be confirmed
)

// New returns the state of an empty screen.
func New(look Look, width, height int) *State {
	return &State{look: look, width: width, height: height, history: map[int]*history{}}
}

// Resize changes the size of the screen.
func (s *State) Resize(width, height int) { s.width, s.height = width, height }

// Take shows a snapshot. Those before it are the source of shares and rates.
func (s *State) Take(next Snapshot) {
	s.gone = nil
	if s.clock = next.At; s.clock.Sub(s.said) >= messageTime {
		s.message = ""
	}
	if s.frozen && s.shown {
		return
	}
	if next.Status.Uptime < s.last.Status.Uptime { // another daemon, which counts anew
		s.shown, s.shares, s.classes = false, nil, nil
		clear(s.history)
	}
	if took := next.At.Sub(s.last.At); s.shown && took > 0 {
		s.shares, s.took = describe.Shares(s.last.sample(), next.sample()), took
		s.addSteps(next, took)
	}
	s.last, s.shown = next, true
	s.forget()
	s.all = s.all[:0]
	for i := range next.Processes {
		p := &next.Processes[i]
		s.all = append(s.all, rowOf(p, s.historyOf(p), s.shares))
	}
	addDelays(s.all, next.Delays)
	s.classes = addClasses(s.classes, next.Delays)
	s.arrange()
}

func (s Snapshot) sample() describe.Sample { return describe.Sample{At: s.At, Processes: s.Processes} }

// Lost notes that the daemon does not answer. The last snapshot stays on the screen.
func (s *State) Lost(err error) { s.gone = err }

// historyOf returns the history of a process, made if there is none.
func (s *State) historyOf(p *api.Process) *history {
	first := uint64(0)
	for i, q := range p.Queues {
		if i == 0 || q.ID < first {
			first = q.ID
		}
	}
	h := s.history[p.PID]
	if h == nil || h.first != first && first != 0 && h.first != 0 {
		h = &history{slot: s.freeSlot(), count: requestsOf(p)}
		s.history[p.PID] = h
	}
	if first != 0 {
		h.first = first
	}
	return h
}

// freeSlot returns the colour that the fewest processes have.
func (s *State) freeSlot() int {
	var used [slots]int
	for _, h := range s.history {
		used[h.slot]++
	}
	return slices.Index(used[:], slices.Min(used[:]))
}

func requestsOf(p *api.Process) uint64 {
	if p.Requests == nil {
		return 0
	}
	return p.Requests.Count
}

// addSteps adds what the processes did since the last snapshot to their histories.
func (s *State) addSteps(next Snapshot, took time.Duration) {
	type count struct{ met, late int }
	ended := map[int]count{}
	for _, e := range next.Requests {
		if e.Request == nil || e.Request.SLO == 0 {
			continue
		}
		c := ended[e.PID]
		if e.Request.Late {
			c.late++
		} else {
			c.met++
		}
		ended[e.PID] = c
	}
	for i := range next.Processes {
		p := &next.Processes[i]
		h := s.historyOf(p)
		now := requestsOf(p)
		add := step{took: took, requests: max(now, h.count) - h.count, met: ended[p.PID].met, late: ended[p.PID].late}
		h.count = now
		if share, known := describe.Share(s.shares, p); known {
			add.share = share
			h.add(add)
		}
	}
}

// forget drops the histories of processes that are gone.
func (s *State) forget() {
	alive := map[int]bool{}
	for i := range s.last.Processes {
		alive[s.last.Processes[i].PID] = true
	}
	for pid := range s.history {
		if !alive[pid] {
			delete(s.history, pid)
		}
	}
}

// order by which rows are sorted.
type sortOrder struct {
	name    string
	compare func(a, b *row) int // the row that is to be above the other comes first
}

// sorts lists the orders; the first is the default.
var sorts = []sortOrder{
	{"share of the last minute", func(a, b *row) int { return cmp.Compare(b.minute, a.minute) }},
	{"share now", func(a, b *row) int { return cmp.Compare(b.now, a.now) }},
	{"device time", func(a, b *row) int { return cmp.Compare(served(b.process), served(a.process)) }},
	{"requests/s", func(a, b *row) int { return cmp.Compare(b.rate, a.rate) }},
	{"P99", func(a, b *row) int { return cmp.Compare(p99(b.process), p99(a.process)) }},
	{"SLO met", func(a, b *row) int { return cmp.Compare(metOrOne(a), metOrOne(b)) }},
	{"wait", func(a, b *row) int { return cmp.Compare(b.waits, a.waits) }},
	{"weight", func(a, b *row) int {
		return cmp.Compare(b.process.Attrs.Int(attr.Weight), a.process.Attrs.Int(attr.Weight))
	}},
	{"class", func(a, b *row) int { return cmp.Compare(a.process.Attrs.Class(), b.process.Attrs.Class()) }},
	{"state", func(a, b *row) int { return cmp.Compare(a.use.State, b.use.State) }},
	{"user", func(a, b *row) int { return cmp.Compare(a.process.User, b.process.User) }},
	{"command", func(a, b *row) int { return cmp.Compare(a.process.Command, b.process.Command) }},
	{"pid", func(a, b *row) int { return 0 }}, // which decides between rows that are equal
}

func served(p *api.Process) (sum time.Duration) {
	for _, q := range p.Queues {
		sum += q.Served
	}
	if p.Member != nil && len(p.Queues) == 0 {
		sum = p.Member.Served
	}
	return sum
}

func p99(p *api.Process) time.Duration {
	if p.Requests == nil {
		return 0
	}
	return p.Requests.P99
}

// metOrOne returns the part of requests that met the SLO, to sort by.
func metOrOne(r *row) float64 {
	if !r.hasMet {
		return 1
	}
	return r.met
}

// arrange filters and sorts the rows.
func (s *State) arrange() {
	s.rows = s.rows[:0]
	for _, r := range s.all {
		if s.filter == "" || matches(r.process, s.filter) {
			s.rows = append(s.rows, r)
		}
	}
	by := sorts[s.sort].compare
	slices.SortStableFunc(s.rows, func(a, b row) int {
		c := cmp.Or(by(&a, &b), cmp.Compare(a.process.PID, b.process.PID))
		if s.reverse {
			return -c
		}
		return c
	})
	if !s.flat {
		s.rows = tree(s.rows)
	}
	if (!s.chosen || s.cursor() < 0) && len(s.rows) > 0 {
		s.chosen = false
		s.selected = s.rows[0].process.PID
	}
}

// tree puts the clients of an MPS server below it.
func tree(rows []row) []row {
	server := map[int]bool{}
	for i := range rows {
		server[rows[i].process.PID] = true
	}
	below := map[int][]row{}
	isBelow := func(p *api.Process) bool {
		m := p.Member
		return m != nil && !m.Lost && m.Server != p.PID && server[m.Server]
	}
	for _, r := range rows {
		if isBelow(r.process) {
			below[r.process.Member.Server] = append(below[r.process.Member.Server], r)
		}
	}
	if len(below) == 0 {
		return rows
	}
	out := make([]row, 0, len(rows))
	for _, r := range rows {
		if !isBelow(r.process) {
			out = append(out, r)
			out = append(out, below[r.process.PID]...)
		}
	}
	return out
}

// matches reports whether a process has the text of a filter somewhere.
func matches(p *api.Process, filter string) bool {
	filter = strings.ToLower(filter)
	for _, text := range []string{strconv.Itoa(p.PID), p.User, p.Class(), describe.Container(p), format.Text(p.Command, 4096)} {
		if strings.Contains(strings.ToLower(text), filter) {
			return true
		}
	}
	return slices.ContainsFunc(p.Queues, func(q api.Queue) bool { return strings.Contains(q.State, filter) || strings.Contains(q.Pool, filter) })
}

// cursor returns the index of the selected row; below zero: it is not on the screen.
func (s *State) cursor() int {
	return slices.IndexFunc(s.rows, func(r row) bool { return r.process.PID == s.selected })
}

// process returns the selected process, or nil.
func (s *State) process() *api.Process {
	if i := s.cursor(); i >= 0 {
		return s.rows[i].process
	}
	return nil
}

// Done shows the outcome of an order.
func (s *State) Done(o Order, p api.Process, err error) {
	if err != nil {
		s.say(format.Text(fmt.Sprintf("%s: %v", o.Text, err), 1000))
		return
	}
	s.say("done: " + o.Text)
	for _, i := range p.Ignored {
		if i.Name == o.Attr.String() {
			effect, reason := i.Effect()
			s.message += ", but it " + effect + ": " + format.Text(reason, 500)
		}
	}
}

// Explained shows the explanation of the selected process, with what the caller has found
// out besides the last snapshot; err: that failed.
func (s *State) Explained(f describe.Facts, err error) {
	if err != nil {
		s.say(format.Text("explain: "+err.Error(), 1000))
		return
	}
	if f.Process = s.process(); f.Process == nil {
		return
	}
	f.All, f.Devices, f.Policy, f.Delays = s.last.Processes, s.last.Status.Devices, s.last.Status.Policy, s.last.Delays
	f.Shares, f.Period = s.shares, s.took.Round(100*time.Millisecond)
	s.mode, s.scroll, s.explained = inExplain, 0, describe.Explain(f)
}
