package record

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// some returns a record with so many entries, every hundredth an order.
func some(entries int) *Record {
	r := New(time.Now(), 4*chunkLength)
	for i := range entries {
		e := Entry{Kind: Span, At: sched.Time(i), PID: int32(i)}
		if i%100 == 99 {
			e.Kind, e.Words = Order, &Details{Order: api.Order{Name: "set"}}
		}
		r.Add(&e)
	}
	return r
}

func read(r *Record, q Query) (seqs []uint64, res Result) {
	res = r.Read(q, func(e *Entry) { seqs = append(seqs, e.Seq) })
	return seqs, res
}

// TestReadInPieces reads records of many sizes with many limits, and compares with a record
// that forgets nothing: what is there, in order, and what is lost, add up.
func TestReadInPieces(t *testing.T) {
	for _, n := range []int{0, 1, chunkLength, chunkLength + 1, 4 * chunkLength, 4*chunkLength + 1, 20_000} {
		for _, limit := range []int{1, 7, 1000, 5000} {
			r := some(n)
			kept, after, got := uint64(0), uint64(0), uint64(0)
			for calls := 0; ; calls++ {
				seqs, res := read(r, Query{After: after, Kinds: All, Limit: limit})
				for _, s := range seqs {
					if s <= kept {
						t.Fatalf("%d entries, limit %d: %d comes after %d", n, limit, s, kept)
					}
					kept = s
				}
				got += uint64(len(seqs)) + res.Lost
				if got != res.Next {
					t.Fatalf("%d entries, limit %d: %d entries seen or lost up to %d", n, limit, got, res.Next)
				}
				if after = res.Next; !res.More {
					break
				}
				if len(seqs) != limit || calls > n {
					t.Fatalf("%d entries, limit %d: a call returned %d", n, limit, len(seqs))
				}
			}
			if got != uint64(n) || after != uint64(n) {
				t.Fatalf("%d entries, limit %d: got %d, to %d", n, limit, got, after)
			}
		}
	}
}

// TestOrdersAreKeptLonger checks that spans do not push orders out.
func TestOrdersAreKeptLonger(t *testing.T) {
	const n = 50_000
	seqs, res := read(some(n), Query{Kinds: 1 << Order})
	if len(seqs) != n/100 || seqs[0] != 100 || res.Lost == 0 || res.Next != n {
		t.Errorf("got %d orders from %v on, %+v", len(seqs), seqs[:min(1, len(seqs))], res)
	}
}

// TestStatesDoNotPushOrdersOut: processes that come and go leave the orders where they are.
func TestStatesDoNotPushOrdersOut(t *testing.T) {
	r := New(time.Now(), 2*chunkLength)
	r.Order(5, api.Order{Name: "set"}, Details{})
	r.Note("", 0, "guardian", "running")
	for range 20_000 {
		r.Add(&Entry{Kind: State})
	}
	if seqs, _ := read(r, Query{Kinds: 1<<Order | 1<<Note}); len(seqs) != 2 || seqs[0] != 1 || seqs[1] != 2 {
		t.Errorf("got %v", seqs)
	}
	if text, _ := r.AppendRecord(nil, Query{Kinds: 1 << Order}, func(*Entry) bool { return false }); strings.Contains(string(text), "kept_lost") {
		t.Errorf("orders are said to be lost: %s", text)
	}
	if text, _ := r.AppendRecord(nil, Query{Kinds: 1 << State, Limit: 1}, func(*Entry) bool { return false }); !strings.Contains(string(text), `"kept_lost":true`) {
		t.Errorf("states are not said to be lost: %s", text)
	}
}

// TestReadLast checks that the newest entries are returned if that is asked for.
func TestReadLast(t *testing.T) {
	r := some(10_000)
	for _, q := range []Query{{Kinds: All, Limit: 10, Last: true}, {Kinds: 1 << Order, Limit: 3, Last: true}, {Kinds: 1 << Order, Limit: 90, Last: true}} {
		seqs, res := read(r, q)
		if len(seqs) != q.Limit || res.More || res.Next != 10_000 || seqs[len(seqs)-1] != 10_000 {
			t.Errorf("%+v: got %v, %+v", q, seqs, res)
		}
	}
}

// TestNumberOfAnEarlierDaemon checks that a reader that comes from an earlier daemon gets
// everything.
func TestNumberOfAnEarlierDaemon(t *testing.T) {
	if seqs, res := read(some(10), Query{After: 1000, Kinds: All}); len(seqs) != 10 || res.Next != 10 {
		t.Errorf("got %v, %+v", seqs, res)
	}
}

// TestManyReaders lets readers follow while entries are written. Each entry that a reader
// sees is whole, and those that it does not see are counted as lost.
func TestManyReaders(t *testing.T) {
	r := New(time.Now(), 2*chunkLength)
	const n = 60_000
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			after, seen := uint64(0), uint64(0)
			for after < n {
				res := r.Read(Query{After: after, Kinds: All, Limit: 300}, func(e *Entry) {
					if seen++; e.Queue != sched.QueueID(e.Seq) || e.Number != e.Seq || e.Bound != uint32(e.Seq) {
						t.Errorf("entry %d is of %d, %d and %d", e.Seq, e.Queue, e.Number, e.Bound)
					}
				})
				seen += res.Lost
				after = res.Next
			}
			if seen != n {
				t.Errorf("a reader saw or lost %d entries of %d", seen, n)
			}
		})
	}
	for i := uint64(1); i <= n; i++ {
		r.Add(&Entry{Kind: Decision, Queue: sched.QueueID(i), Number: i, Bound: uint32(i)})
	}
	readers.Wait()
}

// TestAddDoesNotAllocate checks that a full ring is written without allocations.
func TestAddDoesNotAllocate(t *testing.T) {
	r := some(5 * chunkLength)
	e := Entry{Kind: Span}
	if got := testing.AllocsPerRun(5*chunkLength, func() { r.Add(&e) }); got != 0 {
		t.Errorf("got %v allocations an entry", got)
	}
}

// TestJSON compares the JSON that is written by hand with that of api.Entry: every field of
// it is written, and nothing else.
func TestJSON(t *testing.T) {
	const seed = 3
	random := rand.New(rand.NewPCG(seed, seed))
	written := map[string]bool{}
	for range 5000 {
		e := randomEntry(random)
		text := e.AppendJSON(nil, false)
		var back api.Entry
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("seed %d: %v: %s", seed, err, text)
		}
		again, err := json.Marshal(back)
		if err != nil {
			t.Fatal(err)
		}
		var got, want map[string]any
		if json.Unmarshal(text, &got) != nil || json.Unmarshal(again, &want) != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: wrote %s\napi.Entry has %s", seed, text, again)
		}
		collect(written, "", got)
	}
	for _, field := range jsonFields(reflect.TypeFor[api.Entry](), "") {
		if !written[field] {
			t.Errorf("field %s is never written", field)
		}
	}
}

func collect(into map[string]bool, prefix string, m map[string]any) {
	for k, v := range m {
		into[prefix+k] = true
		if inner, ok := v.(map[string]any); ok {
			collect(into, prefix+k+".", inner)
		}
	}
}

// jsonFields lists the fields of a struct in JSON.
func jsonFields(typ reflect.Type, prefix string) (all []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := f.Tag.Get("json")
		for j, c := range name {
			if c == ',' {
				name = name[:j]
				break
			}
		}
		all = append(all, prefix+name)
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			all = append(all, jsonFields(inner, prefix+name+".")...)
		}
	}
	return all
}

func randomEntry(r *rand.Rand) Entry {
	hostile := []string{"", "giveway", "a\"b\\c", "<script>\x00\u202e", "\xff\xfe\n"}
	text := func() string { return hostile[r.IntN(len(hostile))] }
	uid := r.Int64N(1 << 32)
	return Entry{
		Seq: r.Uint64N(1 << 50), At: sched.Time(r.Int64N(1 << 50)), Begin: sched.Time(r.Int64N(9)), End: sched.Time(r.Int64N(9)),
		Queue: sched.QueueID(r.IntN(3)), Number: r.Uint64N(99), Cause: r.Uint64N(2), Device: sched.DeviceID(text()),
		Slice: time.Duration(r.IntN(3)), Cost: time.Duration(r.IntN(3)), PID: r.Int32N(2), Bound: r.Uint32N(3), Holder: r.Int32N(9) - 3,
		Kind: Kind(r.IntN(int(kinds))), Verb: sched.Verb(1 + r.IntN(4)), Level: sched.Level(1 + r.IntN(3)), Outcome: sched.Outcome(r.IntN(4)),
		Reason: sched.Reason(r.IntN(len(sched.Reasons()))), Class: sched.Class(r.IntN(4)), What: What(r.IntN(3)), Change: Change(r.IntN(4)),
		SpanKind: hal.SpanKind(r.IntN(4)), Left: hal.Departure(r.IntN(4)), Run: r.IntN(2) == 0, Late: r.IntN(2) == 0, Estimated: r.IntN(2) == 0,
		Paused: r.IntN(2) == 0, Text: text(),
		Words: &Details{Note: text(), Order: api.Order{
			Name: "set", UID: &uid, PID: 3, Command: text(), Address: text(), Tree: true, From: text(), To: text(), Refused: true, Status: 403, Reason: text(), LeftOut: 2,
		}},
	}
}

// TestHiddenOrder checks that the hidden part of an order is not in its JSON.
func TestHiddenOrder(t *testing.T) {
	uid := int64(7)
	e := Entry{Kind: Order, Words: &Details{Order: api.Order{Name: "set", UID: &uid, PID: 8, Command: "sh", From: "class=idle", To: "class=online", Refused: true, Reason: "no"}}}
	var back api.Entry
	if err := json.Unmarshal(e.AppendJSON(nil, true), &back); err != nil || *back.Order != (api.Order{Name: "set", Refused: true}) {
		t.Errorf("got %+v, %v", back.Order, err)
	}
}

// TestPSI compares with values that the kernel's functions give, computed by hand: from 0,
// a period that is fully stalled, then none.
func TestPSI(t *testing.T) {
	p := newPSI(0)
	p.add(sched.Time(psiPeriod), psiPeriod)
	// calc_load(0, 1677, 100*2048) = (100*2048*371 + 2047) / 2048 = 37100
	if want := "avg10=18.11 avg60=3.27 avg300=0.68 total=2000000"; p.stall().String() != want {
		t.Errorf("got %v, want %s", p.stall(), want)
	}
	// calc_load(37100, 1677, 0) = 37100*1677/2048 = 30379
	if p.add(sched.Time(2*psiPeriod), 0); p.avg[0] != 30379 {
		t.Errorf("got %d, want 30379", p.avg[0])
	}
	many := psi{avg: p.avg, updated: p.updated, next: p.next, total: p.total, counted: p.counted}
	for i := 3; i <= 12; i++ {
		p.add(sched.Time(i)*sched.Time(psiPeriod), 0)
	}
	many.add(12*sched.Time(psiPeriod), 0)
	if d := int64(many.avg[0]) - int64(p.avg[0]); d > 40 || d < -40 {
		t.Errorf("after ten periods at once: got %d, one by one %d", many.avg[0], p.avg[0])
	}
	for range 5000 {
		p.add(p.next, p.next.Sub(p.updated))
	}
	if p.avg != [3]uint64{100 * fixed1, 100 * fixed1, 100 * fixed1} {
		t.Errorf("always stalled: got %v", p.stall())
	}
}

func BenchmarkAdd(b *testing.B) {
	r, e := New(time.Now(), 0), Entry{Kind: Span}
	for b.Loop() {
		r.Add(&e)
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	e, buf := Entry{Kind: Span, At: 1 << 40, Begin: 1 << 40, End: 1 << 41, PID: 4711, Device: "GPU-1234", SpanKind: hal.SpanHeld}, []byte(nil)
	for b.Loop() {
		buf = e.AppendJSON(buf[:0], false)
	}
	b.ReportMetric(float64(len(buf)), "B/entry")
}
