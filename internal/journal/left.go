package journal

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// Keys of a Store.
const (
	queuePrefix  = "queue/"  // and its number: a Queue
	changePrefix = "change/" // and the queue's number: a Change
)

// Queue is what is needed to find a queue again when no process has its descriptor but its
// owner: the process, and the state that the backend gave for Adopter.Adopt.
type Queue struct {
	Process proc.ID         `json:"process"`
	Backend string          `json:"backend"`
	State   json.RawMessage `json:"state"`
}

// Left is a change that a daemon left behind.
type Left struct {
	ID     sched.QueueID
	Queue  Queue
	Change Change
}

func key(prefix string, id sched.QueueID) string { return prefix + strconv.FormatUint(uint64(id), 10) }

// isOrder reports whether a key is neither of a queue nor of a change.
func isOrder(key string) bool {
	return !strings.HasPrefix(key, queuePrefix) && !strings.HasPrefix(key, changePrefix)
}

// PutQueue records a queue that may be changed.
func (s *Store) PutQueue(id sched.QueueID, q Queue) error { return s.Put(key(queuePrefix, id), q) }

// PutChange records what is changed of a queue, before it is changed or after it is undone.
func (s *Store) PutChange(id sched.QueueID, c Change) error {
	if c == (Change{}) {
		return s.Delete(key(changePrefix, id))
	}
	return s.Put(key(changePrefix, id), c)
}

// ForgetQueue removes a queue and its changes.
func (s *Store) ForgetQueue(id sched.QueueID) error {
	return s.Delete(key(changePrefix, id), key(queuePrefix, id))
}

// Left returns all changes, and the highest number of a queue in the journal. Queues without
// a change, which a daemon left behind, are removed. An error says which records are missing.
func (s *Store) Left() (all []Left, last sched.QueueID, err error) {
	for _, k := range append(s.Keys(changePrefix), s.Keys(queuePrefix)...) {
		prefix, text, _ := strings.Cut(k, "/")
		n, wrong := strconv.ParseUint(text, 10, 64)
		l := Left{ID: sched.QueueID(n)}
		if wrong == nil {
			last = max(last, l.ID)
		}
		isQueue := prefix+"/" == queuePrefix
		changed := s.Get(key(changePrefix, l.ID), &l.Change)
		switch {
		case wrong != nil:
			err = errors.Join(err, errors.New("the journal has an unknown key "+k), s.Delete(k))
		case isQueue && changed: // it was listed already
		case isQueue:
			err = errors.Join(err, s.Delete(k))
		case !s.Get(key(queuePrefix, l.ID), &l.Queue):
			err = errors.Join(err, errors.New("the journal does not say whose queue "+text+" is"), s.Delete(k))
		default:
			all = append(all, l)
		}
	}
	return all, last, err
}
