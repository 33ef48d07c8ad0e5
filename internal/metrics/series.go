package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/giveway/giveway/sched"
)

// seriesKey is the labels of a series.
type seriesKey struct {
	device, pid, user, container, pod, namespace string
	class                                        sched.Class
}

func (k seriesKey) compare(o seriesKey) int {
	return cmp.Or(
		strings.Compare(k.device, o.device), cmp.Compare(k.class, o.class), strings.Compare(k.user, o.user),
		strings.Compare(k.namespace, o.namespace), strings.Compare(k.pod, o.pod), strings.Compare(k.container, o.container), strings.Compare(k.pid, o.pid),
	)
}

// series is the counts of one series of a family.
type series struct {
	class                 sched.Class
	time                  time.Duration
	use                   Use
	requests, met, missed uint64
	used                  sched.Time
	uid                   uint32 // of its processes
	shared                bool   // they have several users
	others                bool   // it is of processes that have none of their own
}

// family is a metric with a bounded number of series.
type family struct {
	most int
	of   map[seriesKey]*series
	own  int        // series that are not of others
	full sched.Time // until then no series can make room
	// changed counts the series that made room: then a series may be another than before.
	changed uint64
}

// otherName is the value of the labels of all processes that have no series of their own.
const otherName = "other"

// unusedTime is after which time without an increase a series may make room for another.
// It is longer than any interval at which Prometheus scrapes.
const unusedTime = 5 * time.Minute

// get returns the series with a key. If there are too many, one that was not used for a
// while makes room; otherwise it is the series of others.
func (f *family) get(now sched.Time, k seriesKey, uid uint32) *series {
	s := f.of[k]
	if s == nil {
		if f.of == nil {
			f.of = make(map[seriesKey]*series)
		}
		redirected := false
		switch other := k.others(); {
		case k == other: // it has none of the labels
		case f.own >= f.most && !f.makeRoom(now):
			k, redirected = other, true
		default:
			f.own++
		}
		if s = f.of[k]; s == nil {
			s = &series{class: k.class, uid: uid, others: redirected}
			f.of[k] = s
		}
	}
	s.used, s.shared = now, s.shared || s.uid != uid
	return s
}

// others returns the key of the processes without a series of their own. Labels that are not
// wanted stay empty.
func (k seriesKey) others() seriesKey {
	for _, label := range []*string{&k.pid, &k.user, &k.container, &k.pod, &k.namespace} {
		if *label != "" {
			*label = otherName
		}
	}
	return k
}

// makeRoom drops the series that was not used for the longest time.
func (f *family) makeRoom(now sched.Time) bool {
	if now < f.full {
		return false
	}
	var oldest seriesKey
	last := now
	for k, s := range f.of {
		if k != k.others() && s.used < last {
			oldest, last = k, s.used
		}
	}
	if f.full = last.Add(unusedTime); now < f.full {
		return false
	}
	delete(f.of, oldest)
	f.own--
	f.changed++
	return true
}

// keys returns the keys in order.
func (f *family) keys() []seriesKey {
	return slices.SortedFunc(maps.Keys(f.of), seriesKey.compare)
}

// maxLabel is the longest value of a label, in bytes.
const maxLabel = 256

// clean returns text that a user chose as it can be the value of a label: printable UTF-8 of
// bounded length, because people read metrics on terminals. Different texts may become the
// same, so keys are made of clean texts.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s[:min(len(s), 2*maxLabel)])
	if len(s) > maxLabel {
		s = strings.ToValidUTF8(s[:maxLabel], "")
	}
	return s
}
