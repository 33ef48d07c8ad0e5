package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/quota"
	"github.com/giveway/giveway/internal/server"
)

// orderOwner is the party to which limits on processes and orders apply: a user with its subordinate
// uids, or a pod.
type orderOwner struct {
	account uint32
	pod     string
	all     bool // callers that may do everything: they have no limit
}

// administrator owns the orders that only callers with all rights can give.
var administrator = orderOwner{all: true}

// ownerOf returns the owner of a caller's orders.
func ownerOf(by server.Caller) orderOwner {
	switch {
	case by.All:
		return administrator
	case by.Pod != "":
		return orderOwner{pod: by.Pod}
	}
	return orderOwner{account: by.Account}
}

// processOwner returns the owner of a process. One that belongs to root counts for its starter:
// see adminSettingsOf. It may read files, and so is called without d.mu.
func (d *Daemon) processOwner(info *proc.Process) orderOwner {
	if pod := d.podOf(info.Containers); pod != "" {
		return orderOwner{pod: pod}
	}
	return orderOwner{account: d.account(cmp.Or(info.UID, info.Starter))}
}

// orderQuota divides the bytes of the journal that are for orders among owners. The rest of
// journal.MaxOrders is for containers and for orders of the administrator.
var orderQuota = quota.Quota{All: journal.MaxOrders * 3 / 4, Each: journal.MaxOrders / 4}

// keptValue is a value of the journal and its owner.
type keptValue struct {
	orderOwner
	value any
}

// orderLog writes the results of orders to the journal: only those that have changed, and for each
// owner no more than its share. Daemon.keeping guards it.
type orderLog struct {
	written map[string]written
	bytes   map[orderOwner]int
	limited int // bytes of all owners that have a limit
	// full has the owners whose orders did not fit at the last write, which an error has reported.
	full map[orderOwner]bool
}

// errNoRoom means that an order does not fit in its owner's share of the journal.
var errNoRoom = errors.New("no more fit in its share")

// written is a value as the journal has it. If an earlier daemon wrote it, only the key is known.
type written struct {
	keptValue
	bytes int
}

// load notes which keys the journal has.
func (k *orderLog) load(j *journal.Store) {
	k.written, k.bytes, k.full = make(map[string]written), make(map[orderOwner]int), make(map[orderOwner]bool)
	for _, prefix := range []string{keptProcesses, keptTrees, keptRuns, keptPolicies} {
		for _, key := range j.Keys(prefix) {
			k.written[key] = written{}
		}
	}
}

// replace makes the journal have these values and no others. It returns the first error of writing, and
// one for each owner whose share has become full.
func (k *orderLog) replace(j *journal.Store, all map[string]keptValue) error {
	var failed, noRoom error
	for _, key := range slices.Sorted(maps.Keys(k.written)) {
		if _, ok := all[key]; ok {
			continue
		}
		failed = cmp.Or(failed, k.remove(j, key))
	}
	full := make(map[orderOwner]bool)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		err := k.put(j, key, all[key])
		if !errors.Is(err, errNoRoom) {
			failed = cmp.Or(failed, err)
			continue
		}
		full[all[key].orderOwner] = true
		noRoom = errors.Join(noRoom, k.once(all[key].orderOwner, err))
	}
	k.full = full
	return errors.Join(failed, noRoom)
}

// once returns an error of put, unless it is errNoRoom again: orders that do not fit are tried every
// second, and a user must not fill the log with them.
func (k *orderLog) once(of orderOwner, err error) error {
	if !errors.Is(err, errNoRoom) {
		return err
	}
	if k.full[of] {
		return nil
	}
	k.full[of] = true
	return err
}

// remove removes a key from the journal.
func (k *orderLog) remove(j *journal.Store, key string) error {
	err := j.Delete(key)
	if err == nil {
		k.note(key, written{})
		delete(k.written, key)
	}
	return err
}

// put writes a value if it has changed. If there is no room for it, the old one is removed: it would
// come into force again at the next start.
func (k *orderLog) put(j *journal.Store, key string, v keptValue) error {
	old := k.written[key]
	if old.orderOwner == v.orderOwner && sameKept(old.value, v.value) {
		return nil
	}
	text, err := json.Marshal(v.value)
	if err != nil {
		return err
	}
	n := len(key) + len(text)
	others, mine := k.limited, k.bytes[v.orderOwner]
	if !old.all {
		others -= old.bytes
	}
	if old.orderOwner == v.orderOwner {
		mine -= old.bytes
	}
	if !v.all && !orderQuota.Allows(mine, others, n) {
		if _, ok := k.written[key]; ok {
			if err := k.remove(j, key); err != nil {
				return err
			}
		}
		return fmt.Errorf("write %s to the journal: orders of one user have %d bytes there, and %w", key, mine, errNoRoom)
	}
	if err := j.Put(key, json.RawMessage(text)); err != nil {
		return err
	}
	k.note(key, written{v, n})
	return nil
}

// note notes what the journal has for a key.
func (k *orderLog) note(key string, now written) {
	for _, w := range []struct {
		of    orderOwner
		bytes int
	}{{k.written[key].orderOwner, -k.written[key].bytes}, {now.orderOwner, now.bytes}} {
		if k.bytes[w.of] += w.bytes; k.bytes[w.of] == 0 {
			delete(k.bytes, w.of)
		}
		if !w.of.all {
			k.limited += w.bytes
		}
	}
	k.written[key] = now
}

// sameKept reports whether two values of the journal are the same. Policies, of which there are few,
// cannot be compared and so are never the same.
func sameKept(a, b any) bool {
	if _, policy := b.(keptPolicy); policy {
		return false
	}
	return a == b
}
